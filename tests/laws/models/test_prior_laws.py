"""What every prior of the catalogue satisfies, and those of weights together: density, derivatives, draws and files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.catalogue.models import PRIORS
from torchbayes.model import priors
from torchbayes.model.priors.bound import BoundPrior
from torchbayes.model.priors.expected import is_closed

IMPROPER = {name for name, entry in PRIORS.items() if getattr(entry.kind, "improper", "")}
INPUTS, CLASSES = normal(20, 2, seed=5), torch.arange(20) % 2
TOGETHER: dict[str, Any] = {
    "correlated": priors.Correlated(0.09 * torch.tensor([[1.0, 0.4], [0.4, 2.0]])),
    "empcov": priors.EmpCov.of(INPUTS, scale=0.3, jitter=0.05),
    "hierarchical rows": priors.Hierarchical(0.3, 3.0, "rows"),
    "hierarchical columns": priors.Hierarchical(0.3, 3.0, "columns"),
    "hierarchical weights": priors.Hierarchical(0.3, None, "weights"),
}
NAMES = [*PRIORS, *TOGETHER]
every = pytest.mark.parametrize("name", NAMES)
proper = pytest.mark.parametrize("name", [name for name in NAMES if name not in IMPROPER])


def prior_of(name: str) -> Any:
    """The prior, at scale 0.3 where it has one."""
    if name in TOGETHER:
        return TOGETHER[name]
    kind = PRIORS[name].kind
    return kind(scale=0.3) if hasattr(kind(), "scale") else kind()


def model_of(prior: Any, dtype: torch.dtype = torch.float64) -> tb.Model:
    """A classifier with a prior of its first weight, and of the others."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 2)).to(dtype)
    return tb.Model(net, tb.likelihoods.Categorical(), {"0.weight": prior, "*": priors.Normal(0.8)})


def bound_of(name: str) -> BoundPrior:
    return tb.Model(nn.Linear(2, 2, bias=False).double(), tb.likelihoods.Categorical(), prior_of(name)).prior


def autograd(bound: BoundPrior, weights: Tensor) -> Tensor:
    leaf = weights.double().requires_grad_()
    return torch.autograd.grad(bound.log_prob(leaf).sum() + 0 * leaf.sum(), leaf)[0]  # a flat one has no graph


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gradient_is_that_of_the_density(name: str, dtype: torch.dtype) -> None:
    bound, weights, start = bound_of(name), (0.3 * normal(3, 4)).to(dtype), normal(3, 4, seed=1).to(dtype)
    gradient, rtol = start.clone(), 1e-9 if dtype == torch.float64 else 1e-4
    with torch.no_grad():
        bound.add_gradient_(gradient, weights, 0.7)
    assert_close(gradient, start + 0.7 * autograd(bound, weights), rtol=rtol, atol=rtol)
    assert bound.log_prob(weights).dtype == torch.float64
    assert_close(bound.log_prob(weights), bound.log_prob(weights.double()), rtol=rtol, atol=rtol)


@every
def test_a_precision_is_the_second_derivative_or_is_refused(name: str) -> None:
    bound, weights = bound_of(name), 0.3 * normal(4, seed=2)
    hessian: Any = torch.autograd.functional.hessian(bound.log_prob, weights)
    try:
        actual = bound.precision(weights)
    except ValueError as error:
        assert re.search("precision|curve", str(error))  # noqa: PT017
        assert name in {"horseshoe", "hierarchical", *TOGETHER} or not (-hessian.diagonal() > 0).all()
        return
    assert_close(actual, -hessian.diagonal(), rtol=1e-8)


@proper
def test_draws_have_the_density(name: str) -> None:
    """E q(w)/p(w) over draws of p is 1 for every q, here normal and narrower: draws, density and its constant agree."""
    bound = bound_of(name)
    draws = bound.sample(40_000, seed=3)
    assert draws.dtype == torch.float64
    assert torch.equal(bound.sample(9, seed=3), bound.sample(9, seed=3))
    centred = draws - bound.locs()
    spread = 0.8 * centred.abs().median(0).values / 0.6745
    log_q = torch.distributions.Normal(bound.locs(), spread).log_prob(draws).sum(1)
    ratios = (log_q - bound.log_prob(draws)).exp()
    error = float(ratios.std()) / len(draws) ** 0.5
    assert error < 0.05
    assert abs(float(ratios.mean()) - 1) < 5 * error


@proper
def test_standard_deviations_are_those_of_draws_or_infinite(name: str) -> None:
    bound = bound_of(name)
    stds, draws = bound.stds(), bound.sample(60_000, seed=4)
    for std, actual in zip(stds, draws.T, strict=True):
        if torch.isfinite(std):
            assert_close(actual.std(), std, rtol=0.15)
        else:
            assert actual.abs().max() > 100 * actual.abs().median()  # tails without a variance


@pytest.mark.parametrize("name", sorted(IMPROPER))
def test_improper_priors_have_no_draws(name: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        bound_of(name).sample(2, seed=0)


@every
def test_every_way_to_run_has_the_same_density(name: str) -> None:
    model, batch = model_of(prior_of(name)), tb.Batch(INPUTS, CLASSES)
    weights = 0.3 * normal(3, model.layout.size, seed=6)
    leaf = weights.clone().requires_grad_()
    expected = torch.stack([model.log_joint(row, batch, 20) for row in leaf])
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    for plan in ("auto", "loop", "vmap"):
        value = tb.LogDensity(model, 20, batch, plan=plan)(weights)
        assert_close(value.log_density, expected)
        assert_close(value.gradient, gradient, atol=1e-9)


@pytest.mark.parametrize("kind", [entry.kind for entry in PRIORS.values() if hasattr(entry.kind, "log_prob")])
def test_a_subclass_with_another_density_is_taken_by_that_density(kind: Any) -> None:
    """Closed forms that it inherits belong to the density of its base."""
    prior = type("Narrower", (kind,), {"log_prob": lambda self, w: kind.log_prob(self, w) - 2 * (w - 0.3) ** 2})()
    model, batch = model_of(prior), tb.Batch(INPUTS, CLASSES)
    weights = 0.3 * normal(3, model.layout.size, seed=6)
    leaf = weights.clone().requires_grad_()
    first, rest = leaf[:, :4], priors.Normal(0.8).log_prob(leaf[:, 4:])
    log_prior = prior.log_prob(first).sum(1) + rest.sum(1)
    log_prob = torch.stack([model.log_likelihood(row, batch).sum() for row in leaf])
    (gradient,) = torch.autograd.grad((log_prior + log_prob).sum(), leaf)
    for plan in ("native", "loop"):
        value = tb.LogDensity(model, 20, batch, plan=plan)(weights)
        assert_close(value.log_density, log_prior + log_prob)
        assert_close(value.gradient, gradient, atol=1e-9)
    assert not is_closed(model.prior.segments[0])
    with pytest.raises(ValueError, match="has no `sample`"):
        model.prior.sample(2)


@every
@pytest.mark.usefixtures("unjudged_fits")
def test_a_fit_and_its_file_remember_the_prior(name: str, tmp_path: Path) -> None:
    model = model_of(prior_of(name), torch.float32)
    method = tb.VI(epochs=2, kl_weight=1.0) if name == "log_uniform" else tb.MAP(epochs=2)
    posterior = tb.fit(model, (INPUTS.float(), CLASSES), method, callbacks=())
    path = posterior.save(tmp_path / "posterior.safetensors")
    assert_close(tb.load(path, model_of(prior_of(name), torch.float32)).sample(1), posterior.sample(1))
    with pytest.raises(ValueError, match="prior"):
        tb.load(path, model_of(priors.Normal(0.123), torch.float32))

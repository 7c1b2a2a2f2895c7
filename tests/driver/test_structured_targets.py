"""Targets that are dicts and pairs, from end to end: censored survival times under a likelihood of the user's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from tests.covering import some_of
from tests.laws.models.survival import Survival, times
from tests.oracles import assert_close, normal
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import torchbayes as tb
from torchbayes.evidence import prior_monte_carlo

pytestmark = pytest.mark.usefixtures("unjudged_fits")

N = 24
X, TIMES = normal(N, 2), times(N)


def model_of(likelihood: Any = None) -> tb.Model:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    return tb.Model(net, likelihood or Survival(None), tb.priors.Normal(0.7))


def log_density(model: tb.Model, weights_D: Tensor) -> Tensor:
    """Return log p(D|w) + log p(w), with the network and the Weibull density written out."""
    first, bias, second, last, log_shape = weights_D.split([6, 3, 3, 1, 1])
    scale = ((X @ first.view(3, 2).T + bias).tanh() @ second + last).exp()
    shape = log_shape.exp()
    log_survival = -((TIMES["time"] / scale) ** shape)
    log_hazard = (shape / scale).log() + (shape - 1) * (TIMES["time"] / scale).log()
    scales_D = torch.tensor([0.7] * 13 + [0.5], dtype=torch.float64)
    log_prior = -0.5 * (weights_D / scales_D).square() - (scales_D * math.sqrt(2 * math.pi)).log()
    return (TIMES["event"] * log_hazard + log_survival).sum() + log_prior.sum()


class Rows(Dataset):
    """Rows with a dict of targets, as a loader collates them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        return X[index], {name: values[index] for name, values in TIMES.items()}


FORMS = {
    "tuple": lambda: (X, TIMES),
    "dataset": Rows,
    "loader": lambda: DataLoader(Rows(), batch_size=10, shuffle=True),
    "batches": lambda: [(X[:9], {n: t[:9] for n, t in TIMES.items()}), (X[9:], {n: t[9:] for n, t in TIMES.items()})],
}


@pytest.mark.parametrize("plan", ["loop", "vmap", "auto"])
def test_the_density_is_the_one_written_out(plan: Any):
    model = model_of()
    rows, weights_MD = model.unpack((X, TIMES)), 0.4 * normal(2, model.layout.size)
    actual = tb.LogDensity(model, N, rows, plan=plan, chunk_size=10)(weights_MD)
    leaf = weights_MD.clone().requires_grad_()
    expected_M = torch.stack([log_density(model, w) for w in leaf])
    (gradient_MD,) = torch.autograd.grad(expected_M.sum(), leaf)
    assert_close(actual.log_density, expected_M)
    assert_close(actual.gradient, gradient_MD)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data(form: str):
    model = model_of()
    posterior = tb.fit(model, FORMS[form](), tb.MAP(epochs=2, batch_size=10), callbacks=())
    assert torch.isfinite(posterior.sample(1)).all()
    actual = tb.evaluate(posterior, FORMS[form]())
    expected = tb.evaluate(posterior, (X, TIMES))
    assert actual.metrics == pytest.approx(expected.metrics)
    assert set(actual.metrics) == {"nll"}
    assert_close(actual.targets["time"].sort().values, TIMES["time"].sort().values)


METHODS = {
    "map": tb.MAP(members=2, epochs=3, batch_size=8),
    "swag": tb.SWAG(members=2, epochs=6, batch_size=8),
    "hmc": tb.HMC(chains=2, steps=6, burn_in=2, step_size=0.05, trajectory=0.2),
    "sgld": tb.SGLD(chains=2, steps=20, burn_in=4, thin=4, batch_size=8),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", METHODS)
def test_methods_fit_save_load_and_predict(name: str, tmp_path: Path):
    model = model_of()
    posterior = tb.fit(model, (X, TIMES), METHODS[name], directory=tmp_path / "run", callbacks=())
    actual = tb.load(tmp_path / "run" / "posterior.safetensors", model_of())
    assert_close(actual.sample(4, seed=1), posterior.sample(4, seed=1))
    weights_SD = posterior.sample(4, seed=1)
    again = tb.fit(model_of(), (X, TIMES), METHODS[name], directory=tmp_path / "run", resume=True, callbacks=())
    assert_close(again.sample(4, seed=1), weights_SD)
    evaluation = tb.evaluate(posterior, (X, TIMES), draws=4, seed=1)
    shape = weights_SD[:, -1:].exp()
    scale = torch.stack([model.network(model.split(w)[0], X)[:, 0] for w in weights_SD]).exp()
    # density of an event, survival of what is censored
    each = torch.where(
        TIMES["event"] == 1,
        torch.as_tensor(stats.weibull_min.pdf(TIMES["time"], shape, scale=scale)),
        torch.as_tensor(stats.weibull_min.sf(TIMES["time"], shape, scale=scale)),
    )
    assert_close(evaluation.log_prob, each.mean(0).log())
    assert evaluation.metrics["nll"] == pytest.approx(float(-each.mean(0).log().mean()))
    assert tb.predict(posterior, X[:3], draws=4).mean.shape == (3,)


def mode_of(model: tb.Model) -> Tensor:
    """Return the mode, by Newton's method on the density written out."""
    weights_D = model.given_weights()
    optimizer = torch.optim.LBFGS([weights_D.requires_grad_()], max_iter=300, line_search_fn="strong_wolfe",
                                  tolerance_grad=1e-12, tolerance_change=1e-15)  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -log_density(model, weights_D)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return weights_D.detach()


@pytest.fixture(scope="module")
def mode_D() -> Tensor:
    return mode_of(model_of())


def test_the_exact_hessian_is_that_of_the_density(mode_D: Tensor):
    model = model_of()
    posterior = tb.fit(
        model, (X, TIMES), tb.Laplace(structure="dense", curvature="hessian", prior="model"), start=mode_D
    )
    assert isinstance(posterior, tb.LaplacePosterior)
    matrix = torch.autograd.functional.hessian(lambda w: -log_density(model, w), mode_D)
    exact = torch.as_tensor(matrix)
    net = slice(0, 13)
    actual = torch.linalg.inv(posterior.gaussian.covariance.dense()[0])
    assert_close(actual[net, net], exact[net, net], rtol=1e-8, atol=1e-8)
    assert_close(actual[13, 13], exact[13, 13], rtol=1e-8)  # the learned shape is on its own
    assert_close(posterior.log_likelihood_M, [float(model.log_likelihood(mode_D, model.unpack((X, TIMES))).sum())])


@pytest.mark.filterwarnings("ignore:.*at which the search on held-out data ends")  # rows trained on want no spread
@pytest.mark.parametrize(
    ("structure", "curvature"),
    some_of(["diagonal", "kronecker", "ekfac", "dense", "low_rank"], ["ggn", "empirical"], one_in=2),
)
def test_laplace_in_all_structures(structure: Any, curvature: Any, mode_D: Tensor, tmp_path: Path):
    model = model_of()
    method = tb.Laplace(structure=structure, curvature=curvature, rank=20, prior="model")
    posterior = tb.fit(model, (X, TIMES), method, start=mode_D, callbacks=())
    assert isinstance(posterior, tb.LaplacePosterior)
    views, learned = model.split(mode_D)
    jacobian_BD = torch.as_tensor(torch.autograd.functional.jacobian(
        lambda w: model.network(model.network.layout.split(w), X)[:, 0], mode_D[:-1]
    ))  # fmt: skip
    shape, outputs = learned["log_shape"].exp(), model.network(views, X)[:, 0].detach()
    scaled = (TIMES["time"] / outputs.exp()) ** shape
    # of −log p in f: k² (t e^{−f})^k, be it an event or not; and the square of its slope
    each_B = {"ggn": shape**2 * scaled, "empirical": (shape * (scaled - TIMES["event"])) ** 2}[curvature]
    exact = jacobian_BD.T @ (each_B.unsqueeze(1) * jacobian_BD)
    actual = (
        posterior.curvature.dense()[0] * (posterior.reference_MD[0].sqrt().outer(posterior.reference_MD[0].sqrt()))
    )[:-1, :-1]
    if structure in {"dense", "low_rank"}:
        assert_close(actual, exact, rtol=1e-7, atol=1e-9)
    elif structure == "diagonal":
        assert_close(actual, torch.diag(exact.diagonal()), rtol=1e-9)
    else:
        assert_close(actual.diagonal().sum() if structure == "ekfac" else actual[-1, -1],
                     exact.diagonal().sum() if structure == "ekfac" else exact[-1, -1], rtol=1e-7)  # fmt: skip
    assert torch.isfinite(posterior.log_evidence()).all()
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = tb.load(tmp_path / "posterior.safetensors", model_of())
    assert_close(loaded.sample(2, seed=3), posterior.sample(2, seed=3))
    linear = tb.evaluate(tb.Linearised(posterior, samples=8), (X, TIMES)).metrics
    assert set(linear) == {"nll"}
    if structure == "kronecker":
        tuned = tb.tune(posterior, prior="scalar", on=(X, TIMES))
        assert float(tb.evaluate(tb.Linearised(tuned), (X, TIMES)).metrics["nll"]) < linear["nll"] + 0.5


def test_targets_that_cannot_be_drawn_are_said(mode_D: Tensor):
    with pytest.raises(ValueError, match="log_prob of Survival is not the log probability of its distribution"):
        tb.fit(model_of(), (X, TIMES), tb.Laplace(curvature="fisher", prior="model"), start=mode_D, callbacks=())


def test_evidence_is_the_integral():
    """Two weights and a fixed shape: the sum over a grid."""
    model, data = tb.Model(nn.Linear(1, 1).double(), Survival(1.5), tb.priors.Normal(1.0)), (X[:, :1], TIMES)
    axis = torch.linspace(-4, 4, 33, dtype=torch.float64)
    grid_GD = torch.cartesian_prod(axis, axis)
    rows = model.unpack(data)
    density_G = tb.LogDensity(model, N, rows, plan="vmap")(grid_GD).log_density
    exact = float(torch.logsumexp(density_G, 0) + 2 * (axis[1] - axis[0]).log())
    actual = prior_monte_carlo(model, data, draws=700, seed=1)
    assert abs(actual.log_evidence - exact) < 5 * actual.error
    assert actual.error < 0.2

"""Weights picked one by one are random for every method, and the helper picks those of largest variance."""

from __future__ import annotations

import pytest
import torch
from tests.laws.cases import made, rows_of
from tests.oracles import assert_close, normal
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import torchbayes as tb


def masks(module: nn.Module, share: float = 0.5) -> dict[str, Tensor]:
    return {n: torch.rand(p.shape, generator=torch.Generator().manual_seed(3)) < share
            for n, p in module.named_parameters()}  # fmt: skip


def test_the_network_is_the_same_function() -> None:
    module = made("mlp")
    model = tb.Model(module, tb.likelihoods.Categorical(), random=masks(module))
    inputs = rows_of()[0]
    assert model.layout.size == sum(int(m.sum()) for m in masks(module).values())
    assert_close(model.network(model.network.weights(), inputs), module(inputs))
    weights = normal(model.layout.size)
    views, expected = model.layout.split(weights), dict(module.named_parameters())
    own = {n: p.detach().clone() for n, p in expected.items()}
    for name, view in views.items():
        own[name][masks(module)[name]] = view
    assert_close(model.network(weights, inputs), functional_call(module, own, (inputs,)))


@pytest.mark.parametrize("structure", ["dense", "diagonal", "kronecker", "low_rank"])
def test_laplace_on_picked_weights_is_that_of_their_jacobian(structure: str) -> None:
    module, (inputs, targets) = made("conv_batch_norm").eval(), rows_of("conv_batch_norm")
    model = tb.Model(module, tb.likelihoods.Categorical(), random=masks(module))
    method = tb.Laplace(structure=structure, check_mode=False, rank=model.layout.size, prior="model")  # type: ignore[arg-type]
    actual = tb.fit(model, (inputs, targets), method, start=module, callbacks=())
    assert isinstance(actual, tb.LaplacePosterior)
    named = {n: p.detach() for n, p in module.named_parameters()}
    jacobian = vmap(jacrev(lambda p, x: functional_call(module, p, (x[None],))[0]), (None, 0))(named, inputs)
    chosen = torch.cat([mask.flatten() for mask in masks(module).values()])
    rows = torch.cat([part.flatten(2) for part in jacobian.values()], dim=2)[..., chosen]
    probs = module(inputs).softmax(-1).detach()
    middle = torch.diag_embed(probs) - probs.unsqueeze(2) * probs.unsqueeze(1)
    expected = torch.einsum("nki,nkl,nlj->ij", rows, middle, rows)
    if structure == "diagonal":
        assert_close(actual.curvature.diagonal()[0], expected.diagonal(), rtol=1e-9)
    elif structure != "kronecker":  # that has the parameters that are picked whole in blocks of their own
        assert_close(actual.curvature.dense()[0], expected, rtol=1e-7, atol=1e-9)
    variance = tb.Linearised(actual).functions(inputs).covariance_MBKK[0]
    precision = torch.linalg.inv(actual.gaussian.covariance.dense()[0])
    assert_close(variance, rows @ torch.linalg.solve(precision, rows.mT), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", [tb.MAP(members=2, epochs=3), tb.HMC(2, 6, 2, step_size=0.01, trajectory=0.03)])
def test_other_methods_move_picked_weights_alone(method: tb.MAP | tb.HMC) -> None:
    module, data = made("mlp"), rows_of()
    model = tb.Model(module, tb.likelihoods.Categorical(), random=masks(module))
    for start in (None, module):
        posterior = tb.fit(model, data, method, start=start, callbacks=())
        assert posterior.sample(2).shape == (2, model.layout.size)
        assert not torch.equal(posterior.sample(2)[0], model.network.weights())
        assert torch.isfinite(tb.evaluate(posterior, data).log_prob).all()


def test_largest_marginal_variances_are_chosen() -> None:
    module, data = made("mlp"), rows_of()
    model = tb.Model(module, tb.likelihoods.Categorical())
    whole = tb.fit(model, data, tb.Laplace("diagonal", check_mode=False, prior="model"), start=module, callbacks=())
    choice = tb.subnetwork(whole, 7)  # type: ignore[arg-type]
    variance = whole.gaussian.covariance.diagonal()[0]  # type: ignore[attr-defined]
    flat = torch.cat([
        choice.get(n, torch.zeros(s, dtype=torch.bool)).flatten() for n, s in model.layout.shapes.items()
    ])
    assert int(flat.sum()) == 7
    assert float(variance[flat].min()) >= float(variance[~flat].max())
    small = tb.Model(module, tb.likelihoods.Categorical(), random=choice)
    posterior = tb.fit(small, data, tb.Laplace("dense", check_mode=False, prior="model"), start=module, callbacks=())
    assert posterior.sample(3).shape == (3, 7)


@pytest.mark.parametrize(
    ("random", "words"),
    [
        ({"0.weight": torch.ones(2, 2, dtype=torch.bool)}, "must be a bool tensor of shape"),
        ({"0.weight": torch.ones(6, 4)}, "must be a bool tensor of shape"),
        ({"nothing": torch.ones(6, 4, dtype=torch.bool)}, "which is no parameter"),
        ({"0.weight": torch.zeros(6, 4, dtype=torch.bool)}, "no parameter is random"),
    ],
)
def test_masks_that_do_not_fit(random: dict[str, Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tb.Model(made("mlp"), tb.likelihoods.Categorical(), random=random)


@pytest.mark.parametrize("size", [0, 10_000])
def test_sizes_that_are_not_there(size: int) -> None:
    module = made("mlp")
    model = tb.Model(module, tb.likelihoods.Categorical())
    whole = tb.fit(
        model, rows_of(), tb.Laplace("diagonal", check_mode=False, prior="model"), start=module, callbacks=()
    )
    with pytest.raises(ValueError, match="`size` must"):
        tb.subnetwork(whole, size)  # type: ignore[arg-type]

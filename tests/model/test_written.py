"""Networks that change their inputs in place: the user's inputs stay unchanged, and changing weights is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.density import LogDensity
from torchbayes.model import Network

N = 12
NORMAL = tb.likelihoods.Gaussian(0.5)


class Standardises(nn.Module):
    """Standardises its inputs, in place or not; in training alone if it is so set."""

    def __init__(self, *, in_place: bool, always: bool = True) -> None:
        super().__init__()
        self.in_place, self.always, self.layer = in_place, always, nn.Linear(3, 1).double()

    def forward(self, inputs: Tensor) -> Tensor:
        if not (self.training or self.always):
            return self.layer(inputs)
        return self.layer(inputs.sub_(1.0).mul_(0.5) if self.in_place else (inputs - 1.0) * 0.5)


def both(**options: Any) -> tuple[tb.Model, tb.Model]:
    """Return models of a network that writes on its inputs, and of one that does not."""
    actual = [Standardises(in_place=in_place, **options) for in_place in (True, False)]
    actual[0].load_state_dict(actual[1].state_dict())
    return tb.Model(actual[0], NORMAL), tb.Model(actual[1], NORMAL)


def densities(model: tb.Model, inputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
    density = LogDensity(model, N, tb.Batch(inputs, targets), chunk_size=5, **options)
    return torch.stack([density(normal(2, model.layout.size, seed=2)).log_density for _ in range(3)])


def predicted(model: tb.Model, inputs: Tensor, targets: Tensor) -> Tensor:
    return tb.predict(tb.Point(model, normal(3, model.layout.size, seed=2)), inputs).outputs_SBK


def trained(model: tb.Model, inputs: Tensor, targets: Tensor) -> Tensor:
    actual = tb.fit(model, (inputs, targets), tb.MAP(epochs=3, batch_size=4, plan="loop"), callbacks=())
    assert isinstance(actual, tb.Point)
    return actual.weights_MD


def evidence(model: tb.Model, inputs: Tensor, targets: Tensor) -> Tensor:
    start = normal(model.layout.size, seed=2)
    actual = tb.fit(
        model, [(inputs, targets)], tb.Laplace("dense", check_mode=False, prior="model"), start=start, callbacks=()
    )
    assert isinstance(actual, tb.LaplacePosterior)
    return torch.cat([actual.log_evidence(), tb.Linearised(actual).functions(inputs).covariance_MBKK.flatten()])


@pytest.mark.parametrize("asked", [densities, predicted, trained, evidence])
def test_a_network_that_writes_on_its_inputs_gives_what_one_that_does_not_gives(asked: Callable[..., Tensor]):
    writes, keeps = both()
    inputs, targets = normal(N, 3), normal(N, 1, seed=1)
    given = inputs.clone()
    assert_close(asked(writes, given, targets), asked(keeps, inputs, targets))
    assert torch.equal(given, inputs)


@pytest.mark.parametrize("plan", ["loop", "vmap"])
def test_writing_in_training_alone_is_seen(plan: Any):
    writes, keeps = both(always=False)
    inputs, targets = normal(N, 3), normal(N, 1, seed=1)
    writes.check(tb.Batch(inputs, targets))  # in evaluation
    given = inputs.clone()
    options = {"plan": plan, "training": True}
    assert_close(densities(writes, given, targets, **options), densities(keeps, inputs, targets, **options))
    assert torch.equal(given, inputs)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("inputs", [normal(4, 3), {"input": normal(4, 3)}], ids=["tensor", "mapping"])
def test_an_activation_in_place_leaves_the_inputs(inputs: Any, context: Any):
    network = Network(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double())
    tensor = inputs["input"] if isinstance(inputs, dict) else inputs
    before = tensor.clone()
    with context():
        network(network.weights(), inputs)
    assert torch.equal(tensor, before)


def test_a_network_that_keeps_its_inputs_is_given_themselves():
    given = []

    class Looks(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            given.append(input)
            return super().forward(input)

    network, inputs = Network(Looks(3, 2)), torch.ones(4, 3)
    for _ in range(2):
        network(network.weights(), inputs)
    assert [each is inputs for each in given] == [False, True, True]  # once to see whether it does


def test_a_network_that_writes_on_its_weights_is_refused():
    model = tb.Model(nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Linear(3, 2)), tb.likelihoods.Categorical())
    tokens, labels = torch.arange(5), torch.arange(5) % 2
    weights = torch.ones(1, model.layout.size)
    with pytest.raises(ValueError, match=r"changes its weights `0\.weight` in place.*max_norm"):
        LogDensity(model, 5, tb.Batch(tokens, labels))(weights)
    with pytest.raises(ValueError, match="changes its weights"):
        tb.fit(model, (tokens, labels), tb.MAP(epochs=1), callbacks=())
    assert (weights == 1).all()

"""DoRA: gradients are those of the outputs, of which PEFT's backward pass leaves a part out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.architectures.helpers import ggn, precision
from tests.oracles import assert_close, normal
from torchbayes.density import LogDensity

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]
CLASSES = 3


class Transposed(nn.Module):
    """A network with the layer of GPT-2, whose weight is (inputs, outputs)."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = pytest.importorskip("transformers").pytorch_utils.Conv1D(6, 4)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inside(inputs)))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 6), nn.Flatten(), nn.Linear(12, CLASSES))


NETWORKS: dict[str, tuple[Any, str, Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)), "0", normal(5, 4)),
    "transposed": (Transposed, "inside", normal(5, 4)),
    "filters": (
        lambda: nn.Sequential(nn.Conv2d(2, 6, 2), nn.Tanh(), nn.Flatten(), nn.Linear(24, CLASSES)),
        "0",
        normal(5, 2, 3, 3),
    ),
    "words": (words, "0", torch.tensor([[0, 1], [6, 2], [3, 3], [4, 5], [1, 0]])),
}


def model_of(kind: str, *, init_lora_weights: bool = False) -> tuple[tb.Model, Any, tuple[Tensor, Tensor]]:
    make, target, inputs = NETWORKS[kind]
    torch.manual_seed(0)
    settings = peft.LoraConfig(
        r=2,
        target_modules=[target],
        use_dora=True,
        init_lora_weights=init_lora_weights,
        fan_in_fan_out=kind == "transposed",
    )
    network = peft.get_peft_model(make(), settings).double()
    model = tb.Model(network, tb.likelihoods.Categorical(), random="*lora*")
    return model, network, (inputs, torch.arange(5) % CLASSES)


@pytest.mark.parametrize("kind", [*NETWORKS])
def test_gradients_are_those_of_the_outputs(kind: str):
    model, network, rows = model_of(kind)
    batch = model.unpack(rows)
    weights_D = model.given_weights() + 0.1 * normal(model.layout.size, seed=1)

    def value(at_D: Tensor) -> Tensor:
        return model.log_likelihood(at_D, batch).sum()

    assert_close(model.network(model.given_weights(), batch.inputs), network(rows[0]))
    leaf_D = weights_D.clone().requires_grad_()
    (gradient_D,) = torch.autograd.grad(value(leaf_D), leaf_D)
    steps_DD = 1e-5 * torch.eye(len(weights_D), dtype=torch.float64)
    with torch.no_grad():
        differences = [(value(weights_D + step) - value(weights_D - step)) / 2e-5 for step in steps_DD]
    assert_close(gradient_D, torch.stack(differences), rtol=1e-6, atol=1e-8)
    loss = nn.functional.cross_entropy(network(rows[0]), rows[1])  # PEFT itself is left as it is
    held = {n: p for n, p in network.named_parameters() if "lora" in n}
    given = torch.cat([g.flatten() for g in torch.autograd.grad(-5 * loss, [*held.values()])])
    leaf_D = model.given_weights().requires_grad_()
    (mended_D,) = torch.autograd.grad(value(leaf_D), leaf_D)
    assert (given - mended_D).norm() > 0.02 * mended_D.norm()


@pytest.mark.parametrize("kind", [*NETWORKS])
def test_laplace_is_that_of_the_outputs(kind: str):
    model, _, rows = model_of(kind)
    exact, start = ggn(model, model.unpack(rows).inputs, CLASSES), model.given_weights()
    for structure in ("dense", "kronecker"):
        method = tb.Laplace(structure=structure, check_mode=False, prior="model")  # type: ignore[arg-type]
        assert_close(
            precision(tb.fit(model, rows, method, start=start)), exact + torch.eye(len(exact)), rtol=1e-7, atol=1e-9
        )


@pytest.mark.parametrize("plan", ["loop", "vmap"])
def test_energies_fit_gradients(plan: Any):
    """Members at once have the gradients of each alone; the error of leapfrog energies falls as a step squared."""
    model, _, rows = model_of("linear")
    batch, weights_MD = model.unpack(rows), normal(2, model.layout.size, seed=2)
    density = LogDensity(model, 5, batch, plan=plan)
    for m, gradient_D in enumerate(density(weights_MD).gradient):
        leaf_D = weights_MD[m].clone().requires_grad_()
        assert_close(gradient_D, torch.autograd.grad(model.log_joint(leaf_D, batch, 5), leaf_D)[0], rtol=1e-9)

    def error(steps: int) -> Tensor:
        at_MD, momentum_MD, step = weights_MD, normal(*weights_MD.shape, seed=3), 0.2 / steps
        before_M = density(at_MD).log_density - momentum_MD.square().sum(1) / 2
        for _ in range(steps):
            momentum_MD = momentum_MD + step / 2 * density(at_MD).gradient
            at_MD = at_MD + step * momentum_MD
            momentum_MD = momentum_MD + step / 2 * density(at_MD).gradient
        return density(at_MD).log_density - momentum_MD.square().sum(1) / 2 - before_M

    assert_close(error(40) / error(80), torch.full((2,), 4.0), rtol=0.05)


@pytest.mark.parametrize("kind", [*NETWORKS])
def test_members_begin_as_peft_does(kind: str):
    """At magnitudes that leave the layer as it is without an adapter, as one of the factors is 0."""
    model, network, (inputs, _) = model_of(kind, init_lora_weights=True)
    (weights_MD, _), base = model.starting_weights([1, 2]), network.get_base_model()
    given = {name: weights for name, weights in network.named_parameters() if "magnitude" in name}
    for weights_D in weights_MD:
        views = model.layout.split(weights_D)
        for name, weights in given.items():
            assert_close(views[name], weights, rtol=1e-6)  # which PEFT computed in single precision
        with network.disable_adapter():
            assert_close(model.network(weights_D, inputs), base(inputs))
    assert not torch.equal(*weights_MD)

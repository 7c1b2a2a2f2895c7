"""Networks whose layers lie on several devices, as `device_map` of Hugging Face places them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import Tensor, nn

import torchbayes as tb
from tests.device.emulated import DEVICE, Emulated

CPU = torch.device("cpu")
ROWS = torch.linspace(-1.0, 1.0, 60, dtype=torch.float64).view(20, 3), torch.arange(20) % 2


class Moving(nn.Sequential):
    """Layers, each of which is given its input on its own device."""

    def forward(self, input: Tensor) -> Tensor:
        for layer in self:
            weight = next(layer.parameters(), input)
            input = layer(input.to(weight.device))
        return input


class Low(nn.Linear):
    """A layer in its weights' dtype."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype))


def network(kind: type[nn.Sequential], dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return kind(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def spread(how: str, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The network with its last two layers elsewhere."""
    made = network(nn.Sequential if how == "hooks" else Moving, dtype)
    made[2].to(DEVICE)
    made[4].to(DEVICE)
    if how == "hooks":  # those of `accelerate.dispatch_model`
        add_hook_to_module(made, AlignDevicesHook(io_same_device=True))
        for layer, at in ((made[0], CPU), (made[2], DEVICE), (made[4], DEVICE)):
            add_hook_to_module(layer, AlignDevicesHook(execution_device=at))
    return made


def model_of(made: nn.Module, random: Any = "*") -> tb.Model:
    return tb.Model(made, tb.likelihoods.Categorical(), tb.priors.Normal(1.0), random=random)


@pytest.mark.parametrize("how", ["hooks", "forward"])
@pytest.mark.parametrize("plan", ["loop", "vmap"])
@pytest.mark.parametrize("random", ["*", "2.*", ["0.*", "4.*"]])
def test_density_and_gradient_are_those_on_a_single_device(how: str, plan: Any, random: Any, counts: Emulated) -> None:
    exact, model = model_of(network(nn.Sequential), random), model_of(spread(how), random)
    expected, weights_MD = tb.LogDensity(exact, 20, exact.unpack(ROWS), plan=plan), exact.starting_weights([1, 2])[0]
    density = tb.LogDensity(model, 20, model.unpack(ROWS), plan=plan)
    assert model.network.device == (DEVICE if random == "2.*" else CPU)
    for actual, true in zip(density(weights_MD.to(model.network.device)), expected(weights_MD), strict=True):
        torch.testing.assert_close(actual.cpu(), true)


@pytest.mark.parametrize("how", ["hooks", "forward"])
@pytest.mark.parametrize(
    "method",
    [
        tb.MAP(members=2, epochs=2, batch_size=5),
        tb.IVON(epochs=2, batch_size=5),
        tb.HMC(chains=2, steps=3, burn_in=1, step_size=0.05, trajectory=0.2),
        *(tb.Laplace(structure) for structure in ("kronecker", "diagonal", "dense")),
    ],
    ids=lambda method: f"{type(method).__name__}_{getattr(method, 'structure', '')}".strip("_"),
)
@pytest.mark.filterwarnings("ignore")  # of results that are worth little after two passes
def test_fits_and_predictions_are_those_on_a_single_device(how: str, method: Any, counts: Emulated) -> None:
    probs = []
    for made in (network(nn.Sequential), spread(how)):
        model = model_of(made)
        start = made if isinstance(method, tb.Laplace) else None
        posterior = tb.fit(model, ROWS, method, start=start)
        probs.append(tb.predict(posterior, ROWS[0], draws=4).probs)
    torch.testing.assert_close(probs[1], probs[0], rtol=1e-6, atol=1e-8)


def test_masks_and_dtypes_go_with_devices(counts: Emulated) -> None:
    made, plain = spread("forward", torch.float32), network(Moving, torch.float32)
    for each in (made, plain):
        low = Low(4, 2, dtype=torch.bfloat16)
        low.load_state_dict(each[4].state_dict())
        each[4] = low.to(next(each[4].parameters()).device)
    some = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) > 0.5
    names = {"0.weight": torch.ones(5, 3, dtype=torch.bool), "2.weight": some, "4.bias": torch.tensor([True, True])}
    model, exact = model_of(made, names), model_of(plain, names)
    weights_D = exact.starting_weights([3])[0][0]
    inputs = ROWS[0].float()
    torch.testing.assert_close(model.network(weights_D, inputs), exact.network(weights_D, inputs))

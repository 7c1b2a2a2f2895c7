"""Networks of many kinds, in float64 with random parameters and statistics, and members with their units shuffled."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.randomness.seeds import Purpose, seeded


class Functional(nn.Module):
    """Convolutions, a residual branch and a head, by functions alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 5, 3, padding=1)
        self.third, self.head = nn.Conv2d(5, 6, 1), nn.Linear(6 * 4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.first(inputs))
        hidden = hidden + self.third(F.gelu(self.second(hidden)))
        return self.head(torch.flatten(F.max_pool2d(hidden, 4), 1))


class Viewed(Functional):
    """The same, flattened by sizes."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu_(self.first(inputs))
        return self.head(F.max_pool2d(hidden, 4).view(hidden.size(0), -1))


class Dense(nn.Module):
    """A block whose channels are concatenated, as in a densenet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(6, 3, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(9), nn.Linear(9, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.cat([inputs, torch.tanh(self.first(inputs))], dim=1)
        hidden = torch.cat([hidden, self.second(hidden)], dim=1)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(F.relu(self.norm(hidden)), 1), 1))


class Gated(nn.Module):
    """Two halves of a layer, one the gate of the other, and a norm of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(3, 12), nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        values, gates = self.first(inputs).chunk(2, dim=-1)
        return self.head(self.norm(values * torch.sigmoid(gates)))


class Attention(nn.Module):
    """Self-attention with a residual stream, a class token and positions."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.embed, self.body = nn.Linear(3, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 6, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        words = torch.cat([self.token.expand(len(inputs), -1, -1), self.embed(inputs)], dim=1) + self.places
        return self.head(self.body(words)[:, 0])


class Recurrent(nn.Module):
    """A recurrent layer with a head."""

    def __init__(self, kind: type[nn.Module] = nn.GRU) -> None:
        super().__init__()
        self.body, self.head = kind(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs)[0][:, -1])


class Shuffled(nn.Module):
    """Sorts its hidden units, so that each position means another thing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.head(torch.linalg.solve_triangular(torch.eye(5).to(hidden), hidden.T, upper=True).T)


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(6 * 9, 7), nn.BatchNorm1d(7), nn.ELU(), nn.Dropout(), nn.Linear(7, 3),
    )  # fmt: skip


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 1), nn.ReLU6(), nn.Conv2d(6, 12, 3, groups=6), nn.SiLU(), nn.Conv2d(12, 8, 1, groups=2),
        nn.PReLU(8), nn.Conv2d(8, 4, 3, groups=2), nn.Flatten(), nn.Linear(4 * 16, 3),
    )  # fmt: skip


def depthwise_first() -> nn.Module:
    """Each input channel by itself, whose order is that of the data."""
    return nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Tanh(), nn.Conv2d(6, 5, 3), nn.Flatten(), nn.Linear(5 * 9, 2))


def norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.GroupNorm(1, 8), nn.Softplus(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.Mish(),
        nn.Conv2d(8, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Upsample(scale_factor=2), nn.Flatten(),
        nn.Linear(4 * 16, 3),
    )  # fmt: skip


def decoder() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 24), nn.LeakyReLU(), nn.Unflatten(1, (6, 2, 2)), nn.ConvTranspose2d(6, 4, 2), nn.Hardswish(),
        nn.ConvTranspose2d(4, 2, 2),
    )  # fmt: skip


def normed_weights() -> nn.Module:
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 5)), nn.Tanh(),
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 2)),
    )  # fmt: skip


IMAGE = (2, 8, 8)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # name -> network, shape of a row, groups with more than one unit
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)), (3,), 2),
    "functional": (Functional, IMAGE, 2),
    "dense": (Dense, IMAGE, 2),
    "gated": (Gated, (3,), 1),
    "attention": (Attention, (5, 3), 5),
    "batch norm": (batch_norm, IMAGE, 2),
    "depthwise": (depthwise, IMAGE, 4),
    "depthwise first": (depthwise_first, (3, 7, 7), 1),
    "norms": (norms, IMAGE, 4),
    "decoder": (decoder, (3,), 2),
    "weight norm": (normed_weights, (3,), 1),
    "recurrent": (Recurrent, (4, 3), 1),
}


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    """Return the module in float64 with other parameters and statistics than initial ones."""
    module = module.double().eval()
    with seeded(Purpose.FACTORY, seed), torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand_like(buffer) + (0.5 if "var" in name else 0.0))
    return module


def made(name: str, seed: int = 0) -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    """Return the model of a network and some data."""
    network, shape, _ = NETWORKS[name]
    with seeded(Purpose.FACTORY, 7 + seed):
        module = filled(network(), seed)
    inputs = normal(6, *shape, seed=8)
    outputs = module(inputs)
    return tb.Model(module, tb.likelihoods.Gaussian(1.0)), (inputs, torch.zeros_like(outputs).detach())


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

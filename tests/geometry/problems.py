"""Small models and data of all kinds, and their dense Hessians by torch.func, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import normal
from torchbayes.randomness.seeds import Purpose, seeded

ROWS = 12


class Named(nn.Module):
    """A network that takes keyword arguments and returns an object with logits, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, values: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(values).tanh() * scale}


def made(network: Callable[[], nn.Module], *, double: bool = True) -> nn.Module:
    """A network, always with the same weights."""
    with seeded(Purpose.FACTORY, 3):
        net = network()
    return net.double() if double else net


def mlp(inputs: int = 2, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, 3),
    )


def _half_frozen() -> nn.Module:
    net = mlp()
    next(net.parameters()).requires_grad_(False)
    return net


INPUTS, LABELS = normal(ROWS, 2), torch.arange(ROWS) % 3
IMAGES = normal(ROWS, 1, 6, 6, seed=5)
REAL = normal(ROWS, 1, seed=6)


def problem(name: str) -> tuple[tb.Model, Any]:
    """A model in float64 and data, by name."""
    categorical, gaussian = tb.likelihoods.Categorical(), tb.likelihoods.Gaussian(0.7)
    weighted = tb.likelihoods.Weighted(categorical)
    weights = torch.linspace(0.0, 2.0, ROWS, dtype=torch.float64)
    actual: dict[str, tuple[Callable[[], tb.Model], Any]] = {
        "classifier": (lambda: tb.Model(made(mlp), categorical), (INPUTS, LABELS)),
        "regression": (lambda: tb.Model(made(lambda: mlp(2, 1)), gaussian), (INPUTS, REAL)),
        "learned noise": (
            lambda: tb.Model(made(lambda: mlp(2, 1)), tb.likelihoods.Gaussian("learned")),
            (INPUTS, REAL),
        ),
        "one weight": (
            lambda: tb.Model(made(lambda: nn.Linear(1, 1, bias=False)), gaussian),
            (INPUTS[:, :1], REAL),
        ),
        "one row": (lambda: tb.Model(made(mlp), categorical), (INPUTS[:1], LABELS[:1])),
        "one class": (lambda: tb.Model(made(mlp), categorical), (INPUTS, torch.zeros_like(LABELS))),
        "rank deficient": (
            lambda: tb.Model(made(lambda: nn.Linear(8, 1)), gaussian),
            (INPUTS[:, :1].expand(-1, 8).contiguous(), REAL),
        ),
        "weighted rows": (lambda: tb.Model(made(mlp), weighted), (INPUTS, (LABELS, weights))),
        "frozen": (lambda: tb.Model(made(_half_frozen), categorical), (INPUTS, LABELS)),
        "glob": (lambda: tb.Model(made(mlp), categorical, random="2.*"), (INPUTS, LABELS)),
        "conv": (lambda: tb.Model(made(_conv), categorical), (IMAGES, LABELS)),
        "named": (
            lambda: tb.Model(made(Named), categorical),
            {"values": INPUTS, "scale": 1 + 0 * INPUTS[:, :1], "labels": LABELS},
        ),
        "batches": (lambda: tb.Model(made(mlp), categorical), [(INPUTS[:5], LABELS[:5]), (INPUTS[5:], LABELS[5:])]),
    }
    make, data = actual[name]
    return make(), data


NAMES = (
    "classifier", "regression", "learned noise", "one weight", "one row", "one class", "rank deficient",
    "weighted rows", "frozen", "glob", "conv", "named", "batches",
)  # fmt: skip


def rows_of(model: tb.Model, data: Any) -> tb.Batch:
    """All rows, in one batch."""
    if isinstance(data, list):
        data = tuple(torch.cat(parts) for parts in zip(*data, strict=True))
    return model.unpack(data)


@cache
def hessian_of(name: str) -> Tensor:
    """The Hessian of a problem, which several tests compare with and none changes."""
    return hessian(*problem(name))


@cache
def gauss_newton_of(name: str) -> Tensor:
    """Its Gauss-Newton matrix, likewise."""
    return gauss_newton(*problem(name))


def hessian(model: tb.Model, data: Any, weights_D: Tensor | None = None) -> Tensor:
    """−∇² Σ log p(y|f), dense, by torch.func."""
    rows = rows_of(model, data)
    at_D = model.given_weights() if weights_D is None else weights_D
    return torch.func.jacrev(torch.func.grad(lambda w: -model.log_likelihood(w, rows).sum()))(at_D)  # type: ignore[return-value]


def gauss_newton(model: tb.Model, data: Any) -> Tensor:
    """Σ JᵀΛJ of a categorical or unit-noise likelihood, dense: the Hessian of a network that is made linear."""
    rows, at_D = rows_of(model, data), model.given_weights()
    views, learned = model.split(at_D)
    size = model.network.layout.size
    assert len(views)
    assert not learned
    jacobian = torch.func.jacrev(lambda w: model.network(w, rows.inputs))(at_D[:size])
    centre = model.network(at_D, rows.inputs).detach()

    def linear(step: Tensor) -> Tensor:
        return -model.likelihood.log_prob(centre + jacobian @ step, rows.targets).sum()  # type: ignore[operator]

    return torch.func.jacrev(torch.func.grad(linear))(torch.zeros_like(at_D))  # type: ignore[return-value]

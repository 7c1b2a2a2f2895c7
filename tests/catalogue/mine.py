"""What a user would write: data, a network, a likelihood, a prior and a method of one's own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

import torchbayes as tb


def build(input_shape: tuple[int, ...], num_outputs: int, *, width: int = 5) -> nn.Module:
    """A perceptron."""
    features = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.Tanh(), nn.Linear(width, num_outputs))


def load(rows: int = 60, kind: str = "regression", columns: int = 3) -> Any:
    """A table."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(rows, columns))
    targets = inputs[:, 0] + 0.1 * rng.normal(size=rows)
    if kind == "counts":
        return inputs, rng.poisson(np.exp(1 + inputs[:, 0])).astype(float)
    return inputs, (targets if kind == "regression" else np.where(targets > 0, "yes", "no"))


def noise(scale: float = 0.3) -> tb.likelihoods.Likelihood:
    """A likelihood."""
    return tb.likelihoods.Gaussian(scale)


def narrow(scale: float = 1.0) -> tb.priors.Normal:
    """A prior."""
    return tb.priors.Normal(scale / 2)


@dataclass(frozen=True)
class Mine:
    """A method: MAP under another name."""

    members: int = 1
    epochs: int = 3
    batch_size: int = 10
    lr: float = 0.01
    plan: str = "loop"

    @property
    def base(self) -> tb.MAP:
        return tb.MAP(self.members, self.epochs, self.batch_size, tb.Adam(self.lr), plan=self.plan)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.base, name)

    def init(self, *arguments: Any, **settings: Any) -> Any:
        return self.base.init(*arguments, **settings)

    def step(self, *arguments: Any, **settings: Any) -> Any:
        return self.base.step(*arguments, **settings)


WIDE = tb.SWAG(averaging_lr=0.2, epochs=4, rank=2)
NUMBER = 3


def no_network(input_shape: tuple[int, ...], num_outputs: int) -> int:
    """Something other than a network."""
    return len(input_shape) + num_outputs

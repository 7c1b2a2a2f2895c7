"""Optimisers of torch.optim on the stacked vector (M, D): frozen settings, and slots that belong to the state.

The update rules are PyTorch's own functional forms, fused where the build has them. They are elementwise, so M members
take one call. `update` changes weights and slots in place; callers that need the old ones clone first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeVar

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from torchbayes.settings import check_settings

Slots = dict[str, Tensor]

_Density = TypeVar("_Density")


class Plain:
    """Base of optimisers that take the gradient at the weights themselves."""

    @property
    def rule(self) -> Self:
        """Itself: the rule by which a gradient moves weights."""
        return self

    def objective(self, density: _Density) -> _Density:
        """Return the objective of a descent: the density as it is."""
        return density

    def caveats(self, weights_MD: Tensor) -> list[str]:
        """Return no problems, at any weights."""
        return []


@dataclass(frozen=True)
class SGD(Plain):
    """Stochastic gradient descent with momentum: b ← μ b + g, w ← w − lr b (Nesterov: w ← w − lr (g + μ b)).

    Attributes:
        lr: learning rate on the mean loss per observation.
        momentum: μ.
        nesterov: whether to use Nesterov momentum.
    """

    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.nesterov and self.momentum == 0:
            raise ValueError("`nesterov` needs a momentum; got `momentum` 0. Give one, such as 0.9.")

    def slots(self, weights_MD: Tensor) -> Slots:
        """Return the initial slots: a momentum buffer of zeros."""
        return {"momentum_MD": torch.zeros_like(weights_MD)}

    def update(self, weights_MD: Tensor, gradient_MD: Tensor, slots: Slots, *, lr: float) -> None:
        """Take one step in place: weights and slots are changed."""
        sgd(
            [weights_MD],
            [gradient_MD],
            [slots["momentum_MD"]],
            weight_decay=0.0,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            fused=True,
        )


@dataclass(frozen=True)
class _Adaptive(Plain):
    """Steps divided by the root of a running mean square of the gradient.

    Attributes:
        lr: learning rate.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def decay(self) -> float:
        """Decoupled weight decay."""
        return 0.0

    def slots(self, weights_MD: Tensor) -> Slots:
        """Return the initial slots: two moments of zeros and a step count."""
        zeros = torch.zeros_like
        return {
            "first_MD": zeros(weights_MD),
            "second_MD": zeros(weights_MD),
            "count": torch.zeros((), dtype=torch.float32, device=weights_MD.device),
        }

    def update(self, weights_MD: Tensor, gradient_MD: Tensor, slots: Slots, *, lr: float) -> None:
        """Take one step in place: weights and slots are changed."""
        adam(
            [weights_MD],
            [gradient_MD],
            [slots["first_MD"]],
            [slots["second_MD"]],
            [],
            [slots["count"]],
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.decay,
            decoupled_weight_decay=self.decay > 0,
            eps=self.eps,
            maximize=False,
            fused=True,
        )


@dataclass(frozen=True)
class Adam(_Adaptive):
    """Adam (Kingma and Ba 2015); the prior enters through the gradient."""


@dataclass(frozen=True)
class AdamW(_Adaptive):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): w ← (1 − lr · weight_decay) w before the step.

    The decay is added to the effect of the model's prior; with `priors.Flat()` it is the only shrinkage.

    Attributes:
        weight_decay: decoupled decay.
    """

    weight_decay: float = 0.01

    @property
    def decay(self) -> float:
        return self.weight_decay


Optimizer = SGD | Adam | AdamW

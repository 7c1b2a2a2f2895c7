"""The members of a likelihood, mandatory and optional, and functions that call them.

Every likelihood has the four methods of `Likelihood`. The following are optional, and each refers to log p(y|f) as its
class computes it:

    curvature_root(outputs, targets, parameters)     columns r, (R, B, ...), with Σ_r r rᵀ = Λ, the Fisher information
                                                     of the outputs, in closed form
    score_root(outputs, targets, parameters)         columns with Σ_r r rᵀ = E[s sᵀ], s = ∇_f log p(y|f), the mean over
                                                     what the targets leave open (soft labels)
    parameter_information(outputs, targets, parameters)   name -> information of learned parameters, (B, ...)
    counted(outputs, targets), scored(outputs, targets)   the same targets as plain ones with weights
    average_log_prob(outputs_SBK, targets, parameters)    log (1/S) Σ_s p(y|f_s)
    informed(targets, weights_N)         the likelihood with the `spread` of its targets; `asks()` whether it needs that

A subclass that changes `log_prob`, or anything else that its base computes with, does not inherit them (`holds`): its
log probability is differentiated instead, at the observed targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Distribution

from torchbayes.checks import check_counts, check_each, check_flags, check_numbers, holds, plain
from torchbayes.model.priors.univariate import Prior, check_prior

Parameters = Mapping[str, Tensor]
NONE: Parameters = {}


@dataclass(frozen=True)
class Listed:
    """The entry of a likelihood in the catalogue: its class has one as `listed`; a user's own likelihood needs none."""

    name: str
    line: str
    task: Literal["classification", "regression"] | None  # of its data; None for any
    outputs: Callable[[Any], int]  # the number of network outputs that it needs, of a `torchbayes.data.Data`
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its class, where they differ from the defaults
    # gives data with targets in its form, or raises a ValueError; None if it takes any data of the task unchanged
    prepare: Callable[[Any], Any] | None = None


def target_columns(data: Any) -> int:
    """Return the number of values in the targets of one row: an output for each."""
    return int(data.train.targets[0].numel())


def two_classes(data: Any) -> Any:
    """Return data of two classes; ValueError if there are more."""
    if data.num_classes != 2:
        raise ValueError(f"it is for two classes, and there are {data.num_classes}")
    return data


@dataclass(frozen=True)
class Learned:
    """A likelihood parameter that is inferred with the weights.

    Attributes:
        shape: its shape.
        initial: the value a fit starts from: one number, or one for each element on the last axis.
        prior: univariate prior of each element.
        estimate: whether a fit that starts from a trained network, which does not hold the parameter, starts it at its
            most probable value there instead.
    """

    shape: tuple[int, ...]
    initial: float | tuple[float, ...]
    prior: Prior
    estimate: bool = False

    def __post_init__(self) -> None:
        plain(self)
        check_each(check_counts, least=0, shape=self.shape)
        if isinstance(self.initial, tuple):
            check_each(check_numbers, initial=self.initial, length=self.shape[-1] if self.shape else 1)
        else:
            check_numbers(initial=self.initial)
        check_prior(prior=self.prior)
        check_flags(estimate=self.estimate)

    def start(self) -> Tensor:
        """Return the value a fit starts from, float64, of the parameter's shape."""
        return torch.tensor(self.initial, dtype=torch.float64).expand(self.shape).clone()


@runtime_checkable
class Likelihood(Protocol):
    """The methods of every likelihood of this package. Targets are a tensor, or a tuple or dict of such."""

    def parameters(self) -> Mapping[str, Learned]:
        """Return the learned parameters by name (empty for most likelihoods)."""
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return p(y | f) for outputs (..., B, K), with `parameters` broadcasting against (..., B, K)."""
        ...

    def log_prob(self, outputs: Tensor, targets: Any, parameters: Parameters = NONE) -> Tensor:
        """Return log p(y_b | f_b), shape (..., B), in nats; row b is a function of row b alone."""
        ...

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Raise ValueError or TypeError when `targets` (B, ...) cannot come from `outputs` (B, K)."""
        ...


class Counted(NamedTuple):
    """Targets as plain ones with weights: log p(y|f) is the sum over places of c log p_plain(y|f).

    The weights c are (B,), or (B, ...) of the places of a row, over which log p_plain and its curvature sum.
    """

    likelihood: Likelihood
    targets: Any  # of the plain likelihood
    weights: Tensor | None = None  # c; None if each counts once

    @property
    def row_weights(self) -> Tensor | None:
        """How often each row counts, (B,): the largest weight among its places."""
        return self.weights if self.weights is None or self.weights.ndim == 1 else self.weights.flatten(1).amax(1)


def counted(likelihood: Likelihood, outputs: Tensor, targets: Any) -> Counted:
    """Return targets as fits use them: `log_prob` is that of the plain likelihood, times the weights."""
    if holds(likelihood, "counted"):
        return likelihood.counted(outputs, targets)
    return Counted(likelihood, targets)


def scored(likelihood: Likelihood, outputs: Tensor, targets: Any) -> Counted:
    """Return targets as metrics use them.

    Weights of rows count here too; targets of `Weighted` may also come without weights. Class weights and label
    smoothing serve the fit and do not count. Ignored places have weight 0, and log probability 0 under the plain
    likelihood.
    """
    if holds(likelihood, "scored"):
        return likelihood.scored(outputs, targets)
    return Counted(likelihood, targets)


def average_log_prob(
    likelihood: Likelihood, outputs_SBK: Tensor, targets: Any, *, parameters: Parameters = NONE
) -> Tensor:
    """Return log (1/S) Σ_s p(y_b | f_s(x_b)), (B,), in nats, of the outputs of S functions."""
    if holds(likelihood, "average_log_prob"):
        return likelihood.average_log_prob(outputs_SBK, targets, parameters)
    return log_mean_exp(likelihood.log_prob(outputs_SBK, targets, parameters))


def log_mean_exp(values_S: Tensor) -> Tensor:
    """Return log (1/S) Σ_s e^{v_s} over the first axis."""
    return torch.logsumexp(values_S, dim=0) - math.log(len(values_S))

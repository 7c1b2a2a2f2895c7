"""p(y | f): how data arise from a network's outputs f.

A likelihood turns outputs into a torch `Distribution` and gives the log probability of each datum. Axes: outputs
(..., B, K) with any leading axes (draws, members), targets (B,) or (B, ...); a datum's log probability sums over
every axis of the targets after B. Learned parameters (a noise scale) are declared by `parameters()`; they live in
the flat vector under `likelihood.NAME` and reach the likelihood as a mapping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.model.priors import Normal, Prior

Parameters = Mapping[str, Tensor]
_NONE: Parameters = {}


@dataclass(frozen=True)
class Learned:
    """A likelihood parameter that is inferred with the weights.

    Attributes:
        shape: its shape.
        initial: the value a fit starts from.
        prior: univariate prior of each element.
    """

    shape: tuple[int, ...]
    initial: float
    prior: Prior


@runtime_checkable
class Likelihood(Protocol):
    """What a likelihood offers; every class of this module does."""

    def parameters(self) -> Mapping[str, Learned]:
        """Return the learned parameters by name (empty for most likelihoods)."""
        ...

    def distribution(self, outputs: Tensor, parameters: Parameters = _NONE) -> Distribution:
        """Return p(y | f) for outputs (..., B, K), with `parameters` broadcasting against (..., B, K)."""
        ...

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return log p(y_b | f_b), shape (..., B), in nats."""
        ...

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise ValueError or TypeError when `targets` (B, ...) cannot come from `outputs` (B, K)."""
        ...


def _per_datum(elementwise: Tensor, targets: Tensor, event: int = 0) -> Tensor:
    """Return the sum over the axes of the targets behind the batch axis; the last `event` ones are summed already."""
    extra = targets.ndim - 1 - event
    return elementwise.flatten(-extra).sum(-1) if extra > 0 else elementwise


def _like(targets: Tensor, width: int) -> Tensor:
    """Return targets (B,) with the trailing axis of one-column outputs, lest they broadcast to (B, B)."""
    return targets.unsqueeze(-1) if targets.ndim == 1 and width == 1 else targets


def _aligned(targets: Tensor, distribution: Distribution, ndim: int) -> Tensor:
    """Return targets (B,) with the trailing axis of a distribution that kept that of its one-column outputs."""
    batch = distribution.batch_shape
    return _like(targets, batch[-1]) if len(batch) == ndim and not distribution.event_shape else targets


def _check_shape(targets: Tensor, shape: torch.Size) -> None:
    if _like(targets, shape[-1]).shape != shape:
        raise ValueError(
            f"targets must have shape {tuple(shape)} to match the network's outputs; got {tuple(targets.shape)}."
        )


def _check_real(targets: Tensor, shape: torch.Size) -> None:
    _check_shape(targets, shape)
    if not targets.is_floating_point():
        raise TypeError(f"targets of a regression must be floating point; got {targets.dtype}. Use targets.float().")
    if not torch.isfinite(targets).all():
        bad = int((~torch.isfinite(targets)).sum())
        raise ValueError(f"targets must be finite; {bad} of {targets.numel()} are NaN or infinite. Remove those rows.")


@dataclass(frozen=True)
class Categorical:
    """y ~ Categorical(softmax(f)): classification, targets int64 in 0..K−1, outputs are logits (..., B, K)."""

    def parameters(self) -> Mapping[str, Learned]:
        """Return no learned parameters."""
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = _NONE) -> Distribution:
        """Return Categorical(logits=f)."""
        del parameters
        return distributions.Categorical(logits=outputs, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return f_y − log Σ_k e^{f_k}, summed over further target axes."""
        del parameters
        if outputs.ndim == 2 and targets.ndim == 1:
            return -F.cross_entropy(outputs, targets, reduction="none")
        index = targets.expand(outputs.shape[:-1]).unsqueeze(-1)
        return _per_datum(outputs.log_softmax(-1).gather(-1, index).squeeze(-1), targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Check shape, dtype and range of class labels.

        Raises:
            ValueError: if the shape does not match or a label is not in 0..K−1.
            TypeError: if labels are not int64.
        """
        if outputs.shape[-1] < 2:
            raise ValueError(
                f"Categorical needs one output per class, at least 2; the network gives {outputs.shape[-1]}. "
                f"For two classes with one output use likelihoods.Bernoulli()."
            )
        if targets.dtype != torch.int64:
            raise TypeError(f"class labels must be int64; got {targets.dtype}. Use targets.long().")
        if targets.shape != outputs.shape[:-1]:
            raise ValueError(f"class labels must have shape {tuple(outputs.shape[:-1])}; got {tuple(targets.shape)}.")
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= outputs.shape[-1]:
            seen = low if low < 0 else high
            raise ValueError(
                f"class labels must lie in 0..{outputs.shape[-1] - 1}, as the network has {outputs.shape[-1]} outputs; "
                f"got {seen}. Relabel the targets or widen the last layer."
            )


@dataclass(frozen=True)
class Bernoulli:
    """y_k ~ Bernoulli(sigmoid(f_k)): binary (K = 1) or multi-label targets 0/1 of the outputs' shape."""

    def parameters(self) -> Mapping[str, Learned]:
        """Return no learned parameters."""
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = _NONE) -> Distribution:
        """Return Bernoulli(logits=f)."""
        del parameters
        return distributions.Bernoulli(logits=outputs, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return Σ_k y_k log σ(f_k) + (1 − y_k) log σ(−f_k)."""
        del parameters
        targets = _like(targets, outputs.shape[-1]).to(outputs.dtype)
        return _per_datum(targets * outputs - F.softplus(outputs), targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Check shape and values of binary targets.

        Raises:
            ValueError: if the shape differs from the outputs' or a value is neither 0 nor 1.
        """
        _check_shape(targets, outputs.shape)
        if not ((targets == 0) | (targets == 1)).all():
            seen = f"{targets.min().item():g}..{targets.max().item():g}"
            raise ValueError(f"binary targets must be 0 or 1; got values in {seen}.")


@dataclass(frozen=True)
class Gaussian:
    """y ~ N(f, scale²): regression with fixed, per-output or learned noise.

    Attributes:
        scale: noise standard deviation in units of the targets: one number, one per output, or `"learned"` (inferred
            as `likelihood.log_scale` in the flat vector).
        outputs: number of outputs with a noise of their own when learned; 1 shares one scale.
        initial: starting value of a learned scale.
        prior: prior of the learned log scale.
    """

    scale: float | tuple[float, ...] | str = 1.0
    outputs: int = 1
    initial: float = 0.5
    prior: Prior = field(default_factory=lambda: Normal(scale=2.0))

    def __post_init__(self) -> None:
        if isinstance(self.scale, str):
            if self.scale != "learned":
                raise ValueError(f"`scale` must be a number, a tuple of numbers or 'learned'; got {self.scale!r}.")
        elif min(self.scale if isinstance(self.scale, tuple) else (self.scale,)) <= 0:
            raise ValueError(f"`scale` must be positive; got {self.scale}.")
        if not self.initial > 0:
            raise ValueError(f"`initial` must be positive; got {self.initial}.")

    def parameters(self) -> Mapping[str, Learned]:
        """Return the log scale when it is learned."""
        if self.scale != "learned":
            return {}
        return {"log_scale": Learned((self.outputs,), math.log(self.initial), self.prior)}

    def noise(self, outputs: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return the noise scale, broadcasting against outputs (..., B, K)."""
        if self.scale == "learned":
            return parameters["log_scale"].exp()
        return torch.as_tensor(self.scale, dtype=outputs.dtype, device=outputs.device)

    def distribution(self, outputs: Tensor, parameters: Parameters = _NONE) -> Distribution:
        """Return Normal(f, scale)."""
        return distributions.Normal(outputs, self.noise(outputs, parameters), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return Σ_k −½((y_k − f_k)/scale_k)² − log(scale_k √2π)."""
        targets = _like(targets, outputs.shape[-1])
        return _per_datum(self.distribution(outputs, parameters).log_prob(targets), targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Check shape, dtype and finiteness of real targets, and the number of noise scales.

        Raises:
            ValueError: if the shapes disagree or a target is not finite.
            TypeError: if targets are not floating point.
        """
        _check_real(targets, outputs.shape)
        scales = self.outputs if self.scale == "learned" else len(self.scale) if isinstance(self.scale, tuple) else 1
        if scales not in {1, outputs.shape[-1]}:
            raise ValueError(f"Gaussian has {scales} noise scales but the network gives {outputs.shape[-1]} outputs.")


@dataclass(frozen=True)
class HeteroscedasticGaussian:
    """y ~ N(m, s²) with f = [m, r], s² = softplus(r) + floor (Lakshminarayanan et al. 2017).

    Attributes:
        floor: smallest noise variance, in squared units of the targets.
    """

    floor: float = 1e-6

    def parameters(self) -> Mapping[str, Learned]:
        """Return no learned parameters."""
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = _NONE) -> Distribution:
        """Return Normal(m, s): the first half of the last axis is the mean, the second half gives the variance."""
        del parameters
        mean, raw = outputs.chunk(2, dim=-1)
        return distributions.Normal(mean, (F.softplus(raw) + self.floor).sqrt(), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return Σ_k log N(y_k; m_k, s_k²)."""
        targets = _like(targets, outputs.shape[-1] // 2)
        return _per_datum(self.distribution(outputs, parameters).log_prob(targets), targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Check that the outputs come in pairs and the targets are real and finite.

        Raises:
            ValueError: if the number of outputs is odd, shapes disagree or a target is not finite.
            TypeError: if targets are not floating point.
        """
        width = outputs.shape[-1]
        if width % 2:
            raise ValueError(f"HeteroscedasticGaussian needs two outputs per target (mean, raw variance); got {width}.")
        _check_real(targets, torch.Size((*outputs.shape[:-1], width // 2)))


@dataclass(frozen=True)
class StudentT:
    """y ~ f + scale · t(df): regression that tolerates outliers.

    Attributes:
        df: degrees of freedom; above 2 the variance exists.
        scale: scale of the t distribution, in units of the targets.
    """

    df: float = 4.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.df <= 0 or self.scale <= 0:
            raise ValueError(f"`df` and `scale` must be positive; got {self.df} and {self.scale}.")

    def parameters(self) -> Mapping[str, Learned]:
        """Return no learned parameters."""
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = _NONE) -> Distribution:
        """Return StudentT(df, f, scale)."""
        del parameters
        return distributions.StudentT(self.df, outputs, self.scale, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return Σ_k log t(y_k; df, f_k, scale)."""
        targets = _like(targets, outputs.shape[-1])
        return _per_datum(self.distribution(outputs, parameters).log_prob(targets), targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Check shape, dtype and finiteness of real targets.

        Raises:
            ValueError: if the shapes disagree or a target is not finite.
            TypeError: if targets are not floating point.
        """
        _check_real(targets, outputs.shape)


@dataclass(frozen=True)
class Poisson:
    """y ~ Poisson(e^f): counts; outputs are log rates."""

    def parameters(self) -> Mapping[str, Learned]:
        """Return no learned parameters."""
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = _NONE) -> Distribution:
        """Return Poisson(exp(f))."""
        del parameters
        return distributions.Poisson(outputs.exp(), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return Σ_k y_k f_k − e^{f_k} − log y_k!."""
        del parameters
        targets = _like(targets, outputs.shape[-1]).to(outputs.dtype)
        return _per_datum(targets * outputs - outputs.exp() - torch.lgamma(targets + 1), targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Check that the targets are counts of the outputs' shape.

        Raises:
            ValueError: if the shapes disagree or a target is negative, fractional or not finite.
        """
        _check_shape(targets, outputs.shape)
        real = targets.double()
        if not (torch.isfinite(real) & (real >= 0) & (real == real.round())).all():
            raise ValueError(f"counts must be whole numbers >= 0; got values in {real.min():g}..{real.max():g}.")


@dataclass(frozen=True)
class Custom:
    """Any function of the outputs that returns a torch Distribution. `Model` wraps a bare callable in it.

    Attributes:
        function: outputs (..., B, K) -> Distribution over targets: batch shape (..., B) or (..., B, more), with any
            event shape behind. Made with `validate_args=False` it can be vectorised over members.
    """

    function: Callable[[Tensor], Distribution]

    def parameters(self) -> Mapping[str, Learned]:
        """Return no learned parameters."""
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = _NONE) -> Distribution:
        """Return what the function makes of the outputs."""
        del parameters
        return self.function(outputs)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = _NONE) -> Tensor:
        """Return the distribution's log probability, summed over every axis behind B."""
        distribution = self.distribution(outputs, parameters)
        targets = _aligned(targets, distribution, outputs.ndim)
        return _per_datum(distribution.log_prob(targets), targets, len(distribution.event_shape))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Check that the distribution is one over these targets, and has the rows in its batch shape.

        Raises:
            ValueError: if its shape is not the targets'.
            TypeError: if the function gives something other than a Distribution.
        """
        given = self.distribution(outputs)
        if not isinstance(given, Distribution):
            raise TypeError(f"a custom likelihood must return a torch Distribution; got {type(given).__name__}.")
        batch, event = given.batch_shape, given.event_shape
        if batch[:1] != outputs.shape[:1] or _aligned(targets, given, outputs.ndim).shape != batch + event:
            raise ValueError(
                f"the custom likelihood must give a distribution over targets of shape {tuple(targets.shape)}, with "
                f"the {len(outputs)} rows in its batch shape; got batch shape {tuple(batch)} and event shape "
                f"{tuple(event)}. Reshape the targets or the distribution."
            )

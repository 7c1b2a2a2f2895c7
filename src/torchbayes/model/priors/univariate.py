"""p(w): the belief about the weights before the data.

A prior is one univariate density for every weight that a glob names. `Model` takes a single prior, a torch
`Distribution`, or a mapping from globs to priors; the first glob that matches a parameter's name decides. Densities are
normalised, so that evidences based on them are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, distributions
from torch.distributions import Distribution

from torchbayes.checks import check_entries, check_kind, check_object, seen
from torchbayes.model.priors.axes import Axes
from torchbayes.randomness.seeds import Purpose, seeded
from torchbayes.settings import Checked

_BLOCK = 1 << 18  # weights whose squares are summed at a time: PyTorch sums a copy of them in float64


@runtime_checkable
class Prior(Protocol):
    """Anything with an elementwise log density of weights.

    The following members are optional, and are looked up by name. Without them, log density and derivatives come from
    `log_prob` by autograd, if possible:

        std, loc                                  standard deviation and mean of a weight
        total(weights)                            Σ log p over the last axis, float64
        add_gradient_(gradient, weights, scale)   adds scale · d log p / dw in place
        visit_(weights, gradient, scale)          both in one pass
        precision(weights)                        −d² log p / dw²
        expected_(mean, variance, scale=, into=)  E log p under normal weights: see `expected.py`
        quadratic                                 whether log p is, so that means and variances suffice for `expected_`
        improper                                  a word for its kind, if it has no finite integral
        listed                                    its name in the catalogue, and one line about it

    A subclass that changes `log_prob`, or anything else that its base computes with, does not inherit them: see
    `Altered`.
    """

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log p of each element of `weights`, same shape."""
        ...


def method_of(prior: Any, name: str) -> Callable[..., Any] | None:
    """Return an optional method of a prior; None if it has none."""
    method = getattr(prior, name, None)
    return method if callable(method) else None


@runtime_checkable
class SampledPrior(Prior, Protocol):
    """A prior that can be sampled: every proper one of this module."""

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws, float64 on the CPU."""
        ...


@runtime_checkable
class ShapedPrior(Protocol):
    """A prior that depends on a parameter's shape, and on the meaning of its axes."""

    def resolve(self, axes: Axes) -> Any:
        """Return the prior of a parameter with these axes: a univariate one, or one of all its weights together."""
        ...


PriorLike = Prior | ShapedPrior | Distribution
PriorRules = PriorLike | Mapping[str, PriorLike]


def check_prior(**values: Any) -> None:
    """Raise TypeError if an argument is no univariate prior, such as a class or a name."""
    for name, value in values.items():
        check_entries({name: value}, check_object, ("log_prob",), "Normal()")
        if hasattr(value, "distribution") and hasattr(value, "check"):  # likelihoods have a `log_prob` too
            raise TypeError(f"`{name}` must be a prior such as Normal(); got {seen(value)}.")


def normals(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Return standard normals, float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def uniforms(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Return numbers in (0, 1), midpoints of 2⁵² cells, so never 0 or 1."""
    return (torch.randint(2**52, shape, generator=generator).double() + 0.5) / 2**52


@dataclass(frozen=True)
class Normal(Checked, SampledPrior):
    """w ~ N(loc, scale²).

    Attributes:
        scale: standard deviation (not the variance), in units of the weights.
        loc: mean.
    """

    listed: ClassVar = ("normal", "normal (scale, loc)")

    quadratic: ClassVar = True
    scale: float = 1.0
    loc: float = 0.0

    @property
    def std(self) -> float:
        """Standard deviation."""
        return self.scale

    @property
    def log_constant(self) -> float:
        """log(scale √2π)."""
        return math.log(self.scale * math.sqrt(2 * math.pi))

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return −½((w − loc)/scale)² − log(scale √2π), elementwise."""
        return -0.5 * ((weights - self.loc) / self.scale) ** 2 - self.log_constant

    def total(self, weights: Tensor) -> Tensor:
        """Return Σ log p over the last axis, float64, in one pass over the weights."""
        first, *others = weights.split(_BLOCK, dim=-1)
        squares = self._squares(first)
        for block in others:  # no list of results: small blocks between large freed ones would fragment the memory
            squares = squares + self._squares(block)
        return squares * (-0.5 / self.scale**2) - weights.shape[-1] * self.log_constant

    def _squares(self, weights: Tensor) -> Tensor:
        """Return Σ (w − loc)² over the last axis, float64."""
        centred = weights - self.loc if self.loc else weights
        return torch.linalg.vector_norm(centred, dim=-1, dtype=torch.float64) ** 2

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add scale · d log p / dw = −scale (w − loc)/scale_prior² to `gradient` in place, in one pass."""
        gradient.add_(weights - self.loc if self.loc else weights, alpha=-scale / self.scale**2)

    def precision(self, weights: Tensor) -> Tensor:
        """Return 1/scale², of the shape of weights."""
        return torch.full_like(weights, 1 / self.scale**2)

    def expected_(self, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
        """Return Σ −½ ((μ − loc)² + v)/scale² − log(scale √2π), and add to its derivatives: see `expected.py`."""
        self.add_gradient_(into[0], mean, scale)
        into[1].sub_(0.5 * scale / self.scale**2)
        return self.total(mean) - 0.5 / self.scale**2 * variance.sum(-1, dtype=torch.float64)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        return self.loc + self.scale * normals(shape, generator)


@dataclass(frozen=True)
class Laplace(Checked, SampledPrior):
    """w ~ Laplace(loc, scale), density exp(−|w − loc|/scale) / (2 scale).

    Attributes:
        scale: mean absolute deviation; the standard deviation is √2 scale.
        loc: mean.
    """

    listed: ClassVar = ("laplace", "double exponential, many weights near zero (scale, loc)")

    scale: float = 1.0
    loc: float = 0.0

    @property
    def std(self) -> float:
        """Standard deviation, √2 scale."""
        return math.sqrt(2.0) * self.scale

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return −|w − loc|/scale − log(2 scale), elementwise."""
        return -(weights - self.loc).abs() / self.scale - math.log(2 * self.scale)

    def expected_(self, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
        """Return Σ −E|w − loc|/scale − log 2 scale, and add to its derivatives: see `expected.py`."""
        centred, std = mean - self.loc, variance.sqrt()
        ratio = centred / std
        density = torch.exp(-0.5 * ratio.square()) / (std * math.sqrt(2 * math.pi))
        share = torch.erf(ratio / math.sqrt(2))
        distance = 2 * variance * density + centred * share
        into[0].sub_(share, alpha=scale / self.scale)
        into[1].sub_(density, alpha=scale / self.scale)
        return -(distance.sum(-1, dtype=torch.float64) / self.scale) - mean.shape[-1] * math.log(2 * self.scale)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws, float64 on the CPU: differences of two exponentials."""
        return self.loc + self.scale * (uniforms(shape, generator).log() - uniforms(shape, generator).log())


@dataclass(frozen=True)
class StudentT(Checked, SampledPrior):
    """w ~ loc + scale · t(df).

    Attributes:
        df: degrees of freedom; small values give heavy tails.
        scale: scale of the t distribution.
        loc: location.
    """

    listed: ClassVar = ("student_t", "Student's t, heavy tails (df, scale, loc)")

    df: float = 5.0
    scale: float = 1.0
    loc: float = 0.0

    @property
    def std(self) -> float:
        """Standard deviation, scale √(df/(df − 2)); infinite for df ≤ 2."""
        return self.scale * math.sqrt(self.df / (self.df - 2)) if self.df > 2 else math.inf

    @property
    def log_constant(self) -> float:
        """log(scale √(df π)) − log Γ((df + 1)/2) + log Γ(df/2)."""
        gammas = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2)
        return 0.5 * math.log(self.df * math.pi) + math.log(self.scale) - gammas

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return the Student-t log density, elementwise."""
        squares = ((weights - self.loc) / self.scale) ** 2
        return -(self.df + 1) / 2 * torch.log1p(squares / self.df) - self.log_constant

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        df, loc, scale = (torch.tensor(value, dtype=torch.float64) for value in (self.df, self.loc, self.scale))
        return Univariate(distributions.StudentT(df, loc, scale)).sample(shape, generator)


@dataclass(frozen=True)
class Logistic(Checked, SampledPrior):
    """w ~ Logistic(loc, scale), density e^{−z} / (scale (1 + e^{−z})²) with z = (w − loc)/scale.

    Attributes:
        scale: scale; the standard deviation is π scale / √3.
        loc: mean.
    """

    listed: ClassVar = ("logistic", "logistic, tails between normal and double exponential (scale, loc)")

    scale: float = 1.0
    loc: float = 0.0

    @property
    def std(self) -> float:
        """Standard deviation, π scale / √3."""
        return math.pi * self.scale / math.sqrt(3.0)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return −|z| − 2 log(1 + e^{−|z|}) − log scale, elementwise; symmetric in z, so no overflow."""
        size = ((weights - self.loc) / self.scale).abs()
        return -size - 2 * F.softplus(-size) - math.log(self.scale)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws, float64 on the CPU: loc + scale · logit u."""
        return self.loc + self.scale * uniforms(shape, generator).logit()


@dataclass(frozen=True)
class Flat(Prior):
    """An improper flat prior: log p(w) = 0. MAP with it is maximum likelihood; it has no evidence."""

    listed: ClassVar = ("flat", "no preference: maximum likelihood; improper")

    quadratic: ClassVar = True
    improper: ClassVar = "flat"

    @property
    def std(self) -> float:
        """Infinite."""
        return math.inf

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return zeros, elementwise."""
        return torch.zeros_like(weights)

    def total(self, weights: Tensor) -> Tensor:
        """Return zeros, float64, without the last axis."""
        return weights.new_zeros(weights.shape[:-1], dtype=torch.float64)

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Leave `gradient` as it is."""

    def precision(self, weights: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(weights)

    def expected_(self, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
        """Return zeros, float64 (M,)."""
        return self.total(mean)


@dataclass(frozen=True)
class Univariate(SampledPrior):
    """Any univariate torch Distribution as the prior of every weight.

    Attributes:
        distribution: a Distribution with empty event and batch shape.
    """

    distribution: Distribution

    def __post_init__(self) -> None:
        check_kind(Distribution, "a torch Distribution", distribution=self.distribution)
        law = self.distribution
        if law.event_shape or law.batch_shape.numel() != 1:
            raise ValueError(
                f"`distribution`: a prior must be univariate; got batch shape {tuple(law.batch_shape)} and event shape "
                f"{tuple(law.event_shape)}. Give one Distribution per glob."
            )

    @property
    def std(self) -> float:
        """The distribution's standard deviation; infinite where it is undefined or not implemented."""
        try:
            return float(self.distribution.stddev)
        except NotImplementedError:
            return math.inf

    @property
    def loc(self) -> float:
        """The distribution's mean; 0 where it is undefined or not implemented."""
        try:
            mean = float(self.distribution.mean)
        except NotImplementedError:
            return 0.0
        return mean if math.isfinite(mean) else 0.0

    @property
    def everywhere(self) -> bool:
        """Whether its support is all real numbers, or not declared."""
        try:
            support = self.distribution.support
        except NotImplementedError:
            return True
        whole: Any = getattr(support, "base_constraint", support)  # that of every component of a mixture
        return all(bool(whole.check(torch.tensor(value)).all()) for value in (-1e6, -0.5, 0.5, 1e6))

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return the distribution's log density, elementwise."""
        return self.distribution.log_prob(weights)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws of the distribution, float64 on the CPU.

        A Distribution takes no generator: it draws from the global one, under a seed that comes from `generator`.
        """
        seed = int(torch.randint(2**62, (), generator=generator))
        with seeded(Purpose.DISTRIBUTION, seed, device="cuda" if torch.cuda.is_initialized() else "cpu"):
            return self.distribution.sample(torch.Size(shape)).reshape(shape).double().cpu()

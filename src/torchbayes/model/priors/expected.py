"""E log p(w) of priors under normal weights w ~ N(μ, v), with its derivatives by μ and v, where it has a closed form.

    N(m, s²)         −½ ((μ − m)² + v)/s² − log s√2π
    Laplace(m, b)    −A/b − log 2b,    A = √(2v/π) e^{−d²/2v} + d erf(d/√2v),    d = μ − m,    the mean of |w − m|
    N(m, Σ), joint   log N(μ; m, Σ) − ½ Σ_i (Σ⁻¹)_ii v_i
    LogHalfNormal    u − ½ e^{2u + 2v} + constant,    u = μ − log scale
    LogInverseChi    −ν (u + ½ e^{−2u + 2v}) − constant,    u = μ − log scale
    LogUniform       −log √v − E log |z + ε|,    z = |μ|/√v
    flat             0

For an independent q the KL divergence to the prior is −Σ E log p(w) less the entropy of q. A prior with a closed form
has a method `expected_`. The expectation of others is left to draws, because the known bounds can be off by thousands
of nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from torchbayes.model.priors.bound import Segment
from torchbayes.model.priors.joint import Joint


@runtime_checkable
class Expected(Protocol):
    """A prior whose expectation has a closed form."""

    def expected_(self, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
        """Return Σ E log p over the last axis, float64 (M,), and add `scale` times its derivatives to the pair `into`.

        Mean μ, variance v and the derivatives by each are (M, n).
        """
        ...


def is_closed(segment: Segment, *, normal: bool = True, correlated: bool = False) -> bool:
    """Return whether the expectation of a segment has a closed form.

    If the weights are not `normal`, means and variances suffice where log p is quadratic. If they are `correlated` with
    each other, means and variances do not suffice for a joint prior with correlations.
    """
    if correlated and isinstance(segment.prior, Joint) and not segment.prior.is_independent:
        return False
    return isinstance(segment.prior, Expected) and (normal or getattr(segment.prior, "quadratic", False))


def add_expected_(segment: Segment, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
    """Return E log p(w) of one segment, float64 (M,), in nats, and add `scale` times its derivatives to a pair.

    The pair `into` receives the derivatives by μ and by v. These, mean and variance are those of all weights, (M, D).
    """
    prior, where = segment.prior, segment.where
    assert isinstance(prior, Expected), "the expectation has a closed form"
    by_mean, by_variance = (tensor[:, where] for tensor in into)
    return prior.expected_(mean[:, where], variance[:, where], scale=scale, into=(by_mean, by_variance))

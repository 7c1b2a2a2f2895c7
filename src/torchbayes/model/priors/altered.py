"""Priors whose class changes the density of another prior."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchbayes.model.inherited import holds
from torchbayes.model.priors.univariate import Prior

_OPTIONAL = (
    "std",
    "loc",
    "improper",
    "quadratic",
    "sample",
    "total",
    "add_gradient_",
    "visit_",
    "precision",
    "expected_",
)


class Altered(Prior):
    """A prior that inherits members which belong to another density: they are left out here.

    A subclass of `Normal` with a `log_prob` of its own is no normal distribution, whatever its class says.
    """

    def __init__(self, prior: Prior) -> None:
        """Take what still holds of `prior`."""
        self.prior = prior
        for name in _OPTIONAL:
            if hasattr(prior, name) and not _is_stale(prior, name):
                setattr(self, name, getattr(prior, name))

    @classmethod
    def of(cls, prior: Any) -> Any:
        """Return the prior, altered if it inherits what does not hold."""
        return cls(prior) if any(_is_stale(prior, name) for name in _OPTIONAL) else prior

    def log_prob(self, weights: Tensor) -> Tensor:
        return self.prior.log_prob(weights)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Altered) and self.prior == other.prior

    def __hash__(self) -> int:
        return hash(self.prior)

    def __repr__(self) -> str:
        return repr(self.prior)


def _is_stale(prior: Any, name: str) -> bool:
    return hasattr(type(prior), name) and not holds(prior, name)

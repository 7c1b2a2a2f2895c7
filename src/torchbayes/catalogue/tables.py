"""What is usual for a table where nothing else is asked for: prior and method, chosen together by the number of rows.

The network is `networks.tabular`, and regressions have noise that depends on the inputs. Under a prior whose scales are
inferred, chains find out themselves which columns matter and how far weights go, so that nothing is searched and every
row is learned from. The density of such a prior has its mode where all weights are 0, so that what trains to a mode
needs another: there each layer has the scale that suits its width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torchbayes.methods.optimise.swag import SWAG
from torchbayes.methods.protocol import Method
from torchbayes.methods.sgmcmc.sgnht import SGNHT

NETWORK = "tabular"
HIDDEN = (64, 64)  # widths of the hidden layers
SAMPLED = 20_000  # rows up to which chains are run; beyond, a pass over the rows counts for more than a step
# of a chain: more resolve targets with little noise, but make classes that are mostly chance too sure (decision 0042)
_STEPS = {"regression": 4000, "classification": 3000}
_BATCH_SIZE = 512  # rows of a step: with fewer the draws are too wide (decision 0042)
_GAINS = {"regression": 2.0, "classification": 4.0}  # see `priors.FanInNormal`


class NamedPrior(NamedTuple):
    """A prior as `Problem` and `build_prior` take it."""

    name: str
    settings: dict[str, Any]
    scale: float | None = None


class Recommended(NamedTuple):
    """Prior and method for a table."""

    prior: NamedPrior
    method: Method[Any]


def recommended(num_data: int, task: str) -> Recommended:
    """Return prior and method for a table of so many rows, in time that grows no faster than the rows do.

    `task` is "regression" or "classification".
    """
    if num_data <= SAMPLED:
        prior = NamedPrior("hierarchical", {"df": 2.0, "groups": "columns"}, scale=0.2)
        steps = _STEPS[task]
        return Recommended(prior, SGNHT(4, steps, burn_in=steps // 2, batch_size=_BATCH_SIZE))
    members = 5 if num_data <= 5 * SAMPLED else 2
    return Recommended(trained_prior(task), SWAG(members=members, epochs=10, batch_size=512))


def trained_prior(task: str) -> NamedPrior:
    """Return the prior for a method that trains to a mode."""
    return NamedPrior("fan_in_normal", {"gain": _GAINS[task]})

"""MILE: an ensemble is trained, and then sampled from: microcanonical Langevin ensembles (Sommer et al. 2025).

Each of M networks is trained until held-out rows say that it is enough. From each a chain of a sampler begins, on the
rows that are not held out. Chains that are worth less than the network where they began are dropped, or replaced by it
(`torchbayes.health.members`). The others go on with all rows, and their draws are averaged. Training finds the modes
quickly, which a chain takes long for; the chain gives the spread around its mode, which an ensemble has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from torchbayes.checks import check_object
from torchbayes.density.density import LogDensity
from torchbayes.health.ending import Ending
from torchbayes.health.members import Began
from torchbayes.methods.choices import Choice, Comparison, Epochs
from torchbayes.methods.defaults import Defaults
from torchbayes.methods.keepers import check_method
from torchbayes.methods.langevin.explorer import explorer
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.seeker import Seeker, seeker
from torchbayes.methods.protocol import Needs, Shelf, Visit
from torchbayes.methods.sampler import Sampler
from torchbayes.posteriors.draws import Draws

_AGAIN = 6  # a sixth of burn-in, where chains go on with more rows


def _part(sampler: Sampler, share: int, burn_in: int = 1) -> Sampler:
    """Return a sampler with a share of its steps after burn-in, and one of its burn-in."""
    before, kept = sampler.burn_in // burn_in, (sampler.steps - sampler.burn_in) // share
    return replace(sampler, burn_in=before, steps=before + max(kept, sampler.thin))


@dataclass(frozen=True)
class MILE(Defaults):
    """An ensemble, then a chain from each of its networks: `fit(model, data, MILE(members=10))`.

    Attributes:
        members: M, networks and chains.
        sampler: what goes on from the networks: any sampler; its `chains` become the members. Where rows are held out
            of it, the chains that see all rows go on for a sixth of its burn-in and as many steps after that as it has,
            and those before them for a quarter of these.
        ensemble: training of the networks; without `epochs` held-out rows choose them.
    """

    members: int = 10
    sampler: Sampler = field(default_factory=explorer)
    ensemble: Seeker = field(default_factory=lambda: seeker(optimizer=Adam(1e-2)))

    def __post_init__(self) -> None:
        check_method(self)
        check_object(("init", "step", "retains"), "MCLMC()", sampler=self.sampler)
        check_object(("init", "step", "optimizer"), "MAP()", ensemble=self.ensemble)

    @property
    def chains(self) -> Sampler:
        """The sampler, with as many chains as members."""
        return replace(self.sampler, chains=self.members)

    @property
    def plan(self) -> Any:
        """How the stack of chains is run."""
        return self.sampler.plan

    @property
    def needs(self) -> Needs:
        """What the sampler needs, and the ensemble as a start."""
        return replace(self.sampler.needs, start=self.ensemble, chain=False)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The epochs of the ensemble, and whether chains are better than the networks where they began."""
        first, then = _part(self.sampler, 4), _part(self.sampler, 1, _AGAIN)
        comparison = Comparison(first={"sampler": first}, then={"sampler": then})
        return (Epochs(self.ensemble, settings=(), mode=True), comparison)

    def length(self, steps_per_epoch: int) -> int:
        """Return the number of steps of a chain."""
        return self.sampler.length(steps_per_epoch)

    def init(
        self,
        density: LogDensity,
        weights_MD: Tensor,
        buffers: Any = None,
        *,
        seeds: Sequence[int],
        steps_per_epoch: int = 1,
    ) -> Any:
        """Return the state of the sampler before its first step; ValueError as there."""
        return self.chains.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)

    def visit(self, state: Any) -> Visit | None:
        """Return which rows the next step of the sampler reads; None when the chains are complete."""
        return self.chains.visit(state)

    def step(self, density: LogDensity, state: Any, batch: Any = None, *, donate: bool = False) -> tuple[Any, Any]:
        """Return the state of the sampler one step on, and what the step reports; DivergedError as there."""
        return self.chains.step(density, state, batch, donate=donate)

    def draw(self, state: Any) -> Tensor | None:
        """Return weights (M, D) to put on the shelf now, or None."""
        return self.chains.draw(state)

    def posterior(self, density: LogDensity, state: Any, shelf: Shelf | None = None) -> Draws:
        """Return the draws on the shelf; ValueError if there are none yet."""
        return self.chains.posterior(density, state, shelf)

    def ending(self, posterior: Draws, state: Any) -> Ending:
        """Return that chains began at trained networks, whose modes need not agree."""
        return Began()

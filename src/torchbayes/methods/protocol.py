"""What a method is: frozen settings of one way to infer, and functions of them that a driver calls in turn.

    state = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=steps)
    while (visit := method.visit(state)) is not None:
        state, info = method.step(density, state, source.read(visit), donate=True)
        shelf.add(method.draw(state))
    posterior = method.posterior(density, state, shelf)

`fit` runs this loop with log, checkpoints and callbacks, `sample` runs it on any density in memory, and users may run
it themselves. None of them depends on which method it is: what differs between methods is declared in `Needs` and
answered by the methods themselves. The functions depend on their arguments alone: random numbers are determined by
seeds and step, so that an interrupted run continues as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

from torchbayes.model.network import Buffers
from torchbayes.model.rows.batch import Batch
from torchbayes.model.rows.sources import Source
from torchbayes.posteriors.posterior import Posterior


@dataclass(frozen=True)
class Needs:
    """What a method needs from its driver.

    Attributes:
        batch_size: rows of a minibatch or a site, where the data are not batched already; None for a method that reads
            none.
        all_rows: whether the density holds all rows, so that a step can see them without reading.
        chunk_size: rows that go through a network at once, where the density holds all rows.
        start: where it begins: at "fresh" weights, unless others are given, or at "modes", which must be given, one for
            each member.
        modes: number of modes that each member begins at, one after the other in the weights that `init` is given.
        network: mode of the network while it moves. In "train" mode dropout is on and batch norm sees the batch.
        model: whether it needs a model, rather than any density.
        fixed_rows: whether the rows must be the same in every pass; a warning is given if they are not.
        extendable: whether its length, the setting `steps`, is not part of its identity: a finished run can be
            extended.
        coupled: whether members interact, so that processes cannot share them.
        burn_in: steps at the beginning that are neither shelved nor judged.
        draws: number of draws that a whole run shelves for each member, at most.
        members: what its members are called in its settings.
        problems: known problems of its settings, one clause each, which are problems of every result.
        validation: whether rows that are held out of a first run choose a setting: "needed" where it is left open,
            "possible" where it is set and may be lowered, "prior" for the scale of the model's prior where that is left
            open, "none" for methods without `chosen`.
        trial_members: members of a trial run on rows that others are held out of.
        expected_prior: whether it takes the prior as its mean under a continuous posterior, which is finite where the
            density is not, as that of `priors.LogUniform` at zero.
        without_prior: the method, with other settings, that takes its place on a density that knows of no prior; None
            where it is the same.
        spread: whether it begins at standard deviations that a start gives or bears: see `Spreading`.
        carries: what its posterior gives to the next of a sequence of tasks: the "prior", which takes a Gaussian, the
            "start" alone, or "nothing".
        onward: the method, with other settings, that takes its place where the prior is the posterior of earlier data;
            None where it is the same.
    """

    batch_size: int | None = None
    all_rows: bool = False
    chunk_size: int = 1024
    start: Literal["fresh", "modes"] = "fresh"
    modes: int = 1
    network: Literal["train", "eval"] = "eval"
    model: bool = True
    fixed_rows: bool = False
    extendable: bool = False
    coupled: bool = False
    burn_in: int = 0
    draws: int = 0
    members: Literal["members", "chains"] = "members"
    problems: tuple[str, ...] = ()
    validation: Literal["needed", "possible", "prior", "none"] = "none"
    trial_members: int = 1
    expected_prior: bool = False
    without_prior: Any = None
    spread: bool = False
    carries: Literal["prior", "start", "nothing"] = "nothing"
    onward: Any = None


class Fold(NamedTuple):
    """Training rows, and rows that are held out of them.

    Attributes:
        rows: to train on.
        held_out: the others, in batches.
    """

    rows: Source
    held_out: Sequence[Batch]


class Chosen(NamedTuple):
    """What held-out rows have chosen.

    Attributes:
        settings: settings of the method by name.
        record: what was seen, by name, for the description of the run.
        prior_scale: σ of the model's prior N(0, σ²), where that is open; None leaves it as it is.
        learned: the least values at which the learned parameters of the likelihood begin; None leaves them as they are.
    """

    settings: Mapping[str, Any]
    record: Mapping[str, Any]
    prior_scale: float | None = None
    learned: Sequence[float] | None = None


class DivergedError(RuntimeError):
    """Weights, a loss or a gradient are not finite; the state before the step is intact."""


class Visit(NamedTuple):
    """Which rows the next step reads.

    Attributes:
        kind: "minibatch": one of a shuffled stream, in which each member has its own order; "site": a fixed part
            of the rows, the same for all members; "all": none are read, as the density holds them, or there are none.
        number: index of the minibatch, counted over all epochs; or of the site, of which there are as many as
            minibatches in an epoch.
    """

    kind: Literal["minibatch", "site", "all"]
    number: int = 0


class Info(Protocol):
    """What a step reports for the log; no later step needs it."""

    def means(self) -> Mapping[str, Tensor]:
        """Return what is averaged over an epoch, by name, each (M,)."""
        ...

    def now(self) -> Mapping[str, Any]:
        """Return what is true of the last step of an epoch: numbers and texts by name."""
        ...


class Shelf(Protocol):
    """The draws of a run, in the order they were taken."""

    def weights_MSD(self) -> Tensor:
        """Return them, (M, S, D).

        Raises:
            ValueError: if there are none.
        """
        ...


class History(Protocol):
    """The log of a run, from its first step."""

    def columns(self, after: int = 0) -> dict[str, Tensor]:
        """Return what the lines after a step hold for each member, by name, each (M, lines), float64."""
        ...

    def first(self, name: str, after: int = 0) -> str:
        """Return the first text of a name after a step; empty if there is none."""
        ...


class State(Protocol):
    """What the next step needs: a frozen dataclass of tensors (M, ...), numbers, mappings and such dataclasses."""

    @property
    def step(self) -> int:
        """Steps taken."""
        ...


class Spreading(Protocol):
    """A method whose first standard deviations are those of a start, as `Needs.spread` says."""

    def spread(self, density: Any, state: Any, scale_MD: Tensor) -> Any:
        """Return the state before the first step with other standard deviations, its own where these are 0 or wider."""
        ...


Result_co = TypeVar("Result_co", bound=Posterior, covariant=True)
"""What a method infers: a kind of posterior."""


class Method(Protocol[Result_co]):
    """Frozen settings of one way to infer, with the functions that a driver calls. There is no other state.

    A type checker takes what `fit` returns from the annotation of `posterior`.
    """

    @property
    def members(self) -> int:
        """M, independent runs."""
        ...

    @property
    def plan(self) -> Any:
        """How the stack of members is run: auto, native, loop, vmap or compiled."""
        ...

    @property
    def needs(self) -> Needs:
        """What the method needs from its driver."""
        ...

    def length(self, steps_per_epoch: int) -> int:
        """Return how many steps a run takes at most, for an epoch of so many minibatches."""
        ...

    def init(
        self, density: Any, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Any:
        """Return the state before the first step.

        Args:
            density: the target: a `LogDensity`, or any density if no model is needed.
            weights_MD: where the members start.
            buffers: the network's buffers of each member, (M, ...).
            seeds: one seed per member.
            steps_per_epoch: number of minibatches, or sites, that make up all rows; 1 for a method that reads none.
        """
        ...

    def visit(self, state: Any) -> Visit | None:
        """Return which rows the next step reads; None when the run is over."""
        ...

    def step(self, density: Any, state: Any, batch: Any, *, donate: bool = False) -> tuple[Any, Info]:
        """Return the new state and the info of the step; the old state is unchanged unless donated."""
        ...

    def draw(self, state: Any) -> Tensor | None:
        """Return weights (M, D) to put on the shelf now, or None."""
        ...

    def posterior(self, density: Any, state: Any, shelf: Shelf | None = None) -> Result_co:
        """Return the posterior given by a state and the draws on the shelf."""
        ...

    def problems(self, posterior: Any, state: Any, *, history: History, source: Source) -> Sequence[str]:
        """Return the known problems of a run's result, one clause each.

        Args:
            posterior: the result of `posterior`.
            state: the last state, of all members.
            history: the log of the run.
            source: the training data.
        """
        ...

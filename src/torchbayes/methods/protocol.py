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

from torchbayes.health.ending import Ending
from torchbayes.methods.choices import Choice
from torchbayes.model.network import Buffers
from torchbayes.posteriors.posterior import Posterior


@dataclass(frozen=True)
class Needs:
    """What a method needs from its driver.

    Attributes:
        batch_size: rows of a minibatch or a site, where the data are not batched already; None for a method that reads
            none.
        chunk_size: rows that go through a network at once, where the density holds all rows, so that a step can see
            them without reading; None where it holds none.
        network: mode of the network while it moves. In "train" mode dropout is on and batch norm sees the batch.
        start: the training that finds the networks it begins at, where none are given; None for a method that begins
            anywhere.
        modes: number of networks that each member begins at, one after the other in the weights that `init` is given.
        fixed_rows: whether the rows must be the same in every pass; a warning is given if they are not.
        coupled: whether members interact, so that processes cannot share them.
        draws: number of draws that a whole run shelves for each member, at most.
        spread: whether it begins at standard deviations that a start gives or bears: see `Spreading`.
        chain: whether it is a `Chain`.
    """

    batch_size: int | None = None
    chunk_size: int | None = None
    network: Literal["train", "eval"] = "eval"
    start: Any = None
    modes: int = 1
    fixed_rows: bool = False
    coupled: bool = False
    draws: int = 0
    spread: bool = False
    chain: bool = False


class Onward(NamedTuple):
    """What goes from one task of a sequence to the next.

    Attributes:
        method: the method, with other settings, for later tasks; itself where it is the same.
        carries: a Gaussian, which is the "prior" of the next task; the "start" of its weights alone; or "nothing".
    """

    method: Any
    carries: Literal["prior", "start", "nothing"] = "nothing"


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

    @property
    def choices(self) -> Sequence[Choice]:
        """What held-out rows may choose of its settings, one after the other."""
        ...

    def check(self, model: Any) -> None:
        """Check that the method suits a model, before anything is trained.

        Raises:
            ValueError: if it does not.
        """
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

    def ending(self, posterior: Any, state: Any) -> Ending:
        """Return how a run ended, by which its result is judged: see `torchbayes.health`.

        Args:
            posterior: the result of `posterior`.
            state: the last state, of all members.
        """
        ...


class Continued(Method[Any], Protocol):
    """A method whose result is carried from one task of a sequence to the next."""

    @property
    def onward(self) -> Onward:
        """What goes from one task of a sequence to the next."""
        ...


class Chain(Method[Any], Protocol):
    """A method that samples by Markov chains, on any density.

    Its length, the setting `steps`, is not part of its identity: a run that is over can be extended.
    """

    @property
    def burn_in(self) -> int:
        """Steps at the beginning that are neither shelved nor judged."""
        ...

    @property
    def without_prior(self) -> Any:
        """The method that takes its place on a density that knows of no prior; None where it is the same."""
        ...


def name_of_members(method: Method[Any]) -> Literal["members", "chains"]:
    """Return what the members of a method are called in its settings."""
    return "chains" if method.needs.chain else "members"

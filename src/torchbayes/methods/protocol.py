"""What a method is: frozen settings of one way to infer, and functions of them that a driver calls in turn.

    state = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=steps)
    while (visit := method.visit(state)) is not None:
        state, info = method.step(density, state, source.read(visit), donate=True)
        shelf.add(method.draw(state))
    posterior = method.posterior(density, state, shelf)

`fit` runs this loop with log, checkpoints and callbacks, `sample` runs it on any density in memory, and users may run
it themselves. The loop is the same for all methods: a method declares in `Needs` how it differs, and answers the rest
itself. The functions depend only on their arguments: random numbers are determined by seeds and step, so an
interrupted run continues as if it had not been interrupted.
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
    """What a method needs from its driver."""

    # rows of a minibatch or site, if the data are not batched already; None if it reads none
    batch_size: int | None = None
    # rows at a time through a network if the density holds all rows; None if it holds none
    chunk_size: int | None = None
    # mode while it moves; in "train" mode dropout is on and batch norm uses the batch
    network: Literal["train", "eval"] = "eval"
    start: Any = None  # training that finds the networks to begin at if none are given; None if it begins anywhere
    modes: int = 1  # networks that each member begins at, one after the other in the weights given to `init`
    fixed_rows: bool = False  # whether rows must be the same in every pass; there is a warning if they are not
    coupled: bool = False  # whether members interact, so that processes cannot share them
    draws: int = 0  # most draws that a whole run shelves for each member
    spread: bool = False  # whether it begins at standard deviations that a start gives or bears: see `Spreading`
    chain: bool = False  # whether it is a `Chain`


class Onward(NamedTuple):
    """What goes from one task of a sequence to the next."""

    method: Any  # for later tasks: itself, or with other settings
    # a Gaussian as the next "prior", its weights as the next "start", or "nothing"
    carries: Literal["prior", "start", "nothing"] = "nothing"


class DivergedError(RuntimeError):
    """Weights, a loss or a gradient are not finite; the state before the step is intact."""


class Visit(NamedTuple):
    """Which rows the next step reads.

    A "minibatch" is one of a shuffled stream, in which each member has its own order. A "site" is a fixed part of the
    rows, the same for all members. For "all" none are read, because the density holds them or there are none.
    """

    kind: Literal["minibatch", "site", "all"]
    # of the minibatch, over all epochs; or of the site, of which there is one per minibatch of an epoch
    number: int = 0


class Info(Protocol):
    """What a step reports for the log; no later step needs it."""

    def means(self) -> Mapping[str, Tensor]:
        """Return what is averaged over an epoch, each (M,)."""
        ...

    def now(self) -> Mapping[str, Any]:
        """Return numbers and texts about the last step of an epoch."""
        ...


class Shelf(Protocol):
    """The draws of a run, in the order they were taken."""

    def weights_MSD(self) -> Tensor:
        """Return the draws, (M, S, D); ValueError if there are none."""
        ...


class State(Protocol):
    """What the next step needs: a frozen dataclass of tensors (M, ...), numbers, mappings and such dataclasses."""

    @property
    def step(self) -> int:
        """Steps taken."""
        ...


class Spreading(Protocol):
    """A method that takes its first standard deviations from a start (`Needs.spread`)."""

    def spread(self, density: Any, state: Any, scale_MD: Tensor) -> Any:
        """Return the state before the first step with other standard deviations, where these are not 0 and narrower."""
        ...


Result_co = TypeVar("Result_co", bound=Posterior, covariant=True)
"""What a method infers: a kind of posterior."""


class Method(Protocol[Result_co]):
    """Frozen settings of one way to infer, with the functions that a driver calls. There is no other state.

    A type checker takes the type that `fit` returns from the annotation of `posterior`.
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
        """Raise ValueError, before anything is trained, if the method does not suit a model."""
        ...

    def length(self, steps_per_epoch: int) -> int:
        """Return how many steps a run takes at most, for an epoch of `steps_per_epoch` minibatches."""
        ...

    def init(
        self, density: Any, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Any:
        """Return the state before the first step.

        `density` is a `LogDensity`, or any density if no model is needed. `buffers` are the network's, (M, ...).
        `steps_per_epoch` minibatches, or sites, make up all rows; it is 1 for a method that reads none.
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
        """Return the posterior, given a state and the draws on the shelf."""
        ...

    def ending(self, posterior: Any, state: Any) -> Ending:
        """Return how a run ended, given its posterior and last state.

        Its result is judged by it (`torchbayes.health`).
        """
        ...


class SingleGradient(Method[Any], Protocol):
    """A method that takes one gradient of a minibatch in each step, at weights that are known before the step.

    Another program may compute that gradient (`torchbayes.trainers.Optimizer`).
    """

    @property
    def single_gradient(self) -> bool:
        """Whether this is so with these settings."""
        ...

    def gradient_point(self, density: Any, state: Any) -> Tensor:
        """Return the weights (M, D) at which the next step takes its gradient: the state's, or a draw around them."""
        ...


class Continued(Method[Any], Protocol):
    """A method whose result is carried from one task of a sequence to the next."""

    @property
    def onward(self) -> Onward:
        """What goes from one task of a sequence to the next."""
        ...


class Chain(Method[Any], Protocol):
    """A method that samples any density by Markov chains.

    Its length, the setting `steps`, is not part of its identity: a finished run can be extended.
    """

    @property
    def burn_in(self) -> int:
        """Steps at the beginning that are neither shelved nor judged."""
        ...

    @property
    def without_prior(self) -> Any:
        """The method that replaces it on a density without a known prior; None where it is the same."""
        ...


def name_of_members(method: Method[Any]) -> Literal["members", "chains"]:
    """Return the name of a method's members in its settings."""
    return "chains" if method.needs.chain else "members"

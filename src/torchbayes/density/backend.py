"""Backends: interchangeable ways to run a stack of M networks on the same or on different rows.

All compute one function, up to rounding. A new one is a file with a subclass of `Backend`, and its entry in
`plans.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from torchbayes.checks import SettingError
from torchbayes.density.dynamics import Phase
from torchbayes.density.kernels import DenseModel
from torchbayes.model.dropout import Mask
from torchbayes.model.model import Batch, Model, Scales
from torchbayes.model.network import Buffers

Below = Callable[[int, Any, Tensor], AbstractContextManager[None]]
"""First row's number and inputs of a chunk, and weights (D,) -> a context in which the body is not run again."""


class Mixing(NamedTuple):
    """How the draws of a member are combined, row by row: by the mean of a power of their likelihoods.

        l_b = (1/α) log (1/S) Σ_s p(y_b | f_sb)^α

    A row of weight a (`likelihoods.Weighted`) contributes a l_b, like a row that is repeated a times.
    """

    draws: int  # S: members s, s + 1, … of a stack are the draws of one, which see the same rows
    power: float  # α > 0; as it tends to 0, l_b tends to the mean of the draws' log likelihoods


class Evaluation(NamedTuple):
    """A request to a backend: the log likelihood of every member, and its gradient.

    With `mixing`, the log likelihood is Σ_b l_b of each member, (M/S,), and the gradient is S times its derivative by
    the weights of each draw, so it has the scale of one draw's own gradient. Without, every network is a member.
    """

    weights_MD: Tensor
    batch: Batch  # rows (M, B, ...) of each member; or all the data (N, ...), when shared
    shared: bool  # whether all members see the same rows, which then go through a network in chunks
    buffers: Buffers | None  # each (M, ...), changed in place in training mode; None if each has the model's own
    seeds: Sequence[int] | None  # one per member, for networks that draw random numbers in training mode
    scales: Scales  # factors on the gradients of log likelihood and log prior
    gradient_MD: Tensor | None  # receives the gradient; None if it is not wanted
    prior: bool = True  # whether the log prior is wanted; it may be infinite where its factor is 0
    mixing: Mixing | None = None
    below: Below | None = None  # for chunks of all the data


class Functions(NamedTuple):
    """A request to a backend: the outputs of S networks on the same rows, without gradients."""

    weights_SD: Tensor
    inputs: Any  # as the model places them
    buffers_S: Buffers | None  # each (S, ...); None if each has the model's own
    chunk_size: int  # rows that go through a network at once, which bounds memory beside the result
    masks_S: Sequence[Mask] | None = None  # dropout is off if None


class Trajectory(NamedTuple):
    """Leapfrog steps on all the data, which a backend may take in one call; no tensor of it is changed."""

    weights_MD: Tensor
    momentum_MD: Tensor
    gradient_MD: Tensor  # of the log density at the start
    step_size_M: Tensor  # float64
    steps_M: Tensor  # int64, at least 1
    inverse_mass_MD: Tensor | None  # its diagonal; ones if None
    data: Batch
    scales: Scales  # factors on log likelihood and log prior


class Backend(ABC):
    """One way to run the networks of a model. Operations that it does not offer return None."""

    name: ClassVar[str]  # its name in the setting `plan`
    words: ClassVar[str]  # its description in the reason of a plan
    # When `plan="auto"` chooses it. The first backend that is chosen if it is faster must run every model.
    automatic: ClassVar[Literal["wherever it runs", "if faster", "never"]]

    def __init__(self, model: Model, *, training: bool = False, chunk_size: int = 1024) -> None:
        """Bind a model; nothing is compiled before it is needed.

        `training` is the mode of the network. `chunk_size` rows of all the data go through it at once, which bounds
        memory.
        """
        self.model, self.training, self.chunk_size = model, training, chunk_size

    # These are empty, not abstract, because a backend without an operation or an objection returns None.
    def refuses(self, evaluation: Evaluation) -> str | None:  # noqa: B027
        """Return why it cannot run this model on these rows; None if it can."""

    @abstractmethod
    def evaluate(self, evaluation: Evaluation) -> tuple[Tensor, Tensor | None]:
        """Return Σ_b log p(y_b|f_b) and log p(w) of each member, float64 (M,), and write the gradient.

        The gradient is `scales.likelihood` times that of the former. A backend that computes the prior in the same
        pass adds `scales.prior` times its gradient; the others return None for the log prior and leave both to the
        caller. Raises a SettingError if it cannot run this model on these rows.
        """

    def leapfrog(self, trajectory: Trajectory) -> Phase | None:  # noqa: B027
        """Return the end of leapfrog steps, taken in one call; None if they must be taken one by one."""

    def kernel(self) -> DenseModel | None:  # noqa: B027
        """Return the library's own kernel of the model, by which methods can take whole steps; None without one."""

    def outputs(self, functions: Functions) -> Tensor | None:  # noqa: B027
        """Return the outputs (S, B, K) of S networks; None if it has no such way.

        They are in float32 where the weights have lower precision.
        """


def refuse(plan: str, why: str | None) -> None:
    """Raise a SettingError if there is a reason why the backend of a plan cannot run."""
    if why is not None:
        raise SettingError(f"plan {plan!r} cannot run this model: {why}. Set another plan, or leave it to 'auto'.")

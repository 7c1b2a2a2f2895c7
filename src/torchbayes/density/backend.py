"""Backends: interchangeable ways to run a stack of M networks on the same or on different rows.

All are one function up to rounding. A new one is a file with a subclass of `Backend`, and its entry in `plans.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from torchbayes.density.dynamics import Phase
from torchbayes.density.kernels import DenseModel
from torchbayes.model.dropout import Mask
from torchbayes.model.model import Batch, Model, Scales
from torchbayes.model.network import Buffers


class Mixing(NamedTuple):
    """How the draws of a member are combined, row by row: by the mean of a power of their likelihoods.

        l_b = (1/α) log (1/S) Σ_s p(y_b | f_sb)^α

    A row of weight a (`likelihoods.Weighted`) counts a l_b, as one that is repeated a times does.

    Attributes:
        draws: S: members s, s + 1, … of a stack are the draws of one, which see the same rows.
        power: α > 0. As it tends to 0, l_b tends to the mean of the draws' log likelihoods.
    """

    draws: int
    power: float


class Evaluation(NamedTuple):
    """What a backend is asked for: the log likelihood of every member, and its gradient.

    Attributes:
        weights_MD: weights.
        batch: rows (M, B, ...) of each member; or all the data (N, ...), when shared.
        shared: whether all members see the same rows; these go through a network in chunks.
        buffers: of the networks, each (M, ...), changed in place in training mode; None if each has the model's own.
        seeds: one per member, for networks that draw random numbers in training mode.
        scales: factors on the gradients of log likelihood and log prior.
        gradient_MD: receives the gradient; None if it is not wanted.
        prior: whether the log prior is wanted, which may be infinite where its factor is 0.
        mixing: how the draws of a member are combined; None if every network is a member. With draws the log likelihood
            is Σ_b l_b of each member, (M/S,), and the gradient S times that by the weights of each draw: as that of the
            mean over draws it is on the scale of their own.
    """

    weights_MD: Tensor
    batch: Batch
    shared: bool
    buffers: Buffers | None
    seeds: Sequence[int] | None
    scales: Scales
    gradient_MD: Tensor | None
    prior: bool = True
    mixing: Mixing | None = None


class Trajectory(NamedTuple):
    """Leapfrog steps on all the data, which a backend may take in one call.

    Attributes:
        weights_MD: where to start; not changed.
        momentum_MD: momenta; not changed.
        gradient_MD: gradient of the log density at the start; not changed.
        step_size_M: step size of each member, float64.
        steps_M: steps of each member, int64, at least 1.
        inverse_mass_MD: the diagonal of the inverse mass; ones if None.
        data: all rows.
        scales: factors on log likelihood and log prior.
    """

    weights_MD: Tensor
    momentum_MD: Tensor
    gradient_MD: Tensor
    step_size_M: Tensor
    steps_M: Tensor
    inverse_mass_MD: Tensor | None
    data: Batch
    scales: Scales


class Backend(ABC):
    """One way to run the networks of a model. Methods that it does not offer return None.

    Attributes:
        name: what the setting `plan` calls it.
        words: what the reason of a plan calls the backend.
        automatic: when `plan="auto"` chooses it: wherever it runs; if it is measured to be faster than the others; or
            never. The first backend that is measured must run every model.
        model: the model.
        training: whether the network runs in training mode.
        chunk_size: rows of all the data that go through a network at once: the bound on memory.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    automatic: ClassVar[Literal["wherever it runs", "if faster", "never"]]

    def __init__(self, model: Model, *, training: bool = False, chunk_size: int = 1024) -> None:
        """Bind a model; nothing is compiled before it is needed."""
        self.model, self.training, self.chunk_size = model, training, chunk_size

    # empty rather than abstract: a backend without this operation, or without an objection, returns None
    def refuses(self, evaluation: Evaluation) -> str | None:  # noqa: B027
        """Return why it cannot run this model on these rows; None if it can."""

    @abstractmethod
    def evaluate(self, evaluation: Evaluation) -> tuple[Tensor, Tensor | None]:
        """Return Σ_b log p(y_b|f_b) and log p(w) of each member, float64 (M,), and write the gradient.

        The gradient is `scales.likelihood` times that of the former. A backend that computes the prior in the same pass
        adds `scales.prior` times its gradient; the others return None for the log prior, and leave both to the caller.

        Raises:
            SettingError: if it cannot run this model on these rows.
        """

    def leapfrog(self, trajectory: Trajectory) -> Phase | None:  # noqa: B027
        """Return where leapfrog steps lead, in one call; None if they must be taken one by one."""

    def kernel(self) -> DenseModel | None:  # noqa: B027
        """Return the library's own kernel of the model, by which methods may take whole steps in one call; else None.

        Raises:
            SettingError: if the kernel does not run this model.
        """

    def outputs(  # noqa: B027
        self,
        weights_SD: Tensor,
        inputs: Any,
        *,
        buffers_S: Buffers | None,
        chunk_size: int,
        masks_S: Sequence[Mask] | None = None,
    ) -> Tensor | None:
        """Return the outputs of S networks on the same rows, without gradients; None if it does not offer this.

        Args:
            weights_SD: weights.
            inputs: tensor (B, ...), or a tuple or mapping of such.
            buffers_S: of the networks, each (S, ...); None if each has the model's own.
            chunk_size: rows that go through a network at once: the bound on memory beside the result.
            masks_S: dropout masks of each; dropout is off if None.

        Returns:
            Tensor (S, B, K), in float32 where the weights have lower precision.
        """

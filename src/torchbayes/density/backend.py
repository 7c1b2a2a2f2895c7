"""Backends: interchangeable ways to run a stack of M networks on the same or on different rows.

All are one function up to rounding. A new one is a file with a subclass of `Backend`, and its entry in `plans.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from torchbayes.density.dynamics import Phase, Value
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


class Ellipses(NamedTuple):
    """A step of elliptical slice sampling on all the data, which a backend may take in one call.

    Member m goes to l + (w − l) cos φ + ν sin φ, at the first angle φ where factor · log p(D|w) is above its height. An
    angle that is too low takes the place of the bound of its sign, and the next is drawn between both.

    Attributes:
        weights_MD: w; not changed.
        second_MD: ν.
        location_D: l.
        height_M: heights, float64.
        angles_M3: bounds, and the first angle, float64, on the CPU; not changed.
        shares_MU: where in its interval each later angle is, float64, on the CPU; there are U evaluations at most.
        factor: of the log likelihood.
        data: all rows.
        scales: factors on log likelihood and log prior.
    """

    weights_MD: Tensor
    second_MD: Tensor
    location_D: Tensor
    height_M: Tensor
    angles_M3: Tensor
    shares_MU: Tensor
    factor: float
    data: Batch
    scales: Scales


class Landed(NamedTuple):
    """Where members are after such a step, in which those that found no point stay where they were.

    Attributes:
        weights_MD: weights.
        log_density_M: log density there, float64; means nothing where no point was found.
        log_likelihood_M: log likelihood there, likewise.
        angle_M: φ, likewise.
        evaluations_M: how often the likelihood was evaluated.
        failures_M: how often it was not finite.
        found_M: whether a point was found.
    """

    weights_MD: Tensor
    log_density_M: Tensor
    log_likelihood_M: Tensor
    angle_M: Tensor
    evaluations_M: Tensor
    failures_M: Tensor
    found_M: Tensor


class Growth(NamedTuple):
    """An iteration of NUTS on all the data, which a backend may take in one call.

    Attributes:
        weights_MD: where the chains are; not changed.
        momentum_MD: momenta v as Rᵀ v, where the inverse mass is R Rᵀ; not changed.
        value: the density there; not changed.
        kinetic_M: kinetic energy, float64.
        factor: R: its diagonal (M, D), or lower triangular (M, D, D).
        step_size_M: step size of each chain, float64.
        streams_M: hashes from which each chain's uniform numbers follow, int64: see `native.seeds.streams`.
        doublings: most doublings of a trajectory.
        divergence: energy error above which a trajectory ends.
        data: all rows.
        scales: factors on log likelihood and log prior.
    """

    weights_MD: Tensor
    momentum_MD: Tensor
    value: Value
    kinetic_M: Tensor
    factor: Tensor
    step_size_M: Tensor
    streams_M: Tensor
    doublings: int
    divergence: float
    data: Batch
    scales: Scales


class Grown(NamedTuple):
    """Where chains are after such an iteration, and what was seen.

    Attributes:
        weights_MD: weights.
        value: the density there.
        leapfrogs_M: steps of each trajectory.
        acceptance_M: sum of their probabilities of acceptance, float64.
        divergent_M: whether the energy error was too large at one of them, bool.
        outside_M: whether it was not finite, bool.
        saturated_M: whether the trajectory was cut short, bool.
    """

    weights_MD: Tensor
    value: Value
    leapfrogs_M: Tensor
    acceptance_M: Tensor
    divergent_M: Tensor
    outside_M: Tensor
    saturated_M: Tensor


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

    def slice_along(self, ellipses: Ellipses) -> Landed | None:  # noqa: B027
        """Return where a step of elliptical slice sampling leads, in one call; None if it does not offer this."""

    def grow(self, growth: Growth) -> Grown | None:  # noqa: B027
        """Return where an iteration of NUTS leads, in one call; None if it does not offer this."""

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

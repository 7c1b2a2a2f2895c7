"""BLoB: low-rank adapters whose factor A is random, and whose factor B is trained along with it (Wang et al. 2024).

    A_ij ~ q = N(μ_ij, σ_ij²),    minimise  E_q[−Σ_n log p(y_n | x_n, A, B)] + β KL(q ‖ p) − log p(B)

by gradient descent in μ, log σ and B together. B and all other random weights are points, trained as by MAP: "trained,
not random". In the layer, with the normal prior N(0, s²) of A, q is a normal distribution of W = W₀ + B A around
W₀ + B μ whose columns lie in the space of B, and its divergence from N(W₀, s² B Bᵀ) is that of q from p. The paper has
s = 0.2 and no prior of B: `Model(…, prior={"*lora_A*": priors.Normal(0.2), "*": priors.Flat()})`.

Where A = diag(s) V (`networks.scale_rows`) the scales s are random in the place of A, r numbers of each layer, and V
and B are trained: this is ScalaBL (Samplawski et al. 2025), with the prior `{"*lora_scales": priors.Normal(1.0), "*":
priors.Flat()}`. Its code has KL(p ‖ q) for KL(q ‖ p), with which the scales end about as wide as the prior.

Other than in the codes of the paper a draw is one A for all tokens of a step; q and p have no numbers added to their
standard deviations; one optimiser moves all parameters, on the scale of the mean loss per observation, with β = 1; and
the parameter of a scale is its logarithm, not its root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.health.descent import Descended
from torchbayes.health.spread import unmoved
from torchbayes.methods.adapters.factors import factors_of, scales_of
from torchbayes.methods.choices import WEIGHTS, Choice, Lowered
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.optimizers import Adam, Optimizer
from torchbayes.methods.protocol import Needs, Shelf
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.methods.variational.families import DiagonalFamily
from torchbayes.methods.variational.objective import (
    Drawing,
    Fitting,
    State,
    Terms,
    Update,
    by_autograd,
    check_pairs,
)
from torchbayes.methods.variational.weighting import Weighting
from torchbayes.model.layout import Layout
from torchbayes.model.model import Batch, Model
from torchbayes.posteriors.gaussian import Gaussian

_OF_WEIGHTS, _OF_SCALES = 0.002, 0.05  # as in the papers


@dataclass(frozen=True)
class BLoB(Fitting):
    """Independent normal weights of the factor A of low-rank adapters, trained along with the factor B.

    For models whose random weights are factors of low-rank adapters, as those of PEFT, `Model(…, random="*lora*")`.

    Attributes:
        members: M, independent fits, whose mixture is the posterior.
        epochs: passes over the data; None for 50, or as many as make 5,000 steps.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
        draws: S, of A for each step.
        antithetic: whether draws come in pairs ±ε; S is even then.
        initial_scale: standard deviation of every random weight at first; None for 0.002, or 0.05 of scales.
        kl_weight: β: a number, `Halving()` or `WarmUp()`. None lets held-out rows choose a number of at most 1: see
            `torchbayes.selection.lowered`.
        plan: how the stack of networks is run: auto, native, loop, vmap or compiled.
    """

    members: int = 1
    epochs: int | None = None
    batch_size: int = 128
    optimizer: Optimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
    draws: int = 1
    antithetic: bool = False
    initial_scale: float | None = None
    kl_weight: float | Weighting | None = 1.0
    plan: BackendName | str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pairs(self.draws, antithetic=self.antithetic)

    @property
    def needs(self) -> Needs:
        return Needs(batch_size=self.batch_size, network="train")

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Lowered("kl_weight", WEIGHTS),) if self.kl_weight is None else ()

    def check(self, model: Model) -> None:
        """Check that the random weights hold adapters.

        Raises:
            SettingError: if they hold none.
        """
        super().check(model)
        self.family(model.layout)

    def family(self, layout: Layout) -> DiagonalFamily:
        """Return the distributions over the weights of a layout: those of A, or the scales of its rows, have one."""
        return DiagonalFamily(tuple(scales_of(layout) or [adapter.first for adapter in factors_of(layout)]))

    def parameters(self, density: LogDensity, weights_MD: Tensor, *, seeds: Sequence[int]) -> Tensor:
        scale_MD = weights_MD.new_full(weights_MD.shape, self._initial(density.model.layout))
        return self.family(density.model.layout).start(weights_MD, scale_MD, lambda like: like)

    def objective(
        self, density: LogDensity, now: Trajectory, batch: Batch, *, kl_weight: float
    ) -> tuple[Terms, Tensor, Update]:
        drawing = Drawing(self.family(density.model.layout), "weights", self.draws, self.antithetic)
        return by_autograd(self.optimizer, density, now, batch=batch, drawing=drawing, kl_weight=kl_weight)

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> Gaussian:
        """Return the mixture of the members' distributions; the variance is 0 for all weights but those of A."""
        model, parameters_MP = density.model, state.trajectory.weights_MD
        mean_MD, covariance = (
            parameters_MP[:, : state.size].clone(),
            self.family(model.layout).covariance(parameters_MP),
        )
        return Gaussian(model, mean_MD, covariance, buffers_M=state.trajectory.buffers or None)

    def ending(self, posterior: Any, state: State) -> Descended:
        scale_MD = self.family(posterior.model.layout).variance(state.trajectory.weights_MD).sqrt()
        random_MD = scale_MD[:, scale_MD[0] > 0]
        return Descended(
            weights_MD=state.trajectory.weights_MD[:, : state.size],
            buffers=state.trajectory.buffers,
            averaged=True,
            why="they are spread wider than the data bear (lower `kl_weight`, or train longer)",
            together=True,
            then=[lambda _: unmoved(random_MD, self._initial(posterior.model.layout))],
        )

    def _initial(self, layout: Layout) -> float:
        """Return the first standard deviation of a random weight."""
        if self.initial_scale is None:
            return _OF_SCALES if scales_of(layout) else _OF_WEIGHTS
        return self.initial_scale

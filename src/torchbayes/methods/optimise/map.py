"""MAP: the mode of the posterior, w* = argmax log p(y | f_w(x)) + log p(w), by stochastic gradient descent.

With `priors.Flat()` it is maximum likelihood. With M members, each with its own initialisation and data order, it is a
deep ensemble (Lakshminarayanan et al. 2017), whose mixture is a Bayesian model average over M basins (Wilson and
Izmailov 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.optimise.descent import Descent, Scheduled, Trajectory
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.protocol import Shelf
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.posteriors.point import Point


@dataclass(frozen=True)
class MAP(Scheduled, Descent):
    """Maximum a posteriori: standard training for one member, a deep ensemble for several.

    Attributes:
        members: M, independent runs.
        epochs: passes over the data; None lets held-out rows choose them, see `fit`.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
        adversarial: ε, for adversarial training: every row counts half as it is, and half where a step of ε times the
            range of each input makes it least likely (`torchbayes.methods.adversarial`). Inputs are real numbers; 0.01
            is usual. The number of epochs is chosen by training without it.
    """

    carries = "start"

    members: int = 1
    epochs: int | None = None
    batch_size: int = 128
    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
    plan: BackendName | str = "auto"
    adversarial: float | None = field(default=None, kw_only=True)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How long to train, and how large a learned noise ends."""
        return (Epochs(self, noise=True),)

    def posterior(self, density: LogDensity, state: Trajectory, shelf: Shelf | None = None) -> Point:
        """Return the point masses at the members' weights."""
        return Point(density.model, state.weights_MD.clone(), buffers_M=state.buffers or None, statistics_known=True)

"""MCDropout: training with dropout as variational inference (Gal and Ghahramani 2016).

    q(W) = M diag(z),  z_j ~ Bernoulli(k),  k = 1 − p        (a unit that is dropped has no weights)
    −ELBO = −E_q log p(y | f_W(x)) + Σ_layers (k l²/2) ‖M‖² + const,    prior N(0, l⁻²) of every weight

A step with dropout on estimates the first term with one mask for each row. The second is the penalty of a normal
prior. Inverted dropout stores W = k M and divides by k, so the penalty is l²/(2k) ‖W‖². MAP with dropout under the
prior N(0, s²) therefore maximises the ELBO under N(0, s²/k) for M, that is with l² = k/s², for weights that act on
units which are dropped. For the other weights and for biases, where q is a point, the prior is N(0, s²) itself. τ of
the paper is the precision 1/σ² of the Gaussian likelihood, fixed or learned. The loss is the whole log likelihood, so
no decay has to be multiplied by τ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.optimise.descent import Descent, Scheduled, Trajectory
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.optimise.settings import Runs
from torchbayes.methods.protocol import Shelf
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.model.dropout import check_dropout
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.layers.dropout import DropoutPosterior


@dataclass(frozen=True)
class MCDropout(Runs, Scheduled, Descent):
    """Monte Carlo dropout: M networks trained with dropout, which stays on for predictions.

    The posterior approximated is the one under N(0, s²/k) for weights that act on units which are kept with
    probability k, where s is the scale of the model's normal prior, and under N(0, s²) for the others. A network that
    was trained with dropout elsewhere needs no fit: `DropoutPosterior.of(model, net)`.

    Attributes:
        optimizer: update rule and learning rate, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
        plan: how the stack of members is run: auto, or loop.
    """

    by_draws = True
    carries = "start"

    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
    plan: BackendName | str = "auto"

    def check(self, model: Model) -> None:
        super().check(model)
        check_dropout(model.network)

    def begin(
        self, density: Any, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Trajectory:
        self.check(density.model)
        return super().begin(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)

    def posterior(self, density: LogDensity, state: Trajectory, shelf: Shelf | None = None) -> DropoutPosterior:
        """Return the members' networks under random masks."""
        return DropoutPosterior(
            density.model, state.weights_MD.clone(), buffers_M=state.buffers or None, statistics_known=True
        )

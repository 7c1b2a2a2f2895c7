r"""SWAG: a Gaussian around the SWA solution from the moments of the SGD trajectory (Maddox et al. 2019).

With snapshots θ_1 … θ_n, their mean θ̄ and running mean θ̄_t:

    v = (1/n) Σ_t (θ_t − θ̄)²          (updated by Welford's rule; equals the second raw moment minus the squared mean)
    F = rows θ_t − θ̄_t of the last K snapshots
    Σ = scale · [ diag(v) + Fᵀ F / (K − 1) ],     scale = ½

so that a draw is θ̄ + √(v/2) ∘ z₁ + Fᵀ z₂ / √(2(K − 1)). Without the low-rank part (`rank=0`) scale is 1. With several
members the posterior is the mixture MultiSWAG (Wilson and Izmailov 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike

import torch

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.keepers import Spread, WithMoments
from torchbayes.methods.moments import Moments, joined
from torchbayes.methods.optimise.averaging import Averages
from torchbayes.methods.optimise.base import Descent
from torchbayes.methods.optimise.collector import Collector
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.protocol import Shelf
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.settings import NOT_NEGATIVE


@dataclass(frozen=True)
class SWAG(Averages, Descent):
    """Stochastic weight averaging, Gaussian; with several members MultiSWAG.

    Attributes:
        members: M, independent runs.
        epochs: passes over the data; None lets held-out rows choose them, see `fit`.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate before averaging.
        averaging_lr: constant learning rate of the averaging phase: the larger, the wider the posterior. None for half
            of the optimiser's; where held-out rows choose the epochs they also choose between that and a tenth,
            averaged from 0.75 of the run on.
        burn_in: share of the epochs before averaging starts; None for a half.
        per_epoch: snapshots per epoch; None spreads 50 evenly over the averaging phase.
        rank: K, deviations retained for the low-rank part; 0 for only the diagonal (SWAG-Diag).
        scale: factor on the covariance; None is the paper's, ½ with a low-rank part and 1 without.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
        adversarial: ε of adversarial training, as in `MAP`; None for plain training.
    """

    carries = "prior"

    members: int = 1
    epochs: int | None = None
    batch_size: int = 128
    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    averaging_lr: float | None = None
    burn_in: float | None = None
    per_epoch: int | None = None
    rank: int = field(default=20, metadata=NOT_NEGATIVE)
    scale: float | None = field(default=None, metadata=NOT_NEGATIVE)
    plan: BackendName | str = "auto"
    adversarial: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank == 1:
            raise ValueError(f"`rank` must be 0 (diagonal alone) or at least 2; got {self.rank}.")

    @property
    def keeper(self) -> WithMoments:
        return WithMoments(self.due, self.rank, self.planned)

    def posterior(self, density: LogDensity, state: Spread, shelf: Shelf | None = None) -> Gaussian:
        """Return the mixture of the members' Gaussians.

        Raises:
            ValueError: if fewer than two snapshots were taken.
        """
        return self.averaged(density.model, [state.moments], state.trajectory.buffers)

    def averaged(self, model: Model, moments: Sequence[Moments], buffers: Buffers) -> Gaussian:
        """Return the mixture of Gaussians with these moments.

        Args:
            model: the model of the weights.
            moments: each of one member or more, in the order of the members.
            buffers: the network's buffers of each member, (M, ...).

        Returns:
            The posterior, which shares no tensor of means with the moments.

        Raises:
            ValueError: if fewer than two snapshots were taken.
        """
        mean_MD = torch.cat([each.mean_MD for each in moments])
        return Gaussian(model, mean_MD, joined(moments, self.scale), buffers_M=buffers or None)

    def collector(self, model: Model, *, resume: str | PathLike[str] | None = None) -> Collector[Gaussian]:
        """Return a collector of points that your own training loop visits, to use instead of `fit`.

        Of the settings only `members`, `rank` and `scale` matter, and `batch_size` for the rows of `posterior(data)`.

        Args:
            model: network, likelihood and prior.
            resume: file that `Collector.save` wrote, to go on from; starts afresh if there is none yet.

        Returns:
            The collector.

        Raises:
            ValueError: if memory is too small for the deviations, or the file is damaged or of another model or
                method.
        """
        return Collector(model, self, rank=self.rank, least=2, resume=resume)

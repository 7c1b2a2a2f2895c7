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

import torch

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.keepers import Spread, WithMoments
from torchbayes.methods.moments import Moments, joined
from torchbayes.methods.optimise.averaging import Averages
from torchbayes.methods.optimise.descent import Descent
from torchbayes.methods.protocol import Shelf
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.settings import NOT_NEGATIVE


@dataclass(frozen=True)
class SWAG(Averages[Gaussian], Descent):
    """Stochastic weight averaging, Gaussian; with several members MultiSWAG.

    Attributes:
        rank: K, deviations retained for the low-rank part; 0 for only the diagonal (SWAG-Diag).
        scale: factor on the covariance; None is the paper's, ½ with a low-rank part and 1 without.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
        adversarial: ε of adversarial training, as in `MAP`; None for plain training.
    """

    carries = "prior"
    least = 2

    rank: int = field(default=20, metadata=NOT_NEGATIVE)
    scale: float | None = field(default=None, metadata=NOT_NEGATIVE)
    plan: BackendName | str = "auto"
    adversarial: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank == 1:
            raise ValueError(f"`rank` must be 0 (diagonal alone) or at least 2; got {self.rank}.")

    @property
    def deviations(self) -> int:
        return self.rank

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
        mean_MD = torch.cat([each.mean_MD for each in moments])
        return Gaussian(model, mean_MD, joined(moments, self.scale), buffers_M=buffers or None)

"""SWA: stochastic weight averaging (Izmailov et al. 2018).

From the averaging phase on, at a constant high learning rate, snapshots θ_t are averaged:

    n ← n + 1,   mean ← mean + (θ_t − mean)/n

The posterior is the point mass at the mean, a wide-basin solution; batch-norm statistics are recalibrated there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.keepers import Averaged, Mean
from torchbayes.methods.moments import Moments
from torchbayes.methods.optimise.averaging import Averages
from torchbayes.methods.optimise.descent import Descent
from torchbayes.methods.protocol import Shelf
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.point import Point


@dataclass(frozen=True)
class SWA(Averages[Point], Descent):
    """Stochastic weight averaging; with several members MultiSWA.

    Attributes:
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
        adversarial: ε of adversarial training, as in `MAP`; None for plain training.
    """

    carries = "start"
    least = 1

    plan: BackendName | str = "auto"
    adversarial: float | None = field(default=None, kw_only=True)

    @property
    def keeper(self) -> Mean:
        return Mean(self.due)

    def posterior(self, density: LogDensity, state: Averaged, shelf: Shelf | None = None) -> Point:
        """Return the point masses at the averages.

        Raises:
            ValueError: if no snapshot has been taken yet.
        """
        if not state.snapshots:
            raise ValueError("no snapshot has been taken: the run stopped before averaging started. Lower `burn_in`.")
        return Point(density.model, state.mean_MD.clone(), buffers_M=state.trajectory.buffers or None)

    def averaged(self, model: Model, moments: Sequence[Moments], buffers: Buffers) -> Point:
        return Point(model, torch.cat([each.mean_MD for each in moments]), buffers_M=buffers or None)

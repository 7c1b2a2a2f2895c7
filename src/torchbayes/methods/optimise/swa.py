"""SWA: stochastic weight averaging (Izmailov et al. 2018).

From the averaging phase on, at a constant high learning rate, snapshots θ_t are averaged:

    n ← n + 1,   mean ← mean + (θ_t − mean)/n

The posterior is the point mass at the mean, a wide-basin solution; batch-norm statistics are recalibrated there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike

import torch

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.methods.keepers import Averaged, Mean
from torchbayes.methods.moments import Moments
from torchbayes.methods.optimise.averaging import Averages
from torchbayes.methods.optimise.base import Descent
from torchbayes.methods.optimise.collector import Collector
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.protocol import Shelf
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.point import Point


@dataclass(frozen=True)
class SWA(Averages, Descent):
    """Stochastic weight averaging.

    Attributes:
        members: M, independent runs; several make MultiSWA.
        epochs: passes over the data; None lets held-out rows choose them, see `fit`.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate before averaging.
        averaging_lr: constant learning rate of the averaging phase. None for half of the optimiser's; where held-out
            rows choose the epochs they also choose between that and a tenth, averaged from 0.75 of the run on.
        burn_in: share of the epochs before averaging starts; None for a half.
        per_epoch: snapshots per epoch; None spreads 50 evenly over the averaging phase.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
        adversarial: ε of adversarial training, as in `MAP`; None for plain training.
    """

    carries = "start"

    members: int = 1
    epochs: int | None = None
    batch_size: int = 128
    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    averaging_lr: float | None = None
    burn_in: float | None = None
    per_epoch: int | None = None
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
        """Return the point masses at the means of these moments.

        Args:
            model: the model of the weights.
            moments: each of one member or more, in the order of the members.
            buffers: the network's buffers of each member, (M, ...).

        Returns:
            The posterior, which shares no tensor with the moments.
        """
        return Point(model, torch.cat([each.mean_MD for each in moments]), buffers_M=buffers or None)

    def collector(self, model: Model, *, resume: str | PathLike[str] | None = None) -> Collector[Point]:
        """Return a collector of points that your own training loop visits, to use instead of `fit`.

        Of the settings only `members` matters, and `batch_size` for the rows of `posterior(data)`.

        Args:
            model: network, likelihood and prior.
            resume: file that `Collector.save` wrote, to go on from; starts afresh if there is none yet.

        Returns:
            The collector.

        Raises:
            ValueError: if the file is damaged or of another model or method.
        """
        return Collector(model, self, rank=0, least=1, resume=resume)

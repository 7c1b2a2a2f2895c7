"""What methods share that move vertices between networks which stay where they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Value
from torchbayes.health.descent import Descended
from torchbayes.health.ending import Check
from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.optimise.descent import Scheduled
from torchbayes.methods.optimise.seeker import seeker
from torchbayes.methods.protocol import Needs
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.point import Point


class Joining(Scheduled, ABC):
    """A descent of vertices between trained networks, which `fit` trains if none are given."""

    if TYPE_CHECKING:
        first: ClassVar[Sequence[Check]]  # checks before the usual ones
        then: ClassVar[Sequence[Check]]  # checks after them

    epochs: int | None
    batch_size: int

    @property
    def needs(self) -> Needs:
        """Trained networks, and minibatches, through a network in training mode."""
        start = seeker(batch_size=self.batch_size)
        return Needs(batch_size=self.batch_size, network="train", start=start, modes=self.ends)

    @property
    @abstractmethod
    def ends(self) -> int:
        """Number of networks that each member joins."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The number of epochs for the networks, where none are given, and then for the vertices between them."""
        return (Epochs(self.needs.start, settings=("epochs",) if self.epochs is None else (), mode=True),)

    @abstractmethod
    def middle(self, posterior: Any) -> Point:
        """Return the network of each member that lies farthest from those that are joined."""

    def ending(self, posterior: Any, state: Any) -> Descended:
        """Return how a run ended: its networks in the middle are judged as those of a descent."""
        middle = self.middle(posterior)
        return Descended(
            weights_MD=middle.weights_MD,
            buffers=state.trajectory.buffers,
            result=middle,
            averaged=True,
            said=self.optimizer.caveats(middle.weights_MD),
            first=self.first,
            then=self.then,
        )


@dataclass(frozen=True)
class Between:
    """The loss at one point of each member, as a function of the vertices that move."""

    density: LogDensity  # the loss as a function of weights
    fixed: Sequence[Tensor]  # vertices that stay, each (M, D)
    fixed_MF: Tensor  # their coefficients, float64
    moving_MJ: Tensor  # coefficients of the others

    @property
    def model(self) -> Model:
        """The model."""
        return self.density.model

    @property
    def num_data(self) -> int:
        """N."""
        return self.density.num_data

    def loss(self, vertices: Tensor, batch: Batch, *, buffers: Buffers, seeds: Sequence[int], out: Tensor) -> Value:
        """Return the loss at the points, and write the gradient in the vertices that move to `out` (M, J D)."""
        shape, share_MJ1 = (-1, self.fixed[0].shape[1]), self.moving_MJ.to(vertices).unsqueeze(-1)
        point_MD = torch.zeros_like(self.fixed[0])
        for fixed_MD, share_M in zip(self.fixed, self.fixed_MF.to(vertices).unbind(1), strict=True):
            point_MD.addcmul_(fixed_MD, share_M.unsqueeze(-1))
        for vertex_MD, share_M1 in zip(vertices.unflatten(1, shape).unbind(1), share_MJ1.unbind(1), strict=True):
            # in place, because the product with all would be as large as the vertices
            point_MD.addcmul_(vertex_MD, share_M1)
        into_MJD = out.unflatten(1, shape)
        slope_MD = into_MJD[:, -1]  # holds the gradient at the point until those of all other vertices are computed
        value = self.density.loss(point_MD, batch, buffers=buffers, seeds=seeds, out=slope_MD)
        torch.mul(share_MJ1[:, :-1], slope_MD.unsqueeze(1), out=into_MJD[:, :-1])
        slope_MD.mul_(share_MJ1[:, -1])
        return value._replace(gradient=out)

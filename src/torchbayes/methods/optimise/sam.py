"""SAM: sharpness-aware minimisation (Foret et al. 2021), an option of the optimiser.

A step of the base optimiser takes the gradient not at the weights but where the loss around them is highest, to first
order, within a ball of radius ρ:

    g = ∇L(w),    ε = ρ g/|g|₂,    w ← w − lr ∇L(w + ε)

The norm is over all weights of a member together, and the gradient is not taken through ε. L is what descents
minimise, the negative log joint density per observation, with its prior. On a quadratic L = ½ wᵀHw the gradient is
g + ρ H g/|g|: directions of large curvature are left first.

With `adaptive` (Kwon et al. 2021) the ball is scaled by the weights, T = |w| + 0.01, so that scaling a layer up and
the next one down changes nothing:

    ε = ρ T² g/|T g|₂,    |T⁻¹ ε|₂ = ρ

With `parts` a batch is split. Each part has its own ε, and their gradients are averaged by their rows (m-sharpness):
the paper's gains are larger with parts of few rows. A batch of B rows has at most B/2 parts.

Both passes have the same dropout masks. Statistics of batch norm are those of the pass at w; changes by the pass at
w + ε are dropped. w itself is never written over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import check_object
from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Value
from torchbayes.health.ending import first
from torchbayes.methods.optimise.optimizers import SGD, Adam, AdamW, Optimizer, Slots
from torchbayes.model.batches.batch import batch_size
from torchbayes.model.model import Batch, Model, ready
from torchbayes.model.network import Buffers
from torchbayes.randomness.seeds import Purpose, mix
from torchbayes.settings import check_settings

_STEADY = 0.01  # added to |w| by `adaptive`, so that a weight of 0 can move


@dataclass(frozen=True)
class SAM:
    """Sharpness-aware minimisation around another optimiser; a step takes two gradients.

    Attributes:
        base: the optimiser that takes the steps.
        rho: ρ, radius of the ball, in units of the weights; 0.05 is usual, and ten times as much with `adaptive`.
        adaptive: whether the ball is scaled by the weights (ASAM).
        parts: parts of a batch, each with a perturbation of its own.
    """

    base: Optimizer = field(default_factory=SGD)
    rho: float = 0.05
    adaptive: bool = False
    parts: int = 1

    def __post_init__(self) -> None:
        check_settings(self)
        check_object(("lr", "slots", "update"), "SGD()", base=self.base)

    @property
    def lr(self) -> float:
        """Learning rate of the base."""
        return self.base.lr

    @property
    def rule(self) -> Optimizer:
        """The base, whose rule moves the weights."""
        return self.base

    def slots(self, weights_MD: Tensor) -> Slots:
        """Return the initial slots of the base."""
        return self.base.slots(weights_MD)

    def objective(self, density: LogDensity) -> Ascended:
        """Return the objective of a descent: the density, with gradients where its loss is high."""
        return Ascended(density, self)

    def caveats(self, weights_MD: Tensor) -> list[str]:
        """Return a problem, as one clause, if the ball is as large as the weights of a member where a descent ended.

        Gradients are then those of networks that have nothing to do with the weights: |T⁻¹ε| = ρ ≥ |T⁻¹w|, where T = I
        unless `adaptive`.
        """
        size_MD = weights_MD.double()
        if self.adaptive:
            size_MD = size_MD / (size_MD.abs() + _STEADY)
        size_M = size_MD.norm(dim=1)
        kind = "scaled weights" if self.adaptive else "weights"
        return [
            f"SAM took its gradients at a distance of rho = {self.rho:g}, which is more than the norm of the {kind} of "
            f"member {m} themselves, {float(size_M[m]):.3g}, so that they say nothing of the loss around "
            f"them (lower `rho`: 0.05 is usual, and ten times as much with `adaptive`)"
            for m in first(size_M <= self.rho)
        ]


@dataclass(frozen=True)
class Ascended:
    """A density whose loss is that at the weights, and whose gradient is that at w + ε."""

    density: LogDensity
    settings: SAM

    @property
    def model(self) -> Model:
        """The model."""
        return self.density.model

    @property
    def num_data(self) -> int:
        """N."""
        return self.density.num_data

    def loss(
        self,
        weights_MD: Tensor,
        batch: Batch,
        *,
        buffers: Buffers | None = None,
        seeds: Sequence[int],
        out: Tensor,
    ) -> Value:
        """Return loss and log likelihood (M,) at the weights, and write the gradient (M, D) at w + ε to `out`.

        The gradient is averaged over the parts. The weights are not changed; the buffers are changed by the pass at w.
        """
        pieces = split(batch, self.settings.parts, seeds=seeds, model=self.model)
        if len(pieces) == 1:
            return self._piece(weights_MD, batch, buffers=buffers, seeds=seeds, out=out)
        total_MD = torch.zeros_like(out)
        loss_M = fit_M = torch.zeros((), dtype=torch.float64, device=weights_MD.device)
        for piece in pieces:
            value = self._piece(weights_MD, piece.rows, buffers=buffers, seeds=piece.seeds, out=out)
            total_MD.add_(out, alpha=piece.share)
            loss_M = loss_M + piece.share * value.log_density
            fit_M = fit_M + piece.share * value.log_likelihood
        return Value(loss_M, out.copy_(total_MD), fit_M)

    def _piece(
        self, weights_MD: Tensor, rows: Batch, *, buffers: Buffers | None, seeds: Sequence[int], out: Tensor
    ) -> Value:
        """Return the loss on some rows at the weights, with the gradient where the loss on these rows is high."""
        copies = None if buffers is None else {name: buffer.clone() for name, buffer in buffers.items()}
        here = self.density.loss(weights_MD, rows, buffers=buffers, seeds=seeds, out=out)
        there_MD = risen(weights_MD, out, self.settings.rho, adaptive=self.settings.adaptive)
        self.density.loss(there_MD, rows, buffers=copies, seeds=seeds, out=out)
        return here


def risen(weights_MD: Tensor, gradient_MD: Tensor, rho: float, *, adaptive: bool = False) -> Tensor:
    """Return w + ε, a new tensor (M, D); w itself where the gradient of a member is zero.

    Not finite where the gradient of a member is not. With `adaptive` the ball is scaled by |w| + 0.01.
    """
    wide = torch.promote_types(weights_MD.dtype, torch.float32)  # a sum of squares is lost in bfloat16
    if not adaptive:
        norm_M1 = torch.linalg.vector_norm(gradient_MD, dim=-1, keepdim=True, dtype=wide)
        return torch.addcmul(weights_MD, gradient_MD, _over(rho, norm_M1).to(weights_MD.dtype))
    scale_MD = weights_MD.abs().add_(_STEADY)
    scaled_MD = scale_MD * gradient_MD
    norm_M1 = torch.linalg.vector_norm(scaled_MD, dim=-1, keepdim=True, dtype=wide)
    return weights_MD + scaled_MD.mul_(scale_MD).mul_(_over(rho, norm_M1).to(weights_MD.dtype))


def _over(rho: float, norm_M1: Tensor) -> Tensor:
    """Return ρ/norm, and 0 where the norm is 0."""
    return torch.where(norm_M1 == 0, 0.0, rho / norm_M1)


class Piece(NamedTuple):
    """Some rows of a batch."""

    rows: Batch  # of each member, (M, b, ...)
    share: float  # b/B, their share of the rows
    seeds: Sequence[int]  # of what a network draws for them


def split(batch: Batch, parts: int, *, seeds: Sequence[int], model: Model) -> list[Piece]:
    """Return the parts of a batch: rows k, k + parts, k + 2 parts and so on; at most half as many as there are rows.

    Each part has its own seeds, made from those of the members; a single part has these themselves. The model knows
    which inputs all rows share.
    """
    count = 1 if parts == 1 else max(1, min(parts, batch_size(ready(model, batch, members=True).inputs, 1) // 2))
    if count == 1:
        return [Piece(batch, 1.0, seeds)]
    rows = ready(model, batch, members=True)
    size, pieces = batch_size(rows.inputs, 1), []
    for k in range(count):
        rows_of_piece = rows.map(lambda t, k=k: t[:, k::count].contiguous())
        part_seeds = [mix(Purpose.PART, seed, k) for seed in seeds]
        pieces.append(Piece(rows_of_piece, len(range(k, size, count)) / size, part_seeds))
    return pieces


AnyOptimizer = SGD | Adam | AdamW | SAM

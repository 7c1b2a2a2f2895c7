"""Running moments of snapshots of the weights: the mean of SWA, the variances and deviations of SWAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbayes.linalg import Diagonal, LowRankPlusDiagonal

# smallest variance, so that densities exist; far below anything that moves a float32 weight
VARIANCE_FLOOR = 1e-30


@dataclass(frozen=True)
class Moments:
    """Running moments of the snapshots."""

    mean_MD: Tensor
    squares_MD: Tensor  # sum of squared deviations from the mean
    deviations_MKD: Tensor  # θ_t − θ̄_t of the last K snapshots, in slot t mod K
    snapshots: int  # their number

    @classmethod
    def empty(cls, weights_MD: Tensor, rank: int) -> Moments:
        """Return moments of no snapshot."""
        members, size = weights_MD.shape
        zeros = torch.zeros_like
        return cls(zeros(weights_MD), zeros(weights_MD), weights_MD.new_zeros(members, rank, size), 0)

    def collect(self, weights_MD: Tensor, *, donate: bool = False) -> Moments:
        """Return the moments with one more snapshot; `donate` overwrites the tensors of these."""
        old = (
            self
            if donate
            else replace(
                self,
                mean_MD=self.mean_MD.clone(),
                squares_MD=self.squares_MD.clone(),
                deviations_MKD=self.deviations_MKD.clone(),
            )
        )
        count, rank = old.snapshots + 1, old.deviations_MKD.shape[1]
        before = weights_MD - old.mean_MD
        old.mean_MD.add_(before, alpha=1 / count)
        after = weights_MD - old.mean_MD
        old.squares_MD.addcmul_(before, after)
        if rank:
            old.deviations_MKD[:, (count - 1) % rank] = after
        return replace(old, snapshots=count)

    def covariance(self, scale: float | None) -> Diagonal | LowRankPlusDiagonal:
        """Return Σ, with K the number of deviations actually collected.

        `scale` is a factor on both parts: None means ½ with a low-rank part and 1 without. Raises ValueError if fewer
        than two snapshots were taken.
        """
        if self.snapshots < 2:
            raise ValueError(
                f"there must be at least 2 snapshots to have a spread; got {self.snapshots}. "
                f"Train longer, lower `burn_in` or raise `per_epoch`."
            )
        rank = min(self.snapshots, self.deviations_MKD.shape[1])
        factor = scale if scale is not None else 0.5 if rank > 1 else 1.0
        variance_MD = (factor / self.snapshots * self.squares_MD).clamp_min(VARIANCE_FLOOR)
        if rank < 2:
            return Diagonal(variance_MD)
        return LowRankPlusDiagonal(variance_MD, (factor / (rank - 1)) ** 0.5 * self.deviations_MKD[:, :rank])


def joined(moments: Sequence[Moments], scale: float | None) -> Diagonal | LowRankPlusDiagonal:
    """Return the covariances of members one below the other, which may have seen different numbers of snapshots.

    Missing deviations are rows of zeros. Arguments and errors are those of `Moments.covariance`.
    """
    parts = [collected.covariance(scale) for collected in moments]
    if len(parts) == 1:
        return parts[0]
    variance_MD = torch.cat([covariance.variance_MD for covariance in parts])
    factors = [covariance.factor_MRD for covariance in parts if isinstance(covariance, LowRankPlusDiagonal)]
    if not factors:
        return Diagonal(variance_MD)
    rank = max(factor.shape[1] for factor in factors)
    padded = [torch.nn.functional.pad(factor, (0, 0, 0, rank - factor.shape[1])) for factor in factors]
    return LowRankPlusDiagonal(variance_MD, torch.cat(padded))

"""The noise of gradients on minibatches: how large it is, and how far it turns a velocity of constant speed.

The gradient g' of the first m of the B rows of a batch differs from the batch's g by as much as g from that of all N,
but for a factor. Rows without replacement, as they are, give

    n = (g' − g) √((1/B − 1/N)/(1/m − 1/B)),     E n nᵀ = Σ, the covariance of g

whatever the rows, so that (n·n')² of two batches has the mean tr Σ². A velocity of D weights that is refreshed on the
length L, and takes steps of ε, is turned along the noise by

    ρ = ε L tr Σ²/(2 (D − 1) tr Σ)

times what refreshment turns it by: ε σ² L/(2 (D − 1)) for noise of variance σ² in every direction. Rows that are
shuffled add up to no noise in an epoch of n batches. Of a velocity that lasts for L/ε steps they leave

    f = 1 − 2 (a − 1 + e^(−a))/a² ≈ a/(3 + a),     a = n ε/L

of that. The share is ρ f.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchbayes.methods.finite import FOR_STEPS

_MEMORY = 100  # batches of which moments are the running means


@dataclass(frozen=True)
class Noise:
    """Running moments of the noise, float64 (M,)."""

    sample_MD: Tensor = field(metadata=FOR_STEPS)  # the last n, (M, D)
    trace_M: Tensor  # tr Σ
    square_M: Tensor  # tr Σ²
    count: int

    @classmethod
    def none(cls, like_MD: Tensor) -> Noise:
        """Return the moments before any batch."""
        nothing_M = like_MD.new_zeros(len(like_MD), dtype=torch.float64)
        return cls(torch.zeros_like(like_MD), nothing_M, nothing_M.clone(), 0)

    def after(self, half_MD: Tensor, whole_MD: Tensor, *, rows: int, num_data: int) -> Noise:
        """Return the moments with one more batch of B rows of N, from gradients of its first ⌊B/2⌋ rows and of all."""
        factor = (1 / rows - 1 / num_data) / (1 / (rows // 2) - 1 / rows)
        sample_MD = (half_MD - whole_MD) * factor**0.5
        sample_MD = torch.where(torch.isfinite(sample_MD).all(-1, keepdim=True), sample_MD, self.sample_MD)
        trace_M = torch.linalg.vector_norm(sample_MD, dim=-1, dtype=torch.float64).square()
        trace_M = self.trace_M.lerp(trace_M, 1 / min(self.count + 1, _MEMORY))
        square_M = torch.linalg.vecdot(sample_MD.double(), self.sample_MD.double()).square()
        # the first batch has none before it
        square_M = self.square_M.lerp(square_M, 1 / min(max(self.count, 1), _MEMORY))
        return Noise(sample_MD, trace_M, square_M, self.count + 1)

    def share(self, step_size_M: Tensor, length_M: Tensor, *, steps_per_epoch: int) -> Tensor:
        """Return ρ f of steps of some sizes."""
        ages_M = steps_per_epoch * step_size_M / length_M
        return step_size_M * self._rate(length_M) * ages_M / (3 + ages_M)

    def longest(self, share: float, length_M: Tensor, *, steps_per_epoch: int) -> Tensor:
        """Return the sizes of steps at which the share is a given one; infinite without noise."""
        rate_M, epoch = self._rate(length_M), steps_per_epoch
        root_M = (share * epoch * (share * epoch + 12 * length_M * rate_M)).sqrt()
        return (share * epoch + root_M) / (2 * rate_M * epoch)

    def _rate(self, length_M: Tensor) -> Tensor:
        """Return ρ/ε."""
        along_M = torch.where(self.trace_M > 0, self.square_M / self.trace_M, 0.0)
        return length_M * along_M / (2 * (self.sample_MD.shape[-1] - 1))

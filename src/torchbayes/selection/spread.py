"""Standard deviations that weights can have at a start.

At trained weights the likelihood allows a spread that depends on how sharp the mode is, weight by weight:

    σ = 1/√(λ F),    F = E_i (∂/∂w log p(y_i | x_i, w))²,    λ = N/T

with F the diagonal of the empirical Fisher information of a row. It is computed from the gradients g of 64 groups
of b rows, few of them, as F ≈ E b g² where ∇ℓ is near 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.sam import split
from torchbayes.model.network import Buffers
from torchbayes.model.sources.sources import Source

_PARTS = 64  # groups of a batch whose gradients are squared: two rows each for 128 rows


def borne(density: LogDensity, source: Source, begin: tuple[Tensor, Buffers], *, seeds: Sequence[int]) -> Tensor:
    """Return σ of each weight of each member at the weights of `begin`, (M, D); infinite where nothing is known of it.

    `begin` has weights (M, D) and the network's buffers of each member. About 128 rows of the source are read; the
    density is of all rows, which it need not hold.
    """
    weights_MD, buffers = begin
    gradient_MD = torch.empty_like(weights_MD)
    total_MD = torch.zeros_like(weights_MD, dtype=torch.promote_types(weights_MD.dtype, torch.float32))
    batches = [] if density.model.coupled else source.some(2 * _PARTS)
    rows = sum(batch.size for batch in batches)
    for batch in batches:
        stacked = batch.map(lambda t: t.expand(len(seeds), *t.shape))
        for piece in split(stacked, _PARTS, seeds=seeds, model=density.model):
            buffers_M = {name: buffer.clone() for name, buffer in buffers.items()}
            density.nll(weights_MD, piece.rows, buffers=buffers_M, seeds=piece.seeds, out=gradient_MD)
            total_MD.add_(gradient_MD.to(total_MD.dtype).square(), alpha=(piece.share * batch.size) ** 2 / rows)
    ess = density.num_data * density.model.scales(density.num_data, density.num_data).likelihood
    return (total_MD * ess).rsqrt()

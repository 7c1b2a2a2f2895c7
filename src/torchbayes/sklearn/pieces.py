"""Columns of numbers in pieces, by which a network of few units can follow steps and bends of a single column.

    e_t(x) = (x − b_{t−1}) / (b_t − b_{t−1}), clipped to [0, 1],    t = 1, ..., T

for the edges b_0 < ... < b_T, quantiles of the training rows (Gorishniy, Rubachev and Babenko 2022, "On embeddings for
numerical features in tabular deep learning"). The column itself, by which predictions go on beyond the outermost edges,
stays beside its pieces: scaled robustly, and clipped smoothly so that a far value is not much more than a large one,

    z = (x − median) / (interquartile range),    z / √(1 + (z/3)²)

(Holzmüller, Grinsztajn and Steinwart 2024, "Better by default").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_PIECES, _ROWS, _WIDTH = 16, 20, 512  # pieces of a column, rows in each, and pieces of all columns together, at most
_CLIP = 3.0


@dataclass(frozen=True)
class Pieces:
    """How columns of numbers become others; each row of `edges_DE` is padded with its last edge."""

    centre_D: Tensor
    scale_D: Tensor
    edges_DE: Tensor  # no edges but one where columns are not in pieces

    @property
    def width(self) -> int:
        """Number of columns that they become."""
        return len(self.centre_D) + int((self.edges_DE.diff() > 0).sum())

    def __call__(self, values_BD: Tensor) -> Tensor:
        """Return the columns, scaled and clipped, and then their pieces, float64 (B, D + number of pieces)."""
        scaled_BD = (values_BD - self.centre_D) / self.scale_D
        clipped_BD = scaled_BD / (1 + (scaled_BD / _CLIP).square()).sqrt()
        width_DT = self.edges_DE.diff()
        ratio_BDT = (values_BD.unsqueeze(-1) - self.edges_DE[:, :-1]) / width_DT
        return torch.cat([clipped_BD, ratio_BDT.clamp(0, 1)[:, width_DT > 0]], dim=1)


def pieces_of(values_ND: Tensor) -> Pieces:
    """Return the pieces of the columns of training rows, float64 (N, D).

    A column has 16 pieces; fewer where a piece would have less than 20 rows, or all columns together more than 512
    pieces, and none where fewer than two are left, or the column has two values.
    """
    rows, columns = values_ND.shape
    low_D, centre_D, high_D = torch.from_numpy(np.quantile(values_ND.numpy(), [0.25, 0.5, 0.75], axis=0))
    range_D = values_ND.amax(0) - values_ND.amin(0)
    scale_D = torch.where(high_D > low_D, high_D - low_D, torch.where(range_D > 0, range_D / 2, 1.0))
    count = min(_PIECES, rows // _ROWS, _WIDTH // columns)
    if count < 2:
        return Pieces(centre_D, scale_D, centre_D.unsqueeze(1))
    quantiles_DE = torch.from_numpy(np.quantile(values_ND.numpy(), np.linspace(0, 1, count + 1), axis=0)).mT
    edges_DE = torch.empty_like(quantiles_DE)
    for edges_E, quantiles_E in zip(edges_DE, quantiles_DE, strict=True):
        different = quantiles_E.unique()
        different = different if len(different) > 2 else different[:1]  # the column itself says as much
        edges_E[:] = different[-1]
        edges_E[: len(different)] = different
    return Pieces(centre_D, scale_D, edges_DE)

"""Covariance structures with one set of operations: matvec, solve, sqrt_matvec, logdet, diagonal, dense.

Every structure carries the member axis M. A structure is added by writing a class with the operations of `Structure`
and a line in `STRUCTURES`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchbayes.linalg.blocks import Blocks, Scaled
from torchbayes.linalg.dense import Dense
from torchbayes.linalg.diagonal import Diagonal
from torchbayes.linalg.kronecker import Kronecker
from torchbayes.linalg.low_rank import LowRankPlusDiagonal, LowRankPrecision
from torchbayes.linalg.structure import Structure, unnested

STRUCTURES: dict[str, Any] = {
    structure.kind: structure
    for structure in (Blocks, Dense, Diagonal, Kronecker, LowRankPlusDiagonal, LowRankPrecision, Scaled)
}


def restore(kind: str, tensors: dict[str, Tensor]) -> Structure:
    """Return the structure rebuilt from the tensors that define it.

    Args:
        kind: its name in `STRUCTURES`.
        tensors: as `tensors` gave them.

    Returns:
        The structure.

    Raises:
        KeyError: if the kind is unknown or a tensor is missing.
    """
    own, parts = unnested(tensors, restore)
    if kind == Blocks.kind:
        return Blocks(own["order_D"], parts)
    if kind == Scaled.kind:
        return Scaled(own["scale_MD"], parts[0])
    return STRUCTURES[kind](**own)


__all__ = [
    "STRUCTURES",
    "Blocks",
    "Dense",
    "Diagonal",
    "Kronecker",
    "LowRankPlusDiagonal",
    "LowRankPrecision",
    "Scaled",
    "Structure",
    "restore",
]

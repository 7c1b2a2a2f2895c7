"""Covariance structures and curvatures, with the operations of `Structure` and of `Curvature`.

Every structure carries the member axis M. A new one is a file with a frozen dataclass that inherits `Structure`, and a
line in the table by which files are read. If its inverse is what data add to a prior, it also has a class that inherits
`Curvature`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchbayes.linalg.blocks import BlockCurvature, Blocks, Scaled
from torchbayes.linalg.curvature import Curvature
from torchbayes.linalg.dense import Dense, DenseCurvature
from torchbayes.linalg.diagonal import Diagonal, DiagonalCurvature
from torchbayes.linalg.kronecker import Kronecker, KroneckerCurvature
from torchbayes.linalg.low_rank import LowRankCurvature, LowRankPlusDiagonal, LowRankPrecision
from torchbayes.linalg.stored import Stored, restored
from torchbayes.linalg.structure import Form, Group, Structure

STRUCTURES: dict[str, type[Any]] = {
    structure.kind: structure
    for structure in (Blocks, Dense, Diagonal, Kronecker, LowRankPlusDiagonal, LowRankPrecision, Scaled)
}
CURVATURES: dict[str, type[Any]] = {
    curvature.kind: curvature
    for curvature in (BlockCurvature, DenseCurvature, DiagonalCurvature, KroneckerCurvature, LowRankCurvature)
}


def restore(kind: str, tensors: dict[str, Tensor]) -> Structure:
    """Return the structure rebuilt from the tensors that define it.

    Args:
        kind: its name in `STRUCTURES`.
        tensors: as `Stored.tensors` returns them.

    Raises:
        KeyError: if the kind is unknown or a tensor is missing.
    """
    return restored(STRUCTURES, kind, tensors)


def restore_curvature(kind: str, tensors: dict[str, Tensor]) -> Curvature:
    """Return the curvature rebuilt from the tensors that define it.

    Args:
        kind: its name in `CURVATURES`.
        tensors: as `Stored.tensors` returns them.

    Raises:
        KeyError: if the kind is unknown or a tensor is missing.
    """
    return restored(CURVATURES, kind, tensors)


__all__ = [
    "CURVATURES",
    "STRUCTURES",
    "BlockCurvature",
    "Blocks",
    "Curvature",
    "Dense",
    "DenseCurvature",
    "Diagonal",
    "DiagonalCurvature",
    "Form",
    "Group",
    "Kronecker",
    "KroneckerCurvature",
    "LowRankCurvature",
    "LowRankPlusDiagonal",
    "LowRankPrecision",
    "Scaled",
    "Stored",
    "Structure",
    "restore",
    "restore_curvature",
]

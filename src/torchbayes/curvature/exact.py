"""The exact curvature alongside a structured one: its eigenvalues tell how many directions the data determine.

The eigenvalues of a structure without all correlations are the diagonal of H in some basis, as many as there are
weights. H itself has at most as many nonzero ones as there are target values, and they are more uneven: by Schur and
Horn, Σ log(1 + λ) and γ = Σ λ/(1 + λ) are never smaller for the structure. As γ approaches the number of targets n, the
factor n/(n − γ) on the noise that the evidence would choose diverges. So the noise is chosen by the eigenvalues of H
itself.

With D weights γ ≤ D whatever the structure, so that for D ≤ n/3 the scale of the noise is too large by 22 % at most, in
fact by 2 % for Kronecker factors and 4 to 9 % for a diagonal (tables of 600 to 3,000 rows, n/D from 4 to 9). There the
matrix is not computed: it took ten times as long as the diagonal, and 4 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from torchbayes.curvature.discovery import CaptureScope, NetworkLayers
from torchbayes.curvature.sums import DenseSums, Piece, Sum, Sums
from torchbayes.linalg import Curvature, DenseCurvature

_MARK = "beside."
_FEW = 1024  # a dense matrix of up to this many weights is cheap; there is none of more
PARAMETERS_PER_TARGET = 1 / 3  # above it, counting too many parameters moves the noise by more than 22 %


def is_needed(weights: int, targets: float) -> bool:
    """Return whether D weights for n targets may count as so many parameters that the noise needs the exact H."""
    return PARAMETERS_PER_TARGET * targets < weights <= _FEW


@dataclass(frozen=True)
class WithExact(Sums):
    """Sums of a structure, and of the dense matrix in the first pass."""

    sums: Sums
    dense: DenseSums

    held: ClassVar[tuple[CaptureScope, ...]] = ("everywhere", "in turn", "few")

    @staticmethod
    def has_exact(total: Mapping[str, Tensor]) -> bool:
        """Return whether a sum includes the matrix."""
        return any(name.startswith(_MARK) for name in total)

    @property
    def passes(self) -> int:  # type: ignore[override]
        """Passes of the structure."""
        return self.sums.passes

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        matrix = {_MARK + name: tensor for name, tensor in self.dense.empty(network, like).items()}
        return {**self.sums.empty(network, like, seed), **matrix}

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        self.sums.add_(_own(total), piece, number)
        if number == 0:
            # a copy runs its own forward pass, because columns can be read only once
            self.dense.add_(_matrix(total), replace(piece))

    def turn_(self, total: Sum, network: NetworkLayers, scale_D: Tensor, *, number: int) -> None:
        self.sums.turn_(_own(total), network, scale_D, number=number)

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> Curvature:
        return self.sums.curvature(network, _own(totals_M), scale_MD)


def exact_curvature(network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> DenseCurvature | None:
    """Return the exact diag(s) H diag(s) that `WithExact` has added up, or None if it was not needed."""
    return DenseSums().curvature(network, _matrix(totals_M), scale_MD) if WithExact.has_exact(totals_M) else None


def _own(total: Sum) -> Sum:
    return {name: tensor for name, tensor in total.items() if not name.startswith(_MARK)}


def _matrix(total: Sum) -> Sum:
    return {name.removeprefix(_MARK): tensor for name, tensor in total.items() if name.startswith(_MARK)}

"""Curvatures H ≥ 0 in units of the prior: what the data add to a prior of unit precision.

A Gaussian posterior with prior precision diag(d) has the covariance (H + diag(d))⁻¹. Every class gives that
covariance for any d, as a structure of `torchbayes.linalg`, and its own eigenvalues. From these the evidence follows
for any d without a new pass over the data. A curvature is in the file of the structure of its covariance.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from torchbayes.linalg.stored import Stored
from torchbayes.linalg.structure import Structure

Correlations = Literal["none", "some", "all"]
"""Which correlations between weights a curvature keeps of the matrix that it represents."""

LOADING = 1e-3  # of a weight's square in directions without precision, above which the weight is undetermined


class Part(NamedTuple):
    """Weights that are independent of all others under H."""

    where: Tensor  # their places in the flat vector, int64 (n,)
    eigenvalues_ME: Tensor  # eigenvalues of their block of H, (M, n)
    single: bool  # whether each weight is independent, with its eigenvalue at its place


class LeftOut(NamedTuple):
    """What is known of the part E ≥ 0 of a block that a low rank H leaves out."""

    where: Tensor  # places of the block's weights in the flat vector, int64 (n,)
    kept_MR: Tensor  # eigenvalues that H has, (M, R)
    diagonal_MD: Tensor  # diag E, (M, n)
    squares_M: Tensor  # tr E²
    room_M: Tensor  # largest rank that H and E can have together


class Curvature(Stored, Protocol):
    """A symmetric matrix H ≥ 0 per member.

    Attributes:
        correlations: which correlations it keeps.
    """

    correlations: ClassVar[Correlations]

    @property
    @abstractmethod
    def size(self) -> int:
        """D."""

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What H leaves out, block by block: nothing for all but low ranks."""
        return ()

    @abstractmethod
    def covariance(self, precision_D: Tensor) -> Structure:
        """Return (H + diag(d))⁻¹ for d (D,) or (M, D).

        Raises:
            ValueError: if H + diag(d) is not positive definite, or d differs within a Kronecker product.
        """

    @abstractmethod
    def plus(self, covariance: Structure, scale_MD: Tensor) -> Curvature | None:
        """Return H + diag(c) Σ⁻¹ diag(c) in the structure of H; None if that has no closed form.

        Args:
            covariance: Σ, of one member.
            scale_MD: c, positive, (1, D).
        """

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """Yield the independent parts with their eigenvalues."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """Return factor · H."""

    @abstractmethod
    def in_units(self, scale_D: Tensor) -> Self:
        """Return diag(s) H diag(s).

        Args:
            scale_D: s, positive, (D,); the same for all weights of a Kronecker product.

        Raises:
            ValueError: if s differs within a Kronecker product.
        """

    @abstractmethod
    def positive(self) -> Self:
        """Return H ≥ 0 in double precision, without eigenvalues that rounding took below 0."""

    @abstractmethod
    def undetermined(self, precision_D: Tensor) -> Tensor:
        """Return which weights lie in directions in which H + diag(d) is 0 up to rounding, bool (M, D).

        Args:
            precision_D: d, at least 0, (D,).
        """

    @abstractmethod
    def trace(self) -> Tensor:
        """Return tr H, (M,)."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Return diag H, (M, D)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return H as matrices (M, D, D): for tests and small D."""


def is_rounding(values_ME: Tensor, size: int | None = None) -> Tensor:
    """Return which eigenvalues (..., E) are 0 up to rounding, of either sign: at most D ε times the largest.

    D is the size of the matrix; None stands for E.
    """
    largest = values_ME.amax(-1, keepdim=True)
    return values_ME.abs() <= (size or values_ME.shape[-1]) * torch.finfo(values_ME.dtype).eps * largest

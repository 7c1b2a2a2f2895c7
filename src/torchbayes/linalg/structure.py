"""The operations of every covariance structure, and functions that work on all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchbayes.linalg.bases import completed, shape_of
from torchbayes.linalg.stored import Stored


@dataclass(frozen=True)
class Form:
    """A structure as a sum of products, Σ = U diag(v) Uᵀ + R Rᵀ ± Fᵀ diag(c) F; a term is absent if its tensor is None.

    Attributes:
        variance: v, (M, D), or on the grid of the bases of a layer, (M, G, O, I).
        rows_MGOO: U_R of U = ⊕_g U_R ⊗ U_C over a grid; None for the identity. It may be incomplete, with a last value
            for all directions that it does not hold (`linalg.bases`), or have more columns than rows.
        columns_MGII: U_C likewise.
        root_MDZ: R, about as many columns as weights.
        directions_MRD: F, few rows.
        shares_MR: c, at least 0; None for 1.
        sign: of the last term, 1 or −1.
    """

    variance: Tensor | None = None
    rows_MGOO: Tensor | None = None
    columns_MGII: Tensor | None = None
    root_MDZ: Tensor | None = None
    directions_MRD: Tensor | None = None
    shares_MR: Tensor | None = None
    sign: int = 1

    @property
    def bases(self) -> tuple[Tensor, Tensor] | None:
        """U_R and U_C if both are given."""
        return None if self.rows_MGOO is None or self.columns_MGII is None else (self.rows_MGOO, self.columns_MGII)

    @property
    def shape(self) -> tuple[int, ...]:
        """Axes of the weights: (D,), or (G, O, I) of a layer; of a form with variances."""
        assert self.variance is not None
        if self.variance.ndim == 2:
            return tuple(self.variance.shape[1:])
        return shape_of(self.variance, self.rows_MGOO, self.columns_MGII)

    def completed(self) -> Form:
        """Return the form with bases of all directions."""
        if self.variance is None or self.variance.ndim == 2:
            return self
        variance, rows, columns = completed(self.variance, self.rows_MGOO, self.columns_MGII)
        return replace(self, variance=variance, rows_MGOO=rows, columns_MGII=columns)

    @property
    def is_spectral(self) -> bool:
        """Whether Σ is U diag(v) Uᵀ alone."""
        return self.variance is not None and self.root_MDZ is None and self.directions_MRD is None

    @property
    def is_diagonal(self) -> bool:
        """Whether Σ is diag(v)."""
        return self.is_spectral and self.rows_MGOO is None and self.columns_MGII is None


@dataclass(frozen=True)
class Group:
    """Weights that are independent of all others, with the structure diag(s) S diag(s).

    Attributes:
        where: their places, int64 (n,); None for all weights in their order.
        scale_MD: s, positive, (M, n); None for 1.
        structure: S.
    """

    where: Tensor | None
    scale_MD: Tensor | None
    structure: Structure


class Structure(Stored, Protocol):
    """A symmetric positive matrix Σ per member, known through its operations; inherit it for one of your own."""

    @property
    @abstractmethod
    def size(self) -> int:
        """D, the number of weights."""

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample, D for most."""
        return self.size

    @property
    def groups(self) -> tuple[Group, ...]:
        """The independent groups of which Σ is composed, each weight in one of them; empty if it is not composed."""
        return ()

    @abstractmethod
    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x, (..., M, D)."""

    @abstractmethod
    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x, (..., M, D)."""

    @abstractmethod
    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x as a sum of squares, float64 (..., M), because large terms would cancel in x · (Σ⁻¹ x)."""

    @abstractmethod
    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, (..., M, D), for noise (..., M, Z) of `noise_size` Z."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """Return log det Σ, float64 (M,), in nats."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Return diag Σ, the marginal variances, (M, D)."""

    @abstractmethod
    def precision_diagonal(self) -> Tensor:
        """Return diag Σ⁻¹, (M, D).

        Raises:
            ValueError: if the structure does not give it without its dense matrix.
        """

    def form(self, scale_MD: Tensor | None = None) -> Form | None:
        """Return diag(s) Σ diag(s) as a sum of products.

        None if nothing is cheaper than its root R (D, Z), or Σ is composed of groups with forms of their own.

        Args:
            scale_MD: s, positive, (M, D); None for 1.
        """
        return None

    @abstractmethod
    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D): for tests and small D."""


class PlacedForm(NamedTuple):
    """The form of some weights that are independent of all others, and their places, int64 (n,)."""

    where: Tensor
    form: Form


def forms(structure: Structure, scale_MD: Tensor | None = None) -> Iterator[PlacedForm]:
    """Yield diag(s) Σ diag(s) group by group, with places, down to groups that are not composed; s is 1 if None.

    All scales are multiplied in, and each weight is in one form. A structure without a form of its own gives its
    root, a matrix of its size.
    """
    groups = structure.groups
    if not groups:
        form = structure.form(scale_MD) or rooted(structure, scale_MD)
        known = next(t for t in (form.variance, form.root_MDZ, form.directions_MRD) if t is not None)
        yield PlacedForm(torch.arange(structure.size, device=known.device), form)
    for group in groups:
        where, group_scale_MD = group.where, group.scale_MD
        scale = scale_MD if where is None or scale_MD is None else scale_MD[:, where]
        scale = group_scale_MD if scale is None else scale if group_scale_MD is None else group_scale_MD * scale
        for placed in forms(group.structure, scale):
            yield placed if where is None else PlacedForm(where[placed.where], placed.form)


def rooted(structure: Structure, scale_MD: Tensor | None = None) -> Form:
    """Return diag(s) Σ diag(s) by its root, which every structure has."""
    like_MD = structure.diagonal()
    size, members = structure.noise_size, len(like_MD)
    identity = torch.eye(size, dtype=like_MD.dtype, device=like_MD.device).unsqueeze(1).expand(size, members, size)
    root_ZMD = structure.sqrt_matvec(identity)
    return Form(root_MDZ=(root_ZMD if scale_MD is None else root_ZMD * scale_MD).permute(1, 2, 0))


def is_diagonal(structure: Structure) -> bool:
    """Return whether Σ is known to be diagonal, so that all weights are independent."""
    groups = structure.groups
    if groups:
        return all(is_diagonal(group.structure) for group in groups)
    form = structure.form()
    return form is not None and form.is_diagonal


def unscaled(structure: Structure) -> tuple[Tensor, Structure]:
    """Return s (M, D) and S with Σ = diag(s) S diag(s); s is 1 if Σ is not a `Scaled` structure."""
    groups = structure.groups
    if len(groups) == 1 and groups[0].where is None and groups[0].scale_MD is not None:
        return groups[0].scale_MD, groups[0].structure
    return torch.ones_like(structure.diagonal()), structure


def aligned(wheres: Sequence[Tensor], structure: Structure) -> list[Structure] | None:
    """Return the structures of the groups of Σ if they have these places in this order; else None."""
    groups = structure.groups
    if len(groups) != len(wheres):
        return None
    structures: list[Structure] = []
    for where, group in zip(wheres, groups, strict=True):
        if group.where is None or group.scale_MD is not None or not torch.equal(group.where, where):
            return None
        structures.append(group.structure)
    return structures

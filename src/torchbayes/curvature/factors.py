"""Second moments as Kronecker factors: which of them are kept at low rank, how they are summed, their eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.curvature.discovery import NetworkLayers
from torchbayes.curvature.layers import Affine
from torchbayes.linalg.matrices import add_gram_, eigh
from torchbayes.linalg.sketch import sketch, top

RANK = 32
"""Rank of the factors of long sides where it is not given."""
RATIO = 10
"""A side is long that has this many times the length of the other: an adapter's, not a convolution's of 3 by 3."""
WHOLE = 2**24
"""Numbers of all factors of long sides up to which they are kept whole."""

_WAITING = 2**13  # rows and places collected for one matrix product, at most


def long_sides(network: NetworkLayers, rank: int | None) -> dict[str, int]:
    """Return the rank of every factor that is kept at low rank, by its name in the sums, "3.inputs".

    A side of a layer is long if it has at least 10 times the length of the other, and more than 4 times the rank. With
    a rank, 1 or more, the factors of all long sides have it. None stands for rank 32 if these factors have more than
    2²⁴ numbers together, and for whole ones if not. 0 stands for whole ones.
    """
    if rank == 0:
        return {}
    sizes = {}
    for number, layer in enumerate(network.parts):
        if isinstance(layer, Affine):
            groups, outputs, inputs = layer.index.shape
            for name, size, other in (("inputs", inputs, outputs), ("outputs", outputs, inputs)):
                if size >= RATIO * other and size > 4 * (rank or RANK):
                    sizes[f"{number}.{name}"] = groups * size**2
    if rank is None and sum(sizes.values()) <= WHOLE:
        return {}
    return dict.fromkeys(sizes, rank or RANK)


class Spectrum(NamedTuple):
    """A factor U diag(v) Uᵀ of each member and group; U and v as in `linalg.bases`."""

    values: Tensor  # v, at least 0, (M, G, k)
    vectors: Tensor  # U, (M, G, n, k), or k − 1 columns


@dataclass
class Spectra:
    """Eigenvalues and eigenvectors of factors, which are computed and held once for factors that are equal."""

    known: dict[tuple[torch.Size, float], list[tuple[Tensor, Spectrum]]] = field(default_factory=dict)

    def of(self, factor: Tensor, omega: Tensor | None, rank: int, *, scale: Tensor | None = None) -> Spectrum:
        """Return the spectrum of diag(s) A diag(s).

        Args:
            factor: A, (M, G, n, n), or its sketch.
            omega: directions of the sketch, (M, n, ℓ); None for A itself.
            rank: of what is kept of a sketch.
            scale: s, (M, G, n); None for 1.
        """
        if scale is not None and not (scale == scale[..., :1]).all():
            return _spectrum(factor, omega, rank, scale=scale)
        equal = self.known.setdefault((factor.shape, float(factor.sum())), [])
        spectrum = next((known for other, known in equal if torch.equal(other, factor)), None)
        if spectrum is None:
            spectrum = _spectrum(factor, omega, rank)
            equal.append((factor, spectrum))
        return spectrum if scale is None else spectrum._replace(values=spectrum.values * scale[..., :1] ** 2)


def _spectrum(factor: Tensor, omega: Tensor | None, rank: int, *, scale: Tensor | None = None) -> Spectrum:
    if omega is None:
        scaled = factor if scale is None else factor * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        values, vectors = eigh(scaled)
        return Spectrum(values.clamp_min(0), vectors)
    values, vectors, rest = top(factor, omega.unsqueeze(1), rank)
    if scale is not None:
        root = scale.unsqueeze(-1) * vectors * values.sqrt().unsqueeze(-2)
        vectors, singular, _ = torch.linalg.svd(root, full_matrices=False)
        values, rest = singular.square(), rest * scale**2
    size, kept = vectors.shape[-2:]
    return Spectrum(torch.cat([values, rest.sum(-1, keepdim=True) / (size - kept)], dim=-1), vectors)


@dataclass
class Moment:
    """A second moment, accumulated in blocks: one large product is faster than many small ones."""

    omega: Tensor | None = None  # directions of its sketch; None for the moment itself
    waiting: list[Tensor] = field(default_factory=list)  # tensors (B, G, T, O) that are not in the sum yet
    summed: Tensor | float = 0.0  # sum over the other tensors, (G, O, O) or its sketch; 0 if there are none

    def add(self, tensor: Tensor) -> None:
        """Add a tensor."""
        self.waiting.append(tensor)
        if sum(len(block) * block.shape[2] for block in self.waiting) > _WAITING:
            self.total()

    def total(self) -> Tensor | float:
        """Return the sum so far."""
        if self.waiting:
            self.summed = self.summed + second_moment(joined(self.waiting, dim=0), omega=self.omega)
            self.waiting = []
        return self.summed


def second_moment(tensor: Tensor, *, ones: bool = False, omega: Tensor | None = None) -> Tensor:
    """Return Σ over rows and places of the outer products, (G, I, I) from (B, G, T, I), with or without a last 1.

    With directions, return their sketch, (G, I, ℓ + 1), of which the tensor holds the 1 already.
    """
    flat = tensor.transpose(0, 1).flatten(1, 2)
    if omega is not None:
        return sketch(flat, omega)
    groups, count, size = flat.shape
    total = flat.new_zeros(groups, size + ones, size + ones)
    add_gram_(total[:, :size, :size], flat)
    if ones:
        total[:, -1, :size] = total[:, :size, -1] = flat.sum(1)
        total[:, -1, -1] = count
    return total


def joined(tensors: Sequence[Tensor], *, dim: int) -> Tensor:
    """Return tensors put together along an axis; one tensor as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=dim)

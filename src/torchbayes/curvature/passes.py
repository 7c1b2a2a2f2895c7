"""Sums that take more than one pass, or no Jacobian rows at all: EKFAC, a low rank, and the exact Hessian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbayes.curvature.discovery import CaptureScope, NetworkLayers
from torchbayes.curvature.kfac import KroneckerSums
from torchbayes.curvature.layers import Affine
from torchbayes.curvature.parts import Squares
from torchbayes.curvature.products import curvature_products, hessian_rows
from torchbayes.curvature.sums import DiagonalSums, OnePass, Piece, Sum, Sums
from torchbayes.linalg import BlockCurvature, DenseCurvature, KroneckerCurvature, LowRankCurvature
from torchbayes.linalg.curvature import Correlations
from torchbayes.randomness.seeds import Purpose, generator

_EXTRA = 10  # directions of a low rank beyond those kept, so that the last ones kept are accurate


@dataclass(frozen=True)
class EigenvalueSums(Sums):
    """EKFAC (George et al. 2018): in the basis of KFAC, λ = Σ_n Σ_r (U_Rᵀ J_nr U_C)², the exact diagonal of H there.

    KFAC is summed in the first pass. Embeddings keep the eigenvalues of KFAC.
    """

    factors: KroneckerSums

    passes = 2
    held: ClassVar[tuple[CaptureScope, ...]] = ("in turn", "few")

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        total = self.factors.empty(network, like)
        for layer_number, layer in enumerate(network.layers):
            if isinstance(layer, Affine):
                groups, outputs, inputs = layer.index.shape
                total[f"{layer_number}.rows"] = like.new_zeros(groups, outputs, outputs)
                total[f"{layer_number}.columns"] = like.new_zeros(groups, inputs, inputs)
                total[f"{layer_number}.eigenvalues"] = like.new_zeros(groups, outputs, inputs)
        return total

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        if number == 0:
            self.factors.add_(total, piece)
            return
        squares: dict[int, Squares] = {}
        for layer_number, layer in enumerate(piece.network.layers):
            if isinstance(layer, Affine):
                columns = piece.scale_D[layer.index][:, 0].unsqueeze(-1) * total[f"{layer_number}.columns"]
                squares[layer_number] = piece.squares(layer, total[f"{layer_number}.rows"], columns)
        for _, calls in piece.columns():
            for squares_of_layer in squares.values():
                squares_of_layer.add(calls[squares_of_layer.layer.module])
        for layer_number, squares_of_layer in squares.items():
            total[f"{layer_number}.eigenvalues"] += squares_of_layer.total()

    def turn_(self, total: Sum, network: NetworkLayers, scale_D: Tensor, *, number: int) -> None:
        if number:  # the bases are known from the first pass
            return
        kfac = self.factors.curvature(network, {n: t.unsqueeze(0) for n, t in total.items()}, scale_D.unsqueeze(0))
        for layer_number, block in enumerate(kfac.blocks):
            if f"{layer_number}.eigenvalues" in total:
                total[f"{layer_number}.rows"].copy_(block.rows_MGOO[0])
                total[f"{layer_number}.columns"].copy_(block.columns_MGII[0])

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> BlockCurvature:
        blocks = []
        for layer_number in range(len(network.parts)):
            names = [f"{layer_number}.{name}" for name in ("eigenvalues", "rows", "columns")]
            if names[0] in totals_M:
                blocks.append(KroneckerCurvature(*(totals_M[name] for name in names)))
            else:
                blocks.append(self.factors.block(network, layer_number, totals_M, scale_MD=scale_MD))
        return BlockCurvature(network.order, tuple(blocks))


@dataclass(frozen=True)
class LowRankSums(Sums):
    """The R largest directions of diag(s) H diag(s), by randomised subspace iteration (Halko et al. 2011).

    Each pass multiplies by H and orthonormalises the products. From those of the last pass the Nyström formula Y (Qᵀ
    Y)⁺ Yᵀ, Y = H Q, gives the curvature, which is never larger than H (Gittens and Mahoney 2016). The diagonal of the
    remainder E is known, because the first pass adds up that of H. tr E² is estimated by the mean of |E z|² over random
    signs z, which the last pass multiplies too (Hutchinson 1990).
    """

    rank: int  # R
    passes: int

    held: ClassVar[tuple[CaptureScope, ...]] = ("in turn", *DiagonalSums.held)

    def __post_init__(self) -> None:
        if self.passes < 2:
            raise ValueError(
                f"`passes` must be at least 2 for a low rank: one to look, one to measure; got {self.passes}."
            )

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        """Return zeros, and random directions to start with."""
        size, source = network.size, generator(Purpose.DIRECTIONS, seed)
        drawn = torch.randn(min(self.rank + _EXTRA, size), size, generator=source, dtype=like.dtype)
        signs = torch.randint(2, (_EXTRA, size), generator=source).to(like) * 2 - 1
        return {
            "vectors": _orthonormal(drawn.to(like.device)),
            "products": torch.zeros_like(drawn, device=like.device),
            "signs": signs,
            "signed": torch.zeros_like(signs),
            "columns": torch.zeros(1, dtype=torch.float64, device=like.device),
            **DiagonalSums().empty(network, like),
        }

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        if number == 0:
            DiagonalSums().add_(total, piece)
            total["columns"] += piece.root(piece.seen.outputs.detach()).shape[:2].numel()
        pairs = {"products": "vectors"} | ({"signed": "signs"} if number == self.passes - 1 else {})
        products = piece.scale_D * curvature_products(
            piece.network.model,
            piece.views,
            piece.rows.inputs,
            root=piece.root,
            vectors_RD=piece.scale_D * torch.cat([total[name] for name in pairs.values()]),
            buffers=piece.buffers,
        )
        for name, product in zip(pairs, products.split([len(total[name]) for name in pairs]), strict=True):
            total[name] += product

    def turn_(self, total: Sum, network: NetworkLayers, scale_D: Tensor, *, number: int) -> None:
        if number < self.passes - 1:
            total["vectors"].copy_(_orthonormal(total["products"]))
            total["products"].zero_()

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> LowRankCurvature:
        vectors_MRD, products_MRD = totals_M["vectors"].double(), totals_M["products"].double()
        core = products_MRD @ vectors_MRD.mT
        values, vectors = torch.linalg.eigh((core + core.mT) / 2)
        is_positive = values > 1e-12 * values[..., -1:].clamp_min(1e-300)
        inverse = torch.where(is_positive, values.clamp_min(1e-300).rsqrt(), 0.0)
        factor_MRD = (vectors * inverse.unsqueeze(-2)).mT @ products_MRD
        _, singular, rows = torch.linalg.svd(factor_MRD, full_matrices=False)
        directions_MRD = singular[..., : self.rank].unsqueeze(-1) * rows[..., : self.rank, :]
        whole_MD = DiagonalSums().curvature(network, totals_M, scale_MD).values_MD
        rest_MD = whole_MD - directions_MRD.square().sum(-2)
        rounding_MD = 16 * torch.finfo(whole_MD.dtype).eps * whole_MD
        rest_MD = torch.where(rest_MD > rounding_MD, rest_MD, 0.0).to(whole_MD)
        signs_MPD = totals_M["signs"].double()
        left_MPD = totals_M["signed"].double() - (signs_MPD @ directions_MRD.mT) @ directions_MRD
        squares_M, room_M = left_MPD.square().sum(-1).mean(-1), totals_M["columns"][:, 0].clamp_max(whole_MD.shape[1])
        return LowRankCurvature(directions_MRD.to(whole_MD), rest_MD, squares_M.to(whole_MD), room_M.to(whole_MD))


def _orthonormal(vectors_RD: Tensor) -> Tensor:
    """Return orthonormal rows that span the same space."""
    return torch.linalg.qr(vectors_RD.mT).Q.mT.contiguous()


@dataclass(frozen=True)
class HessianSums(OnePass):
    """The exact Hessian of the negative log likelihood, which may have negative eigenvalues."""

    correlations: ClassVar[Correlations] = "all"

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        return {"dense": like.new_zeros(network.size, network.size)}

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        model = piece.network.model
        total["dense"] += hessian_rows(
            model, piece.views, piece.rows, parameters=piece.parameters, buffers=piece.buffers
        )

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> DenseCurvature:
        scaled = totals_M["dense"] * scale_MD.unsqueeze(-1) * scale_MD.unsqueeze(-2)
        return DenseCurvature((scaled + scaled.mT) / 2)

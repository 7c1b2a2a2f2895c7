"""Every curvature class against its dense matrix: covariance for any prior precision, eigenvalues, files."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.linalg import test_structures as structures
from tests.linalg.products import products
from tests.oracles import assert_close, normal
from torchbayes.linalg import (
    CURVATURES,
    BlockCurvature,
    DenseCurvature,
    DiagonalCurvature,
    KroneckerCurvature,
    LowRankCurvature,
    restore_curvature,
)
from torchbayes.linalg.matrices import eigh, eigvalsh

M, D = 2, 6


def diagonal(size: int = D) -> DiagonalCurvature:
    return DiagonalCurvature(normal(M, size).square())


def dense(size: int = D) -> DenseCurvature:
    half = normal(M, size, size - 1, seed=1)  # of less than full rank
    return DenseCurvature(half @ half.mT)


def kronecker(groups: int = 1, bases: str = "rows and columns") -> KroneckerCurvature:
    outputs, inputs = 2, 3
    rows = torch.linalg.qr(normal(M, groups, outputs, outputs, seed=2)).Q if "rows" in bases else None
    columns = torch.linalg.qr(normal(M, groups, inputs, inputs, seed=3)).Q if "columns" in bases else None
    return KroneckerCurvature(normal(M, groups, outputs, inputs, seed=4).square(), rows, columns)


def incomplete(rows: int, columns: int, groups: int = 1) -> KroneckerCurvature:
    """A product of few eigenvectors of a side of 3 or of both; see `test_structures`."""
    like = structures.incomplete(rows, columns, groups, M)
    return KroneckerCurvature(like.variance_MGOI, like.rows_MGOO, like.columns_MGII)


def low_rank(rank: int, size: int = D) -> LowRankCurvature:
    rest = normal(M, size, seed=6).square(), normal(M, seed=7).square(), torch.full((M,), float(size)).double()
    return LowRankCurvature(normal(M, rank, size, seed=5), *rest)


def blocks() -> BlockCurvature:
    inner = BlockCurvature(torch.tensor([1, 4, 0, 2, 3]), (dense(3), diagonal(2)))
    order = torch.tensor([7, 2, 14, 0, 5, 3, 9, 1, 13, 12, 4, 10, 6, 11, 8])
    return BlockCurvature(order, (kronecker(), inner, low_rank(2, 4)))


CASES: dict[str, Any] = {
    "diagonal": diagonal(),
    "dense": dense(),
    "kronecker": kronecker(),
    "kronecker, two groups": kronecker(2),
    "kronecker, rows": kronecker(bases="rows"),
    "kronecker, columns": kronecker(bases="columns"),
    "kronecker, no basis": kronecker(bases=""),
    "kronecker, 1 of 3 columns": incomplete(2, 1),
    "kronecker, 1 of both, two groups": incomplete(1, 1, 2),
    "rank 2": low_rank(2),
    "rank of D": low_rank(D),
    "rank above D": low_rank(D + 3),
    "blocks": blocks(),
}
every = pytest.mark.parametrize("curvature", CASES.values(), ids=CASES.keys())


def matrices(curvature: Any) -> Tensor:
    """Return H, (M, D, D), from its defining tensors."""
    if isinstance(curvature, DiagonalCurvature):
        return torch.stack([torch.diag(row) for row in curvature.values_MD])
    if isinstance(curvature, DenseCurvature):
        return curvature.matrix_MDD
    if isinstance(curvature, LowRankCurvature):
        return torch.einsum("mri,mrj->mij", curvature.factor_MRD, curvature.factor_MRD)
    if isinstance(curvature, BlockCurvature):
        parts = [matrices(block) for block in curvature.blocks]
        actual = torch.zeros(M, len(curvature.order_D), len(curvature.order_D), dtype=torch.float64)
        for part, where in zip(parts, curvature.order_D.split([p.shape[1] for p in parts]), strict=True):
            for i, row in enumerate(where.tolist()):
                actual[:, row, where] = part[:, i]
        return actual
    return products(curvature.eigenvalues_MGOI, curvature.rows_MGOO, curvature.columns_MGII)


def is_factored(curvature: Any) -> bool:
    return isinstance(curvature, KroneckerCurvature) or any(map(is_factored, getattr(curvature, "blocks", ())))


def precisions(curvature: Any) -> dict[str, Tensor]:
    """Return prior precisions d that the class takes: one number, one for each member, one for each weight."""
    size = matrices(curvature).shape[1]
    level = torch.full((size,), 0.7, dtype=torch.float64)
    each = torch.tensor([0.3, 2.0], dtype=torch.float64).unsqueeze(1).expand(M, size)
    actual = {"scalar": level, "member": each}
    if isinstance(curvature, BlockCurvature):  # a number for each block
        block_D = torch.empty(size, dtype=torch.float64)
        for number, where in enumerate(curvature.order_D.split(curvature.sizes)):
            block_D[where] = 0.5 + number
        actual["block"] = block_D
    if not is_factored(curvature):
        actual |= {"weight": normal(size, seed=6).exp(), "member and weight": normal(M, size, seed=7).exp()}
    return actual


@every
def test_covariance_is_the_inverse_of_the_sum(curvature: Any):
    exact = matrices(curvature)
    for precision in precisions(curvature).values():
        total = exact + torch.diag_embed(precision.expand(M, -1))
        actual = curvature.covariance(precision)
        assert_close(actual.dense(), torch.linalg.inv(total), rtol=1e-9)
        assert_close(actual.logdet(), -torch.linalg.slogdet(total).logabsdet, rtol=1e-9)


@every
def test_covariance_leaves_the_curvature_alone(curvature: Any):
    before = {name: tensor.clone() for name, tensor in curvature.tensors().items()}
    curvature.covariance(precisions(curvature)["scalar"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in curvature.tensors().items())


@every
def test_parts_are_independent_and_have_the_eigenvalues_of_their_blocks(curvature: Any):
    exact, seen = matrices(curvature), []
    for part in curvature.parts():
        block = exact[:, part.where][:, :, part.where]
        if part.single:
            assert_close(torch.diag_embed(part.eigenvalues_ME), block)
        else:
            assert_close(part.eigenvalues_ME.sort(-1).values, torch.linalg.eigvalsh(block), rtol=1e-9, atol=1e-10)
        rest = torch.ones(exact.shape[1], dtype=torch.bool)
        rest[part.where] = False
        assert not exact[:, part.where][:, :, rest].any()
        seen += part.where.tolist()
    assert sorted(seen) == list(range(exact.shape[1]))


@every
def test_dense_and_diagonal_are_the_matrix(curvature: Any):
    assert_close(curvature.dense(), matrices(curvature))
    assert_close(curvature.diagonal(), matrices(curvature).diagonal(dim1=1, dim2=2))


@every
def test_scaled(curvature: Any):
    assert_close(curvature.scaled(0.3).dense(), 0.3 * matrices(curvature))
    assert type(curvature.scaled(0.3)) is type(curvature)


@every
def test_tensors_rebuild_the_curvature(curvature: Any):
    assert CURVATURES[curvature.kind] is type(curvature)
    saved = {name: tensor.clone() for name, tensor in curvature.tensors().items()}
    rebuilt = restore_curvature(curvature.kind, dict(reversed(saved.items())))
    assert type(rebuilt) is type(curvature)
    again = rebuilt.tensors()
    assert again.keys() == saved.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in saved.items())


@pytest.mark.parametrize(
    "curvature", [kronecker(), kronecker(2), blocks()], ids=["one group", "two groups", "in blocks"]
)
def test_kronecker_refuses_a_precision_for_every_weight(curvature: Any):
    precision = torch.linspace(0.5, 1.5, matrices(curvature).shape[1], dtype=torch.float64)
    with pytest.raises(ValueError, match="one prior precision for the weights of a layer"):
        curvature.covariance(precision)


@pytest.mark.parametrize("wrap", [False, True], ids=["alone", "in a block"])
def test_a_sum_that_is_not_positive_definite_is_refused(wrap: bool):
    matrix = torch.tensor([[0.0, 3.0], [3.0, 0.0]], dtype=torch.float64).unsqueeze(0)
    curvature: Any = DenseCurvature(matrix)
    if wrap:
        order = torch.tensor([2, 0, 1])
        curvature = BlockCurvature(order, (curvature, DiagonalCurvature(torch.ones(1, 1, dtype=torch.float64))))
    precision = torch.full((3 if wrap else 2,), 0.5, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"smallest eigenvalue is -2\.5\b"):
        curvature.covariance(precision)


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="smallest eigenvalue is nan"):
        DenseCurvature(torch.full((1, 2, 2), torch.nan)).covariance(torch.ones(2))


@pytest.mark.parametrize("silent", [False, True])
def test_eigenvalues_are_found_in_double_precision_where_single_fails(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAPACK gives up on some matrices of low rank, or returns NaN; here on every one in single precision."""
    for name in ("eigh", "eigvalsh"):
        own = getattr(torch.linalg, name)

        def failing(matrix: Tensor, own: Any = own) -> Any:
            if matrix.dtype == torch.float32 and not silent:
                raise RuntimeError("failed to converge")
            return own(matrix if matrix.dtype == torch.float64 else torch.full_like(matrix, torch.nan))

        monkeypatch.setattr(torch.linalg, name, failing)
    factor = normal(4, 6)
    matrix = (factor.T @ factor).float()
    values, vectors = eigh(matrix)
    assert values.dtype == vectors.dtype == torch.float32
    assert_close((vectors * values) @ vectors.T, matrix, rtol=1e-5, atol=1e-5)
    assert_close(eigvalsh(matrix), values, rtol=1e-5, atol=1e-5)

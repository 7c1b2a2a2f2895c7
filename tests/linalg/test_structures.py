"""Every covariance structure against the dense matrix that its defining tensors spell out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.linalg.circulant import Circulant, circulant, circulant_matrices
from tests.linalg.products import products
from tests.oracles import assert_close, normal
from torchbayes import linalg
from torchbayes.linalg import (
    STRUCTURES,
    Blocks,
    Dense,
    Diagonal,
    Kronecker,
    LowRankPlusDiagonal,
    LowRankPrecision,
    Scaled,
    Structure,
    restore,
)
from torchbayes.linalg.matrices import add_gram_, invert_lower_

M, D = 3, 5


def diagonal(members: int = M, size: int = D) -> Diagonal:
    return Diagonal(normal(members, size).exp())


def low_rank(rank: int, members: int = M) -> LowRankPlusDiagonal:
    return LowRankPlusDiagonal(normal(members, D).exp(), normal(members, rank, D, seed=1))


def low_rank_precision(rank: int, members: int = M) -> LowRankPrecision:
    return LowRankPrecision(normal(members, D).exp(), normal(members, rank, D, seed=1))


def dense(members: int = M, size: int = D) -> Dense:
    root = normal(members, size, size, seed=2).triu(1) + torch.diag_embed(normal(members, size, seed=3).exp())
    return Dense(root)


def kronecker(groups: int, bases: str, members: int = M) -> Kronecker:
    rows = torch.linalg.qr(normal(members, groups, 2, 2, seed=4)).Q if "rows" in bases else None
    columns = torch.linalg.qr(normal(members, groups, 3, 3, seed=5)).Q if "columns" in bases else None
    return Kronecker(normal(members, groups, 2, 3, seed=6).exp(), rows, columns)


def incomplete(
    rows: int, columns: int, groups: int = 1, members: int = M, sides: tuple[int, int] = (2, 3)
) -> Kronecker:
    """A product with bases of fewer columns than their sides, or as many."""
    kept = [
        torch.linalg.qr(normal(members, groups, size, k, seed=size)).Q
        for size, k in zip(sides, (rows, columns), strict=True)
    ]
    values = [min(k + 1, size) for size, k in zip(sides, (rows, columns), strict=True)]
    return Kronecker(normal(members, groups, *values, seed=6).exp(), *kept)


def blocks(members: int = M) -> Blocks:
    inner = Blocks(torch.tensor([2, 0, 1, 3]), (diagonal(members, 1), dense(members, 3)))
    order = torch.tensor([7, 2, 14, 0, 5, 3, 9, 1, 13, 12, 4, 10, 6, 11, 8])
    return Blocks(order, (kronecker(1, "rows, columns", members), inner, low_rank_precision(2, members)))


CASES: dict[str, Structure] = {
    "diagonal": diagonal(),
    "diagonal, one member": diagonal(1),
    **{f"rank {r}": low_rank(r) for r in (1, 2, D, D + 3)},
    "rank 2, one member": low_rank(2, 1),
    **{f"precision of rank {r}": low_rank_precision(r) for r in (1, 2, D, D + 3)},
    "precision of rank 2, one member": low_rank_precision(2, 1),
    "dense": dense(),
    "dense, one member": dense(1),
    "dense, one weight": dense(M, 1),
    **{
        f"kronecker, {groups} groups, {bases}": kronecker(groups, bases)
        for groups in (1, 2)
        for bases in ("rows and columns", "rows", "columns", "no basis")
    },
    "kronecker, one member": kronecker(2, "rows and columns", 1),
    "kronecker, 1 of 3 columns": incomplete(2, 1),
    "kronecker, 2 of 3 columns, two groups": incomplete(2, 2, 2),
    "kronecker, 1 of 2 rows": incomplete(1, 3),
    "kronecker, 1 of both": incomplete(1, 1),
    "kronecker, 3 of 9 columns": incomplete(2, 3, sides=(2, 9)),
    "kronecker, 2 of 7 rows": incomplete(2, 2, members=1, sides=(7, 2)),
    "kronecker, 1 of 3 columns, no rows": Kronecker(
        incomplete(2, 1).variance_MGOI, None, incomplete(2, 1).columns_MGII
    ),
    "blocks": blocks(),
    "blocks, one member": blocks(1),
    "circulant": circulant(M, D),
    "scaled circulant": Scaled(normal(M, D, seed=7).exp(), circulant(M, D)),
    "a circulant block": Blocks(torch.tensor([4, 1, 9, 7, 0, 2, 3, 8, 5, 6]), (circulant(M, D), dense())),
    "scaled": Scaled(normal(M, D, seed=7).exp(), dense()),
    "scaled blocks": Scaled(normal(M, 15, seed=7).exp(), blocks()),
    "scaled twice": Scaled(normal(M, D, seed=7).exp(), Scaled(normal(M, D, seed=8).exp(), low_rank(2))),
    "a scaled block": Blocks(
        torch.tensor([4, 1, 9, 7, 0, 2, 3, 8, 5, 6]), (Scaled(normal(M, D, seed=7).exp(), dense()), diagonal())
    ),
}
every = pytest.mark.parametrize("structure", CASES.values(), ids=CASES.keys())


def matrices(structure: Structure) -> Tensor:
    """Return Σ, (M, D, D), by sums over entries, from the defining tensors alone."""
    if isinstance(structure, Scaled):
        scales = [torch.diag(row) for row in structure.scale_MD]
        return torch.stack([s @ inner @ s for s, inner in zip(scales, matrices(structure.structure), strict=True)])
    if isinstance(structure, Blocks):
        parts = [matrices(block) for block in structure.blocks]
        actual = torch.zeros(len(parts[0]), len(structure.order_D), len(structure.order_D), dtype=torch.float64)
        start = 0
        for part in parts:
            where = structure.order_D[start : start + part.shape[-1]].tolist()
            start += part.shape[-1]
            for i, row in enumerate(where):
                for j, column in enumerate(where):
                    actual[:, row, column] = part[:, i, j]
        return actual
    if isinstance(structure, Circulant):
        return circulant_matrices(structure)
    if isinstance(structure, Kronecker):
        return products(structure.variance_MGOI, structure.rows_MGOO, structure.columns_MGII)
    if isinstance(structure, Dense):
        return torch.einsum("mik,mjk->mij", structure.root_MDD, structure.root_MDD)
    if isinstance(structure, LowRankPrecision):
        total = torch.stack([torch.diag(row) for row in structure.precision_MD])
        return torch.linalg.inv(_with_directions(total, structure.factor_MRD))
    tensors = structure.tensors()
    total = torch.stack([torch.diag(row) for row in tensors["variance_MD"]])
    return _with_directions(total, tensors.get("factor_MRD", torch.zeros(len(total), 0, D, dtype=torch.float64)))


def _with_directions(total: Tensor, factor_MRD: Tensor) -> Tensor:
    for m, rows in enumerate(factor_MRD):
        for row in rows:
            total[m] += torch.outer(row, row)
    return total


def sizes(structure: Structure) -> tuple[int, int]:
    """Return M and D."""
    members, size, _ = matrices(structure).shape
    return members, size


@every
def test_dense_and_diagonal_are_the_matrix(structure: Structure):
    assert_close(structure.dense(), matrices(structure))
    assert_close(structure.diagonal(), matrices(structure).diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
@every
def test_matvec_and_solve_with_any_leading_axes(structure: Structure, lead: tuple[int, ...]):
    vectors, exact = normal(*lead, *sizes(structure), seed=2), matrices(structure)
    assert_close(structure.matvec(vectors), torch.einsum("mij,...mj->...mi", exact, vectors))
    solved = torch.linalg.solve(exact, vectors.unsqueeze(-1)).squeeze(-1)
    assert_close(structure.solve(vectors), solved, rtol=1e-9)


@every
def test_solve_undoes_matvec(structure: Structure):
    vectors = normal(7, *sizes(structure), seed=3)
    assert_close(structure.solve(structure.matvec(vectors)), vectors, rtol=1e-9, atol=1e-11)


@every
def test_square_root_times_its_transpose_is_the_matrix(structure: Structure):
    size, (members, weights) = structure.noise_size, sizes(structure)
    unit_noise = torch.eye(size, dtype=torch.float64).unsqueeze(1).expand(size, members, size)  # one column of R each
    root = structure.sqrt_matvec(unit_noise).permute(1, 2, 0)
    assert root.shape == (members, weights, size)
    assert_close(root @ root.mT, matrices(structure))
    assert_close(structure.sqrt_matvec(unit_noise[0]), root[..., 0])  # and without a leading axis


@every
def test_log_determinant(structure: Structure):
    assert_close(structure.logdet(), torch.linalg.slogdet(matrices(structure)).logabsdet)


@every
@pytest.mark.parametrize("lead", [(), (4, 2)])
def test_quadratic_form(structure: Structure, lead: tuple[int, ...]):
    members, size = sizes(structure)
    vectors = normal(*lead, members, size, seed=11)
    expected = torch.einsum("...mi,mij,...mj->...m", vectors, torch.linalg.inv(matrices(structure)), vectors)
    assert_close(structure.quadratic(vectors), expected, rtol=1e-8)


def doubled(structure: Any) -> Any:
    """Return the structure with the same numbers in double precision."""
    tensors = {name: t.double() if t.is_floating_point() else t for name, t in structure.tensors().items()}
    return restore(structure.kind, tensors)


SIZE = 60_000
LARGE: dict[str, Any] = {  # draws are large along a few directions, and in the others far larger than rounding
    "diagonal": lambda: Diagonal(normal(1, SIZE).mul(3).exp().float()),
    "low rank": lambda: LowRankPlusDiagonal(
        (1e-4 * normal(1, SIZE).exp()).float(), normal(1, 10, SIZE, seed=1).float()
    ),
    "precision": lambda: LowRankPrecision(normal(1, SIZE).exp().float(), 10 * normal(1, 10, SIZE, seed=1).float()),
    "kronecker": lambda: Kronecker(
        normal(1, 1, 200, 300).mul(2).exp().float(),
        *(torch.linalg.qr(normal(1, 1, n, n, seed=2)).Q.float() for n in (200, 300)),
    ),
    "kronecker of few columns": lambda: Kronecker(
        normal(1, 1, 200, 31).mul(2).exp().float(),
        *(torch.linalg.qr(normal(1, 1, n, k, seed=2)).Q.float() for n, k in ((200, 200), (300, 30))),
    ),
    "scaled": lambda: Scaled(normal(1, SIZE).exp().float(), LARGE["diagonal"]()),
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE.keys())
def test_single_precision_keeps_a_log_density_to_a_hundredth_of_a_nat(make: Any):
    structure = make()
    draw = structure.sqrt_matvec(normal(1, structure.noise_size, seed=3).float())
    exact = doubled(structure)
    assert structure.logdet().dtype == structure.quadratic(draw).dtype == torch.float64
    assert_close(structure.logdet(), exact.logdet(), rtol=0, atol=5e-3)
    assert_close(structure.quadratic(draw), exact.quadratic(draw.double()), rtol=0, atol=1e-2)


@every
def test_tensors_rebuild_the_structure(structure: Structure):
    assert STRUCTURES[structure.kind] is type(structure)
    saved = {name: tensor.clone() for name, tensor in structure.tensors().items()}
    rebuilt = linalg.restore(structure.kind, dict(reversed(saved.items())))  # files keep no order
    assert type(rebuilt) is type(structure)
    assert torch.equal(rebuilt.dense(), structure.dense())
    assert rebuilt.tensors().keys() == saved.keys()


@every
def test_members_are_apart(structure: Structure):
    """A vector that is zero for all members but one gives zero for all but that one."""
    members, size = sizes(structure)
    vectors = torch.zeros(members, size, dtype=torch.float64)
    vectors[-1] = normal(size, seed=4)
    for actual in (structure.matvec(vectors), structure.solve(vectors)):
        assert not actual[:-1].any()
        assert actual[-1].any()


def test_more_than_ten_blocks_are_rebuilt_in_their_order():
    structure = Blocks(torch.arange(12), tuple(Diagonal(torch.full((1, 1), float(b))) for b in range(12)))
    assert torch.equal(linalg.restore("blocks", structure.tensors()).diagonal(), structure.diagonal())


@pytest.mark.parametrize("members", [1, 3])
def test_dense_covariance_of_a_precision(members: int):
    half = normal(members, D, D)
    precision = half @ half.mT + torch.eye(D, dtype=torch.float64)
    actual = Dense.of_precision(precision)
    assert_close(actual.dense(), torch.linalg.inv(precision))
    assert not actual.root_MDD.tril(-1).any()
    assert (actual.root_MDD.diagonal(dim1=1, dim2=2) > 0).all()


def test_dense_covariance_of_an_indefinite_precision_is_refused():
    precision = torch.stack([torch.eye(2), torch.tensor([[1.0, 3.0], [3.0, 1.0]])]).double()
    with pytest.raises(ValueError, match=r"not positive definite: its smallest eigenvalue is -2\b"):
        Dense.of_precision(precision)


def test_unknown_kinds_and_missing_tensors_are_refused():
    with pytest.raises(KeyError, match="nothing"):
        linalg.restore("nothing", {})
    with pytest.raises((KeyError, TypeError), match="variance_MD"):
        linalg.restore("diagonal", {})
    with pytest.raises(KeyError, match="order_D"):
        linalg.restore("blocks", {})


@pytest.mark.parametrize("size", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_gram_matrix_is_added_in_place(size: int, lead: tuple[int, ...]):
    rows, total = normal(*lead, 7, size), normal(*lead, size, size, seed=1)
    total += total.mT.clone()
    expected = total + rows.mT @ rows
    add_gram_(total, rows)
    assert_close(total, expected)
    assert_close(total, total.mT.clone())


@pytest.mark.parametrize("size", [1, 5, 255, 256, 600])
def test_inverse_of_triangular_matrices(size: int):
    matrix = 0.1 * normal(2, size, size).tril(-1) / size**0.5 + torch.diag_embed(normal(2, size, seed=1).exp())
    actual = matrix.clone()
    invert_lower_(actual)
    assert_close(actual @ matrix, torch.eye(size, dtype=torch.float64).expand(2, -1, -1), atol=1e-10)
    assert torch.equal(actual, actual.tril())

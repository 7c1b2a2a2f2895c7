"""H + Σ⁻¹ against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.oracles import assert_close, normal
from torchbayes.linalg import (
    BlockCurvature,
    Blocks,
    DenseCurvature,
    Diagonal,
    DiagonalCurvature,
    Kronecker,
    KroneckerCurvature,
    LowRankPlusDiagonal,
    Scaled,
)
from torchbayes.linalg.added import plus_precision

UNITS, INPUTS = 3, 4
SIZE = UNITS * INPUTS


def basis(size: int, seed: int) -> Tensor:
    return torch.linalg.qr(normal(1, 1, size, size, seed=seed)).Q


def curvature(rows: int = UNITS, seed: int = 0) -> KroneckerCurvature:
    return KroneckerCurvature(normal(1, 1, rows, INPUTS, seed=seed) ** 2, basis(rows, seed), basis(INPUTS, seed + 1))


def prior(rows: int = UNITS, seed: int = 5) -> Scaled:
    """As a Kronecker-factored Laplace posterior leaves it: in units of a prior that differs along the inputs."""
    inner = Kronecker(normal(1, 1, rows, INPUTS, seed=seed).exp(), basis(rows, seed), basis(INPUTS, seed + 1))
    return Scaled(normal(1, INPUTS, seed=9).exp().repeat(1, rows), inner)


def expected(left: KroneckerCurvature | DenseCurvature | DiagonalCurvature, right: Scaled | Diagonal) -> Tensor:
    return left.dense()[0] + torch.linalg.inv(right.dense()[0])


def test_dense_and_diagonal_are_exact() -> None:
    half = normal(1, SIZE, SIZE, seed=3)
    matrix = DenseCurvature(half @ half.mT)
    assert_close(plus_precision(matrix, prior()).dense()[0], expected(matrix, prior()), rtol=1e-8)
    own, other = DiagonalCurvature(normal(1, SIZE) ** 2), Diagonal(normal(1, SIZE, seed=2).exp())
    assert_close(plus_precision(own, other).dense()[0], expected(own, other))


def test_one_output_is_exact() -> None:
    left, right = curvature(rows=1), prior(rows=1)
    assert_close(plus_precision(left, right).dense()[0], expected(left, right), rtol=1e-8)


def test_a_common_basis_is_exact() -> None:
    left = curvature()
    right = Kronecker(normal(1, 1, UNITS, INPUTS, seed=5).exp(), left.rows_MGOO, left.columns_MGII)
    assert_close(plus_precision(left, right).dense()[0], left.dense()[0] + torch.linalg.inv(right.dense()[0]))


def test_other_sums_have_the_exact_diagonal_in_their_basis_and_the_exact_trace() -> None:
    actual, exact = plus_precision(curvature(), prior()), expected(curvature(), prior())
    assert isinstance(actual, KroneckerCurvature)
    assert actual.rows_MGOO is not None
    assert actual.columns_MGII is not None
    vectors = torch.kron(actual.rows_MGOO[0, 0], actual.columns_MGII[0, 0])
    assert_close(actual.eigenvalues_MGOI.flatten(), (vectors.T @ exact @ vectors).diagonal(), rtol=1e-9)
    assert_close(actual.trace()[0], exact.trace())
    # nearer than either basis alone would be
    for rows, columns in ((basis(UNITS, 0), basis(INPUTS, 1)), (basis(UNITS, 5), basis(INPUTS, 6))):
        own = torch.kron(rows[0, 0], columns[0, 0])
        alone = own @ (own.T @ exact @ own).diagonal().diag() @ own.T
        assert float((actual.dense()[0] - exact).norm()) < 1.5 * float((alone - exact).norm())


def test_the_basis_is_that_of_the_marginals_of_the_sum() -> None:
    left, right = curvature(), prior().structure
    exact = (left.dense()[0] + torch.linalg.inv(right.dense()[0])).view(UNITS, INPUTS, UNITS, INPUTS)
    actual = plus_precision(left, right)
    assert isinstance(actual, KroneckerCurvature)
    for vectors, indices in ((actual.rows_MGOO, "aibi->ab"), (actual.columns_MGII, "iaib->ab")):
        assert vectors is not None
        turned = vectors[0, 0].T @ torch.einsum(indices, exact) @ vectors[0, 0]
        assert_close(turned, turned.diagonal().diag(), atol=1e-10)


def test_blocks_go_one_by_one() -> None:
    order = normal(SIZE + 2, seed=8).argsort()
    diagonal, variance = DiagonalCurvature(normal(1, 2) ** 2), Diagonal(normal(1, 2, seed=4).exp())
    left = BlockCurvature(order, (curvature(), diagonal))
    right = Blocks(order, (prior().structure, variance))
    actual = plus_precision(left, right).dense()[0][order][:, order]
    assert_close(actual[-2:, -2:], expected(diagonal, variance))
    assert_close(actual[:SIZE, :SIZE], plus_precision(curvature(), prior().structure).dense()[0])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (DiagonalCurvature(normal(1, SIZE) ** 2), prior()),
        (curvature(), Diagonal(normal(1, SIZE).exp())),
        (curvature(), LowRankPlusDiagonal(normal(1, SIZE).exp(), normal(1, 2, SIZE))),
    ],
)
def test_what_does_not_add_up_is_said(left: DiagonalCurvature | KroneckerCurvature, right: Scaled) -> None:
    with pytest.raises(ValueError, match="do not add up to a structure"):
        plus_precision(left, right)

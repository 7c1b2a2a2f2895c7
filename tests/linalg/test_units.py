"""A curvature in other units, weights without curvature, and what a low rank leaves out of a log determinant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.linalg.test_curvature import CASES, is_factored, matrices
from tests.oracles import assert_close, normal
from torchbayes.linalg import BlockCurvature, DenseCurvature, DiagonalCurvature, KroneckerCurvature, LowRankCurvature
from torchbayes.linalg.dropped import dropped, evened

every = pytest.mark.parametrize("curvature", CASES.values(), ids=CASES.keys())
D = 12


@every
def test_units_multiply_both_sides(curvature: Any) -> None:
    size = curvature.size
    scale_D = torch.full((size,), 1.7, dtype=torch.float64) if is_factored(curvature) else normal(size).exp()
    actual = curvature.in_units(scale_D)
    assert type(actual) is type(curvature)
    assert_close(actual.dense(), torch.outer(scale_D, scale_D) * matrices(curvature), atol=1e-12)


def test_a_kronecker_product_has_one_unit() -> None:
    with pytest.raises(ValueError, match="one unit"):
        CASES["kronecker"].in_units(torch.arange(1.0, 7.0).double())


def without(matrix_DD: Tensor, lost_DN: Tensor) -> Tensor:
    """Return the matrix with some directions taken out of it."""
    basis = torch.linalg.qr(lost_DN).Q
    projector = torch.eye(len(matrix_DD), dtype=matrix_DD.dtype) - basis @ basis.mT
    return projector @ matrix_DD @ projector


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("units", [1.0, 1e4])
def test_directions_without_precision_are_found_in_dense_matrices(dtype: torch.dtype, units: float) -> None:
    half = normal(D, D + 3)
    lost = torch.zeros(D, 2, dtype=torch.float64)
    lost[3, 0], lost[5, 1], lost[7, 1] = 1.0, 0.6, -0.8  # one weight alone, and a combination of two
    scale_D = torch.logspace(0, 1, D, dtype=torch.float64) ** torch.tensor(units).log10()
    matrix = without(half @ half.mT, lost) * torch.outer(scale_D, scale_D)
    actual = DenseCurvature(matrix.to(dtype).unsqueeze(0)).undetermined(torch.zeros(D, dtype=dtype))[0]
    assert actual.nonzero()[:, 0].tolist() == [3, 5, 7]
    given = torch.zeros(D, dtype=dtype)
    given[[3, 5]] = float(scale_D[5]) ** 2  # a prior for one weight of each direction
    assert not DenseCurvature(matrix.to(dtype).unsqueeze(0)).undetermined(given).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_without_precision_are_found_in_factors_and_blocks(dtype: torch.dtype) -> None:
    values = torch.tensor([[[4.0, 1e-30], [9.0, -1e-30]]], dtype=dtype).unsqueeze(0)
    rows, columns = torch.linalg.qr(normal(1, 1, 2, 2)).Q.to(dtype), torch.eye(2, dtype=dtype).expand(1, 1, 2, 2)
    kron = KroneckerCurvature(values, rows, columns)
    assert kron.undetermined(torch.zeros(4, dtype=dtype)).tolist() == [[False, True, False, True]]
    assert not kron.undetermined(torch.ones(4, dtype=dtype)).any()
    diagonal = DiagonalCurvature(torch.tensor([[1e-20, 0.0, 3.0]], dtype=dtype))
    block = BlockCurvature(torch.tensor([6, 1, 0, 3, 2, 4, 5]), (kron, diagonal))
    actual = block.undetermined(torch.zeros(7, dtype=dtype))[0]
    assert actual.nonzero()[:, 0].tolist() == [1, 3, 4]  # the second and the last of four, the second of three


def truncated(rank: int, decay: float, members: int = 2) -> tuple[LowRankCurvature, Tensor]:
    """Return the top of a matrix with what is known of its rest, and the matrix itself."""
    basis = torch.linalg.qr(normal(members, 30, 30)).Q
    values = (-decay * torch.arange(30.0, dtype=torch.float64)).exp() * torch.tensor([50.0, 8.0]).double().unsqueeze(1)
    values[:, 20:] = 0
    factor = (basis[..., :rank] * values[:, :rank].sqrt().unsqueeze(-2)).mT
    rest = (basis[..., rank:].square() * values[:, rank:].unsqueeze(-2)).sum(-1)
    squares, room = values[:, rank:].square().sum(-1), torch.full((members,), 20.0, dtype=torch.float64)
    return LowRankCurvature(factor, rest, squares, room), basis * values.unsqueeze(-2) @ basis.mT


@pytest.mark.parametrize("rank", [1, 5, 15, 20, 25])
@pytest.mark.parametrize("decay", [0.0, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("level", [0.1, 1.0, 30.0])
def test_the_left_out_log_determinant_is_within_its_bounds(rank: int, decay: float, level: float) -> None:
    curvature, exact = truncated(rank, decay)
    precision_D, identity = torch.full((30,), level, dtype=torch.float64), torch.eye(30, dtype=torch.float64)
    actual = dropped(curvature, precision_D)
    truth = torch.logdet(exact + level * identity) - torch.logdet(curvature.dense() + level * identity)
    assert ((actual.logdet_M - truth).abs() <= actual.doubt_M + 1e-9).all()
    assert (actual.doubt_M <= actual.logdet_M + 1e-12).all()  # nothing that is left out lowers a determinant
    if rank >= 20:
        assert float(actual.logdet_M.abs().max()) < 1e-12
    if decay == 0.0:  # equal ones are known exactly
        assert_close(actual.logdet_M, truth, rtol=1e-9, atol=1e-12)


def test_shares_are_the_derivative() -> None:
    curvature, _ = truncated(4, 0.2)
    precision_D = normal(30, seed=9).exp().requires_grad_()
    actual = dropped(curvature, precision_D)
    (gradient,) = torch.autograd.grad(actual.logdet_M.sum(), precision_D)
    assert_close(actual.shares_MD.sum(0), -gradient * precision_D, rtol=1e-9)


def test_others_leave_nothing_out_and_blocks_add_up() -> None:
    curvature, _ = truncated(4, 0.2)
    noise = DiagonalCurvature(normal(2, 3).square())
    order = torch.randperm(33, generator=torch.Generator().manual_seed(0))
    both, precision_D = dropped(BlockCurvature(order, (noise, curvature)), torch.ones(33).double()), torch.ones(30)
    alone = dropped(curvature, precision_D.double())
    assert_close(both.logdet_M, alone.logdet_M)
    assert_close(both.doubt_M, alone.doubt_M)
    assert_close(both.shares_MD[:, order[3:]], alone.shares_MD)
    assert not both.shares_MD[:, order[:3]].any()
    assert not any(t.any() for t in dropped(CASES["dense"], torch.ones(CASES["dense"].size)))


def test_units_take_what_is_left_out_along() -> None:
    curvature, _ = truncated(4, 0.2)
    moved = curvature.in_units(torch.full((30,), 3.0).double())
    actual, expected = dropped(moved, torch.full((30,), 9.0).double()), dropped(curvature, torch.ones(30).double())
    for own, other in zip(actual, expected, strict=True):
        assert_close(own, other, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_of_small_eigenvalues_is_judged_by_its_factors(dtype: torch.dtype) -> None:
    """Each is known to ε of the largest of its own, so that products far below ε are known too."""
    small = 100 * torch.finfo(dtype).eps
    rows, columns = (torch.tensor([1.0, small], dtype=dtype) for _ in range(2))
    nothing = torch.zeros(4, dtype=dtype)
    grid = (rows.unsqueeze(-1) * columns).view(1, 1, 2, 2)
    assert not KroneckerCurvature(grid).undetermined(nothing).any()
    rows[1] = torch.finfo(dtype).eps
    grid = (rows.unsqueeze(-1) * columns).view(1, 1, 2, 2)
    assert KroneckerCurvature(grid).undetermined(nothing).tolist() == [[False, False, True, True]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eigenvalues_that_are_no_products_are_squares(dtype: torch.dtype) -> None:
    """EKFAC measures each by itself: one may be 0 in a row and a column that are not."""
    eps, nothing = torch.finfo(dtype).eps, torch.zeros(4, dtype=dtype)
    for value, lost in ((0.0, True), (eps**2, True), (eps**1.5, False), (0.1, False)):
        grid = torch.tensor([[1.0, 0.5], [0.7, value]], dtype=dtype).view(1, 1, 2, 2)
        assert KroneckerCurvature(grid).undetermined(nothing).tolist() == [[False, False, False, lost]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rest", [0.0, 1.0])
def test_directions_that_no_basis_holds_have_the_precision_of_their_value(dtype: torch.dtype, rest: float) -> None:
    rows, columns = torch.ones(1, 1, 1, 1, dtype=dtype), torch.eye(5, dtype=dtype)[None, None, :, :2]
    grid = torch.tensor([[3.0, 2.0, rest]], dtype=dtype)[None, None]
    actual = KroneckerCurvature(grid, rows, columns).undetermined(torch.zeros(5, dtype=dtype))
    assert actual.tolist() == [[False, False, *(3 * [rest == 0])]]


def test_the_part_of_a_trace_that_is_spread_evenly() -> None:
    incomplete, whole = CASES["kronecker, 1 of 3 columns"], CASES["kronecker"]
    expected = 2 * incomplete.eigenvalues_MGOI[..., -1].sum((1, 2))
    assert_close(evened(incomplete), expected)
    assert not evened(whole).any()
    assert not evened(CASES["dense"]).any()
    both = BlockCurvature(torch.arange(12), (whole, incomplete))
    assert_close(evened(both), expected)

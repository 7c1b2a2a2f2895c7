"""The largest eigenvalues of a matrix that is only seen through products: exact where its rank allows, bounded else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.oracles import assert_close, normal
from torchbayes.linalg.sketch import Top, directions, sketch, top

SIZE = 60


def of(rows: Tensor, rank: int, seed: int = 0) -> Top:
    """What is found of the second moment of rows (..., B, n), in two halves."""
    omega = directions(rows.shape[-1], rank, generator=torch.Generator().manual_seed(seed), like=rows)
    half = rows.shape[-2] // 2
    return top(sketch(rows[..., :half, :], omega) + sketch(rows[..., half:, :], omega), omega, rank)


def held(actual: Top) -> Tensor:
    return (actual.vectors * actual.values.unsqueeze(-2)) @ actual.vectors.mT


def decaying(count: int, decay: float, seed: int = 0) -> Tensor:
    return normal(count, SIZE, seed=seed) * (-decay * torch.arange(count, dtype=torch.float64)).exp().unsqueeze(-1)


@pytest.mark.parametrize("count", [1, 2, 7, 12])
@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_a_matrix_of_low_rank_is_found(count: int, decay: float):
    rows = decaying(count, decay)
    actual, exact = of(rows, 12), rows.T @ rows
    assert_close(held(actual), exact, rtol=0, atol=1e-12 * float(exact.abs().max()))
    assert not actual.rest.any()
    assert_close(actual.vectors.T @ actual.vectors, torch.eye(12, dtype=torch.float64), atol=1e-12)
    assert_close(actual.values[:count], torch.linalg.eigvalsh(exact).flip(0)[:count], atol=1e-12 * float(exact.max()))


@pytest.mark.parametrize("rank", [1, 4, 10])
@pytest.mark.parametrize("decay", [0.05, 0.5])
def test_what_is_held_is_never_more_than_the_matrix_and_its_trace_is_known(rank: int, decay: float):
    rows = decaying(50, decay)
    actual, exact = of(rows, rank), rows.T @ rows
    assert float(torch.linalg.eigvalsh(exact - held(actual)).min()) > -1e-10
    assert_close(held(actual).diagonal() + actual.rest, exact.diagonal(), rtol=1e-9)
    best = torch.linalg.eigvalsh(exact)[:-rank].sum()
    assert float(best) * (1 - 1e-9) <= float(actual.rest.sum()) <= 2 * float(best)


def test_the_expected_error_is_at_most_twice_the_smallest():
    """Tropp et al. (2017), for 2 k + 1 directions; these are more."""
    rows = decaying(50, 0.05)
    errors = [float(of(rows, 3, seed).rest.sum()) for seed in range(40)]
    assert sum(errors) / 40 <= 2 * float(torch.linalg.eigvalsh(rows.T @ rows)[:-3].sum())


def test_many_directions_are_all_of_them():
    rows = decaying(80, 0.0)
    assert_close(held(of(rows, SIZE)), rows.T @ rows, rtol=1e-9, atol=1e-9)


def test_matrices_have_leading_axes_and_nothing_seen_is_nothing():
    rows = torch.stack([decaying(6, 0.3), torch.zeros(6, SIZE, dtype=torch.float64)])
    actual = of(rows, 8)
    assert_close(held(actual), rows.mT @ rows, atol=1e-12)
    assert not actual.values[1].any()
    assert actual.vectors.isfinite().all()


def test_single_precision_is_exact_to_its_rounding():
    rows = decaying(10, 0.5).float()
    exact = rows.double().T @ rows.double()
    actual = of(rows, 12)
    assert actual.values.dtype == actual.vectors.dtype == actual.rest.dtype == torch.float32
    assert_close(held(actual).double(), exact, rtol=0, atol=1e-4 * float(exact.abs().max()))
    assert float(actual.rest.sum()) < 1e-5 * float(exact.trace())

"""Quadratic forms of all pairs of blocks, against the dense matrix."""

import pytest
import torch

from tests.oracles import normal
from torchbayes.linalg.strips import of_strips, strips


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize(("outputs", "size"), [(1, 1), (1, 9), (3, 8), (4, 17), (30, 6)])
def test_they_are_those_of_the_matrix(members: int, outputs: int, size: int) -> None:
    root_MKIZ, rows_PI = normal(members, outputs, size, outputs * size, seed=1), normal(5, size, seed=2)
    actual = of_strips(rows_PI, **strips(root_MKIZ))
    seen_MPKZ = torch.einsum("pi,mkiz->mpkz", rows_PI, root_MKIZ)
    torch.testing.assert_close(actual, seen_MPKZ @ seen_MPKZ.mT, rtol=1e-10, atol=1e-10)


def test_there_are_hardly_more_numbers_than_pairs() -> None:
    outputs, size = 10, 129
    held = strips(torch.ones(1, outputs, size, 1))["strips_MJWQ"].numel()
    pairs = outputs * (outputs + 1) // 2 * size * (size + 1) // 2
    assert pairs <= held <= 1.1 * pairs

"""Rows as a kernel takes them: how many go through a network at once, whoever they belong to."""

import pytest
import torch

import torchbayes as tb
from torchbayes.density.kernels import dense_model


@pytest.mark.parametrize(("members", "shape"), [(1, (1, 50, 3)), (4, (4, 50, 3)), (1, (50, 3))])
@pytest.mark.parametrize(("chunk_size", "at_once"), [(7, 7), (10**18, 50)])
def test_a_chunk_is_of_rows_never_of_members(members: int, shape: tuple[int, ...], chunk_size: int, at_once: int):
    kernel = dense_model(tb.Model(torch.nn.Linear(3, 1), tb.likelihoods.Gaussian(1.0), tb.priors.Normal())).kernel
    rows = kernel._rows(torch.zeros(shape), torch.zeros(*shape[:-1], 1), members, chunk_size)
    assert (rows.count, rows.chunk) == (50, at_once)

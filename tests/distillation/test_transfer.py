"""Inputs at which a teacher is asked."""

from __future__ import annotations

import torch

from tests.oracles import assert_close, normal
from torchbayes.distillation.transfer import with_mixtures


def test_mixtures_take_each_number_from_a_row_and_half_get_noise() -> None:
    inputs = normal(40, 3)
    rows = with_mixtures(inputs, 2, seed=0)
    given, mixed, noisy = rows.split(40)
    assert torch.equal(given, inputs)
    assert all(set(column.tolist()) <= set(own.tolist()) for column, own in zip(mixed.T, inputs.T, strict=True))
    assert 0.2 < float((mixed == inputs).double().mean()) < 0.8
    assert not set(noisy.flatten().tolist()) & set(inputs.flatten().tolist())
    # mixtures keep the variance v, and the noise adds E (2u)² v = 4/3 v
    many = with_mixtures(normal(4000, 2), 2, seed=1).split(4000)[2]
    assert_close(many.var(0), torch.full((2,), 1 + 4 / 3), rtol=0.1)


def test_mixtures_follow_the_seed() -> None:
    inputs = normal(10, 2)
    assert torch.equal(with_mixtures(inputs, 1, seed=3), with_mixtures(inputs, 1, seed=3))
    assert not torch.equal(with_mixtures(inputs, 1, seed=3), with_mixtures(inputs, 1, seed=4))

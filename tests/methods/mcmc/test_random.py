"""Uniform numbers of samplers: functions of (purpose, seed, step), each independent of the others."""

from __future__ import annotations

import scipy.stats
import torch

from torchbayes.methods.noise import uniforms
from torchbayes.randomness.seeds import Purpose, member_seeds, mix

STEPS = 6000


def table(purpose: Purpose = Purpose.ACCEPT, seed: int = 0) -> torch.Tensor:
    """Numbers of three chains, (3, STEPS)."""
    seeds = member_seeds(seed, 3)
    return torch.stack([uniforms(seeds, purpose, step) for step in range(STEPS)], dim=1)


def test_uniforms_are_uniform_and_independent():
    """Of chains, purposes and seeds that are neighbours, and from one step to the next: 13 tests, alpha 1e-4 each."""
    numbers, other = table(), torch.cat([table(Purpose.JITTER), table(seed=1)])
    assert numbers.dtype == torch.float64
    assert 0 <= numbers.min() < 1e-3 < 1 - 1e-3 < numbers.max() < 1
    assert all(scipy.stats.kstest(row, "uniform").pvalue > 1e-4 for row in numbers)
    everything = torch.cat([numbers[:, :-1], numbers[:, 1:], other[:, :-1]])
    correlations = torch.corrcoef(everything).triu(1)
    assert correlations.abs().max() < 5 / STEPS**0.5  # 66 pairs, each beyond this once in two million
    # in two dimensions, where lattices would show
    cells = (numbers[:, :-1] * 16).long() * 16 + (numbers[:, 1:] * 16).long()
    counts = torch.stack([row.bincount(minlength=256) for row in cells])
    assert all(scipy.stats.chisquare(row).pvalue > 1e-4 for row in counts)


def test_a_chain_has_the_same_numbers_alone():
    seeds = member_seeds(5, 4)
    together = uniforms(seeds, Purpose.JITTER, 7)
    assert together.tolist() == [float(uniforms([seed], Purpose.JITTER, 7)) for seed in seeds]
    assert len(set(together.tolist())) == 4


def test_they_are_the_hash_of_their_integers():
    seeds = [0, 7, 2**63 - 1]
    expected = [[(mix(Purpose.TREE, seed, 3, 2, n) >> 10) * 2.0**-53 for n in range(5)] for seed in seeds]
    assert uniforms(seeds, Purpose.TREE, 3, 2, count=5).tolist() == expected
    assert uniforms(seeds, Purpose.TREE, 3, 2, 4).tolist() == [row[4] for row in expected]

import pytest
import torch
from torch import nn

from torchbayes.model.seeds import generator, member_seeds, mix, seeded


def test_mixed_seeds_are_63_bit_and_do_not_collide_on_a_grid():
    seeds = [mix(a, b) for a in range(100) for b in range(100)]
    assert len(set(seeds)) == 10_000
    assert min(seeds) >= 0
    assert max(seeds) < 2**63


def test_mix_depends_on_order_and_on_trailing_zeros_and_takes_negative_integers():
    assert len({mix(1, 2), mix(2, 1), mix(1), mix(1, 0), mix(1, 0, 0), mix(-1), mix(-1, 2)}) == 7


def test_every_bit_of_the_seed_is_a_fair_coin():
    bits = torch.tensor([[mix(seed) >> shift & 1 for shift in range(63)] for seed in range(4000)], dtype=torch.float64)
    assert (bits.mean(0) - 0.5).abs().max() < 4.5 * 0.5 / 4000**0.5  # 63 coins: beyond 4.5 sigma once in 2,000


def test_member_seeds_start_with_the_seed_and_do_not_depend_on_how_many_there_are():
    assert member_seeds(7, 1) == [7]
    assert member_seeds(7, 8)[:3] == member_seeds(7, 3)
    assert len({s for seed in range(50) for s in member_seeds(seed, 50)}) == 2500


def test_generator_is_a_function_of_its_integers(untouched_rng: None):
    first, again, other = (torch.rand(5, generator=generator(*n)) for n in ((1, 2), (1, 2), (1, 3)))
    assert torch.equal(first, again)
    assert (first != other).all()


def test_seeded_draws_what_a_global_seed_would_and_restores_the_generator():
    with seeded(11):
        drawn = nn.Linear(3, 2).weight
    after = torch.rand(3)
    torch.manual_seed(0)  # what the fixture did
    assert torch.equal(after, torch.rand(3))
    torch.manual_seed(11)
    assert torch.equal(drawn, nn.Linear(3, 2).weight)


def test_seeded_restores_the_generator_after_an_error(untouched_rng: None):
    with pytest.raises(RuntimeError), seeded(3):
        torch.rand(2).add_(torch.rand(3))

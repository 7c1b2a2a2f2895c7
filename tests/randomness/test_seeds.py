import pytest
import torch
from torch import nn

from torchbayes.randomness.seeds import Purpose, generator, member_seeds, mix, numbered, seeded

ONE, TWO = Purpose.ORDER, Purpose.DROPOUT


def test_mixed_seeds_are_63_bit_and_do_not_collide_on_a_grid():
    seeds = [mix(purpose, a, b) for purpose in (ONE, TWO) for a in range(100) for b in range(100)]
    assert len(set(seeds)) == 20_000
    assert min(seeds) >= 0
    assert max(seeds) < 2**63


def test_mix_depends_on_order_and_on_trailing_zeros_and_takes_negative_integers():
    tuples = [(1, 2), (2, 1), (1,), (1, 0), (1, 0, 0), (-1,), (-1, 2), ()]
    assert len({mix(purpose, *integers) for purpose in (ONE, TWO) for integers in tuples}) == 2 * len(tuples)


def test_every_bit_of_the_seed_is_a_fair_coin():
    bits = torch.tensor([[mix(ONE, seed) >> at & 1 for at in range(63)] for seed in range(2000)], dtype=torch.float64)
    assert (bits.mean(0) - 0.5).abs().max() < 4.5 * 0.5 / 2000**0.5  # 63 coins: beyond 4.5 sigma once in 2,000


def test_member_seeds_start_with_the_seed_and_do_not_depend_on_how_many_there_are():
    assert member_seeds(7, 1) == [7]
    assert member_seeds(7, 8)[:3] == member_seeds(7, 3)
    assert len({s for seed in range(50) for s in member_seeds(seed, 50)}) == 2500


def test_generator_is_a_function_of_purpose_and_integers(untouched_rng: None):
    given = ((ONE, 1, 2), (ONE, 1, 2), (ONE, 1, 3), (TWO, 1, 2))
    first, again, other, elsewhere = (torch.rand(5, generator=generator(*n)) for n in given)
    assert torch.equal(first, again)
    assert (first != other).all()
    assert (first != elsewhere).all()


def test_seeded_draws_what_the_mixed_seed_would_and_restores_the_generator():
    with seeded(ONE, 11):
        drawn = nn.Linear(3, 2).weight
    after = torch.rand(3)
    torch.manual_seed(0)  # what the fixture did
    assert torch.equal(after, torch.rand(3))
    torch.manual_seed(mix(ONE, 11))
    assert torch.equal(drawn, nn.Linear(3, 2).weight)


def test_seeded_restores_the_generator_after_an_error(untouched_rng: None):
    with pytest.raises(RuntimeError), seeded(ONE, 3):
        torch.rand(2).add_(torch.rand(3))


@pytest.mark.parametrize("count", [0, 3, 40])
def test_numbered_seeds_are_mixed_ones(count: int):
    for integers in ((), (7,), (-3, 2**70)):
        expected = [mix(Purpose.STEP, *integers, number) for number in range(count)]
        assert numbered(Purpose.STEP, *integers, count=count) == expected

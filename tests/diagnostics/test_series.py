import numpy as np
import pytest
import torch
from scipy import fft, stats

from torchbayes.diagnostics import _blocks
from torchbayes.diagnostics._series import autocovariance, centre, fast_length, fold, rank_scores, sort


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [1, 2, 5, 50, 10**6])
def test_rank_scores_share_ranks_of_ties_as_scipy_does(levels, dtype):
    source = torch.Generator().manual_seed(levels)
    values = (torch.randint(levels, (30, 64), generator=source) - levels // 2).to(dtype) / 8
    ranks = stats.rankdata(values.double().numpy(), axis=-1)
    scores = rank_scores(*sort(values)).numpy()
    np.testing.assert_allclose(scores, stats.norm.ppf((ranks - 3 / 8) / (64 + 1 / 4)), rtol=1e-12, atol=1e-15)


def test_ties_do_not_run_over_the_ends_of_rows():
    values = torch.tensor([[0.0, 1.0, 2.0, 2.0], [2.0, 2.0, 3.0, 4.0], [4.0, 4.0, 4.0, 4.0], [4.0, 5.0, 6.0, 7.0]])
    expected = stats.norm.ppf((stats.rankdata(values.double().numpy(), axis=-1) - 3 / 8) / 4.25)
    np.testing.assert_allclose(rank_scores(*sort(values)).numpy(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sort_orders_like_torch(dtype):
    source = torch.Generator().manual_seed(0)
    values = torch.randn(20, 33, generator=source, dtype=dtype) ** 9
    before = values.clone()
    keys, order = sort(values)
    assert torch.equal(values.gather(-1, order), values.sort(-1).values)
    assert (keys.diff(dim=-1) > 0).all()
    assert torch.equal(values, before)


def test_fold_is_the_distance_from_the_median_even_near_overflow():
    values = torch.tensor([[1.0, 4.0, 2.0, 9.0], [3.3e38, 3.1e38, 3e38, 3.4e38]])
    expected = np.abs(values.double().numpy() - np.median(values.double().numpy(), axis=-1, keepdims=True))
    np.testing.assert_allclose(fold(values, sort(values)[1]).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("num_draws", [2, 3, 10, 37])
def test_autocovariance_is_the_sum_of_products(num_draws):
    source = torch.Generator().manual_seed(1)
    deviations = centre(torch.randn(5, 3, num_draws, generator=source) + 7)[1]
    expected = torch.stack(
        [(deviations[..., : num_draws - t] * deviations[..., t:]).sum(-1).mean(-1) for t in range(num_draws)], -1
    )
    torch.testing.assert_close(autocovariance(deviations), expected / num_draws, rtol=1e-10, atol=1e-13)


def test_a_chain_without_movement_has_no_deviation_at_all():
    mean, deviations = centre(torch.full((1, 2, 49), 0.1, dtype=torch.float64))
    assert (mean == 0.1).all()
    assert not deviations.any()


def test_fast_length_is_even_and_never_longer_than_needed():
    for least in range(2, 400):
        length = fast_length(least)
        assert least <= length
        assert length == 2 * (fft.next_fast_len(-(-least // 2), real=True) or 0)


def test_blocks_hold_what_they_may(monkeypatch):
    monkeypatch.setattr(_blocks, "BLOCK_CPU", 100)
    draws = torch.arange(2 * 10 * 23.0).view(2, 10, 23)
    seen = []

    def mean(block):
        seen.append(tuple(block.shape))
        return block.mean((1, 2))

    torch.testing.assert_close(_blocks.per_quantity(draws, mean, chunk_size=None), draws.mean((0, 1)))
    assert seen == [(5, 2, 10)] * 4 + [(3, 2, 10)]
    seen.clear()
    _blocks.per_quantity(draws, mean, chunk_size=20)
    assert seen == [(20, 2, 10), (3, 2, 10)]

import logging
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from tests.diagnostics.helpers import ar1, arviz, chains
from torchbayes.diagnostics import autocorrelation, ess, ess_bulk, ess_tail, mcse_mean, rhat, summary

STATISTICS = {
    "ess_bulk": (ess_bulk, lambda x: arviz.ess(x, method="bulk")),
    "ess_tail": (ess_tail, lambda x: arviz.ess(x, method="tail")),
    "ess": (ess, lambda x: arviz.ess(x, method="mean")),
    "mcse_mean": (mcse_mean, lambda x: arviz.mcse(x, method="mean")),
    "rhat_rank": (rhat, lambda x: arviz.rhat(x, method="rank")),
    "rhat_split": (lambda x: rhat(x, method="split"), lambda x: arviz.rhat(x, method="split")),
    "rhat_classic": (lambda x: rhat(x, method="classic"), lambda x: arviz.rhat(x, method="identity")),
}


def by_arviz(name, draws):
    """Apply arviz to each quantity on its own."""
    return np.array([STATISTICS[name][1](draws[..., d].numpy()) for d in range(draws.shape[-1])])


@pytest.mark.parametrize("rho", [-0.7, 0.0, 0.6, 0.99])
@pytest.mark.parametrize("num_draws", [12, 25, 100, 257])
@pytest.mark.parametrize("name", STATISTICS)
def test_four_chains_of_every_kind_match_arviz(name, num_draws, rho):
    draws = chains(4, num_draws, rho)
    np.testing.assert_allclose(STATISTICS[name][0](draws).numpy(), by_arviz(name, draws), rtol=1e-8)


@pytest.mark.parametrize("num_draws", [12, 25, 100, 257])
@pytest.mark.parametrize("name", ["ess_bulk", "ess_tail", "ess", "mcse_mean"])
def test_a_single_chain_matches_arviz(name, num_draws):
    draws = chains(1, num_draws, 0.6, seed=1)
    np.testing.assert_allclose(STATISTICS[name][0](draws).numpy(), by_arviz(name, draws), rtol=1e-8)


@pytest.mark.parametrize("num_draws", range(4, 12))
@pytest.mark.parametrize("name", STATISTICS)
def test_the_fewest_draws_match_arviz(name, num_draws):
    draws = ar1(3, num_draws, 12, 0.2, seed=2)
    np.testing.assert_allclose(STATISTICS[name][0](draws).numpy(), by_arviz(name, draws), rtol=1e-8)


def test_float32_ranks_match_arviz_on_the_same_numbers():
    draws = chains(4, 100, 0.5, seed=3).float()
    for name in ("ess_bulk", "ess_tail", "rhat_rank"):
        np.testing.assert_allclose(STATISTICS[name][0](draws).numpy(), by_arviz(name, draws.double()), rtol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_is_the_statistic_of_the_rounded_draws(dtype):
    draws = chains(4, 60, 0.5, seed=4)[..., [0, 1, 3, 4, 5, 6]].to(dtype)
    for statistic, _ in STATISTICS.values():
        result = statistic(draws)
        assert result.dtype == torch.float64
        torch.testing.assert_close(result, statistic(draws.double()), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("level", "spread"), [(0.999, 1e-5), (1.0, 1e-6), (5.0, 1e-3)])
def test_a_small_spread_at_a_high_level_is_no_trouble_in_float32(level, spread):
    draws = (level + spread * ar1(4, 9, 50, 0.2, seed=6)).float()
    torch.testing.assert_close(rhat(draws), rhat(draws.double()), rtol=1e-12, atol=0)


def test_signs_and_zeros_order_as_numbers_in_float32():
    values = torch.tensor([[-1e-30, 0.0, -0.0, 3e38, -3e38, 1e-45, -2.0, 0.0]])
    draws = torch.cat([values, values.flip(-1)])
    scores = stats.norm.ppf((stats.rankdata(draws.double().numpy().ravel()) - 3 / 8) / (16 + 1 / 4)).reshape(4, 4)
    expected = math.sqrt(3 / 4 + scores.mean(1).var(ddof=1) / scores.var(1, ddof=1).mean())
    folded = stats.rankdata(draws.double().abs().numpy().ravel())  # the median is zero
    scores = stats.norm.ppf((folded - 3 / 8) / (16 + 1 / 4)).reshape(4, 4)
    expected = max(expected, math.sqrt(3 / 4 + scores.mean(1).var(ddof=1) / scores.var(1, ddof=1).mean()))
    assert rhat(draws).item() == pytest.approx(expected, rel=1e-12)


def test_rhat_by_hand():
    draws = torch.tensor([[1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]])
    # W = 5/3, B = 4 · 2: sqrt((3/4 · 5/3 + 2) / (5/3)).
    assert rhat(draws, method="classic").item() == pytest.approx(math.sqrt(1.95), rel=1e-14)
    # Halves: means 1.5, 3.5, 3.5, 5.5 of variance 8/3; W = 1/2: sqrt((1/2 · 1/2 + 8/3) / (1/2)).
    assert rhat(draws, method="split").item() == pytest.approx(math.sqrt(35 / 6), rel=1e-14)


def test_one_chain_is_judged_by_its_halves():
    draws = ar1(1, 41, 1, 0.5)
    halves = torch.cat([draws[:, :20], draws[:, -20:]])
    assert rhat(draws, method="split").item() == pytest.approx(rhat(halves, method="classic").item(), rel=1e-14)
    assert rhat(draws + torch.arange(41.0).view(1, 41, 1)).item() > 1.5


@pytest.mark.parametrize("rho", [-0.5, 0.9, *(pytest.param(rho, marks=pytest.mark.study) for rho in (0.0, 0.5))])
def test_ess_of_ar1_is_the_closed_form(rho):
    draws = ar1(4, 10_000, 24, rho, seed=5)
    expected = 40_000 * (1 - rho) / (1 + rho)
    # The standard error of a mean over 24 quantities; single estimates scatter by up to a tenth.
    for size in (ess(draws), ess_bulk(draws)):
        assert abs(size.mean().item() - expected) < 4 * size.std().item() / 24**0.5 + 0.01 * expected
        assert size.std().item() < 0.15 * expected


def test_mcse_is_the_spread_of_means_over_repeated_runs():
    draws = ar1(2, 2_000, 400, 0.8, seed=6)
    observed = draws.mean((0, 1)).std().item()
    assert mcse_mean(draws).square().mean().sqrt().item() == pytest.approx(observed, rel=4 / 800**0.5)


def test_rhat_of_agreeing_and_disagreeing_chains():
    draws = ar1(4, 1_000, 3, 0.3, seed=7)
    draws[0, :, 1] += 1.0
    draws[0, :, 2] *= 4.0
    ranked, split = rhat(draws), rhat(draws, method="split")
    assert ranked[0] < 1.01
    assert (ranked[1:] > 1.05).all()
    assert split[2] < 1.02, "means agree: the spread shows in the folded ranks alone"


@pytest.mark.parametrize("chunk_size", [1, 7, 64, 1000])
def test_blocks_change_nothing(chunk_size):
    draws = chains(3, 51, 0.7, seed=8).repeat(1, 1, 9).float()
    for statistic in (rhat, partial(rhat, method="split"), ess, ess_bulk, ess_tail, mcse_mean):
        torch.testing.assert_close(statistic(draws, chunk_size=chunk_size), statistic(draws), rtol=1e-12, atol=0)
    blocks = autocorrelation(draws, 9, chunk_size=chunk_size)
    torch.testing.assert_close(blocks, autocorrelation(draws, 9), rtol=1e-12, atol=1e-14)


def test_function_space_keeps_the_trailing_shape():
    draws = ar1(3, 30, 20, 0.4, seed=9)
    outputs = draws.view(3, 30, 5, 4)
    for statistic, _ in STATISTICS.values():
        assert torch.equal(statistic(outputs), statistic(draws).view(5, 4))
        assert torch.equal(statistic(draws[..., 0].clone()), statistic(draws[..., :1])[0])
    assert torch.equal(autocorrelation(outputs, 6), autocorrelation(draws, 6).view(7, 5, 4))
    assert autocorrelation(draws[..., 0].clone(), 6).shape == (7,)
    assert all(part.shape == (5, 4) for part in summary(outputs))


def test_memory_mapped_and_strided_draws_are_read_as_they_are(tmp_path):
    draws = ar1(4, 20, 500, 0.4, seed=10).float()
    path = tmp_path / "draws.bin"
    draws.numpy().tofile(path)
    mapped = torch.from_file(str(path), shared=False, size=draws.numel()).view(draws.shape)
    assert torch.equal(rhat(mapped, chunk_size=64), rhat(draws, chunk_size=64))
    strided = draws.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert torch.equal(ess_tail(strided), ess_tail(draws))
    assert torch.equal(draws, mapped), "draws were written to"


def test_many_quantities_in_little_memory():
    draws = ar1(4, 100, 1, 0.4, seed=11).expand(4, 100, 5000)
    sizes = ess_bulk(draws, chunk_size=500)
    torch.testing.assert_close(sizes, ess_bulk(draws[..., :1]).expand(5000), rtol=1e-12, atol=0)


def test_draws_that_need_a_gradient_are_left_alone():
    draws = ar1(2, 20, 1, 0.4).squeeze(-1).requires_grad_()
    before = draws.detach().clone()
    for statistic, _ in STATISTICS.values():
        assert not statistic(draws).requires_grad
    assert torch.equal(draws.detach(), before)


def test_summary_is_each_statistic_on_its_own():
    draws = chains(4, 51, 0.6, seed=12)
    seen = summary(draws)
    flat = draws.flatten(0, 1)
    torch.testing.assert_close(seen.mean, flat.mean(0), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(seen.sd, flat.std(0), rtol=1e-12, atol=0)
    singles = [mcse_mean(draws), ess_bulk(draws), ess_tail(draws), rhat(draws)]
    assert all(torch.equal(a, b) for a, b in zip(seen[2:], singles, strict=True))


# What is not defined.


def test_a_quantity_that_never_moves_has_no_diagnostics():
    draws = torch.full((4, 50, 2), 0.1, dtype=torch.float64)
    draws[..., 1] = ar1(4, 50, 1, 0.3)[..., 0]
    for statistic, _ in STATISTICS.values():
        result = statistic(draws)
        assert result[0].isnan()
        assert result[1].isfinite()
    with np.errstate(invalid="ignore"):
        assert np.isnan(arviz.rhat(draws[..., 0].numpy()))


def test_chains_stuck_at_different_places_have_infinite_rhat():
    draws = torch.tensor([0.1, 0.7, 1.3]).view(3, 1).repeat(1, 30).double()
    assert [rhat(draws, method=m).item() for m in ("rank", "split", "classic")] == [math.inf] * 3  # pyright: ignore
    assert ess(draws).item() < 6


def test_a_tail_that_never_changes_does_not_hide_the_other():
    draws = ar1(4, 200, 1, 0.5, seed=13).squeeze(-1)
    saturated = draws.clamp_max(draws.quantile(0.9).item())
    assert ess_tail(saturated).item() == pytest.approx(float(arviz.ess(saturated.numpy(), method="tail")), rel=1e-10)
    rare = torch.zeros(4, 200)
    rare[0, 100] = -1.0
    assert ess_tail(rare).isnan()
    assert ess_bulk(rare).isfinite()


def test_quantiles_at_a_draw_are_exactly_that_draw():
    # 101 draws put both quantiles on order statistics, where a weighted sum of neighbours may round to below.
    draws = ar1(1, 101, 40, 0.0, seed=14)
    low, high = np.quantile(draws[0].numpy(), [0.05, 0.95], axis=0)
    below = torch.stack([draws <= torch.from_numpy(bound) for bound in (low, high)]).double()
    assert torch.equal(below[:, 0].sum(1), torch.tensor([[6.0], [96.0]]).double().expand(2, 40))
    expected = torch.minimum(ess(below[0]).nan_to_num(100), ess(below[1]).nan_to_num(100))
    torch.testing.assert_close(ess_tail(draws), expected, rtol=1e-12, atol=0)


def test_squares_that_overflow_are_not_taken_for_independence():
    draws = ar1(2, 50, 1, 0.9) * 1e200
    assert ess(draws).isnan().all()
    assert ess_bulk(draws).item() == pytest.approx(ess_bulk(draws * 1e-200).item(), rel=1e-12)


# Autocorrelation.


def test_autocorrelation_matches_arviz():
    draws = chains(3, 40, 0.6, seed=15)
    expected = np.stack([arviz.autocorr(draws[m].T.numpy(), axis=-1).T for m in range(3)])[:, :31]
    per_chain = autocorrelation(draws, 30, per_chain=True)
    np.testing.assert_allclose(per_chain.numpy(), expected, rtol=1e-8, atol=1e-12)
    covariance = np.stack([arviz.autocov(draws[m].T.numpy(), axis=-1).T for m in range(3)]).sum(0)
    together = autocorrelation(draws, 30)
    assert together.shape == (31, 8)
    np.testing.assert_allclose(together.numpy(), (covariance / covariance[0])[:31], rtol=1e-8, atol=1e-12)
    assert torch.equal(autocorrelation(draws[:1], 30), autocorrelation(draws[:1], 30, per_chain=True)[0])


def test_autocorrelation_of_ar1_is_a_power_of_rho():
    seen = autocorrelation(ar1(4, 20_000, 8, 0.8, seed=16), 12).mean(-1)
    torch.testing.assert_close(seen, 0.8 ** torch.arange(13.0).double(), rtol=0, atol=0.01)
    assert seen[0] == 1


@pytest.mark.parametrize("max_lag", [-1, 20, 2.0, True])
def test_lags_out_of_range(max_lag):
    with pytest.raises(ValueError, match=f"`max_lag` must be a whole number of (0 to 19|at least 0).*got {max_lag}"):
        autocorrelation(torch.randn(2, 20, 3), max_lag)


# Wrong calls.


@pytest.mark.parametrize("statistic", [*(own for own, _ in STATISTICS.values()), summary])
@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (torch.zeros(10), r"shape \(M, S, ...\); got shape \(10,\)"),
        (torch.zeros(2, 3, 5), r"at least 4 draws per chain; got 3 in shape \(2, 3, 5\)"),
        (torch.zeros(2, 10, 0), r"`draws` is empty: shape \(2, 10, 0\)"),
        (torch.zeros(0, 10, 2), "`draws` is empty"),
        (torch.zeros(2, 10, 3).index_fill(2, torch.tensor(1), math.nan), "NaN or infinite values: 20 of 60 for quant"),
        (torch.zeros(2, 10, 3).index_fill(2, torch.tensor(2), -math.inf), "quantities 0 to 2. Leave out the chains"),
    ],
)
def test_wrong_draws_say_what_was_wrong(statistic, draws, message):
    with pytest.raises(ValueError, match=message):
        statistic(draws)


def test_other_wrong_calls():
    with pytest.raises(TypeError, match=r"floating dtype; got torch\.int64"):
        rhat(torch.zeros(2, 10, dtype=torch.long))
    with pytest.raises(TypeError, match="must be a torch tensor; got ndarray"):
        ess(np.zeros((2, 10)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'rank', 'split', 'classic'; got 'folded'"):
        rhat(torch.randn(2, 10), method="folded")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="needs at least 2; got 1"):
        rhat(torch.randn(1, 10), method="classic")
    with pytest.raises(ValueError, match="`chunk_size` must be a whole number of at least 1; got 0"):
        ess_bulk(torch.randn(2, 10), chunk_size=0)


@pytest.fixture(autouse=True)
def _quiet_oracle(monkeypatch):
    """Keep arviz's log of what it cannot compute out of the output."""
    monkeypatch.setattr(logging.getLogger("arviz"), "disabled", True)

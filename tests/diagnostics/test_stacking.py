"""Weights of stacking against expectation maximisation, a constrained optimiser of scipy, and closed forms."""

import math

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from torchbayes.diagnostics import stacking_weights


def rows_of(seed: int, rows: int = 200, models: int = 5, spread: float = 1.0) -> Tensor:
    """Return log densities of normal predictions of different quality."""
    source = torch.Generator().manual_seed(seed)
    y = torch.randn(rows, 1, generator=source, dtype=torch.float64)
    means = spread * torch.randn(rows, models, generator=source, dtype=torch.float64)
    scales = 0.5 + torch.rand(models, generator=source, dtype=torch.float64)
    return torch.distributions.Normal(means * torch.linspace(0, 1, models).double(), scales).log_prob(y)


def by_expectation_maximisation(log_densities: Tensor, rounds: int = 5_000) -> Tensor:
    densities = (log_densities - log_densities.amax(1, keepdim=True)).exp()
    weights = torch.full((densities.shape[1],), 1 / densities.shape[1], dtype=torch.float64)
    for _ in range(rounds):
        weights = weights * (densities / (densities @ weights).unsqueeze(1)).mean(0)
    return weights


def score(log_densities: Tensor, weights: Tensor) -> float:
    return float(torch.logsumexp(log_densities + weights.log(), 1).mean())


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_those_of_expectation_maximisation(seed):
    log_densities = rows_of(seed)
    stacked = stacking_weights(log_densities, pseudo_rows=0)
    torch.testing.assert_close(stacked.weights_K, by_expectation_maximisation(log_densities), rtol=0, atol=2e-4)
    assert stacked.log_score == pytest.approx(score(log_densities, stacked.weights_K), abs=1e-12)
    assert 0 <= stacked.gap < 1e-8


def test_an_optimiser_of_scipy_finds_nothing_better():
    log_densities = rows_of(7, rows=40, models=8)
    stacked = stacking_weights(log_densities, pseudo_rows=0)
    actual = minimize(
        lambda w: -score(log_densities, torch.as_tensor(w).clamp_min(1e-300)),
        torch.full((8,), 1 / 8).numpy(),
        bounds=[(0, 1)] * 8,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert stacked.log_score >= -actual.fun - 1e-9
    assert -actual.fun <= stacked.log_score + stacked.gap + 1e-9


def test_two_models_in_closed_form():
    # n rows at which the first is r times as dense, m at which the second is: n/(w + (1-w)/r) has a root in closed form
    n, m, r = 30, 20, 4.0
    log_densities = torch.tensor([[math.log(r), 0.0]] * n + [[0.0, math.log(r)]] * m, dtype=torch.float64)
    exact = (n * r - m) / ((n + m) * (r - 1))
    weights = stacking_weights(log_densities, pseudo_rows=0).weights_K
    assert float(weights[0]) == pytest.approx(exact, abs=1e-7)
    # a third model that is better nowhere has no weight
    worse = torch.cat([log_densities, log_densities.amin(1, keepdim=True) - 1], dim=1)
    assert float(stacking_weights(worse, pseudo_rows=0).weights_K[2]) == 0


def test_pseudo_rows_are_a_dirichlet_prior_that_keeps_every_model():
    log_densities = rows_of(1, rows=6, models=3)
    stacked = stacking_weights(log_densities, pseudo_rows=1.5)
    densities, weights = log_densities.exp(), torch.full((3,), 1 / 3, dtype=torch.float64)
    for _ in range(5_000):  # EM of the posterior mode under Dirichlet(1 + 1.5/K)
        share = (weights * densities / (densities @ weights).unsqueeze(1)).sum(0) + 1.5 / 3
        weights = share / share.sum()
    torch.testing.assert_close(stacked.weights_K, weights, rtol=0, atol=1e-7)
    assert bool((stacked.weights_K > 0).all())


def test_a_row_of_weight_3_is_3_rows():
    log_densities = rows_of(2, rows=20, models=4)
    counts = torch.arange(20) % 3
    repeated = stacking_weights(log_densities.repeat_interleave(counts, 0))
    weighted = stacking_weights(log_densities, row_weights_N=counts.double())
    torch.testing.assert_close(weighted.weights_K, repeated.weights_K, rtol=0, atol=1e-7)
    assert weighted.log_score == pytest.approx(repeated.log_score, abs=1e-9)


def test_constants_of_rows_and_copies_of_models_change_no_mixture():
    log_densities = rows_of(3)
    stacked = stacking_weights(log_densities, pseudo_rows=0)
    shift = torch.linspace(-2000, 2000, len(log_densities), dtype=torch.float64).unsqueeze(1)
    moved = stacking_weights(log_densities + shift, pseudo_rows=0)
    torch.testing.assert_close(moved.weights_K, stacked.weights_K, rtol=0, atol=1e-7)
    twice = stacking_weights(torch.cat([log_densities, log_densities], dim=1), pseudo_rows=0).weights_K
    torch.testing.assert_close(twice[:5] + twice[5:], stacked.weights_K, rtol=0, atol=2e-5)
    assert score(torch.cat([log_densities] * 2, 1), twice) == pytest.approx(stacked.log_score, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "models"), [(1, 1), (1, 4), (3, 40), (2000, 60)])
def test_the_gap_bounds_what_is_missing(rows, models, dtype):
    log_densities = rows_of(4, rows=rows, models=models, spread=3.0).to(dtype)
    stacked = stacking_weights(log_densities)
    assert stacked.weights_K.dtype == torch.float64
    assert float(stacked.weights_K.sum()) == pytest.approx(1, abs=1e-12)
    assert bool((stacked.weights_K >= 0).all())
    assert stacked.gap < 1e-8


def test_densities_of_zero():
    infinite = torch.tensor([[-math.inf, 0.0], [0.0, -math.inf], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(stacking_weights(infinite).weights_K, torch.full((2,), 0.5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"row 1 .* impossible under every model"):
        stacking_weights(torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]]))


@pytest.mark.parametrize(
    ("log_densities", "settings", "error", "message"),
    [
        (torch.zeros(3), {}, ValueError, r"shape \(N, K\)"),
        (torch.zeros(0, 2), {}, ValueError, r"shape \(N, K\)"),
        (torch.tensor([[0.0, math.nan]]), {}, ValueError, "NaN"),
        (torch.tensor([[0.0, math.inf]]), {}, ValueError, "infinite"),
        (torch.zeros(2, 2, dtype=torch.int64), {}, TypeError, "floating"),
        (torch.zeros(2, 2), {"pseudo_rows": -1}, ValueError, "pseudo_rows"),
        (torch.zeros(2, 2), {"row_weights_N": torch.tensor([1.0, -1.0])}, ValueError, "row_weights_N"),
        (torch.zeros(2, 2), {"row_weights_N": torch.zeros(2)}, ValueError, "row_weights_N"),
        (torch.zeros(2, 2), {"row_weights_N": torch.ones(3)}, ValueError, "row_weights_N"),
    ],
)
def test_nonsense_is_refused(log_densities, settings, error, message):
    with pytest.raises(error, match=message):
        stacking_weights(log_densities, **settings)

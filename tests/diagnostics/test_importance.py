"""Pareto smoothed importance sampling, against arviz and against shapes that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.oracles import normal
from torchbayes.diagnostics import pareto_k, psis
from torchbayes.diagnostics.importance import generalised_pareto

arviz = pytest.importorskip("arviz")


def ratios(variance: float, draws: int = 4000, size: int = 1, seed: int = 0) -> Tensor:
    """log N(0, s²) − log N(0, 1) at draws from the latter: k = 1 − 1/s²."""
    z = normal(draws, size, seed=seed)
    return (0.5 * z.square() * (1 - 1 / variance)).sum(1) - 0.5 * size * math.log(variance)


@pytest.mark.parametrize("draws", [25, 100, 1000, 4000])
@pytest.mark.parametrize("variance", [0.5, 1.5, 2.0, 4.0])
def test_weights_and_shape_are_those_of_arviz(variance: float, draws: int) -> None:
    actual = psis(ratios(variance, draws))
    weights, k = arviz.psislw(ratios(variance, draws).numpy())
    assert float(actual.k) == pytest.approx(float(k), abs=1e-6)
    np.testing.assert_allclose(actual.log_weights.numpy(), np.asarray(weights), atol=1e-6)
    assert float(actual.log_weights.exp().sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(("variance", "low", "high"), [(1.5, 0.2, 0.45), (2.0, 0.4, 0.6), (4.0, 0.6, 0.8)])
def test_the_shape_of_normals_is_known(variance: float, low: float, high: float) -> None:
    """k = 1 − 1/s² is .33, .5 and .75; the last is estimated low from 4,000 draws."""
    actual = torch.stack([pareto_k(ratios(variance, seed=seed)) for seed in range(20)])
    assert low < float(actual.mean()) < high


def test_mean_field_at_a_correlation_has_that_shape() -> None:
    """q is independent with the conditional variances of a bivariate normal: k = ρ."""
    for rho in (0.5, 0.8):
        z = normal(20_000, 2, seed=3) * math.sqrt(1 - rho**2)
        precision = torch.tensor([[1.0, -rho], [-rho, 1.0]], dtype=torch.float64) / (1 - rho**2)
        log_p = -0.5 * torch.einsum("si,ij,sj->s", z, precision, z)
        log_q = -0.5 * z.square().sum(1) / (1 - rho**2)
        assert float(pareto_k(log_p - log_q)) == pytest.approx(rho, abs=0.12)


@pytest.mark.parametrize("shape", [-0.2, 0.1, 0.5, 0.7, 1.0])
def test_the_shape_of_a_pareto_sample_is_recovered(shape: float) -> None:
    u = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    sample = 2 / shape * ((1 - u) ** -shape - 1)
    k, scale = generalised_pareto(sample.unsqueeze(1))
    raw = (float(k) * 1010 - 5) / 1000  # without the pull towards ½
    assert raw == pytest.approx(shape, abs=0.03)
    assert float(scale) == pytest.approx(2.0, rel=0.03)


def test_columns_are_judged_one_by_one() -> None:
    columns = torch.stack([ratios(1.5), ratios(4.0, seed=1), ratios(2.0, seed=2), torch.zeros(4000).double()], 1)
    actual = psis(columns.view(4000, 2, 2))
    assert actual.k.shape == (2, 2)
    for i in range(3):
        alone = psis(columns[:, i])
        torch.testing.assert_close(actual.k.flatten()[i], alone.k)
        torch.testing.assert_close(actual.log_weights.flatten(1)[:, i], alone.log_weights)
    assert float(actual.k[1, 1]) == -math.inf


def test_equal_ratios_have_equal_weights() -> None:
    actual = psis(torch.full((100,), -3.0))
    assert float(actual.k) == -math.inf
    torch.testing.assert_close(actual.log_weights.exp(), torch.full((100,), 0.01, dtype=torch.float64))


def test_constants_do_not_matter_and_far_draws_are_no_error() -> None:
    base = ratios(2.0)
    torch.testing.assert_close(pareto_k(base + 1e4), pareto_k(base), rtol=1e-8, atol=1e-8)
    some = base.clone()
    some[:10] = -math.inf
    assert psis(some).log_weights[:10].eq(-math.inf).all()


def test_few_draws_have_no_tail() -> None:
    assert float(pareto_k(torch.zeros(4))) == math.inf


@pytest.mark.parametrize(
    "bad", [torch.zeros(0), torch.tensor(1.0), torch.full((9,), -math.inf), torch.tensor([0.0, math.nan])]
)
def test_ratios_that_mean_nothing_are_refused(bad: Tensor) -> None:
    with pytest.raises(ValueError, match="`log_ratios` must"):
        psis(bad)


def test_ratios_that_are_equal_to_rounding_or_tied_have_no_nan() -> None:
    rounding = 1e-14 * torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float(pareto_k(-31.4 + rounding)) == -math.inf
    tied = torch.zeros(400, dtype=torch.float64)
    tied[:3] = 1.0  # most of the tail is at its threshold
    assert math.isfinite(float(pareto_k(tied)))
    assert psis(tied).log_weights.isfinite().all()

"""The score of the model average against numerical integrals of its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.laws.cases import normal
from torch import Tensor

import torchbayes as tb
from torchbayes import metrics
from torchbayes.assess import numbers as crps_file
from torchbayes.assess.numbers import crps
from torchbayes.metrics.scoring import normals_crps


def integral(cdf: Callable[[np.ndarray], np.ndarray], target: float, reach: float) -> float:
    """∫ (F(z) - [z >= y])² dz between -reach and reach, in pieces, by Gauss and Legendre's rule."""
    ends = np.array(sorted({*np.linspace(-reach, reach, 401), target}))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half, middle = np.diff(ends)[:, None] / 2, (ends[1:] + ends[:-1])[:, None] / 2
    z = middle + half * nodes
    return float((half * weights * (cdf(z.ravel()).reshape(z.shape) - (z >= target)) ** 2).sum())


def mixture(kind: Any, locations: Tensor, scales: Tensor) -> Callable[[np.ndarray], np.ndarray]:
    places, widths = locations.numpy(), scales.numpy()
    return lambda z: kind.cdf((z[:, None] - places) / widths).mean(1)


@pytest.mark.parametrize("draws", [1, 2, 7])
def test_a_mixture_normals_is_scored_exactly(draws: int) -> None:
    mean, scale, targets = 2 * normal(draws, 3, 2), normal(draws, 3, 2, seed=1).exp(), 3 * normal(3, 2, seed=2)
    predictive = tb.Predictive(mean, tb.likelihoods.Custom(lambda f: torch.distributions.Normal(f, scale)))
    expected = torch.tensor([
        [integral(mixture(stats.norm, mean[:, b, k], scale[:, b, k]), float(targets[b, k]), 60.0) for k in range(2)]
        for b in range(3)
    ], dtype=torch.float64)  # fmt: skip
    torch.testing.assert_close(crps(predictive, targets), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(metrics.crps_normals(mean, scale, targets), expected.mean(), rtol=1e-9, atol=1e-10)
    weights = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]])
    by_hand = (weights * expected).sum() / weights.sum()
    torch.testing.assert_close(
        metrics.crps_normals(mean, scale, targets, weights_B=weights), by_hand, rtol=1e-9, atol=1e-10
    )


def test_equal_components_are_one_gaussian() -> None:
    mean, scale, targets = normal(40), normal(40, seed=1).exp(), normal(40, seed=2)
    actual = metrics.crps_normals(mean.expand(5, 40), scale.expand(5, 40), targets)
    torch.testing.assert_close(actual, metrics.crps_gaussian(mean, scale, targets), rtol=1e-12, atol=1e-12)


def test_float32_loses_only_its_rounding() -> None:
    mean, scale, targets = normal(9, 50), normal(9, 50, seed=1).exp(), normal(50, seed=2)
    actual = metrics.crps_normals(mean.float(), scale.float(), targets.float())
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, metrics.crps_normals(mean, scale, targets), rtol=1e-6, atol=0)


def test_rows_in_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    predictive, targets = tb.Predictive(normal(6, 30, 2), tb.likelihoods.Gaussian(0.4)), normal(30, 2, seed=2)
    expected = crps(predictive, targets)
    monkeypatch.setattr("torchbayes.metrics.scoring._AT_ONCE", 50)
    torch.testing.assert_close(crps(predictive, targets), expected, rtol=1e-13, atol=0)
    monkeypatch.setattr(crps_file, "_PAIRED", 0)
    expected = crps(predictive, targets)
    monkeypatch.setattr(crps_file, "_AT_ONCE", 64 * 6 * 2 * 7)
    torch.testing.assert_close(crps(predictive, targets), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize(("scale", "tolerance"), [(3.0, 1e-7), (0.4, 1e-6), (0.05, 1e-3)])
def test_very_many_normals_are_integrated(scale: float, tolerance: float) -> None:
    """The distribution function of narrow components has many small steps, which 64 nodes cannot follow."""
    predictive = tb.Predictive(normal(600, 20, 1), tb.likelihoods.Gaussian(scale))
    targets = torch.linspace(-9, 9, 20, dtype=torch.float64).unsqueeze(-1)
    kind = predictive.distribution
    expected = metrics.crps_normals(kind.mean, kind.stddev.expand_as(kind.mean), targets)
    actual = crps(predictive, targets)
    torch.testing.assert_close(actual, normals_crps(kind.mean, kind.stddev, targets), rtol=tolerance, atol=1e-8)
    torch.testing.assert_close(actual.mean(), expected, rtol=tolerance, atol=0)


def test_variance_of_functions_counts() -> None:
    outputs, spread, targets = normal(3, 8, 1), normal(3, 8, 1, seed=1).exp(), normal(8, 1, seed=2)
    predictive = tb.Predictive(outputs, tb.likelihoods.Gaussian(0.4), function_variance=spread)
    actual = crps(predictive, targets).mean()
    torch.testing.assert_close(actual, metrics.crps_normals(outputs, (spread + 0.16).sqrt(), targets))


def test_other_distribution_functions_are_integrated() -> None:
    outputs, targets = normal(4, 5, 1), torch.tensor([[-12.0], [-1.0], [0.0], [1.0], [30.0]], dtype=torch.float64)
    predictive = tb.Predictive(outputs, tb.likelihoods.Custom(lambda f: torch.distributions.Laplace(f, 0.6)))
    cdfs = [mixture(stats.laplace, outputs[:, b, 0], torch.tensor(0.6)) for b in range(5)]
    expected = [integral(cdf, float(y), 40.0) for cdf, y in zip(cdfs, targets[:, 0], strict=True)]
    # the density has a kink at the location of every component
    np.testing.assert_allclose(crps(predictive, targets)[:, 0], expected, rtol=1e-4)


def test_blocks_of_samples_meet_their_own_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    predictive = tb.Predictive(normal(4, 30, 1), tb.likelihoods.Gaussian(0.4))
    targets = torch.linspace(-9, 9, 30, dtype=torch.float64).unsqueeze(-1)
    monkeypatch.setattr("torchbayes.predictive.intervals._AT_ONCE", 2000 * 7)
    torch.testing.assert_close(crps_file._estimated(predictive, targets), crps(predictive, targets), rtol=0, atol=0.15)


def test_without_a_distribution_function_it_is_estimated_from_samples() -> None:
    predictive = tb.Predictive(normal(4, 200, 1), tb.likelihoods.StudentT(df=4.0, scale=0.5))
    targets = normal(200, 1, seed=2)
    cdfs = [mixture(stats.t(4), predictive.outputs_SBK[:, b, 0], torch.tensor(0.5)) for b in range(20)]
    expected = np.array([integral(cdf, float(y), 60.0) for cdf, y in zip(cdfs, targets[:20, 0], strict=True)])
    actual = crps(predictive, targets)[:20, 0].numpy()
    # means of 2,000 distances whose standard deviation is about 1
    np.testing.assert_allclose(actual, expected, atol=4 / 2000**0.5)
    assert abs((actual - expected).mean()) < 4 / (20 * 2000) ** 0.5

"""Metrics of many resamples at once against those of one resample after the other."""

from collections.abc import Callable

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from tests.metrics.helpers import labels_drawn_from, random_normal, random_probs
from torchbayes import metrics
from torchbayes.metrics import resampling
from torchbayes.metrics.scoring import hits

WEIGHTS_RB = random_normal(6, 80, seed=3).exp()


@pytest.mark.parametrize("decimals", [1, 15])
@pytest.mark.parametrize(
    ("at_once", "alone"),
    [(resampling.resampled_ece, metrics.ece), (resampling.resampled_ece_mass, metrics.ece_mass)],
)
def test_calibration_errors(decimals: int, at_once: Callable, alone: Callable):
    """With one decimal many rows are tied, on bounds of the bins too."""
    probs_BK = random_probs(80, 2).round(decimals=decimals)
    targets_B = labels_drawn_from(probs_BK)
    actual = at_once(probs_BK.amax(-1), hits(probs_BK, targets_B), WEIGHTS_RB)
    expected = torch.stack([alone(probs_BK, targets_B, weights_B=weights_B) for weights_B in WEIGHTS_RB])
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("decimals", [0, 15])
def test_area_of_risk_and_coverage(decimals: int):
    loss_B, uncertainty_B = random_normal(80).square(), random_normal(80, seed=1).round(decimals=decimals)
    actual = resampling.resampled_aurc(loss_B, uncertainty_B, WEIGHTS_RB)
    expected = [metrics.risk_coverage(loss_B, uncertainty_B, weights_B=weights_B).aurc for weights_B in WEIGHTS_RB]
    torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-12, atol=0)


def test_means():
    values_B = random_normal(80).float()
    expected = [metrics.weighted_mean(values_B, weights_B) for weights_B in WEIGHTS_RB]
    torch.testing.assert_close(
        resampling.resampled_mean(values_B, WEIGHTS_RB), torch.stack(expected), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("decimals", [1, 15])
def test_area_under_the_roc_curve(decimals: int):
    """By the weights of scikit-learn, and by those of the library where all are one."""
    inside_N, outside_F = (random_normal(n, seed=s).round(decimals=decimals) for n, s in ((80, 1), (30, 2)))
    out_RF = random_normal(6, 30, seed=4).exp()
    actual = resampling.resampled_auroc(inside_N, outside_F, in_weights_RN=WEIGHTS_RB, out_weights_RF=out_RF)
    labels, scores = torch.arange(110) >= 80, torch.cat([inside_N, outside_F])
    for area, weights in zip(actual, torch.cat([WEIGHTS_RB, out_RF], dim=1), strict=True):
        assert float(area) == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights), rel=1e-12)
    ones = resampling.resampled_auroc(
        inside_N, outside_F, in_weights_RN=torch.ones_like(WEIGHTS_RB), out_weights_RF=torch.ones_like(out_RF)
    )
    torch.testing.assert_close(ones, metrics.auroc(inside_N, outside_F).expand(6), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "at_once", [resampling.resampled_ece, resampling.resampled_ece_mass, resampling.resampled_aurc]
)
def test_a_single_row(at_once: Callable[[Tensor, Tensor, Tensor], Tensor]):
    confidence_B, correct_B = torch.tensor([0.75]), torch.tensor([1.0], dtype=torch.float64)
    expected = 0.75 if at_once is resampling.resampled_aurc else 0.25
    torch.testing.assert_close(
        at_once(confidence_B, correct_B, WEIGHTS_RB[:, :1]), torch.full((6,), expected, dtype=torch.float64)
    )

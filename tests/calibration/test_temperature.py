"""Temperature scaling: a known temperature is found, zeros stay, and mixing is Laplace's rule."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import torchbayes as tb
from tests.oracles import normal


def labels_of(probs_BK: Tensor, seed: int = 5) -> Tensor:
    """Labels drawn from the probabilities themselves."""
    return torch.multinomial(probs_BK, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_temperature_scaling_recovers_a_known_temperature(temperature: float) -> None:
    """Labels drawn from softmax(log p̄ / T): the fit finds T, and the scaled predictive is calibrated."""
    predictive = tb.Predictive(2 * normal(4, 20_000, 5), tb.likelihoods.Categorical())
    truth = (predictive.probs.log() / temperature).softmax(-1)
    targets = labels_of(truth)
    scaling = tb.TemperatureScaling.fit(predictive, targets)
    assert scaling.temperature == pytest.approx(temperature, rel=0.05)
    scaled = scaling(predictive)
    assert scaled.draws == 1
    expected = (predictive.probs.log() / scaling.temperature).softmax(-1)
    torch.testing.assert_close(scaled.probs, expected)
    before, after = (tb.evaluate(p, targets).metrics for p in (predictive, scaled))
    assert after["nll"] <= before["nll"] + 1e-9
    assert after["accuracy"] == pytest.approx(before["accuracy"])
    assert after["ece"] < 0.015


def test_temperature_scaling_survives_zeros() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], dtype=torch.float64)
    scaled = tb.TemperatureScaling(2.0)(tb.Predictive.from_probs(probs))
    torch.testing.assert_close(scaled.probs[1], torch.tensor([0.75, 0.25], dtype=torch.float64))
    torch.testing.assert_close(scaled.probs[::2], probs[::2])
    fitted = tb.TemperatureScaling.fit(tb.Predictive.from_probs(probs), torch.tensor([0, 1, 1]))
    assert math.isfinite(fitted.temperature)


def test_mixing_is_another_row_of_which_nothing_is_known():
    """With n rows, a share 1/(n + 1) of the uniform distribution; a class of probability 0 has 1/((n + 1) K)."""
    probs = torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0]], dtype=torch.float64)
    predictive, labels = tb.Predictive.from_probs(probs), torch.tensor([0, 1, 1])
    plain, mixed = (tb.calibration.fit_calibrator(predictive, labels, method=name) for name in ("ts", "ts-mix"))
    torch.testing.assert_close(mixed(predictive).probs, 0.75 * plain(predictive).probs + 0.25 / 3)
    assert plain == tb.TemperatureScaling.fit(predictive, labels)

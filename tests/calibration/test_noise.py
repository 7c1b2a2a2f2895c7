"""The factor of the noise in a regression: in closed form, on a grid, and where the noise of a model is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import distributions

import torchbayes as tb
from tests.oracles import normal

MEAN, TARGETS = normal(1, 300, 2), normal(300, 2, seed=3)
WEIGHTS = torch.arange(300).double() % 3


def test_of_one_normal_function_it_is_the_root_mean_square():
    residuals = (TARGETS - MEAN[0]) / 0.2
    actual = tb.calibration.fit_calibrator(tb.Predictive(MEAN, tb.likelihoods.Gaussian(0.2)), TARGETS)
    assert isinstance(actual, tb.calibration.NoiseScaling)
    assert actual.factor == pytest.approx(float(residuals.square().mean().sqrt()), rel=1e-6)
    weighted = tb.Predictive(MEAN, tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.2)))
    actual = tb.calibration.fit_calibrator(weighted, (TARGETS, WEIGHTS), method="noise")
    expected = (WEIGHTS @ residuals.square().mean(1) / WEIGHTS.sum()).sqrt()
    assert actual.factor == pytest.approx(float(expected), rel=1e-6)  # type: ignore[attr-defined]
    assert actual(weighted).log_prob(TARGETS).shape == (300,)


@pytest.mark.parametrize("likelihood", [tb.likelihoods.Gaussian(0.1), tb.likelihoods.StudentT(4.0, 0.1)])
def test_of_an_average_it_is_the_best_on_a_grid(likelihood):
    """The mixture's own density, of each function with wider noise; the functions stay apart as they were."""
    outputs = MEAN + 0.5 * normal(5, 300, 2, seed=4)
    predictive = tb.Predictive(outputs, likelihood)
    actual = tb.calibration.fit_calibrator(predictive, TARGETS)
    factor = actual.factor  # type: ignore[attr-defined]

    def loss(c: float) -> float:
        if isinstance(likelihood, tb.likelihoods.Gaussian):
            wider = distributions.Normal(outputs, 0.1 * c)
        else:
            wider = distributions.StudentT(4.0, outputs, 0.1 * c)
        return -float((wider.log_prob(TARGETS).sum(-1).logsumexp(0) - torch.tensor(5.0).log()).mean())

    assert loss(factor) <= min(loss(factor * c) for c in (0.1, 0.5, 0.99, 0.999, 1.001, 1.01, 2.0, 10.0))
    widened = actual(predictive)
    assert -float(widened.log_prob(TARGETS).mean()) == pytest.approx(loss(factor), rel=1e-7)
    torch.testing.assert_close(widened.epistemic, predictive.epistemic)
    torch.testing.assert_close(widened.aleatoric, factor**2 * predictive.aleatoric)
    again = actual(widened)
    torch.testing.assert_close(again.aleatoric, factor**4 * predictive.aleatoric)


def test_intervals_of_too_small_a_noise_are_mended(tmp_path):
    """Targets with noise 1 under a model with noise .2: coverage of 95 % intervals goes from .3 to .95."""
    model = tb.Model(torch.nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(0.2))
    posterior = tb.Point(model, normal(2, 3) * 0.1)
    inputs = normal(2000, 2, seed=5)
    targets = inputs @ torch.zeros(2, 1).double() + normal(2000, 1, seed=6)
    held_out, test = (inputs[:1000], targets[:1000]), (inputs[1000:], targets[1000:])
    calibrated = tb.calibration.fit(posterior, held_out)
    before, after = (tb.evaluate(p, test).metrics for p in (posterior, calibrated))
    assert before["coverage"] < 0.5
    assert after["coverage"] == pytest.approx(0.95, abs=0.02)
    assert after["rmse"] == pytest.approx(before["rmse"])
    assert calibrated.held_out["calibrated_nll"] == pytest.approx(tb.evaluate(calibrated, held_out).metrics["nll"])
    assert calibrated.held_out["nll"] == pytest.approx(tb.evaluate(posterior, held_out).metrics["nll"])
    assert "1000 rows" in str(calibrated)
    assert tb.calibration.load(calibrated.calibrator.save(tmp_path / "noise.safetensors")) == calibrated.calibrator


@pytest.mark.filterwarnings("ignore:this posterior should not be trusted")  # it is not at a mode
def test_a_closed_form_keeps_the_variance_of_its_function():
    model = tb.Model(torch.nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(0.5), tb.priors.Normal())
    inputs = normal(60, 2)
    posterior = tb.fit(
        model, (inputs, inputs.sum(1, keepdim=True)), tb.Laplace(), start=torch.nn.Linear(2, 1).double(), callbacks=()
    )
    predictive = tb.predict(posterior, inputs)
    wider = tb.calibration.NoiseScaling(3.0)(predictive)
    torch.testing.assert_close(wider.variance - predictive.variance, torch.full((60, 1), 8 * 0.25).double())


def test_what_has_no_scale_is_refused():
    counts = tb.Predictive(normal(1, 5, 1), tb.likelihoods.Poisson())
    with pytest.raises(TypeError, match="no scale of its own"):
        tb.calibration.fit_calibrator(counts, torch.ones(5, 1))
    with pytest.raises(TypeError, match="no scale of its own"):
        tb.calibration.fit_calibrator(
            tb.Predictive(normal(1, 6, 3), tb.likelihoods.Categorical()), torch.arange(6) % 3, method="noise"
        )


def test_targets_that_do_not_fit_are_refused():
    predictive = tb.Predictive(MEAN, tb.likelihoods.Gaussian(0.2))
    hole = TARGETS.clone()
    hole[3, 1] = torch.nan
    for targets, words in (
        (hole, "1 of 600 are NaN"),
        (TARGETS[:, :1], r"shape \(300, 2\)"),
        (TARGETS[1:], r"\(299, 2\)"),
    ):
        with pytest.raises(ValueError, match=words):
            tb.calibration.fit_calibrator(predictive, targets)
        with pytest.raises(ValueError, match=words):
            predictive.log_prob(targets)
    with pytest.raises(TypeError, match="tensor"):
        tb.calibration.fit_calibrator(predictive, TARGETS.numpy())

"""Calibrators of two classes: against scikit-learn, betacal, brute force, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import torchbayes as tb
from tests.oracles import normal
from torchbayes.calibration.fit import METHODS
from torchbayes.calibration.venn_abers import _merged

ODDS = 2 * normal(200, seed=1)
TARGETS = (torch.rand(200, generator=torch.Generator().manual_seed(2)).double() < (0.5 * ODDS + 0.4).sigmoid()).long()
GRID = torch.linspace(-5, 5, 21).double()


def pairs(odds_B: Tensor) -> Tensor:
    return torch.stack([(-odds_B).sigmoid(), odds_B.sigmoid()], -1)


def fitted(name: str, odds_B: Tensor = ODDS, targets: Tensor = TARGETS, at: Tensor = GRID) -> Tensor:
    calibrator = tb.calibration.fit_calibrator(tb.Predictive.from_probs(pairs(odds_B)), targets, method=name)
    return calibrator(tb.Predictive.from_probs(pairs(at))).probs[:, 1]


def logistic(features: np.ndarray, at: np.ndarray, weights: np.ndarray | None = None) -> Tensor:
    """scikit-learn's logistic regression without a penalty."""
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    return torch.tensor(model.fit(features, TARGETS.numpy(), weights).predict_proba(at)[:, 1])


@pytest.mark.parametrize("name", ["affine", "quadratic", "beta"])
def test_scikit_learn_finds_the_same_curve(name):
    def features(t: Tensor) -> np.ndarray:
        columns = {"affine": [t], "quadratic": [t, t**2], "beta": [t.sigmoid().log(), -(-t).sigmoid().log()]}[name]
        return torch.stack(columns, -1).numpy()

    torch.testing.assert_close(fitted(name), logistic(features(ODDS), features(GRID)), atol=1e-7, rtol=0)


def test_betacal_finds_the_same_curve():
    """betacal 1.1.0, parameters "abm", on forty rows; its solver stops at 1e-4 in the coefficients."""
    odds, targets = ODDS[:40], TARGETS[:40]
    actual = fitted("beta", odds, targets, torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0]).double())
    torch.testing.assert_close(
        actual, torch.tensor([0.031074, 0.459801, 0.733114, 0.849185, 0.902761]).double(), atol=5e-4, rtol=0
    )


@pytest.mark.parametrize("slope", [-1.0, 1.0])
def test_beta_never_falls(slope):
    """Where labels fall with the odds a coefficient would be below 0; the best allowed curve beats any on a grid."""
    odds = 2 * normal(60, seed=4)
    labels = (torch.rand(60, generator=torch.Generator().manual_seed(3)).double() < (slope * odds).sigmoid()).long()
    calibrator = tb.calibration.fit_calibrator(tb.Predictive.from_probs(pairs(odds)), labels, method="beta")
    assert isinstance(calibrator, tb.calibration.LogLinear)
    assert (calibrator.weight >= 0).all()
    assert (calibrator.transform(pairs(GRID).log())[:, 1].diff() >= 0).all()
    logs = pairs(odds).log()

    def loss(a: float, b: float, c: float) -> float:
        return float(
            torch.nn.functional.binary_cross_entropy_with_logits(a * logs[:, 1] - b * logs[:, 0] + c, labels.double())
        )

    b, a = calibrator.weight.tolist()
    best = loss(a, b, float(calibrator.bias[1]))
    steps = (-0.05, 0.0, 0.05)
    near = [
        loss(max(a + i, 0), max(b + j, 0), float(calibrator.bias[1]) + k) for i in steps for j in steps for k in steps
    ]
    assert best <= min(near) + 1e-12


def test_soft_labels_are_rows_of_both_classes():
    """A label of .3 is .7 rows of one class and .3 of the other."""
    soft = torch.linspace(0.05, 0.95, 200).double()
    actual = tb.calibration.fit_calibrator(
        tb.Predictive(ODDS[None, :, None], tb.likelihoods.Bernoulli(soft=True)), soft[:, None], method="affine"
    )
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    twice, labels = np.tile(ODDS.numpy(), 2)[:, None], np.repeat([0, 1], 200)
    model.fit(twice, labels, torch.cat([1 - soft, soft]).numpy())
    assert isinstance(actual, tb.calibration.LogOddsScaling)
    expected = [*np.ravel(model.intercept_), *np.ravel(model.coef_)]
    assert [actual.bias, actual.slope] == pytest.approx(expected, abs=1e-6)


def _isotonic(odds: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The knots of scikit-learn's isotonic regression."""
    model = IsotonicRegression().fit(odds.numpy(), labels.numpy())
    return model.X_thresholds_, model.y_thresholds_


def test_venn_abers_is_two_isotonic_regressions():
    """With the new row added under either label, fitted by scikit-learn, at new odds, between, and at known ones."""
    odds = (ODDS[:50] * 2).round() / 2  # with ties
    known = odds.unique()
    at = torch.cat([known, (known[1:] + known[:-1]) / 2, torch.tensor([-9.0, 9.0]).double()])
    expected = []
    for t in at:
        zero, one = (
            np.interp(
                float(t),
                *_isotonic(torch.cat([odds, t[None]]), torch.cat([TARGETS[:50], torch.tensor([label])])),
            )
            for label in (0, 1)
        )
        expected.append(one / (1 - zero + one))
    actual = fitted("venn-abers", odds, TARGETS[:50], at)
    torch.testing.assert_close(actual, torch.tensor(expected).double(), atol=1e-12, rtol=0)


def test_the_merge_has_the_least_regret_in_log_loss():
    """p₀ = .55 and p₁ = .70 merge to .60870: the larger of log p₁/p and log (1 − p₀)/(1 − p) is least there."""
    table = torch.tensor([[0.0, 0.55, 0.70]] * 3).double()
    actual = float(_merged(table, torch.tensor([1.0]).double()))
    assert actual == pytest.approx(0.60870, abs=5e-6)
    p = torch.linspace(0.55, 0.70, 150_001).double()
    regret = torch.maximum((0.70 / p).log(), (0.45 / (1 - p)).log())
    assert actual == pytest.approx(float(p[regret.argmin()]), abs=2e-6)


@pytest.mark.parametrize("name", ["affine", "quadratic", "beta"])
@pytest.mark.parametrize("labels", ["threshold", "band", "same", "one row"])
def test_separable_rows_are_said(name, labels):
    odds = normal(30, seed=7) if labels != "one row" else torch.tensor([0.3]).double()
    targets = {"threshold": odds > 0.2, "band": odds.abs() > 0.6, "same": odds < 99, "one row": odds > 0}[labels].long()
    if labels == "band" and name == "affine":  # a line does not separate a band
        assert bool(fitted(name, odds, targets).isfinite().all())
        return
    if labels == "band" and name == "beta":
        return  # whether it does depends on the rows
    with pytest.raises(tb.calibration.SeparableError, match=f"'{name}' separates the {len(odds)} held-out rows"):
        fitted(name, odds, targets)
    probs = fitted("auto", odds, targets)
    assert bool(((probs > 0) & (probs < 1)).all())


@pytest.mark.parametrize("name", [n for n in METHODS if n != "dirichlet"])  # its folds are not the same rows
def test_bernoulli_predictives_and_places(name):
    """One or several binary targets of a row give what the same pairs of probabilities give."""
    outputs = torch.stack([ODDS, ODDS], 1)[None]
    targets = torch.stack([TARGETS, TARGETS], 1).double()
    predictive = tb.Predictive(outputs, tb.likelihoods.Bernoulli())
    many = tb.calibration.fit_calibrator(predictive, targets, method=name)
    assert many(predictive).probs.shape == (200, 2)
    single = tb.calibration.fit_calibrator(
        tb.Predictive(outputs[..., :1], tb.likelihoods.Weighted(tb.likelihoods.Bernoulli())),
        (targets[:, :1], torch.full((200,), 2.0).double()),
        method=name,
    )
    torch.testing.assert_close(
        many(predictive).probs[:, 0],
        single(tb.Predictive(outputs[..., :1], tb.likelihoods.Bernoulli())).probs[:, 0],
        atol=1e-6,
        rtol=0,
    )
    assert tb.evaluate(many(predictive), targets).metrics["nll"] > 0


def test_auto_of_two_classes(tmp_path):
    """Below 50 rows it is a temperature; with many rows it is as good as the best curve, within noise."""
    few = tb.calibration.fit_calibrator(tb.Predictive.from_probs(pairs(4 * ODDS[:49])), TARGETS[:49])
    assert isinstance(few, tb.calibration.TemperatureScaling)
    assert few.uniform == pytest.approx(1 / 50)
    odds = 2 * normal(3000, seed=8)
    truth = 0.5 * odds + 0.8
    labels = (torch.rand(3000, generator=torch.Generator().manual_seed(9)).double() < truth.sigmoid()).long()
    at = GRID[GRID.abs() < 3.1]  # 3,000 rows leave an error of a hundredth there
    torch.testing.assert_close(fitted("auto", odds, labels, at), (0.5 * at + 0.8).sigmoid(), atol=0.04, rtol=0)
    curve = tb.calibration.LogOddsScaling(0.1, 2, -0.3)
    assert tb.calibration.load(curve.save(tmp_path / "curve.safetensors")) == curve

"""evaluate, temperature scaling and predict where rows weigh, are ignored, or have targets of other forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from sklearn import metrics as sk
from tests.oracles import assert_close, classes, normal
from torch import Tensor, distributions, nn

import torchbayes as tb
from torchbayes.model.likelihoods import Bernoulli, Categorical, Gaussian, Weighted

S, B, T, K = 4, 60, 3, 3
OUTPUTS, LABELS = 1.5 * normal(S, B, K), classes(B, K, seed=1)
WEIGHTS = normal(B, seed=2).exp() * (normal(B, seed=3) > -0.5)
HOLES = torch.where(WEIGHTS == 0, -100, LABELS)
KEPT = WEIGHTS > 0


def test_a_classification_is_scored_as_by_scikit_learn():
    predictive = tb.Predictive(OUTPUTS, Weighted(Categorical()))
    actual = tb.evaluate(predictive, (LABELS, WEIGHTS))
    probs, own = OUTPUTS.softmax(-1).mean(0), WEIGHTS.numpy()
    assert actual.metrics["accuracy"] == pytest.approx(sk.accuracy_score(LABELS, probs.argmax(1), sample_weight=own))
    assert actual.metrics["nll"] == pytest.approx(sk.log_loss(LABELS, probs.numpy(), sample_weight=own))
    brier = sum(sk.brier_score_loss(k == LABELS, probs[:, k].numpy(), sample_weight=own) for k in range(K))
    assert actual.metrics["brier"] == pytest.approx(brier)
    entropy = -(probs * probs.log()).sum(-1)
    assert actual.metrics["entropy"] == pytest.approx(float((WEIGHTS * entropy).sum() / WEIGHTS.sum()))
    assert actual.weights is not None
    assert_close(actual.weights, WEIGHTS[KEPT])
    assert_close(actual.targets, LABELS[KEPT])
    assert_close(actual.log_prob, probs.gather(1, LABELS[:, None])[KEPT, 0].log())


def test_a_regression_is_scored_as_by_scikit_learn():
    outputs, targets = normal(S, B, 2), normal(B, 2, seed=4)
    actual = tb.evaluate(tb.Predictive(outputs, Weighted(Gaussian(0.5))), (targets, WEIGHTS), target_scale=2.0)
    error = sk.mean_squared_error(targets, outputs.mean(0), sample_weight=WEIGHTS)
    assert actual.metrics["rmse"] == pytest.approx(2 * error**0.5)
    plain = tb.evaluate(tb.Predictive(outputs[:, KEPT], Gaussian(0.5)), targets[KEPT], target_scale=2.0)
    share = WEIGHTS[KEPT] / WEIGHTS.sum()
    log_prob = distributions.Normal(outputs, 0.5 * torch.ones((), dtype=torch.float64)).log_prob(targets).sum(-1)
    expected = -(share * (log_prob.exp().mean(0).log())[KEPT]).sum() + 2 * torch.tensor(2.0, dtype=torch.float64).log()
    assert actual.metrics["nll"] == pytest.approx(float(expected))
    assert actual.metrics["nll"] != pytest.approx(plain.metrics["nll"], rel=1e-3)
    assert plain.metrics.keys() == actual.metrics.keys()
    low, high = tb.Predictive(outputs, Gaussian(0.5)).quantile(torch.tensor([0.025, 0.975]))
    inside = ((low <= targets) & (targets <= high)).double().mean(-1)
    assert actual.metrics["coverage"] == pytest.approx(float((WEIGHTS * inside).sum() / WEIGHTS.sum()))


def test_ignored_rows_are_left_out_of_everything():
    actual = tb.evaluate(tb.Predictive(OUTPUTS, Categorical(ignore_index=-100)), HOLES)
    expected = tb.evaluate(tb.Predictive(OUTPUTS[:, KEPT], Categorical()), LABELS[KEPT])
    assert actual.metrics == pytest.approx(expected.metrics, rel=1e-12)
    assert actual.weights is None
    assert actual.probs is not None
    assert expected.probs is not None
    assert_close(actual.probs, expected.probs)
    assert_close(actual.targets, expected.targets)


def test_ignored_places_are_left_out_of_everything():
    outputs, labels = normal(S, B, T, K), classes(B * T, K, seed=5).view(B, T)
    labels[normal(B, T, seed=6) > 0.8] = -100
    labels[7] = -100
    kept, rows = labels != -100, (labels != -100).any(1)
    actual = tb.evaluate(tb.Predictive(outputs, Categorical(ignore_index=-100)), labels)
    flat = tb.evaluate(tb.Predictive(outputs[:, kept], Categorical()), labels[kept]).metrics
    for name in ("accuracy", "brier", "ece", "ece_mass", "entropy", "mutual_information"):
        assert actual.metrics[name] == pytest.approx(flat[name], rel=1e-12)
    log_p = outputs.log_softmax(-1).gather(-1, labels.clamp_min(0).expand(S, B, T).unsqueeze(-1)).squeeze(-1)
    joint = torch.where(kept, log_p, 0.0).sum(-1).exp().mean(0).log()
    assert_close(actual.log_prob, joint[rows])
    assert actual.metrics["nll"] == pytest.approx(float(-joint[rows].mean()))
    assert len(actual.targets) == int(rows.sum()) == B - int((~rows).sum())


def test_weights_of_classes_and_smoothing_do_not_enter():
    """They are means of fitting, so that models fitted with and without can be compared."""
    expected = tb.evaluate(tb.Predictive(OUTPUTS, Categorical()), LABELS).metrics
    actual = tb.evaluate(tb.Predictive(OUTPUTS, Categorical((1.0, 5.0, 0.1), label_smoothing=0.1)), LABELS).metrics
    assert actual == pytest.approx(expected, rel=1e-12)


def test_data_without_weights_count_once():
    expected = tb.evaluate(tb.Predictive(OUTPUTS, Categorical()), LABELS).metrics
    actual = tb.evaluate(tb.Predictive(OUTPUTS, Weighted(Categorical())), LABELS)
    assert actual.metrics == pytest.approx(expected, rel=1e-12)
    assert actual.weights is None


def test_soft_labels_are_judged_by_their_shares():
    soft = normal(B, K, seed=8).softmax(-1)
    actual = tb.evaluate(tb.Predictive(OUTPUTS, Categorical()), soft).metrics
    p = OUTPUTS.softmax(-1).mean(0)
    assert actual["nll"] == pytest.approx(float(-(soft * p.log()).sum(-1).mean()))
    assert actual["accuracy"] == pytest.approx(float(soft.gather(1, p.argmax(1, keepdim=True)).mean()))
    share = soft[:, :2] / soft[:, :2].sum(-1, keepdim=True)
    binary = tb.evaluate(tb.Predictive(OUTPUTS[..., :1], Bernoulli(soft=True)), share[:, :1]).metrics
    q = OUTPUTS[..., 0].sigmoid().mean(0)
    two = tb.evaluate(tb.Predictive.from_probs(torch.stack([q, 1 - q], -1)), share).metrics
    assert binary.pop("mutual_information") > two.pop("mutual_information") - 1e-12
    assert binary == pytest.approx(two, rel=1e-9)


@dataclass(frozen=True)
class Mine(Categorical):
    """Ignores −100 as a user does it."""

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        return torch.where(targets < 0, 0.0, super().log_prob(outputs, targets.clamp_min(0)))

    def check(self, outputs: Tensor, targets: Tensor) -> None: ...


def test_labels_that_are_no_classes_leave_the_log_score():
    actual = tb.evaluate(tb.Predictive(OUTPUTS, Mine()), HOLES)
    assert set(actual.metrics) == {"nll"}
    assert actual.probs is not None
    alone = tb.evaluate(tb.Predictive(OUTPUTS, Mine()), LABELS)
    assert set(alone.metrics) > {"accuracy", "nll"}
    half = [(normal(B, 2)[:30], HOLES[:30]), (normal(B, 2)[30:], LABELS[30:])]  # one batch of each kind
    model = tb.Model(nn.Linear(2, K).double(), Mine())
    posterior = tb.fit(model, (normal(B, 2), LABELS), tb.MAP(epochs=1), callbacks=())
    assert set(tb.evaluate(posterior, half).metrics) == {"nll"}


def test_no_row_counts():
    with pytest.raises(ValueError, match="no row counts"):
        tb.evaluate(tb.Predictive(OUTPUTS, Categorical(ignore_index=-100)), torch.full((B,), -100))
    with pytest.raises(ValueError, match="no row counts"):
        tb.evaluate(tb.Predictive(OUTPUTS, Weighted(Categorical())), (LABELS, torch.zeros(B)))
    with pytest.raises(TypeError, match="must be a pair"):
        tb.evaluate(tb.Predictive(OUTPUTS, Weighted(Categorical())), (LABELS, WEIGHTS, WEIGHTS))


def test_temperature_scaling_counts_rows_by_their_weights():
    logits = OUTPUTS.softmax(-1).mean(0).log()
    labels = torch.where(normal(B, seed=9) > -0.5, logits.argmax(-1), LABELS)
    fitted = tb.TemperatureScaling.fit(tb.Predictive(OUTPUTS, Weighted(Categorical())), (labels, WEIGHTS)).temperature
    grid = torch.linspace(0.1, 8.0, 4001, dtype=torch.float64)
    assert 0.1 < fitted < 7.0
    losses = [-(WEIGHTS * (logits / t).log_softmax(-1).gather(1, labels[:, None])[:, 0]).sum() for t in grid]
    assert fitted == pytest.approx(float(grid[torch.stack(losses).argmin()]), abs=4e-3)
    holes = tb.Predictive(OUTPUTS, Categorical(ignore_index=-100))
    actual = tb.TemperatureScaling.fit(holes, labels.masked_fill(~KEPT, -100)).temperature
    kept = tb.TemperatureScaling.fit(tb.Predictive(OUTPUTS[:, KEPT], Categorical()), labels[KEPT]).temperature
    assert actual == pytest.approx(kept, rel=1e-9)


# labels that follow the average most of the time, so that a temperature is best that is neither 0 nor infinite
GRID = normal(S, B, T, K, seed=8)
LIKELY = OUTPUTS.mean(0).argmax(-1).where(normal(B, seed=5) < 0.8, LABELS)
TOKENS = GRID.mean(0).argmax(-1).where(normal(B, T, seed=5) < 0.8, 0)
HOLED = LIKELY.masked_fill(~KEPT, -100)
SHARES = (2 * OUTPUTS.mean(0) + normal(B, K, seed=6)).softmax(-1)
ONE, TWO = OUTPUTS[..., :1], OUTPUTS[..., :2]
BINARY = (TWO.mean(0) + normal(B, 2, seed=7) > 0).double()
CHANCES = (TWO.mean(0) + normal(B, 2, seed=7)).sigmoid()
CLASSES: dict[str, tuple[Any, Tensor, Any]] = {
    "weighted": (Weighted(Categorical()), OUTPUTS, (LIKELY, WEIGHTS)),
    "weighted, without weights": (Weighted(Categorical()), OUTPUTS, LIKELY),
    "ignored": (Categorical(ignore_index=-100), OUTPUTS, HOLED),
    "weighted, ignored": (Weighted(Categorical(ignore_index=-100)), OUTPUTS, (HOLED, WEIGHTS)),
    "soft": (Categorical(), OUTPUTS, SHARES),
    "places": (Categorical(ignore_index=-100), GRID, TOKENS.masked_fill(normal(B, T) > 0.5, -100)),
    "binary": (Bernoulli(), ONE, BINARY[:, 0]),
    "binary, a column": (Bernoulli(), ONE, BINARY[:, :1]),
    "several binary": (Bernoulli(), TWO, BINARY),
    "soft binary": (Bernoulli(soft=True), ONE, CHANCES[:, :1]),
    "weighted binary": (Weighted(Bernoulli()), ONE, (BINARY[:, :1], WEIGHTS)),
    "custom": (tb.likelihoods.Custom(lambda f: distributions.Categorical(logits=2 * f)), OUTPUTS, LIKELY),
    "custom binary": (
        tb.likelihoods.Custom(lambda f: distributions.Bernoulli(logits=f.squeeze(-1))), ONE, BINARY[:, 0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_temperature_scaling_minimises_the_metric_of_the_same_targets(name: str):
    """Whatever form they have: the negative log likelihood of one averaged distribution a place is least at T."""
    likelihood, outputs, targets = CLASSES[name]
    predictive = tb.Predictive(3 * outputs, likelihood)
    fitted = tb.TemperatureScaling.fit(predictive, targets)
    assert 0.05 < fitted.temperature < 99
    values = [
        tb.evaluate(tb.TemperatureScaling(fitted.temperature * factor)(predictive), targets).metrics["nll"]
        for factor in (0.99, 1.0, 1.01)
    ]
    assert values[1] == min(values)
    before = tb.evaluate(tb.TemperatureScaling(1.0)(predictive), targets).metrics
    assert before.keys() == tb.evaluate(predictive, targets).metrics.keys()
    if name not in {"places", "several binary"}:  # where the average is one of rows, not of places
        assert before["nll"] == pytest.approx(tb.evaluate(predictive, targets).metrics["nll"], rel=1e-9)


def test_temperature_scaling_refuses_what_it_cannot_fit():
    with pytest.raises(ValueError, match="no row counts"):
        tb.TemperatureScaling.fit(tb.Predictive(OUTPUTS, Weighted(Categorical())), (LABELS, torch.zeros(B)))
    with pytest.raises(TypeError, match="class probabilities exist for"):
        tb.TemperatureScaling.fit(tb.Predictive(OUTPUTS, Gaussian(0.5)), normal(B, K))

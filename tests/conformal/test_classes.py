"""Sets of classes against crepes 0.9.1 and MAPIE 1.6.0, loops over classes, and coverage over simulated data."""

import math

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.conformal.cases import classes, forecast
from torchbayes.conformal import APS, LAC, RAPS, calibrate
from torchbayes.conformal.classes import CLASS_SCORES
from torchbayes.conformal.ranks import threshold

FIT, NEW = classes(60), classes(6, 60)[0]
# crepes and MAPIE agree on these
LAC_SETS = {
    0.7: [[1, 0, 0, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 1, 1], [0, 1, 1, 0]],
    0.8: [[1, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]],
    0.9: [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]],
}


@pytest.mark.parametrize("coverage", LAC_SETS)
def test_sets_of_bounded_probability_are_those_of_crepes_and_mapie(coverage):
    actual = calibrate(*FIT, score="lac", coverage=coverage)
    assert actual.sets(NEW).int().tolist() == LAC_SETS[coverage]


def test_sets_with_a_threshold_for_each_class_are_those_of_crepes():
    exact = [[1, 0, 0, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 1], [0, 1, 1, 0]]
    actual = calibrate(*FIT, score="lac", coverage=0.7, groups="class")
    assert actual.sets(NEW).int().tolist() == exact
    assert [each.rows for each in actual.thresholds.values()] == [10, 20, 20, 10]


def test_scores_against_loops_over_classes():
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.4, 0.2], [0.0, 1.0, 0.0]], dtype=torch.float64)
    uniform = torch.tensor([0.3, 0.6, 0.9, 0.1], dtype=torch.float64)
    for share, score in (
        (0.0, APS()),
        (1.0, APS(randomised=True)),
        (1.0, RAPS(0.1, 1, randomised=True)),
        (0.0, RAPS()),
    ):
        penalty = score.penalty if isinstance(score, RAPS) else 0.0
        exact = torch.zeros_like(probs)
        for row, column in torch.cartesian_prod(torch.arange(4), torch.arange(3)).tolist():
            p = probs[row]
            above = float(p[p > p[column]].sum())
            rank = 1 + int((p > p[column]).sum())
            exact[row, column] = above + share * uniform[row] * p[column] + penalty * max(rank - 1, 0)
        assert torch.allclose(score.class_scores(probs, uniform), exact)
    assert torch.equal(RAPS(penalty=0.0).class_scores(probs, uniform), APS().class_scores(probs, uniform))
    assert torch.allclose(LAC().class_scores(probs, uniform), 1 - probs)


def test_randomised_scores_are_those_of_mapie():
    # MAPIE subtracts the share U of the class's own probability from the sum that includes it: 1 − U is our U.
    predictive, labels = FIT
    uniform = 1 - torch.from_numpy(np.random.RandomState(0).uniform(size=60))
    scores = APS(randomised=True).class_scores(predictive.probs, uniform).gather(1, labels.unsqueeze(1))[:, 0]
    actual = [threshold(scores, coverage).value for coverage in (0.7, 0.8, 0.9)]
    assert actual == pytest.approx([0.93409492, 0.97410843, 0.99222327], abs=1e-6)


def _simulated(sets, rows, seed=0):
    """Predictions of too much confidence, and classes."""
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(sets * rows, 6, generator=source, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=source)[:, 0]
    return (2 * logits).softmax(-1), labels, torch.rand(sets * rows, generator=source, dtype=torch.float64)


@pytest.mark.parametrize("score", [LAC(), APS(), APS(randomised=True), RAPS(), RAPS(0.1, 2, randomised=True)])
def test_coverage_over_data_sets(score):
    sets, rows = 1000, 60
    probs, labels, uniform = _simulated(sets, rows + 1)
    scores = score.class_scores(probs, uniform).gather(1, labels.unsqueeze(1)).view(sets, rows + 1)
    covered = scores[:, -1] <= scores[:, :-1].kthvalue(55, dim=1).values
    assert float(covered.double().mean()) == pytest.approx(55 / 61, abs=4 * math.sqrt(0.09 / sets))


def test_randomised_sets_have_their_coverage_and_are_the_same_again():
    probs, labels, _ = _simulated(1, 8000, seed=3)
    some, other = (tb.Predictive.from_probs(part) for part in probs.split(4000))
    actual = calibrate(some, labels[:4000], score=APS(randomised=True), seed=1)
    sets = actual.sets(other)
    assert torch.equal(sets, actual.sets(other))
    assert not torch.equal(sets, calibrate(some, labels[:4000], score=APS(randomised=True), seed=2).sets(other))
    covered = actual.covers(other, labels[4000:])
    assert torch.equal(covered, sets.gather(1, labels[4000:].unsqueeze(1))[:, 0])
    assert float(covered.double().mean()) == pytest.approx(0.9, abs=4 * math.sqrt(2 * 0.09 / 4000))


@pytest.mark.parametrize("name", ["aps", "raps"])
def test_sets_that_are_not_random_hold_the_most_probable_class(name):
    predictive, targets = FIT
    for coverage in (0.01, 0.5, 0.9):
        sets = calibrate(predictive, targets, score=name, coverage=coverage).sets(NEW)
        assert sets.gather(1, NEW.probs.argmax(1, keepdim=True)).all()
    # An accuracy above the coverage: the most probable class alone.
    sets = calibrate(predictive, predictive.probs.argmax(1), score=name).sets(NEW)
    assert sets.sum(1).tolist() == [1] * 6


def test_each_class_has_its_coverage():
    probs, labels, _ = _simulated(1, 12_000, seed=5)
    probs = (probs.log() + torch.tensor([1.5, 0, 0, 0, 0, -1.5])).softmax(-1)  # biased
    some, other = (tb.Predictive.from_probs(part) for part in probs.split(6000))
    actual = calibrate(some, labels[:6000], score="lac", coverage=0.8, groups="class")
    covered = actual.covers(other, labels[6000:])
    plain = calibrate(some, labels[:6000], score="lac", coverage=0.8).covers(other, labels[6000:])
    shares = torch.stack([
        torch.stack([c[labels[6000:] == k].double().mean() for k in range(6)]) for c in (covered, plain)
    ])
    assert ((shares[0] - 0.8).abs() < 0.08).all()
    assert shares[1].min() < 0.7


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_two_classes_by_one_output(shape, dtype):
    source = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 40, 1, generator=source)
    labels = torch.rand(40, generator=source) < logits.mean(0)[:, 0].sigmoid()
    actual = calibrate(tb.Predictive(logits, tb.likelihoods.Bernoulli()), labels.to(dtype).view(shape), score="lac")
    probs = logits.double().sigmoid().mean(0)
    pair = tb.Predictive.from_probs(torch.cat([1 - probs, probs], dim=1))
    same = calibrate(pair, labels.long(), score="lac")
    assert actual.thresholds["all rows"].value == pytest.approx(same.thresholds["all rows"].value)
    assert torch.equal(actual.sets(tb.Predictive(logits, tb.likelihoods.Bernoulli())), same.sets(pair))


def test_a_class_without_rows_is_in_every_set():
    predictive, labels = classes(80)
    with pytest.warns(tb.ProblemWarning, match="0 calibration rows of class 3 are too few for coverage 0.6"):
        actual = calibrate(predictive, labels.clamp_max(2), score="lac", coverage=0.6, groups="class")
    assert actual.sets(NEW)[:, 3].all()
    assert not actual.sets(NEW).all()


def test_one_class_and_equal_scores():
    one = tb.Predictive.from_probs(torch.ones(12, 1))
    equal = tb.Predictive.from_probs(torch.full((12, 3), 1 / 3))
    for name in CLASS_SCORES:
        actual = calibrate(equal, torch.arange(12) % 3, score=name)
        assert actual.sets(equal).all()  # nothing tells classes apart
        assert actual.thresholds["all rows"].expected == 12 / 13
    with pytest.raises(ValueError, match="at least 2"):
        calibrate(one, torch.zeros(12, dtype=torch.int64))


def test_as_many_classes_as_rows():
    source = torch.Generator().manual_seed(0)
    predictive = tb.Predictive.from_probs(torch.randn(20, 20, generator=source).softmax(-1))
    actual = calibrate(predictive, torch.arange(20), score="lac")
    exact = (1 - predictive.probs.double().diagonal()).sort().values[18]
    assert actual.thresholds["all rows"].value == pytest.approx(float(exact))
    assert actual.sets(predictive).shape == (20, 20)


def test_places_and_soft_labels_are_refused():
    logits = torch.zeros(1, 12, 4, 3)
    with pytest.raises(TypeError, match=r"one class for each row; .* \(12, 4, 3\)"):
        calibrate(tb.Predictive(logits, tb.likelihoods.Categorical()), torch.zeros(12, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match="Soft labels"):
        calibrate(tb.Predictive(logits[:, :, 0], tb.likelihoods.Categorical()), torch.full((12, 3), 1 / 3))
    with pytest.raises(TypeError, match="Use `intervals`"):
        calibrate(*forecast(20)).sets(forecast(3)[0])

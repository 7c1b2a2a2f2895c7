"""Calibration of posteriors, groups, weights, files, and what is refused or said."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from tests.conformal.cases import average, classes, forecast
from tests.damage import DAMAGES
from tests.refusals import things
from torchbayes import conformal
from torchbayes.conformal import APS, CQR, PIT, Absolute, Conformal, Forecast, Normalised, calibrate, load

ALL = "all rows"


def _regression(rows=40, likelihood=None):
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 2, generator=source)
    targets = inputs.sum(1, keepdim=True) + torch.randn(rows, 1, generator=source)
    likelihood = likelihood or tb.likelihoods.Gaussian(0.5)
    model = tb.Model(torch.nn.Linear(2, 1), likelihood)
    return tb.Point(model, torch.randn(3, 3, generator=source)), inputs, targets


@pytest.mark.parametrize("score", ["auto", "pit", APS(randomised=True)])
def test_posteriors_functions_loaders_and_predictions_agree(score):
    if isinstance(score, APS):
        posterior, inputs, targets = things.point(), things.INPUTS, things.LABELS
    else:
        posterior, inputs, targets = _regression()
    predictive = tb.predict(posterior, inputs)
    plain = calibrate(predictive, targets, score=score)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=5)
    for source, data in (
        (posterior, (inputs, targets)),
        (posterior.functions(), TensorDataset(inputs, targets)),
        (posterior, loader),
    ):
        assert torch.allclose(calibrate(source, data, score=score).rows.scores_N, plain.rows.scores_N, atol=1e-6)
    pieces = plain.evaluate(posterior, loader)
    whole = plain.evaluate(predictive, targets)
    assert pieces == pytest.approx(whole, rel=1e-5)


def test_the_score_suits_the_targets():
    rows = torch.zeros(1, 12, 1)
    counts, student = tb.likelihoods.Poisson(), tb.likelihoods.StudentT(df=1.5)
    assert calibrate(*classes(20)).score == APS()
    assert calibrate(*average(20)).score == Normalised()
    assert calibrate(tb.Predictive(rows, counts), torch.ones(12, 1)).score == PIT()
    assert calibrate(tb.Predictive(rows, student), torch.linspace(-1, 1, 12).unsqueeze(1)).score == PIT()
    given, targets = forecast(20)
    assert calibrate(given, targets).score == Normalised()
    assert calibrate(Forecast(given.mean), targets).score == Absolute()
    assert calibrate(Forecast(low=given.low, high=given.high), targets, coverage=0.8).score == CQR(0.8)
    assert calibrate(Forecast(given.mean, low=given.low, high=given.high), targets).score == CQR()


def test_a_small_calibration_is_said():
    given, targets = forecast(8)
    with pytest.warns(
        tb.ProblemWarning, match="8 calibration rows are too few for coverage 0.9 .at least 9 are needed"
    ):
        actual = calibrate(given, targets)
    assert [end.tolist() for end in actual.intervals(given)] == [[-math.inf] * 8, [math.inf] * 8]
    assert "1 problem" in repr(actual)
    assert actual.at(0.8).problems == ()
    assert math.isfinite(actual.at(0.8).thresholds[ALL].value)
    with pytest.warns(tb.ProblemWarning, match="too few for coverage 0.95 .at least 19"):
        actual.at(0.95)
    predictive, labels = classes(8)
    with pytest.warns(tb.ProblemWarning, match="too few"):
        assert calibrate(predictive, labels).sets(predictive).all()


def test_a_coverage_may_be_a_number_of_any_library():
    given, targets = forecast(20)
    numbers: tuple[Any, ...] = (np.float32(0.5), torch.tensor(0.5))
    for coverage in numbers:
        assert (
            calibrate(given, targets, coverage=coverage).thresholds
            == calibrate(given, targets, coverage=0.5).thresholds
        )


def test_one_row():
    given, targets = forecast(1)
    assert calibrate(given, targets, coverage=0.5).thresholds[ALL].rows == 1


def test_groups_have_their_thresholds():
    given, targets = forecast(60)
    names = ["north" if i % 3 else "south" for i in range(60)]
    actual = calibrate(given, targets, groups=names, coverage=0.8)
    for name in ("north", "south"):
        mine = torch.tensor([each == name for each in names])
        alone = calibrate(Forecast(given.mean[mine], given.scale[mine]), targets[mine], coverage=0.8)
        assert actual.thresholds[name] == alone.thresholds[ALL]
    new = forecast(3, 60)[0]
    low, high = actual.intervals(new, groups=["south", "north", "south"])
    halves = ((high - low) / 2 / new.scale).tolist()
    assert halves == pytest.approx([actual.thresholds[name].value for name in ("south", "north", "south")])
    with pytest.warns(tb.ProblemWarning, match="no calibration row is of group east"):
        low, _ = actual.intervals(new, groups=["south", "east", "south"])
    assert low.isinf().tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"has 2 groups\. Give `groups`"):
        actual.intervals(new)
    with pytest.raises(ValueError, match="all rows together; got `groups`"):
        calibrate(given, targets).intervals(new, groups=["south"] * 3)
    with pytest.warns(tb.ProblemWarning, match="2 calibration rows of group 1 are too few"):
        calibrate(given, targets, groups=[0] * 58 + [1] * 2)


def test_coverage_of_groups_whose_noise_differs():
    source = torch.Generator().manual_seed(0)
    groups = torch.arange(8000) % 4
    targets = (1 + groups) * torch.randn(8000, generator=source)
    given = Forecast(torch.zeros(4000))
    by_group = calibrate(given, targets[:4000], groups=groups[:4000]).evaluate(
        given, targets[4000:], groups=groups[4000:]
    )
    plain = calibrate(given, targets[:4000]).evaluate(given, targets[4000:], groups=groups[4000:])
    assert all(by_group[f"coverage[{g}]"] == pytest.approx(0.9, abs=0.05) for g in range(4))
    assert plain["coverage[0]"] > 0.98
    assert plain["coverage[3]"] < 0.8
    assert plain["coverage"] == pytest.approx(0.9, abs=0.02)


def test_a_weight_is_a_count():
    posterior, inputs, targets = _regression(likelihood=tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.5)))
    counts = torch.tensor([0, 1, 2, 3]).repeat(10)
    weighted = calibrate(posterior, (inputs, (targets, counts.float())))
    repeated = calibrate(posterior, (inputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts, 0)))
    assert weighted.thresholds[ALL].value == pytest.approx(repeated.thresholds[ALL].value, rel=1e-5)
    predictive = tb.predict(posterior, inputs)
    once = weighted.intervals(predictive, weights=torch.ones(40))
    assert torch.allclose(torch.stack(once), torch.stack(repeated.intervals(predictive)), rtol=1e-5)
    with pytest.raises(ValueError, match="Give `weights`"):
        weighted.intervals(predictive)
    scores = weighted.evaluate(posterior, (inputs, (targets, counts.float())), weights=torch.ones(40))
    again = repeated.evaluate(posterior, (inputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts, 0)))
    assert scores == pytest.approx(again, rel=1e-5)


def test_weights_of_a_shift_in_groups():
    given, targets = forecast(60)
    weights, groups = torch.linspace(0.1, 2, 60), torch.arange(60) % 2
    actual = calibrate(given, targets, weights=weights, groups=groups, coverage=0.7)
    new = forecast(4, 60)[0]
    low, high = actual.intervals(new, groups=[0, 1, 0, 1], weights=torch.tensor([0.1, 0.1, 1.0, 500.0]))
    halves = (high - low) / 2 / new.scale
    for row, (group, weight) in enumerate([(0, 0.1), (1, 0.1), (0, 1.0), (1, 500.0)]):
        mine = groups == group
        alone = calibrate(
            Forecast(given.mean[mine], given.scale[mine]), targets[mine], weights=weights[mine], coverage=0.7
        )
        one = Forecast(new.mean[row : row + 1], new.scale[row : row + 1])
        exact = alone.intervals(one, weights=torch.tensor([weight]))
        assert halves[row] == pytest.approx(float((exact[1] - exact[0]) / 2 / one.scale))
    assert halves.isinf().tolist() == [False, False, False, True]
    by_class = calibrate(*classes(60), weights=weights, groups="class", coverage=0.5)
    assert by_class.sets(classes(5)[0], weights=torch.ones(5)).shape == (5, 4)


def test_ignored_labels_do_not_count():
    predictive, labels = classes(40)
    ignoring = tb.Predictive(predictive.outputs_SBK, tb.likelihoods.Categorical(ignore_index=-100))
    kept = torch.arange(40) % 4 > 0
    actual = calibrate(ignoring, labels.masked_fill(~kept, -100))
    same = calibrate(tb.Predictive(predictive.outputs_SBK[:, kept], tb.likelihoods.Categorical()), labels[kept])
    assert torch.equal(actual.rows.scores_N, same.rows.scores_N)
    with pytest.raises(ValueError, match="no row counts"):
        calibrate(ignoring, torch.full((40,), -100))


def test_a_promise_over_calibration_sets():
    source, sets, rows = torch.Generator().manual_seed(0), 1000, 100
    rank = 95  # the smallest k with P(Beta(k, 101 − k) < 0.9) ≤ 0.1
    given, targets = Forecast(torch.zeros(rows)), torch.rand(rows, generator=source)
    actual = calibrate(given, targets, confidence=0.9)
    assert actual.thresholds[ALL].rank == rank
    # Of uniform scores, the coverage that a threshold gives is the threshold.
    kept = torch.rand(sets, rows, generator=source).kthvalue(rank, dim=1).values >= 0.9
    assert float(kept.double().mean()) >= 0.9 - 3 * math.sqrt(0.09 / sets)
    assert "confidence=0.9" in repr(actual)


@pytest.mark.parametrize("score", ["absolute", "cqr", APS(randomised=True), conformal.RAPS(0.2, 2)])
def test_a_file_gives_the_same_sets(tmp_path, score):
    over_classes = not isinstance(score, str)
    (predictive, targets), new = (classes(60), classes(5)[0]) if over_classes else (forecast(60), forecast(5)[0])
    names = ["a", "b"] * 30
    actual = calibrate(predictive, targets, score=score, coverage=0.7, groups=names, weights=torch.linspace(1, 2, 60))
    again = load(actual.save(tmp_path / "conformal.safetensors"))
    chosen = {"groups": ["b"] * 5, "weights": torch.ones(5)}
    if over_classes:
        assert torch.equal(actual.sets(new, **chosen), again.sets(new, **chosen))
    else:
        assert torch.equal(torch.stack(actual.intervals(new, **chosen)), torch.stack(again.intervals(new, **chosen)))
    assert repr(again) == repr(actual)
    promised = calibrate(predictive, targets, score=score, coverage=0.7, confidence=0.8)
    assert load(promised.save(tmp_path / "promised.safetensors")).thresholds == promised.thresholds


def test_files_of_others_and_scores_of_users(tmp_path):
    posterior, inputs, targets = _regression()
    with pytest.raises(ValueError, match="not a calibration"):
        load(posterior.save(tmp_path / "posterior.safetensors"))
    path = calibrate(posterior, (inputs, targets)).save(tmp_path / "conformal.safetensors")
    whole, damaged = path.read_bytes(), tmp_path / "damaged.safetensors"
    for seed, damage in enumerate(DAMAGES.values()):
        damaged.write_bytes(damage(whole, random.Random(seed), whole[::-1]))
        if damaged.read_bytes() != whole:
            with pytest.raises(ValueError, match=r"damaged|without a torchbayes header|format"):
                load(damaged)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(tmp_path / "nothing.safetensors")

    class Squared:
        def scores(self, prediction, targets):
            return (prediction.mean - targets).square()

        def intervals(self, prediction, thresholds_B):
            half = thresholds_B.sqrt().unsqueeze(1)
            return prediction.mean - half, prediction.mean + half

    actual = calibrate(posterior, (inputs, targets), score=Squared())
    same = calibrate(posterior, (inputs, targets), score="absolute")
    predictive = tb.predict(posterior, inputs)
    assert torch.allclose(torch.stack(actual.intervals(predictive)), torch.stack(same.intervals(predictive)))
    with pytest.raises(ValueError, match="a file names a score of absolute, "):
        actual.save(tmp_path / "squared.safetensors")


def test_scores_of_the_other_kind_are_refused():
    with pytest.raises(TypeError, match="must be one of classes, such as 'aps'"):
        calibrate(*classes(20), score="absolute")
    with pytest.raises(TypeError, match="must be one of numbers, such as 'normalised'"):
        calibrate(*forecast(20), score="aps")
    with pytest.raises(TypeError, match="got the class Absolute"):
        calibrate(*forecast(20), score=Absolute)
    with pytest.raises(TypeError, match="whose distribution the score 'pit' needs"):
        calibrate(*forecast(20), score="pit")
    with pytest.raises(ValueError, match="needs `scale`"):
        calibrate(Forecast(torch.zeros(20)), torch.zeros(20), score="normalised")
    with pytest.raises(ValueError, match="needs `mean`"):
        calibrate(Forecast(low=torch.zeros(20), high=torch.ones(20)), torch.zeros(20), score="absolute")
    actual, predictive = calibrate(*forecast(20)), classes(4)[0]
    with pytest.raises(TypeError, match="Use `sets`"):
        actual.intervals(predictive)
    with pytest.raises(TypeError, match="regions are those of the score 'density'"):
        actual.regions(forecast(4)[0])
    with pytest.raises(TypeError, match="and the targets are numbers"):
        calibrate(*forecast(20), groups="class")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_intervals_have_the_precision_of_predictions_or_float32(dtype):
    predictive, targets = average(60)
    rough = tb.Predictive(predictive.outputs_SBK.to(dtype), predictive.likelihood)
    for score in ("normalised", "pit", "cqr", "density"):
        low, high = calibrate(rough, targets.to(dtype), score=score).intervals(rough)
        assert low.dtype == high.dtype == torch.promote_types(dtype, torch.float32)
        exact = calibrate(predictive, targets, score=score).intervals(predictive)
        assert torch.allclose(low.double(), exact[0], atol=0.1 if dtype == torch.bfloat16 else 1e-4)


def test_wild_targets_leave_intervals_of_levels_infinite_and_others_finite():
    predictive, targets = average(40)
    for score, finite in (("pit", False), ("normalised", True), ("cqr", True), ("density", True)):
        low, high = calibrate(predictive, 1e6 * targets, score=score).intervals(predictive)
        assert bool((high - low).isfinite().all()) is finite


def test_numbers_that_are_predicted_together():
    source = torch.Generator().manual_seed(0)
    joint = tb.likelihoods.Custom(lambda f: torch.distributions.MultivariateNormal(f, torch.eye(2).to(f)))
    predictive, targets = tb.Predictive(torch.zeros(1, 30, 2), joint), torch.randn(30, 2, generator=source)
    actual = calibrate(predictive, targets, score="density")
    exact = targets.double().square().sum(1) / 2 + math.log(2 * math.pi)
    assert torch.allclose(actual.rows.scores_N, exact)
    assert int(actual.covers(predictive, targets).sum()) == 28
    with pytest.raises(TypeError, match="of one real number"):
        actual.intervals(predictive)
    with pytest.raises(TypeError, match="numbers together"):
        calibrate(predictive, targets, score="pit")
    low, high = calibrate(predictive, targets).intervals(predictive)
    assert low.shape == high.shape == (30, 2)


def test_targets_outside_of_the_support():
    positive = tb.likelihoods.Custom(lambda f: torch.distributions.Exponential(f.exp()))
    predictive, targets = tb.Predictive(torch.zeros(2, 30, 1), positive), torch.linspace(-0.1, 2, 30).unsqueeze(1)
    actual = calibrate(predictive, targets, score="density", coverage=0.8)
    low, high = actual.intervals(predictive)
    assert torch.allclose(low, torch.zeros_like(low), atol=1e-12)
    assert torch.allclose(high, torch.full_like(high, actual.thresholds[ALL].value), atol=1e-5)
    assert actual.at(0.95).intervals(predictive)[1].isinf().all()


def test_broadcasting_is_refused():
    given, targets = forecast(20)
    assert torch.equal(calibrate(given, targets.unsqueeze(1)).rows.scores_N, calibrate(given, targets).rows.scores_N)
    with pytest.raises(ValueError, match="must have shape"):
        calibrate(given, targets.unsqueeze(0))
    with pytest.raises(ValueError, match="must have shape"):
        calibrate(given, torch.zeros(20, 20))


def test_equal_scores_cover_all():
    given = Forecast(torch.zeros(30), torch.ones(30))
    actual = calibrate(given, torch.ones(30))
    assert actual.covers(given, torch.ones(30)).all()
    assert actual.thresholds[ALL] == conformal.Threshold(1.0, 28, 30)


def test_a_display():
    actual = calibrate(*forecast(99))
    assert repr(actual).startswith("Conformal(score=Normalised(), coverage=0.9, rows=99, threshold=")
    assert "expected=0.9 ± 0.03" in repr(actual)
    page: Any = actual
    assert "all rows" in page._repr_html_()
    assert isinstance(actual, Conformal)

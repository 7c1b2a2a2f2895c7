"""Conformal intervals and sets of estimators: their coverage over many data sets, which rows calibrate, and files."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import torchbayes as tb
from torchbayes import conformal
from torchbayes import sklearn as estimators
from torchbayes.conformal.ranks import rank_of
from torchbayes.sklearn import BayesianClassifier, BayesianRegressor, Split
from torchbayes.sklearn.estimator import Given
from torchbayes.sklearn.intervals import parted
from torchbayes.sklearn.tables import as_table

QUICK = tb.MAP(epochs=2, batch_size=128)
RNG = np.random.default_rng(0)
N = 240
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
many = pytest.mark.parametrize(
    "sets", [pytest.param(12, id="few"), pytest.param(1000, id="many", marks=pytest.mark.study)]
)


def regressor(**settings) -> BayesianRegressor:
    return BayesianRegressor("linear", **{"method": QUICK, "random_state": 0, "conformal": 0.9, **settings})


def classifier(**settings) -> BayesianClassifier:
    return BayesianClassifier("linear", **{"method": QUICK, "random_state": 0, "conformal": 0.9, **settings})


def rows(seed: int, count: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows that a linear network with normal noise gets wrong: curved, and with heavy tails in one of two towns."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 2)), columns=["a", "b"])
    frame["town"] = rng.choice(["Bonn", "Ulm"], count, p=[0.6, 0.4])
    noise = np.where(frame.town == "Ulm", rng.standard_t(2, count), 0.2 * rng.normal(size=count))
    return frame, (frame.a**2 + noise).to_numpy()


def coverage_over(sets: int, fit, inside, *, seed: int) -> tuple[float, float]:
    """Return the mean coverage of new rows over data sets, and its standard error."""
    covered = []
    for number in range(sets):
        frame, targets = rows(seed + number, N + 200)
        of = fit(number).fit(frame[:N], targets[:N])
        covered.append(inside(of, frame[N:], targets[N:]).mean())
    return float(np.mean(covered)), float(np.std(covered) / math.sqrt(sets))


def within(of, frame, targets, *coverage):
    low, high = of.predict_interval(frame, *coverage).T
    return (low <= targets) & (targets <= high)


@many
def test_intervals_cover_what_the_ranks_say(sets):
    mean, error = coverage_over(sets, lambda seed: regressor(random_state=seed, conformal=0.8), within, seed=1)
    assert abs(mean - rank_of(N // 4, 0.8) / (N // 4 + 1)) < 3.5 * error < 0.05
    own, _ = coverage_over(3, lambda seed: regressor(random_state=seed, conformal=None), within, seed=1)
    assert own > mean + 0.05  # the posterior's own, asked for 0.9


@many
def test_each_group_is_covered(sets):
    def of_town(of, frame, targets):
        return within(of, frame, targets)[(frame.town == "Ulm").to_numpy()]

    split = Split(0.8, score="absolute", groups="town")
    mean, error = coverage_over(sets, lambda seed: regressor(random_state=seed, conformal=split), of_town, seed=2)
    assert 0.8 - 3.5 * error < mean < 0.8 + 3.5 * error + 1 / 20  # about 24 rows of the town calibrate
    together, _ = coverage_over(5, lambda _: regressor(conformal=Split(0.8, score="absolute")), of_town, seed=2)
    assert together < mean - 0.05


@many
def test_sets_cover_their_classes(sets):
    def holds(of, frame, targets):
        numbers = np.searchsorted(of.classes_, np.sign(targets.round()))
        return of.predict_set(frame)[np.arange(len(frame)), numbers]

    class OfSigns(BayesianClassifier):
        def fit(self, X, y, sample_weight=None):
            return super().fit(X, np.sign(y.round()), sample_weight)

    settings = {"method": QUICK, "conformal": Split(0.8, score=conformal.APS(randomised=True))}
    mean, error = coverage_over(sets, lambda seed: OfSigns("linear", random_state=seed, **settings), holds, seed=3)
    assert abs(mean - rank_of(N // 4, 0.8) / (N // 4 + 1)) < 3.5 * error < 0.05


FRAME, TARGETS = rows(0, N)
CLASSES = np.where(TARGETS > 1, "high", "low")
SEVERAL = np.c_[TARGETS, 1e3 * FRAME.b + 1e4, RNG.normal(size=N)]


@pytest.mark.parametrize("targets", [TARGETS, SEVERAL], ids=["one", "several"])
def test_the_calibration_is_that_of_the_library_on_rows_that_were_not_fitted(targets):
    of = regressor().fit(FRAME, targets)
    fitted, held = parted(Given(as_table(FRAME), targets, None), Split(0.9), of.seed_)
    assert (len(held.targets), len(fitted.targets)) == (60, 180)
    assert np.array_equal(np.sort(np.r_[held.targets, fitted.targets], 0), np.sort(targets, 0))
    mask = np.isin(targets.reshape(N, -1)[:, 0], held.targets)
    plain = regressor(conformal=None).fit(FRAME[~mask], targets[~mask])
    assert np.array_equal(plain.predict(FRAME), of.predict(FRAME))
    mean, std = plain.predict(FRAME, return_std=True)
    calibration = conformal.calibrate(conformal.Forecast(mean[mask], std[mask]), targets[mask], coverage=0.9)
    for coverage in (0.9, 0.6):
        ends = torch.stack(calibration.at(coverage).intervals(conformal.Forecast(mean, std)), dim=-1)
        np.testing.assert_allclose(of.predict_interval(FRAME, coverage), ends, rtol=1e-4, atol=1e-4)


def test_the_order_of_rows_and_weights_as_counts_change_nothing():
    order = RNG.permutation(N)
    whole = regressor().fit(FRAME, TARGETS).predict_interval(FRAME)
    assert np.array_equal(regressor().fit(FRAME.iloc[order], TARGETS[order]).predict_interval(FRAME), whole)
    counts = RNG.integers(0, 3, N)
    weighted = regressor().fit(FRAME, TARGETS, sample_weight=counts).predict_interval(FRAME)
    repeated = regressor().fit(FRAME.loc[np.repeat(np.arange(N), counts)], np.repeat(TARGETS, counts))
    assert np.array_equal(weighted, repeated.predict_interval(FRAME))
    parts = regressor().fit(FRAME[:50], TARGETS[:50]).partial_fit(FRAME[50:], TARGETS[50:])
    assert np.array_equal(parts.predict_interval(FRAME), whole)


def test_weights_that_are_no_counts_weigh_scores():
    of = regressor(conformal=Split(0.8)).fit(FRAME, TARGETS, sample_weight=np.where(FRAME.town == "Ulm", 2.5, 0.5))
    assert of.conformal_.rows.weights_N.unique().tolist() == [0.5, 2.5]
    assert 0.75 < within(of, FRAME, TARGETS).mean() < 1


def test_a_row_has_one_interval_and_one_set_whatever_other_rows_there_are():
    of = regressor(conformal=Split(0.8, groups="town")).fit(FRAME, TARGETS)
    more = pd.concat([FRAME, FRAME])
    assert np.array_equal(of.predict_interval(more)[N:], of.predict_interval(FRAME))
    assert np.array_equal(of.predict_interval(more[255:258]), of.predict_interval(more)[255:258])
    sets = classifier(conformal=Split(0.8, score="raps", groups="class")).fit(FRAME, CLASSES)
    assert np.array_equal(sets.predict_set(more)[N:], sets.predict_set(FRAME))


def test_groups_of_classes_have_their_names():
    labels = np.where(np.arange(len(CLASSES)) == 7, "rare", CLASSES.astype(str))
    of = classifier(conformal=Split(0.8, groups="class"))
    with pytest.warns(tb.ProblemWarning, match="calibration rows of class rare are too few"):
        of.fit(FRAME, labels)
    assert [*of.conformal_.thresholds] == of.classes_.tolist()


def test_sets_without_a_calibration_are_the_most_probable_classes():
    of = classifier(conformal=None).fit(FRAME, np.round(TARGETS).clip(0, 2))
    probs = of.predict_proba(FRAME)
    sets = of.predict_set(FRAME, 0.7)
    total = (probs * sets).sum(1)
    least = np.where(sets, probs, np.inf).min(1)
    assert ((total >= 0.7) & (total - least < 0.7)).all()
    assert (np.where(sets, 0, probs).max(1) <= least).all()
    assert np.array_equal(of.predict_set(FRAME), of.predict_set(FRAME, 0.9))


@pytest.mark.parametrize("split", [0.8, Split(0.7, groups="town", confidence=0.9), Split(score=conformal.CQR(0.5))])
def test_files_keep_intervals(split, tmp_path):
    of = regressor(conformal=split).fit(FRAME, TARGETS)
    loaded = estimators.load(estimators.save(of, tmp_path / "estimator.safetensors"))
    for coverage in (None, 0.5):
        assert np.array_equal(loaded.predict_interval(FRAME, coverage), of.predict_interval(FRAME, coverage))
    again = loaded.set_params(method=QUICK).fit(FRAME, TARGETS)
    assert np.array_equal(again.predict_interval(FRAME), of.predict_interval(FRAME))


def test_files_keep_sets_and_refuse_scores_that_they_cannot_name(tmp_path):
    of = classifier(conformal=Split(0.8, score="raps", groups="class")).fit(FRAME, CLASSES)
    loaded = estimators.load(estimators.save(of, tmp_path / "estimator.safetensors"))
    assert np.array_equal(loaded.predict_set(FRAME), of.predict_set(FRAME))
    assert loaded.conformal.score == conformal.RAPS()

    class Doubled(conformal.Absolute):
        pass

    own = regressor(conformal=Split(score=Doubled())).fit(FRAME, TARGETS)
    with pytest.raises(ValueError, match="a file names a score of"):
        estimators.save(own, tmp_path / "own.safetensors")


def test_too_few_rows_are_said():
    with pytest.warns(tb.ProblemWarning, match="5 calibration rows are too few for coverage 0.9"):
        of = regressor().fit(FRAME[:10], TARGETS[:10])
    assert np.isinf(of.predict_interval(FRAME)).all()
    assert np.isfinite(of.predict_interval(FRAME, 0.8)).all()
    plenty = regressor().fit(FRAME, TARGETS)
    with pytest.warns(tb.ProblemWarning, match="60 calibration rows are too few for coverage 0.99"):
        assert np.isinf(plenty.predict_interval(FRAME, 0.99)).all()
    assert [Split().size(n) for n in (2, 10, 20, 60, 400, 10**6)] == [1, 5, 9, 15, 100, 10_000]
    with warnings.catch_warnings():
        warnings.simplefilter("error", tb.ProblemWarning)
        plenty.predict_interval(FRAME, 0.95)


def test_counts_and_classes_that_no_fitted_row_has():
    counts = regressor(likelihood="poisson").fit(FRAME, np.round(np.exp(FRAME.a)))
    assert isinstance(counts.conformal_.score, conformal.PIT)
    assert (counts.predict_interval(FRAME) >= 0).all()
    rare = CLASSES.copy()
    rare[0] = "once"
    for seed in range(4):  # with one of these the row calibrates
        assert classifier(random_state=seed).fit(FRAME, rare).predict_set(FRAME).shape == (N, 3)


HOSTILE = {
    "none": (lambda: regressor(conformal="0.9"), TypeError, "a coverage, such as 0.9, or a torchbayes.sklearn.Split"),
    "percent": (lambda: regressor(conformal=90), ValueError, "between 0 and 1"),
    "coverage": (lambda: Split(1.0), ValueError, "between 0 and 1"),
    "score": (lambda: Split(score="asp"), ValueError, "Did you mean"),
    "classes": (lambda: regressor(conformal=Split(score="aps")), TypeError, "one of numbers, such as 'normalised'"),
    "column": (lambda: regressor(conformal=Split(groups="twon")), ValueError, "Did you mean town"),
    "numbers": (lambda: regressor(conformal=Split(groups="a")), ValueError, "texts, flags or whole numbers"),
    "class": (lambda: regressor(conformal=Split(groups="class")), TypeError, "the targets are numbers"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_settings_are_refused_in_words(name):
    make, error, words = HOSTILE[name]
    with pytest.raises(error, match=words):
        make().fit(FRAME, TARGETS)


def test_new_groups_have_no_bound():
    of = regressor(conformal=Split(groups="town")).fit(FRAME, TARGETS)
    with (
        pytest.warns(UserWarning, match=r"'town' that no training row has \(Trier\)"),
        pytest.warns(tb.ProblemWarning, match="no calibration row is of group Trier"),
    ):
        ends = of.predict_interval(FRAME[:2].assign(town=["Trier", "Ulm"]))
    assert torch.from_numpy(ends).isinf().all(1).tolist() == [True, False]

"""Estimators on tables: what they learn, in which units, from which rows, and how they are used by scikit-learn."""

import pickle
import warnings
from functools import cache, partial
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import calibration_curve
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import torchbayes as tb
from tests.catalogue.mine import build
from torchbayes import sklearn as estimators
from torchbayes.posteriors.files import read_tensors, write_tensors
from torchbayes.sklearn import BayesianClassifier, BayesianMLPRegressor, BayesianRegressor

QUICK = tb.MAP(members=2, epochs=12, batch_size=32, optimizer=tb.Adam(0.01))
RNG = np.random.default_rng(0)
N = 120
NUMBERS = RNG.normal(size=(N, 3))
TARGETS = 3 * NUMBERS[:, 0] + NUMBERS[:, 1] * NUMBERS[:, 2] + 0.3 * RNG.normal(size=N)
CLASSES = np.where(TARGETS > 1, "high", np.where(TARGETS < -1, "low", "middle"))
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")


def mixed() -> pd.DataFrame:
    """A data frame with numbers, texts, categories, flags, dates, and missing values."""
    frame = pd.DataFrame(NUMBERS, columns=["a", "b", "c"])
    frame["town"] = RNG.choice(["Ulm", "Bonn", "Köln"], N)
    frame["size"] = pd.Categorical(RNG.choice(["s", "m"], N))
    frame["sold"] = RNG.random(N) < 0.5
    frame["day"] = pd.date_range("2024-01-01", periods=N)
    frame.loc[[2, 5], "a"] = np.nan
    frame.loc[7, "town"] = None
    return frame


def regressor(**settings) -> BayesianRegressor:
    return BayesianRegressor(**{"method": QUICK, "random_state": 0, **settings})


def classifier(**settings) -> BayesianClassifier:
    return BayesianClassifier(**{"method": QUICK, "random_state": 0, **settings})


@cache
def fitted(kind):
    """An estimator fitted to the mixed frame."""
    return kind().fit(FRAME, TARGETS if kind is regressor else CLASSES)


FRAME = mixed()
KINDS = [regressor, classifier]
TARGETS_OF = {regressor: TARGETS, classifier: CLASSES}
each = pytest.mark.parametrize("kind", KINDS)


@each
def test_the_order_of_rows_changes_nothing(kind):
    order = np.random.default_rng(1).permutation(N)
    shuffled = kind().fit(FRAME.iloc[order], TARGETS_OF[kind][order])
    assert np.array_equal(shuffled.predict(FRAME), fitted(kind).predict(FRAME))


@each
@pytest.mark.filterwarnings("ignore:Missing values of 'a'")  # which are all among the rows that are held out
@pytest.mark.parametrize("conformal", [None, 0.8])
def test_a_row_gives_the_same_numbers_whatever_other_rows_there_are(kind, conformal):
    of: Any = kind(method=tb.SWAG(epochs=4, batch_size=32), conformal=conformal).fit(FRAME, TARGETS_OF[kind])
    interval = (of.predict_interval,) if kind is regressor else (of.predict_proba, of.predict_set)
    for verb in (of.predict, *interval):
        expected = verb(FRAME)
        for rows in (slice(0, 1), slice(3, 50), [5, 5, 80], np.random.default_rng(1).permutation(N)):
            assert np.array_equal(verb(FRAME.iloc[rows]), expected[rows])


@each
def test_weights_are_counts(kind):
    counts = np.random.default_rng(2).integers(0, 4, N)
    weighted = kind().fit(FRAME, TARGETS_OF[kind], sample_weight=counts)
    repeated = kind().fit(FRAME.loc[np.repeat(np.arange(N), counts)], np.repeat(TARGETS_OF[kind], counts))
    assert np.array_equal(weighted.predict(FRAME), repeated.predict(FRAME))


def test_other_weights_weigh_the_likelihood():
    weights = np.random.default_rng(3).random(N)
    of = regressor(
        network="linear",
        likelihood=tb.likelihoods.Gaussian(scale=1.0),
        prior=tb.priors.Normal(1.0),
        method=tb.MAP(epochs=400, batch_size=N, optimizer=tb.Adam(0.05)),
    ).fit(NUMBERS, TARGETS, sample_weight=weights)
    inputs = np.c_[(NUMBERS - NUMBERS.mean(0)) / NUMBERS.std(0), np.ones(N)]
    precision = inputs.T @ (weights[:, None] * inputs) + np.eye(4)
    standardised = (TARGETS - TARGETS.mean()) / TARGETS.std()
    mode = np.linalg.solve(precision, inputs.T @ (weights * standardised))
    np.testing.assert_allclose(of.predict(NUMBERS), inputs @ mode * TARGETS.std() + TARGETS.mean(), atol=1e-3)


@each
def test_rows_in_parts_give_the_fit_of_all(kind):
    targets, first, rest = TARGETS_OF[kind], slice(0, 50), slice(50, N)
    parts = kind().partial_fit(FRAME[first], targets[first])
    parts.partial_fit(FRAME[rest], targets[rest], sample_weight=np.ones(70))
    assert np.array_equal(parts.predict(FRAME), fitted(kind).predict(FRAME))
    after = kind().fit(FRAME[first], targets[first]).partial_fit(FRAME[rest], targets[rest])
    assert np.array_equal(after.predict(FRAME), fitted(kind).predict(FRAME))


def test_a_part_may_be_one_row():
    of = regressor().partial_fit(NUMBERS[:-1], TARGETS[:-1]).partial_fit(NUMBERS[-1:], TARGETS[-1:])
    assert np.array_equal(of.predict(NUMBERS), regressor().fit(NUMBERS, TARGETS).predict(NUMBERS))
    flags = pd.Series(TARGETS > 0, dtype=object)
    assert classifier().fit(NUMBERS, flags).classes_.tolist() == [False, True]


def test_columns_without_names_are_those_of_the_fit_in_their_order():
    frame = pd.DataFrame(NUMBERS, columns=["a", "b", "c"])
    numbered = pd.DataFrame(NUMBERS)  # whose columns are numbers, of which scikit-learn keeps no names
    fitted = {name: regressor().fit(rows, TARGETS) for name, rows in (("frame", frame), ("array", NUMBERS))}
    for name, other in (("frame", NUMBERS), ("array", frame), ("frame", numbered), ("array", numbered)):
        same = frame if name == "frame" else NUMBERS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of scikit-learn
            actual = fitted[name].predict(other)
        np.testing.assert_array_equal(actual, fitted[name].predict(same))
    of_numbers = regressor().fit(numbered, TARGETS)
    np.testing.assert_array_equal(of_numbers.predict(NUMBERS), fitted["array"].predict(NUMBERS))
    assert len(np.asarray(of_numbers.partial_fit(NUMBERS, TARGETS).predict(numbered))) == N
    with pytest.raises(ValueError, match="feature names"):
        fitted["frame"].predict(frame.rename(columns={"a": "d"}))


def test_classes_of_later_parts_are_named_in_the_first():
    first = classifier().partial_fit(NUMBERS[:40], np.zeros(40), classes=[0, 1, 2])
    assert first.predict_proba(NUMBERS[:2]).shape == (2, 3)
    assert list(first.classes_) == [0, 1, 2]


def test_parts_whose_columns_are_of_other_kinds_are_joined_by_their_values():
    parts = FRAME[["a", "b"]].assign(c=None), FRAME[["a", "b", "c"]].astype(object)
    of = regressor().partial_fit(parts[0], TARGETS).partial_fit(parts[1], TARGETS)
    assert any("3 numbers (a, b, c)" in note for note in of.notes_)
    assert any("c (120)" in note for note in of.notes_)
    whole = regressor().fit(pd.concat([parts[0].astype(float), FRAME[["a", "b", "c"]]]), np.tile(TARGETS, 2))
    assert np.array_equal(of.predict(FRAME[["a", "b", "c"]]), whole.predict(FRAME[["a", "b", "c"]]))


def test_quantiles_intervals_samples_and_distribution_are_of_one_average():
    of = fitted(regressor)
    rows, levels = FRAME[:20], [0.05, 0.5, 0.95]
    distribution, quantiles = of.predict_dist(rows), of.predict_quantile(rows, levels)
    below = distribution.cdf(torch.from_numpy(quantiles.T)).T
    np.testing.assert_allclose(below.numpy(), np.tile(levels, (20, 1)), atol=1e-5)
    np.testing.assert_allclose(of.predict_interval(rows, 0.9), quantiles[:, [0, 2]], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of.predict_quantile(rows, 0.5), quantiles[:, 1])
    mean, std = of.predict(rows, return_std=True)
    np.testing.assert_allclose(mean, distribution.mean.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(std, distribution.stddev.numpy(), rtol=1e-4)
    drawn = of.sample(rows, 4000)
    assert drawn.shape == (20, 4000)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=5 * std.max() / 4000**0.5)


def test_targets_have_units():
    whole = tb.MAP(epochs=15, batch_size=N)  # the order of rows depends on their numbers
    usual, scaled = (regressor(method=whole).fit(NUMBERS, y) for y in (TARGETS, 1e9 + 1e6 * TARGETS))
    mean, std = usual.predict(NUMBERS, return_std=True)
    mean_scaled, std_scaled = scaled.predict(NUMBERS, return_std=True)
    np.testing.assert_allclose((mean_scaled - 1e9) / 1e6, mean, atol=1e-3)
    np.testing.assert_allclose(std_scaled / 1e6, std, rtol=1e-3)


@pytest.mark.parametrize(
    ("settings", "targets"),
    [
        ({"likelihood": "gaussian"}, TARGETS),
        ({"likelihood": "student_t"}, TARGETS),
        ({"likelihood": "poisson"}, np.round(np.exp(0.3 * TARGETS))),
        ({"likelihood": tb.likelihoods.Gaussian(scale=0.5), "prior": tb.priors.Laplace(1.0)}, TARGETS),
        ({"network": nn.Linear(3, 2)}, TARGETS),
        ({"network": nn.Linear, "method": tb.VI(epochs=15, batch_size=16)}, TARGETS),
    ],
    ids=["gaussian", "student_t", "poisson", "objects", "module", "function"],
)
def test_every_likelihood_and_network_goes_through_every_verb(settings, targets):
    of = regressor(**settings).fit(NUMBERS, targets)
    low, high = of.predict_interval(NUMBERS, 0.8).T
    assert 0.5 < np.mean((low <= targets) & (targets <= high)) <= 1
    np.testing.assert_allclose(of.predict_dist(NUMBERS).mean.numpy(), of.predict(NUMBERS), rtol=1e-4, atol=1e-4)


def test_two_classes_take_a_single_output():
    of = classifier(likelihood="bernoulli").fit(NUMBERS, TARGETS > 0)
    probs = of.predict_proba(NUMBERS)
    np.testing.assert_allclose(probs.sum(1), 1)
    assert of.posterior_.model.network.module[-1].out_features == 1
    assert of.score(NUMBERS, TARGETS > 0) > 0.8
    drawn = of.sample(NUMBERS, 500)
    np.testing.assert_allclose((drawn == of.classes_[1]).mean(1), probs[:, 1], atol=0.12)
    assert torch.equal(of.predict_dist(NUMBERS).probs, torch.from_numpy(probs))


@each
def test_scikit_learn_composes_them(kind):
    frame, targets = NUMBERS, TARGETS_OF[kind]
    pipeline = make_pipeline(StandardScaler(), kind())
    assert cross_val_score(pipeline, frame, targets, cv=2).shape == (2,)
    search = GridSearchCV(kind(), {"method__epochs": [1, QUICK.epochs]}, cv=2).fit(frame, targets)
    assert search.best_params_["method__epochs"] == QUICK.epochs
    importance: Any = permutation_importance(search.best_estimator_, frame, targets, n_repeats=2, random_state=0)
    assert importance.importances_mean.argmax() == 0
    copy: Any = clone(kind())
    assert copy.get_params() == kind().get_params()


def test_settings_of_a_method_are_parameters():
    of = regressor()
    assert of.get_params()["method__optimizer__lr"] == QUICK.optimizer.lr
    of.set_params(method=tb.SWAG(), method__members=3, method__optimizer__lr=0.02, random_state=1)
    assert of.method == tb.SWAG(members=3, optimizer=tb.Adam(0.02))
    copy: Any = clone(of)
    assert (of.random_state, copy.get_params()) == (1, of.get_params())
    with pytest.raises(ValueError, match=r"`method` has no setting 'epoch'\. Did you mean epochs"):
        of.set_params(method__epoch=3)
    with pytest.raises(ValueError, match="`optimizer` has no setting 'rate'"):
        of.set_params(method__optimizer__rate=3)
    with pytest.raises(ValueError, match="Invalid parameter 'methods'"):
        of.set_params(methods__epochs=3)
    with pytest.raises(ValueError, match="`method` is 'auto', which has no settings such as 'epochs'"):
        BayesianRegressor().set_params(method__epochs=3)


def perceptron(inputs: int, outputs: int, width: int = 6, *, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width, bias=bias), nn.Tanh(), nn.Linear(width, outputs))


def test_arguments_of_a_network_are_parameters():
    of: Any = classifier(network=perceptron)
    assert {name: value for name, value in of.get_params().items() if name.startswith("network__")} == {
        "network__width": 6,
        "network__bias": True,
    }
    search = GridSearchCV(of, {"network__width": [2, 9], "method__epochs": [12]}, cv=2)
    best: Any = search.fit(NUMBERS, CLASSES).best_estimator_
    shapes = best.posterior_.model.layout.shapes
    assert shapes["0.weight"] == (search.best_params_["network__width"], 3)
    direct = classifier(network=partial(perceptron, width=search.best_params_["network__width"])).fit(NUMBERS, CLASSES)
    again = cast(Any, clone(best)).fit(NUMBERS, CLASSES)
    for other in (direct, pickle.loads(pickle.dumps(best)), again):
        np.testing.assert_array_equal(other.predict_proba(NUMBERS), best.predict_proba(NUMBERS))
    with pytest.raises(ValueError, match=r"`network` has no setting 'depth'\. Did you mean width"):
        best.set_params(network__depth=3)
    with pytest.raises(ValueError, match="`network` is an object of type Sequential, which has no settings"):
        classifier(network=perceptron(3, 3)).set_params(network__width=3)


def test_probabilities_give_a_calibration_curve():
    of = classifier().fit(NUMBERS, TARGETS > 0)
    observed, predicted = calibration_curve(TARGETS > 0, of.predict_proba(NUMBERS)[:, 1], n_bins=3)
    assert len(observed) == len(predicted) > 1


@each
def test_files_give_the_estimator_back(kind, tmp_path):
    of = fitted(kind)
    path = estimators.save(of, tmp_path / "estimator.safetensors")
    loaded = estimators.load(path)
    assert type(loaded) is type(of)
    assert np.array_equal(loaded.predict(FRAME), of.predict(FRAME))
    assert loaded.notes_ == of.notes_
    with pytest.raises(ValueError, match="not saved with it"):
        loaded.partial_fit(FRAME, TARGETS_OF[kind])
    again = pickle.loads(pickle.dumps(of))
    assert np.array_equal(again.predict(FRAME), of.predict(FRAME))
    assert not hasattr(again, "_rows")


def test_what_is_no_name_is_given_again(tmp_path):
    of = BayesianRegressor(nn.Linear(3, 2), method=QUICK).fit(NUMBERS, TARGETS)
    path = estimators.save(of, tmp_path / "estimator.safetensors")
    with pytest.raises(ValueError, match="network that is not in its file"):
        estimators.load(path)
    with pytest.raises(ValueError, match="missing"):
        estimators.load(path, network="mlp")
    loaded = estimators.load(path, network=nn.Linear(3, 2))
    assert np.array_equal(loaded.predict(NUMBERS), of.predict(NUMBERS))
    model = tb.Model(nn.Linear(3, 1), tb.likelihoods.Gaussian(scale=1.0))
    tb.fit(model, (torch.ones(4, 3), torch.ones(4, 1)), QUICK).save(tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="without a table"):
        estimators.load(tmp_path / "plain.safetensors")


def test_an_import_path_names_a_network(tmp_path):
    of = regressor(network="tests.catalogue.mine:build").fit(NUMBERS, TARGETS)
    direct = regressor(network=lambda inputs, outputs: build((inputs,), outputs)).fit(NUMBERS, TARGETS)
    assert np.array_equal(of.predict(NUMBERS), direct.predict(NUMBERS))
    path = estimators.save(of, tmp_path / "estimator.safetensors")
    with pytest.raises(ValueError, match="network that is not in its file"):
        estimators.load(path)
    assert np.array_equal(estimators.load(path, network=of.network).predict(NUMBERS), of.predict(NUMBERS))


def test_a_file_chooses_no_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    trap = (
        "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\nfrom torchbayes.likelihoods import *\n"
    )
    (tmp_path / "trap.py").write_text(trap.replace("torchbayes.likelihoods", "torchbayes.model.likelihoods"))
    path = estimators.save(fitted(regressor), tmp_path / "estimator.safetensors")
    tensors, header = read_tensors(path)
    for setting in ("likelihood", "method"):
        header["estimator"]["settings"][setting] = "trap:HeteroscedasticGaussian"
        write_tensors(path, tensors, header)
        with pytest.raises(ValueError, match="likelihood that is not in its file"):
            estimators.load(path)
        loaded = estimators.load(path, likelihood=tb.likelihoods.HeteroscedasticGaussian())
        assert np.array_equal(loaded.predict(FRAME), fitted(regressor).predict(FRAME))
        assert loaded.get_params()["method"] == "auto"
    assert not (tmp_path / "trap.ran").exists()


def test_perceptrons_keep_their_settings_in_files(tmp_path):
    of = BayesianMLPRegressor((7,), "tanh", method=QUICK).fit(NUMBERS, TARGETS)
    loaded = estimators.load(estimators.save(of, tmp_path / "estimator.safetensors"))
    assert (list(loaded.hidden), loaded.activation) == ([7], "tanh")
    assert np.array_equal(loaded.predict(NUMBERS), of.predict(NUMBERS))


def test_new_values_are_taken_as_none_and_polars_as_pandas():
    of = fitted(regressor)
    new = FRAME[:1].assign(town="Trier", a=np.nan)
    with pytest.warns(UserWarning, match=r"'town' that no training row has \(Trier\), taken as none of its values: 1"):
        assert np.isfinite(of.predict(new)).all()
    polars = pytest.importorskip("polars")
    lists = FRAME.astype({"size": str}).to_dict("list")
    frame = polars.DataFrame({name: [None if pd.isna(v) else v for v in values] for name, values in lists.items()})
    assert np.array_equal(of.predict(frame), of.predict(FRAME))


def test_flags_may_be_missing_in_new_rows_alone():
    of = fitted(regressor)
    new = FRAME[:3].assign(sold=pd.array([True, None, False], dtype="boolean"))
    expected = of.predict(FRAME[:3].assign(sold=[True, FRAME["sold"].median() > 0, False]))
    with pytest.warns(UserWarning, match="Missing values of 'sold' that are taken for the median, 1: 1"):
        assert np.array_equal(of.predict(new), expected)


HOSTILE = {
    "infinite": (lambda: regressor().fit(np.where(NUMBERS > 2, np.inf, NUMBERS), TARGETS), "infinity"),
    "missing target": (lambda: regressor().fit(NUMBERS, np.where(TARGETS > 2, np.nan, TARGETS)), "y contains NaN"),
    "one row": (lambda: regressor().fit(FRAME[:1], TARGETS[:1]), "1 sample"),
    "one class": (lambda: classifier().fit(NUMBERS, np.ones(N)), "one class"),
    "constant": (lambda: regressor().fit(np.ones((N, 2)), TARGETS), "no column of X can be an input"),
    "continuous classes": (lambda: classifier().fit(NUMBERS, TARGETS), "continuous"),
    "two of a name": (lambda: regressor().fit(FRAME[["a", "a"]], TARGETS), "more than one column 'a'"),
    "other columns": (lambda: fitted(regressor).predict(FRAME[["a", "b"]]), "feature names"),
    "wide": (lambda: regressor().fit(np.zeros((2, 20_001)), [0, 1]), "at most 20,000 columns"),
    "method": (lambda: regressor(method="SWAGG").fit(NUMBERS, TARGETS), "Did you mean SWAG"),
    "network": (lambda: regressor(network="mpl").fit(NUMBERS, TARGETS), "Did you mean mlp"),
    "likelihood": (lambda: regressor(likelihood="normal").fit(NUMBERS, TARGETS), "gaussian, heteroscedastic"),
    "counts": (lambda: regressor(likelihood="poisson").fit(NUMBERS, TARGETS), "must be counts"),
    "three classes": (lambda: classifier(likelihood="bernoulli").fit(NUMBERS, CLASSES), "for two classes"),
    "negative weight": (lambda: regressor().fit(NUMBERS, TARGETS, sample_weight=-np.ones(N)), "Negative values"),
    "no weight": (lambda: regressor().fit(NUMBERS, TARGETS, sample_weight=np.zeros(N)), "non-zero"),
    "missing classes": (lambda: classifier().fit(NUMBERS, [None, *CLASSES[1:]]), "no class in 1 rows, .* row 1"),
    "absent classes": (
        lambda: classifier().fit(FRAME, pd.Series(CLASSES, dtype="string").where(TARGETS < 1)),
        "no class",
    ),
    "dates": (lambda: regressor().fit(NUMBERS, FRAME["day"]), "dates or time spans. Give days"),
    "large": (lambda: regressor().fit(NUMBERS, 1e300 * TARGETS), "y has numbers up to .*e.301. Use another unit"),
    "small": (lambda: regressor().fit(NUMBERS, np.c_[TARGETS, 1e-300 * TARGETS]), "y has numbers up to .*e-299"),
    "small column": (lambda: regressor().fit(1e-300 * NUMBERS, TARGETS), "column 'x0' has numbers up to .*e-300"),
    "one weight": (lambda: regressor().fit(NUMBERS, TARGETS, np.arange(N) == 5), "only one row is left to fit"),
    "two rows to share": (lambda: regressor(conformal=0.9).fit(FRAME[:2], TARGETS[:2]), "only one row is left to fit"),
    "samples": (lambda: fitted(regressor).sample(FRAME, 0), "`n_samples` must be"),
    "samples of classes": (lambda: fitted(classifier).sample(FRAME, -1), "`n_samples` must be"),
    "no coverage": (lambda: fitted(regressor).predict_interval(FRAME, 1), "`coverage` must lie between 0 and 1"),
    "lengths": (lambda: regressor().fit(FRAME, TARGETS[:-1]), "inconsistent numbers of samples"),
    "level": (lambda: fitted(regressor).predict_quantile(FRAME, [0.5, 2.0]), "must lie in"),
    "coverage": (lambda: fitted(regressor).predict_interval(FRAME, 90), "between 0 and 1"),
    "jobs": (lambda: regressor(n_jobs=0).fit(NUMBERS, TARGETS), "n_jobs"),
    "verbose": (lambda: regressor(verbose="yes").fit(NUMBERS, TARGETS), "verbose"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_input_is_refused_in_words(name):
    call, words = HOSTILE[name]
    with pytest.raises(ValueError, match=words):
        call()


def test_other_things_than_methods_and_networks_are_refused():
    with pytest.raises(TypeError, match="Write SWAG"):
        regressor(method=tb.SWAG).fit(NUMBERS, TARGETS)
    with pytest.raises(TypeError, match="`network` must be"):
        regressor(network=5).fit(NUMBERS, TARGETS)
    with pytest.raises(TypeError, match="`levels` must be numbers"):
        fitted(regressor).predict_quantile(FRAME, "median")
    with pytest.raises(TypeError, match="`n_jobs` must be a whole number"):
        regressor(n_jobs=1.5).fit(NUMBERS, TARGETS)
    frames = type("LazyFrame", (), {"columns": ["a"]})
    with pytest.raises(TypeError, match="pandas or polars"):
        regressor().fit(frames(), TARGETS)
    with pytest.raises(TypeError, match="a fitted"):
        estimators.save(cast("Any", "regressor"), "x.safetensors")


@pytest.mark.filterwarnings("error")
def test_targets_that_are_all_the_same_are_said():
    with pytest.warns(tb.ProblemWarning, match="all targets are the same"):
        regressor().fit(NUMBERS, np.ones(N))


def test_masked_numbers_are_missing():
    masked = np.ma.masked_array(np.where(NUMBERS > 2, 1e9, NUMBERS), mask=NUMBERS > 2)
    of = regressor().fit(masked, TARGETS)
    plain = regressor().fit(np.where(NUMBERS > 2, np.nan, NUMBERS), TARGETS)
    assert np.array_equal(of.predict(masked), plain.predict(np.where(NUMBERS > 2, np.nan, NUMBERS)))
    with pytest.raises(ValueError, match="y contains NaN"):
        regressor().fit(NUMBERS, np.ma.masked_array(TARGETS, mask=TARGETS > 1))


def test_what_is_odd_about_targets_is_told():
    odd = np.where(np.arange(N) % 5 > 0, 0.0, TARGETS)
    assert any("of the targets 'y' are 0" in note for note in regressor().fit(NUMBERS, odd).notes_)
    several = regressor().fit(NUMBERS, np.c_[TARGETS, np.where(np.arange(N) == 0, 1e7, TARGETS)])
    assert any("Far from all others in 'y[:, 1]': 1 number" in note for note in several.notes_)
    assert not any("'y'" in note for note in fitted(regressor).notes_)


def test_an_interrupted_fit_leaves_the_one_before(monkeypatch):
    of = regressor().fit(NUMBERS, TARGETS)
    expected = of.predict(NUMBERS)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("torchbayes.sklearn.estimator.fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        of.fit(NUMBERS[:, :2], TARGETS)
    assert np.array_equal(of.predict(NUMBERS), expected)


def test_nothing_is_shown_unless_asked(capfd, monkeypatch):
    regressor().fit(NUMBERS, TARGETS)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("torchbayes.sklearn.estimator.fit", lambda *args, callbacks, **kwargs: callbacks)
    assert regressor(verbose=True).fit(NUMBERS, TARGETS).posterior_ is None  # the progress bar


def test_threads_are_those_of_before():
    before = torch.get_num_threads()
    regressor(n_jobs=2, method=tb.MAP(epochs=1)).fit(NUMBERS, TARGETS).predict(NUMBERS)
    assert torch.get_num_threads() == before

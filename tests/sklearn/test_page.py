"""The page about an estimator: its numbers are those of the estimator, and every kind of table has one."""

from __future__ import annotations

import html
import re
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.inspection import partial_dependence as by_sklearn

import torchbayes as tb
from tests.pictures import unpainted
from torchbayes.assess.columns.dependence import partial_dependence
from torchbayes.assess.columns.table import TablePredictor, predictor
from torchbayes.predictive.linearised import preferred
from torchbayes.report.fit import sections
from torchbayes.sklearn import BayesianClassifier, BayesianMLPRegressor, BayesianRegressor, Split, load, save

QUICK = tb.MAP(members=3, epochs=8, batch_size=32, optimizer=tb.Adam(0.01))
RNG = np.random.default_rng(0)
N = 120
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")


@pytest.fixture(autouse=True)
def _plain(few_resamples, monkeypatch, request):
    """Neither pictures nor boosted trees, which take longer than all else, nor curves along columns but in some."""
    unpainted(monkeypatch)
    if "beside" not in request.node.name:
        monkeypatch.setattr("torchbayes.report.fit.baselines", lambda *_, **__: {})
    along_columns = {"beside", "every", "dependence", "classifier"}
    if not along_columns & set(request.node.name.split("_")):
        monkeypatch.setattr("torchbayes.sklearn.page.sections", partial(sections, along=False))


def mixed() -> pd.DataFrame:
    frame = pd.DataFrame(RNG.normal(size=(N, 2)), columns=["size", "age"])
    frame["town"] = RNG.choice(["Ulm", "Bonn", "Köln"], N)
    frame["sold"] = RNG.random(N) < 0.5
    frame["day"] = pd.date_range("2024-01-01", periods=N)
    frame["note"] = [f"text number {n}" for n in range(N)]  # left out, as each differs
    frame["same"], frame["none"] = 1.0, np.nan
    frame.loc[[2, 5], "size"], frame.loc[7, "town"] = np.nan, None
    return frame


FRAME = mixed()
TARGETS = pd.Series(3 * FRAME["age"] + (FRAME["town"] == "Ulm") + 0.3 * RNG.normal(size=N), name="price [EUR]")
CLASSES = np.where(TARGETS > 1, "high", np.where(TARGETS < -1, "low", "middle"))


def text_of(page) -> str:
    """What a reader sees of a page, in one line."""
    body = re.sub("<script.*?</script>", "", page.html.partition("<body>")[2], flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def regressor(**settings) -> BayesianRegressor:
    return BayesianRegressor(**{"method": QUICK, "random_state": 0, **settings})


def table_of(estimator, rows: pd.DataFrame) -> TablePredictor:
    """The predictor of a page, at rows that are also those it averages over."""
    preparation, table = estimator.preparation_, estimator._rows.table
    functions = preferred(estimator.posterior_, seed=estimator.seed_)
    actual = predictor(functions, preparation.columns, lambda v: preparation.scale(v).float(), train=table, rows=table)
    assert actual is not None
    return actual


def test_a_page_tells_what_the_estimator_says_beside_others(tmp_path):
    fitted = regressor().fit(FRAME, TARGETS)
    page = fitted.report(FRAME, TARGETS)
    text = text_of(page)
    assert page.title == "BayesianRegressor of price [EUR]"
    assert "Predictions are averages over 3 networks." in text
    assert "Rows with the same inputs as a training row: 120 of 120; scores on them are too good." in text
    assert "Left out: note (120 different texts); same (the same in every row, 1.0); none (empty)." in text
    mean, std = fitted.predict(FRAME, return_std=True)
    assert f"rmse {np.sqrt(np.mean((mean - TARGETS) ** 2)):.4f}" in text
    assert f"R² {fitted.score(FRAME, TARGETS):.4f}" in text
    average: Any = fitted.predict_dist(FRAME)
    parts = average.component_distribution
    row = int(std.argmax())
    spreads = std[row], parts.variance[row].mean() ** 0.5, parts.mean[row].std(correction=0)
    said = " ".join(f"{float(part):.4g}" for part in spreads)
    assert f"{row} {TARGETS[row]:.4g} {mean[row]:.4g} {said} ".replace("-", "−") in text
    assert "constant linear trees" in text
    heads = ("Residuals against predictions", "Coverage of central intervals", "Which columns matter")
    assert all(head in text for head in (*heads, "How predictions depend on the columns that matter most"))
    saved = page.save(tmp_path / "page.html")
    assert saved.read_text("utf-8") == page.html
    shown = page._repr_html_()
    (inner,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(inner) == page.html
    assert repr(page) == "Page(title='BayesianRegressor of price [EUR]')"


def test_partial_dependence_is_the_mean_prediction_at_replaced_columns():
    """As the table has them: a missing number loses its mark, and a town has all its columns."""
    fitted = regressor().fit(FRAME, TARGETS)
    table = table_of(fitted, FRAME)
    scale, shift = (float(part) for part in (fitted.target_units_.scale, fitted.target_units_.mean))
    for name, places in {"size": (0, 11), "town": (0, 2), "sold": (0, 1)}.items():
        actual = partial_dependence(table, name)
        for g in places:
            value = actual.at[g] == "True" if name == "sold" else actual.at[g]
            expected = np.mean(fitted.predict(FRAME.assign(**{name: value})))
            assert float(actual.functions_SGK[:, g, 0].mean()) * scale + shift == pytest.approx(expected, rel=1e-5)
    missing = partial_dependence(table, "size").missing_SK
    assert missing is not None
    expected = np.mean(fitted.predict(FRAME.assign(size=np.nan)))
    assert float(missing.mean()) * scale + shift == pytest.approx(expected, rel=1e-5)
    numbers: Any = FRAME[["age", "size"]].fillna(0.0)
    fitted = regressor().fit(numbers, TARGETS)
    actual = partial_dependence(table_of(fitted, numbers), "age")
    theirs = by_sklearn(fitted, numbers, ["age"], custom_values={"age": actual.at}, method="brute")
    ours = actual.functions_SGK[..., 0].mean(0).numpy() * scale + shift
    np.testing.assert_allclose(ours, theirs["average"][0], rtol=1e-5)


@pytest.mark.parametrize(
    "labels", [CLASSES, TARGETS > 0, (TARGETS > 0).astype(int) + 5], ids=["texts", "flags", "ints"]
)
def test_a_classifier_has_its_page(labels):
    fitted = BayesianClassifier(method=QUICK, random_state=0).fit(FRAME, labels)
    text = text_of(fitted.report(FRAME, labels))
    assert f"accuracy {fitted.score(FRAME, labels):.4f}" in text
    assert "Which rows are uncertain, and why" in text
    probs = fitted.predict_proba(FRAME)
    entropy = -(probs * np.log(probs)).sum(1)
    row = int(entropy.argmax())
    known = np.asarray(labels).astype(str)
    assert re.search(rf" {row} {known[row]} \w+ [\d.]+ % [\d.]+ % {entropy[row]:.3f} ", text)
    one = np.repeat(np.asarray(labels)[:1], N)
    if labels is CLASSES:
        assert "accuracy" in text_of(fitted.report(FRAME, one))  # rows of one class
    unknown = pd.Series(one).astype(object)
    unknown[3] = "unheard of"
    with pytest.raises(ValueError, match="is none of them"):
        fitted.report(FRAME, unknown.astype(str) if known is CLASSES else np.full(N, 9))


def test_several_targets_are_told_in_their_standard_deviations():
    both = np.column_stack([TARGETS, 100 * FRAME["age"] + 5])
    fitted = BayesianMLPRegressor(hidden=(8,), method=QUICK, random_state=0).fit(FRAME, both)
    text = text_of(fitted.report(FRAME, both))
    errors = (fitted.predict(FRAME) - both) / both.std(0)
    assert f"rmse {np.sqrt(np.mean(errors**2)):.4f}" in text
    assert "in standard deviations" in text
    assert "target 1" not in text  # only in the picture
    with pytest.raises(ValueError, match="y must have 2 targets in each row, as in the fit; it has 1"):
        fitted.report(FRAME, TARGETS)


@pytest.mark.parametrize("kind", [regressor, lambda **s: BayesianClassifier(method=QUICK, random_state=0, **s)])
def test_the_promise_of_a_calibration_is_counted(kind):
    targets = TARGETS if kind is regressor else CLASSES
    fitted = kind(conformal=Split(0.8)).fit(FRAME, targets)
    text = text_of(fitted.report(FRAME, targets))
    if kind is regressor:
        ends = fitted.predict_interval(FRAME)
        share = ((ends[:, 0] <= targets) & (targets <= ends[:, 1])).mean()
    else:
        share = fitted.predict_set(FRAME)[np.arange(N), np.searchsorted(fitted.classes_, targets)].mean()
    assert f"for 80 % hold the targets of {100 * share:.1f} % of these rows." in text


TABLES = {
    "one column": (FRAME[["age"]], {}),
    "array": (FRAME[["age", "size"]].to_numpy(), {}),
    "500 columns": (RNG.normal(size=(N, 500)), {}),
    "501 columns": (RNG.normal(size=(N, 501)), {}),
    "one date": (FRAME[["day"]], {}),
    "one network": (FRAME, {"method": tb.MAP(epochs=3)}),
    "t": (FRAME, {"likelihood": "student_t"}),
    "a network": (FRAME, {"network": "mlp"}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.study] if name == "500 columns" else []) for name in TABLES]
)
def test_every_table_has_a_page(name):
    rows, settings = TABLES[name]
    fitted = regressor(**settings).fit(rows, TARGETS)
    text = text_of(fitted.report(rows, TARGETS))
    assert ("Which columns matter" in text) == (name != "501 columns")
    assert ("With more than 500 columns it is not looked at which of them matter." in text) == (name == "501 columns")
    if name == "one network":
        assert "There is no band, because no networks are drawn" in text


def test_numbers_that_texts_hold_have_their_page():
    frame = pd.DataFrame({"a": [f"{v:.4f}" for v in np.linspace(-1, 1, 60)], "b": np.arange(60) % 7})
    of = regressor().fit(frame, frame["a"].astype(float) ** 2)
    plain = regressor().fit(frame.astype(float), frame["a"].astype(float) ** 2)
    pages = [each.report(rows[:30], np.ones(30)).html for each, rows in ((of, frame), (plain, frame.astype(float)))]
    tables = [html.partition("Which rows are uncertain")[2].partition("<figure")[0] for html in pages]
    assert tables[0] == tables[1] != ""


def test_names_with_dollar_signs_are_no_formulas():
    frame = pd.DataFrame({"US$ to CA$": RNG.normal(size=60), r"$\frac{1}$": RNG.choice(["a$b$", r"$\frac{u}$"], 60)})
    price = pd.Series(frame.iloc[:, 0] ** 2, name=r"k$ for $\frac{1}$")
    assert "US$ to CA$" in text_of(regressor().fit(frame, price).report(frame, price))
    lots = np.where(price > 0.5, r"$\frac{1}$", "b$c$")
    assert "b$c$" in text_of(BayesianClassifier(method=QUICK).fit(frame, lots).report(frame, lots))


def test_counts_weights_and_few_rows_have_pages():
    counts = RNG.poisson(3, N).astype(float)
    fitted = regressor(likelihood="poisson").fit(FRAME, counts)
    assert "rmse" in text_of(fitted.report(FRAME, counts))
    fitted = regressor().fit(FRAME, TARGETS, sample_weight=RNG.uniform(0.1, 3, N))
    assert "rmse" in text_of(fitted.report(FRAME.iloc[:2], TARGETS[:2]))
    same = text_of(fitted.report(FRAME, np.ones(N)))  # targets that are all the same
    assert "mae" in same


def test_what_has_no_page_says_why(tmp_path):
    fitted = regressor().fit(FRAME, TARGETS)
    with pytest.raises(ValueError, match="minimum of 2"):
        fitted.report(FRAME.iloc[:1], TARGETS[:1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.report(FRAME, TARGETS[:5])
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.report(FRAME[["age"]], TARGETS)
    with pytest.raises(ValueError, match="contains NaN"):
        fitted.report(FRAME, TARGETS * np.nan)
    again = load(save(fitted, tmp_path / "prices.safetensors"))
    with pytest.raises(ValueError, match="neither a saved nor a pickled"):
        again.report(FRAME, TARGETS)
    with pytest.raises(ValueError, match="not fitted yet"):
        regressor().report(FRAME, TARGETS)


def test_the_page_changes_nothing():
    fitted = BayesianClassifier(method=QUICK, random_state=0).fit(FRAME, CLASSES)
    before, threads = dict(vars(fitted)), torch.get_num_threads()
    fitted.report(FRAME[CLASSES == "low"], CLASSES[CLASSES == "low"])
    assert vars(fitted) == before
    assert torch.get_num_threads() == threads

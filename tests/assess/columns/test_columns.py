"""Importance, partial dependence and the reasons of doubt, against closed forms of functions that are known."""

import math
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
import torch
from tests.oracles import assert_close, normal
from torch import nn

import torchbayes as tb
from torchbayes.assess.columns.dependence import importance, partial_dependence
from torchbayes.assess.columns.doubt import falls, most_uncertain, reasons, uncertainties, uncertainties_of
from torchbayes.assess.columns.table import TablePredictor, predictor, predictor_of, spread_rows
from torchbayes.data import Data, Pair
from torchbayes.data.base import Standardise
from torchbayes.data.user.columns import fit_columns
from torchbayes.data.user.table import Table, from_frame
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.linearised import preferred
from torchbayes.report.columns import dependence

RNG = np.random.default_rng(0)
ROWS, DRAWS = 150, 40


def frame(rows: int = ROWS) -> pd.DataFrame:
    """Numbers, a flag, a text and a date, some of them missing."""
    held = pd.DataFrame({"size": RNG.normal(10, 3, rows), "wild": RNG.lognormal(0, 1, rows)})
    held["flag"] = RNG.random(rows) < 0.5
    held["town"] = RNG.choice(["Bonn", "Ulm", "Trier"], rows, p=[0.6, 0.3, 0.1])
    held["day"] = pd.Timestamp("2024-03-01") + pd.to_timedelta(RNG.integers(0, 300, rows), "D")
    held.loc[[3, 4, 5], "size"] = np.nan
    held.loc[[6, 7], "town"] = None
    return held


def of(network: nn.Module, weights_SD: torch.Tensor, likelihood, train: pd.DataFrame, rows: pd.DataFrame | None = None):
    """Return the predictor of functions with these weights on a frame, whose network sees the columns as they are."""
    known, held_out = (from_frame(each, "X") for each in (train, train if rows is None else rows))
    columns, _ = fit_columns(known, "X", left={}, categorical=())
    model = tb.Model(network.double(), likelihood)
    actual = predictor(Functions(model, weights_SD), columns, lambda v: v, train=known, rows=held_out)
    assert actual is not None
    return actual


def linear(train: pd.DataFrame, rows: pd.DataFrame | None = None, noise: float = 0.5) -> TablePredictor:
    width = fit_columns(from_frame(train, "X"), "X", left={}, categorical=())[0].width
    weights = 0.3 * normal(DRAWS, width + 1) + normal(width + 1, seed=1)
    weights[:, 7:] *= 0.01  # days are large numbers
    return of(nn.Linear(width, 1), weights, tb.likelihoods.Gaussian(noise), train, rows)


def weights_of(table: TablePredictor) -> torch.Tensor:
    assert isinstance(table.source, Functions)
    return table.source.weights_SD


def test_of_a_linear_network_the_slope_is_the_weight_and_the_band_that_of_the_posterior():
    table = linear(frame())
    actual = partial_dependence(table, "wild")
    weights_SD, place = weights_of(table), table.block("wild").start
    slopes = (actual.functions_SGK[:, 1:, 0] - actual.functions_SGK[:, :-1, 0]) / torch.from_numpy(np.diff(actual.at))
    assert_close(slopes, weights_SD[:, place, None].expand_as(slopes), rtol=1e-8)
    # Var g(v) = φᵀ Cov(w) φ, with the mean of the other columns over the same rows in the place of their values
    features = table.known_values[spread_rows(ROWS, 200)].mean(0).repeat(len(actual.at), 1)
    features[:, place] = torch.from_numpy(actual.at)
    features = torch.cat([features, torch.ones(len(features), 1)], dim=1).double()
    sd = (features @ torch.cov(weights_SD.T, correction=0) @ features.T).diagonal().sqrt()
    assert_close(actual.functions_SGK[..., 0].std(0, correction=0), sd)
    assert len(actual.at) <= 24
    assert actual.at[0] > table.column("wild").low
    assert_close(actual.marks, np.quantile(table.known.columns["wild"], np.linspace(0.1, 0.9, 9)))


class Additive(nn.Module):
    """sin(size) + 2 · missing + the number of the town + day · 0.01, of the columns of `frame`."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        size, gone, town, days = inputs[:, 0], inputs[:, 1], inputs[:, 4:7], inputs[:, 7]
        values = torch.sin(size) * (1 - gone) + 2 * gone + town @ torch.tensor([1.0, 2.0, 4.0]).double() + 0.01 * days
        return values[:, None] + self.level


def test_an_additive_function_is_met_in_each_kind_of_column():
    train = frame()
    table = of(Additive(), torch.tensor([[0.0], [3.0]]).double(), tb.likelihoods.Gaussian(0.5), train)
    held = table.known_values
    mean = {name: float(part.mean()) for name, part in zip("smtd", (
        torch.sin(held[:, 0]) * (1 - held[:, 1]), held[:, 1], held[:, 4:7] @ torch.tensor([1.0, 2.0, 4.0]).double(),
        held[:, 7]), strict=True)}  # fmt: skip
    size, level = partial_dependence(table, "size"), torch.tensor([0.0, 3.0]).double()[:, None]
    rest = mean["t"] + 0.01 * mean["d"] + level
    assert_close(size.functions_SGK[..., 0], torch.from_numpy(np.sin(size.at)) + rest)
    assert size.missing_SK is not None
    assert_close(size.missing_SK[:, 0], (2 + rest)[:, 0])  # the mark of a missing value goes with it
    town = partial_dependence(table, "town")
    rest = mean["s"] + 2 * mean["m"] + 0.01 * mean["d"] + level
    assert town.at.tolist() == ["Bonn", "Trier", "Ulm", "missing"]  # columns in their order: 1, 2 and 4
    assert_close(town.functions_SGK[..., 0], torch.tensor([1.0, 2.0, 4.0, 0.0]) + rest)
    texts = train["town"].fillna("missing")
    assert_close(town.marks, [(texts == name).mean() for name in town.at])
    day = partial_dependence(table, "day")
    days = (day.at - train["day"].to_numpy().min()) / np.timedelta64(1, "D")
    rest = mean["s"] + 2 * mean["m"] + mean["t"] + level
    # the mean of the dates that take turns, whole days, may be off by a twentieth of a day
    assert_close(day.functions_SGK[..., 0], torch.from_numpy(0.01 * days) + rest, atol=0.01 * 0.05)


def test_dates_of_all_days_of_the_week_are_averaged():
    """A weekday effect does not make the line jagged, as single dates would."""
    train = frame(400)

    class Weekly(Additive):
        def forward(self, inputs):
            return (inputs[:, -1:] > 5).double() + self.level  # Saturday, as the last column is the weekday as a number

    table = of(Weekly(), torch.zeros(1, 1).double(), tb.likelihoods.Gaussian(0.5), train)
    actual = partial_dependence(table, "day").functions_SGK[0, :, 0]
    assert table.columns.columns[-1].name == "day"
    share = float((table.known_values[:, -1] > 5).double().mean())
    assert float((actual - share).abs().max()) < 0.12  # alone, each date has 0 or 1


def test_numbers_of_few_values_are_names():
    table = linear(frame())
    actual = partial_dependence(table, "flag")
    assert actual.at.tolist() == ["False", "True"]
    gap = actual.functions_SGK[:, 1, 0] - actual.functions_SGK[:, 0, 0]
    assert_close(gap, weights_of(table)[:, table.block("flag").start])


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_averaged_as_probabilities(classes):
    train = pd.DataFrame({"a": RNG.normal(size=30), "b": RNG.normal(size=30)})
    outputs = 1 if classes == 2 else classes
    likelihood = tb.likelihoods.Bernoulli() if classes == 2 else tb.likelihoods.Categorical()
    table = of(nn.Linear(2, outputs), normal(5, 3 * outputs), likelihood, train)
    actual = partial_dependence(table, "a")
    for s, weights in enumerate(weights_of(table)):
        matrix, offset = weights[: 2 * outputs].view(outputs, 2), weights[2 * outputs :]
        rows = torch.tensor(train.to_numpy())
        for g in (0, 7):
            rows[:, 0] = actual.at[g]
            logits = rows @ matrix.T + offset
            probs = logits.softmax(1) if classes > 2 else torch.cat([(-logits).sigmoid(), logits.sigmoid()], 1)
            assert_close(actual.functions_SGK[s, g], probs.mean(0))


def test_importance_is_the_loss_of_log_probability_where_a_column_is_shuffled():
    rows = 900
    train = pd.DataFrame({"a": RNG.normal(0, 1, rows), "b": RNG.normal(0, 2, rows), "c": RNG.normal(size=rows)})
    table = of(nn.Linear(3, 1), torch.tensor([[1.0, 1.0, 0.0, 0.0]]).double(), tb.likelihoods.Gaussian(2.0), train)
    targets = torch.tensor((train["a"] + train["b"]).to_numpy())[:, None]
    actual = importance(table, targets)
    assert list(actual) == ["b", "a", "c"]
    assert actual["c"] == 0
    # the targets are the means: the loss is E (x − x')² w² / 2σ² = w² Var x / σ², of independent x and x'
    for name in "ab":
        squares = float(np.var(train[name].to_numpy())) / 4
        assert abs(actual[name] / squares - 1) < 4 * math.sqrt(2 / rows)


def test_noise_and_disagreement_obey_the_law_of_total_variance():
    outputs = normal(7, 5, 2)
    split = tb.Predictive(outputs, tb.likelihoods.HeteroscedasticGaussian())
    noise, disagreement = uncertainties(split)
    kind = split.distribution
    assert_close(noise, kind.variance.mean(0).flatten())
    assert_close(disagreement, kind.mean.var(0, correction=0).flatten())
    samples = split.sample(7 * 40_000, seed=1)
    total = samples.var(0).flatten()
    assert float(((noise + disagreement) / total - 1).abs().max()) < 0.05  # four standard errors of a heavy tail
    for likelihood, logits in (
        (tb.likelihoods.Categorical(), normal(6, 4, 3)),
        (tb.likelihoods.Bernoulli(), normal(6, 4, 1)),
    ):
        noise, disagreement = uncertainties(tb.Predictive(logits, likelihood))
        probs = logits.softmax(-1) if logits.shape[-1] > 1 else torch.cat([(-logits).sigmoid(), logits.sigmoid()], -1)

        def entropy(p):
            return -(p * p.log()).sum(-1)

        assert_close(noise, entropy(probs).mean(0))
        assert_close(disagreement, entropy(probs.mean(0)) - entropy(probs).mean(0), atol=1e-9)


def test_the_column_named_is_the_one_whose_usual_value_lowers_the_variance():
    train = frame()
    odd = train.copy()
    odd.loc[0, "wild"], odd.loc[1, "town"], odd.loc[2, "size"] = 500.0, "Atlantis", -40.0
    table = linear(train, odd)
    rows = torch.tensor([0, 1, 2, 9])
    actual, weights_SD = falls(table, rows), weights_of(table)
    covariance = torch.cov(weights_SD.T, correction=0)

    def variance(values_BF):
        features = torch.cat([values_BF, torch.ones(len(values_BF), 1).double()], dim=1)
        return 0.25 + (features @ covariance @ features.T).diagonal()

    names = [column.name for column in table.columns.columns]
    assert names == ["size", "wild", "flag", "town", "day"]
    usual = {
        "wild": train["wild"].median(),
        "town": "Bonn",
        "size": train["size"].median(),
        "flag": train["flag"].median(),
    }
    for c, name in enumerate(names[:4]):
        replaced = odd.loc[rows.tolist()].assign(**{name: usual[name]})
        values = torch.from_numpy(table.columns(from_frame(replaced, "X")).values)
        assert_close(actual[:, c], 1 - variance(values) / variance(table.values[rows]))
    said = reasons(table, rows)
    assert said[0].startswith("wild 500 (above all training rows): −")
    assert said[2].startswith("size -40 (below all training rows): −")
    noise_N, disagreement_N = uncertainties_of(table)
    assert_close(noise_N, torch.full((ROWS,), 0.25))
    assert_close(noise_N + disagreement_N, variance(table.values))
    assert most_uncertain(noise_N, disagreement_N)[0] == 0


def test_unusual_values_are_said_in_words():
    """Two draws, ±(a − 199.5 + 900 [b is neither x nor y]): the fall is one minus a ratio of squares."""
    train = pd.DataFrame({"a": np.arange(400.0), "b": ["x", "y"] * 199 + ["rare", "y"]})
    rows = pd.DataFrame({"a": [398.0, np.nan, 200.0, 200.0, 900.0], "b": ["x", "x", "rare", "new", None]})
    columns, _ = fit_columns(from_frame(train, "X"), "X", left={}, categorical=("b",))
    model = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(1e-3))
    # disagreement at the largest a, and where b is neither x nor y
    weights = torch.tensor([[1.0, 0.0, -900.0, -900.0, 900.0 - 199.5]]).double() * torch.tensor([[1.0], [-1.0]])
    known, held_out = from_frame(train, "X"), Table({"a": rows["a"].to_numpy(), "b": rows["b"].to_numpy(object)}, "X")
    held_out.columns["b"][4] = None
    table = predictor(Functions(model, weights), columns, lambda v: v, train=known, rows=held_out)
    assert table is not None
    said = reasons(table, torch.arange(5))
    assert said == [
        "a 398 (higher than 99.5 % of training rows): −100 %",
        "no single column",  # a missing number is the median
        "b rare (in 1 of 400 training rows): −100 %",
        "b new (in no training row): −100 %",
        "b missing (in no training row): −81 %; a 900 (above all training rows): −68 %",
    ]


def test_rows_without_a_cause_in_one_column_say_so():
    train = pd.DataFrame({"a": RNG.normal(size=50), "b": RNG.normal(size=50)})
    table = of(nn.Linear(2, 1), torch.zeros(2, 3).double(), tb.likelihoods.Gaussian(1.0), train)
    assert reasons(table, torch.tensor([0, 1])) == ["no single column"] * 2
    noise_N, disagreement_N = uncertainties_of(table)
    assert len(most_uncertain(noise_N, disagreement_N)) == 6  # nothing to disagree about, so one list


def data_of(inputs: torch.Tensor) -> Data:
    units = Standardise.fit(inputs)
    pair = Pair(units(inputs).float(), torch.zeros(len(inputs), 1))
    return Data("X", "regression", pair, pair, (), units.to(torch.float32), None, "")


def test_vectors_without_names_are_numbered_and_too_many_are_left():
    inputs = normal(30, 3) * 5 + 2
    model = tb.Model(nn.Linear(3, 1), tb.likelihoods.Gaussian(1.0))
    functions = Functions(model, torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))
    table = predictor_of(functions, data_of(inputs))
    assert table is not None
    assert table.rows.names == ["x1", "x2", "x3"]
    assert_close(
        table.predictive(table.values).mean, tb.predict(functions, data_of(inputs).test.inputs).mean, rtol=1e-5
    )
    actual = partial_dependence(table, "x2")
    scale = float(inputs[:, 1].std(correction=0))
    slope = (actual.functions_SGK[:, -1, 0] - actual.functions_SGK[:, 0, 0]) / (actual.at[-1] - actual.at[0])
    assert_close(slope, functions.weights_SD[:, 1] / scale, rtol=1e-4)
    wide = tb.Model(nn.Linear(501, 1), tb.likelihoods.Gaussian(1.0))
    functions = Functions(wide, torch.zeros(1, 502))
    assert predictor_of(functions, data_of(normal(5, 501))) is None


def test_dates_are_written_as_the_table_writes_them():
    from torchbayes.data.user.dates import fit_dates

    for texts in (
        ["2024-03-01", "2024-05-11"],
        ["2024-03-01 10:30:00", "2024-05-11 23:00:00"],
        ["01.03.2024", "11.05.2024"],
    ):
        dates = fit_dates("day", texts, flag=False)
        assert dates is not None
        block = np.zeros((2, dates.width))
        dates.write(np.array(texts, dtype=object), block)
        again = np.zeros((2, dates.width))
        dates.write(dates.texts(block[:, 0]), again)
        assert_close(again, block)
    assert dates.first == datetime(2024, 3, 1)


def test_a_closed_form_has_its_mean_and_no_band():
    inputs = normal(40, 2)
    data = data_of(inputs)
    network = nn.Linear(2, 1)
    model = tb.Model(network, tb.likelihoods.Gaussian(0.5))
    method = tb.Laplace(structure="dense", prior="model", check_mode=False)
    posterior = tb.fit(model, tuple(data.train), method, start=network, callbacks=())
    table = predictor_of(preferred(posterior), data)
    assert table is not None
    actual = partial_dependence(table, "x1").functions_SGK
    assert len(actual) == 1
    rows = table.prepare(table.known_values).repeat(actual.shape[1], 1, 1)
    rows[..., 0] = data.standardise(torch.tensor(partial_dependence(table, "x1").at)[:, None].repeat(1, 2))[:, :1]
    assert_close(actual[0, :, 0], network(rows)[..., 0].mean(1), rtol=1e-5, atol=1e-6)
    noise_N, disagreement_N = uncertainties_of(table)
    assert_close(noise_N, torch.full((40,), 0.25))
    assert_close(disagreement_N, tb.predict(posterior, data.test.inputs).epistemic.flatten(), rtol=1e-5)
    picture = dependence("Laplace", data, table, drops={"x1": 1.0, "x2": 0.0})["dependence"]
    assert "There is no band, because no networks are drawn" in picture.caption

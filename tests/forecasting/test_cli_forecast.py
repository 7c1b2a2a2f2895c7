"""`torchbayes forecast`: a column of a table over time, as the library forecasts it."""

from __future__ import annotations

import json
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

import torchbayes as tb
from tests.catalogue import mine
from torchbayes.cli.commands import main
from torchbayes.cli.forecast import _parsed as parsed
from torchbayes.cli.times import Steps
from torchbayes.forecasting import BayesianForecaster, load

FEW = ["--method", "MAP", "--method.epochs", "2", "--directory", "run"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    warnings.simplefilter("ignore")  # fits of two epochs have problems


@pytest.fixture
def frame() -> pd.DataFrame:
    noise: np.ndarray = np.random.default_rng(0).normal(size=(2, 96))
    months = pd.date_range("2010-01-01", periods=96, freq="MS")
    values = 10 + np.sin(np.arange(96) * np.pi / 6) + 0.1 * noise[0]
    return pd.DataFrame({
        "month": months,
        "sold": np.round(64 * values) / 64,
        "visits": np.round(64 * noise[1]) / 64,
        "shop": "a",
    })


def ran(capsys, frame: pd.DataFrame, *options: str, time: str = "month", code: int = 0) -> str:
    frame.to_csv("sales.csv", index=False)
    assert main(["forecast", "--data", "sales.csv", "--time", time, "--target", "sold", *FEW, *options]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ([], tb.SWAG(members=5)),
        (["--method.epochs", "2"], tb.SWAG(members=5, epochs=2)),
        (["--method", "VI"], tb.VI()),
        (["--method=Laplace", "--method.members", "2"], tb.Laplace(members=2)),
        (["--method=tests.catalogue.mine:WIDE"], mine.WIDE),
        (["--method", "tests.catalogue.mine:Mine"], mine.Mine()),
        (["--config", "named.yaml"], tb.VI(epochs=3)),
        (["--config", "unnamed.yaml"], tb.SWAG(members=5, epochs=3)),
    ],
)
def test_a_named_method_has_its_usual_settings(options: list[str], method: Any) -> None:
    Path("named.yaml").write_text("method:\n  class_path: VI\n  init_args:\n    epochs: 3\n")
    Path("unnamed.yaml").write_text("method:\n  epochs: 3\n")
    argv = ["--data", "sales.csv", "--time", "month", "--target", "sold", "--directory", "run", *options]
    assert parsed(argv)["method"] == method


def test_a_table_is_forecast_as_the_library_does(capsys, frame, monkeypatch):
    few = partial(HistGradientBoostingRegressor, max_iter=5)
    monkeypatch.setattr("sklearn.ensemble.HistGradientBoostingRegressor", few)
    said = ran(capsys, frame, "--backtest", "3")
    written = pd.read_csv("run/forecast.csv")
    series: Any = frame.set_index("month").sold
    expected = BayesianForecaster(12, method=tb.MAP(epochs=2)).fit(series).forecast()
    assert list(written.time)[:2] == ["2018-01-01", "2018-02-01"]
    assert len(written) == 12
    np.testing.assert_allclose(written["quantile 0.5"], expected.median, rtol=1e-4)
    again = load("run/forecaster.safetensors").forecast()
    np.testing.assert_array_equal(again.median, expected.median)
    assert np.all(written["adapted low"] <= written["adapted high"])
    assert {"seasonal naive", "boosted trees", "MAP", "MAP + PID"} <= set(pd.read_csv("run/backtest.csv").forecaster)
    assert "MASE" in said
    assert Path("run/report.html").stat().st_size > 10_000


def test_the_forecast_alone_as_json(capsys, frame):
    said = ran(capsys, frame, "--backtest", "0", "--json", "--horizon", "2", "--others", "visits", "--coverage", "0.98")
    rows = json.loads(said[said.index("[") :])
    assert [row["time"][:10] for row in rows] == ["2018-01-01", "2018-02-01"]
    assert rows[0]["quantile 0.01"] < rows[0]["quantile 0.05"]


@pytest.mark.parametrize("freq", ["D", "MS"])
def test_gaps_are_refused_or_filled_with_the_value_before(capsys, frame, freq):
    days = frame.assign(month=pd.date_range("2020-01-01", periods=96, freq=freq)).drop(index=[30, 31])
    assert "must be evenly spaced; 1 of 93 steps" in ran(capsys, days, "--backtest", "0", code=2)
    ran(capsys, days, "--backtest", "0", "--fill", "--horizon", "3")
    filled = days.set_index("month").sold.asfreq(freq).ffill()
    expected = BayesianForecaster(3, method=tb.MAP(epochs=2)).fit(filled).forecast()
    np.testing.assert_allclose(pd.read_csv("run/forecast.csv")["quantile 0.5"], expected.median, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, ["--others", "shop"], "column 'shop' must hold numbers"),
        ({}, ["--others", "weather"], "There is no column of sales.csv called 'weather'"),
        ({"month": "soon"}, [], "column 'month' must hold dates of one form that is known"),
        ({"month": 7}, [], "numbers that are evenly spaced"),
        ({"sold": 3.0}, [], "all 96 values of `series` are the same"),
        ({}, ["--horizon", "0"], "`horizon` must be a whole number of at least 1"),
        ({}, ["--season", "0"], "`season` must be a whole number of at least 1"),
        ({}, ["--others", "month"], "column 'month' must hold numbers; it holds texts"),
        ({}, ["--zone", "Mars/Base"], "`--zone` 'Mars/Base' is not known"),
        (
            {"month": pd.date_range("2025-12-25", periods=96, freq="D", tz="Europe/Berlin")},
            [],
            "several offsets from UTC.* --zone Europe/Vienna[^!]*must be evenly spaced",
        ),
        ({"month": ["2026-01-01T00:00", "2026-01-02T00:00+01:00"] * 48}, [], "all have an offset from UTC, or none"),
        ({}, ["--horizon", "90"], "of them to look back"),
        ({}, ["--coverage", "2"], "must lie between 0 and 1"),
    ],
)
def test_wrong_requests_are_said_in_one_line(capsys, frame, change, options, message):
    said = ran(capsys, frame.assign(**change), "--backtest", "0", *options, code=2)
    assert len(said.strip().splitlines()) <= 3
    assert re.search(message, said)


@pytest.mark.parametrize("order", [1, -1])
def test_times_may_be_numbers_which_go_on(capsys, frame, order):
    ran(capsys, frame.assign(month=np.arange(1900, 1996))[::order], "--backtest", "0", "--horizon", "2")
    written = pd.read_csv("run/forecast.csv")
    assert written.time.tolist() == [1996, 1997]
    steps = Steps.of("t", pd.Index([1.7e9 + 0.5 + 0.1 * k for k in range(4)]))
    assert steps is not None
    assert steps.after(1).tolist() == [1.7e9 + 0.9]
    expected = BayesianForecaster(2, season=1, method=tb.MAP(epochs=2)).fit(frame.sold.to_numpy()).forecast()
    np.testing.assert_allclose(written["quantile 0.5"], expected.median, rtol=1e-4)


@pytest.mark.parametrize(
    ("times", "zone", "first"),
    [
        (pd.date_range("2026-01-01", periods=96, freq="h", tz="Europe/Berlin"), "", "2026-01-05 00:00:00+01:00"),
        (pd.date_range("2026-01-01", periods=96, freq="h"), "Asia/Tokyo", "2026-01-05 00:00:00+09:00"),
        (
            pd.date_range("2025-12-25", periods=96, freq="D", tz="Europe/Berlin"),
            "Europe/Berlin",
            "2026-03-31 00:00:00+02:00",
        ),
        (pd.period_range("2016-01", periods=96, freq="M"), "", "2024-01-01"),
        (pd.period_range("1990Q1", periods=96, freq="Q"), "", "2014-01-01"),
    ],
)
def test_times_keep_their_zone_and_months_and_quarters_are_known(capsys, frame, times, zone, first):
    options = ["--zone", zone] if zone else []
    ran(capsys, frame.assign(month=times), "--backtest", "0", "--horizon", "2", *options)
    assert pd.read_csv("run/forecast.csv").time[0] == first
    assert str(load("run/forecaster.safetensors").forecast().frame().index[0]).startswith(first)


def test_rows_are_sorted_and_short_series_are_not_judged(capsys, frame):
    short = frame.iloc[:50]
    ran(capsys, short)
    expected = Path("run/forecast.csv").read_text()
    frame.iloc[:50].iloc[::-1].to_csv("back.csv", index=False)
    assert main(["forecast", "--data", "back.csv", "--time", "month", "--target", "sold", *FEW]) == 0
    said = capsys.readouterr().err
    assert "Rows are sorted by month." in said
    assert "Not judged: a fifth of 50 values is shorter than the horizon." in said
    assert Path("run/forecast.csv").read_text() == expected

"""Windows, forecasts and backtests: exact distributions of simulated series, and no look at what is to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import mean_pinball_loss
from torch import nn

import torchbayes as tb
from torchbayes.forecasting import (
    ACI,
    ETS,
    PID,
    BayesianForecaster,
    BoostedTrees,
    QuantileForecast,
    SeasonalNaive,
    Series,
    backtest,
    windows,
)

A1, A2 = 1.2, -0.5
HORIZON = 5


def autoregressive(count: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=count + 200)
    values = np.zeros(count + 200)
    for t in range(2, len(values)):
        values[t] = A1 * values[t - 1] + A2 * values[t - 2] + noise[t]
    return values[200:]


def exact(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the next values, by the recursion of the process."""
    path, psi = [*values[-2:]], [1.0, A1]
    for _ in range(HORIZON):
        path.append(A1 * path[-1] + A2 * path[-2])
        psi.append(A1 * psi[-1] + A2 * psi[-2])
    return np.array(path[2:]), np.sqrt(np.cumsum(np.square(psi[:HORIZON])))


def linear(**others) -> BayesianForecaster:
    """Return a forecaster by Bayesian linear regression, which can be exact."""
    settings = {
        "network": nn.Linear,
        "method": tb.SWA(epochs=40, batch_size=256, optimizer=tb.Adam(lr=0.01)),
        "likelihood": tb.likelihoods.Gaussian("learned", outputs=HORIZON),
        "context": 4,
        "horizon": HORIZON,
    }
    return BayesianForecaster(**{**settings, **others})


def quick(**others) -> BayesianForecaster:
    return BayesianForecaster(**{"horizon": 3, "context": 6, "method": tb.MAP(epochs=2), **others})


@pytest.fixture(scope="module")
def fitted():
    return linear().fit(autoregressive(3000))


def test_forecasts_tend_to_the_exact_distribution(fitted):
    """A regression on 3,000 rows errs by a few hundredths of the scale of the noise, and descent by a few more."""
    worst = []
    for seed in range(1, 9):
        past = autoregressive(50, seed)
        mean, scale = exact(past)
        forecast = fitted.forecast(past)
        worst.append(np.abs(forecast.median - mean) / scale)
        low, high = forecast.interval(0.9)
        np.testing.assert_allclose((high - low) / (2 * 1.6449), scale, rtol=0.08)
    assert np.sqrt(np.mean(np.square(worst))) < 0.15


def test_several_steps_at_once_are_one_step_repeated(fitted):
    """E[y_{t+2} | y_t …] = E[E[y_{t+2} | y_{t+1} …] | y_t …]: the first step fed back gives the second."""
    for seed in range(1, 5):
        past = autoregressive(50, seed)
        ahead = fitted.forecast(past).median
        fed = fitted.forecast(np.append(past, ahead[0])).median
        np.testing.assert_allclose(fed[:-1], ahead[1:], atol=0.15 * exact(past)[1][-1])


@pytest.mark.parametrize("factor", [1000.0, 2.0**-20])
@pytest.mark.parametrize(
    "forecaster", [quick(), SeasonalNaive(3), BoostedTrees(3, context=6, levels=(0.05, 0.5, 0.95), most=100)]
)
def test_forecasts_have_the_units_of_the_series(forecaster, factor):
    values = autoregressive(150)
    levels = (0.05, 0.2, 0.95)
    plain, scaled = (forecaster.fit(each).forecast(levels=levels) for each in (values, factor * values))
    np.testing.assert_allclose(scaled.quantiles_HQ, factor * plain.quantiles_HQ, rtol=1e-4, atol=1e-5 * factor)


def test_windows_hold_what_lies_before_and_what_comes():
    series = np.arange(20.0)[:, None] + np.array([0, 100])
    known = np.arange(23.0) / 10
    rows = windows(Series.of(series, known), 3, 2, stride=4)
    assert rows.origins_N.tolist() == [3, 7, 11, 15]
    assert rows.inputs[1].tolist() == pytest.approx([4, 104, 5, 105, 6, 106, 0.7, 0.8])
    assert rows.targets[1].tolist() == [7, 8]
    last = windows(series, 3, 2).targets[-1]
    assert last.tolist() == [18, 19]


def test_no_row_knows_a_later_value():
    values = autoregressive(60)
    before = windows(values, 8, 3)
    for place in range(8, 60, 7):
        changed = values.copy()
        changed[place:] = 1e6
        after = windows(changed, 8, 3)
        earlier = before.origins_N <= place
        assert torch.equal(before.inputs[earlier], after.inputs[earlier])
        assert not torch.equal(before.inputs, after.inputs) or place >= 57


def test_rows_are_for_any_posterior():
    rows = windows(autoregressive(120), 4, 2)
    model = tb.Model(nn.Linear(4, 2), tb.likelihoods.StudentT())
    posterior = tb.fit(model, (rows.inputs, rows.targets), tb.MAP(epochs=2), callbacks=())
    assert tb.predict(posterior, rows.inputs[-1:]).mean.shape == (1, 2)


FORECASTERS = {
    "network": quick(),
    "naive": SeasonalNaive(3, season=4),
    "trees": BoostedTrees(3, season=4, context=6, levels=(0.05, 0.5, 0.95), most=100),
    "ets": ETS(3, season=4),
}


@pytest.mark.parametrize("name", FORECASTERS)
@pytest.mark.parametrize("refit", [None, 5])
def test_a_backtest_does_not_look_ahead(name, refit):
    if name == "ets":
        pytest.importorskip("statsmodels")
    values, known = autoregressive(80), np.random.default_rng(0).normal(size=80)
    settings: Any = {"start": 68, "refit": refit, "adapt": {"ACI": ACI()}}
    before = backtest(Series.of(values, known), {"it": FORECASTERS[name]}, **settings)
    changed = values.copy()
    changed[72:] += 50.0  # from the value after the origin 72 on
    after = backtest(Series.of(changed, known), {"it": FORECASTERS[name]}, **settings)
    seen = before.origins_N <= 72
    np.testing.assert_array_equal(before.quantiles["it"][seen], after.quantiles["it"][seen])
    np.testing.assert_array_equal(before.lows["it + ACI"][seen], after.lows["it + ACI"][seen])
    assert not np.array_equal(before.quantiles["it"][~seen], after.quantiles["it"][~seen])


class Recording:
    """A forecaster of a user's own, which says what it was shown."""

    horizon = 2

    def __init__(self) -> None:
        self.fits, self.pasts = [], []

    def fit(self, series):
        self.fits.append((len(series), float(series.values_TC[0, 0]), float(series.values_TC[-1, 0])))
        return self

    def quantiles(self, pasts, levels):
        self.pasts += [float(past.values_TC[-1, 0]) for past in pasts]
        return np.tile(np.array([past.values_TC[-1] for past in pasts])[:, None], (1, 2, len(levels)))


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({}, [(20, 0, 19)]),
        ({"refit": 4}, [(20, 0, 19), (24, 0, 23), (28, 0, 27)]),
        ({"refit": 4, "window": 10}, [(10, 10, 19), (10, 14, 23), (10, 18, 27)]),
        ({"refit": 3, "stride": 2}, [(20, 0, 19), (24, 0, 23), (28, 0, 27)]),
    ],
)
def test_fits_have_the_windows_that_were_asked_for(settings, fits):
    recording = Recording()
    result = backtest(np.arange(30.0), {"it": recording}, start=20, **settings)
    assert recording.fits == fits
    assert recording.pasts == [origin - 1 for origin in result.origins_N]
    assert (result.targets_NH[:, 0] == result.origins_N).all()


def test_scores_are_their_definitions():
    values = autoregressive(200)
    result = backtest(values, {"naive": SeasonalNaive(3, season=4)}, start=150, adapt={"PID": PID()})
    quantiles, scale = result.quantiles["naive"], np.abs(values[4:150] - values[:146]).mean()
    table = result.by_horizon("naive")
    for step in range(3):
        targets, each = result.targets_NH[:, step], quantiles[:, step]
        losses = [mean_pinball_loss(targets, each[:, k], alpha=tau) for k, tau in enumerate(result.levels_Q)]
        assert table.pinball[step + 1] == pytest.approx(np.mean(losses) / scale)
        assert table.MASE[step + 1] == pytest.approx(np.abs(targets - each[:, 3]).mean() / scale)
        inside = (each[:, 0] <= targets) & (targets <= each[:, -1])
        assert table.coverage[step + 1] == pytest.approx(inside.mean())
        assert table.width[step + 1] == pytest.approx((each[:, -1] - each[:, 0]).mean())
    assert result.table().index.tolist() == ["naive", "naive + PID"]
    assert np.isnan(result.table().loc["naive + PID", "MASE"])


def test_the_seasonal_naive_forecast_is_the_last_season():
    values = np.tile([1.0, 2.0, 3.0, 5.0], 10)
    forecast = SeasonalNaive(6, season=4).fit(values).forecast()
    np.testing.assert_array_equal(forecast.quantiles_HQ, np.tile([[1.0], [2.0], [3.0], [5.0], [1.0], [2.0]], (1, 7)))


def test_ets_is_that_of_statsmodels():
    pytest.importorskip("statsmodels")
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    values = autoregressive(120) + np.tile([0, 4, 8, 4.0], 30)
    other: Any = ETSModel(
        pd.Series(values),
        trend="add",
        damped_trend=True,
        seasonal="add",
        seasonal_periods=4,
        initialization_method="heuristic",
    ).fit(disp=False)
    forecast = ETS(5, season=4).fit(values).forecast()
    ends = other.get_prediction(start=120, end=124).summary_frame(alpha=0.1)
    np.testing.assert_allclose(forecast.median, ends["mean"], rtol=1e-6)
    np.testing.assert_allclose(np.stack(forecast.interval(0.9)), ends[["pi_lower", "pi_upper"]].T, rtol=1e-6)


@pytest.mark.parametrize(
    ("freq", "season"),
    [
        ("h", 24),
        ("30min", 48),
        ("D", 7),
        ("7D", 52),
        ("MS", 12),
        ("ME", 12),
        ("QS", 4),
        ("YS", 1),
        (pd.DateOffset(months=2), 6),
        ("B", 5),
    ],
)
def test_times_give_season_and_times_ahead(freq, season):
    dates = pd.date_range("2020-01-31" if freq == "ME" else "2020-01-01", periods=120, freq=freq)
    series = pd.Series(autoregressive(117), index=dates[:117])
    fitted = SeasonalNaive(3).fit(series)
    assert fitted.rows.season == season
    assert fitted.forecast().frame().index.equals(dates[117:].rename("time"))


def test_few_values_have_the_step_of_the_fit():
    """Four weekdays without a weekend between them look like days."""
    series = pd.Series(GOOD, index=pd.bdate_range("2020-01-06", periods=60))
    frame = SeasonalNaive(3, season=1).fit(series).forecast(series.iloc[:4]).frame()
    assert frame.index.equals(series.index[4:7])


def ridge(series) -> float:
    """Return the median of the next value by a linear forecaster with fixed noise."""
    settings = {"likelihood": tb.likelihoods.Gaussian(0.1), "method": tb.SWA(epochs=100, optimizer=tb.Adam(lr=0.01))}
    forecaster = linear(horizon=1, context=2, prior=tb.priors.Normal(3.0), **settings)
    return float(forecaster.fit(series).forecast().median[0])


def test_what_is_known_ahead_is_learned_from():
    known, noise = np.random.default_rng(0).normal(size=(2, 400))
    assert ridge(Series.of((3 * known + 0.3 * noise)[:399], known)) == pytest.approx(3 * known[399], abs=0.3)


def test_another_channel_helps():
    early, noise = np.random.default_rng(1).normal(size=(2, 401))  # the first channel follows the second
    assert ridge(np.stack([3 * early[:-1] + 0.3 * noise[1:], early[1:]], axis=1)) == pytest.approx(
        3 * early[-1], abs=0.3
    )


GOOD = autoregressive(60)


def holed(freq: Any = "h", first: str = "2020-01-01") -> pd.Series:
    series = pd.Series(GOOD, index=pd.date_range(first, periods=60, freq=freq))
    return series.drop(series.index[[10, 11, 30]])


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (np.where(np.arange(60) == 7, np.nan, GOOD), "missing or infinite at 1 of 60 times, first at place 7"),
        (np.where(np.arange(60) == 7, np.inf, GOOD), "missing or infinite"),
        (np.zeros((4, 4, 4)), r"must have shape \(T,\) or \(T, C\)"),
        ([], "hold values"),
        ([1.0], "at least 2 values; got 1"),
        (GOOD[:7], "at least 10 values, 6 of them to look back; it has 7"),
        (GOOD * 1e300, "standard deviation of `series`"),
        (np.ones(60), "all 60 values of `series` are the same"),
        (holed(), "2 of 56 steps are not the usual 0 days 01:00:00, the first after 2020-01-01 09:00:00"),
        (holed("MS"), r"2 of 56 steps are not the usual month, the first after 2020-10-01.*asfreq\('MS'\).*--fill"),
        (holed("QE"), r"2 of 56 steps are not the usual 3 months, the first after 2022-06-30.*asfreq\('3ME'\)"),
        (
            holed(pd.DateOffset(months=1), "2020-01-15"),
            "2 of 56 steps are not the usual month, .* such as by --fill in",
        ),
        (holed("B"), r"2 of 56 steps are not the usual business day, the first after 2020-01-14.*asfreq\('B'\)"),
        (holed("D"), r"2 of 56 steps are not the usual day, the first after 2020-01-10.*asfreq\('D'\)"),
        (holed().iloc[::-1], "must increase"),
    ],
)
def test_series_that_cannot_be_forecast_are_refused(series, message):
    with pytest.raises(ValueError, match=message):
        quick().fit(series)


def test_likelihoods_without_quantiles_are_drawn_from():
    fitted = linear(likelihood="student_t").fit(autoregressive(400))
    forecast = fitted.forecast(autoregressive(50, 1))
    parts = fitted.regressor.predict_dist(fitted.rows.ends([Series.of(autoregressive(50, 1))])[0])
    naive = fitted.rows.naive(Series.of(autoregressive(50, 1)), np.array([50]))[0]
    np.testing.assert_allclose(forecast.median, parts.mean[0].numpy() * fitted.rows.scale_C[0] + naive, atol=0.15)


def test_displays_are_short():
    series = pd.Series(GOOD, index=pd.date_range("2020-01-01", periods=60))
    fitted = SeasonalNaive(3).fit(series)
    result = backtest(series, {"naive": SeasonalNaive(3)}, adapt={"PID": PID()})
    shown: list[Any] = [
        fitted,
        fitted.forecast(),
        fitted.series,
        windows(GOOD, 3, 2),
        result,
        result.adaptive["naive + PID"],
    ]
    for each in shown:
        assert len(repr(each)) < 250
        assert type(each).__name__ in each._repr_html_()


def test_wrong_arguments_are_named():
    fitted = SeasonalNaive(3).fit(GOOD)
    with pytest.raises(TypeError, match="`series` must be numbers"):
        quick().fit(["a", "b"])
    with pytest.raises(ValueError, match="`context` must be at least the season, 12; got 6"):
        quick(season=12).fit(GOOD)
    with pytest.raises(ValueError, match="`verbose`"):
        quick(verbose="yes")
    with pytest.raises(ValueError, match=r"`likelihood` must be gaussian, heteroscedastic, .*'poisson'"):
        quick(likelihood="poisson")
    with pytest.raises(ValueError, match="`levels`"):
        fitted.forecast(levels=(0.5, 1.0))
    with pytest.raises(ValueError, match="must have 1 channels"):
        fitted.forecast(np.zeros((9, 2)))
    with pytest.raises(ValueError, match="`covariates` must have a row for each of the 60 values"):
        Series.of(GOOD, GOOD[:50])
    with pytest.raises(ValueError, match="`covariates` must be known for the 60 times and the 3 to forecast"):
        SeasonalNaive(3).fit(Series.of(GOOD, GOOD)).forecast()
    days, hours = (pd.Series(GOOD, index=pd.date_range("2020-01-01", periods=60, freq=freq)) for freq in "Dh")
    with pytest.raises(ValueError, match=r"must be that of the fit \(day\); got 0 days 01:00:00"):
        SeasonalNaive(3).fit(days).forecast(hours)
    with pytest.raises(ValueError, match="one horizon"):
        backtest(GOOD, {"a": SeasonalNaive(3), "b": SeasonalNaive(4)})
    with pytest.raises(TypeError, match="forecasters"):
        backtest(GOOD, {"a": SeasonalNaive})
    with pytest.raises(ValueError, match="`start` must leave the 3 values"):
        backtest(GOOD, {"a": SeasonalNaive(3)}, start=59)
    with pytest.raises(ValueError, match="`window` must be at most `start`"):
        backtest(GOOD, {"a": SeasonalNaive(3)}, start=40, window=50)
    with pytest.raises(ValueError, match="increase along the levels"):
        QuantileForecast(np.array([0.1, 0.9]), np.array([[2.0, 1.0]]))
    with pytest.raises(ValueError, match="known at levels"):
        BoostedTrees(3, context=6, levels=(0.1, 0.9)).fit(GOOD).forecast(levels=(0.01, 0.5))


def test_scales_do_not_depend_on_the_order_of_forecasters() -> None:
    values = np.tile([1.0, 2.0, 3.0, 9.0], 40) + 0.3 * np.random.default_rng(0).normal(size=160)
    seasonal, naive = SeasonalNaive(4, season=4), SeasonalNaive(4)
    first = backtest(values, {"seasonal": seasonal, "naive": naive})
    second = backtest(values, {"naive": naive, "seasonal": seasonal})
    assert first.table().MASE["seasonal"] == second.table().MASE["seasonal"]
    assert first.scale == np.abs(values[4 : first.origins_N[0]] - values[: first.origins_N[0] - 4]).mean()

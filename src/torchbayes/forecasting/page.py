"""Tables and pictures of forecasts and backtests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.forecasting.backtest import Backtest
from torchbayes.forecasting.forecast import QuantileForecast
from torchbayes.forecasting.series import Series
from torchbayes.report.html import Picture, save_pictures, write_report
from torchbayes.report.style import INK, QUIET, house_style, legend_above, looks, new_figure, note_below
from torchbayes.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BEFORE = 3  # horizons of the series that are drawn before a forecast, or a season
_HEADS = {
    "MASE": "MASE",
    "pinball": "pinball loss, scaled",
    "coverage": "coverage",
    "width": "mean width",
    "infinite": "infinite",
}


def score_table(result: Backtest) -> Table:
    """Return the scores of a backtest, a line for each forecaster and each of its intervals that adapt."""
    table: Any = result.table()
    shown = [name for name in _HEADS if name != "infinite" or table["infinite"].any()]
    rows = [[name, *(None if math.isnan(v) else v for v in row[shown])] for name, row in table.iterrows()]
    return Table(
        ["forecaster", *(_HEADS[name] for name in shown)],
        rows,
        f"{len(result.origins_N):,} forecasts of {result.targets_NH.shape[1]} steps, each from the values before it. "
        f"MASE: mean absolute error of the median, and the pinball loss, over the mean error of the seasonal naive "
        f"forecast. Coverage and width: of intervals for {result.coverage:.0%}; the width is that of the finite ones.",
        better={_HEADS["MASE"]: "low", _HEADS["pinball"]: "low"},
        formats={_HEADS[name]: ".4g" if name == "width" else ".1%" for name in shown[2:]},
        title="Backtest",
    )


def step_table(result: Backtest) -> Table:
    """Return coverage by the step of the forecast, a column for each forecaster."""
    columns: list[Any] = [result.by_horizon(name)["coverage"] for name in result.lows]
    return Table(
        ["step", *result.lows],
        [[step, *(float(column[step]) for column in columns)] for step in columns[0].index],
        f"Share of values inside intervals for {result.coverage:.0%}, by how many steps ahead.",
        formats=dict.fromkeys(result.lows, ".1%"),
        title="Coverage by step",
    )


def write_forecast(
    directory: Path, *, title: str, lead: str, tables: Sequence[Table], picture: Picture, settings: Mapping[str, Any]
) -> Path:
    """Write the page of a forecast, and its picture beside it; return the path of the page."""
    figures = save_pictures(directory, {"forecast": picture})
    page = directory / "report.html"
    return write_report(page, title=title, lead=lead, tables=tables, figures=figures, settings=settings)


def forecast_picture(past: Series, forecast: QuantileForecast, *, name: str, adapted: Any = None) -> Picture:
    """Return the end of a series with its forecast: the median, and bands between quantiles at equal distance from it.

    `adapted` are the ends of intervals that adapt, (H,) each.
    """
    levels = forecast.levels_Q
    bands = [level for level in levels if level < 0.5 and np.isclose(levels, 1 - level).any()]
    widths = ", ".join(f"{1 - 2 * level:.0%}" for level in bands)
    dashed = "" if adapted is None else " Dashed: the interval that adapted to the errors of the backtest."
    return Picture(
        f"The next {len(forecast)} values of {name}",
        _drawn(past, forecast, bands, name, adapted),
        f"The last values of {name}, and the median of what comes with central bands for {widths}, each step by itself."
        f"{dashed}",
        alt=f"A line of {name} that ends in a fan of bands.",
    )


@house_style
def _drawn(past: Series, forecast: QuantileForecast, bands: list[float], name: str, adapted: Any) -> Figure:
    shown = min(len(past), max(_BEFORE * len(forecast), past.season, 20))
    before, after = (past.times, forecast.times) if past.times is not None else (np.arange(len(past)), None)
    after = np.arange(len(past), len(past) + len(forecast)) if after is None else after
    figure = new_figure(7.0, 3.2)
    axes = figure.subplots()
    colour = looks(["observed", "forecast"])["forecast"].colour
    handles: dict[str, Any] = {"observed": axes.plot(before[-shown:], past.values_TC[-shown:, 0], color=INK)[0]}
    for level in bands:
        ends = forecast.quantile(level), forecast.quantile(1 - level)
        band = axes.fill_between(after, *ends, color=colour, alpha=0.22, linewidth=0)
        handles.setdefault("bands for " + ", ".join(f"{1 - 2 * each:.0%}" for each in bands), band)
    handles["median"] = axes.plot(after, forecast.median, color=colour)[0]
    for end in () if adapted is None else adapted:
        handles["adapted"] = axes.plot(after, end, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))[0]
    axes.set(ylabel=name)
    axes.margins(x=0.01)
    axes.tick_params(axis="x", labelrotation=0 if past.times is None else 20)
    note_below(figure, "step" if past.times is None else "time")
    legend_above(figure, handles)
    return figure

"""The command for time series: forecasts of a column of a table, beside others, and how good they were."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes.checks import check_counts, check_name, optional
from torchbayes.cli.options import add_method_choice, add_open, by_class, named_method, new_parser, parse, plain_method
from torchbayes.cli.terminal import point_to, print_table, say
from torchbayes.conformal.ranks import check_coverage
from torchbayes.native.process import short_path
from torchbayes.posteriors.files import write_whole

_HORIZON = 10  # without a season
_ORIGINS = 50  # of a backtest, about


def forecast(argv: list[str]) -> None:
    """Forecast a column of a table over time, with intervals; say how good such forecasts were so far."""
    chosen = _parsed(argv)
    check_counts(least=0, backtest=chosen["backtest"])
    check_coverage(coverage=chosen["coverage"])
    optional(check_counts, horizon=chosen["horizon"])
    series, name = _series(chosen)
    season = chosen["season"] or series.season
    horizon = chosen["horizon"] or (season if season > 1 else _HORIZON)
    say(f"Horizon {horizon}, season {season}{'' if season > 1 else ' (none)'}: {len(series):,} values of {name}.")
    forecasters = _forecasters(chosen, horizon, season)
    _write(chosen, series, name, forecasters=forecasters)


def _parsed(argv: list[str]) -> dict[str, Any]:
    """Return the options by name."""
    from torchbayes.methods.optimise.swag import SWAG

    parser = new_parser(forecast, config=True)
    parser.add_argument("--data", type=str, required=True, help="table with a row for each time: CSV, Parquet, ...")
    parser.add_argument("--time", type=str, required=True, help="column of the times, evenly spaced")
    parser.add_argument("--target", type=str, required=True, help="column to forecast")
    parser.add_argument(
        "--others", nargs="+", type=str, default=[], help="columns of numbers that help, not known ahead"
    )
    parser.add_argument(
        "--horizon", type=int | None, default=None, help="how many steps ahead; a season, or 10 if none"
    )
    season = "steps after which values may repeat; 24 of hours, 7 of days, 52 of weeks, 12 of months; 1 for none"
    parser.add_argument("--season", type=int | None, default=None, help=season)
    context = "how many values a forecast looks back; twice the larger of season and horizon"
    parser.add_argument("--context", type=int | None, default=None, help=context)
    parser.add_argument("--fill", action="store_true", help="fill gaps with the value before them")
    parser.add_argument("--network", type=str, default="mlp", help="network, such as mlp, linear or an import path")
    parser.add_argument("--likelihood", type=str, default="heteroscedastic", help="such as student_t")
    method_name = named_method(argv)
    default = plain_method(method_name, SWAG(members=5))
    add_method_choice(parser, default)
    parser.add_argument("--seed", type=int, default=0, help="seed of the fit")
    parser.add_argument("--coverage", type=float, default=0.9, help="of the intervals")
    text = "about how many forecasts of the last fifth are judged, beside other forecasters; 0 for none"
    parser.add_argument("--backtest", type=int, default=_ORIGINS, help=text)
    parser.add_argument("--directory", type=str, required=True, help="where it goes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_open(parser)
    return parse(parser, by_class(argv, method_name, default))


def _series(chosen: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the series of a table, and the name of its target."""
    import pandas as pd

    from torchbayes.data.own.table import missing, read_table
    from torchbayes.forecasting.series import as_series

    table = read_table(Path(chosen["data"]))
    columns = [chosen["target"], *chosen["others"]]
    for column in (chosen["time"], *columns):
        check_name(f"column of {table.name}", column, table.names)
        if column != chosen["time"] and table.columns[column].dtype.kind not in "biuf":
            raise ValueError(f"the column {column!r} must hold numbers; it holds texts.")
    times = table.columns[chosen["time"]]
    if missing(times).any():
        raise ValueError(f"the column {chosen['time']!r} lacks {int(missing(times).sum())} times. Remove those rows.")
    frame = pd.DataFrame({column: table.columns[column].astype(float) for column in columns})
    frame.index = _dates(chosen["time"], times)
    if not frame.index.is_monotonic_increasing:
        frame = frame.sort_index(kind="stable")
        say(f"Rows are sorted by {chosen['time']}.")
    if chosen["fill"]:
        frame = _filled(frame)
    return as_series(frame), chosen["target"]


def _dates(name: str, times: np.ndarray) -> Any:
    """Return the index of times: dates, or places where they are evenly spaced numbers."""
    import pandas as pd

    from torchbayes.data.own.dates import forms_of, read_date
    from torchbayes.data.own.table import texts_of

    if times.dtype.kind != "O":
        steps = np.diff(times.astype(float))
        if len(steps) and not (steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-6)):
            raise ValueError(f"the column {name!r} must hold dates, or numbers that are evenly spaced and increase.")
        return pd.RangeIndex(len(times))
    texts = texts_of(times)
    forms = forms_of(list(dict.fromkeys(texts)))
    if not forms:
        raise ValueError(f"the column {name!r} must hold dates in one form, such as 2026-01-31 or 2026-01-31 13:00.")
    return pd.DatetimeIndex([read_date(text, forms[0]) for text in texts])


def _filled(frame: Any) -> Any:
    """Return a frame whose gaps and missing values are the value before them, and say how many."""
    import pandas as pd

    from torchbayes.forecasting.steps import usual_step

    dates = frame.index
    if isinstance(dates, pd.DatetimeIndex) and len(frame) > 2 and dates.is_monotonic_increasing and dates.is_unique:
        every = pd.date_range(dates[0], dates[-1], freq=usual_step(dates))
        if dates.isin(every).all():  # uneven times are refused later
            frame = frame.reindex(every)
    lacking = int(frame.isna().any(axis=1).sum())
    say(f"Filled with the value before: {lacking:,} of {len(frame):,} times.")
    return frame.ffill()


def _forecasters(chosen: Mapping[str, Any], horizon: int, season: int) -> dict[str, Any]:
    """Return the forecaster that was asked for, and those beside it."""
    from importlib.util import find_spec

    from torchbayes.forecasting import ETS, BayesianForecaster, BoostedTrees, SeasonalNaive
    from torchbayes.forecasting.forecast import LEVELS

    given: dict[str, Any] = {"horizon": horizon, "season": season}
    network = BayesianForecaster(
        **given,
        context=chosen["context"],
        network=chosen["network"],
        method=chosen["method"],
        likelihood=chosen["likelihood"],
        seed=chosen["seed"],
        verbose=True,
    )
    levels = tuple({*LEVELS, *_ends(chosen["coverage"])})
    others = {
        "seasonal naive": SeasonalNaive(**given),
        "ETS": ETS(**given),
        "boosted trees": BoostedTrees(**given, context=chosen["context"], levels=levels, seed=chosen["seed"]),
    }
    if find_spec("statsmodels") is None:
        del others["ETS"]
        say("ETS is left out: it needs statsmodels. Run: pip install torchbayes[forecasting].")
    return {type(chosen["method"]).__name__: network, **others}


def _write(chosen: Mapping[str, Any], series: Any, name: str, *, forecasters: Mapping[str, Any]) -> None:
    """Write the forecast, its page and the scores, and print what they say."""
    from torchbayes.forecasting import page as shown
    from torchbayes.forecasting.forecast import LEVELS

    (kind, network), directory = next(iter(forecasters.items())), Path(chosen["directory"])
    tables, adaptive = _judged(chosen, series, forecasters)
    fitted = network.fit(series)
    ahead = fitted.forecast(levels=sorted({*LEVELS, *_ends(chosen["coverage"])}))
    frame = ahead.frame()
    frame.columns = [f"quantile {level}" for level in frame.columns]
    adapted = adaptive[f"{kind} + PID"].intervals(ahead) if adaptive else None
    if adapted is not None:
        frame["adapted low"], frame["adapted high"] = adapted
    write_whole(directory / "forecast.csv", frame.to_csv(float_format="%.6g").encode())
    fitted.save(directory / "forecaster.safetensors")
    problems = f" {'. '.join(fitted.problems)}." if fitted.problems else ""
    picture = shown.forecast_picture(series, ahead, name=name, adapted=adapted)
    page = shown.write_forecast(
        directory,
        title=f"Forecast of {name}",
        lead=f"{len(series):,} values of {name}, and the next {network.horizon}.{problems}",
        tables=tables,
        picture=picture,
        settings=_settings(chosen, network),
    )
    if chosen["json"]:
        print(frame.reset_index().to_json(orient="records", date_format="iso", indent=1))
    else:
        if tables:
            print_table(tables[0])
        print(f"Forecast: {short_path(directory / 'forecast.csv')}")
    point_to(page, opened=chosen["open"], name=None if chosen["json"] else "Report")


def _judged(
    chosen: Mapping[str, Any], series: Any, forecasters: Mapping[str, Any]
) -> tuple[list[Any], Mapping[str, Any]]:
    """Return tables of a backtest, written as CSV too, and the intervals that have adapted to it."""
    from torchbayes.forecasting import PID, backtest
    from torchbayes.forecasting import page as shown

    room = len(series) // 5 - next(iter(forecasters.values())).horizon
    if chosen["backtest"] and room < 0:
        say(f"Not judged: a fifth of {len(series):,} values is shorter than the horizon.")
    if not chosen["backtest"] or room < 0:
        return [], {}
    stride = max(math.ceil(room / chosen["backtest"]), 1)
    result = backtest(series, forecasters, stride=stride, coverage=chosen["coverage"], adapt={"PID": PID()})
    scores = result.table().to_csv(float_format="%.6g")
    write_whole(Path(chosen["directory"]) / "backtest.csv", scores.encode())
    return [shown.score_table(result), shown.step_table(result)], result.adaptive


def _settings(chosen: Mapping[str, Any], network: Any) -> dict[str, Any]:
    """Return what the page records."""
    from torchbayes.catalogue.config import describe

    asked = ("data", "time", "target", "others", "fill", "network", "likelihood", "seed", "coverage", "backtest")
    told = {"horizon": network.horizon, "season": network.season, "context": network.context}
    return {**{name: chosen[name] for name in asked}, **told, "method": describe(network.method)}


def _ends(coverage: float) -> tuple[float, float]:
    """Return the levels of the ends of central intervals."""
    return round((1 - coverage) / 2, 12), round((1 + coverage) / 2, 12)

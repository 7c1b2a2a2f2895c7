"""The command for time series: forecasts of a column of a table, beside others, and how good they were."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchbayes.checks import check_counts, check_name, optional
from torchbayes.cli.options import add_method_choice, add_open, by_class, named_method, new_parser, parse, plain_method
from torchbayes.cli.terminal import point_to, print_table, say
from torchbayes.cli.times import Steps, filled, times_of
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
    optional(check_counts, horizon=chosen["horizon"], season=chosen["season"], context=chosen["context"])
    (series, steps), name = _series(chosen), chosen["target"]
    season = chosen["season"] or series.season
    horizon = chosen["horizon"] or (season if season > 1 else _HORIZON)
    say(f"Horizon {horizon}, season {season}{'' if season > 1 else ' (none)'}: {len(series):,} values of {name}.")
    forecasters = _forecasters(chosen, horizon, season)
    _write(chosen, series, steps, forecasters=forecasters)


def _parsed(argv: list[str]) -> dict[str, Any]:
    """Return the options by name."""
    from torchbayes.methods.optimise.swag import SWAG

    parser = new_parser(forecast, config=True)
    parser.add_argument("--data", type=str, required=True, help="table with a row for each time: CSV, Parquet, ...")
    parser.add_argument("--time", type=str, required=True, help="column of the times, evenly spaced")
    zone = "time zone of the times, such as Europe/Vienna; days then keep their hour when the clock changes"
    parser.add_argument("--zone", type=str | None, default=None, help=zone)
    parser.add_argument("--target", type=str, required=True, help="column to forecast")
    parser.add_argument(
        "--others", nargs="+", type=str, default=[], help="columns of numbers that help, not known ahead"
    )
    parser.add_argument(
        "--horizon", type=int | None, default=None, help="how many steps ahead; a season, or 10 if none"
    )
    season = "steps after which values may repeat; 24 of hours, 7 of days, 52 of weeks, 12 of months, …; 1 for none"
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


def _series(chosen: Mapping[str, Any]) -> tuple[Any, Steps | None]:
    """Return the series of a table; and its times, if they are numbers, which a series has not."""
    import pandas as pd

    from torchbayes.data.user.table import missing, read_table
    from torchbayes.forecasting.series import as_series

    table = read_table(Path(chosen["data"]))
    columns = [chosen["target"], *chosen["others"]]
    for column in (chosen["time"], *columns):
        check_name(f"column of {table.name}", column, table.names)
        if column in columns and table.columns[column].dtype.kind not in "biuf":
            raise ValueError(f"the column {column!r} must hold numbers; it holds texts.")
    times = table.columns[chosen["time"]]
    if missing(times).any():
        raise ValueError(f"the column {chosen['time']!r} lacks {int(missing(times).sum())} times. Remove those rows.")
    frame = pd.DataFrame({column: table.columns[column].astype(float) for column in columns})
    frame.index = times_of(chosen["time"], times, chosen["zone"])
    if not frame.index.is_monotonic_increasing:
        frame = frame.sort_index(kind="stable")
        say(f"Rows are sorted by {chosen['time']}.")
    if chosen["fill"]:
        frame = filled(frame)
    return as_series(frame), Steps.of(chosen["time"], frame.index)


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


def _write(chosen: Mapping[str, Any], series: Any, steps: Steps | None, *, forecasters: Mapping[str, Any]) -> None:
    """Write the forecast, its page and the scores, and print what they say."""
    from torchbayes.forecasting import page as shown
    from torchbayes.forecasting.forecast import LEVELS

    (kind, network), directory, name = next(iter(forecasters.items())), Path(chosen["directory"]), chosen["target"]
    tables, adaptive = _judged(chosen, series, forecasters)
    fitted = network.fit(series)
    ahead = fitted.forecast(levels=sorted({*LEVELS, *_ends(chosen["coverage"])}))
    frame = ahead.frame()
    frame.columns = [f"quantile {level}" for level in frame.columns]
    if steps is not None:
        frame.index = steps.after(len(frame))
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

    asked = (
        "data",
        "time",
        "zone",
        "target",
        "others",
        "fill",
        "network",
        "likelihood",
        "seed",
        "coverage",
        "backtest",
    )
    told = {"horizon": network.horizon, "season": network.season, "context": network.context}
    return {**{name: chosen[name] for name in asked}, **told, "method": describe(network.method)}


def _ends(coverage: float) -> tuple[float, float]:
    """Return the levels of the ends of central intervals."""
    return round((1 - coverage) / 2, 12), round((1 + coverage) / 2, 12)

"""Verdict, tables and figure of `evidence_agreement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, Table
from torchbayes.report.style import FAINT, INK, QUIET, house_style, legend_above, looks, new_figure, panel_title
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error, two_standard_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Mapping[str, Mapping[str, Any]]  # problem -> name -> array over rows
TOLERANCE = 0.5  # nats: a factor of 1.6, negligible in a comparison of models


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' estimates into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    values = [{name: _arrays(problem) for name, problem in result.items()} for result in results]
    return findings(values)


def _arrays(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a problem as arrays over its rows; NaN where an estimate was not made."""
    cases = problem["cases"]
    found = {key: problem[key] for key in ("hidden", "regular")} | {"rows": np.array(problem["rows"])}
    for name in ("laplace", "laplace_hessian", "symmetries", "is_mode"):
        found[name] = np.array([case[name] for case in cases], dtype=np.float64)
    for name in ("AIS", "reverse", "TI", "prior"):
        for key in ("value", "error", "single", "single_error"):
            found[f"{name} {key}"] = np.array([case.get(name, {}).get(key, np.nan) for case in cases])
    found["warnings"] = np.array([len(case["warnings"]) for case in cases])
    return found


def findings(seeds: Sequence[Values]) -> Findings:
    """Return verdict, tables and figure.

    Args:
        seeds: problem -> name of a number -> array over numbers of rows, one such mapping per seed.

    Returns:
        The findings.
    """
    tables = (_evidence_table(seeds), _laplace_table(seeds))
    caption = (
        "Above, log evidence per row. Below, each estimate minus the mean of annealed importance sampling (AIS) and "
        "thermodynamic integration (TI), weighted by their errors; bars on these and on prior Monte Carlo are two of "
        "their own standard errors (root mean square over seeds), bars on Laplace two standard errors over seeds. "
        "Laplace has the Gauss-Newton matrix; the dotted line is that of all modes with the exact Hessian. The band "
        "reaches from the bound of a single particle annealed forward to that of one annealed in reverse. "
        "All modes: log(2^H H!) added to the estimate at one. Data are made by a network of two units."
    )
    return Findings(Verdict.of(_parts(seeds)), tables, (Picture("Log evidence against rows", draw(seeds), caption),))


def reference(problem: Mapping[str, Any]) -> np.ndarray:
    """Return the mean of AIS and TI, weighted by their errors, (rows,)."""
    precisions = [problem[f"{name} error"] ** -2.0 for name in ("AIS", "TI")]
    total = precisions[0] * problem["AIS value"] + precisions[1] * problem["TI value"]
    return total / (precisions[0] + precisions[1])


def _error(problem: Mapping[str, Any]) -> np.ndarray:
    """Return the standard error of AIS − TI, (rows,)."""
    return np.hypot(problem["AIS error"], problem["TI error"])


def gap(problem: Mapping[str, Any], *, modes: str = "all", curvature: str = "laplace") -> np.ndarray:
    """Return how far a Laplace estimate lies above the samplers', (rows,), in nats.

    Args:
        problem: its numbers.
        modes: "all" adds log(2^H H!) to the estimate at one; "one" does not.
        curvature: "laplace" for Gauss-Newton, "laplace_hessian" for the exact Hessian.

    Returns:
        The gaps.
    """
    return problem[curvature] + (problem["symmetries"] if modes == "all" else 0.0) - reference(problem)


def _parts(seeds: Sequence[Values]) -> list[Part]:
    def over_cases(number: Any) -> list[float]:
        return [float(np.mean(np.concatenate([number(problem) for problem in seed.values()]))) for seed in seeds]

    parts = [
        below("share of climbs that do not end at a mode", over_cases(lambda p: 1 - p["is_mode"]), 0.01,
              precondition=True),
        below("standard error of AIS − TI, nats", over_cases(_error), 0.3, precondition=True),
        below("|AIS − TI| in standard errors, mean over cases (0.8 if the errors are right)",
              over_cases(lambda p: np.abs(p["AIS value"] - p["TI value"]) / _error(p)), 1.5),
        below("forward bound below TI", over_cases(lambda p: p["AIS single"] - p["TI value"])),
        below("TI below reverse bound", over_cases(lambda p: p["TI value"] - p["reverse single"])),
    ]  # fmt: skip
    for name in seeds[0]:
        if seeds[0][name]["regular"]:
            parts += _laplace_parts(name, [seed[name] for seed in seeds])
    return parts


def _laplace_parts(name: str, found: Sequence[Mapping[str, Any]]) -> list[Part]:
    corrected, one = (np.array([np.abs(gap(problem, modes=modes)) for problem in found]) for modes in ("all", "one"))
    rows = found[0]["rows"]
    return [
        below(f"{name}: distance of Laplace from AIS and TI at {rows[-1]} rows, nats", corrected[:, -1], TOLERANCE),
        below(f"{name}: it is nearer with log(2^H H!) than without", corrected[:, -1] - one[:, -1]),
        below(f"{name}: it is nearer at {rows[-1]} rows than at {rows[0]}", corrected[:, -1] - corrected[:, 0]),
    ]


def _evidence_table(seeds: Sequence[Values]) -> Table:
    rows = []
    for name, first in seeds[0].items():
        for place, count in enumerate(first["rows"]):
            found = [seed[name] for seed in seeds]
            base = mean_and_error([reference(problem)[place] for problem in found])
            cells = [
                _against(found, place, key)
                for key in ("AIS single", "AIS value", "TI value", "reverse value", "reverse single", "prior value")
            ]
            warned = float(np.mean([problem["warnings"][place] for problem in found]))
            error = float(np.mean([_error(problem)[place] for problem in found]))
            rows.append([name, int(count), base, *cells, error, warned])
    heads = ["forward bound", "AIS", "TI", "reverse", "reverse bound", "prior MC"]
    return Table(
        ["problem", "rows", "log evidence", *heads, "error of AIS − TI", "warnings"],
        rows,
        "Log evidence in nats: the weighted mean of AIS and TI, and differences from it; mean over seeds ± standard "
        "error. Bounds: the mean of the log weights of single particles. The error is that of one seed. Warnings: how "
        "many the samplers gave.",
        formats=dict.fromkeys(["log evidence", *heads, "error of AIS − TI"], ".2f") | {"warnings": ".1f"},
    )


def _against(found: Sequence[Mapping[str, Any]], place: int, key: str) -> tuple[float, float] | float | None:
    values = [problem[key][place] - reference(problem)[place] for problem in found]
    return None if np.isnan(values).any() else mean_and_error(values)


def _laplace_table(seeds: Sequence[Values]) -> Table:
    rows = []
    for name, first in seeds[0].items():
        for place, count in enumerate(first["rows"]):
            cells = [
                mean_and_error([gap(seed[name], modes=modes, curvature=curvature)[place] for seed in seeds])
                for curvature in ("laplace", "laplace_hessian")
                for modes in ("one", "all")
            ]
            rows.append([name, int(count), float(first["symmetries"][place]), *cells])
    heads = ["GGN, one mode", "GGN, all modes", "Hessian, one mode", "Hessian, all modes"]
    return Table(
        ["problem", "rows", "log(2^H H!)", *heads],
        rows,
        "Laplace minus the weighted mean of AIS and TI, in nats: mean over seeds ± standard error.",
        formats=dict.fromkeys(["log(2^H H!)", *heads], ".2f"),
    )


@house_style
def draw(seeds: Sequence[Values]) -> Figure:
    """Draw all estimates against the number of rows, one column of panels per problem.

    Args:
        seeds: as of `findings`.

    Returns:
        The figure: log evidence per row above, differences from the samplers below.
    """
    names = list(seeds[0])
    figure = new_figure(2.9 * len(names) + 0.6, 5.0)
    grid = figure.subplots(2, len(names), squeeze=False, sharex="col", height_ratios=(1, 1.7))
    handles: dict[str, Any] = {}
    for column, name in enumerate(names):
        found = [seed[name] for seed in seeds]
        _height_panel(grid[0, column], found)
        handles |= _difference_panel(grid[1, column], found)
        panel_title(grid[0, column], name)
        grid[1, column].set_xlabel("rows N")
    grid[0, 0].set_ylabel("log evidence\nper row (nats)")
    grid[1, 0].set_ylabel("estimate − mean of AIS and TI (nats)")
    legend_above(figure, handles)
    return figure


def _height_panel(axes: Axes, found: Sequence[Mapping[str, Any]]) -> None:
    rows = found[0]["rows"]
    heights = np.array([reference(problem) / rows for problem in found])
    axes.plot(rows, heights.T, color=FAINT, linewidth=0.8)
    axes.plot(rows, heights.mean(0), color=INK, marker="o", markersize=3.5)
    axes.set_xscale("log")


_LAPLACE = {"Laplace, one mode": "one", "Laplace, all modes": "all"}


def _difference_panel(axes: Axes, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows, base = found[0]["rows"], [reference(problem) for problem in found]
    drawn = looks(["AIS", "TI", "prior Monte Carlo", "Laplace", "Laplace, one mode"])

    def mean(key: str) -> np.ndarray:
        return np.mean([problem[key] - low for problem, low in zip(found, base, strict=True)], axis=0)

    low, high = mean("AIS single"), mean("reverse single")
    handles: dict[str, Any] = {
        "between forward and reverse": axes.fill_between(rows, low, high, color=FAINT, alpha=0.55, linewidth=0)
    }
    axes.axhline(0, color=QUIET, linewidth=0.8)
    for label, modes in _LAPLACE.items():
        look = drawn["Laplace" if modes == "all" else label]
        gaps = np.array([gap(problem, modes=modes) for problem in found])
        style = {"color": look.colour, "marker": look.marker, "linestyle": "-" if modes == "all" else (0, (4, 2))}
        handles[label] = axes.errorbar(rows, gaps.mean(0), two_standard_errors(gaps), **style)
    look = drawn["Laplace"]
    exact = np.mean([gap(problem, curvature="laplace_hessian") for problem in found], axis=0)
    handles["with the exact Hessian"] = axes.plot(rows, exact, ":", color=look.colour, linewidth=1.2)[0]
    for shift, label, key in ((0.9, "AIS", "AIS"), (1.11, "TI", "TI"), (1.0, "prior Monte Carlo", "prior")):
        values, look = mean(f"{key} value"), drawn[label]
        if np.isfinite(values).any():
            half = 2 * np.sqrt(np.mean([problem[f"{key} error"] ** 2 for problem in found], axis=0))
            style = {"color": look.colour, "marker": look.marker, "linestyle": "", "markersize": 4}
            handles[label] = axes.errorbar(rows * shift, values, half, **style)
    axes.set_xscale("log")
    axes.set_xticks(rows, [str(count) for count in rows])
    axes.minorticks_off()
    return handles

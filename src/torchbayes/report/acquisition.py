"""Pages of active learning: numbers by how many rows were learned from, and how far ways to choose differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes.acquisition.rounds import RANDOM, Round, curves
from torchbayes.posteriors.files import write_whole
from torchbayes.report import figures
from torchbayes.report.html import Picture, save_pictures, write_report
from torchbayes.report.tables import Table

PAGE, PICTURE, CHOSEN = "rounds.html", "rounds", "chosen.csv"
WAYS = {
    "bald": "BALD",
    "batchbald": "BatchBALD",
    "epig": "EPIG",
    "variance": "expected variance",
    "entropy": "entropy",
    "margin": "margin",
    RANDOM: "at random",
}
_METRICS = {"accuracy": "accuracy", "rmse": "RMSE", "nll": "NLL"}


def measures(rounds: Sequence[Round]) -> list[str]:
    """Return the metrics of tables and pictures."""
    return [name for name in _METRICS if name in rounds[0].metrics]


def round_table(rounds: Sequence[Round], *, row_label: str = "rows") -> Table:
    """Return the numbers of a study, a line for each number of rows that were learned from."""
    heads, parts, formats, places = [], [], dict[str, str](), list[int]()
    for metric in measures(rounds):
        places, by_way = curves(list(rounds), metric)
        for way, values_PR in by_way.items():
            heads.append(head := f"{_METRICS[metric]}, {WAYS.get(way, way)}")
            parts.append([_cell(repeats) for repeats in values_PR.numpy()])
            formats[head] = ".1%" if metric == "accuracy" else ".3f"
    count = len({each.seed for each in rounds})
    spread = (
        f" Mean over {count} seeds ± standard error." if count > 1 else " One seed: small differences may be chance."
    )
    return Table(
        [row_label, *heads],
        [[place, *(column[row] for column in parts)] for row, place in enumerate(places)],
        f"Numbers on the test {row_label}, by how many {row_label} were learned from.{spread}",
        formats=formats,
    )


def _cell(repeats_R: np.ndarray) -> Any:
    mean = float(repeats_R.mean())
    return mean if len(repeats_R) < 2 else (mean, float(repeats_R.std(ddof=1) / len(repeats_R) ** 0.5))


def gain_table(rounds: Sequence[Round]) -> Table:
    """Return the mean over the rounds of each way, and by how much it is above that at random, with an interval."""
    metrics, rows = measures(rounds), []
    by_metric = {
        metric: {way: v.numpy().mean(0) for way, v in curves(list(rounds), metric)[1].items()} for metric in metrics
    }
    for way in next(iter(by_metric.values())):
        line: list[Any] = [WAYS.get(way, way)]
        for metric in metrics:
            means_R = by_metric[metric][way]
            line += [_cell(means_R), _interval(means_R - by_metric[metric][RANDOM]) if way != RANDOM else None]
        rows.append(line)
    heads = [head for metric in metrics for head in (_METRICS[metric], f"{_METRICS[metric]}, difference")]
    return Table(
        ["rows chosen by", *heads],
        rows,
        "Mean over the rounds. Difference: from rows at random, after the same first rows, with its 95 % t interval "
        "over seeds.",
        better={_METRICS[m]: "high" if m == "accuracy" else "low" for m in metrics},
        title="How much sooner",
    )


def _interval(values_R: np.ndarray) -> str:
    """Return a mean and its 95 % t interval, as a text; the mean alone of one repeat."""
    from scipy.stats import t

    mean = float(values_R.mean())
    if len(values_R) < 2:
        return f"{mean:+.3f}"
    half = float(t.ppf(0.975, len(values_R) - 1) * values_R.std(ddof=1) / len(values_R) ** 0.5)
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


def class_table(classes: Mapping[str, Sequence[int]], names: Sequence[str]) -> Table:
    """Return how many of the chosen rows are of each class."""
    shares = {WAYS.get(way, way): [count / max(sum(counts), 1) for count in counts] for way, counts in classes.items()}
    heads = [names[k] if k < len(names) else str(k) for k in range(len(next(iter(shares.values()))))]
    return Table(
        ["rows chosen by", *heads],
        [[way, *of_class] for way, of_class in shares.items()],
        "Share of each class among the chosen rows of all seeds, and in the pool.",
        formats=dict.fromkeys(heads, ".1%"),
        title="Classes that were chosen",
    )


def picture(rounds: Sequence[Round], caption: str, *, row_label: str = "rows") -> Picture:
    """Return curves of all ways, with bands over seeds."""
    panels, places = dict[str, Any](), list[int]()
    for metric in measures(rounds):
        places, by_way = curves(list(rounds), metric)
        panels[_METRICS[metric]] = {WAYS.get(way, way): values for way, values in by_way.items()}
    return Picture(
        f"Numbers on the test {row_label} by how many were learned from",
        figures.measure_curves(
            panels, places, label=f"{row_label} learned from", percent=[n for n in panels if n == "accuracy"]
        ),
        caption,
    )


def write_rounds(
    home: Path,
    rounds: Sequence[Round],
    *,
    title: str,
    lead: str,
    row_label: str = "rows",
    tables: Sequence[Table] = (),
    caption: str = "",
    settings: Any = None,
) -> Path:
    """Write the page of a study, its picture, and its rounds with what they chose as CSV; return the path of the page.

    `tables` follow those of the numbers.
    """
    count = len({each.seed for each in rounds})
    said = caption or (f"Bands are two standard errors over {count} seeds." if count > 1 else "One seed.")
    _write_rows(home / CHOSEN, rounds)
    compared = [gain_table(rounds)] if any(each.way == RANDOM for each in rounds) else []
    return write_report(
        home / PAGE,
        title=title,
        lead=lead,
        tables=[round_table(rounds, row_label=row_label), *compared, *tables],
        figures=save_pictures(home, {PICTURE: picture(rounds, said, row_label=row_label)}),
        settings=settings,
    )


def _write_rows(path: Path, rounds: Sequence[Round]) -> None:
    """Write a line for each row that was chosen: by which way, in which round, and its place in the pool from 1."""
    lines = [f"{each.way},{each.seed},{each.number},{place + 1}" for each in rounds for place in each.taken]
    write_whole(path, "\n".join(["chosen_by,seed,round,pool_row", *lines, ""]).encode())

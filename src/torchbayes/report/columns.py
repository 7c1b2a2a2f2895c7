"""What a page says of the columns of a table: which matter, what the mean does along them, why rows are uncertain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.assess.columns.dependence import ROWS, Dependence, partial_dependence
from torchbayes.assess.columns.doubt import most_uncertain, reasons, uncertainties_of
from torchbayes.assess.columns.table import MOST_COLUMNS, TablePredictor
from torchbayes.assess.intervals import Numbers
from torchbayes.data import Data
from torchbayes.data.base import Standardise
from torchbayes.posteriors.functions import Functions
from torchbayes.report import figures
from torchbayes.report.html import Picture
from torchbayes.report.tables import Table
from torchbayes.report.words import listed

PANELS = 6  # columns whose partial dependence is drawn
_LISTED = 12  # columns whose importance is told
_CURVES = 5  # most classes in one panel
WHY = (
    "The last column names those by whose usual value, the median or the most frequent one, {quantity} falls most: "
    "with the value of the row, what is unusual about it, and the fall."
)
_PARTS = (
    "Noise is in the targets; disagreement of the drawn networks is what more rows like these would remove. Their "
    "squares add up to that of the sd."
)
_BAND = "Bands hold 95 % of the drawn networks: what the training rows leave open, without the noise of single targets."
_NO_BAND = "There is no band, because no networks are drawn: predictions are those of one, or in closed form."


def uncertain_table(table: TablePredictor, data: Data, numbers: Numbers) -> Table | None:
    """Return the rows whose numbers are the most uncertain, and why; None where the variance is not finite."""
    units = data.target_standardise or Standardise.identity()
    noise_N, disagreement_N = uncertainties_of(table)
    total_N = noise_N + disagreement_N
    if len(numbers.targets) != len(total_N) or units.scale.numel() > 1 or not total_N.isfinite().all():
        return None
    rows = most_uncertain(noise_N, disagreement_N)
    columns: dict[str, list[float]] = {}
    if numbers.mean.shape[1] == 1:
        both = {"observed": numbers.targets, "predicted": numbers.mean}
        columns = {name: units.inverse(values[rows].double()).flatten().tolist() for name, values in both.items()}
    squares = {"sd": total_N, "noise": noise_N, "disagreement": disagreement_N}
    columns |= {name: (variance[rows].sqrt() * float(units.scale)).tolist() for name, variance in squares.items()}
    lines = zip(map(str, rows.tolist()), *columns.values(), reasons(table, rows), strict=True)
    return Table(
        ["test row", *columns, "columns that make it so"],
        [list(line) for line in lines],
        f"The test rows of the largest predicted standard deviation (sd) and those of the largest disagreement, "
        f"numbered from 0; in {data.target_unit}. {_PARTS} {WHY.format(quantity='the predicted variance')}",
        formats=dict.fromkeys(columns, ".4g"),
        title="Which rows are uncertain, and why",
    )


def importance_table(drops: dict[str, float]) -> Table:
    """Return the columns that matter most, from column -> importance."""
    shown = list(drops.items())[:_LISTED]
    rest = f" The other {len(drops) - len(shown):,} matter less." if len(drops) > len(shown) else ""
    return Table(
        ["column", "importance (nats)"],
        [list(each) for each in shown],
        f"By how much the log probability of a test row falls on average if the column has the value of another row."
        f"{rest} Of columns that say the same, each matters little alone.",
        title="Which columns matter",
    )


def dependence(label: str, data: Data, table: TablePredictor, *, drops: dict[str, float]) -> dict[str, Picture]:
    """Return the picture of partial dependence on the most important columns, by file name; empty if none matters."""
    names = [name for name, drop in drops.items() if drop > 0][:PANELS]
    if not names:
        return {}
    classes, units = _classes(data), (data.target_standardise or Standardise.identity()).to(torch.float64)
    drawn = isinstance(table.source, Functions) and table.source.draws > 1
    panels: dict[str, tuple[Any, Any, Any]] = {}
    for name in names:
        each = partial_dependence(table, name)
        at, functions_SGK = _together(each)
        functions_SGK = functions_SGK[..., list(classes)] if classes else units.inverse(functions_SGK)
        panels[name] = at, functions_SGK if drawn else functions_SGK.mean(0, keepdim=True), each.marks
    curves = list(classes.values()) or _targets(panels[names[0]][1])
    target_label = f"mean {data.target_label}"
    if classes:
        target_label = f"probability of {curves[0] if len(curves) == 1 else 'the class'}"
    fewer = (
        f" Of {data.num_classes} classes the {_CURVES} most frequent are drawn." if data.num_classes > _CURVES else ""
    )
    picture = Picture(
        "How predictions depend on the columns that matter most",
        figures.partial_dependence(panels, curves, target_label=target_label),
        f"Partial dependence of {label} on {listed(names)}: the mean over {min(ROWS, len(table.known)):,} training "
        f"rows, all of which get this value in the column and keep the others. {_BAND if drawn else _NO_BAND}{fewer}",
        alt=f"Curves of the mean prediction against {listed(names)}.",
    )
    return {"dependence": picture}


def left_out(data: Data) -> list[str]:
    """Return a sentence on vectors of too many columns; none for other data."""
    inputs = data.train.inputs
    if inputs.ndim != 2 or inputs.shape[1] <= MOST_COLUMNS or not inputs.is_floating_point():
        return []
    return [f"With more than {MOST_COLUMNS} columns it is not looked at which of them matter."]


def _classes(data: Data) -> dict[int, str]:
    """Return the classes that are drawn, number -> name: the second of two, or the most frequent ones."""
    if not data.classes:
        return {}
    if data.num_classes == 2:
        return {1: data.classes[1]}
    counts = torch.bincount(data.train.targets.flatten().long(), minlength=data.num_classes)
    return {k: data.classes[k] for k in sorted(counts.argsort(descending=True, stable=True)[:_CURVES].tolist())}


def _targets(functions_SGK: Tensor) -> Sequence[str]:
    count = functions_SGK.shape[-1]
    return ["mean"] if count == 1 else [f"target {number}" for number in range(1, count + 1)]


def _together(each: Dependence) -> tuple[np.ndarray, Tensor]:
    """Return values and functions with those of a missing value at the end."""
    if each.missing_SK is None:
        return each.at, each.functions_SGK
    nothing = np.array([np.datetime64("NaT")]) if each.at.dtype.kind == "M" else np.array([np.nan])
    return np.concatenate([each.at, nothing]), torch.cat([each.functions_SGK, each.missing_SK[:, None]], dim=1)

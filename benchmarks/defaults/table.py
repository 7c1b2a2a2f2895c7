"""The tables: negative log likelihoods by set, and what the defaults are to hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.defaults.ways import METHODS

_WORSE = 0.02  # share of a single network's negative log likelihood that a method may lose
_LEAST = 0.1  # nats: near zero, and of densities above one, shares mean nothing

Row = Mapping[str, Any]


def tables(rows: Sequence[Row]) -> str:
    """Return both tables in Markdown."""
    return f"{by_set(rows)}\n\n{by_way(rows)}\n"


def by_set(rows: Sequence[Row]) -> str:
    """Return the mean negative log likelihood of each way on each set; ! marks a warning, ✗ an error."""
    ways, sets = (list(dict.fromkeys(row[key] for row in rows)) for key in ("way", "set"))
    lines = [["NLL", *ways]]
    for name in sets:
        cells = ([row for row in rows if (row["set"], row["way"]) == (name, way)] for way in ways)
        lines.append([name, *map(_cell, cells)])
    return _markdown(lines)


def by_way(rows: Sequence[Row]) -> str:
    """Return what each way loses to a single network, how often, what its intervals cover, and how long it takes."""
    single = {(row["set"], row["split"]): row for row in rows if row["way"] == "single network"}
    lines = [["", "mean gain", "no worse", "90 % intervals cover", "failed", "warned", "seconds"]]
    for way in dict.fromkeys(row["way"] for row in rows):
        of_way = [row for row in rows if row["way"] == way]
        pairs = [(row, single.get((row["set"], row["split"]))) for row in of_way]
        gains = [
            (base["nll"] - row["nll"], base["nll"]) for row, base in pairs if base and _scored(row) and _scored(base)
        ]
        held = [gain >= -_WORSE * max(abs(base), _LEAST) for gain, base in gains]
        covered = [row["coverage"] for row in of_way if "coverage" in row]
        lines.append([
            way,
            f"{_mean(gain for gain, _ in gains):+.3f}",
            f"{sum(held)} of {len(held)}",
            f"{100 * _mean(covered):.0f} %",
            str(sum("error" in row for row in of_way)),
            str(sum(row.get("problems", 0) > 0 for row in of_way)) if way in METHODS else "",
            f"{_mean(row['seconds'] for row in of_way):.1f}",
        ])
    return _markdown(lines)


def _scored(row: Row | None) -> bool:
    return row is not None and math.isfinite(row.get("nll", math.nan))


def _mean(values: Iterable[float]) -> float:
    results = list(values)
    return sum(results) / len(results) if results else math.nan


def _cell(rows: Sequence[Row]) -> str:
    if not rows or any("error" in row for row in rows):
        return "✗" if rows else ""
    return f"{_mean(row['nll'] for row in rows):.3f}" + ("!" if any(row.get("problems") for row in rows) else "")


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "|---" + "|---:" * (len(lines[0]) - 1) + "|", *rest])

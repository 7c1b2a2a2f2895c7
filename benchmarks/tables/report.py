"""The tables of the records: ranks, means, each set, the constant, differences, and where the time went."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.tables.methods import CONSTANT, OURS
from benchmarks.tables.records import PROTOCOL, Record
from benchmarks.tables.sets import CLASSIFICATIONS, REGRESSIONS, TUNED
from torchbayes.posteriors.files import write_whole
from torchbayes.report import Table
from torchbayes_experiments.verdicts import interval

TASKS = {"regression": tuple(REGRESSIONS), "classification": tuple(CLASSIFICATIONS)}
Better = Literal["low", "high"]
_COLUMNS: dict[str, tuple[str, str, Better | None]] = {  # metric -> head, format, better
    "nll": ("NLL", ".3f", "low"),
    "crps": ("CRPS", ".3f", "low"),
    "rmse": ("RMSE", ".3f", "low"),
    "accuracy": ("accuracy", ".1%", "high"),
    "brier": ("Brier", ".3f", "low"),
    "ece": ("ECE", ".3f", "low"),
    "coverage_50%": ("in 50 %", ".0%", None),
    "coverage_80%": ("in 80 %", ".0%", None),
    "coverage_95%": ("in 95 %", ".0%", None),
    "interval_95%": ("interval score, 95 %", ".2f", "low"),
}
_HOW = (
    "Targets are standardised by their training rows; NLL is the mean negative natural logarithm of the density of "
    "such a target, or of the probability of its class, which is kept above 1e-6; lower is better. Rank: of the mean "
    "over splits among all methods of a set, mean over sets; a method that failed is last. `reported` leaves out the "
    "sets that the defaults of the library were tuned on. CPU s: of a fit and its prediction, on one core, mean."
)


@dataclass(frozen=True)
class Task:
    """The records of the sets of one task.

    Attributes:
        records: of every set, split and method there is.
        methods: names, in order.
        sets: the names of those sets of the task that have a record of every method.
    """

    records: Mapping[tuple[str, str, int], Record]
    methods: tuple[str, ...]
    sets: tuple[str, ...]

    @classmethod
    def of(cls, records: Iterable[Record], methods: Sequence[str], names: Sequence[str]) -> Task:
        """Return the task of some sets; a set counts if every method has a record of a split of it."""
        kept = {(r.set, r.method, r.split): r for r in records if r.set in names and r.method in methods}
        present = tuple(m for m in methods if any(method == m for _, method, _ in kept))
        task = cls(kept, present, tuple(names))
        return cls(kept, present, tuple(name for name in names if task.splits(name)))

    def splits(self, name: str) -> list[int]:
        """Return the splits of a set of which every method has a record."""
        by_method = [{s for n, m, s in self.records if (n, m) == (name, method)} for method in self.methods]
        return sorted(set.intersection(*by_method)) if by_method else []

    def mean(self, name: str, method: str, metric: str) -> float:
        """Return the mean over splits; NaN where a method failed, or has no such number."""
        values = [self.records[name, method, split].scores.get(metric, math.nan) for split in self.splits(name)]
        return float(np.mean(values))

    @cached_property
    def nll(self) -> np.ndarray:
        """Mean NLL, methods by sets; infinite where a method failed."""
        values = [[self.mean(name, method, "nll") for name in self.sets] for method in self.methods]
        return np.nan_to_num(np.array(values).reshape(len(self.methods), len(self.sets)), nan=math.inf, posinf=math.inf)

    def ranks(self, *, reported: bool = False) -> np.ndarray:
        """Return the mean rank in NLL of each method; NaN where there is no set."""
        from scipy.stats import rankdata

        chosen = [number for number, name in enumerate(self.sets) if not (reported and name in TUNED)]
        return rankdata(self.nll[:, chosen], axis=0).mean(1) if chosen else np.full(len(self.methods), math.nan)

    def worse_than_constant(self, method: str) -> list[str]:
        """Return the sets on which a method is no better than the constant."""
        if CONSTANT not in self.methods:
            return []
        scores, constant = (self.nll[self.methods.index(name)] for name in (method, CONSTANT))
        return [name for name, ours, theirs in zip(self.sets, scores, constant, strict=True) if not ours < theirs]

    def failures(self, method: str) -> list[Record]:
        """Return the records of a method that failed."""
        return [record for (_, name, _), record in self.records.items() if name == method and record.failed]

    def summary(self) -> Table:
        """Return one row for each method: ranks, and means over sets."""
        metrics = [m for m in _COLUMNS if any(m in record.scores for record in self.records.values())]
        heads = {metric: _COLUMNS[metric] for metric in metrics}
        all_sets, reported = self.ranks(), self.ranks(reported=True)
        body = []
        for number in np.argsort(all_sets, kind="stable"):
            method = self.methods[number]
            means = [_finite([self.mean(name, method, metric) for name in self.sets]) for metric in metrics]
            cpu = np.mean([r.cpu for (name, m, _), r in self.records.items() if m == method and name in self.sets])
            worse = len(self.worse_than_constant(method)) if CONSTANT in self.methods and method != CONSTANT else None
            ranks = (_or_none(float(values[number])) for values in (all_sets, reported))
            body.append([method, *ranks, *means, float(cpu), worse, len(self.failures(method))])
        columns = ["method", "rank", "rank, reported", *(head for head, _, _ in heads.values())]
        columns += ["CPU s", "sets no better than the constant", "failed"]
        best: dict[str, Better] = {"rank": "low", "rank, reported": "low"}
        best |= {head: better for head, _, better in heads.values() if better}
        formats = {"rank": ".2f", "rank, reported": ".2f", "CPU s": ".1f", **{h: form for h, form, _ in heads.values()}}
        return Table(columns, body, better=best, formats=formats)

    def by_set(self) -> Table:
        """Return the mean NLL of every method on every set, methods down."""
        marked = [f"{name} (tuned)" if name in TUNED else name for name in self.sets]
        body = [[m, *map(_or_none, row)] for m, row in zip(self.methods, self.nll.tolist(), strict=True)]
        return Table(["NLL", *marked], body, better=dict.fromkeys(marked, "low"))

    def differences(self) -> Table | None:
        """Return paired differences in NLL from the library, with their 95 % t interval over sets; None without it."""
        if OURS not in self.methods or not self.sets:
            return None
        ours, body = self.nll[self.methods.index(OURS)], []
        for method, theirs in zip(self.methods, self.nll, strict=True):
            both = np.isfinite(ours) & np.isfinite(theirs)
            if method != OURS and both.any():
                ends = interval((ours - theirs)[both])
                body.append([method, f"{int((ours < theirs).sum())} of {len(self.sets)}", *map(_or_none, ends)])
        heads = ["mean difference", "from", "to"]
        return Table(["torchbayes against", "better on", *heads], body, formats=dict.fromkeys(heads, "+.3f"))

    def numbers(self) -> dict[str, Any]:
        """Return what the tables show, JSON-serialisable; what a method failed at is null."""
        ranks = {key: self.ranks(reported=key == "reported").tolist() for key in ("all", "reported")}
        results: dict[str, Any] = {}
        for number, method in enumerate(self.methods):
            results[method] = {
                "rank": {key: _or_none(values[number]) for key, values in ranks.items()},
                "sets": {name: self._means(name, method) for name in self.sets},
                "no better than the constant": self.worse_than_constant(method),
                "failed": [[r.set, r.split, r.failed] for r in self.failures(method)],
            }
        return results

    def _means(self, name: str, method: str) -> dict[str, float | None]:
        """Return the mean over splits of each metric that some method has on a set."""
        known = {metric for (n, _, _), record in self.records.items() if n == name for metric in record.scores}
        return {metric: _or_none(self.mean(name, method, metric)) for metric in sorted(known)}


def report(records: Iterable[Record], methods: Sequence[str], folder: Path) -> str:
    """Write tables.md and tables.json into a folder, and return the first.

    Args:
        records: what there is.
        methods: the names of those that are shown, in order.
        folder: where to write.
    """
    kept = [record for record in records if record.method in methods]
    tasks = {task: Task.of(kept, methods, names) for task, names in TASKS.items()}
    text = "\n".join([f"{_HOW}\n", *(_section(name, task) for name, task in tasks.items() if task.sets), _times(kept)])
    numbers = {"protocol": PROTOCOL, "tuned": TUNED, "seconds": _seconds(kept)}
    numbers |= {name: task.numbers() for name, task in tasks.items()}
    write_whole(folder / "tables.json", (json.dumps(numbers, indent=1, allow_nan=False) + "\n").encode())
    write_whole(folder / "tables.md", text.encode())
    return text


def _section(name: str, task: Task) -> str:
    """Return the part of the report on one task."""
    splits = {len(task.splits(n)) for n in task.sets}
    counted = " to ".join(str(n) for n in sorted({min(splits), max(splits)}))
    parts = [f"## {name.capitalize()}: {len(task.sets)} sets, {counted} splits each\n", task.summary().markdown()]
    parts.append(task.by_set().markdown())
    if OURS in task.methods and CONSTANT in task.methods:
        worse = task.worse_than_constant(OURS)
        said = ", ".join(f"{n} {'no' if n in worse else 'yes'}" for n in task.sets)
        parts.append(f"Better than the constant: {'on every set' if not worse else 'not on every set'} ({said}).\n")
    differences = task.differences()
    if differences is not None:
        parts += ["Differences in NLL over sets; below zero torchbayes is better.\n", differences.markdown()]
    failed = [f"- {r.set}, split {r.split}, {r.method}: {r.failed}" for m in task.methods for r in task.failures(m)]
    if failed:
        parts.append("Failed:\n\n" + "\n".join(failed) + "\n")
    return "\n".join(parts)


def _seconds(records: Sequence[Record]) -> dict[str, float]:
    """Return the CPU seconds of each method."""
    names = dict.fromkeys(record.method for record in records)
    return {name: round(sum(r.cpu for r in records if r.method == name), 1) for name in names}


def _times(records: Sequence[Record]) -> str:
    """Return where the time went."""
    seconds = _seconds(records)
    total = sum(seconds.values())
    body = [[name, value / 60, value / total if total else 0.0] for name, value in seconds.items()]
    table = Table(["method", "CPU minutes", "share"], body, formats={"CPU minutes": ".1f", "share": ".0%"})
    return f"## Time\n\n{len(records)} fits, {total / 60:.0f} CPU minutes.\n\n{table.markdown()}"


def _finite(values: Sequence[float]) -> float | None:
    """Return the mean of the numbers that are finite; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else None


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

"""The log of a run: `log.jsonl`, one JSON object per epoch, each line with the run's name and its own checksum.

If a line is damaged, the others are still read, and a warning says what is missing. In memory the log is kept as
columns, so a million lines take no more than their numbers.
"""

from __future__ import annotations

import json
import math
import stat
import warnings
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.diagnostics.export import in_arviz
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import CHECKPOINT, advice, read_header, run_of, sealed, unsealed, write_whole
from torchbayes.posteriors.locks import FileWarning, open_own, shorten

NAME = "log.jsonl"


class History:
    """Lines of a log, each with a step and, by name, one number per member or a text.

    A number that a line does not hold, or that was lost with its line, is NaN.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        """Start from the lines of the run that is resumed, if any."""
        self._steps, self._columns = array("q"), dict[str, array]()
        self._texts: list[tuple[int, str, str]] = []
        self._members = 0
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a line: `step`, lists with a number for each member, texts; other entries are ignored."""
        lists = {name: entry for name, entry in record.items() if isinstance(entry, list)}
        self._members = max([self._members, *(len(entry) for entry in lists.values())])
        for name in lists:
            if name not in self._columns:
                self._columns[name] = array("d", [math.nan] * (len(self._steps) * self._members))
        for name, column in self._columns.items():
            column.extend(lists.get(name) or [math.nan] * self._members)
        self._texts += [(record["step"], name, entry) for name, entry in record.items() if isinstance(entry, str)]
        self._steps.append(record["step"])

    def of_all(self, gather: Callable[[Tensor], Tensor]) -> History:
        """Return the lines of all members, from those of the members of this process; `gather` is `Shard.gather`."""
        whole = History()
        whole._steps, whole._texts = self._steps, self._texts
        for name, column_MR in self.columns(after=-1).items():
            gathered_MR = gather(column_MR)
            whole._members = len(gathered_MR)
            whole._columns[name] = array("d", gathered_MR.T.flatten().tolist())
        return whole

    def columns(self, after: int = 0) -> dict[str, Tensor]:
        """Return the numbers of the lines after a step, by name, each float64 (M, lines)."""
        if not self._members:
            return {}
        steps = torch.tensor(self._steps)
        columns = {name: torch.tensor(column, dtype=torch.float64) for name, column in self._columns.items()}
        return {name: column.view(-1, self._members)[steps > after].T for name, column in columns.items()}

    def at(self, steps_S: Tensor, *, within: int) -> dict[str, Tensor]:
        """Return the numbers of the lines that cover some steps, by name, each float64 (M, S).

        The line of a step is the first at or after it, less than `within` steps later: the steps of an epoch. Where
        it was lost, numbers are NaN.
        """
        ends = torch.tensor(self._steps)
        columns = self.columns(after=-1)
        if not columns:
            return {}
        line_S = torch.searchsorted(ends, steps_S).clamp(max=len(ends) - 1)
        later_S = ends[line_S] - steps_S
        known_S = (later_S >= 0) & (later_S < within)
        return {name: torch.where(known_S, column_MR[:, line_S], math.nan) for name, column_MR in columns.items()}

    def first(self, name: str, after: int = 0) -> str:
        """Return the first text of a name after a step; empty if there is none."""
        return next((text for step, key, text in self._texts if key == name and step > after), "")


def with_reports(posterior: Any, history: History, *, within: int) -> Any:
    """Return draws of chains with what their sampler reported of each, from the log; other posteriors as they are.

    A line of the log covers `within` steps.
    """
    if posterior.sample_stats is None:
        return posterior
    steps_MS = posterior.sample_stats["step"]
    numbers = history.at(steps_MS[0], within=within)
    # a column that holds only NaN is that of another phase of the run
    numbers = {name: values for name, values in numbers.items() if not values.isnan().all()}
    return replace(posterior, sample_stats={**in_arviz(numbers), "step": steps_MS})


def append(path: Path, record: Mapping[str, Any], run: str) -> None:
    """Append one JSON-serialisable record, with `epoch` and `step`, to the log of the named run.

    Raises a FileExistsError if the log is a link to another file; an OSError if it cannot be written, as on a full
    disk, and then earlier records are intact.
    """
    size_before = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "ab", opener=open_own) as file:
            file.write(_line(record, run))
    except FileExistsError:
        raise
    except OSError as error:
        with suppress(OSError):
            shorten(path, size_before)
        raise OSError(
            error.errno,
            f"the line of epoch {record['epoch']} could not be written to {path} ({error.strerror}); those before it "
            f"are whole.{advice(error.errno, 'resume the run')}",
        ) from error


def cut(path: Path, step: int, run: str, *, epochs: int = 0) -> None:
    """Drop the records after a step, and damaged lines; warn if any of the first `epochs` epochs lacks a line."""
    lines = _read(path, run)
    kept = [record for record in lines.records if record["step"] <= step]
    _warn(path, lines.bad, set(range(1, epochs + 1)) - {record["epoch"] for record in kept})
    content = b"".join(_line(record, run) for record in kept)
    if path.is_file() and content != path.read_bytes():
        write_whole(path, content)


def read_log(directory: str | Path) -> list[dict[str, Any]]:
    """Read the log of a run, even while it is running.

    A warning says if lines are damaged, of another run, or missing.

    Args:
        directory: of the run.

    Returns:
        Its valid records, without an incomplete last line; empty if there is no log.
    """
    path = full_path(directory) / NAME
    epochs = _epochs(path.with_name(CHECKPOINT))  # read before the log, because the log is written first
    lines = _read(path, run_of(directory))
    present = {record["epoch"] for record in lines.records}
    _warn(path, lines.bad, set(range(1, max([epochs, *present]) + 1)) - present)
    return lines.records


def records(directory: str | Path) -> list[dict[str, Any]]:
    """Return the valid records of a log, as `read_log` does, but without warnings."""
    return _read(full_path(directory) / NAME, run_of(directory)).records


class _Found(NamedTuple):
    """Valid records, in the order of their epochs, and the number of invalid lines."""

    records: list[dict[str, Any]]
    bad: int


def _line(record: Mapping[str, Any], run: str) -> bytes:
    return (json.dumps(sealed({**record, "run": run})) + "\n").encode()


def _read(path: Path, run: str | None) -> _Found:
    """Return the lines of one run in a log: the first line's run if no name is given; nothing without a log."""
    lines = [b""]
    with suppress(FileNotFoundError, NotADirectoryError):  # `is_file` may not tell a log that may not be read from none
        if stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            lines = path.read_bytes().split(b"\n")
    records: dict[int, dict[str, Any]] = {}
    bad = 0
    for number, line in enumerate(lines, 1):
        try:
            record = unsealed(line)
        except ValueError:
            bad += number < len(lines)  # the last line may be empty, still being written, or cut short by a kill
            continue
        run = record["run"] if run is None else run
        if record.pop("run") == run and record["epoch"] not in records:
            records[record["epoch"]] = record
        else:
            bad += 1
    return _Found([records[epoch] for epoch in sorted(records)], bad)


def _epochs(checkpoint: Path) -> int:
    """Return how many epochs were over when a checkpoint was written, 0 if it cannot be read."""
    try:
        return int(read_header(checkpoint).get("about", {}).get("epochs", 0))
    except (OSError, ValueError):
        return 0


def _warn(path: Path, bad: int, missing: set[int]) -> None:
    clauses = [f"{bad} of its lines cannot be read or are another run's"] if bad else []
    clauses += [f"epoch{'s' if len(missing) > 1 else ''} {_ranges(sorted(missing))} left no line"] if missing else []
    if clauses:
        text = f"{path} is damaged: {' and '.join(clauses)}. The others are kept."
        warnings.warn(text, FileWarning, stacklevel=3)


def _ranges(numbers: list[int]) -> str:
    """Return sorted integers as text: "3, 5-8"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, bounds_of_range)) for bounds_of_range in parts)

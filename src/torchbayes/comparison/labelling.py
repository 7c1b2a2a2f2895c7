"""Active learning on a table and a pool without labels: learn, write the rows to label, read them back, learn again.

labelling.json        what was asked for, and the checksums of the files
round_0/data          train.csv, the rows with labels so far, and test.csv, the same in every round
round_0/fit           a run directory of `fit`
round_0/acquired.json the numbers on the test rows, and the places of the rows in the pool
round_0/to_label.csv  rows of the pool with an empty column for the target, to be filled in
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torchbayes.acquisition.acquire import Acquired, acquire
from torchbayes.acquisition.pool import different
from torchbayes.acquisition.rounds import FILE, AcquisitionWarning, Round, check_same
from torchbayes.assess.evaluate import evaluate
from torchbayes.catalogue.config import fit_run
from torchbayes.catalogue.problem import Problem, Setup
from torchbayes.checks import as_file
from torchbayes.checksum import crc
from torchbayes.data.user import read_new
from torchbayes.data.user.table import read_texts
from torchbayes.methods.protocol import Method
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import read_described, write_described, write_whole
from torchbayes.posteriors.locks import Locked, folder_in
from torchbayes.posteriors.problems import note
from torchbayes.randomness.seeds import Purpose, generator

TO_LABEL, PLACE = "to_label.csv", "pool_row"
_TESTED = 0.2  # share of the rows with labels that are test rows, where no file of such is given
_RECORD = "labelling.json"


@dataclass(frozen=True)
class Labelling:
    """What is labelled, and how rows are chosen.

    Attributes:
        problem: data is a CSV file of rows with labels.
        method: how to infer.
        pool: a CSV file of rows without labels, with the same columns.
        test: a CSV file of rows with labels for the numbers; a fifth of the data if None.
        score: of `torchbayes.acquire`.
        acquire: rows to label in a round.
        draws: as of `torchbayes.acquire`.
        seed: of fits, test rows and choices.
    """

    problem: Problem
    method: Method[Any]
    pool: Path
    test: Path | None = None
    score: str = "bald"
    acquire: int = 10
    draws: int | None = None
    seed: int = 0


class Step(NamedTuple):
    """One round: what was learned, and what to label next."""

    rounds: list[Round]  # so far
    setup: Setup
    acquired: Acquired
    path: Path  # the rows to label


def advance(asked: Labelling, directory: Path, *, resume: bool) -> Step:
    """Read the labels of the rounds so far, learn, and write the rows to label next.

    Raises ValueError if the directory holds another labelling or labels are not filled in, FileNotFoundError for no
    such file.
    """
    home = full_path(directory)
    if (home / _RECORD).is_file() and not resume:
        raise ValueError(f"{directory} already holds rounds. Add --resume, or choose another --directory.")
    frame, pool = read_texts(Path(asked.problem.data)), read_texts(asked.pool)
    test = None if asked.test is None else read_texts(asked.test)
    target = asked.problem.target or str(frame.columns[-1])
    _check_columns(frame, pool, test, target=target, asked=asked)
    with Locked(home):
        files = {"data": _crc(asked.problem.data), "pool": _crc(asked.pool), "test": _crc(asked.test)}
        check_same(home / _RECORD, **files, method=repr(asked.method), seed=asked.seed, target=target)
        train, test = _divided(frame, asked.seed) if test is None else (frame, test)
        rounds, known = list[Round](), list[int]()
        while (path := _folder(home, len(rounds)) / TO_LABEL).is_file():
            labelled, places = _labelled(path, target, pool)
            rounds.append(_recorded(path.with_name(FILE), asked))
            train, known = _joined(train, labelled), known + places
        cells = pool[[name for name in frame.columns if name != target]].apply(tuple, axis=1)
        left = np.flatnonzero(~cells.isin([*cells.iloc[known]]))  # without rows that repeat what was asked for
        if not len(left):
            raise ValueError(f"no row of {asked.pool} is left to label.")
        return _round(asked, _folder(home, len(rounds)), rounds, parts=(train, test, pool.iloc[left]), target=target)


def _round(asked: Labelling, folder: Path, rounds: list[Round], *, parts: tuple[Any, ...], target: str) -> Step:
    """Learn from the rows with labels, and write which of the others to label."""
    train, test, pool = parts
    columns = [name for name in train.columns if name != target]
    for name, frame in (("train", train), ("test", test)):
        _write(folder / "data" / f"{name}.csv", frame[[*columns, target]])
    _write(folder / "pool.csv", pool[columns])
    setup = replace(asked.problem, data=str(folder / "data"), target=target).setup()
    begun = (folder / "fit").exists()
    posterior = fit_run(setup, asked.method, folder / "fit", seed=asked.seed, resume=begun, callbacks=())
    with setup.problem.threading():
        metrics = dict(evaluate(posterior, tuple(setup.data.test), target_scale=setup.target_scale).metrics)
        inputs = read_new(setup.data, folder / "pool.csv").inputs
        count = min(asked.acquire, different(setup.model, inputs, 1024))
        acquired = acquire(posterior, inputs, count, score=asked.score, draws=asked.draws, seed=asked.seed)
    places = pool.index.to_numpy()[acquired.indices.numpy()].tolist()
    done = Round(asked.score, len(rounds), len(train), metrics, tuple(places), asked.seed)
    write_described(folder / FILE, {"labelled": done.labelled, "metrics": metrics, "taken": places})
    rows = pool.iloc[acquired.indices.numpy()][columns]
    rows.insert(0, PLACE, [place + 1 for place in places])
    rows[target] = ""
    _write(folder / TO_LABEL, rows)
    return Step([*rounds, done], setup, acquired, folder / TO_LABEL)


def _folder(home: Path, number: int) -> Path:
    return folder_in(home, f"round_{number}")


def _recorded(path: Path, asked: Labelling) -> Round:
    record, number = read_described(path), int(path.parent.name.rpartition("_")[2])
    return Round(asked.score, number, record["labelled"], record["metrics"], tuple(record["taken"]), asked.seed)


def _write(path: Path, frame: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, frame.to_csv(index=False).encode())


def _crc(path: str | Path | None) -> str | None:
    return None if path is None else crc(as_file(path).read_bytes())


def _check_columns(frame: Any, pool: Any, test: Any, *, target: str, asked: Labelling) -> None:
    """Raise ValueError unless the data have a target, and the other files their columns and rows."""
    if target not in frame.columns:
        raise ValueError(f"{asked.problem.data} has no column {target!r}. Its columns are {', '.join(frame.columns)}.")
    for path, rows, left_out, use in ((asked.pool, pool, [target], "choose from"), (asked.test, test, [], "score")):
        if rows is None:
            continue
        absent = [name for name in frame.columns if name not in rows.columns and name not in left_out]
        if absent:
            raise ValueError(f"{path} has no column {absent[0]!r}, which {asked.problem.data} has.")
        if not len(rows):
            raise ValueError(f"{path} has no rows; there is nothing to {use}.")


def _divided(frame: Any, seed: int) -> tuple[Any, Any]:
    """Return the rows with labels that are learned from, and those for the numbers."""
    order = torch.randperm(len(frame), generator=generator(Purpose.LABELS_HELD_OUT, seed)).numpy()
    count = max(1, round(_TESTED * len(order)))
    return frame.iloc[np.sort(order[count:])], frame.iloc[np.sort(order[:count])]


def _labelled(path: Path, target: str, pool: Any) -> tuple[Any, list[int]]:
    """Return the rows of the pool that were labelled, and the places in the pool of all rows of the file.

    Inputs are those of the pool: a spreadsheet may have written them otherwise. A ValueError if none is labelled, or
    the file has lost its places or labels.
    """
    frame = read_texts(path)
    for name in (PLACE, target):
        if name not in frame.columns:
            raise ValueError(f"{path} has lost its column {name!r}. Restore it: each row has its place in the pool.")
    places = frame[PLACE].str.strip()
    wrong = [text for text in places if not text.isdecimal() or not 1 <= int(text) <= len(pool)]
    if wrong:
        raise ValueError(f"`{PLACE}` of {path} must number rows of the pool, 1 to {len(pool)}; got {wrong[0]!r}.")
    filled = np.array(frame[target].str.strip() != "")
    if not filled.any():
        raise ValueError(f"{path} has no labels yet. Fill in its column {target!r}, save it, and resume.")
    if not filled.all():
        note(
            f"{int((~filled).sum())} of {len(filled)} rows of {path} have no label. They are left out.",
            AcquisitionWarning,
        )
    known = np.array([int(text) - 1 for text in places])
    labelled = pool.iloc[known[filled]].copy()
    labelled[target] = np.array(frame[target])[filled]
    return labelled, known.tolist()


def _joined(first: Any, second: Any) -> Any:
    import pandas as pd

    return pd.concat([first, second[[*first.columns]]], ignore_index=True)

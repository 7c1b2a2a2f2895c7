"""One record, a file of its own, for each set, split and method: an interrupted run loses none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tables.sets import SPLITS, TEST, TRAIN
from torchbayes.posteriors.files import write_whole

PROTOCOL = {"version": 1, "train rows at most": TRAIN, "test rows at most": TEST, "splits": SPLITS}
"""What all records of a folder share; another number where scores can no longer be compared."""


class Job(NamedTuple):
    """What a record is of."""

    set: str
    split: int
    method: str


@dataclass(frozen=True)
class Record:
    """How a method did on a split of a set.

    Attributes:
        set: name.
        split: number.
        method: name.
        scores: as `scores` returns them; empty where the method failed.
        cpu: seconds of all cores together, of the fit and the prediction.
        wall: seconds on the clock, likewise.
        rows: training rows.
        failed: why there are no scores; empty where there are.
    """

    set: str
    split: int
    method: str
    scores: dict[str, float]
    cpu: float
    wall: float
    rows: int
    failed: str = ""


class Records:
    """The records in a folder."""

    def __init__(self, folder: Path) -> None:
        """Open a folder, or begin it.

        Raises:
            ValueError: if its records are of another protocol.
        """
        self.folder, path = folder, folder / "protocol.json"
        if path.exists() and (results := json.loads(path.read_text())) != PROTOCOL:
            raise ValueError(
                f"the records in {folder} are of another protocol, {results}; now it is {PROTOCOL}. Choose another "
                f"folder."
            )
        if not path.exists():
            write_whole(path, _bytes(PROTOCOL))

    def has(self, job: Job) -> bool:
        """Return whether there is a record; a failure is one. Delete its file, and the job runs again."""
        return self._path(job).exists()

    def add(self, record: Record) -> None:
        """Write a record, completely or not at all."""
        write_whole(self._path(Job(record.set, record.split, record.method)), _bytes(asdict(record)))

    def __iter__(self) -> Iterator[Record]:
        """Yield every record, sorted by set, method and split."""
        for path in sorted(self.folder.glob("*/*.json")):
            yield Record(**json.loads(path.read_text()))

    def _path(self, job: Job) -> Path:
        return self.folder / job.set / f"{job.method}-{job.split}.json"


def _bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()

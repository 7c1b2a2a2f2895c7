"""The record of a sequence in `sequence.json`: its settings, and the scores so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any, Self

from torchbayes.driver.checkpoint import check_same_run
from torchbayes.driver.run import describe
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import read_described, write_described
from torchbayes.posteriors.locks import Locked

NAME = "sequence.json"
Metrics = Mapping[str, float]


class Record:
    """The scores of a sequence, kept in a directory if there is one; a context manager, which holds its lock."""

    def __init__(
        self, directory: str | PathLike[str] | None, about: Mapping[str, Any], sizes: Sequence[int], *, resume: bool
    ) -> None:
        """Describe the sequence; nothing is opened yet. `sizes` are the rows of each task."""
        if resume and directory is None:
            raise ValueError("`resume=True` needs the `directory` of the sequence to continue.")
        self.directory = None if directory is None else full_path(directory)
        self.about = {name: describe(value) for name, value in about.items()}
        self.sizes, self.resume = [*sizes], resume
        self.cells: dict[tuple[int, int], Metrics] = {}
        self.untrained: dict[tuple[int, int], Metrics] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Lock the directory, and read what is there.

        Raises ValueError if it holds another sequence, one that is not to be resumed, or a damaged one; OSError if
        another process writes there, or it cannot be written to.
        """
        if self.directory is None:
            return self
        with ExitStack() as stack:
            stack.enter_context(Locked(self.directory))
            self._read(self.directory / NAME)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _read(self, path: Path) -> None:
        if not path.exists():
            self._write()
            return
        if not self.resume:
            raise ValueError(
                f"{path.parent} already holds a sequence. Pass resume=True to continue it, or choose another directory."
            )
        described = read_described(path, restore="Restore it, or remove it and resume: scores are then taken anew.")
        sizes = described["sizes"]  # tasks may have been added
        check_same_run(path, described, {**self.about, "sizes": self.sizes[: len(sizes)]})
        for into, name in ((self.cells, "scores"), (self.untrained, "untrained")):
            into |= {(t, s): cell for t, s, cell in described[name] if max(t, s) < len(self.sizes)}
        self._write()

    def _write(self) -> None:
        if self.directory is not None:
            scores, untrained = ([[*at, dict(cell)] for at, cell in of.items()] for of in (self.cells, self.untrained))
            content = {**self.about, "sizes": self.sizes, "scores": scores, "untrained": untrained}
            write_described(self.directory / NAME, content)

    def score_untrained(self, score: Callable[[int], Metrics]) -> None:
        """Take the scores of the untrained network on every task, unless they are known."""
        self._fill(self.untrained, 0, range(len(self.sizes)), score)

    def score(self, task: int, score: Callable[[int], Metrics]) -> None:
        """Take the scores after a task on those so far and the next one, unless they are known."""
        self._fill(self.cells, task, range(min(task + 2, len(self.sizes))), score)

    def _fill(
        self, into: dict[tuple[int, int], Metrics], row: int, columns: range, score: Callable[[int], Metrics]
    ) -> None:
        for column in columns:
            if (row, column) not in into:
                metrics = score(column)
                into[row, column] = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._write()

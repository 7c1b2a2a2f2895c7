r"""What a sequence of tasks leaves: posteriors, and scores R_ts on task s after task t (Lopez-Paz and Ranzato 2017).

average after t      A_t = (1/t) Σ_{s ≤ t} R_ts
backward transfer    (1/(T−1)) Σ_{s < T} (R_Ts − R_ss)
forward transfer     (1/(T−1)) Σ_{s > 1} (R_{s−1,s} − b_s),   b_s of the network before any task
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import check_choice
from torchbayes.driver.checkpoint import check_same_run
from torchbayes.driver.run import describe
from torchbayes.posteriors.files import read_described, write_described
from torchbayes.posteriors.locks import Locked
from torchbayes.posteriors.posterior import Posterior

NAME = "sequence.json"
Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Learned:
    """What was learned of T tasks, one after the other.

    Attributes:
        posteriors: the posterior after each task, which is the prior of the next one.
        predictors: what predicts after each task: the same, or with coresets the posterior that has seen these too.
        names: names of the tasks.
        scores: metric, as `evaluate` names it -> R, float64 (T, T): row t after task t, column s on task s. NaN more
            than one task ahead, where no score is taken.
        untrained: metric -> b, float64 (T,), of the network at its first weights.
    """

    posteriors: Sequence[Posterior]
    predictors: Sequence[Posterior]
    names: Sequence[str]
    scores: Mapping[str, Tensor]
    untrained: Mapping[str, Tensor]

    @property
    def posterior(self) -> Posterior:
        """What predicts after the last task."""
        return self.predictors[-1]

    def average(self, metric: str | None = None) -> Tensor:
        """Return the mean score over the tasks so far after each task, float64 (T,).

        Args:
            metric: one of `scores`; accuracy where there is one, else nll, if None.
        """
        scores_TT = self._scores(metric)
        return torch.stack([row[: t + 1].mean() for t, row in enumerate(scores_TT)])

    def backward_transfer(self, metric: str | None = None) -> float:
        """Return how scores on earlier tasks have changed by the end: of accuracy, below 0 is forgetting; NaN if T = 1.

        Args:
            metric: as for `average`; of an nll or rmse, above 0 is forgetting.
        """
        scores_TT = self._scores(metric)
        return float((scores_TT[-1] - scores_TT.diagonal())[:-1].mean()) if len(scores_TT) > 1 else math.nan

    def forward_transfer(self, metric: str | None = None) -> float:
        """Return how earlier tasks improve one not learned yet, beyond the untrained network; NaN if T = 1.

        It means nothing if a task has a head of its own, which is untrained until then.

        Args:
            metric: as for `average`.
        """
        scores_TT, untrained_T = self._scores(metric), self.untrained[self._usual if metric is None else metric]
        return float((scores_TT.diagonal(1) - untrained_T[1:]).mean()) if len(scores_TT) > 1 else math.nan

    @property
    def _usual(self) -> str:
        return "accuracy" if "accuracy" in self.scores else "nll"

    def _scores(self, metric: str | None) -> Tensor:
        name = self._usual if metric is None else metric
        check_choice(tuple(self.scores), metric=name)
        return self.scores[name]


def matrices(cells: Mapping[tuple[int, int], Mapping[str, float]], count: int) -> dict[str, Tensor]:
    """Return the metrics that every cell has, each as a matrix (T, T), NaN where there is no cell."""
    common: Any = set.intersection(*(set(cell) for cell in cells.values()))
    matrix_of = {}
    for name in (n for n in next(iter(cells.values())) if n in common):
        matrix_of[name] = torch.full((count, count), math.nan, dtype=torch.float64)
        for (row, column), cell in cells.items():
            matrix_of[name][row, column] = cell[name]
    return matrix_of


@contextmanager
def recorded(
    directory: Path | None, settings: Mapping[str, Any], rows: Mapping[str, list[Any]], *, resume: bool
) -> Iterator[Record]:
    """Give the record of a sequence; its directory, if any, is locked.

    `settings` and `rows` tell it from others. `rows` have an entry for each task, of which there may be more later.

    Raises ValueError if it holds another sequence, one that is not to be resumed, or a damaged one; OSError if
    another process writes there, or it cannot be written to.
    """
    record = Record(directory, {name: describe(value) for name, value in settings.items()}, rows)
    with Locked(directory) if directory else nullcontext():
        if directory:
            record.read(directory / NAME, resume=resume)
        yield record


class Record:
    """The scores of a sequence, kept in `sequence.json` of a directory if there is one, with its settings."""

    def __init__(self, directory: Path | None, settings: Mapping[str, Any], rows: Mapping[str, list[Any]]) -> None:
        self.directory, self.settings, self.rows = directory, settings, rows
        self.cells: dict[tuple[int, int], Metrics] = {}
        self.untrained: dict[tuple[int, int], Metrics] = {}

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.rows["sizes"])

    def read(self, path: Path, *, resume: bool) -> None:
        """Read the scores so far, after checking that they are of this sequence."""
        if not path.exists():
            self._write()
            return
        if not resume:
            raise ValueError(
                f"{path.parent} already holds a sequence. Pass resume=True to continue it, or choose another directory."
            )
        described = read_described(path, restore="Restore it, or remove it and resume: scores are then taken anew.")
        before = len(described["sizes"])  # tasks may have been added
        known = {name: entries[:before] for name, entries in self.rows.items() if name in described}
        check_same_run(path, described, {**self.settings, **known})
        for into, name in ((self.cells, "scores"), (self.untrained, "untrained")):
            into |= {(t, s): cell for t, s, cell in described[name] if max(t, s) < self.tasks}
        self._write()

    def _write(self) -> None:
        if self.directory is not None:
            scores, untrained = ([[*at, dict(cell)] for at, cell in of.items()] for of in (self.cells, self.untrained))
            content = {**self.settings, **self.rows, "scores": scores, "untrained": untrained}
            write_described(self.directory / NAME, content)

    def score_untrained(self, score: Callable[[int], Metrics]) -> None:
        """Take the scores of the untrained network on every task, unless they are known."""
        self._fill(self.untrained, 0, range(self.tasks), score)

    def score(self, task: int, score: Callable[[int], Metrics]) -> None:
        """Take the scores after a task on those so far and the next one, unless they are known."""
        self._fill(self.cells, task, range(min(task + 2, self.tasks)), score)

    def _fill(
        self, into: dict[tuple[int, int], Metrics], row: int, columns: range, score: Callable[[int], Metrics]
    ) -> None:
        for column in columns:
            if (row, column) not in into:
                metrics = score(column)
                into[row, column] = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._write()

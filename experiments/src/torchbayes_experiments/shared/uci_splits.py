"""UCI regression over the standard splits: one job per split, each writing a file, in worker processes.

Networks of a few hundred weights keep a core mostly idle between calls, so the splits are distributed over as many
single-threaded worker processes as PyTorch has threads (`torch.set_num_threads`, `OMP_NUM_THREADS`). The numbers do not
depend on how many there are. A script that calls `reproduce` needs `if __name__ == "__main__":` around the call, like
every script that starts processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from torchbayes.data import num_splits
from torchbayes.posteriors.files import read_json
from torchbayes_experiments.files import load_or_compute

Scores = Mapping[str, Mapping[str, Any]]
Values = Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]  # set -> method -> metric -> value of each split


class SplitRecipe(Protocol):
    """Settings with the sets and splits to score."""

    @property
    def sets(self) -> tuple[str, ...]:
        """UCI sets, without `uci_`."""
        ...

    @property
    def splits(self) -> int:
        """How many standard splits of each set, from the first on; all if the set has fewer."""
        ...


class Score(Protocol):
    """Fits and scores on one split; a function of a module, because worker processes import it."""

    def __call__(self, recipe: Any, name: str, split: int, *, seed: int) -> Scores:
        """Return method -> metric -> value."""
        ...


@dataclass(frozen=True)
class _Job:
    """One split of one set, with the file its scores go to."""

    score: Score
    recipe: SplitRecipe
    name: str
    split: int
    seed: int
    path: Path

    def __call__(self) -> None:
        """Fit, score and write, unless that has been done."""
        load_or_compute(self.path, self._compute)

    def _compute(self) -> Scores:
        with _one_thread():
            return self.score(self.recipe, self.name, self.split, seed=self.seed)


def over_splits(score: Score, recipe: SplitRecipe, *, seed: int, directory: Path) -> dict[str, Any]:
    """Score every split of every set; each writes a file, so that an interrupted run continues with the next.

    Args:
        score: fits and scores on one split.
        recipe: its settings.
        seed: of everything random on every split.
        directory: of this seed; the files are `SET/split_SPLIT.json`.

    Returns:
        set -> method -> metric -> one value per split.
    """
    jobs = [
        _Job(score, recipe, name, split, seed, directory / name / f"split_{split}.json")
        for name in recipe.sets
        for split in range(min(recipe.splits, num_splits(f"uci_{name}")))
    ]
    for _ in _progress(_completed(jobs), len(jobs)):
        pass
    found: dict[str, Any] = {name: {} for name in recipe.sets}
    for job in jobs:
        for method, scores in read_json(job.path).items():
            for metric, value in scores.items():
                found[job.name].setdefault(method, {}).setdefault(metric, []).append(value)
    return found


def mean_over_seeds(results: Sequence[Mapping[str, Any]], methods: Iterable[str], metrics: Iterable[str]) -> Values:
    """Average the scores of every split over the seeds.

    Args:
        results: what `over_splits` returned, one per seed.
        methods: the methods to return.
        metrics: the metrics to return.

    Returns:
        set -> method -> metric -> array (splits,).
    """
    return {
        name: {m: {k: np.mean([r[name][m][k] for r in results], axis=0) for k in metrics} for m in methods}
        for name in results[0]
    }


def _completed(jobs: Sequence[_Job]) -> Iterator[object]:
    """Yield once per job run, here or in worker processes."""
    workers = min(torch.get_num_threads(), len(jobs))
    if workers == 1:
        yield from (job() for job in jobs)
        return
    # spawn: a fork of a process whose PyTorch has started threads can hang
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run on one thread, as a worker does, and restore the number: another number of threads may round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _progress(done: Iterable[object], total: int) -> Iterable[object]:
    """Return the iterable with a bar on standard error, if it is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(done, "splits", total, console=console, disable=not console.is_terminal)

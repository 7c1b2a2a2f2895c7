"""UCI regression over the standard splits: one job per split, each writing a file, in worker processes.

Networks of a few hundred weights keep a core mostly idle between calls, so the splits are distributed over as many
single-threaded worker processes as PyTorch has threads (`torch.set_num_threads`, `OMP_NUM_THREADS`). The numbers do not
depend on how many there are. A script that calls `reproduce` needs `if __name__ == "__main__":` around the call, like
every script that starts processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import torchbayes as tb
from torchbayes.report import Table
from torchbayes_experiments.files import load_or_compute, read_json
from torchbayes_experiments.rows import Rows
from torchbayes_experiments.tables import pivot

Scores = Mapping[str, Mapping[str, Any]]


def over_splits(score: Callable[..., Scores], recipe: Any, seed: int, directory: Path) -> dict[str, Any]:
    """Return set -> method -> metric -> one value per split; an interrupted run continues with the next split.

    Args:
        score: (recipe, set, split, seed=) -> method -> metric -> value; a function of a module, because worker
            processes import it.
        recipe: its settings, with `sets`, without `uci_`, and `splits`, how many of each, all if a set has fewer.
        seed: of everything random on every split.
        directory: of this seed; the files are `SET/split_SPLIT.json`.
    """
    splits = [
        (name, split) for name in recipe.sets for split in range(min(recipe.splits, tb.data.num_splits(f"uci_{name}")))
    ]
    paths = [directory / name / f"split_{split}.json" for name, split in splits]
    jobs = [
        partial(load_or_compute, path, _on_one_thread, partial(score, recipe, name, split, seed=seed))
        for path, (name, split) in zip(paths, splits, strict=True)
    ]
    _run(jobs)
    results: dict[str, Any] = {name: {} for name in recipe.sets}
    for path, (name, _) in zip(paths, splits, strict=True):
        for method, scores in read_json(path).items():
            for metric, value in scores.items():
                results[name].setdefault(method, {}).setdefault(metric, []).append(value)
    return results


def load_split(name: str, split: int) -> tuple[tb.data.Data, float]:
    """Return a standard split of a set, and its target's units per unit that a model sees."""
    data = tb.data.load(f"uci_{name}", split=split)
    assert data.target_standardise is not None
    return data, float(data.target_standardise.scale)


def score_table(rows: Rows, metric: str, label: str, **layout: Any) -> Table:
    """Return one metric of the test rows by set and method, means over the splits; `layout` is that of `pivot`."""
    return pivot(rows.where(metric=metric), "set", "method", over="split", heads=[f"test {label}"], **layout)


def _run(jobs: Sequence[Callable[[], object]]) -> None:
    """Run the jobs, with a bar on standard error if it is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    for _ in track(_completed(jobs), "splits", len(jobs), console=console, disable=not console.is_terminal):
        pass


def _completed(jobs: Sequence[Callable[[], object]]) -> Iterator[object]:
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


def _on_one_thread(job: Callable[[], Scores]) -> Scores:
    """Run on one thread, as a worker does, and restore the number: another number of threads may round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return job()
    finally:
        torch.set_num_threads(before)

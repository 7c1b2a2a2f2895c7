"""study: how much sooner predictions get good where rows are chosen, by rows whose labels are known already."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.acquisition.acquire import SCORES, acquire
from torchbayes.acquisition.pool import Pool
from torchbayes.acquisition.rounds import (
    RANDOM,
    AcquisitionWarning,
    Round,
    Sizes,
    check_pool,
    check_same,
    curves,
    rounds_of,
)
from torchbayes.assess.evaluate import evaluate
from torchbayes.calls import explained
from torchbayes.checks import (
    as_seed,
    check_choice,
    check_counts,
    check_flags,
    check_kind,
    check_name,
    check_positive,
    optional,
    plain,
    seen,
)
from torchbayes.checksum import checksums, crc
from torchbayes.display import shown_by
from torchbayes.driver.progress import Callback
from torchbayes.methods.protocol import Method
from torchbayes.model.batches.batch import rows_of, tensors_of
from torchbayes.model.description import describe_model
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import checksum_of_rows
from torchbayes.native.process import full_path, undisturbed
from torchbayes.posteriors.locks import Locked, folder_in
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import note
from torchbayes.selection.fit import fit

STUDY = "study.json"
_FEWER, _LEAST = 0.25, 5.0  # a class is told that has fewer rows than this part of its share, if that is so many


@dataclass(frozen=True)
class Plan:
    """What a study compares, and how.

    Attributes:
        sizes: how many rows are taken.
        scores: of `torchbayes.acquire`; rows at random are always compared with.
        seeds: how often it is done, with other first rows and other fits.
        seed: the first of the seeds, which follow each other.
        warm: begin each fit at the networks of the one before. Quicker, and often worse: what was learned from few rows
            is hard to leave (Ash and Adams 2020).
        draws: functions that are compared by the scores, as of `torchbayes.acquire`.
        target_scale: units of the targets per unit that the model sees, as of `torchbayes.evaluate`.
        chunk_size: rows that go through the network at once, where rows are scored.
    """

    sizes: Sizes = field(default_factory=Sizes)
    scores: tuple[str, ...] = ("bald",)
    seeds: int = 3
    seed: int = 0
    warm: bool = False
    draws: int | None = None
    target_scale: float = 1.0
    chunk_size: int = 1024

    def __post_init__(self) -> None:
        plain(self)
        check_kind(Sizes, "Sizes(…)", sizes=self.sizes)
        check_kind((tuple, list), "names of scores", scores=self.scores)
        if not self.scores:
            raise ValueError(f"`scores` is empty. Name some of {', '.join(SCORES)}.")
        for score in self.scores:
            check_choice(SCORES, scores=score)
        object.__setattr__(self, "scores", tuple(dict.fromkeys(self.scores)))
        object.__setattr__(self, "seed", as_seed(self.seed))
        check_counts(seeds=self.seeds, chunk_size=self.chunk_size)
        check_flags(warm=self.warm)
        optional(check_counts, draws=self.draws)
        check_positive(target_scale=self.target_scale)


@shown_by("ways", "seeds", "labelled", "problems")
@dataclass(frozen=True)
class Study:
    """Rounds of active learning.

    Attributes:
        plan: what was compared.
        rounds: of each seed those by each score, and then those that took rows at random.
        classes: way -> how many of the chosen rows are of each class, over all seeds; those of the pool as "pool".
            Empty if targets are no classes.
        duplicates: how many rows of the pool repeat another one; what repeats a labelled row is never asked for.
        problems: what to know of the choice, one clause each.
        directory: where the rounds are; None if nowhere.
    """

    plan: Plan
    rounds: list[Round]
    classes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    directory: Path | None = None

    @property
    def ways(self) -> list[str]:
        """The scores, and random."""
        return [*dict.fromkeys(each.way for each in self.rounds)]

    @property
    def seeds(self) -> int:
        """How often each way was tried."""
        return len({each.seed for each in self.rounds})

    @property
    def labelled(self) -> int:
        """The most rows that were learned from."""
        return max(each.labelled for each in self.rounds)

    def curves(self, metric: str) -> tuple[list[int], dict[str, Tensor]]:
        """Return a metric by the number of rows that were learned from.

        Args:
            metric: of the rounds, such as "accuracy", "nll" or "rmse".

        Returns:
            The P numbers of rows, and way -> values (P, R) of R seeds, float64.

        Raises:
            ValueError: if the rounds have no such metric.
        """
        check_name("metric", metric, self.rounds[0].metrics)
        return curves(self.rounds, metric)


@undisturbed
@explained()
def study(
    model: Model,
    pool: tuple[Any, Any],
    method: Method[Any],
    *,
    test: Any,
    plan: Plan | None = None,
    directory: str | PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] | None = None,
) -> Study:
    """Compare ways to choose rows, on a pool whose labels are known: choose, learn with the labels, choose again.

    An interrupted study that is resumed has the choices and the numbers of one that was not, bit for bit.

    Args:
        model: network, likelihood and prior.
        pool: inputs and targets of all rows that may be chosen.
        method: how to infer from the rows so far; its functions must differ, unless scores are of the average alone.
            Epochs are of these few rows: some hundred, where a fit of all rows would take some ten.
        test: inputs and targets that the metrics are of, or what `torchbayes.evaluate` takes.
        plan: how many rows, which scores, how many seeds; `Plan()` if None.
        directory: where fits and rounds go; nothing is written if None.
        resume: go on with the study in the directory.
        callbacks: of every fit, as of `torchbayes.fit`; None shows a line for each round.

    Returns:
        The rounds of all ways and seeds.

    Raises:
        TypeError: if the pool is no pair of inputs and targets, or as of `acquire`.
        ValueError: if the pool is too small for a round, the directory holds another study, or as of `fit` and
            `acquire`.
    """
    plan = Plan() if plan is None else plan
    check_kind(Model, "a Model", model=model)
    check_kind(Plan, "Plan(…)", plan=plan)
    check_flags(resume=resume)
    optional(check_kind, (str, PathLike), "a path", directory=directory)
    if not isinstance(pool, tuple | list) or len(pool) != 2:
        raise TypeError(f"`pool` must be a pair (inputs, targets); got {seen(pool)}.")
    rows = Pool.of(model, pool[0], seed=0, chunk_size=plan.chunk_size)
    targets, home = model.unpack((pool[0], pool[1])).targets, None if directory is None else full_path(directory)
    check_pool(len(rows.keys_N), plan.sizes)
    if home is not None and (home / STUDY).is_file() and not resume:
        raise ValueError(f"{home} already holds a study. Resume it, or choose another directory.")
    shown = callbacks or ()
    with nullcontext() if home is None else Locked(home):
        asked = _asked(model, plan, test, pool=crc(rows.keys_N.tobytes()), targets=checksums(tensors_of(targets)))
        check_same(None if home is None else home / STUDY, **asked, method=repr(method))
        rounds = []
        for seed in range(plan.seed, plan.seed + plan.seeds):
            learner = _Learner(model, method, rows, targets, test, plan, seed, shown, resume)
            place = None if home is None else folder_in(home, f"seed_{seed}")
            say = _say(seed) if callbacks is None else None
            for way in (*plan.scores, RANDOM):
                rounds += rounds_of(way, learner, plan.sizes, seed=seed, home=place, say=say)
    classes, duplicates = _classes(rounds, targets, plan), len(rows.keys_N) - len(np.unique(rows.keys_N))
    problems = (*_imbalances(classes), *_repeated(duplicates, len(rows.keys_N)))
    for problem in problems:
        note(f"active learning: {problem}.", AcquisitionWarning)
    return Study(plan, rounds, classes, duplicates, problems, home)


def _asked(model: Model, plan: Plan, test: Any, **rows: str) -> dict[str, Any]:
    """Return what tells a study from others, besides its method and its seeds, whose number may grow."""
    sizes = plan.sizes
    return {
        **rows,
        "first": sizes.first,
        "acquire": sizes.acquire,
        "warm": plan.warm,
        "draws": plan.draws,
        "model": {**describe_model(model), "layout": {name: [*shape] for name, shape in model.layout.shapes.items()}},
        "test": checksum_of_rows(test),
        "target_scale": plan.target_scale,
    }


def _say(seed: int) -> Callable[[str], object]:
    return lambda text: print(f"seed {seed}, {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Learner:
    """One seed of a study."""

    model: Model
    method: Method[Any]
    pool: Pool
    targets: Any
    test: Any
    plan: Plan
    seed: int
    callbacks: Sequence[Callback]
    resume: bool

    @property
    def rows(self) -> int:
        return len(self.pool.keys_N)

    @property
    def warm(self) -> bool:
        return self.plan.warm

    def learn(self, known: list[int], folder: Path | None, before: Any) -> Posterior:
        where, start = torch.tensor(known), None
        if self.warm and before is not None and (start := before.centre) is None:
            raise ValueError(
                f"`warm` needs a network to begin at, and draws of {type(self.method).__name__} are around none. Leave "
                f"it out."
            )
        return fit(
            self.model,
            (rows_of(self.pool.rows, where), rows_of(self.targets, where)),
            self.method,
            start=start,
            seed=self.seed,
            directory=None if folder is None else folder_in(folder, "fit"),
            resume=self.resume and folder is not None,
            callbacks=self.callbacks,
        )

    def judge(self, learned: Posterior) -> Mapping[str, float]:
        return evaluate(learned, self.test, target_scale=self.plan.target_scale).metrics

    def choose(self, way: str, learned: Posterior, known: list[int], *, count: int, number: int) -> list[int]:
        del number
        left, different = left_of(self.pool.keys_N, known)
        if not different:
            return []
        inputs, draws = rows_of(self.pool.rows, torch.from_numpy(left)), self.plan.draws
        size = self.plan.chunk_size
        chosen = acquire(
            learned, inputs, min(count, different), score=way, draws=draws, seed=self.seed, chunk_size=size
        )
        return left[chosen.indices.numpy()].tolist()


def left_of(keys_N: np.ndarray, known: list[int]) -> tuple[np.ndarray, int]:
    """Return the places of rows that repeat no known one, and how many of them are different."""
    left = np.flatnonzero(~np.isin(keys_N, keys_N[known]))
    return left, len(np.unique(keys_N[left]))


def _classes(rounds: Sequence[Round], targets: Any, plan: Plan) -> dict[str, tuple[int, ...]]:
    """Return how many rows of each class were chosen in each way; empty if targets are no classes."""
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.ndim != 1 or targets.min() < 0:
        return {}
    labels, count, by_way = targets.cpu(), int(targets.max()) + 1, dict[str, Tensor]()
    for each in rounds:
        taken = labels[torch.tensor(each.taken, dtype=torch.int64)]
        by_way[each.way] = by_way.get(each.way, 0) + torch.bincount(taken, minlength=count)
    by_way["pool"] = torch.bincount(labels, minlength=count)
    return {way: tuple(counts.tolist()) for way, counts in by_way.items()}


def _imbalances(classes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield the ways by which a class was chosen far less often than its share of the pool asks for."""
    pool = classes.get("pool", ())
    for way, counts in classes.items():
        expected = [sum(counts) * of_class / max(sum(pool), 1) for of_class in pool]
        rare = [k for k, (n, e) in enumerate(zip(counts, expected, strict=True)) if e >= _LEAST and n < _FEWER * e]
        if rare and way not in {"pool", RANDOM}:
            first = rare[0]
            yield (
                f"{way} hardly chose {'class' if len(rare) == 1 else 'classes'} {', '.join(map(str, rare))}: "
                f"{counts[first]} rows of class {first}, where its share of the pool is {expected[first]:.0f}"
            )


def _repeated(duplicates: int, rows: int) -> Iterator[str]:
    if duplicates:
        yield (
            f"{duplicates:,} of the {rows:,} rows of the pool repeat another one; a score asks for each once, and "
            f"random choice may ask again"
        )

"""The loop of active learning: learn from few rows, choose more, learn again; in a directory that can be continued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from torchbayes.checks import check_counts, plain
from torchbayes.posteriors.files import read_described, write_described
from torchbayes.posteriors.locks import folder_in
from torchbayes.randomness.seeds import Purpose, generator

RANDOM = "random"
ROUNDS, FILE = "rounds", "acquired.json"


class AcquisitionWarning(UserWarning):
    """Rows were chosen, and something is to be known of the choice."""


@dataclass(frozen=True)
class Sizes:
    """How many rows a study takes.

    Attributes:
        first: at the start, at random, the same for every way to choose.
        acquire: in a round.
        rounds: after the first one; fewer if the pool is empty before.
    """

    first: int = 10
    acquire: int = 10
    rounds: int = 10

    def __post_init__(self) -> None:
        plain(self)
        check_counts(first=self.first, acquire=self.acquire, rounds=self.rounds)


@dataclass(frozen=True)
class Round:
    """One round of a study.

    Attributes:
        way: name of the score, or random.
        number: from 0.
        labelled: how many rows were learned from.
        metrics: on the test rows.
        taken: places in the pool of the rows that are taken next, the first choice first.
        seed: of the study.
    """

    way: str
    number: int
    labelled: int
    metrics: dict[str, float]
    taken: tuple[int, ...]
    seed: int = 0


class Learner(Protocol):
    """What learns from rows of a pool, and chooses among the others."""

    @property
    def rows(self) -> int:
        """How many rows the pool has."""
        ...

    @property
    def warm(self) -> bool:
        """Whether a round begins at what the one before has learned."""
        ...

    def learn(self, known: list[int], folder: Path | None, before: Any) -> Any:
        """Return what is learned from rows; `before` is that of the round before, None at first."""
        ...

    def judge(self, learned: Any) -> Mapping[str, float]:
        """Return metrics on the test rows."""
        ...

    def choose(self, way: str, learned: Any, known: list[int], *, count: int, number: int) -> list[int]:
        """Return the places of at most `count` rows that are worth most, none of them known."""
        ...


def rounds_of(
    way: str,
    learner: Learner,
    sizes: Sizes,
    *,
    seed: int,
    home: Path | None,
    say: Callable[[str], object] | None,
) -> list[Round]:
    """Return the rounds that choose in one way, the last of which takes nothing more.

    A round that a directory has, of the same rows, is read from there. `say` is told of each one.
    """
    done: list[Round] = []
    known, learned = shuffled(Purpose.FIRST_ROWS, seed, learner.rows)[: sizes.first], None
    for number in range(sizes.rounds + 1):
        count = min(sizes.acquire, learner.rows - len(known)) if number < sizes.rounds else 0
        folder = None if home is None else folder_in(home, ROUNDS, f"{way}_{number}")
        record = None if learner.warm else _recorded(folder, known, count)
        if record is None:
            if say is not None:
                say(f"round {number}, {way}: {len(known)} rows")
            learned = learner.learn(known, folder, learned)
            metrics = dict(learner.judge(learned))
            taken = _next(way, learner, learned, known, count=count, number=number, seed=seed) if count else []
            record = {"known": known, "metrics": metrics, "asked": count, "taken": taken}
            if folder is not None:
                write_described(folder / FILE, record)
        taken = record["taken"][:count]
        done.append(Round(way, number, len(known), record["metrics"], tuple(taken), seed))
        known = [*known, *taken]
        if not taken:
            break
    return done


def _recorded(folder: Path | None, known: list[int], count: int) -> dict[str, Any] | None:
    """Return what a directory has of a round after these rows, if it has chosen as many; None otherwise."""
    if folder is None or not (folder / FILE).is_file():
        return None
    record = read_described(folder / FILE)
    return record if record["known"] == known and record["asked"] >= count else None


def _next(
    way: str, learner: Learner, learned: Any, known: list[int], *, count: int, number: int, seed: int
) -> list[int]:
    if way != RANDOM:
        return learner.choose(way, learned, known, count=count, number=number)
    left = sorted({*range(learner.rows)} - {*known})
    return [left[k] for k in shuffled(Purpose.RANDOM_ROWS, seed, len(left), number)[:count]]


def shuffled(purpose: Purpose, seed: int, size: int, *numbers: int) -> list[int]:
    """Return the numbers below `size` in an order of their own."""
    return torch.randperm(size, generator=generator(purpose, seed, *numbers)).tolist()


def check_pool(rows: int, sizes: Sizes, row_label: str = "rows") -> None:
    """Raise ValueError if the pool, of so many of `row_label`, is too small for one round."""
    if rows < sizes.first + sizes.acquire:
        raise ValueError(
            f"the pool has {rows} {row_label}, fewer than the {sizes.first} at the start and {sizes.acquire} of a "
            f"round. Give more, or lower `first` or `acquire`."
        )


def check_same(path: Path | None, **asked: Any) -> None:
    """Record what a study was asked for, or check that it is as before; a ValueError if not."""
    if path is None:
        return
    if not path.is_file():
        write_described(path, asked)
        return
    before = read_described(path)
    for name, value in asked.items():
        if before.get(name, value) != value:  # which earlier versions may not have written
            raise ValueError(
                f"{path.parent} holds rounds of another `{name}` ({before.get(name)!r}; now {value!r}). Choose another "
                f"directory."
            )


def curves(rounds: list[Round], metric: str) -> tuple[list[int], dict[str, Tensor]]:
    """Return how many rows were learned from, and a metric there by each way: way -> (P, R) of R seeds, float64.

    The numbers are those of the places that every way and seed has.
    """
    metrics: dict[str, dict[int, dict[int, float]]] = {}
    for each in rounds:
        metrics.setdefault(each.way, {}).setdefault(each.seed, {})[each.labelled] = each.metrics[metric]
    places = sorted(set.intersection(*({*of_seed} for way in metrics.values() for of_seed in way.values())))
    values = {way: [[of_seed[p] for of_seed in seeds.values()] for p in places] for way, seeds in metrics.items()}
    return places, {way: torch.tensor(each, dtype=torch.float64) for way, each in values.items()}

"""Active learning: which questions to label next, and how much sooner the numbers get good than at random.

A study begins with a few questions of the training file, fits, scores questions of the pool by BALD (Houlsby et al.
2011), the mutual information of the answer and the weights

    I(y; w | x) = H(E_w p(y | x, w)) − E_w H(p(y | x, w))

takes those that have most of it, with their answers, and fits anew. Both expectations are means over the same draws S,
as many in every round; the estimate is too small by about I/S for all questions alike, so that ranks do not change.
A second study takes questions at random. Both begin with the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.evaluate import evaluate
from torchbayes.checks import check_counts, check_flags, check_kind, optional, plain
from torchbayes.driver.progress import Callback
from torchbayes.lora.asked import read
from torchbayes.lora.methods import DEFAULT, METHODS, named
from torchbayes.lora.run import begun, fitted, tell
from torchbayes.lora.scores import disagreement, source_of
from torchbayes.lora.settings import Settings
from torchbayes.lora.setup import Setup
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import read_described, write_described
from torchbayes.posteriors.locks import folder_in
from torchbayes.randomness.seeds import Purpose, generator

WAYS = ("bald", "random")
ROUNDS, FILE = "rounds", "acquired.json"
_SCORED = 1000  # questions of the pool that a round scores


@dataclass(frozen=True)
class Sizes:
    """How many questions a study takes.

    Attributes:
        first: at the start, the same for both ways.
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
        way: bald or random.
        number: from 0.
        questions: how many were learned from.
        metrics: on the test questions.
        taken: places in the pool of the questions that are taken next, the most informative first.
    """

    way: str
    number: int
    questions: int
    metrics: dict[str, float]
    taken: tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """Rounds of active learning.

    Attributes:
        setup: base, adapter and questions; those to learn from are the pool.
        method: whose posterior was asked.
        rounds: those by BALD, and then as many that took questions at random.
        directory: where they are; None if nowhere.
    """

    setup: Setup
    method: str
    rounds: list[Round]
    directory: Path | None = None


def acquire(
    settings: Settings,
    method: str = DEFAULT,
    *,
    sizes: Sizes | None = None,
    directory: str | PathLike[str] | None = None,
    resume: bool = False,
    trust: bool = False,
    callbacks: Sequence[Callback] | None = None,
) -> Study:
    """Learn from a few questions, label those that the posterior is least sure of, and learn again.

    Args:
        settings: base, questions, adapter and length; the training questions are the pool.
        method: a name of `torchbayes.lora.METHODS` whose draws differ, so not "map".
        sizes: how many questions are taken; `Sizes()` if None.
        directory: where fits and numbers go; nothing is written if None.
        resume: go on with the study in the directory.
        trust: run the code that comes with a base.
        callbacks: of every fit, as of `torchbayes.fit`; None shows a line for each round.

    Returns:
        The study.

    Raises:
        ValueError: if the method has a single network, the pool is too small, or as of `fit`.
        FileNotFoundError: as of `fit`.
        ImportError: as of `fit`.
        RuntimeError: if a GPU has not enough memory.
    """
    sizes = Sizes() if sizes is None else sizes
    check_kind(Settings, "Settings(base, data)", settings=settings)
    check_kind(Sizes, "Sizes(…)", sizes=sizes)
    check_flags(resume=resume, trust=trust)
    optional(check_kind, (str, PathLike), "a path", directory=directory)
    (name, *more) = named([method])
    if more or not METHODS[name].drawn:
        drawn = ", ".join(key for key, entry in METHODS.items() if entry.drawn)
        raise ValueError(f"`method` must be one whose draws differ, {drawn}; got {method!r}.")
    home = None if directory is None else full_path(directory)
    _check_pool(settings, sizes)
    members = settings.members if name == "ensemble" else 1
    with begun(settings, home, resume=resume, trust=trust, members=members) as setup:
        _check_same(home, first=sizes.first, acquire=sizes.acquire, method=name)
        ways = [_Way(setup, name, way, sizes, home, callbacks) for way in WAYS]
        rounds = [each for way in ways for each in way.run(resume=resume)]
    return Study(setup, name, rounds, home)


def _check_pool(settings: Settings, sizes: Sizes) -> None:
    """Raise ValueError if the training questions are too few for one round."""
    pool = len(read(settings).train)
    if pool < sizes.first + sizes.acquire:
        raise ValueError(
            f"the pool has {pool} questions, fewer than the {sizes.first} at the start and {sizes.acquire} of a round. "
            f"Give more, or lower `first` or `acquire`."
        )


def _check_same(home: Path | None, **asked: Any) -> None:
    """Record how many questions a study takes, or check that it is as before; a ValueError if not."""
    if home is None:
        return
    path = home / FILE
    if not path.is_file():
        write_described(path, asked)
        return
    before = read_described(path)
    for name, value in asked.items():
        if before.get(name) != value:
            raise ValueError(
                f"{home} holds rounds of another `{name}` ({before.get(name)!r}; now {value!r}). Choose another "
                f"directory."
            )


@dataclass(frozen=True)
class _Way:
    """Rounds that take questions in one way."""

    setup: Setup
    method: str
    way: str
    sizes: Sizes
    home: Path | None
    callbacks: Sequence[Callback] | None

    def run(self, *, resume: bool) -> list[Round]:
        """Return the rounds, the last of which takes nothing more."""
        size, done = len(self.setup.asked.questions.train), list[Round]()
        known = self._shuffled(Purpose.FIRST_QUESTIONS, size)[: self.sizes.first]
        for number in range(self.sizes.rounds + 1):
            count = min(self.sizes.acquire, size - len(known)) if number < self.sizes.rounds else 0
            if self.callbacks is None:
                tell(f"round {number}, {self.way}: {len(known)} questions")
            done.append(self._round(number, known, count, resume=resume))
            known = [*known, *done[-1].taken]
            if not count:
                break
        return done

    def _round(self, number: int, known: list[int], count: int, *, resume: bool) -> Round:
        folder = None if self.home is None else folder_in(self.home, ROUNDS, f"{self.way}_{number}")
        path = None if folder is None else folder / FILE
        if path is not None and path.is_file():
            recorded = read_described(path)
            if recorded["known"] == known and len(recorded["taken"]) >= count:
                return Round(self.way, number, len(known), recorded["metrics"], tuple(recorded["taken"][:count]))
        pool = self.setup.asked.questions.train
        train = self.setup.asked.encoding.rows([pool[k] for k in known])
        shown, names = self.callbacks or (), [self.method]
        posterior = fitted(self.setup, train, names, home=folder, resume=resume, callbacks=shown)[self.method]
        settings = self.setup.settings
        source = source_of(posterior, settings.draws, seed=settings.seed)
        metrics = dict(evaluate(source, self.setup.asked.test, chunk_size=settings.chunk_size).metrics)
        taken = self._next(source, known, count, number) if count else []
        if path is not None:
            write_described(path, {"known": known, "metrics": metrics, "taken": taken})
        return Round(self.way, number, len(known), metrics, tuple(taken))

    def _next(self, source: Any, known: list[int], count: int, number: int) -> list[int]:
        """Return the places in the pool of the questions that are taken next."""
        left = sorted({*range(len(self.setup.asked.questions.train))} - {*known})
        if self.way == "random":
            return [left[k] for k in self._shuffled(Purpose.RANDOM_QUESTIONS, len(left), number)[:count]]
        places = [left[k] for k in sorted(self._shuffled(Purpose.POOL, len(left), number)[:_SCORED])]
        return [places[k] for k in best(self._informative(source, places), count)]

    def _informative(self, source: Any, places: list[int]) -> Tensor:
        pool = self.setup.asked.questions.train
        rows = self.setup.asked.encoding.inputs([pool[k] for k in places])
        return disagreement(source, rows, chunk_size=self.setup.settings.chunk_size)

    def _shuffled(self, purpose: Purpose, size: int, *numbers: int) -> list[int]:
        source = generator(purpose, self.setup.settings.seed, *numbers)
        return torch.randperm(size, generator=source).tolist()


def best(scores_N: Tensor, count: int) -> list[int]:
    """Return the places of the highest scores, the highest first; of equal ones the first."""
    return scores_N.argsort(descending=True, stable=True)[:count].tolist()

"""Active learning: which questions to label next, and how much sooner the numbers get good than at random.

A study begins with a few questions of the training file, fits, scores questions of the pool by BALD (Houlsby et al.
2011), the mutual information of the answer and the weights

    I(y; w | x) = H(E_w p(y | x, w)) − E_w H(p(y | x, w))

takes those that have most of it, with their answers, and fits anew. A second study takes questions at random. Both
begin with the same ones. The loop is that of `torchbayes.acquisition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torchbayes.acquisition.acquire import acquire as acquired
from torchbayes.acquisition.pool import different
from torchbayes.acquisition.rounds import FILE, RANDOM, Round, Sizes, check_pool, check_same, rounds_of, shuffled
from torchbayes.assess.evaluate import evaluate
from torchbayes.checks import check_flags, check_kind, optional
from torchbayes.driver.progress import Callback
from torchbayes.lora.asked import read
from torchbayes.lora.methods import DEFAULT, METHODS, named
from torchbayes.lora.run import begun, fitted, tell
from torchbayes.lora.scores import source_of
from torchbayes.lora.settings import Settings
from torchbayes.lora.setup import Setup
from torchbayes.native.process import full_path
from torchbayes.randomness.seeds import Purpose

WAYS = ("bald", RANDOM)
_SCORED = 1000  # questions of the pool that a round scores


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
    check_pool(len(read(settings).train), sizes, "questions")
    members = settings.members if name == "ensemble" else 1
    with begun(settings, home, resume=resume, trust=trust, members=members) as setup:
        check_same(None if home is None else home / FILE, first=sizes.first, acquire=sizes.acquire, method=name)
        learner, say = _Learner(setup, name, callbacks or (), resume), tell if callbacks is None else None
        loop: dict[str, Any] = {"seed": settings.seed, "home": home, "say": say}
        rounds = [each for way in WAYS for each in rounds_of(way, learner, sizes, **loop)]
    return Study(setup, name, rounds, home)


@dataclass(frozen=True)
class _Learner:
    """Learns from questions, and chooses among the others."""

    setup: Setup
    method: str
    callbacks: Sequence[Callback]
    resume: bool
    warm: bool = False

    @property
    def rows(self) -> int:
        return len(self.setup.asked.questions.train)

    def learn(self, known: list[int], folder: Path | None, before: Any) -> Any:
        del before
        train = self.setup.asked.encoding.rows([self.setup.asked.questions.train[k] for k in known])
        again: dict[str, Any] = {"resume": self.resume, "callbacks": self.callbacks}
        posterior = fitted(self.setup, train, [self.method], home=folder, **again)[self.method]
        return source_of(posterior, self.setup.settings.draws, seed=self.setup.settings.seed)

    def judge(self, learned: Any) -> Mapping[str, float]:
        return evaluate(learned, self.setup.asked.test, chunk_size=self.setup.settings.chunk_size).metrics

    def choose(self, way: str, learned: Any, known: list[int], *, count: int, number: int) -> list[int]:
        settings, left = self.setup.settings, sorted({*range(self.rows)} - {*known})
        places = [left[k] for k in sorted(shuffled(Purpose.POOL, settings.seed, len(left), number)[:_SCORED])]
        rows = self.setup.asked.encoding.inputs([self.setup.asked.questions.train[k] for k in places])
        again: dict[str, Any] = {"seed": settings.seed, "chunk_size": settings.chunk_size}
        count = min(count, different(learned.model, rows, settings.chunk_size))
        return [places[k] for k in acquired(learned, rows, count, score=way, **again).indices.tolist()]

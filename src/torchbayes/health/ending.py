"""The end of a run as a method describes it, and the checks of its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from torchbayes.model.sources.sources import Source
from torchbayes.posteriors.problems import checked, not_finite, warn_of, warn_unchecked


class History(Protocol):
    """The log of a run, from its first step."""

    def columns(self, after: int = 0) -> dict[str, Tensor]:
        """Return the numbers of the lines after a step, by name, each (M, lines), float64."""
        ...

    def first(self, name: str, after: int = 0) -> str:
        """Return the first text under a name after a step; "" if there is none."""
        ...


class NoHistory:
    """The log of a run that keeps none."""

    def columns(self, after: int = 0) -> dict[str, Tensor]:
        """Return nothing."""
        del after
        return {}

    def first(self, name: str, after: int = 0) -> str:
        """Return nothing."""
        del name, after
        return ""


class Case(NamedTuple):
    """A result to be judged."""

    posterior: Any  # the result of a run
    source: Source  # the training data
    history: History  # the log of the run


Check = Callable[[Case], Sequence[str]]
"""Returns the problems of a case, one clause each."""


@dataclass(frozen=True, kw_only=True)
class Ending(ABC):
    """The end of a run."""

    said: Sequence[str] = ()  # problems that are known already, of settings or of the run, one clause each
    first: Sequence[Check] = ()  # checks before all others; if one finds a problem, it is the only one
    then: Sequence[Check] = ()  # checks if nothing else was found, likewise

    @abstractmethod
    def look(self, case: Case) -> Sequence[str]:
        """Return the problems of a result that ended like this, one clause each."""

    def with_learned(self, learned: Sequence[float]) -> Any:
        """Return the same end of a run with other learned parameters of the likelihood."""
        del learned
        return self

    def dropped(self, case: Case) -> Tensor | None:
        """Return which members are left out of the result, bool (M,), None for none; `problems` are of the rest."""
        del case
        return None

    def problems(self, case: Case) -> list[str]:
        """Return all known problems of a result, one clause each.

        They do not depend on whether the run was interrupted, or which processes shared it.
        """
        problems = _first_of(self.first, case) or self.look(case) or _first_of(self.then, case)
        return [*self.said, *problems]


@dataclass(frozen=True, kw_only=True)
class Ended(Ending):
    """A run of which nothing is known but its result, whose numbers must be finite."""

    def look(self, case: Case) -> list[str]:
        return finite(case)


def judged(posterior: Any, ending: Ending, source: Source, *, known: Sequence[str]) -> Any:
    """Return a posterior with its problems, those `known` before included, and warn of them; the run kept no log."""
    problems, raised = checked(lambda: ending.problems(Case(posterior, source, NoHistory())))
    posterior = posterior.with_problems((*known, *problems))
    warn_of(posterior.problems)
    warn_unchecked(raised)
    return posterior


def first(bad_M: Tensor) -> list[int]:
    """Return the number of the first member that is bad, in a list; an empty one if there is none."""
    return bad_M.nonzero()[:1, 0].tolist()


def named(bad_M: Tensor) -> str:
    """Return the first member that is bad, and how many more there are; there is at least one."""
    more = int(bad_M.sum()) - 1
    return f"member {first(bad_M)[0]}" + (f" (and {more} more)" if more else "")


def finite(case: Case) -> list[str]:
    """Return a problem if a number of the result is not finite."""
    return not_finite(case.posterior.tensors())


def _first_of(checks: Sequence[Check], case: Case) -> Sequence[str]:
    """Return the problems of the first check that finds any."""
    return next((problems for check in checks if (problems := check(case))), ())

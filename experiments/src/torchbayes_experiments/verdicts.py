"""Verdicts: whether several repeats of an experiment support its claim, by one stated rule.

A claim is split into parts, each of the form "this mean is below that bound". With R repeats of mean m and sample
standard deviation s the mean's 95 % interval is

    m ± t_{0.975, R−1} · s / √R

A part holds if the whole interval lies below the bound, does not hold if it lies above, and is inconclusive otherwise.
Comparisons of two methods are made on paired differences: repeats share seed, data and split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from torchbayes.checks import check_choice

Outcome = Literal["holds", "does not hold", "inconclusive"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Values = Sequence[float] | np.ndarray

SEEDS = 5  # on which a verdict rests


@dataclass(frozen=True)
class Part:
    """One testable part of a claim.

    Attributes:
        statement: what is tested, in words.
        outcome: the result of the test.
        evidence: the numbers behind it.
        precondition: whether the part tests only that the comparison is fair; if it does not hold, the claim is
            inconclusive.
    """

    statement: str
    outcome: Outcome
    evidence: str
    precondition: bool = False

    def __post_init__(self) -> None:
        check_choice(OUTCOMES, outcome=self.outcome)


@dataclass(frozen=True)
class Verdict:
    """The outcome for the whole claim.

    Attributes:
        outcome: holds, does not hold or inconclusive.
        parts: the parts of the claim with their outcomes.
    """

    outcome: Outcome
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Verdict:
        """Combine the parts: the claim holds if all parts hold, and does not hold if one part does not.

        A precondition that does not hold makes the claim inconclusive, whatever the other parts say.

        Raises:
            ValueError: if there is no part.
        """
        if not parts:
            raise ValueError("a verdict needs at least one part; got none.")
        claims = {part.outcome for part in parts if not part.precondition}
        fair = all(part.outcome == "holds" for part in parts if part.precondition)
        if fair and "does not hold" in claims:
            return cls("does not hold", tuple(parts))
        return cls("holds" if fair and claims <= {"holds"} else "inconclusive", tuple(parts))

    @property
    def counts(self) -> Mapping[str, int]:
        """Outcome -> how many parts have it."""
        outcomes = [part.outcome for part in self.parts]
        return {outcome: outcomes.count(outcome) for outcome in OUTCOMES}

    @property
    def reason(self) -> str:
        """One or two sentences: how many parts hold, and the first that do not."""
        open_parts = [part for part in self.parts if part.outcome != "holds"]
        if not open_parts:
            return f"All {len(self.parts)} parts hold." if len(self.parts) > 1 else "Its one part holds."
        listed = "; ".join(f"{part.statement} ({part.outcome})" for part in open_parts[:3])
        listed += f"; and {len(open_parts) - 3} more" if len(open_parts) > 3 else ""
        return f"{len(self.parts) - len(open_parts)} of {len(self.parts)} parts hold. Open or against: {listed}."


def provisional(outcome: str, seeds: int) -> str:
    """Return that a decided verdict rests on too few seeds, in a few words; empty if it does not."""
    return f"provisional: {seeds} of {SEEDS} seeds" if outcome != "inconclusive" and seeds < SEEDS else ""


def interval(values: Values) -> tuple[float, float, float]:
    """Return the mean of repeats and the ends of its 95 % t interval; the ends are infinite for fewer than two."""
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return mean, -math.inf, math.inf
    half = float(t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array)))
    return mean, mean - half, mean + half


def mean_and_error(values: Values) -> tuple[float, float] | float:
    """Return (mean, standard error) of repeats for a cell of a table; the mean alone for one repeat."""
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    return mean if len(array) < 2 else (mean, float(array.std(ddof=1) / math.sqrt(len(array))))


def two_standard_errors(values: Values) -> np.ndarray:
    """Return two standard errors of the mean over the first axis, for error bars; zero for one repeat."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return np.zeros(array.shape[1:])
    return 2 * array.std(0, ddof=1) / np.sqrt(len(array))


def ranks_agree(first: Values, second: Values) -> float:
    """Return the rank correlation of all numbers (Spearman); 0 where they are constant, or fewer than two."""
    from scipy.stats import rankdata

    if np.size(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def below(statement: str, values: Values, bound: float = 0.0, *, precondition: bool = False) -> Part:
    """Test whether the mean of the repeats lies below a bound.

    Args:
        statement: what is tested, in words.
        values: R repeats: a metric, or paired differences of one.
        bound: the bound.
        precondition: see `Part`.

    Returns:
        The part; inconclusive for fewer than two repeats.

    Raises:
        ValueError: if there are no values, or one is not finite.
    """
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"the repeats of {statement!r} must be finite and at least one; got {list(values)}.")
    mean, low, high = interval(values)
    outcome: Outcome = "holds" if high < bound else "does not hold" if low > bound else "inconclusive"
    spread = f"95 % interval {low:.4g} to {high:.4g}" if len(values) > 1 else "one repeat has no spread"
    hits = sum(value < bound for value in values)
    evidence = f"mean {mean:.4g}, {spread}, bound {bound:.4g}; below it in {hits} of {len(values)} repeats"
    return Part(statement, outcome, evidence.replace("-", "−"), precondition)

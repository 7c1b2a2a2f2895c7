r"""Intervals and sets whose coverage is guaranteed, whatever the posterior: some rows calibrate, the others are fitted.

With n calibration rows and the k-th smallest of their scores as threshold, k = ⌈(n + 1) c⌉, a new row is covered with
probability at least c if all rows are exchangeable (`torchbayes.conformal.calibrate`). Which rows calibrate is drawn,
and depends on the rows and the seed, but not on the order of the rows. Preparation and fit do not see them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.checks import check_kind, check_name, check_text, optional, plain, seen
from torchbayes.conformal.calibrate import CLASS, calibrate
from torchbayes.conformal.conformal import SCORES, Conformal
from torchbayes.conformal.ranks import check_coverage, fewest_rows
from torchbayes.data.base import Standardise
from torchbayes.data.user.table import Table, texts_of
from torchbayes.posteriors.problems import ProblemWarning, warn_of
from torchbayes.randomness.seeds import Purpose, generator
from torchbayes.sklearn.tables import order_of, repeated

_SHARE = 4  # a row of so many calibrates
_MOST = 10_000  # calibration rows: the coverage that they give differs from that asked for by 0.003


@dataclass(frozen=True)
class Split:
    """Conformal intervals and sets, by rows that the posterior is not fitted to.

    A quarter of the rows calibrates, at least as many as the coverage needs, and at most half of them and 10,000.

    Attributes:
        coverage: probability with which the interval or set of a new row holds its target, in (0, 1).
        score: as of `torchbayes.conformal.calibrate`, by name or an object: "auto" is "normalised" for numbers, "pit"
            for counts, and "aps" for classes.
        groups: name of a column of texts, flags or whole numbers, each of whose values has this coverage (Mondrian),
            or "class" for each class; None for all rows together.
        confidence: share of calibrations whose coverage is at least that, in (0, 1); None for the mean over them.
    """

    coverage: float = 0.9
    score: Any = "auto"
    groups: str | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        plain(self)
        check_coverage(coverage=self.coverage)
        optional(check_coverage, confidence=self.confidence)
        optional(check_text, groups=self.groups)
        if isinstance(self.score, str) and self.score != "auto":
            check_name("score", self.score, SCORES)

    def size(self, rows: int) -> int:
        """Return how many of so many rows calibrate."""
        wanted = max(fewest_rows(self.coverage, self.confidence), min(rows // _SHARE, _MOST))
        return min(wanted, rows // 2)


def split_of(conformal: Any) -> Split | None:
    """Return the settings of a number, which is the coverage, or themselves; None for none.

    Raises:
        TypeError: if it is neither.
        ValueError: if the coverage is not in (0, 1).
    """
    if conformal is None or isinstance(conformal, Split):
        return conformal
    kinds = (int, float, np.number)
    check_kind(kinds, "a coverage, such as 0.9, or a torchbayes.sklearn.Split", conformal=conformal)
    return Split(float(conformal))


def parted(rows: Any, split: Split, seed: int) -> tuple[Any, Any]:
    """Return rows to fit and rows that calibrate, both `Given`."""
    table, targets, weights = repeated(*rows)
    rows = type(rows)(table, targets, weights)
    order = order_of(_numbers(table), targets, weights)
    drawn = torch.randperm(len(order), generator=generator(Purpose.CALIBRATING, seed)).numpy()
    calibrating = np.zeros(len(order), dtype=bool)
    calibrating[order[drawn[: split.size(len(order))]]] = True
    return tuple(
        type(rows)(table[mask], targets[mask], None if weights is None else weights[mask])
        for mask in (~calibrating, calibrating)
    )


def _numbers(table: Table) -> np.ndarray:
    """Return numbers of the values of a table, (N, D), the same for equal values."""
    columns = [
        values if values.dtype.kind in "biuf" else np.unique(texts_of(values), return_inverse=True)[1]
        for values in table.columns.values()
    ]
    return np.column_stack(columns)


def calibrated(estimator: Any, rows: Any, split: Split) -> Conformal:
    """Return the calibration of a fitted estimator by rows that it was not fitted to."""
    targets: Any = model_targets(rows.targets, estimator.target_units_)
    if estimator.weighted_:
        targets = (targets, torch.ones(len(targets)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProblemWarning)  # which follow with the names of the classes
        conformal = calibrate(
            estimator.posterior_,
            (estimator.preparation_(rows.table), targets),
            coverage=split.coverage,
            score=split.score,
            groups=groups_of(rows.table, split.groups),
            weights=rows.weights,
            confidence=split.confidence,
            seed=estimator.seed_,
        )
    if conformal.rows.by_class:
        conformal = replace(conformal, rows=replace(conformal.rows, names=tuple(estimator.classes_.tolist())))
    warn_of(conformal.problems, "this calibration")
    return conformal


def groups_of(table: Table, groups: str | None) -> Any:
    """Return the group of each row, as `calibrate` takes it.

    Raises:
        ValueError: if there is no such column, or it holds numbers that are not whole.
    """
    if groups is None or (groups == CLASS and groups not in table.columns):
        return groups
    check_name("column of `groups`", groups, table.names)
    values = table.columns[groups]
    if values.dtype.kind == "f" and not (np.isnan(values) | (values == values.round())).all():
        raise ValueError(
            f"the column {groups!r} of `groups` must hold texts, flags or whole numbers; got {seen(values)}."
        )
    return texts_of(values)


def model_targets(numbers: np.ndarray, units: Standardise | None) -> Tensor:
    """Return targets (N,) or (N, K) as the likelihood takes them: classes (N,), or numbers (N, K) in these units."""
    targets = torch.from_numpy(numbers)
    if not targets.is_floating_point():
        return targets
    columns = targets.reshape(len(targets), -1)
    return (columns if units is None else units(columns)).float()

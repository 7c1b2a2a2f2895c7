"""The result of a calibration: thresholds, and the intervals and sets of new rows that they give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import optional
from torchbayes.conformal.classes import CLASS_SCORES, ClassScore
from torchbayes.conformal.limits import ALL, Calibrated
from torchbayes.conformal.numbers import NUMBER_SCORES, Density, NumberScore, Prediction
from torchbayes.conformal.ranks import Threshold, check_coverage, fewest_rows
from torchbayes.conformal.rows import is_over_classes, judged
from torchbayes.conformal.scoring import (
    check_kind_of,
    class_sets,
    dtype_of,
    evaluated,
    limits_of,
    number_scores,
)
from torchbayes.display import Overview, shown
from torchbayes.native.process import undisturbed_methods
from torchbayes.posteriors.files import read_tensors, write_tensors
from torchbayes.posteriors.problems import warn_of

SCORES: dict[str, Any] = {**NUMBER_SCORES, **CLASS_SCORES}
_KIND = "conformal"


def _overview(conformal: Conformal) -> Overview:
    """Return what is displayed: numbers of the only group, or a table of the groups."""
    facts: dict[str, Any] = {"score": conformal.score, "coverage": conformal.coverage}
    if conformal.confidence is not None:
        facts["confidence"] = conformal.confidence
    facts["rows"] = len(conformal.rows.scores_N)
    thresholds = conformal.thresholds
    if len(thresholds) > 1:
        facts["groups"] = len(thresholds)
    else:
        (only,) = thresholds.values()
        facts["threshold"] = only.value
        if only.expected is not None:
            facts["expected"] = f"{only.expected:.4g} ± {only.spread:.2g}"
    header = ("group", "rows", "threshold", "expected", "spread")
    cells = [(name, each.rows, each.value, each.expected, each.spread) for name, each in thresholds.items()]
    return Overview("Conformal", facts, header=header, rows=cells, problems=conformal.problems)


@undisturbed_methods
@shown(_overview)
@dataclass(frozen=True)
class Conformal:
    """Thresholds of scores, by which intervals and sets hold their targets with the coverage asked for.

    If new rows are exchangeable with the calibration rows, or those of a group with its own, the coverage of a new row
    is k/(n + 1) on average over calibration sets (`Threshold.expected`), and for the one at hand differs from that by
    about `Threshold.spread`. Predictions must come from the same functions as those of the calibration: the same
    posterior, draws and seed.

    Attributes:
        score: how untypical a target is.
        coverage: probability with which a set holds its target.
        rows: scores of the calibration rows, their groups and weights.
        confidence: share of calibration sets whose coverage is at least that; None for the mean over them.
        seed: of the uniform numbers of a randomised score.
    """

    score: Any
    coverage: float
    rows: Calibrated
    confidence: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_coverage(coverage=self.coverage)
        optional(check_coverage, confidence=self.confidence)
        if self.confidence is not None and self.rows.weights_N is not None:
            raise ValueError(f"`confidence` must be None where rows have weights; got {self.confidence:g}.")

    @cached_property
    def thresholds(self) -> dict[Any, Threshold]:
        """Threshold of each group, by name; with weights that of a new row of weight 1."""
        each = enumerate(self.rows.names)
        return {name: self.rows.threshold(code, self.coverage, self.confidence) for code, name in each}

    @property
    def problems(self) -> tuple[str, ...]:
        """Groups whose rows are too few for a finite threshold, one clause each."""
        problems, needed = [], fewest_rows(self.coverage, self.confidence)
        for name, each in self.thresholds.items():
            if each.value == math.inf and (each.weighted or each.rank > each.rows):
                kind = "class" if self.rows.by_class else "group"
                which = "" if self.rows.names == (ALL,) else f" of {kind} {name}"
                need = "by their weights" if each.weighted else f"at least {needed} are needed"
                few = f"{each.rows} calibration rows{which} are too few for coverage {self.coverage:g} ({need})"
                problems.append(f"{few}, so that sets hold every target")
        return tuple(problems)

    def at(self, coverage: float, *, confidence: float | None = None) -> Conformal:
        """Return the same calibration at another coverage.

        Args:
            coverage: probability with which a set holds its target, in (0, 1).
            confidence: share of calibration sets that give at least this coverage, in (0, 1); None for the mean.

        Returns:
            The calibration; the quantiles of the score `CQR` stay as they are. Where rows are too few, sets hold every
            target, and a warning says so.

        Raises:
            ValueError: if a number is out of range.
        """
        other = replace(self, coverage=coverage, confidence=confidence)
        warn_of(other.problems, "this calibration")
        return other

    def intervals(self, prediction: Prediction, *, groups: Any = None, weights: Any = None) -> tuple[Tensor, Tensor]:
        """Return the ends of the intervals of new rows.

        Args:
            prediction: a `Predictive` or `Forecast` of B rows.
            groups: group of each row, (B,), where the calibration has groups.
            weights: weight of each row, (B,), where calibration rows have weights.

        Returns:
            Low and high ends, in the shape and units of the predictions; ±∞ where calibration rows are too few. The
            box of several numbers in a row holds all of them with the coverage asked for.

        Raises:
            TypeError: if targets are classes, or `prediction` is none.
            ValueError: if groups or weights are missing or do not fit.
        """
        check_kind_of(self, prediction, NumberScore, otherwise="classes have no intervals. Use `sets`.")
        low, high = self.score.intervals(prediction, limits_of(self, prediction, groups=groups, weights=weights))
        dtype = torch.promote_types(dtype_of(prediction), torch.float32)
        return low.to(dtype), high.to(dtype)

    def regions(self, prediction: Prediction, *, groups: Any = None, weights: Any = None) -> list[Tensor]:
        """Return the intervals of each row of which a set of the score `Density` consists.

        Args:
            prediction: a `Predictive` of B rows.
            groups: as of `intervals`.
            weights: as of `intervals`.

        Returns:
            One tensor (R, 2) for each row, from left to right.

        Raises:
            TypeError: if the score is another, or targets are not one real number in each row.
            ValueError: if groups or weights are missing or do not fit.
        """
        check_kind_of(
            self, prediction, Density, otherwise="regions are those of the score 'density'. Use `intervals` or `sets`."
        )
        return self.score.regions(prediction, limits_of(self, prediction, groups=groups, weights=weights))

    def sets(self, prediction: Prediction, *, groups: Any = None, weights: Any = None) -> Tensor:
        """Return which classes are in the set of each new row.

        Args:
            prediction: a `Predictive` of B rows.
            groups: as of `intervals`; none where the groups are the classes.
            weights: as of `intervals`.

        Returns:
            Tensor of bool, (B, K).

        Raises:
            TypeError: if targets are numbers, or `prediction` is none.
            ValueError: if groups or weights are missing or do not fit.
        """
        check_kind_of(self, prediction, ClassScore, otherwise="numbers have no sets of classes. Use `intervals`.")
        return class_sets(self, prediction, groups=groups, weights=weights)

    def covers(self, prediction: Prediction, targets: Any, *, groups: Any = None, weights: Any = None) -> Tensor:
        """Return whether each target is in its set: whether its score is at most the threshold.

        Args:
            prediction: a `Predictive` or `Forecast` of B rows.
            targets: (B, ...), as the likelihood takes them.
            groups: as of `intervals`.
            weights: as of `intervals`.

        Returns:
            Tensor of bool, (B,).

        Raises:
            TypeError: if targets or predictions are of another kind.
            ValueError: if targets, groups or weights are missing or do not fit.
        """
        if is_over_classes(prediction):
            sets_BK = self.sets(prediction, groups=groups, weights=weights)
            return sets_BK.gather(1, judged(prediction, targets).targets.unsqueeze(1))[:, 0]
        check_kind_of(self, prediction, NumberScore, otherwise="the calibration is of classes.")
        scores_B = number_scores(self.score, prediction, judged(prediction, targets).targets)
        return scores_B <= limits_of(self, prediction, groups=groups, weights=weights).to(scores_B)

    def evaluate(
        self, posterior: Any, data: Any, *, groups: Any = None, weights: Any = None, seed: int = 0
    ) -> dict[str, float]:
        """Return what sets of other rows hold, and how large they are.

        Args:
            posterior: as of `calibrate`.
            data: rows with targets that neither the fit nor the calibration has seen, as of `calibrate`.
            groups: group of each row, (N,), by which coverage is given too, whether the calibration has groups or not.
            weights: weight of each row, (N,), where calibration rows have weights.
            seed: seed of the draws, that of the calibration.

        Returns:
            `coverage`; `coverage[GROUP]` for each group; for numbers `width` and `interval_score`, both means over the
            numbers of a row; for classes `size`, the mean number of classes in a set, and `empty`, the share of sets
            without one.

        Raises:
            TypeError: if targets or predictions are of another kind.
            ValueError: if there are no rows, or targets, groups or weights do not fit.
        """
        return evaluated(self, posterior, data, groups=groups, weights=weights, seed=seed)

    def save(self, path: str | Path) -> Path:
        """Write the calibration to a safetensors file, atomically; `torchbayes.conformal.load` reads it.

        Args:
            path: where to write, such as `run/conformal.safetensors`.

        Returns:
            The path.

        Raises:
            ValueError: if the score is not one of this library.
        """
        return write_tensors(path, *packed(self))


def packed(conformal: Conformal) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a calibration's file; a ValueError if the score is none of this library."""
    name = getattr(conformal.score, "name", "")
    if type(conformal.score) is not SCORES.get(name):
        raise ValueError(f"a file names a score of {', '.join(SCORES)}; this one is {conformal.score!r}.")
    rows = conformal.rows
    header = {"kind": _KIND, "score": name, "settings": asdict(conformal.score), "seed": conformal.seed}
    header |= {"coverage": conformal.coverage, "confidence": conformal.confidence}
    header |= {"names": list(rows.names), "by_class": rows.by_class}
    tensors = {"scores": rows.scores_N, "codes": rows.codes_N}
    return tensors | ({} if rows.weights_N is None else {"weights": rows.weights_N}), header


def load(path: str | Path) -> Conformal:
    """Read a calibration that `Conformal.save` wrote.

    Args:
        path: the file.

    Returns:
        The calibration.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, or holds no calibration.
    """
    tensors, header = read_tensors(path)
    if header.get("kind") != _KIND:
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a calibration. Read it by `tb.load`.")
    return restored(path, tensors, header)


def restored(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Conformal:
    """Return what `packed` gave; a ValueError if the file names a score that there is not."""
    if header["score"] not in SCORES:
        raise ValueError(f"{path} names the score {header['score']!r}, which this version does not have. Upgrade it.")
    score = SCORES[header["score"]](**header["settings"])
    rows = Calibrated(
        tensors["scores"], tensors["codes"], tuple(header["names"]), tensors.get("weights"), header["by_class"]
    )
    return Conformal(score, header["coverage"], rows, header["confidence"], header["seed"])

"""Scores of a comparison: every method on the same rows, corruptions and foreign images, by the same functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchbayes import metrics
from torchbayes.config import Problem, Setup
from torchbayes.data import CORRUPTIONS, corrupt_data, out_of_distribution
from torchbayes.data.base import check_name
from torchbayes.evaluate import Evaluation, Scores, detection, evaluate, uncertainty
from torchbayes.inference import MAP, SWAG
from torchbayes.posteriors import Functions, Posterior

LABELS = {"single": "single network", "ensemble": "deep ensemble", "swag": "SWAG", "multiswag": "MultiSWAG"}
SEVERITIES = (1, 2, 3, 4, 5)
Track = Callable[[list[Any], str], Iterable[Any]]
"""Passes a list through, item by item, and shows how far it is; told what is done."""


@dataclass(frozen=True)
class Comparison:
    """What is compared on what; everything that decides the numbers.

    Attributes:
        problem: data, network, likelihood and prior.
        ensemble: the fit behind the deep ensemble and the single network.
        multiswag: the fit behind MultiSWAG and SWAG.
        methods: some of single, ensemble, swag, multiswag.
        corruptions: names of the image corruptions; each is applied at severities 1 to 5.
        rows: test images that are corrupted, and images of each foreign set.
        draws: functions drawn from SWAG and from MultiSWAG, a multiple of the members.
        seed: seed of fits, draws and corruptions.
    """

    problem: Problem
    ensemble: MAP
    multiswag: SWAG
    methods: tuple[str, ...] = tuple(LABELS)
    corruptions: tuple[str, ...] = CORRUPTIONS
    rows: int = 1000
    draws: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what can be checked before hours of fitting.

        Raises:
            ValueError: if a name is unknown or a number does not fit.
        """
        for method in self.methods:
            check_name("method", method, LABELS)
        for corruption in self.corruptions:
            check_name("corruption", corruption, CORRUPTIONS)
        if not self.methods or self.rows < 1:
            raise ValueError(
                f"a comparison needs at least one method and one row; got {len(self.methods)} and {self.rows}."
            )
        members = self.multiswag.members if "multiswag" in self.methods else 1
        if self.draws < 1 or self.draws % members:
            low, high = self.draws // members * members, (self.draws // members + 1) * members
            raise ValueError(
                f"`draws` must be a multiple of MultiSWAG's {members} members; got {self.draws}. "
                f"Try {f'{low} or ' if low > 0 else ''}{high}."
            )


@dataclass(frozen=True)
class Outcome:
    """What one method gave.

    Attributes:
        functions: what was drawn from its posterior and used throughout.
        clean: on the test set.
        members: metrics of each member's own point on the test set, for an ensemble.
        unshifted: metrics on the rows that are corrupted, before they are.
        corrupted: corruption -> evaluation at severities 1 to 5.
        foreign: foreign set -> how uncertain the method is there.
    """

    functions: Functions
    clean: Evaluation
    members: list[dict[str, float]] = field(default_factory=list)
    unshifted: dict[str, float] = field(default_factory=dict)
    corrupted: dict[str, list[Evaluation]] = field(default_factory=dict)
    foreign: dict[str, Scores] = field(default_factory=dict)

    def severity(self, metric: str) -> list[list[float]]:
        """Return a metric at severity 0 (not corrupted) to 5, one row each, one column per corruption."""
        start = [self.unshifted[metric]] * len(self.corrupted)
        return [start, *([e[s - 1].metrics[metric] for e in self.corrupted.values()] for s in SEVERITIES)]

    def at(self, severity: int, metric: str) -> float | None:
        """Return the mean of a metric over the corruptions at a severity, None where there are none."""
        values = self.severity(metric)[severity] if self.corrupted else []
        return sum(values) / len(values) if values else None

    def detected(self) -> dict[str, dict[str, float]]:
        """Return how well uncertainty tells each foreign set from the test set."""
        assert self.clean.scores is not None or not self.foreign
        return {name: detection(self.clean.scores, scores) for name, scores in self.foreign.items()}  # type: ignore[arg-type]

    def auroc(self) -> float | None:
        """Return the mean AUROC of the predictive entropy over the foreign sets, None where there are none."""
        values = [found["auroc_entropy"] for found in self.detected().values() if "auroc_entropy" in found]
        return sum(values) / len(values) if values else None

    def numbers(self) -> dict[str, Any]:
        """Return every number, JSON-serialisable."""
        found: dict[str, Any] = {"draws": self.functions.draws, "clean": self.clean.metrics}
        if self.members:
            found["members"] = self.members
        if self.corrupted:
            found["severity"] = {s: {m: self.at(s, m) for m in self.unshifted} for s in (0, *SEVERITIES)}
            found["corrupted"] = {
                name: {s: e.metrics for s, e in zip(SEVERITIES, evaluations, strict=True)}
                for name, evaluations in self.corrupted.items()
            }
        if self.foreign:
            found["out_of_distribution"] = self.detected()
        return found


def member(posterior: Any, index: int) -> Any:
    """Return the posterior of one member of a point or Gaussian posterior.

    Args:
        posterior: a mixture of M members.
        index: which.

    Returns:
        A posterior of one member, of the same kind.
    """
    where = slice(index, index + 1)
    parts = {name: tensor[where] for name, tensor in posterior.tensors().items()}
    one = type(posterior).restore(posterior.model, parts, posterior.settings())
    buffers = {n: b[where] for n, b in posterior.buffers_M.items()} if posterior.buffers_M else None
    return dataclasses.replace(
        one, buffers_M=buffers, statistics_known=posterior.statistics_known, calibration=posterior.calibration
    )


def score(
    setup: Setup, posteriors: Mapping[str, Posterior], comparison: Comparison, *, track: Track
) -> dict[str, Outcome]:
    """Evaluate every method: clean, corrupted, and on foreign images.

    Args:
        setup: data and model.
        posteriors: method -> its posterior.
        comparison: what to evaluate on.
        track: shows progress.

    Returns:
        method -> outcome.
    """
    data = setup.data
    scale = setup.target_scale
    outcomes = {}
    for name in track(list(posteriors), "test set"):
        posterior = posteriors[name]
        functions = posterior.functions(comparison.draws if name.endswith("swag") else None, seed=comparison.seed)
        clean = evaluate(functions, tuple(data.test), target_scale=scale)
        members = []
        if name == "ensemble":
            alone = (member(posterior, m) for m in range(posterior.members))
            members = [evaluate(one, tuple(data.test), target_scale=scale).metrics for one in alone]
        outcomes[name] = Outcome(functions, clean, members)
    if data.is_image:
        _shift(setup, outcomes, comparison, track)
    return outcomes


def _shift(setup: Setup, outcomes: dict[str, Outcome], comparison: Comparison, track: Track) -> None:
    """Fill in what corruption and foreign images do."""
    data, rows = setup.data, comparison.rows
    for outcome in outcomes.values():
        outcome.unshifted.update(_first(outcome.clean, rows))
    shifts = [(name, severity) for name in comparison.corruptions for severity in SEVERITIES]
    for name, severity in track(shifts, "corrupted images"):
        pair = corrupt_data(data, name, severity, seed=comparison.seed, limit=rows)
        for outcome in outcomes.values():
            outcome.corrupted.setdefault(name, []).append(evaluate(outcome.functions, tuple(pair)))
    foreign = out_of_distribution(data, limit=rows, seed=comparison.seed)
    for name, inputs in track(list(foreign.items()), "foreign images"):
        for outcome in outcomes.values():
            outcome.foreign[name] = uncertainty(outcome.functions, inputs.to(setup.model.network.device))


def _first(evaluation: Evaluation, rows: int) -> dict[str, float]:
    """Return the metrics of the first rows of an evaluation."""
    probs, targets = _needed(evaluation.probs)[:rows], evaluation.targets[:rows]
    return {
        "accuracy": float(metrics.accuracy(probs, targets)),
        "nll": float(metrics.nll(evaluation.log_prob[:rows])),
        "brier": float(metrics.brier(probs, targets)),
        "ece": float(metrics.ece(probs, targets)),
    }


def _needed(probs: Tensor | None) -> Tensor:
    assert probs is not None
    return probs

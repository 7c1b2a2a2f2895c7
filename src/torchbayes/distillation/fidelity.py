"""How close a student is to its teacher, on named sets of inputs, beside two halves of the teacher's draws.

Of classes: total variation of the mean probabilities, mean over rows and 95 % quantile; the share of rows with the same
class; rank correlation of the mutual information over rows, the ratio of its means, the same ratio of the total
variance of the class probabilities, Σ_k Var p_k, and the mean difference of the entropy. Of numbers: the distance of
the means in standard deviations of the teacher; rank correlation and ratio of the variance of the mean, and the ratio
of the noise. The floor is what one half of the draws has of the other: a student cannot be told from another sample of
functions if it is no farther.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from torchbayes.assess.evaluate import evaluate
from torchbayes.checks import check_kind
from torchbayes.display import Overview, shown
from torchbayes.metrics import agreement
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.likelihoods.dirichlet import DirichletCategorical
from torchbayes.model.model import place_inputs
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import class_probs, probs_of_draws
from torchbayes.predictive.predict import Source, predict

_TIMED, _REPEATS = 256, 10  # rows, and passes of which the fastest counts
_SCORES = ("accuracy", "nll", "ece", "rmse", "coverage")
FLOOR = "floor"


def _overview(fidelity: Fidelity) -> Overview:
    names = [*dict.fromkeys(name for numbers in fidelity.numbers.values() for name in numbers)]
    rows = [(where, *(numbers.get(name, "") for name in names)) for where, numbers in fidelity.numbers.items()]
    seconds = {f"{name} (s)": value for name, value in fidelity.latency.items()}
    return Overview("Fidelity", seconds, header=("", *names), rows=rows)


@shown(_overview)
@dataclass(frozen=True)
class Fidelity:
    """How close a student is to its teacher.

    Attributes:
        numbers: row -> name -> number; a row for each set of inputs, by its name, and one for halves of the draws, by
            its name and "(floor)". With targets the first has the student's scores too, and another, by its name and
            "(teacher)", the teacher's.
        latency: seconds that "teacher" and "student" take to predict the first rows, up to 256, the fastest of ten.
    """

    numbers: Mapping[str, Mapping[str, float]]
    latency: Mapping[str, float]

    @property
    def latency_ratio(self) -> float:
        """The time of the teacher over that of the student."""
        return self.latency["teacher"] / self.latency["student"]

    def text(self) -> str:
        """Return the table as Markdown, a section of a page."""
        names = [*dict.fromkeys(name for numbers in self.numbers.values() for name in numbers)]
        lines = [f"| | {' | '.join(names)} |", "|---|" + "--:|" * len(names)]
        for where, numbers in self.numbers.items():
            cells = [f"{numbers[name]:.3g}" if name in numbers else "" for name in names]
            lines.append(f"| {where} | {' | '.join(cells)} |")
        before, after = (1000 * self.latency[name] for name in ("teacher", "student"))
        speed = f"A prediction takes {before:.3g} ms by the teacher and {after:.3g} ms by the student"
        return "\n".join([*lines, "", f"{speed}, which is {self.latency_ratio:.3g} times as fast."])


def compared(teacher: Source, student: Source, sets: Any) -> Fidelity:
    """Return the fidelity of a student, as `Student.fidelity` describes."""
    check_kind(Mapping, "a mapping from names to inputs, or to pairs of inputs and targets", inputs_by_name=sets)
    if not sets:
        raise ValueError("`inputs_by_name` is empty; give at least one set, such as {'test': inputs}.")
    numbers: dict[str, dict[str, float]] = {}
    for name, given in sets.items():
        inputs, targets = _apart(given)
        taught, learned = predict(teacher, inputs), predict(student, inputs)
        numbers[name] = distances(learned, taught)
        if targets is not None:
            numbers[name] |= _scores(learned, targets)
            numbers[f"{name} (teacher)"] = _scores(taught, targets)
        if (halves := _halves(taught)) is not None:
            numbers[f"{name} ({FLOOR})"] = distances(*halves)
    first = next(iter(sets.values()))
    return Fidelity(numbers, _latency(teacher, student, _apart(first)[0]))


def _apart(given: Any) -> tuple[Any, Any]:
    """Return inputs and targets, None if there are none."""
    return given if isinstance(given, tuple) and len(given) == 2 else (given, None)


def _latency(teacher: Source, student: Source, inputs: Any) -> dict[str, float]:
    """Return the times of predictions of a few rows."""
    placed = place_inputs(teacher.model, inputs)
    few = rows_of(placed, slice(min(_TIMED, batch_size(placed))))
    slow, fast = _seconds(lambda: teacher.predictive(few), lambda: student.predictive(few))
    return {"teacher": slow, "student": fast}


def distances(predictive: Predictive, reference: Predictive) -> dict[str, float]:
    """Return how far a predictive is from a reference on the same rows, by name."""
    if isinstance(reference.distribution, Categorical | Bernoulli):
        return _of_classes(predictive, reference)
    return _of_numbers(predictive, reference)


def _of_classes(predictive: Predictive, reference: Predictive) -> dict[str, float]:
    p, q = (class_probs(each.distribution).flatten(0, -2) for each in (reference, predictive))
    variation = 0.5 * (p - q).abs().sum(-1).double()
    mutual, learned = (each.mutual_information.flatten() for each in (reference, predictive))
    entropy = (predictive.entropy - reference.entropy).double().mean()
    return {
        "tv": float(variation.mean()),
        "tv_95": float(variation.quantile(0.95)),
        "agreement": float(agreement(p, q)),
        "mi_rank": _rank_correlation(learned, mutual),
        "mi_ratio": _ratio(learned, mutual),
        "variance_ratio": _ratio(_variance_of_probs(predictive), _variance_of_probs(reference)),
        "entropy_difference": float(entropy),
    }


def _of_numbers(predictive: Predictive, reference: Predictive) -> dict[str, float]:
    gap = ((predictive.mean - reference.mean).abs() / reference.variance.sqrt()).double().flatten()
    return {
        "gap": float(gap.mean()),
        "gap_95": float(gap.quantile(0.95)),
        "epistemic_rank": _rank_correlation(predictive.epistemic.flatten(), reference.epistemic.flatten()),
        "epistemic_ratio": _ratio(predictive.epistemic, reference.epistemic),
        "aleatoric_ratio": _ratio(predictive.aleatoric, reference.aleatoric),
    }


def _variance_of_probs(predictive: Predictive) -> Tensor:
    """Return the total variance of the class probabilities, over the functions and within each, (B, ...)."""
    distribution = predictive.distribution
    between = probs_of_draws(distribution).double().var(0, correction=0).sum(-1)
    if isinstance(distribution, DirichletCategorical):
        between = between + distribution.total_variance().double().mean(0)
    return between


def _ratio(values: Tensor, reference: Tensor) -> float:
    return float(values.double().mean() / reference.double().mean())


def _rank_correlation(first: Tensor, other: Tensor) -> float:
    """Return Spearman's correlation; NaN where one side is constant or there is one row."""
    ranks = torch.stack([_ranks(first), _ranks(other)])
    return float(torch.corrcoef(ranks)[0, 1]) if len(first) > 1 else float("nan")


def _ranks(values: Tensor) -> Tensor:
    """Return the mean rank of equal values, (N,), float64."""
    _, where, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0).double() - (counts - 1) / 2)[where]


def _scores(predictive: Predictive, targets: Any) -> dict[str, float]:
    metrics = evaluate(predictive, targets).metrics
    return {name: metrics[name] for name in _SCORES if name in metrics}


def _halves(predictive: Predictive) -> tuple[Predictive, Predictive] | None:
    """Return two predictives of disjoint halves of the draws; None of fewer than four."""
    half = predictive.draws // 2
    if half < 2:
        return None
    first, second = (_some_draws(predictive, slice(a, a + half)) for a in (0, half))
    return first, second


def _some_draws(predictive: Predictive, where: slice) -> Predictive:
    outputs, spread = predictive.outputs_SBK[where], predictive.function_variance
    parameters = {
        name: value[where] if len(value) == predictive.draws else value for name, value in predictive.parameters.items()
    }
    spread = None if spread is None else spread[where]
    return replace(predictive, outputs_SBK=outputs, parameters=parameters, function_variance=spread)


def _seconds(*runs: Callable[[], Any]) -> list[float]:
    """Return the time of the fastest of some calls of each, taken in turns so that a busy machine delays all alike."""
    times: list[list[float]] = []
    for _ in range(_REPEATS):
        times.append([])
        for run in runs:
            start = time.perf_counter()
            run()
            times[-1].append(time.perf_counter() - start)
    return [min(each) for each in zip(*times, strict=True)]

"""The checks that fit real rows again: without some of them, and with other seeds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.evaluate import evaluate
from torchbayes.assess.evaluation import Evaluation
from torchbayes.certificate.case import Case, distance, measure, some, summary
from torchbayes.certificate.certificate import Check, Grade, graded, worst
from torchbayes.driver.progress import counted
from torchbayes.randomness.seeds import Purpose, generator, mix

_LEVELS = (0.5, 0.8, 0.95)
_SIGMAS, _CERTAIN = 2.4, 3.5  # standard errors: three levels together at 5 %, and red
_SLIGHT, _FAR = 0.02, 0.1  # differences of coverage: of no consequence, and red
_SAME, _OTHER = {"TV": 0.02, "W1 / sd": 0.1}, {"TV": 0.1, "W1 / sd": 0.3}  # up to which green, and amber


def coverage(case: Case) -> Check:
    """Return the check of predictive intervals or sets on rows that fits have not seen."""
    folds, total = min(case.budget.folds, case.rows.size), case.rows.size
    if case.model.coupled:
        raise ValueError("the rows of this model are coupled, so that none can be left out.")
    if total < 2:
        raise ValueError("coverage needs at least 2 rows, one that is fitted and one that is not; there is 1.")
    order = torch.randperm(total, generator=generator(Purpose.FOLDS, case.seed)).tolist()
    levels_and_nll = []
    with counted("Folds", folds, unit="fits") as tell:
        for fold in range(folds):
            name = f"coverage-{folds}/{fold:04d}"
            levels_and_nll.append(case.results.get(name, lambda fold=fold: _held_out(case, order, fold, folds)))
            tell(fold + 1)
    return _judged(
        [torch.tensor(each["levels"]).double() for each in levels_and_nll], [each["nll"] for each in levels_and_nll]
    )


def _held_out(case: Case, order: list[int], fold: int, folds: int) -> dict[str, Any]:
    left, rest = sorted(order[fold::folds]), sorted(set(order) - set(order[fold::folds]))
    seed = mix(Purpose.FOLD_SEEDS, case.seed, fold)
    posterior = case.fitted(some(case.rows, rest), seed)
    rows = some(case.rows, left)
    evaluation = evaluate(posterior, (rows.inputs, rows.targets), seed=case.seed)
    levels = needed_levels(evaluation, seed=seed)
    return {"levels": levels.tolist(), "nll": evaluation.metrics["nll"]}


def needed_levels(evaluation: Evaluation, *, seed: int) -> Tensor:
    """Return at which level the interval or set of each row begins to hold its target, (N,), float64.

    They are uniform where the predictive distribution is right. Intervals are central; sets hold the most probable
    classes first, and the last with a probability that makes the level exact. A ValueError for other targets.
    """
    if evaluation.pit is not None:
        return (2 * evaluation.pit.double().flatten() - 1).abs().cpu()
    probs, labels = evaluation.probs, evaluation.labels
    if labels is not None and labels.ndim > 1 and bool((labels.amax(1) == 1).all()):
        labels = labels.argmax(1)  # those of Bernoulli are written as shares
    if probs is None or labels is None or labels.ndim > 1:
        raise ValueError("coverage is judged for classes and real numbers; these targets are neither.")
    probs, noise = probs.double().cpu(), torch.rand(len(probs), generator=generator(Purpose.SET_LEVELS, seed)).double()
    label_prob = probs.gather(1, labels.cpu().long().unsqueeze(1))
    above = torch.where(probs > label_prob, probs, 0.0).sum(1)
    equal = torch.where(probs == label_prob, probs, 0.0).sum(1)
    return (above + noise * equal).clamp(max=1.0)


def _judged(levels: list[Tensor], nlls: list[float]) -> Check:
    needed_N = torch.cat(levels)
    numbers, grades, off = {}, [], 0.0
    for level in _LEVELS:
        inside = float((needed_N <= level).double().mean())
        numbers[f"{100 * level:.0f} %"] = inside
        grades.append(_grade(abs(inside - level), math.sqrt(level * (1 - level) / len(needed_N))))
        off += inside - level
    inside = numbers["95 %"]
    grade = worst(*grades)
    wrong = "hold too few" if off < 0 else "hold too many"
    said = "hold as many targets as they say" if grade == "green" else wrong
    return Check(
        "coverage",
        grade,
        {"95 %": inside, **{name: value for name, value in numbers.items() if name != "95 %"}, "rows": len(needed_N)}
        | {"NLL": sum(nlls) / len(nlls)},
        f"green: within {_SLIGHT} or {_SIGMAS} standard errors; red: off by more than {_FAR} and {_CERTAIN} of them",
        f"Over {len(levels)} fits, each without some rows, intervals or sets of these rows {said}: "
        f"{100 * inside:.1f} % at 95 %. This judges network, likelihood and prior too.",
        ""
        if grade == "green"
        else "Another likelihood or noise, a richer network, or `torchbayes.conformal` around it.",
    )


def _grade(difference: float, error: float) -> Grade:
    """Return the grade by the binomial standard error; one over fits would excuse a fit that is wrong."""
    if difference <= max(_SLIGHT, _SIGMAS * error):
        return "green"
    return "red" if difference > max(_FAR, _CERTAIN * error) else "amber"


def seeds(case: Case) -> Check:
    """Return the check of other seeds: would another run predict the same?"""
    count = case.budget.seeds
    summaries = [summary(case.posterior, case.inputs, seed=case.seed)]
    with counted("Seeds", count, unit="fits") as tell:
        for number in range(count):
            summaries.append(case.results.get(f"seeds/{number:04d}", lambda number=number: _again(case, number)))
            tell(number + 1)
    apart = [distance(a, b) for i, a in enumerate(summaries) for b in summaries[i + 1 :]]
    name, largest = measure(summaries[0]), max(apart)
    grade = graded(largest, green=_SAME[name], red=_OTHER[name])
    return Check(
        "seeds",
        grade,
        {f"largest {name}": largest, f"mean {name}": sum(apart) / len(apart), "fits": len(summaries)},
        f"green: at most {_SAME[name]}; red: more than {_OTHER[name]}",
        f"The predictions of {len(summaries)} runs with different seeds are up to {largest:.2g} apart in {name}.",
        ""
        if grade == "green"
        else "More members, chains or draws: an average over runs is what does not depend on one.",
    )


def _again(case: Case, number: int) -> dict[str, Any]:
    seed = mix(Purpose.OTHER_SEEDS, case.seed, number)
    return summary(case.fitted(case.rows, seed), case.inputs, seed=seed)

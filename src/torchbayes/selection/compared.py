"""Rows that are held out of a whole run, by which its members are compared with the networks where they began."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torchbayes.driver.checks import check_validation
from torchbayes.driver.loop import Begin
from torchbayes.driver.reader import ROWS
from torchbayes.health.ending import History
from torchbayes.health.members import judged
from torchbayes.methods.choices import Comparison
from torchbayes.methods.protocol import Method
from torchbayes.model.batches.batch import Batch
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.randomness.seeds import member_seeds
from torchbayes.selection.trials import FEWEST, folds_of, having


class Divided(NamedTuple):
    """The rows of a run, and rows that are held out of it."""

    data: Any  # as `fit` takes them
    validation: Any  # for the start
    held_out: Sequence[Batch] | None = None  # None where there are none
    then: Method | None = None  # what goes on with all rows, if some of the data were held out


class Standard(NamedTuple):
    """What the members of a run are compared with."""

    begin: Begin  # where they began
    held_out: Sequence[Batch] | None


def compares(method: Method) -> bool:
    """Return whether a method compares its members with the networks where they began."""
    return any(isinstance(choice, Comparison) for choice in method.choices)


def divided(
    model: Model, data: Any, method: Method, *, validation: Any, start: Any, seed: int
) -> tuple[Divided, Method]:
    """Return the rows of a run and those held out of it, if a method compares its members by such, and the method.

    Without rows of their own, a share of the data is held out; none if there are few, if rows cannot be told apart,
    or if a start is given, which may have seen them. A ValueError or TypeError if `validation` is not what `fit` takes.
    """
    check_validation(method, validation, start)
    comparison = next((choice for choice in method.choices if isinstance(choice, Comparison)), None)
    if comparison is None:
        return Divided(data, validation), method
    source = as_source(model, data, method.needs.batch_size or ROWS)
    if validation is None and (start is not None or source.num_data < FEWEST):
        return Divided(data, validation), method
    folds = folds_of(model, source, validation, seed=member_seeds(seed, 1)[0])
    if not folds:
        return Divided(data, validation), method
    if validation is not None and not isinstance(validation, float):
        return Divided(data, validation, folds[0].held_out), method
    left = [(batch.inputs, batch.targets) for batch in folds[0].held_out]
    then, own = having(method, comparison.then), left[0] if len(left) == 1 else left
    return Divided(folds[0].rows, own, folds[0].held_out, then), having(method, comparison.first)


def worth_keeping(posterior: Any, standard: Standard, source: Source, *, history: History) -> Any:
    """Return the posterior without members that are worth less than where they began; a warning says which."""
    begin, held_out = standard
    start = Point(posterior.model, begin.weights_MD, buffers_M=begin.buffers or None, statistics_known=True)
    columns = history.columns()
    density_MR = columns.get("log_density")
    last = None if density_MR is None else density_MR[:, -(density_MR.shape[1] // 4 or 1) :].mean(1)
    verdict = judged(posterior, start, source, held_out=held_out, log_density_M=last)
    if not verdict.said:
        return posterior
    warnings.warn("; ".join(verdict.said) + ".", ProblemWarning, stacklevel=4)
    weights_MSD = posterior.weights_MSD.clone()
    replaced_M = verdict.replaced_M.to(weights_MSD.device)
    weights_MSD[replaced_M] = begin.weights_MD[replaced_M].unsqueeze(1).to(weights_MSD)
    kept_M = ~verdict.dropped_M.to(weights_MSD.device)
    buffers_M = posterior.buffers_M and {name: each[kept_M] for name, each in posterior.buffers_M.items()}
    in_order_MSD = weights_MSD[kept_M].transpose(0, 1).contiguous().transpose(0, 1)
    return replace(posterior, weights_MSD=in_order_MSD, buffers_M=buffers_M)

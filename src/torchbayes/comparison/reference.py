"""The reference of a comparison: loading it, its own quality, and how near the methods are to it, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from torchbayes.assess.diagnose import LEAST, Diagnosis, diagnose
from torchbayes.catalogue.config import entries, load_run
from torchbayes.catalogue.imports import foreign_code
from torchbayes.catalogue.methods import label_of
from torchbayes.catalogue.problem import Problem, Setup
from torchbayes.comparison.scores import Outcome
from torchbayes.comparison.settings import REFERENCE, Comparison
from torchbayes.data import Pair
from torchbayes.metrics.fidelity import CLOSEST
from torchbayes.native.process import full_path
from torchbayes.posteriors import Posterior
from torchbayes.report import Picture, Table
from torchbayes.report.diagnosis import pictures, remarks, space_numbers, space_tables
from torchbayes.report.words import listed

ROWS = 500  # test rows at which chains are compared
BOUND = 1.05  # bound of R-hat
MOST = 0.95  # least share of predictions within that bound
_SAME = (
    "data",
    "target",
    "split",
    "train_size",
    "network",
    "network_settings",
    "likelihood",
    "prior_scale",
    "temperature",
    "data_settings",
    "likelihood_settings",
    "prior",
    "prior_settings",
    "outputs",
)


def load_reference(comparison: Comparison) -> Posterior:
    """Load the reference of a comparison from the directory it names.

    Raises FileNotFoundError for no finished fit, PermissionError if it names code by an import path that the
    comparison does not name, ValueError for another posterior: other data, network, likelihood or prior.
    """
    directory = full_path(comparison.directory_of_reference or "")
    setup, posterior = load_run(directory, named=foreign_code(entries(comparison.problem)))
    different = [name for name in _SAME if _value(setup.problem, name) != _value(comparison.problem, name)]
    if different:
        unlike = "; ".join(
            f"`{name}` is {_value(setup.problem, name)} there and {_value(comparison.problem, name)} here"
            for name in different
        )
        raise ValueError(
            f"the reference {directory} is of another posterior: {unlike}. Give the comparison the settings of the "
            f"reference, or leave out --reference."
        )
    return posterior


def _value(problem: Problem, name: str) -> Any:
    value = getattr(problem, name)
    return dict(value) if isinstance(value, Mapping) else value


def quality(setup: Setup, posterior: Posterior, directory: Path) -> Diagnosis | None:
    """Diagnose the chains of the reference in a directory at test rows; None without chains or with too few draws."""
    if (posterior.chain_length or 0) < LEAST:
        return None
    return diagnose(cast("Any", posterior), *spread(setup.data.test, ROWS), log=directory)


def spread(rows: Pair, count: int) -> Pair:
    """Return evenly spaced rows in their order, because the first of a sorted test set would all be of one class."""
    total = len(rows.inputs)
    chosen = torch.arange(min(count, total)) * total // min(count, total)
    return Pair(rows.inputs[chosen], rows.targets[chosen])


def section(diagnosis: Diagnosis) -> tuple[list[Table], dict[str, Picture]]:
    """Return tables and pictures (by file name) of a report about the quality of the reference."""
    *parts, last = space_tables(diagnosis)
    text = f"The reference itself. {last.caption} {' '.join(remarks(diagnosis))} {worth(diagnosis)}"
    drawn = {f"reference_{name}": picture for name, picture in pictures(diagnosis).items() if name == "rhat"}
    named = {name: replace(picture, title=f"The reference: {picture.title}") for name, picture in drawn.items()}
    tables = [replace(table, title=f"{table.title}: the reference") for table in (*parts, last)]
    return [*tables[:-1], replace(tables[-1], caption=text)], named


def worth(diagnosis: Diagnosis) -> str:
    """Return sentences on how far the reference's chains agree in their predictions, with a warning if too little."""
    numbers = space_numbers(diagnosis, diagnosis.functions)
    shares = [numbers[f"rhat_within_{bound}"] for bound in (1.01, BOUND)]
    text = (
        f"The reference: R-hat is at most 1.01 for {shares[0]:.0%} and at most {BOUND} for {shares[1]:.0%} of its "
        f"{numbers['quantities']:,} {diagnosis.functions} at test rows, and its {diagnosis.chains * diagnosis.draws:,} "
        f"draws are worth {numbers['ess_bulk_median']:,.0f} independent ones (median)."
    )
    if shares[1] < MOST:
        text += (
            f" Warning: it has not converged in function space, as R-hat should be at most {BOUND} for {MOST:.0%}. Run "
            f"longer chains."
        )
    return text.replace("%", " %")


def reference_of(outcomes: Mapping[str, Outcome]) -> str | None:
    """Return the method that the others are compared with; None if there is no such comparison."""
    if not any(outcome.fidelity.clean for outcome in outcomes.values()):
        return None
    return next(name for name, outcome in outcomes.items() if outcome.is_reference)


def closeness(setup: Setup, outcomes: Mapping[str, Outcome], diagnosis: Diagnosis | None) -> str:
    """Return how to read the columns that compare with the reference; empty without one."""
    name = reference_of(outcomes)
    if name is None:
        return ""
    reference = outcomes[name]
    label = "the reference" if name == REFERENCE else label_of(name)
    if reference.clean.probs is None:
        text = f" W1: 1-Wasserstein distance of predictive samples to those of {label}, in {setup.data.target_unit}."
    else:
        text = f" Agreement (share of equal top classes) and TV (total variation) are those with {label}."
    if reference.fidelity.halves:
        text += (
            f" In its own row stands the floor: how near another sample of {label}, of as many draws, would come, by "
            f"its halves. {resolved(outcomes)}"
        )
    return f"{text} {worth(diagnosis)}" if diagnosis is not None else text


def resolved(outcomes: Mapping[str, Outcome]) -> str:
    """Return a sentence on which methods the reference can tell from a sample of itself; empty without a floor."""
    name = reference_of(outcomes)
    if name is None or not outcomes[name].fidelity.halves or len(outcomes) < 2:
        return ""
    floor = outcomes[name].fidelity.clean
    measure = next(metric for metric in floor if metric not in CLOSEST)
    within = [label_of(n) for n, o in outcomes.items() if n != name and o.fidelity.clean[measure] <= floor[measure]]
    label = "the reference" if name == REFERENCE else label_of(name)
    short = "TV" if measure == "total_variation" else "W1"
    if not within:
        return f"By {short} every method is farther from {label} than that ({floor[measure]:.2g})."
    verb = "is" if len(within) == 1 else "are"
    return (
        f"By {short} {listed(within)} {verb} no farther from {label} than another sample of it would be "
        f"({floor[measure]:.2g})."
    )

"""The reference of a comparison: loading it, checking that it fits, and assessing its own quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from torchbayes.assess.diagnose import LEAST, Diagnosis, diagnose
from torchbayes.catalogue.config import entries, load_run
from torchbayes.catalogue.problem import Problem, Setup
from torchbayes.catalogue.trust import foreign_code
from torchbayes.comparison.settings import Comparison
from torchbayes.data import Pair
from torchbayes.native.process import full_path
from torchbayes.posteriors import Posterior
from torchbayes.report import Picture, Table
from torchbayes.report.diagnosis import pictures, remarks, space_numbers, space_tables

ROWS = 500  # test rows at which chains are compared
BOUND = 1.05  # of R-hat
MOST = 0.95  # share of predictions that must be below it
_SAME = (
    "data",
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

    Args:
        comparison: what is compared on what.

    Returns:
        The posterior.

    Raises:
        FileNotFoundError: if there is no finished fit.
        PermissionError: if it names code by an import path that the comparison does not.
        ValueError: if the fit is of another posterior: other data, network, likelihood or prior.
    """
    directory = full_path(comparison.directory_of_reference or "")
    setup, posterior = load_run(directory, named=foreign_code(entries(comparison.problem)))
    different = [name for name in _SAME if _value(setup.problem, name) != _value(comparison.problem, name)]
    if different:
        said = "; ".join(
            f"`{name}` is {_value(setup.problem, name)} there and {_value(comparison.problem, name)} here"
            for name in different
        )
        raise ValueError(
            f"the reference {directory} is of another posterior: {said}. Give the comparison the settings of the "
            f"reference, or leave out --reference."
        )
    return posterior


def _value(problem: Problem, name: str) -> Any:
    value = getattr(problem, name)
    return dict(value) if isinstance(value, Mapping) else value


def quality(setup: Setup, posterior: Posterior, directory: Path) -> Diagnosis | None:
    """Return how well the chains of a reference have mixed, at test rows.

    Args:
        setup: data and model.
        posterior: the reference.
        directory: of its run.

    Returns:
        The diagnosis; None if it has no chains, or too few draws to judge them.
    """
    if (posterior.chain_length or 0) < LEAST:
        return None
    return diagnose(cast("Any", posterior), *spread(setup.data.test, ROWS), log=directory)


def spread(rows: Pair, count: int) -> Pair:
    """Return evenly spaced rows: the first ones of a sorted test set would all be of one class.

    Args:
        rows: inputs and targets.
        count: how many; all if there are fewer.

    Returns:
        Some of the rows, in their order.
    """
    total = len(rows.inputs)
    chosen = torch.arange(min(count, total)) * total // min(count, total)
    return Pair(rows.inputs[chosen], rows.targets[chosen])


def section(diagnosis: Diagnosis) -> tuple[list[Table], dict[str, Picture]]:
    """Return the section of a report about the quality of the reference.

    Args:
        diagnosis: diagnosis of the reference.

    Returns:
        Tables, and pictures by the name of their file.
    """
    *parts, last = space_tables(diagnosis)
    said = f"The reference itself. {last.caption} {' '.join(remarks(diagnosis))} {worth(diagnosis)}"
    drawn = {f"reference_{name}": picture for name, picture in pictures(diagnosis).items() if name == "rhat"}
    named = {name: replace(picture, title=f"The reference: {picture.title}") for name, picture in drawn.items()}
    tables = [replace(table, title=f"{table.title}: the reference") for table in (*parts, last)]
    return [*tables[:-1], replace(tables[-1], caption=said)], named


def worth(diagnosis: Diagnosis) -> str:
    """Return what the reference is worth: how far its chains agree in their predictions, with a warning if too little.

    Args:
        diagnosis: diagnosis of the reference.

    Returns:
        Sentences.
    """
    found = space_numbers(diagnosis, diagnosis.functions)
    shares = [found[f"rhat_within_{bound}"] for bound in (1.01, BOUND)]
    said = (
        f"The reference: R-hat is at most 1.01 for {shares[0]:.0%} and at most {BOUND} for {shares[1]:.0%} of its "
        f"{found['quantities']:,} {diagnosis.functions} at test rows, and its {diagnosis.chains * diagnosis.draws:,} "
        f"draws are worth {found['ess_bulk_median']:,.0f} independent ones (median)."
    )
    if shares[1] < MOST:
        said += (
            f" Warning: it has not converged in function space, as R-hat should be at most {BOUND} for {MOST:.0%}. Run "
            f"longer chains."
        )
    return said.replace("%", " %")

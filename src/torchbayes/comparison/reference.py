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
BOUND = 1.05  # bound of R-hat
MOST = 0.95  # least share of predictions within that bound
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

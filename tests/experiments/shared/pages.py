"""The page of results that a module has already; that `reproduce` runs or reads seeds, `test_reproduce.py` pins.

Its pictures are composed and not painted: `test_reproduce.py`, and `test_evidence_occam.py` of a whole experiment,
paint theirs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import unpainted
from torchbayes_experiments import Experiment, reproduce


def page_of(experiment: Experiment, recipe: Any, directory: Path, *results: dict[str, Any]) -> str:
    """Let `reproduce` write the page of these results, one for each seed, under a recipe; return its Markdown."""
    finished = replace(experiment, recipes={"small": recipe}, run=lambda _, seed, __: results[seed])
    with pytest.MonkeyPatch.context() as patch:
        unpainted(patch)
        page = reproduce(finished, seeds=len(results), directory=directory)
    assert experiment.headline is not None
    headline = replace(experiment.headline, table="")  # which names data that a small recipe may not have
    assert any(headline.fits(table) for table in experiment.summarise(results).tables), "no table has the headline"
    return page.with_name("page.md").read_text("utf-8")

"""The page of results that a module has already; that `reproduce` runs or reads seeds, `test_reproduce.py` pins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torchbayes_experiments import Experiment, reproduce


def page_of(experiment: Experiment, recipe: Any, directory: Path, *results: dict[str, Any]) -> str:
    """Let `reproduce` write the page of these results, one for each seed, under a recipe; return its Markdown."""
    finished = replace(experiment, recipes={"small": recipe}, run=lambda _, seed, __: results[seed])
    return reproduce(finished, seeds=len(results), directory=directory).with_name("page.md").read_text("utf-8")

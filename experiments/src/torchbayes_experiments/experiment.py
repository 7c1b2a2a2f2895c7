"""Experiment: a claim from a paper, a recipe that tests it, and what came out, computed from several seeds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from torchbayes.driver.run import describe
from torchbayes.report import Picture, Table, versions
from torchbayes.report.style import one_page
from torchbayes_experiments.files import as_json, folder_in, load_or_compute, read_json, write_whole
from torchbayes_experiments.headline import Headline
from torchbayes_experiments.verdicts import Part, Verdict


class _Late(Sequence[Any]):
    """What an iterable yields, made when it is first looked at: a verdict alone takes no time for drawing.

    A method has the same look in all its figures.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source

    @cached_property
    def _made(self) -> tuple[Any, ...]:
        with one_page():
            return tuple(self._source)

    def __getitem__(self, place: Any) -> Any:
        return self._made[place]

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True)
class Findings:
    """The results of an experiment over several seeds.

    Attributes:
        verdict: whether the claim holds.
        tables: the numbers.
        figures: the pictures; the first represents the experiment.
    """

    verdict: Verdict
    tables: Sequence[Table]
    figures: Sequence[Picture]

    @classmethod
    def of(cls, parts: Iterable[Part], tables: Iterable[Table], figures: Iterable[Picture]) -> Findings:
        """Return findings with the verdict of the parts of a claim; tables and figures are made when they are read."""
        return cls(Verdict.of(list(parts)), _Late(tables), _Late(figures))


@dataclass(frozen=True)
class Experiment:
    """A claim and how to test it.

    Attributes:
        name: the name that `reproduce` takes.
        claim: one sentence.
        source: the paper that makes the claim.
        expected: the result to expect, with its source.
        differences: how the recipes differ from the paper.
        recipes: scale (`small`, `paper`) -> frozen dataclass of settings.
        cost: scale -> cost of one seed, in words.
        run: (recipe, seed, directory) -> numbers of one seed, JSON-serialisable. Called again on the directory of an
            interrupted run, it continues that run.
        summarise: numbers of several seeds -> findings.
        headline: which numbers of the tables stand for it, on its card in the documentation.
        unused: settings that recipes once had and nothing used; results that were recorded with them go on.
    """

    name: str
    claim: str
    source: str
    expected: str
    differences: str
    recipes: Mapping[str, Any]
    cost: Mapping[str, str]
    run: Callable[[Any, int, Path], dict[str, Any]]
    summarise: Callable[[Sequence[dict[str, Any]]], Findings]
    headline: Headline | None = None
    unused: tuple[str, ...] = ()

    def recipe(self, scale: str) -> Any:
        """Return the recipe at a scale.

        Raises:
            ValueError: if there is none.
        """
        if scale not in self.recipes:
            raise ValueError(f"`scale` of {self.name} must be one of {', '.join(self.recipes)}; got {scale!r}.")
        return self.recipes[scale]


def open_directory(experiment: Experiment, scale: str, directory: Path) -> dict[str, Any]:
    """Reserve a directory for one experiment at one scale, or check that it already belongs to it.

    Returns:
        Name, scale and recipe, as `recipe.json` holds them.

    Raises:
        ValueError: if the directory holds results of other settings.
    """
    path, unnamed = directory / "recipe.json", {"name": "Recipe"}  # not that of the class, which can be renamed
    recipe = describe(experiment.recipe(scale)) | unnamed
    settings = json.loads(json.dumps({"experiment": experiment.name, "scale": scale, "recipe": recipe}))
    if path.exists():
        earlier = read_json(path)
        earlier["recipe"] = {k: v for k, v in earlier["recipe"].items() if k not in experiment.unused} | unnamed
        if earlier != settings:
            old, new = ({**entries, **entries["recipe"]} for entries in (earlier, settings))
            changes = [f"{k} {old.get(k)!r}, now {new[k]!r}" for k in new if k != "recipe" and old.get(k) != new[k]]
            raise ValueError(
                f"{directory} holds results of other settings ({'; '.join(changes) or 'some were removed'}). "
                f"Choose another directory, or remove it."
            )
    else:
        write_whole(path, as_json(settings))
    return settings


def seed_results(experiment: Experiment, scale: str, seed: int, *, directory: Path) -> dict[str, Any]:
    """Run one seed, or read its results if it has been run.

    All files of the seed go to `seed_SEED` in the directory.

    Returns:
        `seed`; `seconds` of the call that finished it, its `date` and `versions`, which older results lack; `results`.
    """
    home = folder_in(directory, f"seed_{seed}")

    def compute() -> dict[str, Any]:
        home.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        results = experiment.run(experiment.recipe(scale), seed, home)
        seconds = round(time.monotonic() - began, 1)
        today = date.today().isoformat()
        return {"seed": seed, "seconds": seconds, "date": today, "versions": versions(), "results": results}

    return load_or_compute(home / "results.json", compute)

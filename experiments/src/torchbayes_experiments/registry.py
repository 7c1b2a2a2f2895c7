"""The experiments by name, and `reproduce`: run one for several seeds and write its page."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from torchbayes.checks import check_name
from torchbayes_experiments.experiment import Experiment, open_directory, seed_results
from torchbayes_experiments.files import Locked
from torchbayes_experiments.page import write_page


@cache
def _modules() -> dict[str, str]:
    """Return the module of every experiment: entry points of the group `torchbayes.experiments` name packages."""
    packages = [entry.load() for entry in entry_points(group="torchbayes.experiments")]
    return {
        name: ".".join(filter(None, (package.__name__, folder, name)))
        for package in packages
        for name, folder in package.NAMES.items()
    }


def names() -> dict[str, str]:
    """Return the name of every experiment with its claim."""
    return {name: get(name).claim for name in _modules()}


def get(name: str) -> Experiment:
    """Return an experiment by name: the `EXPERIMENT` of the module of its name.

    Raises:
        ValueError: if there is none.
    """
    check_name("experiment", name, _modules())
    return import_module(_modules()[name]).EXPERIMENT


def reproduce(
    experiment: str | Experiment, *, scale: str = "small", seeds: int = 5, directory: str | Path | None = None
) -> Path:
    """Run an experiment for seeds 0, 1, ... and write a page with claim, figure, numbers and verdict.

    A run that was interrupted continues when called again with the same directory: finished seeds are read, the others
    resume their fits. More seeds can be added in the same way.

    Args:
        experiment: one of `names()`, or an experiment of your own.
        scale: `small` (minutes on 2 cores) or `paper` (the paper's setting, for a GPU).
        seeds: how many seeds; with one there is no spread, so the verdict is inconclusive.
        directory: where all files go; `experiments/NAME-SCALE` if None.

    Returns:
        Path of `report.html`; beside it lie `page.md`, `figure_1.png`, ..., `results.json` and the seeds' directories.

    Raises:
        BlockingIOError: if another process is writing to the directory.
        ValueError: if `seeds` is not positive, or name, scale or directory do not fit.
    """
    chosen = get(experiment) if isinstance(experiment, str) else experiment
    if seeds < 1:
        raise ValueError(f"`seeds` must be at least 1; got {seeds}.")
    home = Path("experiments", f"{chosen.name}-{scale}") if directory is None else Path(directory)
    chosen.recipe(scale)  # refuses an unknown scale before anything is written
    with Locked(home):
        settings = open_directory(chosen, scale, home)
        records = [seed_results(chosen, scale, seed, directory=home) for seed in range(seeds)]
        findings = chosen.summarise([record["results"] for record in records])
        return write_page(home, chosen, findings, settings=settings, records=records)

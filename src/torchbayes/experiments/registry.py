"""The experiments by name, and `reproduce`: run one for several seeds and leave its page."""

from __future__ import annotations

from pathlib import Path

from torchbayes.data.base import check_name
from torchbayes.experiments import (
    evidence_agreement,
    evidence_occam,
    evidence_random_labels,
    evidence_support,
    hmc_mixing,
    hmc_mnist,
    hmc_reference,
    hmc_uci,
    laplace_redux,
    multiswag_corruption,
    uci_table,
)
from torchbayes.experiments.experiment import Experiment, open_directory, seed_results
from torchbayes.experiments.page import write_page
from torchbayes.posteriors.locks import Locked

_MODULES = (
    multiswag_corruption,
    uci_table,
    hmc_reference,
    hmc_mixing,
    hmc_mnist,
    hmc_uci,
    evidence_agreement,
    evidence_occam,
    evidence_support,
    evidence_random_labels,
    laplace_redux,
)
_ALL = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}


def names() -> dict[str, str]:
    """Return the name of every experiment with its claim."""
    return {name: experiment.claim for name, experiment in _ALL.items()}


def get(name: str) -> Experiment:
    """Return an experiment by name.

    Args:
        name: one of `names()`.

    Returns:
        The experiment.
    """
    check_name("experiment", name, _ALL)
    return _ALL[name]


def reproduce(
    experiment: str | Experiment, *, scale: str = "small", seeds: int = 3, directory: str | Path | None = None
) -> Path:
    """Run an experiment for seeds 0, 1, ... and write a page with claim, figure, numbers and verdict.

    A run that was interrupted continues when called again with the same directory: finished seeds are read, the others
    resume their fits. More seeds can be added in the same way.

    Args:
        experiment: one of `names()`, or an experiment of your own.
        scale: `small` (minutes on 2 cores) or `paper` (the paper's setting, for a GPU).
        seeds: how many seeds; one has no spread, so its verdict is inconclusive.
        directory: where everything goes; `experiments/NAME-SCALE` if None.

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
    chosen.recipe(scale)  # there is one
    with Locked(home):
        about = open_directory(chosen, scale, home)
        records = [seed_results(chosen, scale, seed, directory=home) for seed in range(seeds)]
        findings = chosen.summarise([record["results"] for record in records])
        return write_page(home, chosen, findings, about=about, records=records)

"""The experiments by name, and `reproduce`: run one for several seeds and write its page."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from torchbayes.data.base import check_name
from torchbayes.experiments.experiment import Experiment, open_directory, seed_results
from torchbayes.experiments.page import write_page
from torchbayes.posteriors.locks import Locked

NAMES = (  # an experiment is the `EXPERIMENT` of the folder of its name, imported when it is asked for
    "multiswag_corruption",
    "uci_table",
    "hmc_reference",
    "hmc_mixing",
    "hmc_mnist",
    "hmc_uci",
    "variational_fidelity",
    "variational_uci",
    "pbp_uci",
    "evidence_agreement",
    "evidence_occam",
    "evidence_support",
    "evidence_random_labels",
    "laplace_redux",
    "bayes_by_backprop",
    "multiplicative_flows",
    "double_descent",
    "fast_ensembling",
    "flat_regions",
    "mode_connectivity",
    "subspace_inference",
    "empcov_shift",
    "prior_functions",
    "prior_families",
    "misspecification",
    "temperature",
    "continual_learning",
    "compression",
)


def names() -> dict[str, str]:
    """Return the name of every experiment with its claim."""
    return {name: get(name).claim for name in NAMES}


def get(name: str) -> Experiment:
    """Return an experiment by name.

    Args:
        name: one of `names()`.

    Returns:
        The experiment.
    """
    check_name("experiment", name, NAMES)
    return import_module(f"torchbayes.experiments.{name}").EXPERIMENT


def reproduce(
    experiment: str | Experiment, *, scale: str = "small", seeds: int = 3, directory: str | Path | None = None
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
        about = open_directory(chosen, scale, home)
        records = [seed_results(chosen, scale, seed, directory=home) for seed in range(seeds)]
        findings = chosen.summarise([record["results"] for record in records])
        return write_page(home, chosen, findings, about=about, records=records)

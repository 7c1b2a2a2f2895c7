"""Compare a single network, a deep ensemble, SWAG and MultiSWAG on one data set: fits, scores, one table, a report.

Two fits serve four methods: the single network is the first member of the ensemble and SWAG the first member of
MultiSWAG, exactly as if each had been fitted alone with the same seed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchbayes.config import CONFIG, Setup, entries, fit_run, write_config
from torchbayes.experiments.compare_report import report
from torchbayes.experiments.compare_scores import LABELS, Comparison, Outcome, Track, member, score
from torchbayes.inference.progress import Callback
from torchbayes.posteriors import Posterior
from torchbayes.posteriors.files import write_whole


@dataclass(frozen=True)
class Compared:
    """What a comparison found and left.

    Attributes:
        setup: data and model.
        outcomes: method -> what it gave.
        report: path of `report.html`; PNGs, `results.json` and `config.yaml` lie beside it.
    """

    setup: Setup
    outcomes: dict[str, Outcome]
    report: Path


def compare(
    comparison: Comparison,
    directory: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] | None = None,
    say: Callable[[str], None] = lambda _: None,
    track: Track = lambda items, _: items,
) -> Compared:
    """Fit, evaluate and report.

    Args:
        comparison: what is compared on what.
        directory: where everything goes; the fits into `fits/`.
        resume: continue: finished fits are taken as they are, interrupted ones go on, the evaluation is done anew.
        overwrite: remove the fits of an earlier comparison in `directory` first.
        callbacks: as `fit` takes them.
        say: is told what is fitted next.
        track: shows the progress of the evaluation.

    Returns:
        The outcomes and the report.

    Raises:
        ValueError: if `directory` holds a comparison and neither `resume` nor `overwrite` is said.
    """
    home = Path(directory)
    if (home / CONFIG).exists() and not resume:
        if not overwrite:
            raise ValueError(
                f"{home} already holds a run. Add --resume to go on with it, --overwrite to replace it, or choose "
                f"another --directory."
            )
        shutil.rmtree(home / "fits", ignore_errors=True)
    setup = comparison.problem.setup()
    text = write_config(home, configuration(comparison))
    posteriors = _fit(setup, comparison, home / "fits", resume=resume, callbacks=callbacks, say=say)
    with setup.problem.threading():
        outcomes = score(setup, posteriors, comparison, track=track)
    numbers = {"data": setup.data.name, "methods": {name: o.numbers() for name, o in outcomes.items()}}
    write_whole(home / "results.json", (json.dumps(numbers, indent=1) + "\n").encode())
    return Compared(setup, outcomes, report(home, setup, comparison, outcomes=outcomes, settings=text))


def configuration(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as its `config.yaml` holds it and the command line reads it.

    Args:
        comparison: what is compared.

    Returns:
        name -> value.
    """
    found = {**entries(comparison.problem), **entries(comparison)}
    del found["problem"]
    return {**found, "ensemble": entries(comparison.ensemble), "multiswag": entries(comparison.multiswag)}


def _fit(
    setup: Setup,
    comparison: Comparison,
    home: Path,
    *,
    resume: bool,
    callbacks: Sequence[Callback] | None,
    say: Callable[[str], None],
) -> dict[str, Posterior]:
    """Return the posterior of each method, from at most two fits."""
    found: dict[str, Posterior] = {}
    pairs = (("ensemble", "single", comparison.ensemble), ("multiswag", "swag", comparison.multiswag))
    for many, one, method in pairs:
        if many not in comparison.methods and one not in comparison.methods:
            continue
        name, wanted = (many, method) if many in comparison.methods else (one, replace(method, members=1))
        say(f"fitting: {LABELS[name]}, {wanted.members} × {wanted.epochs} epochs on {setup.data}")
        posterior = fit_run(setup, wanted, home / name, seed=comparison.seed, resume=resume, callbacks=callbacks)
        found |= {many: posterior, one: member(posterior, 0)}
    return {name: found[name] for name in comparison.methods}

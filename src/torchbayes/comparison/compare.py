"""Compare methods with each other and with a reference on one data set: fits, scores, one table, a report.

The single network is the first member of an ensemble with the same settings, and SWAG the first member of MultiSWAG,
exactly as if each had been fitted alone with the same seed. The reference is Hamiltonian Monte Carlo by default,
fitted here or read from a directory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchbayes.assess.diagnose import Diagnosis
from torchbayes.catalogue.config import CONFIG, describe, entries, fit_run, write_config
from torchbayes.catalogue.entries import MethodEntry, Settings
from torchbayes.catalogue.methods import label_of
from torchbayes.catalogue.problem import Setup, with_dropout
from torchbayes.comparison.reference import load_reference, quality
from torchbayes.comparison.report import report
from torchbayes.comparison.scores import Outcome, Track, constant_outcome, member, score
from torchbayes.comparison.settings import REFERENCE, Comparison
from torchbayes.data import CORRUPTIONS, Data
from torchbayes.driver.progress import Callback
from torchbayes.methods.choices import is_open
from torchbayes.native.process import full_path
from torchbayes.posteriors import Posterior
from torchbayes.posteriors.files import write_whole
from torchbayes.posteriors.locks import Locked, folder_in
from torchbayes.posteriors.problems import naming
from torchbayes.report.diagnosis import numbers as diagnosis_numbers


@dataclass(frozen=True)
class Compared:
    """The result of a comparison."""

    setup: Setup
    outcomes: dict[str, Outcome]
    report: Path  # page; pictures, `results.json` and `config.yaml` lie beside it
    diagnosis: Diagnosis | None = None  # of the reference's chains; None without chains
    base: Outcome | None = None  # constant predictor on the test set, where there is one


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
        comparison: What is compared on what.
        directory: Where everything is written; the fits into `fits/`.
        resume: Continue: finished fits are reused, interrupted ones resumed, and the evaluation is repeated.
        overwrite: Remove the fits of an earlier comparison in `directory` first.
        callbacks: As in `fit`.
        say: Called with a line about each fit that begins.
        track: Shows the progress of the evaluation.

    Returns:
        The outcomes and the report.

    Raises:
        BlockingIOError: Another process is writing to `directory`.
        FileNotFoundError: The directory of the reference holds no finished fit.
        ValueError: `directory` holds a comparison and neither `resume` nor `overwrite` is set, the reference is of
            another posterior or would be overwritten, or corruptions are named and the data are not images.
    """
    home = full_path(directory)
    reference = load_reference(comparison) if comparison.directory_of_reference is not None else None
    setup = comparison.problem.setup()
    for note in setup.data.notes:
        say(note)
    comparison = _of_images(comparison, setup.data)
    with Locked(home):
        if not resume:
            _make_room(home, comparison, overwrite=overwrite)
        text = write_config(home, configuration(comparison))
        posteriors = _fit(setup, comparison, folder_in(home, "fits"), resume=resume, callbacks=callbacks, say=say)
        name = comparison.compared_with
        where = home / "fits" / str(name)
        if reference is not None:
            posteriors, where = {**posteriors, REFERENCE: reference}, full_path(comparison.directory_of_reference or "")
        with setup.problem.threading():
            outcomes = score(setup, posteriors, comparison, track=track)
            diagnosis = None if name is None else quality(setup, posteriors[name], where)
            base = constant_outcome(setup)
        numbers = _numbers(setup, outcomes, diagnosis) | ({} if base is None else {"constant": base.clean.metrics})
        write_whole(home / "results.json", (json.dumps(numbers, indent=1) + "\n").encode())
        page = report(home, setup, comparison, outcomes=outcomes, base=base, diagnosis=diagnosis, settings=text)
    return Compared(setup, outcomes, page, diagnosis, base)


def _of_images(comparison: Comparison, data: Data) -> Comparison:
    """Return the comparison without the default corruptions if the data are not images."""
    if data.is_image or not comparison.corruptions:
        return comparison
    if comparison.corruptions != CORRUPTIONS:
        raise ValueError(
            f"`corruptions` are of images, which the rows of {data.name} are not; got "
            f"{', '.join(comparison.corruptions)}. Leave them out."
        )
    return replace(comparison, corruptions=())


def _make_room(home: Path, comparison: Comparison, *, overwrite: bool) -> None:
    """Remove the fits of an earlier comparison if `overwrite` is set, else raise ValueError if there are fits."""
    if not (home / CONFIG).exists():
        return
    if not overwrite:
        raise ValueError(
            f"{home} already holds a run. Add --resume to go on with it, --overwrite to replace it, or choose "
            f"another --directory."
        )
    fits, aside = folder_in(home, "fits"), folder_in(home, ".fits.removed")
    reference = comparison.directory_of_reference
    if reference is not None and fits.resolve() in full_path(reference).resolve().parents:
        raise ValueError(f"--overwrite would remove {reference}, which is the reference. Choose another --directory.")
    if aside.exists():  # left by a removal that was killed
        shutil.rmtree(aside)
    with ExitStack() as stack:
        for run in sorted(fits.glob("*/")):
            stack.enter_context(Locked(run))
        if fits.exists():
            fits.rename(aside)
    if aside.exists():  # removed after the lock files are closed, because NFS keeps open files and their folders
        shutil.rmtree(aside)


def _numbers(setup: Setup, outcomes: dict[str, Outcome], diagnosis: Diagnosis | None) -> dict[str, Any]:
    numbers: dict[str, Any] = {"data": setup.data.name, "methods": {name: o.numbers() for name, o in outcomes.items()}}
    return numbers if diagnosis is None else {**numbers, "reference": diagnosis_numbers(diagnosis)}


def configuration(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as its `config.yaml` holds it and the command line reads it."""
    options = {**entries(comparison.problem), **entries(comparison)}
    del options["problem"], options["starts"]
    options["methods"] = {name: _described(comparison, name) for name in comparison.methods}
    served = {name: _described(comparison, name) for name in comparison.starts}
    starts = {name: settings for name, settings in served.items() if "first_of" not in settings}
    return {**options, "starts": starts} if starts else options


def _described(comparison: Comparison, name: str) -> Any:
    """Return the settings of a method as YAML holds them, or the name of the method whose fit it shares."""
    fit_name, _ = comparison.fit_of(name)
    return describe(comparison.settings(name)) if fit_name == name else {"first_of": fit_name}


def _fit(
    setup: Setup,
    comparison: Comparison,
    home: Path,
    *,
    resume: bool,
    callbacks: Sequence[Callback] | None,
    say: Callable[[str], None],
) -> dict[str, Posterior]:
    """Return the posterior of each method, from as few fits as possible."""
    fitted: dict[str, Posterior] = {}

    def of(method: str) -> Posterior:
        name, settings = comparison.fit_of(method)
        if name not in fitted:
            entry = comparison.entry(name)
            begin = entry.start
            start = None if begin is None else of(begin)
            say(f"fitting: {label_of(name)}, {_length(settings, entry)} on {setup.data.name}")
            suited = with_dropout(setup) if comparison.entry(name).parts == "dropout" else setup
            with naming(label_of(name)):
                fitted[name] = fit_run(
                    suited,
                    settings,
                    folder_in(home, name),
                    start=start,
                    seed=comparison.seed,
                    resume=resume,
                    callbacks=callbacks,
                )
        return fitted[name] if name == method else member(fitted[name], 0)

    return {method: of(method) for method in comparison.methods}


def _length(settings: Settings, entry: MethodEntry) -> str:
    """Return the length of a method's fit, in words."""
    if settings.needs.chain:
        return f"{settings.chains} chains × {settings.steps:,} {'steps' if settings.needs.batch_size else 'iterations'}"
    if entry.start is not None:
        return f"around the {label_of(entry.start)}"
    if entry.length is not None:
        return entry.length(settings)
    epochs = vars(settings).get("epochs")
    if epochs is None and is_open(settings):
        return f"{settings.members} × as many epochs as held-out rows choose"
    return f"{settings.members} × {epochs or 'the usual'} epochs"

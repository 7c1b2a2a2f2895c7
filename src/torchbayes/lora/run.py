"""A run: fits of methods on adapters of one base, in a directory that can be continued and read again.

    lora.json      settings, what the base is recognised by, and the checksums of the files of questions
    map            the trained adapter, at which some methods begin; a run directory of `fit`
    METHOD         a run directory of `fit`: configuration, log, checkpoint and posterior
    METHOD/adapter the mean of the posterior (of draws the last one) as PEFT saves it; of other members adapter_1, ...
    scores.json    the numbers on the test questions
    report.html    the page

Nothing in it is code, and nothing is a pickle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from torchbayes.adapters import load_draw
from torchbayes.catalogue.problem import place_of
from torchbayes.checks import as_file, check_flags, check_kind, optional
from torchbayes.checksum import crc
from torchbayes.driver.progress import Callback
from torchbayes.lora.adapter import save, trained
from torchbayes.lora.asked import Asked, Encoding
from torchbayes.lora.base import load_base, open_base
from torchbayes.lora.fingerprint import described, differences
from torchbayes.lora.learned import problems_of
from torchbayes.lora.memory import explained
from torchbayes.lora.methods import DEFAULT, METHODS, named
from torchbayes.lora.settings import Settings
from torchbayes.lora.setup import Setup, words
from torchbayes.native.process import full_path
from torchbayes.posteriors import Point, Posterior
from torchbayes.posteriors import load as load_posterior
from torchbayes.posteriors.files import POSTERIOR, read_described, write_described
from torchbayes.posteriors.locks import Locked, folder_in
from torchbayes.posteriors.problems import naming, warn_of
from torchbayes.selection import fit as fit_posterior

CONFIG, ADAPTER, MODE = "lora.json", "adapter", "map"
_FILES = ("data", "test", "other")


@dataclass(frozen=True)
class Run:
    """Posteriors over the adapters of one base.

    Attributes:
        setup: base, adapter and questions.
        posteriors: by the name of the method.
        directory: where they are; None if nowhere.
        start: the trained adapter at which methods begin; None if none does.
    """

    setup: Setup
    posteriors: Mapping[str, Posterior]
    directory: Path | None = None
    start: Posterior | None = None

    def posterior(self, method: str | None = None) -> Posterior:
        """Return the posterior of a method; of the only one if None.

        Raises:
            ValueError: if there is no such one, or several and none is named.
        """
        if method is None and len(self.posteriors) == 1:
            return next(iter(self.posteriors.values()))
        if method is None or method not in self.posteriors:
            raise ValueError(_which(self.posteriors, method))
        return self.posteriors[method]


def fit(
    settings: Settings,
    methods: str | Sequence[str] = DEFAULT,
    *,
    directory: str | PathLike[str] | None = None,
    resume: bool = False,
    trust: bool = False,
    callbacks: Sequence[Callback] | None = None,
) -> Run:
    """Fit posteriors over an adapter of a language model that answers multiple-choice questions.

    Laplace, TFB, SWAG, IVON and SGHMC begin at the same adapter: the one that settings name or, without one or to
    refine it, one that MAP trains.

    Args:
        settings: base, questions, adapter and length.
        methods: names of `torchbayes.lora.METHODS`, or "all".
        directory: where everything goes; nothing is written if None.
        resume: go on with the run in the directory. Further methods may be asked for.
        trust: run the code that comes with a base of the hub or a folder.
        callbacks: of every fit, as of `torchbayes.fit`; None also says which one it is.

    Returns:
        The run.

    Raises:
        ValueError: if settings, questions, base, adapter or directory do not fit; nothing has been changed then.
        FileNotFoundError: if a file or folder is not there.
        ImportError: if transformers, peft or bitsandbytes are needed and missing.
        RuntimeError: if a GPU has not enough memory; the message says what takes less.
    """
    check_kind(Settings, "Settings(base, data)", settings=settings)
    check_flags(resume=resume, trust=trust)
    optional(check_kind, (str, PathLike), "a path", directory=directory)
    names = named(methods)
    home = None if directory is None else full_path(directory)
    members = settings.members if "ensemble" in names else 1
    with begun(settings, home, resume=resume, trust=trust, members=members, methods=names) as setup:
        if callbacks is None:
            for note in (words(setup), *setup.asked.questions.notes):
                tell(f"  {note}")
        posteriors = fitted(setup, setup.asked.train, names, home=home, resume=resume, callbacks=callbacks)
        if home is not None:
            for name, posterior in posteriors.items():
                _keep(setup, name, posterior, home)
    return Run(setup, {name: posteriors[name] for name in names}, home, posteriors.get(MODE))


@contextmanager
def begun(
    settings: Settings,
    home: Path | None,
    *,
    resume: bool,
    trust: bool,
    members: int = 1,
    methods: Sequence[str] = (),
) -> Iterator[Setup]:
    """Load a run, and lock and describe its directory, or check that it holds the same one. Errors are as of `fit`."""
    recorded = None if home is None else _recorded(home, settings, resume=resume)
    with explained(settings, place_of(settings.device)):
        setup = Setup.load(settings, trust=trust, members=members)
        if home is None:
            yield setup
            return
        if recorded is not None:
            _check_base(home, recorded, setup.base.name, setup.base.fingerprint)
        with Locked(home):
            recorded = _recorded(home, settings, resume=resume)  # another process may have begun a run since
            before = [] if recorded is None else recorded["methods"]
            _record(home, setup, [*dict.fromkeys([*before, *methods])])
            yield setup


def load(
    directory: str | PathLike[str], *, method: str | None = None, base: str | None = None, trust: bool = False
) -> Run:
    """Read the run in a directory, to predict with it.

    Args:
        directory: of `fit`.
        method: whose posterior to read; all that are finished if None.
        base: folder or name of the base, if it is elsewhere now.
        trust: run the code that comes with the base.

    Returns:
        The run with the posteriors that are finished.

    Raises:
        FileNotFoundError: if there is no run, or no posterior in it.
        ValueError: if the base is another one than that of the run, files are damaged, or the method has no posterior.
    """
    check_kind((str, PathLike), "a path", directory=directory)
    optional(check_kind, str, "a name", method=method, base=base)
    check_flags(trust=trust)
    home = full_path(directory)
    recorded = read_run(home)
    finished = [n for n in recorded["methods"] if (home / n / POSTERIOR).is_file() and (home / n / ADAPTER).is_dir()]
    if not finished:
        raise FileNotFoundError(f"{home} has no posterior yet. Finish the run: fit(…, resume=True), or --resume.")
    if method is not None and method not in finished:
        raise ValueError(_which(finished, method))
    settings = Settings(**recorded["settings"])
    settings = settings if base is None else replace(settings, base=base)
    opened = open_base(settings, trust=trust)
    asked = Asked(settings, Encoding.of(opened, settings, recorded["classes"]))
    loaded = load_base(opened, settings)
    _check_base(home, recorded, loaded.name, loaded.fingerprint)
    names = finished if method is None else [method]
    setup = Setup(settings, loaded, trained(loaded, str(home / names[0] / ADAPTER)), asked)
    posteriors = {n: load_posterior(home / n / POSTERIOR, setup.model(n)) for n in names}
    path = home / MODE / POSTERIOR
    start = load_posterior(path, setup.model(MODE)) if method is None and path.is_file() else None
    return Run(setup, posteriors, home, start)


def read_run(home: Path) -> dict[str, Any]:
    """Return what a run was asked for. FileNotFoundError if there is none, ValueError if it is damaged."""
    if not (home / CONFIG).is_file():
        raise FileNotFoundError(f"there is no run of adapters in {home}: it has no {CONFIG}.")
    recorded = read_described(home / CONFIG)
    known = {field.name for field in fields(Settings)}
    if not {"settings", "methods", "base", "classes", "files"} <= recorded.keys() or set(recorded["settings"]) != known:
        raise ValueError(f"{home / CONFIG} was written by another version. Fit again, into another directory.")
    return recorded


def _recorded(home: Path, settings: Settings, *, resume: bool) -> dict[str, Any] | None:
    """Return what the run in a directory was asked for, checked to be the same; None if there is none."""
    if not (home / CONFIG).is_file():
        return None
    if not resume:
        raise ValueError(f"{home} already holds a run. Add --resume (`resume=True`), or choose another directory.")
    recorded = read_run(home)
    before = Settings(**recorded["settings"])
    for field in fields(Settings):
        there, here = getattr(before, field.name), getattr(settings, field.name)
        if there != here and field.name != "base":  # which may have been moved, and is recognised by its numbers
            raise ValueError(
                f"{home} holds a run of another `{field.name}` ({there!r}; now {here!r}). Choose another directory, or "
                f"leave the option out."
            )
    changed = [name for name, text in _sums(settings).items() if recorded["files"].get(name) != text]
    if changed:
        path = getattr(settings, changed[0])
        raise ValueError(f"{path} has changed since {home} was begun. Restore it, or choose another directory.")
    return recorded


def _record(home: Path, setup: Setup, methods: Sequence[str]) -> None:
    entries = {"settings": asdict(setup.settings), "methods": methods, "base": setup.base.fingerprint}
    write_described(home / CONFIG, {**entries, "classes": setup.asked.encoding.classes, "files": _sums(setup.settings)})


def _sums(settings: Settings) -> dict[str, str]:
    """Return the checksums of the files of questions."""
    paths = {name: getattr(settings, name) for name in _FILES}
    return {name: crc(as_file(path).read_bytes()) for name, path in paths.items() if path is not None}


def _check_base(home: Path, recorded: Mapping[str, Any], name: str, now: Mapping[str, Any]) -> None:
    clauses = differences(recorded["base"], now)
    if clauses:
        raise ValueError(
            f"{home} was fitted on the base {recorded['settings']['base']}, {described(recorded['base'])}, and {name} "
            f"is another one: {'; '.join(clauses)}. Name the base of the run, in the same dtype."
        )


def fitted(
    setup: Setup,
    train: Mapping[str, Tensor],
    names: Sequence[str],
    *,
    home: Path | None,
    resume: bool,
    callbacks: Sequence[Callback] | None,
) -> dict[str, Posterior]:
    """Return the posterior of each method, given questions with answers, and that of MAP if one begins there."""
    length = setup.settings.length(len(train["labels"]))
    given = setup.settings.adapter is not None
    posteriors: dict[str, Posterior] = {}

    def fit_named(name: str, start: Any) -> Posterior:
        if callbacks is None:
            tell(f"fitting: {METHODS[name].label}")
        with naming(METHODS[name].label):
            posterior = fit_posterior(
                setup.model(name),
                train,
                METHODS[name].make(setup.settings, length),
                start=start,
                seed=setup.settings.seed,
                directory=None if home is None else folder_in(home, name),
                resume=resume and home is not None,
                callbacks=callbacks,
            )
            problems = [] if posterior.problems else problems_of(posterior, train, setup.settings)
            warn_of(problems)
        posterior = posterior.with_problems(problems)
        if problems and home is not None:
            posterior.save(folder_in(home, name) / POSTERIOR)
        return posterior

    if MODE in names or any(METHODS[name].around for name in names):
        posteriors[MODE] = _mode(setup, fit_named, home)
    for name in names:
        if name not in posteriors:
            begin = setup.model(name).given_weights() if given and name != "ensemble" else None
            posteriors[name] = fit_named(name, posteriors[MODE] if METHODS[name].around else begin)
    return posteriors


def _mode(setup: Setup, fit_named: Callable[[str, Any], Posterior], home: Path | None) -> Posterior:
    """Return the adapter at which methods begin: the one that is given, or one that MAP trains."""
    model, settings = setup.model(MODE), setup.settings
    begin = None if settings.adapter is None else model.given_weights()
    if begin is None or settings.refine:
        return fit_named(MODE, begin)
    point = Point(model, begin.unsqueeze(0))
    if home is not None:
        point.save(folder_in(home, MODE) / POSTERIOR)
    return point


def _keep(setup: Setup, name: str, posterior: Posterior, home: Path) -> None:
    """Write the adapters at the middle of a posterior, as PEFT does."""
    for member, weights_D in enumerate(_middle(posterior)):
        folder = folder_in(home, name, ADAPTER if member == 0 else f"{ADAPTER}_{member}")
        save(load_draw(setup.network_of(name), posterior.model, weights_D), folder)


def _which(names: Iterable[str], method: str | None) -> str:
    seen = "none is named" if method is None else f"got {method!r}"
    return f"`method` (--method) must say whose posterior: {', '.join(names)}; {seen}."


def tell(text: str) -> None:
    """Write a line of progress to standard error at once, as `torchbayes.fit` does."""
    print(text, file=sys.stderr, flush=True)


def _middle(posterior: Any) -> Tensor:
    """Return the means of the members (M, D), or of draws the last one: a mean of factors is no adapter of any draw."""
    for name in ("mean_MD", "weights_MD"):
        if hasattr(posterior, name):
            return getattr(posterior, name)
    return posterior.weights_MSD[:1, -1]

"""How a run of named data, network, likelihood, prior and method is written, and read back.

A fit leaves `config.yaml` in its directory, from which `load_run` rebuilds model and posterior, and which the command
line takes with `--config`. What is usual for a data set is in `torchbayes.catalogue.data`.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchbayes.catalogue.imports import load_path
from torchbayes.catalogue.problem import Problem, Setup
from torchbayes.catalogue.trust import check_trusted, foreign_code
from torchbayes.catalogue.yaml_text import read_yaml
from torchbayes.checks import as_seed, seen
from torchbayes.density import Ranks
from torchbayes.driver.progress import Callback
from torchbayes.methods.protocol import Method
from torchbayes.model.sources.sources import as_source
from torchbayes.posteriors import Draws, Posterior, load
from torchbayes.posteriors.files import POSTERIOR, write_whole
from torchbayes.posteriors.load import read_draws
from torchbayes.posteriors.locks import FileWarning, Locked
from torchbayes.selection import fit

CONFIG = "config.yaml"
DATA = "data.json"  # what the rows of a user were, whose files may change
_SEAL = "# checksum of the settings above: "


def describe(settings: Any) -> Any:
    """Return settings as YAML holds them: a dataclass is `class_path` and `init_args`, as jsonargparse reads it.

    Args:
        settings: a dataclass, or what one may hold.

    Returns:
        Mappings, lists, numbers and texts.
    """
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        return {"class_path": class_path(type(settings)), "init_args": entries(settings)}
    if isinstance(settings, Mapping):
        return {name: describe(entry) for name, entry in settings.items()}
    return [describe(s) for s in settings] if isinstance(settings, list | tuple) else settings


def class_path(kind: type) -> str:
    """Return the path by which a configuration names a class: short for those of this library."""
    with suppress(ValueError):
        if load_path(f"torchbayes:{kind.__name__}") is kind:
            return f"torchbayes.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def entries(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as YAML holds them.

    Args:
        settings: a dataclass.

    Returns:
        name -> value.
    """
    return {f.name: describe(getattr(settings, f.name)) for f in dataclasses.fields(settings)}


def problem_in(config: Mapping[str, Any], source: Path, *, trust: bool = False, named: Iterable[str] = ()) -> Problem:
    """Return the problem that is among the entries of a configuration.

    Args:
        config: name -> value.
        source: the file, for messages.
        trust: allow whatever code it names by import path.
        named: import paths that are allowed in any case.

    Returns:
        The problem.

    Raises:
        PermissionError: if it would run code that is not allowed.
    """
    found = {f.name: config[f.name] for f in dataclasses.fields(Problem) if f.name in config}
    check_trusted(source, found, trust=trust, named=named)
    return Problem(**found)


def write_config(directory: Path, config: Mapping[str, Any]) -> str:
    """Write the resolved configuration of a run.

    Args:
        directory: made if needed.
        config: what `entries` and `describe` give.

    Returns:
        The text of `config.yaml`.
    """
    import yaml

    directory.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    write_whole(directory / CONFIG, f"{text}{_SEAL}{_crc(yaml.safe_load(text))}\n".encode())
    return text


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration.

    Args:
        path: a YAML file.

    Returns:
        Its entries.

    Raises:
        ValueError: if it is not a YAML mapping.
    """
    found = read_yaml(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold names and values; got {type(found).__name__}.")
    return found


def read_run(directory: Path) -> dict[str, Any]:
    """Read the configuration of a run, which must be the one that was written.

    Args:
        directory: of the run.

    Returns:
        Its entries.

    Raises:
        ValueError: if it is not a YAML mapping, or was changed since.
    """
    path = directory / CONFIG
    config = read_config(path)
    seals = [line for line in path.read_text("utf-8").splitlines() if line.startswith(_SEAL)]
    if not seals:
        warnings.warn(
            f"{path} has no checksum, as those of earlier versions: a change of its settings would not be noticed.",
            FileWarning,
            stacklevel=3,
        )
    elif seals != [f"{_SEAL}{_crc(config)}"]:
        raise ValueError(
            f"{path} is damaged or was edited: its settings are not those of this run. Restore it or fit again; to use "
            f"other settings, give a copy of it to --config, with another --directory."
        )
    if "method" in config and not _is_method(config["method"]):
        raise ValueError(f"`method` of {path} must be a class and its settings; got {seen(config['method'])}.")
    return config


def _is_method(entry: Any) -> bool:
    if not isinstance(entry, Mapping):
        return False
    return isinstance(entry.get("class_path"), str) and isinstance(entry.get("init_args"), Mapping)


def _crc(config: Mapping[str, Any]) -> str:
    """Return the checksum of settings, whatever the layout of the file in which they stand."""
    return f"{zlib.crc32(json.dumps(config, sort_keys=True, default=str).encode()):08x}"


def fit_run(
    setup: Setup,
    method: Method,
    directory: Path,
    *,
    start: Path | Posterior | None = None,
    seed: int = 0,
    resume: bool = False,
    callbacks: Sequence[Callback] | None = None,
    ranks: Ranks | None = None,
) -> Posterior:
    """Fit into a run directory that `load_run` can read.

    Args:
        setup: data and model.
        method: how to infer.
        directory: of the run.
        start: where to begin: the weights that another run found, by its directory, or a posterior.
        seed: of the fit.
        resume: continue the run in `directory`, or take its posterior if it is finished; a sampler with more steps
            goes on.
        callbacks: as `fit` takes them.
        ranks: processes that share the fit.

    Returns:
        The posterior.

    Raises:
        FileNotFoundError: if the run to start at has no posterior.
        ValueError: if the directory holds a run that is not to be resumed, or one of other settings, or if the start
            is no point posterior.
    """
    seed = as_seed(seed)
    began = _posterior_at(start, setup.problem)
    if ranks is None or ranks.first:
        place = str(start) if isinstance(start, Path) else None
        about = {"method": describe(method), "start": place, "seed": seed}
        config = {**entries(setup.problem), **about}
        with Locked(directory):
            _describe_run(directory, config, resume=resume, any_length=method.needs.chain)
            _describe_data(directory, setup)
    options: dict[str, Any] = {"resume": resume, "seed": seed, "callbacks": callbacks, "ranks": ranks}
    with setup.problem.threading():
        return fit(setup.model, tuple(setup.data.train), method, start=began, directory=directory, **options)  # type: ignore[arg-type]


def _posterior_at(start: Path | Posterior | None, problem: Problem) -> Posterior | None:
    """Return the posterior to start at; a run may be of the user's own code where the problem is.

    Raises:
        ValueError: if a run has none that is a single set of weights for each member.
    """
    if not isinstance(start, Path):
        return start
    began = load_run(start, named=foreign_code(entries(problem)))[1]
    if began.centre is not began:
        raise ValueError(
            f"{start} holds a posterior of the kind {type(began).__name__}, which is no single set of weights to start "
            f"at. --start takes the directory of a fit by MAP or SWA."
        )
    return began


def _describe_data(directory: Path, setup: Setup) -> None:
    """Write what the rows of a user are, or check that they are still those of the run that is there.

    Args:
        directory: of the run.
        setup: data and model.

    Raises:
        ValueError: if the rows have changed.
    """
    data = setup.data
    if data.checksum is None:
        return
    path = directory / DATA
    if not path.is_file():
        about = {"source": data.source, "checksum": data.checksum, "notes": list(data.notes)}
        write_whole(path, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
        return
    try:
        known = json.loads(path.read_bytes())["checksum"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). Restore it, or remove it if no data have changed.") from error
    if known != data.checksum:
        raise ValueError(
            f"the training or test rows of {setup.problem.data} are not those that {directory} was fitted to: they or "
            f"their settings have changed since. Restore them, or fit again into another directory."
        )


def _describe_run(directory: Path, config: dict[str, Any], *, resume: bool, any_length: bool) -> None:
    """Write the configuration of a run, or check that it is that of the run that is there.

    Args:
        directory: of the run.
        config: of the run that is asked for.
        resume: whether the run that is there is to go on.
        any_length: whether the length of the method may differ: a chain is the same chain however long it gets.

    Raises:
        ValueError: if the directory holds a run that is not to be resumed, or one of other settings.
    """
    path = directory / CONFIG
    # a setting that is younger than the run had its default there
    found = {**entries(Problem()), **read_run(directory)} if path.exists() else config
    if path.exists() and not resume:
        raise ValueError(f"{directory} already holds a run. Add --resume, or choose another --directory.")
    for name, value in config.items():
        there, here = (_without_length(e) if any_length else e for e in (found.get(name), value))
        if there != here:
            raise ValueError(
                f"{directory} holds a run of another {name} ({found.get(name)}; now {value}). "
                f"Choose another --directory, or leave the option out."
            )
    if found != config or not path.exists():
        write_config(directory, config)


def keep_changed(posterior: Posterior, run: Path, directory: Path) -> Path:
    """Save a posterior made from that of a run, such as a tuned one, so that `load_run` can read it.

    Args:
        posterior: what was made.
        run: directory of the run.
        directory: where the posterior goes; one that is there is replaced.

    Returns:
        The path of the posterior.
    """
    with Locked(directory):
        write_config(directory, read_run(run))
        if (run / DATA).is_file():
            write_whole(directory / DATA, (run / DATA).read_bytes())
        return posterior.save(directory / POSTERIOR)


def _without_length(entry: Any) -> Any:
    settings = entry.get("init_args") if isinstance(entry, Mapping) else None
    return {**entry, "init_args": {**settings, "steps": None}} if settings else entry


def load_run(
    directory: Path, *, unfinished: bool = False, trust: bool = False, named: Iterable[str] = ()
) -> tuple[Setup, Posterior]:
    """Load what `fit_run` left.

    Args:
        directory: of the run.
        unfinished: take the draws that a sampler has left so far, whether its run is over, goes on or was killed.
        trust: run the code that its configuration names by import path; only for runs of people whom you trust.
        named: import paths that are allowed in any case.

    Returns:
        Data and model, and the posterior.

    Raises:
        FileNotFoundError: if there is no finished run, or no draws of one.
        PermissionError: if it would run code that is not allowed.
        ValueError: if the directory holds something else, or its configuration was changed.
    """
    config = read_run(directory)
    if "method" not in config:
        fits = sorted(str(p.parent) for p in directory.glob(f"fits/*/{CONFIG}"))
        raise ValueError(f"{directory} is not the directory of one fit. Try {' or '.join(fits) or 'another'}.")
    problem = problem_in(config, directory / CONFIG, trust=trust, named=named)
    path = directory / POSTERIOR
    streamed = unfinished and (directory / "draws.json").is_file()
    if not streamed and not path.is_file():
        raise FileNotFoundError(
            f"{directory} has no posterior yet. Finish it: torchbayes fit --directory {shlex.quote(str(directory))} "
            f"--resume{' --trust' if foreign_code(config) else ''}"
        )
    try:
        setup = problem.setup()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} It stands as `data` in {directory / CONFIG}.") from error
    if (directory / DATA).is_file():
        _describe_data(directory, setup)
    if streamed:
        return setup, Draws(setup.model, read_draws(directory, setup.model, verify=True))
    source = as_source(setup.model, tuple(setup.data.train), config["method"]["init_args"].get("batch_size") or 1024)
    return setup, load(path, setup.model, calibration=source.inputs)

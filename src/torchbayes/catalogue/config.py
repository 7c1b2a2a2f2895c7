"""How a run of named data, network, likelihood, prior and method is written, and read back.

A fit leaves `config.yaml` in its directory. `load_run` rebuilds model and posterior from it, and the command line
takes it with `--config`. Usual settings for a data set are in `torchbayes.catalogue.data`.

YAML by other people is read within bounds. A few lines with aliases of aliases stand for more values than any memory
holds, and a few thousand brackets for a tree deeper than Python can walk. A configuration has some hundred values; a
text far beyond that is refused unread.
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

import yaml

from torchbayes.catalogue.imports import check_trusted, foreign_code, load_path
from torchbayes.catalogue.problem import Problem, Setup
from torchbayes.checks import as_file, as_seed, seen
from torchbayes.density import Ranks
from torchbayes.driver.progress import Callback
from torchbayes.methods.protocol import Method
from torchbayes.model.sources.sources import as_source
from torchbayes.posteriors import Draws, Posterior, load
from torchbayes.posteriors.files import POSTERIOR, write_whole
from torchbayes.posteriors.load import read_draws
from torchbayes.posteriors.locks import FileWarning, Locked
from torchbayes.selection import fit

LONGEST = 2**20  # letters
DEEPEST = 40  # levels
LARGEST = 100_000  # values, counting those of each alias


class UnboundedError(yaml.YAMLError):
    """The text stands for more than a configuration can be."""


def check_yaml(text: str) -> None:
    """Check that a text stands for a tree of bounded size, without building it.

    Raises UnboundedError if it is too long, too deep, too large once its aliases are written out, or refers to itself.
    """
    if len(text) > LONGEST:
        raise UnboundedError(f"it has {len(text):,} letters, more than {LONGEST:,}")
    if len(text) <= DEEPEST and "*" not in text:  # each level takes a letter at least, each alias a star
        return
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):  # events are read one by one, and nothing is built
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise UnboundedError(f"it is nested deeper than {DEEPEST} levels")
    if (count := _count(yaml.compose(text, Loader=yaml.SafeLoader), {})) > LARGEST:
        raise UnboundedError(f"it stands for {count:,} values once its aliases are written out, more than {LARGEST:,}")


def _count(node: yaml.Node | None, known: dict[int, int | None]) -> int:
    """Return the number of values below a node, counting each alias as what it refers to."""
    if node is None:
        return 0
    if id(node) in known:
        if (count := known[id(node)]) is None:
            raise UnboundedError("it refers to itself")
        return count
    known[id(node)] = None
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = node.value
    elif isinstance(node, yaml.MappingNode):
        parts = [child for pair in node.value for child in pair]
    total = 1 + sum(_count(child, known) for child in parts)
    known[id(node)] = total
    return total


def read_yaml(path: Path) -> Any:
    """Read a YAML file within the bounds of `check_yaml`."""
    as_file(path)
    try:
        if path.stat().st_size > 4 * LONGEST:
            raise ValueError(f"it has {path.stat().st_size:,} bytes, more than {4 * LONGEST:,}")
        text = path.read_text("utf-8")
        check_yaml(text)
        return yaml.safe_load(text)
    except UnboundedError as error:
        raise ValueError(f"{path} is no configuration: {error}. Write it out, without aliases.") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8."
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error


CONFIG = "config.yaml"
DATA = "data.json"  # identifies the rows of a user, whose files may change
_SEAL = "# checksum of the settings above: "


def describe(settings: Any) -> Any:
    """Return settings as YAML holds them: a dataclass is `class_path` and `init_args`, as jsonargparse reads it."""
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
    """Return the fields of a dataclass by name, as YAML holds them."""
    return {f.name: describe(getattr(settings, f.name)) for f in dataclasses.fields(settings)}


def problem_in(config: Mapping[str, Any], source: Path, *, trust: bool = False, named: Iterable[str] = ()) -> Problem:
    """Return the problem among the entries of a configuration, read from `source`.

    Raises PermissionError for code by import path, unless `trust` is set or `named` lists the path.
    """
    options = {f.name: config[f.name] for f in dataclasses.fields(Problem) if f.name in config}
    check_trusted(source, options, trust=trust, named=named)
    return Problem(**options)


def write_config(directory: Path, config: Mapping[str, Any]) -> str:
    """Write the resolved configuration of a run (values as from `entries` and `describe`), and return its text."""
    import yaml

    directory.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    write_whole(directory / CONFIG, f"{text}{_SEAL}{_crc(yaml.safe_load(text))}\n".encode())
    return text


def read_config(path: Path) -> dict[str, Any]:
    """Return the entries of a YAML file, which must be a mapping."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold names and values; got {type(content).__name__}.")
    return content


def read_run(directory: Path) -> dict[str, Any]:
    """Return the configuration of a run. Raises ValueError if it was changed since it was written."""
    path = directory / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}, which a run has. Name the directory of a fit.")
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
    """Return the checksum of settings, independent of the layout of their file."""
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

    `start` is the directory of another run, or a posterior, whose weights the fit begins at. `resume` continues the
    run in `directory`, or takes its posterior if it is finished; a sampler with more steps goes on. Raises
    FileNotFoundError if the run to start at has no posterior; ValueError if the directory holds a run that is not to
    be resumed, or one of other settings, or if the start is no point posterior.
    """
    seed = as_seed(seed)
    start_posterior = _posterior_at(start, setup.problem)
    if ranks is None or ranks.first:
        start_path = str(start) if isinstance(start, Path) else None
        method_entries = {"method": describe(method), "start": start_path, "seed": seed}
        config = {**entries(setup.problem), **method_entries}
        with Locked(directory):
            _describe_run(directory, config, resume=resume, any_length=method.needs.chain)
            _describe_data(directory, setup)
    with setup.problem.threading():
        return fit(
            setup.model,
            tuple(setup.data.train),
            method,
            start=start_posterior,
            directory=directory,
            resume=resume,
            seed=seed,
            callbacks=callbacks,
            ranks=ranks,
        )


def _posterior_at(start: Path | Posterior | None, problem: Problem) -> Posterior | None:
    """Return the posterior to start at; a run may use the user's own code that the problem uses."""
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
    """Write the checksum of a user's rows, or check that they are still those of the run that is there."""
    data = setup.data
    if data.checksum is None:
        return
    path = directory / DATA
    if not path.is_file():
        content = {"source": data.source, "checksum": data.checksum, "notes": list(data.notes)}
        write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
        return
    try:
        checksum = json.loads(path.read_bytes())["checksum"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). Restore it, or remove it if no data have changed.") from error
    if checksum != data.checksum:
        raise ValueError(
            f"the training or test rows of {setup.problem.data} are not those that {directory} was fitted to: they or "
            f"their settings have changed since. Restore them, or fit again into another directory."
        )


def _describe_run(directory: Path, config: dict[str, Any], *, resume: bool, any_length: bool) -> None:
    """Write the configuration of a run, or check that it is that of the run that is there.

    `any_length` lets the length of the method differ, because a chain is the same chain however long it gets.
    """
    path = directory / CONFIG
    # a setting that is younger than the run had its default value
    earlier = {**entries(Problem()), **read_run(directory)} if path.exists() else config
    if path.exists() and not resume:
        raise ValueError(f"{directory} already holds a run. Add --resume, or choose another --directory.")
    for name, value in config.items():
        there, here = (_without_length(e) if any_length else e for e in (earlier.get(name), value))
        if there != here:
            raise ValueError(
                f"{directory} holds a run of another {name} ({earlier.get(name)}; now {value}). "
                f"Choose another --directory, or leave the option out."
            )
    if earlier != config or not path.exists():
        write_config(directory, config)


def keep_changed(posterior: Posterior, run: Path, directory: Path) -> Path:
    """Save a posterior made from that of a run, such as a tuned one, so that `load_run` reads it; return its path."""
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
    """Load data and model, and the posterior, that `fit_run` left.

    `unfinished` takes the draws that a sampler has left so far, whether its run is over, goes on or was killed.
    `trust` runs the code that the configuration names by import path; only for runs of people whom you trust. `named`
    lists import paths that are allowed in any case. Raises FileNotFoundError for no finished run, or no draws of one;
    PermissionError if it would run code that is not allowed; ValueError if the directory holds something else, or its
    configuration was changed.
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

"""The settings of a run, by name: data, network, likelihood, prior, method; and how a run is written and read back.

A fit leaves `config.yaml` in its directory, from which `load_run` rebuilds model and posterior, and which the command
line takes with `--config`. Settings that are usual for a data set are in `torchbayes.catalogue.usual`.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch

from torchbayes.catalogue.yaml_text import read_yaml
from torchbayes.checks import (
    as_seed,
    check_choice,
    check_counts,
    check_kind,
    check_positive,
    check_scale,
    check_text,
    given,
    plain,
    seen,
)
from torchbayes.density import Ranks
from torchbayes.driver import fit
from torchbayes.driver.progress import Callback
from torchbayes.methods.protocol import Method
from torchbayes.methods.sampler import Sampler
from torchbayes.model import Model, likelihoods, priors
from torchbayes.model.rows.sources import as_source
from torchbayes.posteriors import Draws, Point, Posterior, load
from torchbayes.posteriors.files import POSTERIOR, write_whole
from torchbayes.posteriors.load import read_draws
from torchbayes.posteriors.locks import Locked

if TYPE_CHECKING:
    from torchbayes.data import Data

CONFIG = "config.yaml"
Kind = Literal["categorical", "gaussian", "heteroscedastic"]
# of a kind that has but one device, its number is left out: "cpu:0" is "cpu", and runs as that does
_DEVICE = re.compile(r"(?P<kind>cpu|mps)(:0)?|cuda(:(?P<number>0|[1-9][0-9]{0,3}))?")


class Setup(NamedTuple):
    """A problem with its data loaded and its model built.

    Attributes:
        problem: the names it was made from.
        data: the data set.
        model: the model.
    """

    problem: Problem
    data: Data
    model: Model

    @property
    def target_scale(self) -> float:
        """Units of the raw targets per unit that the model sees."""
        targets = self.data.target_standardise
        return 1.0 if targets is None else float(targets.scale)


@dataclass(frozen=True)
class Problem:
    """The data and the model of a run, by name.

    Attributes:
        data: name of the data set.
        network: name of the network.
        network_settings: settings of the network, such as `hidden: [50]`.
        likelihood: categorical; gaussian (noise learned); heteroscedastic (noise given by the network).
        prior_scale: standard deviation of the normal prior of every weight.
        temperature: T of the tempered posterior; 1 is Bayes.
        split: which split of the data set.
        train_size: number of training rows to keep; all if null.
        device: where to run: auto (a GPU if there is one), cpu, cuda, cuda:NUMBER or mps.
        threads: CPU threads; PyTorch's choice if null. Small networks gain nothing from a second thread and lose much
            to it on a busy machine. Results depend on the number by rounding, so it is one of the settings.
    """

    data: str = "digits"
    network: str = "small_cnn"
    network_settings: dict[str, Any] = field(default_factory=dict)
    likelihood: Kind = "categorical"
    prior_scale: float = 1.0
    temperature: float = 1.0
    split: int = 0
    train_size: int | None = None
    device: str = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        plain(self)
        check_text(data=self.data, network=self.network, device=self.device)
        check_kind(Mapping, "a mapping of settings", network_settings=self.network_settings)
        check_choice(get_args(Kind), likelihood=self.likelihood)
        check_scale(prior_scale=self.prior_scale)
        check_positive(temperature=self.temperature)
        check_counts(least=0, split=self.split)
        check_counts(**given(train_size=self.train_size, threads=self.threads))

    @contextmanager
    def threading(self) -> Iterator[None]:
        """Run with this problem's number of CPU threads.

        Yields:
            Nothing; the number is put back afterwards.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @property
    def place(self) -> str:
        """The device, with "auto" resolved.

        Raises:
            ValueError: if PyTorch cannot use it here.
        """
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        here = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        known = _DEVICE.fullmatch(self.device)
        if known is None:
            raise ValueError(f"`device` must be auto, cpu, cuda, cuda:NUMBER or mps; got {seen(self.device)}.")
        if int(known["number"] or 0) >= here[known["kind"] or "cuda"]:
            raise ValueError(
                f"`device` is {self.device!r}, which PyTorch {torch.__version__} does not find here. Use auto, or "
                f"install a PyTorch that supports it."
            )
        return known["kind"] or self.device

    def setup(self) -> Setup:
        """Load the data and build the model.

        Returns:
            Both, with this problem.

        Raises:
            ValueError: if a name is unknown, or likelihood and data do not go together.
        """
        from torchbayes import data

        found = data.load(self.data, split=self.split, train_size=self.train_size)
        if (self.likelihood == "categorical") != (found.task == "classification"):
            fitting = "categorical" if found.task == "classification" else "gaussian or heteroscedastic"
            raise ValueError(
                f"`likelihood` of `{self.data}`, a {found.task}, must be {fitting}; got {self.likelihood!r}."
            )
        return Setup(self, found, self.model(found))

    def model(self, data: Data) -> Model:
        """Return the model for loaded data.

        Args:
            data: the data set.

        Returns:
            The model.
        """
        from torchbayes.networks import build

        outputs = data.num_classes or int(data.train.targets[0].numel()) * (
            2 if self.likelihood == "heteroscedastic" else 1
        )
        likelihood = {
            "categorical": likelihoods.Categorical(),
            "gaussian": likelihoods.Gaussian("learned"),
            "heteroscedastic": likelihoods.HeteroscedasticGaussian(),
        }[self.likelihood]
        return Model(
            lambda: build(self.network, data.input_shape, outputs, **self.network_settings).to(self.place),
            likelihood,
            priors.Normal(self.prior_scale),
            temperature=self.temperature,
        )


def describe(settings: Any) -> Any:
    """Return settings as YAML holds them: a dataclass is `class_path` and `init_args`, as jsonargparse reads it.

    Args:
        settings: a dataclass, or what one may hold.

    Returns:
        Mappings, lists, numbers and texts.
    """
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        return {"class_path": f"torchbayes.{type(settings).__name__}", "init_args": entries(settings)}
    if isinstance(settings, Mapping):
        return {name: describe(entry) for name, entry in settings.items()}
    return [describe(s) for s in settings] if isinstance(settings, list | tuple) else settings


def entries(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as YAML holds them.

    Args:
        settings: a dataclass.

    Returns:
        name -> value.
    """
    return {f.name: describe(getattr(settings, f.name)) for f in dataclasses.fields(settings)}


def problem_in(config: Mapping[str, Any]) -> Problem:
    """Return the problem that is among the entries of a configuration.

    Args:
        config: name -> value.

    Returns:
        The problem.
    """
    return Problem(**{f.name: config[f.name] for f in dataclasses.fields(Problem) if f.name in config})


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
    write_whole(directory / CONFIG, text.encode())
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


def fit_run(
    setup: Setup,
    method: Method | Sampler,
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
        ValueError: if the directory holds a run that is not to be resumed, or one of other settings, if a method
            that starts at modes has no start, or if the start is no point posterior.
    """
    seed = as_seed(seed)
    if start is None and method.needs.start == "modes":
        raise ValueError(
            f"{type(method).__name__} starts at a mode and does not look for it. Add --start RUN, the directory of a "
            f"finished fit by MAP."
        )
    began = load_run(start)[1] if isinstance(start, Path) else start
    if isinstance(start, Path) and not isinstance(began, Point):
        raise ValueError(
            f"{start} holds a posterior of the kind {type(began).__name__}, which is no single set of weights to start "
            f"at. --start takes the directory of a fit by MAP or SWA."
        )
    if ranks is None or ranks.first:
        about = {"method": describe(method), "start": str(start) if isinstance(start, Path) else None, "seed": seed}
        with Locked(directory):
            _describe_run(directory, {**entries(setup.problem), **about}, resume=resume)
    with setup.problem.threading():
        data = tuple(setup.data.train)
        options = {"directory": directory, "resume": resume, "seed": seed, "callbacks": callbacks, "ranks": ranks}
        return fit(setup.model, data, method, start=began, **options)  # type: ignore[arg-type]


def _describe_run(directory: Path, config: dict[str, Any], *, resume: bool) -> None:
    """Write the configuration of a run, or check that it is that of the run that is there.

    Raises:
        ValueError: if the directory holds a run that is not to be resumed, or one of other settings.
    """
    path = directory / CONFIG
    found = read_config(path) if path.exists() else config
    if path.exists() and not resume:
        raise ValueError(f"{directory} already holds a run. Add --resume, or choose another --directory.")
    for name, value in config.items():
        if _any_length(found.get(name)) != _any_length(value):
            raise ValueError(
                f"{directory} holds a run of another {name} ({found.get(name)}; now {value}). "
                f"Choose another --directory, or leave the option out."
            )
    if found != config or not path.exists():
        write_config(directory, config)


def _any_length(entry: Any) -> Any:
    # a chain is the same chain however long it gets
    settings = entry.get("init_args") if isinstance(entry, Mapping) else None
    return {**entry, "init_args": {**settings, "steps": None}} if settings else entry


def load_run(directory: Path, *, unfinished: bool = False) -> tuple[Setup, Posterior]:
    """Load what `fit_run` left.

    Args:
        directory: of the run.
        unfinished: take the draws that a sampler has left so far, whether its run is over, goes on or was killed.

    Returns:
        Data and model, and the posterior.

    Raises:
        FileNotFoundError: if there is no finished run, or no draws of one.
        ValueError: if the directory holds something else.
    """
    config = read_config(directory / CONFIG)
    if "method" not in config:
        fits = sorted(str(p.parent) for p in directory.glob(f"fits/*/{CONFIG}"))
        raise ValueError(f"{directory} is not the directory of one fit. Try {' or '.join(fits) or 'another'}.")
    path = directory / POSTERIOR
    streamed = unfinished and (directory / "draws.json").is_file()
    if not streamed and not path.is_file():
        raise FileNotFoundError(
            f"{directory} has no posterior yet. Finish it: torchbayes fit --directory {shlex.quote(str(directory))} "
            f"--resume"
        )
    setup = problem_in(config).setup()
    if streamed:
        return setup, Draws(setup.model, read_draws(directory, setup.model, verify=True))
    source = as_source(setup.model, tuple(setup.data.train), config["method"]["init_args"].get("batch_size") or 1024)
    return setup, load(path, setup.model, calibration=source.inputs)

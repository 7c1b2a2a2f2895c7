"""The data and the model of a run, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from torchbayes.catalogue import models
from torchbayes.catalogue.imports import is_path
from torchbayes.catalogue.loading import load, settled
from torchbayes.checks import (
    check_counts,
    check_kind,
    check_positive,
    check_scale,
    check_text,
    given,
    optional,
    plain,
    seen,
)
from torchbayes.data import Data
from torchbayes.model import Batch, Model

# the number of a kind with only one device is dropped: "cpu:0" is "cpu"
_DEVICE = re.compile(r"(?P<kind>cpu|mps)(:0)?|cuda(:(?P<number>0|[1-9][0-9]{0,3}))?")


class Setup(NamedTuple):
    """A problem with its data loaded and its model built."""

    problem: Problem
    data: Data
    model: Model

    @property
    def target_scale(self) -> float:
        """Units of the raw targets per unit that the model sees; ValueError if each column has its own."""
        targets = self.data.target_standardise
        if targets is not None and targets.scale.numel() > 1:
            raise ValueError(
                f"`target_standardise` of {self.data.name} must have one scale for all targets; got "
                f"{targets.scale.numel()}. Divide them by one number, or leave it None."
            )
        return 1.0 if targets is None else float(targets.scale)


def with_dropout(setup: Setup, rate: float = 0.1) -> Setup:
    """Return a problem with dropout in its network, if that has the setting and it is not given; else itself."""
    problem = setup.problem
    if "dropout" in problem.network_settings or not models.takes(problem.network, "dropout"):
        return setup
    changed = replace(problem, network_settings={**problem.network_settings, "dropout": rate})
    return Setup(changed, setup.data, changed.model(setup.data))


@dataclass(frozen=True)
class Problem:
    """The data and the model of a run, by name.

    Attributes:
        data: name of the data set; or a file or folder: a table, an npz archive, a folder of images for each class, a
            Hugging Face data set; or the import path of a function that gives one, such as my_module:load.
        network: name of the network, or import path of a function that builds it from (input_shape, num_outputs) and
            the settings.
        network_settings: settings of the network, such as `hidden: [50]`.
        likelihood: name, or import path of a class or function that makes one: categorical; bernoulli (two classes,
            one output); gaussian (noise learned); heteroscedastic (noise given by the network); student_t; poisson
            (counts).
        prior_scale: scale of the prior of every weight, normal unless `prior` names another; null is 1, which methods
            that choose the scale of a normal prior by held-out rows may change.
        temperature: T of the tempered posterior; 1 is Bayes.
        split: which split of the data set.
        train_size: number of training rows to keep; all if null.
        device: where to run: auto (a GPU if there is one), cpu, cuda, cuda:NUMBER or mps.
        threads: CPU threads; PyTorch's choice if null. Small networks gain nothing from a second thread and lose much
            to it on a busy machine. Results depend on the number by rounding, so it is one of the settings.
        data_settings: settings of data of your own, such as `leave_out: [id]` of a table.
        likelihood_settings: settings of the likelihood, such as `df: 3`.
        prior: name of the prior, or import path of a class or function that makes one; or a mapping from globs of
            parameters to names, or to mappings with `name` and settings, of which the first that matches counts.
        prior_settings: settings of a single prior; `prior_scale` is the scale unless they give one.
        outputs: number of outputs of the network; as many as the likelihood needs if null.
        target: column of a table that is to be predicted.
    """

    data: str = "digits"
    network: str = "small_cnn"
    network_settings: dict[str, Any] = field(default_factory=dict)
    likelihood: str = "categorical"
    prior_scale: float | None = 1.0
    temperature: float = 1.0
    split: int = 0
    train_size: int | None = None
    device: str = "auto"
    threads: int | None = None
    data_settings: dict[str, Any] = field(default_factory=dict)
    likelihood_settings: dict[str, Any] = field(default_factory=dict)
    prior: dict[str, Any] | str = "normal"
    prior_settings: dict[str, Any] = field(default_factory=dict)
    outputs: int | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        plain(self)
        check_text(data=self.data, network=self.network, likelihood=self.likelihood, device=self.device)
        optional(check_text, target=self.target)
        object.__setattr__(self, "data", settled(self.data))
        check_kind(
            Mapping,
            "a mapping of settings",
            network_settings=self.network_settings,
            data_settings=self.data_settings,
            likelihood_settings=self.likelihood_settings,
            prior_settings=self.prior_settings,
        )
        models.check_known("likelihood", self.likelihood)
        models.check_rules(self.prior)
        optional(check_scale, prior_scale=self.prior_scale)
        check_positive(temperature=self.temperature)
        check_counts(least=0, split=self.split)
        optional(check_counts, train_size=self.train_size, threads=self.threads, outputs=self.outputs)

    @contextmanager
    def threading(self) -> Iterator[None]:
        """Run with this problem's number of CPU threads, and restore the former number afterwards."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @property
    def place(self) -> str:
        """The device, with "auto" resolved. Raises ValueError if PyTorch cannot use it here."""
        return place_of(self.device)

    def load(self) -> Data:
        """Load the data."""
        settings = {**self.data_settings, **given(target=self.target)}
        return load(self.data, settings, split=self.split, train_size=self.train_size)

    def setup(self) -> Setup:
        """Load the data and build the model.

        Raises ValueError if a name is unknown, likelihood and data do not go together, or the network has more outputs
        than there are classes.
        """
        data = self.load()
        prepared = models.data_for(self.likelihood, data)
        return Setup(self, prepared, self.model(prepared))

    def model(self, data: Data) -> Model:
        """Return the model for loaded data. A ValueError if the network has more outputs than there are classes."""
        outputs = self.outputs or models.likelihood_outputs(self.likelihood, data)
        settings = {**models.measured(self.network, data), **self.network_settings}
        model = Model(
            lambda: models.build_network(self.network, data.input_shape, outputs, settings=settings).to(self.place),
            models.build_likelihood(self.likelihood, self.likelihood_settings),
            models.build_prior(self.prior, self.prior_settings, self.prior_scale),
            temperature=self.temperature,
        )
        if is_path(self.network) and data.classes and self.outputs is None:
            _check_outputs(self.network, model, data)
        return model


def place_of(device: str) -> str:
    """Return a device by its name, with "auto" resolved. Raises ValueError if PyTorch cannot use it here."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    here = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise ValueError(f"`device` must be auto, cpu, cuda, cuda:NUMBER or mps; got {seen(device)}.")
    if int(match["number"] or 0) >= here[match["kind"] or "cuda"]:
        raise ValueError(
            f"`device` is {device!r}, which PyTorch {torch.__version__} does not find here. Use auto, or install a "
            f"PyTorch that supports it."
        )
    return match["kind"] or device


def _check_outputs(name: str, model: Model, data: Data) -> None:
    """Check that a network of the user has an output for each class; labels alone would not reveal further ones."""
    outputs = model.check(Batch(*(rows[:2].to(model.network.device) for rows in data.train)))
    if outputs.shape[-1] > len(data.classes):
        raise ValueError(
            f"{name} gives {outputs.shape[-1]} outputs, and {data.name} has {len(data.classes)} classes. It is called "
            f"with the number of outputs that are needed, as its second argument."
        )

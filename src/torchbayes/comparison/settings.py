"""What is compared on what: methods by name, and which of them share a fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torchbayes.catalogue.data import defaults
from torchbayes.catalogue.entries import MethodEntry, Settings
from torchbayes.catalogue.methods import METHODS, check_method, entry_of
from torchbayes.catalogue.problem import Problem
from torchbayes.checks import check_kind, check_name, plain, seen
from torchbayes.data import CORRUPTIONS
from torchbayes.methods.choices import is_open

REFERENCE = "reference"
"""The name of a reference read from a directory, which is also the label of its row."""
_NAME = re.compile(r"\w[\w .+-]{0,79}(?<![ .])")  # folder names that every file system allows


@dataclass(frozen=True)
class Comparison:
    """What is compared on what; everything that decides the numbers.

    A name of the catalogue, such as "swag", stands for settings of that entry's class. Any other name is free, so that
    a method can be compared several times with other settings: `{"swag": SWAG(), "wide swag":
    SWAG(averaging_lr=0.2)}`.

    Attributes:
        problem: data, network, likelihood and prior.
        methods: name -> settings of the method, in the order of the table; the usual ones for the data if empty.
        corruptions: names of the image corruptions, each at severities 1 to 5; all by default for images.
        rows: test images that are corrupted, and images of each foreign set.
        draws: functions drawn from SWAG and from MultiSWAG, a multiple of the members; samplers use all their draws.
        reference: directory of a fit, such as a long HMC run, or name of a method, that all methods are compared with;
            `hmc` by default if it is among the methods.
        seed: seed of fits, draws and corruptions.
        starts: name -> settings of fits that methods start from and that are not compared themselves; by default the
            first member of a compared ensemble, else the usual settings for the data. Only a fit of a set length is
            shared: if held-out rows choose its length, each method fits its own start, for which they choose more.
    """

    problem: Problem
    methods: Mapping[str, Settings] = field(default_factory=dict)
    corruptions: tuple[str, ...] = CORRUPTIONS
    rows: int = 1000
    draws: int = 30
    reference: str | None = None
    seed: int = 0
    starts: Mapping[str, Settings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check everything that can be checked before hours of fitting."""
        plain(self)
        check_kind(Mapping, "a mapping from names to settings", methods=self.methods, starts=self.starts)
        for option, table in (("methods", self.methods), ("starts", self.starts)):
            for name, settings in table.items():
                check_name_of(option, name)
                _check_settings(option, name, settings)
        if not self.methods:
            usual = _usual(self.problem)
            object.__setattr__(self, "methods", {name: usual[name] for name in usual.methods})
        object.__setattr__(self, "starts", self._starts())
        _check_apart([*self.methods, *self.starts])
        for corruption in self.corruptions:
            check_name("corruption", corruption, CORRUPTIONS)
        if self.rows < 1:
            raise ValueError(f"a comparison needs at least one row; got `rows` {self.rows}.")
        for name, settings in self.methods.items():
            if self.entry(name).predicts == "drawn":
                _check_draws(self.draws, name, settings.members)

    def _starts(self) -> dict[str, Settings]:
        """Return the settings of the fits that methods start at and that are not compared."""
        starts = (entry_of(name, settings).start for name, settings in self.methods.items())
        starts_of = {}
        for name in dict.fromkeys(start for start in starts if start is not None and start not in self.methods):
            many = METHODS[name].first_of
            if name in self.starts:
                starts_of[name] = self.starts[name]
            elif many is not None and many in self.methods:
                starts_of[name] = replace(self.methods[many], members=1)
            else:
                starts_of[name] = _usual(self.problem)[name]
        return {name: settings for name, settings in starts_of.items() if _is_set(settings)}

    def settings(self, name: str) -> Settings:
        """Return the settings of a method that is compared or that others start at."""
        return self.methods[name] if name in self.methods else self.starts[name]

    def entry(self, name: str) -> MethodEntry:
        """Return the entry that tells how a method is fitted and how it predicts."""
        entry = entry_of(name, self.settings(name))
        start = {**self.starts, **self.methods}.get(str(entry.start))
        return entry if start is not None and _is_set(start) else replace(entry, start=None)

    @property
    def compared_with(self) -> str | None:
        """Name of the reference's outcome; None without a reference."""
        if self.reference is not None:
            return self.reference if self.reference in self.methods else REFERENCE
        return next((name for name in self.methods if name in METHODS and METHODS[name].is_reference), None)

    @property
    def directory_of_reference(self) -> str | None:
        """Directory of a reference that is not fitted here."""
        return self.reference if self.compared_with == REFERENCE else None

    def fit_of(self, name: str) -> tuple[str, Settings]:
        """Return the method that names the fit a method uses, and its settings.

        A single network is the first member of an ensemble with the same settings if there is one, else a fit of its
        own; SWAG likewise.
        """
        first_of, settings = self.entry(name).first_of, self.settings(name)
        for fit_name, many in self.methods.items():
            if first_of and self.entry(fit_name).name == first_of and replace(many, members=1) == settings:
                return fit_name, many
        return name, settings


def _is_set(settings: Settings) -> bool:
    """Return whether the length of a fit is fixed, and not chosen by held-out rows."""
    return not is_open(settings)


def _usual(problem: Problem) -> Any:
    return defaults(problem.data, problem.data_settings, problem.target).of(problem)


def check_name_of(option: str, name: Any) -> None:
    """Raise ValueError for a name in "methods" or "starts" that cannot be a folder, or is an option."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"a name in `{option}` must be letters, digits, spaces and . _ + -; got {seen(name)}.")
    taken = {f.name for kind in (Comparison, Problem) for f in fields(kind)}
    if key_of(name) in taken | {
        REFERENCE,
        "config",
        "directory",
        "help",
        "overwrite",
        "print_config",
        "resume",
        "trust",
    }:
        raise ValueError(f"{name!r} is the name of an option and cannot be one in `{option}`. Choose another.")


def _check_settings(option: str, name: str, settings: Any) -> None:
    """Check that the settings of a method are of the class of the entry with its name."""
    check_method(f"`{option}` of {name!r}", settings)
    kind = METHODS[name].kind if name in METHODS else type(settings)
    if type(settings) is not kind:
        raise TypeError(
            f"{name!r} stands for {kind.__name__} in `{option}`; got settings of {type(settings).__name__}. Choose "
            f"another name for these."
        )


def key_of(name: str) -> str:
    """Return a name in the form that options use: `--wide_swag.rank` for "wide swag"."""
    return re.sub(r"\W", "_", name)


def _check_apart(names: list[str]) -> None:
    """Check that names are different folders and options everywhere, so not by case or punctuation alone."""
    seen_: dict[str, str] = {}
    for name in names:
        first_name = seen_.setdefault(key_of(name).casefold(), name)
        if first_name != name:
            raise ValueError(f"the names {first_name!r} and {name!r} differ by case or signs alone. Rename one.")


def _check_draws(draws: int, name: str, members: int) -> None:
    """Check that all members have equally many draws."""
    if draws < 1 or draws % members:
        low, high = draws // members * members, (draws // members + 1) * members
        label = METHODS[name].label if name in METHODS else name
        raise ValueError(
            f"`draws` must be a multiple of {label}'s {members} members; got {draws}. "
            f"Try {f'{low} or ' if low > 0 else ''}{high}."
        )

"""Catalogue entries of methods and data sets; entries of other things are in `named.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchbayes.catalogue.named import Entry, LikelihoodEntry, NetworkEntry, PriorEntry
from torchbayes.catalogue.usual import Usual, plain_settings

__all__ = [
    "DataEntry",
    "Entry",
    "LikelihoodEntry",
    "Look",
    "MethodEntry",
    "NetworkEntry",
    "PriorEntry",
    "Settings",
]

Settings = Any
"""A method: the frozen settings of one way to infer."""


@dataclass(frozen=True)
class Look:
    """How one method is drawn in every figure.

    Attributes:
        colour: hexadecimal colour.
        marker: matplotlib marker, a second cue beside the colour.
    """

    colour: str
    marker: str


@dataclass(frozen=True)
class MethodEntry(Entry):
    """One method as it is compared: a class with settings, and its place among the others.

    Attributes:
        label: in tables and figures.
        usual: its settings for a data set in a comparison; its own defaults if None.
        look: colour and marker; None for a colour that no other method of a figure has.
        also: other names by which figures know it.
        plain: settings that define it where nothing was chosen for the data, such as five members.
        alone: whether a fit by itself has its own defaults instead.
        start: the entry at whose posterior it starts; None if it starts afresh.
        first_of: the entry whose first member is this method's fit.
        predicts: "drawn", by functions drawn from a continuous posterior; "own", by all members or draws it has;
            "linearised", in closed form.
        by_member: whether a comparison evaluates each member alone too.
        is_reference: whether the others are compared with it.
        parts: what a network must have for it, beside weights; "rectifiers": only linear layers and ReLUs;
            "adapters": factors of low rank among the random weights.
        cost: its cost, in one sentence.
        length: length of a run with some settings, in words; None if it is a number of epochs or of steps.
        small: settings that a run of five epochs or a dozen steps needs; tests of all methods use them.
    """

    label: str
    usual: Callable[[Usual], Settings] | None = None
    look: Look | None = None
    also: tuple[str, ...] = ()
    plain: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False
    start: str | None = None
    first_of: str | None = None
    predicts: Literal["drawn", "own", "linearised"] = "own"
    by_member: bool = False
    is_reference: bool = False
    parts: Literal["any", "dropout", "batch norm", "last layer", "linear weights", "rectifiers", "adapters"] = "any"
    cost: str = ""
    length: Callable[[Settings], str] | None = None
    small: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, usual: Usual) -> Settings:
        """Return its settings for a data set: those that were chosen there, else its own defaults on usual rows."""
        if self.usual is None or usual.budget is None:
            return plain_settings(self.kind, usual, self.plain)
        return self.usual(usual)


@dataclass(frozen=True)
class DataEntry(Entry):
    """One data set.

    Attributes:
        usual: its usual problem and budget; None if no network here can take it.
    """

    usual: Callable[[str], Usual] | None = None

"""What an entry of the catalogue says of one method, data set, network, likelihood or prior.

An entry is data: names, sentences, an import path, and small functions of settings. What it is of is imported when it
is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torchbayes.catalogue.imports import load_path

if TYPE_CHECKING:
    from torchbayes.catalogue.usual import Usual
    from torchbayes.data import Data

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
class Entry:
    """What every entry says.

    Attributes:
        name: by which it is asked for.
        line: one line about it.
        path: import path of its class or function, `MODULE:ATTRIBUTE`.
    """

    name: str
    line: str
    path: str

    def load(self) -> Any:
        """Return the class or function."""
        return load_path(self.path)


@dataclass(frozen=True)
class MethodEntry(Entry):
    """One method as it is compared: a class with settings, and its place among the others.

    Attributes:
        label: in tables and figures.
        usual: settings that are usual for a data set, as a comparison takes them.
        look: colour and marker; None for a colour that no other method of a figure has.
        also: other names by which figures know it.
        plain: settings that make it what it is where nothing was chosen for the data, such as five members.
        alone: settings of a fit by itself, where these are others than `usual`.
        start: the entry at whose posterior it starts; None if it starts afresh.
        first_of: the entry whose fit serves it, as the first of that one's members.
        predicts: "drawn", by functions drawn from a continuous posterior; "own", by all members or draws it has;
            "linearised", in closed form.
        by_member: whether a comparison evaluates each member alone too.
        is_reference: whether the others are compared with it.
        parts: what a network must have for it, beside weights; "rectifiers": layers that are linear, and ReLUs, alone.
        cost: what it costs, as one sentence.
        small: settings that a run of five epochs or a dozen steps needs, by which the laws of all methods are tested.
    """

    label: str
    usual: Callable[[Usual], Settings]
    look: Look | None = None
    also: tuple[str, ...] = ()
    plain: Mapping[str, Any] = field(default_factory=dict)
    alone: Callable[[Usual], Settings] | None = None
    start: str | None = None
    first_of: str | None = None
    predicts: Literal["drawn", "own", "linearised"] = "own"
    by_member: bool = False
    is_reference: bool = False
    parts: Literal["any", "dropout", "batch norm", "last layer", "linear weights", "rectifiers"] = "any"
    cost: str = ""
    small: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataEntry(Entry):
    """One data set.

    Attributes:
        usual: problem and budget that are usual for it; None where no network here can take it.
    """

    usual: Callable[[str], Usual] | None = None


@dataclass(frozen=True)
class NetworkEntry(Entry):
    """One network.

    Attributes:
        kernel: whether the library has a kernel for it.
        plan: how a stack of members is run without the kernel.
    """

    kernel: bool = False
    plan: Literal["loop", "vmap"] = "loop"


@dataclass(frozen=True)
class LikelihoodEntry(Entry):
    """One likelihood.

    Attributes:
        task: of the data that it is for; None for any.
        outputs: the number of network outputs that it needs.
        settings: of its class, where these are others than the defaults of the class.
        prepare: gives data with their targets in the form that it takes, and raises a ValueError where they have none;
            None where it takes any data of the task as they are.
    """

    task: Literal["classification", "regression"] | None
    outputs: Callable[[Data], int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Data], Data] | None = None


@dataclass(frozen=True)
class PriorEntry(Entry):
    """One prior of every weight."""

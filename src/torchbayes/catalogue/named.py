"""Catalogue entries of anything that has a name, and of networks, likelihoods and priors in particular.

An entry is data: names, sentences, a class or function, and small functions of settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchbayes.data import Data


@dataclass(frozen=True)
class Entry:
    """What every entry has.

    Attributes:
        name: of the object.
        line: one line about it.
        kind: its class or function.
    """

    name: str
    line: str
    kind: Any


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
        task: task of its data; None for any.
        outputs: the number of network outputs that it needs.
        settings: settings that differ from the defaults of its class.
        prepare: returns data with targets in the form that it takes, and raises ValueError if they have none; None if
            it takes any data of the task as they are.
    """

    task: Literal["classification", "regression"] | None
    outputs: Callable[[Data], int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Data], Data] | None = None


@dataclass(frozen=True)
class PriorEntry(Entry):
    """One prior of every weight."""

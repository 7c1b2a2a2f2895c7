"""Nonsense by kind of argument: what must be refused wherever a count, a scale, a name, a tensor ... is meant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

NAN, INF = math.nan, math.inf
_NO_NUMBER = (NAN, INF, "a lot", None, [1], True, int)

COUNT = (*_NO_NUMBER, -1, 0, 1.5, 2.0, 2**63)
WHOLE = (*_NO_NUMBER, -1, 1.5, 2.0, 2**63)
SEED = (*_NO_NUMBER, -1, 1.5, 2**70)
POSITIVE = (*_NO_NUMBER, -INF, -1.0, 0.0, 10**400)
NOT_NEGATIVE = (*_NO_NUMBER, -INF, -1.0, 10**400)
REAL = (*_NO_NUMBER, -INF, 10**400, -(10**400))
SHARE = (*_NO_NUMBER, -0.1, 1.0, 1.5, 10**400)
OPEN_SHARE = (*SHARE, 0.0)
CLOSED_SHARE = (*_NO_NUMBER, -0.1, 1.5)
FLAG = ("yes", None, 2, NAN, [True])
WORD = ("nonsense", "", None, 3, ["nonsense"], str)
NAMED = (None, 3, NAN, ["name"], str)
PATH = (None, 3, NAN, ["x"], str)
OBJECT = (None, "text", 3, NAN, ["text"], object)
MAPPING = (None, "text", 3, NAN, dict)
FUNCTION = (None, "text", 3, NAN)


def but(kind: tuple[Any, ...], *allowed: Any) -> tuple[Any, ...]:
    """A kind of nonsense without what is allowed after all, such as None; classes are compared by identity."""
    return tuple(v for v in kind if not any(v is a or (type(v) is type(a) and v == a) for a in allowed))


def maybe(kind: tuple[Any, ...]) -> tuple[Any, ...]:
    """A kind where None is allowed."""
    return but(kind, None)


def tensors(*shapes: tuple[int, ...], of: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """No tensor at all, and float tensors of wrong shapes."""
    return (None, "text", NAN, *(torch.zeros(shape, dtype=of) for shape in shapes))


@dataclass(frozen=True)
class Case:
    """A public name, a call of it that is good, and for each argument what must be refused.

    Attributes:
        call: the function or class.
        good: keyword arguments of a call that works.
        wrong: argument -> values that must be refused.
        free: arguments that take anything of their type, with the reason.
        named: argument -> words of which a message must have one, where that is not the argument in backticks.
    """

    call: Callable[..., Any]
    good: Callable[[], Mapping[str, Any]] = dict
    wrong: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    free: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# data, and what is inside data, go by plain words
WORDS = {
    "data": ("data", "inputs", "targets", "class labels", "batch"),
    "on": ("data", "inputs", "targets", "class labels", "batch"),
    "batches": ("batch", "inputs", "targets"),
    "inputs": ("inputs", "batch"),
    "targets": ("targets", "class labels"),
    "log": ("log",),
}
CHOICE_OF_DRAWS = (*but(COUNT, None), 3)  # of a posterior with two members

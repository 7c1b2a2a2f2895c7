"""How a refusal is judged: its type, where it comes from, and whether it names the argument and the value."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import torchbayes
from tests.refusals.nonsense import WORDS, Case

_PACKAGE = str(Path(torchbayes.__file__).parent)


def arguments(table: Mapping[str, Case]) -> list[Any]:
    """Every argument of every call of a table, as parameters of a test."""
    return [
        pytest.param(name, argument, id=f"{name}-{argument}") for name, case in table.items() for argument in case.wrong
    ]


def check_table(case: Case) -> None:
    """The good call works, and every argument has its nonsense or a reason why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # good does not mean wise
        case.call(**case.good())
    taken = set(inspect.signature(case.call).parameters)
    assert taken == {*case.wrong, *case.free}
    assert not set(case.wrong) & set(case.free)


def check_refused(case: Case, argument: str) -> None:
    """Every call with one argument replaced by nonsense ends in a message of this library that says what is wrong."""
    said = {_label(value): _fault(case, argument, value) for value in case.wrong[argument]}
    assert not {label: fault for label, fault in said.items() if fault}


def _fault(case: Case, argument: str, value: Any) -> str:
    """What is wrong with how a malformed call ends; empty if it is refused properly."""
    try:
        case.call(**{**case.good(), argument: value})
    except (ValueError, TypeError, FileNotFoundError) as error:
        said, where = str(error), traceback.extract_tb(error.__traceback__)[-1].filename
    except Exception as error:  # whatever it is, it is not what a user should see
        return f"{type(error).__name__}: {error}"
    else:
        return "accepted"
    words = case.named.get(argument) or WORDS.get(argument) or (f"`{argument}`", f"`{argument}=", f"`{argument}[")
    if not where.startswith(_PACKAGE):
        return f"said by {where}: {said}"
    if not any(word in said for word in words):
        return f"does not name {argument}: {said}"
    shown = isinstance(value, str | int | float | type | Tensor)  # others are too long for a message
    if shown and not any(seen in said for seen in _seen(value)):
        return f"does not show the value: {said}"
    return "" if said.endswith((".", "?")) else f"has no end: {said}"


def _seen(value: Any) -> list[str]:
    """What a message may show of a value: itself, or its shape, or its type."""
    if isinstance(value, Tensor | np.ndarray):
        bad = "NaN", "nan", "infinite", "empty", "no rows"
        within = [str(value.tolist()), *(f"{v:g}" for v in value.flatten().tolist()[:1])]
        return [str(tuple(value.shape)), str(value.dtype), *bad, *within, *(f" {size}" for size in value.shape)]
    if isinstance(value, type):
        return [value.__name__]
    number = [f"{value:,}"] if isinstance(value, int | float) else []
    number += [f"{value:g}"] if number and abs(value) < 1e308 else []
    return [repr(value), str(value), type(value).__name__, *number, "no row axis", "shape ()"]


def _label(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    return value.__name__ if isinstance(value, type) else repr(value)[:40]

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


def refusals(table: Mapping[str, Case]) -> list[Any]:
    """Every malformed call of a table, as parameters of a test."""
    return [
        pytest.param(name, argument, value, id=f"{name}-{argument}-{_label(value)}")
        for name, case in table.items()
        for argument, values in case.wrong.items()
        for value in values
    ]


def check_table(case: Case) -> None:
    """The good call works, and every argument has its nonsense or a reason why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # good does not mean wise
        case.call(**case.good())
    arguments = set(inspect.signature(case.call).parameters)
    assert arguments == {*case.wrong, *case.free}
    assert not set(case.wrong) & set(case.free)


def refused(case: Case, argument: str, value: Any) -> None:
    """The call with one argument replaced by nonsense ends in a message of this library that says what is wrong."""
    with pytest.raises((ValueError, TypeError, FileNotFoundError)) as caught:
        case.call(**{**case.good(), argument: value})
    said, where = str(caught.value), traceback.extract_tb(caught.value.__traceback__)[-1].filename
    assert where.startswith(_PACKAGE), f"said by {where}: {said}"
    words = case.named.get(argument) or WORDS.get(argument) or (f"`{argument}`", f"`{argument}=", f"`{argument}[")
    assert any(word in said for word in words), f"does not name {argument}: {said}"
    if isinstance(value, str | int | float | type | Tensor):  # others are too long to be shown
        assert any(seen in said for seen in _seen(value)), f"does not show {value!r}: {said}"
    assert said.endswith((".", "?")), said


def _seen(value: Any) -> list[str]:
    """What a message may show of a value: itself, or its shape, or its type."""
    if isinstance(value, Tensor | np.ndarray):
        bad = "NaN", "nan", "infinite", "empty", "no rows"
        within = (f"{v:g}" for v in value.flatten().tolist()[:1])
        return [str(tuple(value.shape)), str(value.dtype), *bad, *within, *(f" {size}" for size in value.shape)]
    if isinstance(value, type):
        return [value.__name__]
    number = [f"{value:g}", f"{value:,}"] if isinstance(value, int | float) else []
    return [repr(value), str(value), type(value).__name__, *number, "no row axis", "shape ()"]


def _label(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    return value.__name__ if isinstance(value, type) else repr(value)[:40]

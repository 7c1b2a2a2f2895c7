"""What settings may be, declared once: by the annotation of a field, and by its name.

A whole number counts something, so it is at least 1. Any other number is finite and above 0. A word is one of its
Literal. A name that means something else does so in the whole package, and stands in a table here. A rule of a single
class stands at its field: `scale: float | None = field(default=None, metadata=NOT_NEGATIVE)`. Defaults are valid.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from torchbayes.checks import (
    check_choice,
    check_counts,
    check_each,
    check_flags,
    check_not_negative,
    check_numbers,
    check_positive,
    check_scale,
    check_share,
    plain,
)

__all__ = ["NOT_NEGATIVE", "Checked", "check_settings", "kinds_of"]

Check = Callable[..., None]


def _fraction(**values: Any) -> None:
    for check in (check_share, check_positive):
        check(**values)


_LEAST = {"burn_in": 0, "halvings": 0, "extra": 0, "first": 0, "prior_draws": 2, "bins": 2}
_NUMBERS: dict[str, Check] = {
    "loc": check_numbers,
    **dict.fromkeys(("scale", "gain", "bias_scale", "lengthscale"), check_scale),  # they are squared
    **dict.fromkeys(("alpha", "end", "final", "noise_estimate", "volume_weight", "weight_decay"), check_not_negative),
    **dict.fromkeys(("betas", "burn_in", "decay", "exploration", "hessian_decay", "jitter"), check_share),
    **dict.fromkeys(("label_smoothing", "momentum", "warmup"), check_share),
    **dict.fromkeys(("adversarial", "target_acceptance"), _fraction),
}
NOT_NEGATIVE: Mapping[str, Any] = MappingProxyType({"check": check_not_negative, "least": 0})


class Checked:
    """A base of frozen dataclasses whose fields are settings and nothing else: they are checked as one is made."""

    def __post_init__(self) -> None:
        check_settings(self)


def check_settings(settings: Any) -> None:
    """Check the fields of a frozen dataclass, in its `__post_init__`, and turn their numbers into Python's own.

    Fields of other kinds (objects, functions, tensors) are left to the class.

    Raises:
        ValueError: if a field is not what its annotation and its name say.
    """
    plain(settings)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if type(value) is not type(field.default) or value != field.default:
            _check(field, kinds_of(type(settings)).get(field.name, ()), value)


@cache
def kinds_of(settings: type) -> dict[str, tuple[Any, ...]]:
    """Return, for each field, what its annotation is a union of; nothing for code that is in no module, as in pages."""
    try:
        hints = typing.get_type_hints(settings)
    except NameError:
        return {}
    union = {name: get_origin(hint) in {UnionType, typing.Union} for name, hint in hints.items()}
    return {name: get_args(hint) if union[name] else (hint,) for name, hint in hints.items()}


def _check(field: dataclasses.Field[Any], kinds: tuple[Any, ...], value: Any) -> None:
    if value is None and NoneType in kinds:
        return
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    tuples = [get_args(kind) for kind in kinds if get_origin(kind) is tuple]
    simple = {kind for kind in kinds if get_origin(kind) not in {Literal, tuple}} - {NoneType}
    numbers = simple.union(*tuples) - {Ellipsis}
    if words and (isinstance(value, str) or not numbers):
        if str in kinds:
            return
        check: Check = partial(check_choice, words)
    elif numbers == {bool}:
        check = check_flags
    elif numbers and numbers <= {int, float}:
        count: Check = partial(check_counts, least=field.metadata.get("least", _LEAST.get(field.name, 1)))
        number: Check = field.metadata.get("check", _NUMBERS.get(field.name, check_positive))
        check = count if numbers == {int} else number
        if tuples and (isinstance(value, tuple) or not simple):
            check = partial(check_each, check, length=None if Ellipsis in tuples[0] else len(tuples[0]))
    else:
        return
    check(**{field.name: value})

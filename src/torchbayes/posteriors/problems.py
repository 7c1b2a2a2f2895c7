"""What is known to be wrong with a result, and the one place where the verbs that use it say so."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_GENERATED = "<string>"  # where the constructors of dataclasses come from
_LOOKED_AT = 1000


class ProblemWarning(UserWarning):
    """A result is used of which it is known that it should not be trusted."""


def warn_of(problems: Sequence[str], what: str = "this posterior") -> None:
    """Warn, in one line, if there are problems.

    The warning points at the caller's own line outside the package, so that Python shows it once for that line.

    Args:
        problems: sentences without a full stop, such as "chain 2 never moved"; nothing happens if there are none.
        what: what they are problems of.
    """
    if problems:
        text = f"{what} should not be trusted: {'; '.join(problems)}."
        warnings.warn(text, ProblemWarning, stacklevel=_levels_to_caller())


def checked(check: Callable[[], Sequence[str]]) -> tuple[Sequence[str], str]:
    """Return what a check of a result finds, and the exception that ended the check, in words; empty if none did.

    A check may meet networks and data that nobody thought of, and must not take the result with it.

    Args:
        check: returns the problems.
    """
    try:
        return check(), ""
    except Exception as error:
        first = (str(error).splitlines() or [""])[0].rstrip(".: ")
        return (), f"{type(error).__name__}: {first}"


def warn_unchecked(raised: str, what: str = "this posterior") -> None:
    """Warn if the check of a result ended with an exception; to be said once the result is safe.

    Args:
        raised: the exception, as `checked` gives it; nothing happens if it is empty.
        what: what was checked.
    """
    if raised:
        text = f"{what} is complete, but whether it can be trusted could not be checked ({raised}). Look at the log."
        warnings.warn(text, stacklevel=_levels_to_caller())


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return a problem if what defines a posterior, as `Posterior.tensors` gives it, holds NaN or infinite numbers.

    Args:
        tensors: by name; of one with more than 1,000 rows for a member, such as draws, as many are looked at.
    """
    for name, tensor in tensors.items():
        for m, part in enumerate(tensor.unbind() if tensor.ndim > 1 else [tensor]):
            rows = part[:: -(-len(part) // _LOOKED_AT)] if part.ndim > 1 and len(part) else [part]
            if not all(bool(torch.isfinite(row).all()) for row in rows):
                return [f"`{name}` of member {m} is not finite (fit again at smaller steps)"]
    return []


def _levels_to_caller() -> int:
    """Return how many frames above the function that asks the first frame outside the package is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, _GENERATED)):
        level, frame = level + 1, frame.f_back
    return level

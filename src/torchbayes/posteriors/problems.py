"""Known problems of results, and the one place where functions that use a result warn of them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_GENERATED = "<string>"  # the file name of generated dataclass constructors
_LOOKED_AT = 1000


class ProblemWarning(UserWarning):
    """A result is used that is known not to be trustworthy."""


# each text once in a process, and not again by every verb; behind all filters of the user
warnings.simplefilter("once", ProblemWarning, append=True)


def warn_of(problems: Sequence[str], what: str = "this posterior") -> None:
    """Warn, in one line, if there are problems.

    The warning points at the caller's line outside the package. Python shows each text once, whichever verbs use the
    result, unless filters of the user say something else.

    Args:
        problems: sentences without a full stop, such as "chain 2 never moved"; nothing happens if there are none.
        what: what has the problems.
    """
    if problems:
        text = f"{what} should not be trusted: {'; '.join(problems)}."
        warnings.warn(text, ProblemWarning, stacklevel=_levels_to_caller())


def checked(check: Callable[[], Sequence[str]]) -> tuple[Sequence[str], str]:
    """Return the problems that a check of a result finds, and the exception that ended it, in words; empty if none did.

    A check may meet unforeseen networks and data, and must not lose the result.

    Args:
        check: returns the problems.
    """
    try:
        return check(), ""
    except Exception as error:
        first = (str(error).splitlines() or [""])[0].rstrip(".: ")
        return (), f"{type(error).__name__}: {first}"


def warn_unchecked(raised: str, what: str = "this posterior") -> None:
    """Warn if the check of a result ended with an exception; to be called once the result is saved.

    Args:
        raised: the exception, as `checked` returns it; nothing happens if it is empty.
        what: what was checked.
    """
    if raised:
        text = f"{what} is complete, but whether it can be trusted could not be checked ({raised}). Look at the log."
        note(text)


def note(text: str) -> None:
    """Warn at the caller's line outside the package.

    Args:
        text: whole sentences.
    """
    warnings.warn(text, stacklevel=_levels_to_caller())


def is_finite(tensor: Tensor) -> bool:
    """Return whether every element is finite, without the memory that `torch.isfinite` needs: twice the tensor's."""
    return not tensor.numel() or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())  # NaN where one is


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return a problem if the tensors that define a posterior, as `Posterior.tensors` gives them, are not all finite.

    Args:
        tensors: by name; of one with more than 1,000 rows per member, such as draws, 1,000 are checked.
    """
    for name, tensor in tensors.items():
        for m, part in enumerate(tensor.unbind() if tensor.ndim > 1 else [tensor]):
            rows = part[:: -(-len(part) // _LOOKED_AT)] if part.ndim > 1 and len(part) else [part]
            if not all(map(is_finite, rows)):
                return [f"`{name}` of member {m} is not finite (fit again at smaller steps)"]
    return []


def _levels_to_caller() -> int:
    """Return how many frames the first one outside the package is above the calling function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, _GENERATED)):
        level, frame = level + 1, frame.f_back
    return level

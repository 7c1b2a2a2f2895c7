"""Known problems of results, and the only place where functions that use a result warn of them."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
from torch import Tensor

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_GENERATED = "<string>"  # the file name of generated dataclass constructors
_DECORATED = f"{Path(torch.__file__).parent}{os.sep}"  # functions under `torch.no_grad` are called from there
_LOOKED_AT = 1000


class ProblemWarning(UserWarning):
    """A result is used although it is known not to be trustworthy."""


# Shows each text once per process, not once per function that uses the result; filters of the user come first.
warnings.simplefilter("once", ProblemWarning, append=True)


_NAME: ContextVar[str] = ContextVar("name", default="")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Let warnings inside the `with` begin with the name of what they are about, for verbs that look at several."""
    token = _NAME.set(name)
    try:
        yield
    finally:
        _NAME.reset(token)


def with_name(text: str) -> str:
    """Return the text of a warning, behind the name of what it is about if a verb looks at several: see `naming`."""
    return f"{_NAME.get()}: {text}" if _NAME.get() else text


def warn_of(problems: Sequence[str], subject: str = "this posterior") -> None:
    """Warn in one line of the problems of `subject`, if there are any: clauses such as "chain 2 never moved".

    The warning points at the caller's line outside the package. Python shows each text once, whichever functions
    use the result, unless filters of the user say otherwise.
    """
    if problems:
        text = f"{subject} should not be trusted: {'; '.join(problems)}."
        warnings.warn(with_name(text), ProblemWarning, stacklevel=_levels_to_caller())


def checked(check: Callable[[], Sequence[str]]) -> tuple[Sequence[str], str]:
    """Return the problems that `check` finds in a result, and in words the exception that ended it, else "".

    A check may meet unforeseen networks and data, and its failure must not lose the result.
    """
    try:
        return check(), ""
    except Exception as error:
        first = (str(error).splitlines() or [""])[0].rstrip(".: ")
        return (), f"{type(error).__name__}: {first}"


def warn_unchecked(raised: str, subject: str = "this posterior") -> None:
    """Warn if `checked` returned an exception; call this once the result is saved."""
    if raised:
        text = f"{subject} is complete, but whether it can be trusted could not be checked ({raised}). Look at the log."
        note(text)


def note(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, in whole sentences, at the caller's line outside the package."""
    warnings.warn(with_name(text), category, stacklevel=_levels_to_caller())


def is_finite(tensor: Tensor) -> bool:
    """Return whether every element is finite; `torch.isfinite` on the tensor would need twice its memory."""
    # A sum is finite only if every element is, but may overflow. Minimum and maximum are NaN if an element is.
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return a problem if tensors that define a posterior, as `Posterior.tensors` gives them, are not all finite.

    Of a tensor with more than 1,000 rows per member, such as draws, 1,000 are checked.
    """
    for name, tensor in tensors.items():
        for m, member in enumerate(tensor.unbind() if tensor.ndim > 1 else [tensor]):
            rows = member[:: -(-len(member) // _LOOKED_AT)] if member.ndim > 1 and len(member) else [member]
            if not all(map(is_finite, rows)):
                return [f"`{name}` of member {m} is not finite (fit again at smaller steps)"]
    return []


def _levels_to_caller() -> int:
    """Return how many frames above the calling function the first one outside the package is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, _GENERATED, _DECORATED)):
        level, frame = level + 1, frame.f_back
    return level

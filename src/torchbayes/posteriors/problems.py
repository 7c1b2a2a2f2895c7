"""What is known to be wrong with a result, and the one place where the verbs that use it say so."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

_PACKAGE, _GENERATED = str(Path(__file__).parents[1]), "<string>"  # where the constructors of dataclasses come from


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


def _levels_to_caller() -> int:
    """Return how many frames above `warn_of` the first frame outside the package is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, _GENERATED)):
        level, frame = level + 1, frame.f_back
    return level

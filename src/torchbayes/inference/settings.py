"""Checks of method settings, in one voice."""

from __future__ import annotations

import math


def check_counts(**counts: int) -> None:
    """Check settings that count something.

    Raises:
        ValueError: if one is not a whole number of at least 1.
    """
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1; got {value!r}.")


def check_epochs(epochs: int | None) -> None:
    """Check a length, where None leaves it to the rule.

    Raises:
        ValueError: if it is not a whole number of at least 1.
    """
    if epochs is not None:
        check_counts(epochs=epochs)


def check_share(**shares: float) -> None:
    """Check settings that are a share of the run.

    Raises:
        ValueError: if one does not lie in [0, 1).
    """
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise ValueError(f"`{name}` must lie in [0, 1), as a share of the run; got {value!r}.")


def check_positive(**values: float) -> None:
    """Check settings that must be positive.

    Raises:
        ValueError: if one is not above 0, or infinite.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be {'finite' if value == math.inf else 'above 0'}; got {value!r}.")

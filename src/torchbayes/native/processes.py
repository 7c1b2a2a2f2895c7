"""What is said where another process of a fit does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LostRankError(RuntimeError):
    """Another process of the fit has died or stopped with an error."""


@contextmanager
def answered() -> Iterator[None]:
    """Turn any failure to communicate inside the `with` into a LostRankError."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError(
            "a rank of this fit no longer answers: it died, or stopped with an error that it has said itself. So this "
            "one stops too. A run with a directory can be resumed, on any number of ranks."
        ) from error

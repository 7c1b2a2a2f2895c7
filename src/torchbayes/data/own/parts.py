"""Parts of data sets by their usual names: train, test, and validation, which here serves for testing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_WORDS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "validation": ("val", "valid", "validation", "dev"),
}


class Parts(NamedTuple):
    """Which parts of a data set are used."""

    names: tuple[str, ...]  # training part, and test part where there is one
    notes: tuple[str, ...]  # which part tests, and which are not used, in sentences


def kind_of(name: str) -> str | None:
    """Return the kind of part that a name means, in any case: train, test or validation; else None."""
    return next((kind for kind, words in _WORDS.items() if name.lower() in words), None)


def chosen(whole: str, names: Sequence[str]) -> Parts:
    """Return which parts are used; rows for validation are test rows where there are no others.

    Raises ValueError if there is no part for training, or two are for the same.
    """
    by_kind = {kind: [name for name in names if kind_of(name) == kind] for kind in _WORDS}
    if not by_kind["train"]:
        raise ValueError(f"{whole} must have a part called train; it has {', '.join(names)}. Rename one.")
    held_out = "test" if by_kind["test"] else "validation"
    double = next((by_kind[kind] for kind in ("train", held_out) if len(by_kind[kind]) > 1), None)
    if double is not None:
        raise ValueError(f"{whole} has more than one part of a kind: {', '.join(double)}. Rename or move all but one.")
    used = (*by_kind["train"], *by_kind[held_out])
    notes = []
    if len(used) == 1:
        notes.append(f"All rows are of the part {used[0]}: there is none to test on.")
    elif held_out == "validation":
        notes.append(f"Test rows: those of the part {used[1]}, as there is no part called test.")
    if unused := [name for name in names if name not in used]:
        notes.append(f"Not used: {', '.join(unused)}.")
    return Parts(used, tuple(notes))

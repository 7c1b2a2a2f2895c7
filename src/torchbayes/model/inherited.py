"""Which inherited members still hold: those that refer to nothing that a subclass has changed."""

from __future__ import annotations

from typing import Any, TypeGuard


def holds(value: object, name: str) -> TypeGuard[Any]:
    """Return whether an object has an optional member, and no subclass has changed what that member refers to.

    A subclass of `Gaussian` with another `log_prob` inherits a curvature that belongs to the old one, and so does not
    hold it. Checks of targets and dunders change nothing.
    """
    classes = type(value).__mro__
    owner = next((kind for kind in classes if name in vars(kind)), None)
    if owner is None:
        return False
    changed = {
        n for kind in classes[: classes.index(owner)] for n, value in vars(kind).items() if hasattr(value, "__get__")
    }
    return not any(hasattr(owner, n) for n in changed if n != "check" and not n.startswith("__"))

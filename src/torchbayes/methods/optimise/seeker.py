"""The training of networks that a method begins at, where none are given: maximum a posteriori."""

from __future__ import annotations

from typing import Any

from torchbayes.methods.optimise.map import MAP

Seeker = MAP
"""Settings of the training."""


def seeker(**settings: Any) -> MAP:
    """Return the training, with these settings instead of its defaults."""
    return MAP(**settings)

"""The training of a network that none is given of: maximum a posteriori."""

from __future__ import annotations

from torchbayes.methods.optimise.map import MAP


def seeker(batch_size: int) -> MAP:
    """Return the training, on minibatches of so many rows."""
    return MAP(batch_size=batch_size)

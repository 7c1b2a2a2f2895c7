"""The step that is timed of variational methods, as numbers: the same for every library. It needs numpy alone."""

from __future__ import annotations

import numpy as np

# N, rows of a batch, standard deviations of the prior and of weights at first, a rate too small to learn rows by heart
NUM_DATA, BATCH, PRIOR_SCALE, SCALE, RATE = 60_000, 128, 0.1, 0.02, 1e-6
SHAPES = {"mlp": (784,), "lenet": (1, 28, 28)}


def problem(case: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (B, ...), float32, and classes (B,)."""
    source = np.random.default_rng(0)
    inputs = source.standard_normal((BATCH, *SHAPES[case])).astype(np.float32)
    return inputs, source.integers(10, size=BATCH)

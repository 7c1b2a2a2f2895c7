"""Correlations of ranks."""

import numpy as np


def ranks_agree(first: np.ndarray | list[float], second: np.ndarray | list[float]) -> float:
    """Return the rank correlation of all numbers (Spearman); 0 where they are constant, or fewer than two."""
    from scipy.stats import rankdata

    if np.size(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])

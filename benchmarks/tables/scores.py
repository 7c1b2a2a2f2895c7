"""The scores of a prediction, all by functions of the library."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.tables.prediction import Prediction
from torchbayes import evaluate, metrics

LEVELS = (0.5, 0.8, 0.95)  # of the intervals
_QUANTILES = torch.arange(1, 20, dtype=torch.float64) / 20  # levels of the calibration error of numbers


def scores(prediction: Prediction, targets: np.ndarray) -> dict[str, float]:
    """Return the scores of a prediction.

    Both: nll (mean negative log probability or density, natural logarithm) and ece. Classes: accuracy, brier; ece in 15
    bins of equal width. Numbers, in the units of the targets: crps, rmse; coverage and score of the central intervals
    at 50, 80 and 95 %; ece is the mean distance of observed from stated levels over the quantiles at 5, 10, ..., 95 %.

    Raises:
        ValueError: if a prediction is not finite, or there are not as many as targets.
    """
    predictive = prediction.predictive
    if predictive.outputs_SBK.shape[1] != len(targets):
        raise ValueError(f"there are predictions of {predictive.outputs_SBK.shape[1]} rows and {len(targets)} targets.")
    if not np.issubdtype(targets.dtype, np.floating):
        results = evaluate(predictive, torch.from_numpy(targets.astype(np.int64))).metrics
        return {name: results[name] for name in ("nll", "accuracy", "brier", "ece")}
    numbers_B1 = torch.from_numpy(targets.astype(np.float64)).unsqueeze(1)
    evaluation = evaluate(predictive, numbers_B1)
    if "crps" not in evaluation.metrics or evaluation.pit is None:
        raise ValueError("the mean or the standard deviation of a prediction is not finite.")
    pit_B = evaluation.pit.squeeze(1).double()
    # a target is below the quantile at a level where its own level, F(y), is below that level
    reached_Q = metrics.quantile_calibration(_QUANTILES, _QUANTILES[:, None].expand(-1, len(pit_B)), pit_B)
    results = {name: evaluation.metrics[name] for name in ("nll", "crps", "rmse")}
    results["ece"] = float((reached_Q - _QUANTILES).abs().mean())
    for level in LEVELS:
        low_B1, high_B1 = predictive.interval(level)
        results[f"coverage_{level:.0%}"] = float(metrics.interval_coverage(low_B1, high_B1, numbers_B1))
        results[f"interval_{level:.0%}"] = float(metrics.interval_score(low_B1, high_B1, numbers_B1, coverage=level))
    return results

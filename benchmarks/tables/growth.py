"""What a default fit of a table costs as rows and columns grow: seconds of a processor, and megabytes.

    python -m benchmarks.tables.growth [--classes 3]

Inputs are normal, of which five have an effect. Each fit is a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
import warnings
from typing import Any

import numpy as np
import torch

SIZES = [(10**power, 10) for power in range(3, 7)] + [(1000, columns) for columns in (5, 50, 500)]


def table(rows: int, columns: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (N, D) and targets (N,): numbers, or classes that are quantiles of these."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(rows, columns))
    signal = np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] + np.abs(inputs[:, 3]) + 0.5 * inputs[:, 4]
    targets = signal + 0.3 * random.normal(size=rows)
    if not classes:
        return inputs, targets
    return inputs, np.searchsorted(np.quantile(targets, np.arange(1, classes) / classes), targets)


def cost(rows: int, columns: int, classes: int) -> tuple[str, float, float, float]:
    """Return the method's name, the seconds of a fit and of predicting 1,000 rows, and the peak of memory in MiB."""
    from torchbayes.sklearn import BayesianMLPClassifier, BayesianMLPRegressor

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    inputs, targets = table(rows, columns, classes)
    estimator: Any = (BayesianMLPClassifier if classes else BayesianMLPRegressor)(random_state=0)
    began = time.process_time()
    estimator.fit(inputs, targets)
    fitted = time.process_time()
    estimator.predict_proba(inputs[:1000]) if classes else estimator.predict_interval(inputs[:1000])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return type(estimator.method_).__name__, fitted - began, time.process_time() - fitted, peak


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=0, help="0 for targets that are numbers")
    classes = parser.parse_args().classes
    print(f"{'rows':>10}{'columns':>9}  {'method':8}{'fit, s':>9}{'predict, s':>12}{'memory, MiB':>13}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for rows, columns in SIZES:
            method, fit, predict, peak = pool.apply(cost, (rows, columns, classes))
            print(f"{rows:10,}{columns:9}  {method:8}{fit:9.1f}{predict:12.1f}{peak:13,.0f}", flush=True)


if __name__ == "__main__":
    main()

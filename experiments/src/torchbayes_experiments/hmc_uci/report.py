"""Verdict, tables and figures of `hmc_uci`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.hmc_uci.recipe import METHODS, METRICS
from torchbayes_experiments.shared.uci_splits import Values, mean_over_seeds
from torchbayes_experiments.verdicts import Part, Verdict, below, interval, mean_and_error

RHAT = 1.1  # bound, as in Izmailov et al. (2021)

# Test values of Izmailov et al. (2021), read off bar plots, so to two digits at best.
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "yacht": {
        "log_likelihood": {"SGD": -2.9, "SGLD": -2.35, "HMC": 0.55},
        "rmse": {"SGD": 0.92, "SGLD": 1.63, "HMC": 0.65},
    },
    "energy": {
        "log_likelihood": {"SGD": -1.47, "SGLD": -2.15, "HMC": -1.07},
        "rmse": {"SGD": 0.86, "SGLD": 1.3, "HMC": 0.37},
    },
}


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    The repeats of the verdict are the splits, of scores averaged over seeds: the methods of one split share its rows.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    values = mean_over_seeds(results, METHODS, METRICS)
    parts = [_mixed(results, name) for name in values]
    for name, methods in values.items():
        ours = methods["HMC"]["log_likelihood"]
        parts += [
            below(f"{name}: log likelihood of {other} below that of HMC", methods[other]["log_likelihood"] - ours)
            for other in METHODS[:-1]
        ]
    tables = (*(_table(values, metric) for metric in METRICS), _difference_table(values), _health_table(results))
    pictures = (*(_figure(values, metric) for metric in METRICS), _rhat_figure(results))
    return Findings(Verdict.of(parts), tables, pictures)


def _mixed(results: Sequence[dict[str, Any]], name: str) -> Part:
    """Return the precondition that the chains of HMC agree on their predictions."""
    medians = np.mean([[np.median(rhats) for rhats in r[name]["HMC"]["rhat"]] for r in results], axis=0)
    # a chain that never moves has no R-hat, and counts as the worst
    medians = np.nan_to_num(medians, nan=1e6, posinf=1e6)
    return below(f"{name}: median R-hat of HMC's test predictions below {RHAT}", medians, RHAT, precondition=True)


def _share(rhats: Sequence[float]) -> float:
    """Return the share of R-hats above the bound; NaN counts as above."""
    return float(np.mean(~(np.asarray(rhats, dtype=np.float64) <= RHAT)))


def _table(values: Values, metric: str) -> Table:
    """Return one metric of all methods beside the paper's values, with the difference."""
    rows = []
    for name, methods in values.items():
        paper = PUBLISHED[name][metric]
        for method in METHODS:
            mean = float(methods[method][metric].mean())
            rows.append([name, method, mean_and_error(methods[method][metric]), paper[method], mean - paper[method]])
    caption = (
        f"Test {METRICS[metric]} in the target's units: mean over splits ± standard error; SGD is the mean over single "
        "networks. Paper: read off the bar plots of Izmailov et al. (2021), other splits."
    )
    return Table(["set", "method", f"test {METRICS[metric]}", "paper", "difference"], rows, caption)


def _difference_table(values: Values) -> Table:
    """Return paired differences of HMC and the others: splits differ far more than methods do."""
    rows = []
    for name, methods in values.items():
        for metric, label in METRICS.items():
            for other in METHODS[:-1]:
                mean, low, high = interval(methods["HMC"][metric] - methods[other][metric])
                rows.append([name, label, f"HMC − {other}", mean, low, high])
    return Table(
        ["set", "metric", "difference", "mean", "from", "to"],
        rows,
        "Paired differences over splits with their 95 % t interval. HMC is better where the log likelihood's is above "
        "zero, and the RMSE's below.",
    )


def _health_table(results: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for name in results[0]:
        for method in ("SGLD", "HMC"):
            found = [result[name][method] for result in results]
            rhats = [rhat for one in found for split in one["rhat"] for rhat in split]

            def mean(key: str, found: Sequence[Mapping[str, Any]] = found) -> float | None:
                return float(np.mean([one[key] for one in found])) if key in found[0] else None

            divergences = int(np.sum([one["divergences"] for one in found])) if "divergences" in found[0] else None
            agreed = f"{100 * (1 - _share(rhats)):.1f} %"
            middle = float(np.median(rhats))
            numbers = [middle, agreed, mean("rhat_weights"), mean("ess"), mean("acceptance"), divergences]
            rows.append([name, method, *numbers, mean("step_size"), mean("leapfrogs")])
    return Table(
        [
            "set",
            "method",
            "R-hat",
            f"at most {RHAT}",
            "R-hat of weights",
            "effective draws",
            "acceptance",
            "divergences",
            "step size",
            "leapfrog steps",
        ],
        rows,
        "Health of the chains. R-hat: median over the means predicted at the test rows of all splits, and the share of "
        "them that is small; of the weights, the median; effective draws, the median over test rows of one split. "
        "Acceptance after burn-in, divergences of all splits, leapfrog steps of all chains of one split.",
        formats={"effective draws": ".0f", "step size": ".5f", "leapfrog steps": ",.0f"},
    )


def _figure(values: Values, metric: str) -> Picture:
    drawn = {name: {m: methods[m][metric] for m in METHODS} for name, methods in values.items()}
    published = {
        name: {f"{method}, paper": (value, 0.0) for method, value in PUBLISHED[name][metric].items()} for name in values
    }
    better = "high" if metric == "log_likelihood" else None
    return Picture(
        f"Test {METRICS[metric]} on UCI regression",
        figures.metric_dots(drawn, METRICS[metric], published=published, better=better),
        f"{METRICS[metric]} in the target's units: mean over splits with two standard errors; hollow, the values of "
        "Izmailov et al. (2021), read off their bar plots.",
    )


def _rhat_figure(results: Sequence[dict[str, Any]]) -> Picture:
    spaces = {
        method: np.array([
            v for r in results for scores in r.values() for split in scores[method]["rhat"] for v in split
        ])
        for method in ("SGLD", "HMC")
    }
    return Picture(
        "Do the chains agree on what they predict?",
        figures.rhat_histogram(spaces),
        "R-hat of the mean predicted at every test row of all sets, splits and seeds, over the chains of a split.",
    )

"""Verdict, tables and figures of `compression`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchbayes.report import Table
from torchbayes_experiments.compression.pictures import curves, histograms
from torchbayes_experiments.compression.recipe import DROPOUT, GROUPS, MODE, PUBLISHED, SINGLE
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

ROUNDING = 1e-4  # relative difference of outputs in float32
LOST = 0.5  # points of error that pruning may cost, and that rounding may

Results = Sequence[Mapping[str, Any]]


def summarise(results: Results) -> Findings:
    """Turn the seeds' numbers into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    networks = list(results[0])
    tables = [table for name in networks for table in (_compressed(results, name), _along(results, name))]
    pictures = [picture for name in networks for picture in (curves(results, name), histograms(results, name))]
    return Findings(Verdict.of(parts(results)), tuple(tables), tuple(pictures))


def parts(results: Results) -> list[Part]:
    """Return the parts of the claim.

    Args:
        results: what `run` returned, one per seed.
    """
    found = []
    for network in results[0]:
        for method in GROUPS:
            fits = [r[network][method] for r in results]
            own, mark, about = [f["compressed"] for f in fits], PUBLISHED[network, method], f"{network}, {method}"
            found += [
                below(f"{about}: error at most the published {mark.error} %", _of(own, "rounded_error"), mark.error),
                below(f"{about}: at least {mark.rate:g} times fewer weights", _minus(own, "rate"), -mark.rate),
                below(f"{about}: at least {mark.bits:g} times fewer bits", _minus(own, "bits"), -mark.bits),
                below(
                    f"{about}: pruning costs less than {LOST} points",
                    [c["error"] - f["mean_error"] for c, f in zip(own, fits, strict=True)],
                    LOST,
                ),
                below(
                    f"{about}: rounding costs less than {LOST} points",
                    [c["rounded_error"] - c["error"] for c in own],
                    LOST,
                ),
                below(f"{about}: the smaller network has the same outputs", _of(own, "difference"), ROUNDING),
                below(
                    f"{about}: its file is at least {mark.bits / 2:g} times smaller",
                    [-c["before"] / c["bytes"] for c in own],
                    -mark.bits / 2,
                ),
                below(f"{about}: its forward pass is faster", _minus(own, "faster"), -1.0),
                below(
                    f"{about}: at as many weights it errs less than pruning by magnitude",
                    [_against(r[network], method) for r in results],
                ),
            ]
    return found


def _of(fits: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [fit[key] for fit in fits]


def _minus(fits: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [-fit[key] for fit in fits]


def _against(fits: Mapping[str, Any], method: str) -> float:
    """Return the error of a compressed network less that of the plain one pruned to the same number of weights.

    The latter is between the two nearest of its curve, linear in the logarithm of the number.
    """
    import numpy as np

    kept, error = fits[method]["curve"][-1]
    curve = sorted(fits[MODE]["curve"])
    return error - float(np.interp(np.log(kept), np.log([k for k, _ in curve]), [e for _, e in curve]))


def _compressed(results: Results, network: str) -> Table:
    rows: list[list[Any]] = []
    for method in (*GROUPS, DROPOUT):
        fits = [r[network][method] for r in results]
        own = [f["compressed"] for f in fits]
        layers = " ".join(f"{i}→{o}" for i, o in own[0]["layers"].values())
        mark = PUBLISHED.get((network, method))
        published = f"{mark.error} %, {mark.rate:g}, {mark.bits:g}" if mark else "–"
        numbers = [
            _of(fits, "error"),
            *(_of(own, key) for key in ("error", "rounded_error", "rate", "bits", "bytes", "faster")),
        ]
        rows.append([method, *(mean_and_error(values) for values in numbers), layers, published])
    head = [
        "method",
        "error, average",
        "pruned",
        "rounded",
        "weights",
        "bits",
        "bytes on disk",
        "faster",
        "layers",
        "published",
    ]
    return Table(
        head,
        rows,
        f"{network}: test errors in percent of the model average, of the pruned network and of that with rounded "
        f"weights; how many times fewer weights and bits; the file; how many times faster a forward pass is; what is "
        f"left of the layers (seed 0); and the published error, weights and bits.",
    )


def _along(results: Results, network: str) -> Table:
    first = results[0][network]
    rows = []
    for method in (*GROUPS, *SINGLE):
        each = [r[network][method]["curve"] for r in results]
        count = min(len(curve) for curve in each)
        for at in range(count):
            kept, error = ([curve[at][k] for curve in each] for k in (0, 1))
            rows.append([method, mean_and_error(kept), mean_and_error(error)])
    weights = first[GROUPS[0]]["compressed"]["before"] // 4
    return Table(
        ["method", "weights kept", "error"],
        rows,
        f"{network}, {weights:,} weights: test error in percent by the weights that are kept.",
    )

"""Verdict, tables and figures of `hmc_mnist`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.shared.classifiers import METRICS
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"single": "single network (MAP)", "draw": "single draw of HMC", "average": "model average of HMC"}
Scores = Mapping[str, Mapping[str, np.ndarray]]


def summarise(results: Sequence[dict[str, Any]]) -> Findings:
    """Turn the seeds' chains and scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    scores, narrow = scores_of(results), scores_of([result["narrow"] for result in results])
    accuracy, nll = ({name: scores[name][key] for name in NAMES} for key in ("accuracy", "nll"))
    verdict = Verdict.of([
        below(
            "share of proposals that are rejected",
            [1 - float(np.mean(kept_of(r, "acceptance"))) for r in results],
            0.05,
        ),
        _stationary([drift(kept_of(r, "log_density")) for r in results]),
        below("accuracy: single draw below model average", accuracy["draw"] - accuracy["average"]),
        below("NLL: model average below single network", nll["average"] - nll["single"]),
        below(
            "NLL under the narrower prior: model average below single network",
            narrow["average"]["nll"] - narrow["single"]["nll"],
        ),
    ])
    return Findings(verdict, tables(results), pictures(results))


def _stationary(drifts: Sequence[float]) -> Part:
    """Return the test for drift of the log density; inconclusive if a chain is too short to tell."""
    statement = "drift of the log density between the halves of the chain below 3 standard errors"
    if np.isfinite(drifts).all():
        return below(statement, drifts, 3.0)
    return Part(statement, "inconclusive", "a chain has fewer than four iterations after burn-in")


def scores_of(results: Sequence[Mapping[str, Any]]) -> Scores:
    """Return single, draw or average -> metric -> values (R,)."""
    return {name: {k: np.array([r["scores"][name][k] for r in results]) for k in METRICS} for name in NAMES}


def kept_of(result: Mapping[str, Any], name: str) -> list[float]:
    """Return a logged value of the iterations after burn-in."""
    return result["chain"][name][result["left_out"] :]


def energy_errors(acceptance: Sequence[float]) -> np.ndarray:
    """Return the energy errors that acceptance probabilities imply: −log min(1, exp(−ΔH)) = max(ΔH, 0)."""
    return -np.log(np.maximum(acceptance, 1e-300))


def drift(log_density: Sequence[float]) -> float:
    """Return how far the mean moves from the first half of a chain to the second, in its standard errors.

    |m₂ − m₁| / (s √(1/n₁ + 1/n₂)), s² the pooled variance within the halves: of the order of one for independent
    draws of one distribution.

    Args:
        log_density: values along the chain; of an odd number the one in the middle is left out.

    Returns:
        The drift; infinite for fewer than four values, which have no spread within halves.
    """
    half = len(log_density) // 2
    if half < 2:
        return math.inf
    first, second = np.asarray(log_density[:half]), np.asarray(log_density[-half:])
    spread = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2)
    return float(abs(second.mean() - first.mean()) / (spread * math.sqrt(2 / half)))


def tables(results: Sequence[Mapping[str, Any]]) -> tuple[Table, ...]:
    """Return the scores under both priors, the chains, and the scores by the number of draws.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        Four tables.
    """
    narrow = scores_of([result["narrow"] for result in results])
    scored = (_score_table(scores_of(results)), _score_table(narrow, narrow=True))
    return (*scored, _chain_table(results), _running_table(results))


def pictures(results: Sequence[Mapping[str, Any]]) -> tuple[Picture, ...]:
    """Return what every draw adds under both priors, and what the chains did.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        Three pictures.
    """
    narrow = [result["narrow"] for result in results]
    return _average_figure(results), _average_figure(narrow, narrow=True), _chain_figure(results)


def _score_table(scores: Scores, *, narrow: bool = False) -> Table:
    columns = ["accuracy", "NLL", "ECE"]
    return Table(
        ["method", *columns],
        [[label, *(mean_and_error(scores[name][metric]) for metric in METRICS)] for name, label in NAMES.items()],
        ("The same under the narrower prior: " if narrow else "Test images: ")
        + "mean over seeds ± standard error. A single network is the mean over networks trained to the mode "
        "of the same posterior, a single draw the mean over the kept places of the chain taken alone.",
        better={"accuracy": "high", "NLL": "low", "ECE": "low"},
        formats={"accuracy": ".4f", "NLL": ".3f", "ECE": ".4f"},
    )


def _chain_table(results: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for seed, result in enumerate(results):
        chain, kept = result["chain"], kept_of(result, "log_density")
        drifts = drift(kept)
        seconds, count = sum(chain["seconds"]), len(chain["seconds"])
        rows.append([
            str(seed),
            count,
            result["left_out"],
            seconds / 60,
            1e3 * seconds / sum(chain["gradients"]),
            float(np.mean(kept_of(result, "acceptance"))),
            float(energy_errors(chain["acceptance"]).max()),
            (float(np.mean(kept)), float(np.std(kept, ddof=1))) if len(kept) > 1 else kept[0],
            drifts if math.isfinite(drifts) else None,
        ])
    columns = ["seed", "iterations", "burn-in", "minutes", "ms per leapfrog step", "acceptance"]
    columns += ["largest energy error", "log density", "drift"]
    return Table(
        columns,
        rows,
        "The chains. Acceptance: mean probability after burn-in; energy errors, in nats, where they are positive; log "
        "density: mean and standard deviation after burn-in; drift: how far its mean moves from the first half to the "
        "second, in standard errors.",
        formats={"minutes": ".1f", "ms per leapfrog step": ".2f", "acceptance": ".4f", "log density": ".0f"}
        | {"largest energy error": ".4f", "drift": ".2f"},
    )


def _running_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return how the average's scores change with the number of draws."""
    most = min(len(result["running"]["nll"]) for result in results)
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    rows = [
        [count, *(mean_and_error([r["running"][metric][count - 1] for r in results]) for metric in METRICS)]
        for count in counts
    ]
    return Table(
        ["draws", "accuracy", "NLL", "ECE"],
        rows,
        "The average of the first kept draws, by their number; mean over seeds ± standard error.",
        formats={"accuracy": ".4f", "NLL": ".3f", "ECE": ".4f"},
    )


def _average_figure(results: Sequence[Mapping[str, Any]], *, narrow: bool = False) -> Picture:
    most = min(len(result["running"]["nll"]) for result in results)
    runs: dict[str, list[dict[str, Any]]] = {
        NAMES[name]: [
            {"draws": count} | {metric: [r["scores"][name][metric] for r in results] for metric in METRICS}
            for count in (1, most)
        ]
        for name in ("single", "draw")
    }
    runs[NAMES["average"]] = [
        {"draws": count + 1} | {metric: [r["running"][metric][count] for r in results] for metric in METRICS}
        for count in range(most)
    ]
    figure = figures.training_curves(runs, ("nll", "accuracy"), x="draws")
    _logarithmic(figure.axes[0])
    return Picture(
        "The same under the narrower prior" if narrow else "What the model average gains with every draw",
        _counted(figure),
        "Test NLL (logarithmic) and accuracy of the average of the first kept draws of HMC against their number, "
        "beside a single draw and a network trained to the mode; thin lines are seeds.",
    )


def _logarithmic(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _counted(figure: Figure) -> Figure:
    """Return a figure with whole numbers on its horizontal axes."""
    from matplotlib.ticker import MaxNLocator

    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return figure


def _chain_figure(results: Sequence[Mapping[str, Any]]) -> Picture:
    names = ("log density", "log likelihood", "energy error (nats)")
    runs = {
        f"seed {seed}": [
            {"iteration": iteration} | dict(zip(names, row, strict=True))
            for iteration, row in enumerate(
                zip(
                    result["chain"]["log_density"],
                    result["chain"]["log_likelihood"],
                    energy_errors(result["chain"]["acceptance"]),
                    strict=True,
                ),
                1,
            )
        ]
        for seed, result in enumerate(results)
    }
    longest = max(len(result["chain"]["seconds"]) for result in results)
    runs["mean of the prior's own log density"] = [
        {"iteration": iteration, names[0]: results[0]["prior_mean"]} for iteration in (1, longest)
    ]
    return Picture(
        "Along the chains",
        _counted(figures.training_curves(runs, names, x="iteration")),
        "Log density and log likelihood of the training images after every iteration, burn-in included, and the energy "
        "error of the proposal where it is positive.",
    )

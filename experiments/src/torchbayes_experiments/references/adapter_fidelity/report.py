"""Verdict, tables and figures of `adapter_fidelity`; parts and bounds were set before any whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, looks
from torchbayes.report.style import house_style, legend_above, new_figure, panel_title
from torchbayes_experiments import Findings, Part, Results, Rows, below, dots, pivot, tidy
from torchbayes_experiments.references.adapter_fidelity import run
from torchbayes_experiments.references.adapter_fidelity.task import MESSAGES, MIXED, REVIEWS
from torchbayes_experiments.shared import image_hmc
from torchbayes_experiments.verdicts import mean_and_error

MIXING = 1.05  # bound of R-hat, for 95 % of the test probabilities
CLOSER = (  # to HMC than the second
    (run.ENSEMBLE, run.MAP),
    (run.ENSEMBLE, "mean field"),
    (run.LINEARISED, run.MAP),
    ("TFB", run.MAP),
    ("BLoB", run.MAP),
)
CALIBRATED = (run.LINEARISED, "TFB", "BLoB", run.SCALABL)  # better than MLE, as their papers say
SHOWN = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "agreement": "agreement with HMC",
    "total_variation": "TV from HMC",
    "tv95": "TV, 95 % of rows",
    "ranks": "rank correlation",
    "auroc": "AUROC",
}
WAYS = {"accuracy": "high", "NLL": "low", "ECE": "low", "Brier": "low"}
WAYS |= {"agreement with HMC": "high", "TV from HMC": "low", "TV, 95 % of rows": "low"}


def summarise(results: Results) -> Findings:
    """The repeats are the seeds, which draw the training questions, the starts and all noise."""
    rows = tidy([result["tests"] for result in results], "test", "method", "metric")
    return Findings.of(_parts(rows, results), _tables(rows, results), _pictures(rows))


def _parts(rows: Rows, results: Results) -> Iterator[Part]:
    rhat = [result["chains"]["functions"]["high"] for result in results]
    yield below("R-hat of 95 % of the test probabilities", rhat, MIXING, precondition=True)
    known, shifted = (rows.where(test=test) for test in (MESSAGES, MIXED))
    distance, nll = (known.where(metric=metric) for metric in ("total_variation", "nll"))
    chain = distance.less("method", run.CHAIN, run.MAP)
    yield below("one chain closer to the others than MAP is to HMC", chain, precondition=True)
    for base in (run.ZERO_SHOT, run.CONSTANT):
        yield below(f"NLL of HMC below {base}", nll.less("method", run.HMC, base), precondition=True)
    for first, second in CLOSER:
        yield below(f"{first} closer to HMC than {second}", distance.less("method", first, second))
    for metric in ("nll", "ece"):
        scores = known.where(metric=metric)
        for name in CALIBRATED:
            yield below(f"{SHOWN[metric]} of {name} below that of MLE", scores.less("method", name, run.MLE))
    for test, scores in (MESSAGES, known), (MIXED, shifted):
        less = scores.where(metric="nll").less("method", run.HMC, run.MAP)
        yield below(f"{test}: NLL of HMC below that of MAP", less)


def _tables(rows: Rows, results: Results) -> Iterator[Table]:
    for test in rows.names("test"):
        some = rows.where(test=test)
        yield pivot(
            some,
            "method",
            "metric",
            keep={metric: label for metric, label in SHOWN.items() if metric in some.names("metric")},
            heads=[test],
            better=WAYS,
            caption=f"{_said(test)}: mean over seeds ± standard error. The rank correlation is that of the mutual "
            "information of rows with that of HMC, 0 for a single network; one chain is compared with the others.",
        )
    yield image_hmc.chains_table(
        [{MESSAGES: result["chains"]} for result in results],
        {"leapfrogs": "leapfrog steps", "acceptance": "acceptance", "divergences": "divergences", "ebfmi": "E-BFMI"}
        | {"functions/median": "R-hat: median", "functions/high": "95 %", "functions/maximum": "largest"}
        | {"functions/ess": "ESS", "weights/high": "95 %, weights"},
        caption="The chains of HMC, after burn-in: R-hat of the test probabilities, their effective sample size, and "
        "R-hat of weights, which rotations of the factors leave large: mean over seeds ± standard error.",
    )
    bases = {key: mean_and_error([result["base"][key] for result in results[:1]]) for key in results[0]["base"]}
    yield Table([*bases], [[*bases.values()]], "The base: perplexity of held-out tokens, and those of counts.")


def _said(test: str) -> str:
    return {
        MESSAGES: "Messages of the kind that was trained on",
        MIXED: "Messages in which words are replaced by words of reviews",
        REVIEWS: "Reviews, which are no messages; AUROC of the predictive entropy against that of messages",
    }[test]


def _pictures(rows: Rows) -> Iterator[Picture]:
    yield _against_nll(rows)
    yield dots(
        rows.where(metric="total_variation", method=[name for name in rows.names("method") if name != run.HMC]),
        SHOWN["total_variation"],
        title="Distance from HMC",
        panels="test",
        over="seed",
        better="low",
        caption="Total variation of the predictive from that of HMC: mean over seeds with two standard errors. For "
        "HMC, one chain against the others.",
    )


@house_style
def _against_nll(rows: Rows) -> Picture:
    names = [name for name in rows.names("method") if name not in {run.CHAIN, run.ZERO_SHOT, run.CONSTANT}]
    figure, handles = new_figure(7.4, 3.6), dict[str, Any]()
    for axes, test in zip(figure.subplots(1, 2), (MESSAGES, MIXED), strict=True):
        scores = rows.where(test=test)
        for name, look in looks(names).items():
            distance, nll = (scores.values(method=name, metric=metric) for metric in ("total_variation", "nll"))
            style = {"color": look.colour, "marker": look.marker}
            (handles[name],) = axes.plot(np.mean(distance), np.mean(nll), linestyle="", markersize=6.5, **style)
            axes.plot(distance, nll, linestyle="", markersize=2.5, alpha=0.6, **style)
        axes.set(xlabel="total variation from HMC", ylabel="NLL")
        panel_title(axes, test)
    legend_above(figure, handles)
    caption = "Distance from HMC and NLL of test questions: mean over seeds, and small the seeds themselves."
    return Picture("Distance from HMC and NLL", figure, caption)

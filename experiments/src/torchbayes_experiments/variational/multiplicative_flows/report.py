"""Verdict, tables and figures of `multiplicative_flows`, with the published numbers."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchbayes.report import Picture, Table, figures, looks
from torchbayes.report.style import FAINT, house_style, legend_above, new_figure, note_below, panel_title, percent_axis
from torchbayes_experiments import Findings, Part, Results, Rows, below, differences, pivot, tidy
from torchbayes_experiments.variational.multiplicative_flows.run import (
    DIGITS,
    ENSEMBLE,
    FFG,
    FFLU,
    FLOWS,
    L2,
    PHOTOGRAPHS,
    rotated,
)

MARGIN = 0.01  # of the error: one within it counts as no worse
FAIR = {PHOTOGRAPHS: 0.35, DIGITS: 0.05}  # errors of L2 from which a comparison says nothing

# Test errors in % on five classes of CIFAR-10 (Louizos and Welling 2017, table of test errors).
PUBLISHED = {"L2": 24, "MC dropout": 16, "deep ensemble": 21, "FFG": 22, "FFLU": 23, "MNF": 16}

# columns of tables
ERROR, UNSEEN, AUROC = "error, %", "entropy, unseen", "AUROC of the entropy"
WRONG, OWN, SAME = "turned: wrong, %", "entropy where wrong", "entropy where L2 is wrong"

_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
_LINES = 4  # labels of the turned digit that are drawn with a line of their own


def summarise(results: Results) -> Findings:
    """Parts and margins were set before any whole run."""
    rows = _rows(results)
    return Findings.of(_parts(rows, results[0]), _tables(rows, results[0]), _pictures(results))


def _tables(rows: Rows, tasks: Mapping[str, Any]) -> Iterator[Table]:
    if PHOTOGRAPHS in tasks:
        yield from _photograph_tables(rows.where(task=PHOTOGRAPHS))
    if DIGITS in tasks:
        yield _digits_table(rows.where(task=DIGITS), tasks[DIGITS]["angles"])


def _pictures(results: Results) -> Iterator[Picture]:
    if PHOTOGRAPHS in results[0]:
        yield entropies([result[PHOTOGRAPHS] for result in results])
    if DIGITS in results[0]:
        digits = [result[DIGITS] for result in results]
        yield from (_one_digit(digits[0]), _many_digits(digits))


def _rows(results: Results) -> Rows:
    """Return task, method and measure of every number that all seeds have: none is wrong where no digit is mistaken."""

    def seen(scores: Mapping[str, Any]) -> dict[str, float]:
        inside, outside, error = scores["seen"], scores["unseen"], 1 - scores["seen"]["accuracy"]
        entropies = {"entropy, seen": inside["entropy"], UNSEEN: outside["entropy"], AUROC: outside["auroc"]}
        return {"error": error, ERROR: 100 * error, "NLL": inside["nll"], "ECE": inside["ece"], **entropies}

    def on_digits(scores: Mapping[str, Any]) -> dict[str, Any]:
        error = 1 - scores["test"]["accuracy"]
        entropies = {OWN: scores["entropy_wrong"], SAME: scores["entropy_same"]}
        return {"error": error, "test error, %": 100 * error, WRONG: 100 * np.mean(scores["wrong"]), **entropies}

    frame: Any = tidy(
        [
            {
                PHOTOGRAPHS: {name: seen(scores) for name, scores in result.get(PHOTOGRAPHS, {}).items()},
                DIGITS: {name: on_digits(s) for name, s in result.get(DIGITS, {"methods": {}})["methods"].items()},
            }
            for result in results
        ],
        *("task", "method", "measure"),
    ).frame
    return Rows(frame[frame.groupby(["task", "method", "measure"])["value"].transform("size") == len(results)])


def _parts(rows: Rows, tasks: Container[str]) -> Iterator[Part]:
    if PHOTOGRAPHS in tasks:
        photographs = rows.where(task=PHOTOGRAPHS)
        errors, unseen = (photographs.where(measure=measure) for measure in ("error", UNSEEN))
        yield below("photographs: error of L2", errors.values(method=L2), FAIR[PHOTOGRAPHS], precondition=True)
        for name in (L2, FFG, FFLU):
            yield below(f"photographs: error of MNF below that of {name}", errors.less("method", FLOWS, name))
        less = errors.less("method", FLOWS, ENSEMBLE)
        yield below(f"photographs: error of MNF at most {MARGIN} above the ensemble's", less, MARGIN)
        yield below("unseen classes: mean entropy of MNF above that of L2", unseen.less("method", L2, FLOWS))
    if DIGITS in tasks:
        digits = rows.where(task=DIGITS)
        errors = digits.values(method=L2, measure="error")
        yield below("digits: error of L2", errors, FAIR[DIGITS], precondition=True)
        for measure, where in ((OWN, "where each is wrong"), (SAME, "where L2 is wrong")):
            statement = f"turned digits, {where}: mean entropy of MNF above that of L2"
            if {L2, FLOWS} <= set((some := digits.where(measure=measure)).names("method")):
                yield below(statement, some.less("method", L2, FLOWS))
            else:
                yield Part(statement, "inconclusive", "no turned digit is taken for another in some seed")


def _photograph_tables(rows: Rows) -> Iterator[Table]:
    published = f"paper: {ERROR}"
    yield pivot(
        rows,
        "method",
        "measure",
        keep=(ERROR, published, "NLL", "ECE", "entropy, seen", UNSEEN, AUROC),
        heads=["five classes of CIFAR-10"],
        digits={ERROR: ".1f", published: ".0f"},
        beside={published: PUBLISHED.get},
        better={ERROR: "low", "NLL": "low", "ECE": "low", UNSEEN: "high", AUROC: "high"},
        caption="Test images of the five classes that were seen, and of the five that were not: mean over seeds ± "
        f"standard error. Entropies are those of the average prediction, in nats; at most log 5 = {np.log(5):.2f}.",
    )
    yield differences(
        rows.where(measure=[ERROR, UNSEEN, AUROC]),
        [(FLOWS, name) for name in rows.names("method") if name != FLOWS],
        index=("measure",),
        over="seed",
        caption="Paired differences of MNF and each method over seeds, with their 95 % interval.",
    )


def _digits_table(rows: Rows, angles: Sequence[int]) -> Table:
    return pivot(
        rows,
        "method",
        "measure",
        keep=("test error, %", WRONG, OWN, SAME),
        heads=["turned digits"],
        digits={"test error, %": ".2f", WRONG: ".1f"},
        better={"test error, %": "low", OWN: "high", SAME: "high"},
        caption=f"Digits of one class, turned by {angles[0]} to {angles[-1]} degrees: mean over seeds ± standard "
        f"error. Entropies in nats, at most log 10 = {np.log(10):.2f}. The last column is over the same images for "
        "every method.",
    )


@house_style
def entropies(photographs: Results) -> Picture:
    """Draw the distribution functions of the entropy on unseen and on seen classes, from method -> scores."""
    figure = new_figure(7.2, 3.5)
    grid = figure.subplots(1, 2, sharex=True, sharey=True)
    handles: dict[str, Any] = {}
    for axes, images in zip(grid, ("unseen", "seen"), strict=True):
        for style, (name, look) in zip(_STYLES, looks(list(photographs[0])).items(), strict=False):
            counts = np.sum([scores[name]["counts"][images] for scores in photographs], axis=0)
            shares = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
            places, every = np.linspace(0, np.log(5), len(shares)), max(len(shares) // 8, 1)
            handles[name] = _line(axes, places, shares, look, style, markevery=every)
        panel_title(axes, f"{images} classes")
        axes.axvline(np.log(5), color=FAINT, linestyle=":")
    grid[0].set(xlim=(0, 1.02 * np.log(5)), ylim=(0, 1), ylabel="share of test images")
    percent_axis(grid[0].yaxis)
    note_below(figure, "entropy of the average prediction (nats)")
    legend_above(figure, handles)
    return Picture(
        "Entropy on classes that were not seen, and on those that were",
        figure,
        "Share of test images whose entropy is at most that on the horizontal axis, pooled over seeds. A method that "
        "knows what it does not know is low on the left and high on the right. The dotted end of the axis is log 5, "
        "where all five classes are equally probable.",
    )


def _many_digits(digits: Results) -> Picture:
    share = "share taken for another digit"
    panels = {
        title: {name: np.array([s["methods"][name][key] for s in digits]).T for name in digits[0]["methods"]}
        for key, title in (("wrong", share), ("entropy", "mean entropy (nats)"))
    }
    return Picture(
        "Many digits that are turned",
        figures.measure_curves(panels, digits[0]["angles"], label="angle (degrees)", percent=(share,)),
        "The first test digits of the class: how many are taken for another digit, and the mean entropy of all.",
    )


@house_style
def _one_digit(digits: Mapping[str, Any]) -> Picture:
    """Draw a panel for L2 and one for MNF, under a strip of the turned digit."""
    angles = np.array(digits["angles"])
    figure = new_figure(7.2, 4.4)
    top, *panels = figure.subplots(3, 1, height_ratios=(0.45, 1, 1))
    _strip(top, digits, angles)
    means = {name: np.array(digits["methods"][name]["mean"]) for name in (L2, FLOWS)}
    largest = np.max([mean.max(0) for mean in means.values()], axis=0)
    shown = sorted(np.argsort(-largest)[:_LINES])
    handles: dict[str, Any] = {}
    for axes, (name, mean) in zip(panels, means.items(), strict=True):
        spread = np.array(digits["methods"][name]["spread"])
        named = looks(f"“{label}”" for label in shown)
        for label, style, (text, look) in zip(shown, _STYLES, named.items(), strict=False):
            ends = (np.clip(mean[:, label] + sign * spread[:, label], 0, 1) for sign in (-1, 1))
            axes.fill_between(angles, *ends, color=look.colour, alpha=0.15, linewidth=0)
            handles[text] = _line(axes, angles, mean[:, label], look, style)
        panel_title(axes, name)
        axes.set(xlim=(angles[0] - 4, angles[-1] + 4), ylim=(0, 1.02), ylabel="probability", xticks=angles[::3])
        percent_axis(axes.yaxis)
    panels[0].tick_params(labelbottom=False)
    note_below(figure, "angle (degrees)")
    legend_above(figure, handles)
    return Picture(
        "One digit that is turned",
        figure,
        "Probabilities of the labels of one test digit, turned counter-clockwise: mean over draws, band ± their "
        "standard deviation, first seed. L2 is one network and has no spread.",
    )


def _line(axes: Any, x: np.ndarray, y: np.ndarray, look: Any, style: Any, *, markevery: int | None = None) -> Any:
    """Draw and return a line in the look of a method, and a style that tells lines apart without colours."""
    shape = {"linestyle": style, "marker": look.marker, "markersize": 4, "markevery": markevery}
    return axes.plot(x, y, color=look.colour, **shape)[0]


def _strip(axes: Any, digits: Mapping[str, Any], angles: np.ndarray) -> None:
    """Draw the digit at every angle, above its place on the axis of angles."""
    image = torch.tensor(digits["pixels"], dtype=torch.float32)[None, None] / 255
    step = float(angles[1] - angles[0]) if len(angles) > 1 else 10.0
    for angle in angles:
        picture = rotated(image, float(angle))[0, 0].numpy()
        half = 0.48 * step
        axes.imshow(picture, cmap="gray_r", extent=(angle - half, angle + half, 0, 1), aspect="auto", vmin=0, vmax=1)
    axes.set(xlim=(angles[0] - 4, angles[-1] + 4), ylim=(0, 1))
    axes.set_axis_off()

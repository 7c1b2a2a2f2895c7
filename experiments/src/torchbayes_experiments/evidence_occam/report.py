"""Verdict, tables and figure of `evidence_occam`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, Table
from torchbayes.report.style import INK, QUIET, house_style, looks, new_figure
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error, two_standard_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Grid = Mapping[str, np.ndarray]  # `widths` (A,), `scales` (B,), and numbers (A, B)
MARGIN = 0.05  # nats per row of test NLL that the evidence may lose against the best scale of the grid


def summarise(results: Sequence[Mapping[str, Any]]) -> Findings:
    """Turn the seeds' grids into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    return findings([{name: np.array(values, dtype=np.float64) for name, values in r.items()} for r in results])


def findings(seeds: Sequence[Grid]) -> Findings:
    """Return verdict, tables and figure.

    Args:
        seeds: the grid of each seed.

    Returns:
        The findings.
    """
    caption = (
        "Left, against the prior's standard deviation, one line per width: log evidence, and NLL per row of the "
        "training set at the mode (dashed) and of the test set by the linearised predictive; dots mark the highest "
        "evidence of each width. Right, against width, under the prior with the highest evidence. The evidence is that "
        "of one mode, the dotted line adds log(2^H H!) for its mirror images. Mean over seeds; bars and bands, two "
        "standard errors. Targets are standardised."
    )
    tables = (_width_table(seeds), _choice_table(seeds), _scale_table(seeds))
    return Findings(Verdict.of(_parts(seeds)), tables, (Picture("Evidence, width and prior", draw(seeds), caption),))


def at_best(grid: Grid, name: str, *, by: str = "log_evidence", highest: bool = True) -> np.ndarray:
    """Return a number at the prior scale that another one chooses for each width.

    Args:
        grid: of one seed.
        name: the number.
        by: the number that chooses.
        highest: whether by its largest value, not its smallest.

    Returns:
        Array (widths,).
    """
    places = grid[by].argmax(1) if highest else grid[by].argmin(1)
    return np.take_along_axis(grid[name], places[:, None], 1)[:, 0]


def regret(grid: Grid, *, by: str, highest: bool) -> np.ndarray:
    """Return the test NLL at the scale that a number chooses, minus the lowest on the grid, (widths,)."""
    return at_best(grid, "test_nll", by=by, highest=highest) - grid["test_nll"].min(1)


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation of two arrays of one shape; 0 where one is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) - (values.size + 1) / 2 for values in (first, second)]
    norm = np.linalg.norm(ranks[0]) * np.linalg.norm(ranks[1])
    return float(ranks[0] @ ranks[1] / norm) if norm > 0 else 0.0


def _parts(seeds: Sequence[Grid]) -> list[Part]:
    widths, scales = seeds[0]["widths"], seeds[0]["scales"]

    def each(number: Any) -> list[float]:
        return [float(number(grid)) for grid in seeds]

    def end(place: int) -> Any:
        return lambda g: np.max(g["log_evidence"][:, place] - g["log_evidence"][:, 1:-1].max(1))

    def occam(grid: Grid) -> np.ndarray:
        return at_best(grid, "log_evidence") - at_best(grid, "log_likelihood")

    evidence_regret = {"by": "log_evidence", "highest": True}
    return [
        below("share of networks that are not at a mode (warned, or 1 nat to gain by a Newton step)",
              each(lambda g: np.mean((g["is_mode"] < 1) | (g["promise"] > 1))), 0.05, precondition=True),
        below(f"evidence at prior scale {scales[0]:g} below the highest between, at the width where it is nearest",
              each(end(0))),
        below(f"evidence at prior scale {scales[-1]:g} below the highest between, at the width where it is nearest",
              each(end(-1))),
        below("test NLL lost by choosing the prior scale by the evidence, mean over widths",
              each(lambda g: regret(g, **evidence_regret).mean()), MARGIN),
        below("the same, minus what choosing it by the training NLL loses",
              each(lambda g: (regret(g, **evidence_regret) - regret(g, by="train_nll", highest=False)).mean())),
        below("rank correlation of evidence and test NLL over the grid",
              each(lambda g: rank_correlation(g["log_evidence"].ravel(), g["test_nll"].ravel())), -0.5),
        below("rank correlation of width and training NLL, each width under the prior that the evidence chooses",
              each(lambda g: rank_correlation(g["widths"], at_best(g, "train_nll"))), -0.8),
        below(f"log Occam factor of {widths[-1]:g} units below that of {widths[0]:g}",
              each(lambda g: occam(g)[-1] - occam(g)[0])),
        below(f"evidence of {widths[-1]:g} units below the highest of the narrower networks",
              each(lambda g: at_best(g, "log_evidence")[-1] - at_best(g, "log_evidence")[:-1].max())),
    ]  # fmt: skip


def _width_table(seeds: Sequence[Grid]) -> Table:
    names = {
        "log_evidence": "log evidence",
        "symmetries": "log(2^H H!)",
        "log_likelihood": "log likelihood",
        "effective": "effective weights",
        "noise": "noise",
        "train_nll": "train NLL",
        "test_nll": "test NLL",
        "test_rmse": "test RMSE",
    }
    rows = []
    for place, width in enumerate(seeds[0]["widths"]):
        chosen = [grid["scales"][grid["log_evidence"][place].argmax()] for grid in seeds]
        cells = [mean_and_error([at_best(grid, name)[place] for grid in seeds]) for name in names]
        scale = ", ".join(f"{scale:g}" for scale in sorted(set(chosen)))
        rows.append([int(width), scale, *cells])
    return Table(
        ["width", "prior scale", *names.values()],
        rows,
        "Each width under the prior scale that has the highest evidence (the scales of all seeds): mean over seeds ± "
        "standard error, targets standardised. The evidence is that of one mode.",
        better={"log evidence": "high", "test NLL": "low", "test RMSE": "low"},
        formats=dict.fromkeys(["log evidence", "log likelihood", "effective weights", "log(2^H H!)"], ".0f"),
    )


def _choice_table(seeds: Sequence[Grid]) -> Table:
    rules = {
        "highest evidence": ("log_evidence", True),
        "lowest training NLL": ("train_nll", False),
        "lowest test NLL (not a rule)": ("test_nll", False),
    }
    rows = []
    for label, (name, highest) in rules.items():
        for what, axis in (("prior scale, mean over widths", 1), ("prior scale and width", None)):
            nlls = []
            for grid in seeds:
                values = grid[name] if highest else -grid[name]
                places = values.argmax(1) if axis else [values.argmax()]
                table = grid["test_nll"] if axis else grid["test_nll"].reshape(1, -1)
                nlls.append(np.mean([row[place] for row, place in zip(table, places, strict=True)]))
            rows.append([what, label, mean_and_error(nlls)])
    rows.sort(key=lambda row: row[0] == "prior scale and width")
    return Table(
        ["chosen", "by", "test NLL"],
        rows,
        "Test NLL per row of what a rule chooses: mean over seeds ± standard error. The lowest on the grid is there "
        "to compare with.",
    )


def _scale_table(seeds: Sequence[Grid]) -> Table:
    rows = []
    for place, width in enumerate(seeds[0]["widths"]):
        for name, label in (("log_evidence", "log evidence"), ("test_nll", "test NLL")):
            values = np.mean([grid[name][place] for grid in seeds], axis=0)
            rows.append([
                int(width),
                label,
                *(f"{value:.0f}" if name == "log_evidence" else f"{value:.2f}" for value in values),
            ])
    return Table(
        ["width", "", *(f"{scale:g}" for scale in seeds[0]["scales"])],
        rows,
        "Means over seeds on the whole grid, by prior scale.",
    )


@house_style
def draw(seeds: Sequence[Grid]) -> Figure:
    """Draw evidence and NLL against prior scale and against width.

    Args:
        seeds: the grid of each seed.

    Returns:
        The figure, two rows of two axes.
    """
    figure = new_figure(8.2, 6.0)
    grid = figure.subplots(2, 2, sharex="col")
    _scale_panels(grid[:, 0], seeds)
    _width_panels(grid[:, 1], seeds)
    grid[0, 0].set_title("each width, against the prior scale")
    grid[0, 1].set_title("each width under the prior scale of highest evidence")
    grid[0, 0].set_ylabel("log evidence (nats)")
    grid[1, 0].set_ylabel("NLL per row (nats)")
    grid[1, 0].set_xlabel("standard deviation of the prior")
    grid[1, 1].set_xlabel("hidden units")
    return figure


def _scale_panels(column: Sequence[Axes], seeds: Sequence[Grid]) -> None:
    import matplotlib as mpl
    from matplotlib.lines import Line2D

    widths, scales = seeds[0]["widths"], seeds[0]["scales"]
    means = {name: np.mean([g[name] for g in seeds], axis=0) for name in ("log_evidence", "train_nll", "test_nll")}
    for place, width in enumerate(widths):
        colour = mpl.colormaps["plasma"](0.85 * place / max(len(widths) - 1, 1))
        best = means["log_evidence"][place].argmax()
        column[0].plot(scales, means["log_evidence"][place], color=colour, label=f"{width:g} units")
        column[1].plot(scales, means["test_nll"][place], color=colour)
        column[1].plot(scales, means["train_nll"][place], color=colour, linestyle=(0, (3, 2)), linewidth=1.0)
        for axes, name in zip(column, ("log_evidence", "test_nll"), strict=True):
            axes.plot(scales[best], means[name][place, best], "o", color=colour, markeredgecolor=INK)
    column[1].set_xscale("log")
    column[1].set_xticks(scales, [f"{scale:g}" for scale in scales])
    column[1].minorticks_off()
    column[0].legend(loc="lower center")
    styles = {"test": {"linestyle": "-"}, "train": {"linestyle": (0, (3, 2)), "linewidth": 1.0}}
    lines = [Line2D([], [], color=QUIET, label=label, **style) for label, style in styles.items()]
    column[1].legend(handles=lines, loc="upper right", ncols=2)


def _width_panels(column: Sequence[Axes], seeds: Sequence[Grid]) -> None:
    widths, drawn = seeds[0]["widths"], looks(["Laplace", "MAP", "ensemble"])

    def line(axes: Axes, name: str, method: str, **style: Any) -> None:
        values = np.array([at_best(grid, name) for grid in seeds])
        half, look = two_standard_errors(values), drawn[method]
        axes.errorbar(widths, values.mean(0), half, color=look.colour, marker=look.marker, **style)

    line(column[0], "log_likelihood", "MAP", linestyle=(0, (3, 2)), label="log likelihood at the mode")
    total = np.mean([at_best(g, "log_evidence") + at_best(g, "symmetries") for g in seeds], axis=0)
    colour = drawn["Laplace"].colour
    column[0].plot(widths, total, ":", color=colour, linewidth=1.2, label="log evidence + log(2$^H$ H!)")
    line(column[0], "log_evidence", "Laplace", label="log evidence of one mode")
    line(column[1], "test_nll", "ensemble", label="test")
    line(column[1], "train_nll", "MAP", linestyle=(0, (3, 2)), label="train")
    column[0].legend(loc="lower right")
    column[1].legend(loc="upper right")
    column[1].set_xscale("log")
    column[1].set_xticks(widths, [f"{width:g}" for width in widths])
    column[1].minorticks_off()

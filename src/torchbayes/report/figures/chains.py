"""Figures of the convergence of chains: R-hat in weight and function space, effective sizes, traces and ranks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_counts
from torchbayes.diagnostics.convergence import ENOUGH
from torchbayes.report.style import (
    FAINT,
    QUIET,
    as_array,
    check_pairs,
    check_panels,
    house_style,
    legend_above,
    new_figure,
    note_below,
    panel_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOUNDS = (1.01, 1.05, 1.1)  # bounds of R-hat: Vehtari et al. (2021); of a reference; Izmailov et al. (2021)
CHAINS = 8  # most chains with rank histograms of their own
POINTS = 2000  # most points of a trace that are drawn

_COUNTS = "number of quantities\n(logarithmic)"
_OFFSET = 0.005  # R-hat is drawn at the logarithm of its excess over one plus this
# Colours of spaces differ from those of methods, so that no reader confuses the two.
_SPACES = (("#14606b", "-"), ("#a3324b", "--"), ("#7a3e9d", ":"))


@house_style
def rhat_histogram(spaces: Mapping[str, Any]) -> Figure:
    """Draw histograms of R-hat of several spaces on one axis, with logarithmic counts, as Izmailov et al. (2021) do.

    The horizontal axis is logarithmic in R-hat − 1, so that the bounds in use, such as 1.01 and 1.1, remain visible
    next to chains that do not mix at all. Values below one are drawn at one, infinite ones in the last bin.

    Args:
        spaces: name -> R-hat of its quantities, (R,); the first is filled. NaN, for what never moves, is left out.
    """
    check_panels(spaces=spaces)
    values = {name: _known(of_space, f"R-hat of {name}") for name, of_space in spaces.items()}
    everything = np.concatenate([np.zeros(0), *values.values()])
    if not everything.size:
        raise ValueError(
            f"`spaces` must have an R-hat that is a number; got none in {', '.join(values) or 'no space'}."
        )
    finite = everything[np.isfinite(everything)]
    top = max(1.2, 1.1 * float(finite.max(initial=1.0)))
    edges = _unstretched(np.linspace(_stretched(1.0), _stretched(top), 42))
    edges[0], edges[-1] = 1.0, top
    figure = new_figure(6.2, 3.7)
    axes: Axes = figure.subplots()
    axes.set_xscale("function", functions=(_stretched, _unstretched))
    axes.set_yscale("log", nonpositive="clip")
    handles = {
        _rhat_label(name, of_space): _histogram(axes, np.clip(of_space, 1.0, top), edges, index)
        for index, (name, of_space) in enumerate(values.items())
        if of_space.size
    }
    for bound in BOUNDS:
        axes.axvline(bound, color=QUIET, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    ticks = [tick for tick in (1.0, *BOUNDS, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0) if tick <= top]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.set(xlim=(1.0, top), ylabel=_COUNTS)
    axes.set_ylim(bottom=0.7)
    axes.yaxis.set_major_formatter(_plain)
    infinite = int(np.isinf(everything).sum())
    last = [f"{infinite:,} infinite ones in the last bin: chains that stand still, apart"] if infinite else []
    note_below(figure, f"R-hat (axis logarithmic in R-hat − 1; dashed: {' and '.join(map(str, BOUNDS))})", *last)
    legend_above(figure, handles)
    return figure


@house_style
def ess_histograms(spaces: Mapping[str, tuple[Any, Any]], *, chains: int, draws: int) -> Figure:
    """Draw histograms of bulk and tail effective sample sizes, with lines at 100 per chain and at all draws.

    Args:
        spaces: name -> (bulk, tail) effective sizes of its quantities, (R,) each; NaN is left out.
        chains: Number of chains.
        draws: Draws of each chain.
    """
    check_panels(spaces=spaces)
    check_pairs(2, spaces=spaces)
    check_counts(chains=chains, draws=draws)
    pairs = {name: [_known(of_space, f"ESS of {name}") for of_space in pair] for name, pair in spaces.items()}
    everything = np.concatenate([np.zeros(0), *(of_space for pair in pairs.values() for of_space in pair)])
    if not everything.size:
        raise ValueError(f"`spaces` must have a size that is a number; got none in {', '.join(pairs) or 'no space'}.")
    marks = {"100 for each chain": ENOUGH * chains, "all draws": chains * draws}
    low, high = min(everything.min(), *marks.values()), max(everything.max(), *marks.values())
    edges = np.geomspace(low / 1.1, high * 1.1, 36)
    figure = new_figure(6.6, 3.3)
    grid: Sequence[Axes] = figure.subplots(1, 2, sharex=True, sharey=True)
    handles: dict[str, Any] = {}
    for index, (axes, title) in enumerate(zip(grid, ("bulk", "tail"), strict=True)):
        axes.set_xscale("log")
        axes.set_yscale("log", nonpositive="clip")
        for place, (name, pair) in enumerate(pairs.items()):
            if pair[index].size:
                handles[name] = _histogram(axes, pair[index], edges, place)
        for (label, mark), line in zip(marks.items(), ((0, (2, 2)), (0, (6, 2))), strict=True):
            handles[label] = axes.axvline(mark, color=QUIET, linewidth=1.0, linestyle=line, zorder=1)
        panel_title(axes, title)
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter(lambda _number, _position: "")
        axes.yaxis.set_major_formatter(_plain)
    grid[0].set_ylim(bottom=0.7)  # after both are drawn, to keep the upper limit
    grid[0].set_ylabel(_COUNTS)
    note_below(figure, "effective sample size (logarithmic)")
    legend_above(figure, handles)
    return figure


@house_style
def traces_and_ranks(quantities: Mapping[str, tuple[Any, Any, str]]) -> Figure:
    """Draw quantities along the chains, and how each chain's draws rank among all (Vehtari et al. 2021).

    Chains that agree have similar traces and flat histograms of ranks. A chain that stays high has its ranks to the
    right. A single chain is shown by its halves. Each quantity has a row: a trace and a panel of rank histograms.

    Args:
        quantities: name -> (values, shape (M, S); the number of each of the S, shape (S,); what these numbers count).
    """
    check_panels(quantities=quantities)
    check_pairs(3, quantities=quantities)
    figure = new_figure(7.4, 1.95 * len(quantities) + 0.5)
    grid = figure.subplots(len(quantities), 2, width_ratios=[1.7, 1], squeeze=False)
    most = 0
    for (trace, ranks), (name, (values, at, over)) in zip(grid, quantities.items(), strict=True):
        values_MS, at_S = as_array(values, 2, name, finite=True), as_array(at, 1, f"numbers of {name}")
        if values_MS.shape[1] != len(at_S):
            raise ValueError(
                f"`quantities`: {name!r} has {values_MS.shape[1]} values in each chain, and {len(at_S)} numbers."
            )
        colours = _colours(len(values_MS))
        thinned = _thinned(len(at_S))
        for of_chain, colour in zip(values_MS, colours, strict=True):
            trace.plot(at_S[thinned], of_chain[thinned], color=colour, linewidth=0.8, alpha=0.85)
        trace.set_title(textwrap.fill(name, 62), loc="left", fontweight="bold", fontsize=8.5)
        trace.set_xlabel(over)
        trace.margins(x=0)
        _rank_panel(ranks, values_MS, colours)
        most = max(most, len(values_MS))
    grid[0, 1].set_title("ranks", fontweight="bold", fontsize=8.5)
    more = f"; the first {CHAINS} of {most} chains" if most > CHAINS else ""
    note_below(figure, f"right: how often a chain has each rank; dashed: as often as all others{more}")
    return figure


def rank_counts(values_MS: np.ndarray, bins: int) -> np.ndarray:
    """Return how many draws of each chain fall into each of `bins` equal ranges of ranks among all draws: (M, bins).

    Draws that tie share their average rank. Each row sums to S.
    """
    from scipy.stats import rankdata

    shares = (rankdata(values_MS.astype(np.float64)) - 0.5) / values_MS.size
    places = np.minimum((shares.reshape(values_MS.shape) * bins).astype(int), bins - 1)
    return np.stack([np.bincount(of_chain, minlength=bins) for of_chain in places])


def _rank_panel(axes: Axes, values_MS: np.ndarray, colours: list[str]) -> None:
    names = [str(chain + 1) for chain in range(len(values_MS))]
    if len(values_MS) == 1:  # the ranks of one chain among its own draws are always flat
        half = values_MS.shape[1] // 2
        values_MS, colours = np.stack([values_MS[0, :half], values_MS[0, -half:]]), colours * 2
        names = ["first half", "second half"]
    draws = values_MS.shape[1]
    bins = int(np.clip(draws // 5, 4, 20))
    counts = rank_counts(values_MS, bins)[:CHAINS]
    even, height = draws / bins, 0.86 / max(counts.max(), 2 * draws / bins)
    edges = np.linspace(0, 1, bins + 1)
    for row, (of_chain, colour) in enumerate(zip(counts, colours, strict=False)):
        axes.stairs(height * of_chain - row, edges, baseline=-row, fill=True, color=colour, alpha=0.75)
        axes.hlines(height * even - row, 0, 1, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
        axes.hlines(-row, 0, 1, color=FAINT, linewidth=0.6)
    axes.grid(visible=False)
    axes.set_yticks([height * even - row for row in range(len(counts))], names[: len(counts)])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 1), ylim=(-len(counts) + 0.9, 1.0), xlabel="rank among all draws")
    axes.set_ylabel("chain" if names[0] == "1" else "")
    axes.set_xticks([0, 0.5, 1], ["lowest", "middle", "highest"])
    for label, side in zip(axes.get_xticklabels(), ("left", "center", "right"), strict=True):
        label.set_horizontalalignment(side)


def _colours(chains: int) -> list[str]:
    """Return a colour for each chain, dark to light, distinguishable in grey and by colour-blind readers."""
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    shades = np.linspace(0.05, 0.82, chains) if chains > 1 else [0.3]
    return [to_hex(mpl.colormaps["viridis"](shade)) for shade in shades]


def _thinned(points: int) -> np.ndarray:
    return np.unique(np.linspace(0, points - 1, min(points, POINTS)).astype(int))


def _known(values: Any, name: str) -> np.ndarray:
    flat = as_array(values, 1, name)
    return flat[~np.isnan(flat)]


def _rhat_label(name: str, rhat: np.ndarray) -> str:
    bound = BOUNDS[1]
    return f"{name}: {100 * np.mean(rhat <= bound):.1f} % of {rhat.size:,} at most {bound}"


def _histogram(axes: Axes, values: np.ndarray, edges: np.ndarray, place: int) -> Any:
    # counts of one space: the first space is filled, the others are lines
    counts = np.histogram(values, edges)[0]
    if place == 0:
        return axes.stairs(counts, edges, baseline=0.1, fill=True, facecolor=FAINT, edgecolor=QUIET, linewidth=0.8)
    colour, line = _SPACES[(place - 1) % len(_SPACES)]
    return axes.stairs(counts, edges, baseline=0.1, color=colour, linestyle=line, linewidth=1.6)


def _plain(number: float, _position: float) -> str:
    return f"{number:,.0f}" if number >= 1 else f"{number:g}"


def _stretched(rhat: Any) -> Any:
    return np.log(np.maximum(np.asarray(rhat, dtype=float), 1.0) - 1.0 + _OFFSET)


def _unstretched(place: Any) -> Any:
    return np.minimum(np.exp(np.asarray(place, dtype=float)), math.exp(50.0)) + 1.0 - _OFFSET

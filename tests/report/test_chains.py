from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.report.helpers import drawn
from torchbayes.report import figures
from torchbayes.report.figures.chains import rank_counts


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def stairs(axes: Axes, index: int) -> tuple[np.ndarray, np.ndarray]:
    patch: Any = axes.patches[index]
    values, edges, _ = patch.get_data()
    return np.asarray(values), np.asarray(edges)


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_rhat_histogram_counts_every_quantity_of_both_spaces():
    weights, functions = 1 + rng().exponential(0.3, 500), 1 + rng(1).exponential(0.02, 300)
    figure = figures.rhat_histogram({"weights": torch.tensor(weights), "probabilities": functions})
    (axes,) = drawn(figure)
    for index, values in enumerate((weights, functions)):
        counts, edges = stairs(axes, index)
        np.testing.assert_array_equal(counts, np.histogram(values, edges)[0])
        assert counts.sum() == len(values)
    assert axes.get_yscale() == "log"
    shares = [f"{100 * np.mean(values <= 1.05):.1f} %" for values in (weights, functions)]
    assert labels(figure) == [
        f"weights: {shares[0]} of 500 at most 1.05",
        f"probabilities: {shares[1]} of 300 at most 1.05",
    ]


def test_rhat_below_one_nan_and_infinite_have_their_places():
    values = [0.97, 0.999, 1.003, np.nan, np.inf, np.inf, 1.5]
    figure = figures.rhat_histogram({"weights": values})
    counts, edges = stairs(drawn(figure)[0], 0)
    assert counts.sum() == 6
    assert counts[-1] == 2
    assert counts[0] == 2  # those below one are drawn at one
    assert edges[-1] == pytest.approx(1.65)
    note: Any = figure._supxlabel  # type: ignore[attr-defined]
    assert "2 infinite ones in the last bin" in note.get_text()


@pytest.mark.parametrize("values", [[1.0001, 1.002], [1.0, 54.0], [np.inf]])
def test_the_axis_of_rhat_always_shows_the_bounds(values: list[float]):
    (axes,) = drawn(figures.rhat_histogram({"weights": values}))
    low, high = axes.get_xlim()
    assert low == 1.0
    assert high > 1.1
    ticks = axes.get_xticks()
    assert {1.0, 1.01, 1.1} <= set(ticks)
    # equal steps on the paper are equal ratios of R-hat − 0.995
    places = axes.transData.transform([[tick, 1.0] for tick in (1.0, 1.01, 1.1)])[:, 0]
    logs = np.log(np.array([0.005, 0.015, 0.105]))
    assert np.diff(places)[1] / np.diff(places)[0] == pytest.approx(np.diff(logs)[1] / np.diff(logs)[0])


def test_nothing_to_draw_is_said():
    with pytest.raises(ValueError, match="an R-hat that is a number; got none in weights"):
        figures.rhat_histogram({"weights": [np.nan]})
    with pytest.raises(ValueError, match="`spaces` must hold at least one entry; got none"):
        figures.ess_histograms({}, chains=2, draws=10)
    with pytest.raises(ValueError, match="at least one entry; got none"):
        figures.traces_and_ranks({})


def test_ess_histograms_count_bulk_and_tail():
    bulk, tail = rng().lognormal(4, 1, 400), rng(1).lognormal(5, 0.5, 400)
    figure = figures.ess_histograms({"weights": (bulk, tail), "means": (tail, [np.nan, *bulk])}, chains=4, draws=500)
    axes = drawn(figure)
    assert [panel.get_title() for panel in axes] == ["bulk", "tail"]
    for panel, pair in zip(axes, ((bulk, tail), (tail, bulk)), strict=True):
        for index, values in enumerate(pair):
            counts, edges = stairs(panel, index)
            np.testing.assert_array_equal(counts, np.histogram(values, edges)[0])
            assert counts.sum() == 400
            assert panel.get_ylim()[1] > counts.max()
        marks = [float(np.asarray(line.get_xdata())[0]) for line in panel.lines]
        assert marks == [400, 2000]
    assert labels(figure) == ["weights", "means", "100 for each chain", "all draws"]


@pytest.mark.parametrize(("chains", "draws", "bins"), [(1, 10, 4), (3, 40, 8), (4, 7, 5)])
def test_ranks_are_counted_as_by_hand(chains: int, draws: int, bins: int):
    values = rng().normal(size=(chains, draws)).round(1)  # with ties, which share their average rank
    flat = values.ravel()
    ranks = np.array([(flat < v).sum() + ((flat == v).sum() + 1) / 2 for v in flat]).reshape(values.shape)
    expected = [[np.sum(np.floor((of_chain - 0.5) / flat.size * bins) == b) for b in range(bins)] for of_chain in ranks]
    actual = rank_counts(values, bins)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(actual.sum(1), draws)


def test_traces_show_every_chain_and_ranks_stand_on_its_line():
    level, weight = rng().normal(size=(3, 60)), rng(1).normal(size=(3, 40))
    weight[2] += 9  # this chain has all the highest ranks
    at = np.arange(11, 71)
    quantities = {"log density": (level, at, "iteration"), "weight a[0]": (torch.tensor(weight), np.arange(40), "draw")}
    figure = figures.traces_and_ranks(quantities)
    axes = drawn(figure)
    assert len(axes) == 4
    for chain in range(3):
        np.testing.assert_allclose(np.asarray(axes[0].lines[chain].get_data()), [at, level[chain]])
    assert [panel.get_xlabel() for panel in axes] == [
        "iteration",
        "rank among all draws",
        "draw",
        "rank among all draws",
    ]
    assert [axes[0].get_title("left"), axes[2].get_title("left")] == ["log density", "weight a[0]"]
    counts = rank_counts(weight, 8)
    assert counts[2, :5].sum() == 0
    tops, edges = stairs(axes[3], 2)
    base = -2.0
    np.testing.assert_allclose((tops - base) / (tops - base).max(), counts[2] / counts[2].max())
    np.testing.assert_allclose(edges, np.linspace(0, 1, 9))
    assert [label.get_text() for label in axes[3].get_yticklabels()] == ["1", "2", "3"]


def test_one_chain_is_ranked_by_its_halves():
    values = np.sort(rng().normal(size=(1, 41)))  # it rises all along
    (_, ranks) = drawn(figures.traces_and_ranks({"x": (values, np.arange(41), "draw")}))
    assert [label.get_text() for label in ranks.get_yticklabels()] == ["first half", "second half"]
    first, second = (stairs(ranks, index)[0] + index for index in range(2))
    np.testing.assert_allclose(first[2:], 0, atol=1e-12)
    np.testing.assert_allclose(second[:2], 0, atol=1e-12)


def test_many_chains_and_long_ones_are_thinned_and_said():
    values = rng().normal(size=(11, 5000))
    figure = figures.traces_and_ranks({"x": (values, np.arange(5000), "draw")})
    trace, ranks = drawn(figure)
    assert len(trace.lines) == 11
    assert len(np.asarray(trace.lines[0].get_xdata())) == 2000
    assert len(ranks.get_yticklabels()) == 8
    note: Any = figure._supxlabel  # type: ignore[attr-defined]
    assert "the first 8 of 11 chains" in note.get_text()


def test_traces_must_fit_and_be_finite():
    with pytest.raises(ValueError, match="`x` must be finite; got 1 values"):
        figures.traces_and_ranks({"x": ([[0.0, np.nan]], [1, 2], "draw")})
    with pytest.raises(ValueError, match="'x' has 2 values in each chain, and 3 numbers"):
        figures.traces_and_ranks({"x": ([[0.0, 1.0]], [1, 2, 3], "draw")})

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.report.helpers import drawn, labels, line, rng
from torchbayes.metrics import reliability
from torchbayes.report import figures, png


@dataclass
class Bins:
    confidence: list[float]
    accuracy: list[float]
    count: list[int]


def dirichlet(shape: tuple[int, ...], classes: int) -> np.ndarray:
    return rng().dirichlet(np.full(classes, 0.3), shape)


def test_reliability_diagram_of_real_bins():
    probs = torch.as_tensor(dirichlet((400,), 5))
    targets = torch.as_tensor(rng().integers(0, 5, 400))
    bins = reliability(probs, targets)
    figure = figures.reliability_diagram({"MAP": bins, "a < b": bins, "SWAG": bins})
    axes = drawn(figure)
    assert len(axes) == 6
    assert axes[0].get_title() == "MAP"
    assert f"ECE {float(bins.ece):.3f}" in [text.get_text() for text in axes[0].texts]
    many, few = bins.count >= 10, (bins.count > 0) & (bins.count < 10)
    np.testing.assert_array_equal(line(axes[0], 0), [[0, 1], [0, 1]])
    for index, chosen in ((1, many), (2, few)):
        np.testing.assert_allclose(line(axes[0], index), torch.stack([bins.confidence[chosen], bins.accuracy[chosen]]))
    shares: Any = axes[3].collections[0]
    tops = [segment[1, 1] for segment in shares.get_segments()]
    np.testing.assert_allclose(tops, bins.count[bins.count > 0] / 400)


@pytest.mark.parametrize("counts", [[50, 80], [3, 4]])
def test_reliability_diagram_of_bins_of_one_kind(counts: list[int]):
    panel = drawn(figures.reliability_diagram({"MAP": Bins([0.3, 0.9], [0.4, 0.8], counts)}))[0]
    assert len(panel.lines) == 2  # the diagonal, and full or hollow markers
    np.testing.assert_allclose(line(panel, 1), [[0.3, 0.9], [0.4, 0.8]])


def test_reliability_diagram_shows_hollow_bins_and_refuses_empty_ones():
    bins = Bins(confidence=[0.3, 0.0, 0.9], accuracy=[1.0, 0.0, 0.8], count=[2, 0, 50])
    (diagram, _) = drawn(figures.reliability_diagram({"MAP": bins}))
    np.testing.assert_allclose(line(diagram, 1), [[0.9], [0.8]])
    np.testing.assert_allclose(line(diagram, 2), [[0.3], [1.0]])
    assert diagram.lines[2].get_markerfacecolor() == "white"
    assert "ECE 0.123" in [text.get_text() for text in diagram.texts]  # (2 * 0.7 + 50 * 0.1) / 52
    empty = Bins(confidence=[0.0], accuracy=[0.0], count=[0])
    with pytest.raises(ValueError, match="bins of 'MAP' hold no point"):
        figures.reliability_diagram({"MAP": empty})
    with pytest.raises(ValueError, match="at least one entry; got none"):
        figures.reliability_diagram({})


@pytest.mark.parametrize("methods", [1, *(pytest.param(n, marks=pytest.mark.study) for n in (2, 5)), 6])
def test_entropy_histograms_count_every_input(methods: int):
    inside, outside = rng().uniform(0, np.log(10), 100), rng().uniform(1, np.log(10) + 1e-7, 80)
    names = ["MAP", "SWAG", "a rather long name of a method", "HMC", "x", "y"][:methods]
    figure = figures.entropy_histograms({name: (inside, {"noise": torch.tensor(outside)}) for name in names}, 10)
    axes = drawn(figure)
    assert len(axes) == methods
    assert labels(figure) == ["in distribution", "noise"]
    edges = np.linspace(0, np.log(10), 26)
    for patch, values in zip(axes[0].patches, (inside, outside), strict=True):
        counts = [np.sum((values >= low) & (values < high)) for low, high in pairwise(edges)]
        counts[-1] += np.sum(values >= edges[-1])
        stairs: Any = patch
        np.testing.assert_allclose(stairs.get_data().values, np.array(counts) / len(values))


def test_entropy_histograms_refuse_nan():
    with pytest.raises(ValueError, match="`entropies of noise` must be finite; got 1 values"):
        figures.entropy_histograms({"MAP": ([0.1], {"noise": [np.nan, 1.0]})}, 10)


def test_severity_curves_draw_mean_and_stated_band():
    values = {name: rng().random((6, 4)) for name in ("MAP", "Deep ensemble", "SWAG")}
    figure = figures.severity_curves(values, "NLL", spread="std")
    (axes,) = drawn(figure)
    assert labels(figure) == list(values)
    for index, array in enumerate(values.values()):
        np.testing.assert_allclose(line(axes, index), [np.arange(6), array.mean(1)])
        band = np.asarray(axes.collections[index].get_paths()[0].vertices)
        np.testing.assert_allclose(np.max(band[band[:, 0] == 5, 1]), array[5].mean() + array[5].std(ddof=1))
    assert axes.get_title("left") == "mean over 4 corruptions; band ± one standard deviation"
    assert axes.get_ylabel() == "negative log likelihood (nats)\nlower is better"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["clean", "1", "2", "3", "4", "5"]


def test_severity_curves_of_one_run_have_no_band():
    (axes,) = drawn(figures.severity_curves({"MAP": torch.rand(6, 1)}, "accuracy"))
    assert not axes.collections
    assert axes.get_title("left") == ""
    with pytest.raises(ValueError, match="same number of severities; got \\[5, 6\\]"):
        figures.severity_curves({"MAP": np.ones((6, 1)), "SWAG": np.ones((5, 1))}, "NLL")


def test_metric_dots_stand_at_means_and_published_values():
    data = {name: {"MAP": rng().random(20), "SWAG": rng().random(20)} for name in ("boston", "energy")}
    figure = figures.metric_dots(data, "RMSE", published={"boston": {"Deep ensembles (2017)": (3.28, 1.0)}})
    axes = drawn(figure)
    assert len(axes) == 2
    assert [text.get_text() for text in axes[0].get_yticklabels()] == ["MAP", "SWAG", "Deep ensembles (2017)"]
    for row, name in enumerate(("MAP", "SWAG")):
        np.testing.assert_allclose(line(axes[0], row).ravel(), [data["boston"][name].mean(), -row])
    np.testing.assert_allclose(line(axes[0], -1).ravel(), [3.28, -2])
    bars: Any = axes[0].collections[0]
    half = 2 * data["boston"]["MAP"].std(ddof=1) / np.sqrt(20)
    np.testing.assert_allclose(np.ptp(bars.get_segments()[0][:, 0]), 2 * half)
    assert len(axes[1].lines) == 2
    with pytest.raises(ValueError, match="at least one entry; got none"):
        figures.metric_dots({}, "RMSE")


def test_training_curves_draw_members_and_their_mean():
    losses = rng().random((7, 3))
    runs = {"SWAG": [{"epoch": i, "loss": list(row), "lr": 0.1} for i, row in enumerate(losses)] + [{"epoch": 7}]}
    figure = figures.training_curves(runs, ["loss", "lr"])
    left, right = drawn(figure)
    for member in range(3):
        np.testing.assert_allclose(line(left, member), [np.arange(7), losses[:, member]])
    np.testing.assert_allclose(line(left, 3), [np.arange(7), losses.mean(1)])
    assert len(right.lines) == 1
    assert labels(figure) == ["SWAG"]
    with pytest.raises(ValueError, match="No record of `runs` has 'los'"):
        figures.training_curves(runs, ["los"])


def test_training_curves_say_which_records_have_no_place_on_the_axis():
    runs = {"SWAG": [{"epoch": 1, "loss": 1.0}, {"step": 9, "loss": 0.5}]}
    with pytest.raises(
        ValueError, match=r"`x` must .* 1 of 2 records of 'SWAG' with 'loss' have no 'epoch'.* step, loss"
    ):
        figures.training_curves(runs)
    with pytest.raises(ValueError, match=r"2 of 2 records of 'SWAG' with 'loss' have no 'time'.* among epoch, loss\."):
        figures.training_curves(runs, x="time")


def test_uncertain_images_ranks_by_entropy_and_marks_the_true_class():
    probs, targets = dirichlet((20,), 10), rng().integers(0, 10, 20)
    images = rng().random((20, 1, 8, 8))
    axes = drawn(figures.uncertain_images(images, probs, list("0123456789"), targets=targets, count=5))
    assert len(axes) == 10
    ranks = np.argsort([np.sum(p * np.log(np.maximum(p, 1e-300))) for p in probs])
    for cell, index in enumerate(ranks[:5]):
        picture, bars = axes[2 * cell], axes[2 * cell + 1]
        np.testing.assert_allclose(np.asarray(picture.images[0].get_array()), images[index, 0])
        widths = [patch.get_width() for patch in bars.patches]  # pyright: ignore[reportAttributeAccessIssue]
        np.testing.assert_allclose(widths, probs[index])
        bold = [label.get_text() for label in bars.get_yticklabels() if label.get_fontweight() == "bold"]
        assert bold == [str(targets[index])]


def test_uncertain_images_of_two_methods_in_colour_with_many_classes():
    probs = {"MAP": dirichlet((4,), 30), "SWAG": np.roll(dirichlet((4,), 30), 1, axis=0)}
    targets = np.array([29, 3, 4, 5])
    names = [f"class of number {index}" for index in range(30)]
    figure = figures.uncertain_images(rng().normal(size=(4, 3, 32, 32)), probs, names, targets=targets, rank_by="MAP")
    axes = drawn(figure)
    assert labels(figure) == ["MAP", "SWAG"]
    assert len(axes) == 8
    for bars in axes[1::2]:
        assert 9 <= len(bars.get_yticks()) <= 10
        assert any(label.get_fontweight() == "bold" for label in bars.get_yticklabels())
    with pytest.raises(ValueError, match="one of MAP, SWAG; got 'HMC'"):
        figures.uncertain_images(np.ones((4, 1, 8, 8)), probs, names, targets=targets, rank_by="HMC")
    with pytest.raises(ValueError, match=r"`probs` must have shape \(4, 29\) .* got \(4, 30\) for MAP and 4"):
        figures.uncertain_images(np.ones((4, 1, 8, 8)), probs, names[1:], targets=targets)


def test_predictive_band_draws_two_standard_deviations():
    x = np.linspace(-3, 3, 50)
    band = figures.Band(x, np.sin(x), 0.2 + 0 * x, 0.5 + 0 * x, np.sin(x) + rng().normal(size=(4, 1)))
    truth = (x, np.cos(x))
    figure = figures.predictive_band({"MAP": band, "HMC": band}, torch.tensor([0.0, 1.0]), [0.5, 0.6], truth=truth)
    axes = drawn(figure)
    assert len(axes) == 2
    np.testing.assert_allclose(line(axes[0], 0), [x, np.sin(x)])
    np.testing.assert_allclose(line(axes[0], 4), [x, band.draws[3]])
    np.testing.assert_allclose(line(axes[0], 5), [x, np.cos(x)])
    np.testing.assert_allclose(line(axes[0], 6), [[0, 1], [0.5, 0.6]])
    for collection, std in zip(axes[0].collections, (0.2, 0.5), strict=True):
        heights = np.asarray(collection.get_paths()[0].vertices)
        np.testing.assert_allclose(np.max(heights[heights[:, 0] == x[10], 1]), np.sin(x[10]) + 2 * std)
    assert labels(figure)[-2:] == ["true function", "training data"]
    (single,) = drawn(figures.predictive_band(band, [0.0], [0.0]))
    assert single.get_title() == ""


def test_predictive_band_writes_notes_under_the_titles_of_their_panels():
    x = np.linspace(-1, 1, 20)
    band = figures.Band(x, x, 0 * x, 0 * x + 1)
    panels = drawn(figures.predictive_band({"MAP": band, "HMC": band}, [0.0], [0.0], notes={"HMC": "the reference"}))
    assert [[text.get_text() for text in axes.texts] for axes in panels] == [[], ["the reference"]]


def test_band_of_a_prediction_is_its_law_of_total_variance():
    outputs_SBK = torch.as_tensor(rng().normal(size=(7, 5, 1)))
    nothing: Any = outputs_SBK.numpy()
    x, scale = torch.arange(5.0), 0.3
    band = figures.Band.of(x, tb.Predictive(outputs_SBK, tb.likelihoods.Gaussian(scale)))
    means = outputs_SBK[..., 0].numpy()
    np.testing.assert_allclose(band.x, x)
    np.testing.assert_allclose(band.mean, means.mean(0))
    np.testing.assert_allclose(band.epistemic_std, means.std(0))
    np.testing.assert_allclose(band.total_std, np.sqrt(means.var(0) + scale**2))
    two = tb.Predictive(outputs_SBK.repeat(1, 1, 2), tb.likelihoods.Gaussian(scale))
    with pytest.raises(ValueError, match="`prediction` must be of one target; got 2"):
        figures.Band.of(x, two)
    with pytest.raises(ValueError, match="must have one length; got 4, 5, 5, 5"):
        figures.Band.of(x[1:], tb.Predictive(outputs_SBK, tb.likelihoods.Gaussian(scale)))
    with pytest.raises(TypeError, match="the result of `predict` for a regression; got Predictive"):
        figures.Band.of(x, tb.Predictive(outputs_SBK.repeat(1, 1, 2), tb.likelihoods.Categorical()))
    with pytest.raises(TypeError, match="such as the result of `predict` for a regression; got a ndarray"):
        figures.Band.of(x, nothing)


def test_predictive_band_keeps_the_data_in_view_of_a_wild_extrapolation():
    x = np.linspace(-1, 1, 20)
    band = figures.Band(x, 1e6 * x**9, 0 * x, 0 * x + 1)
    (axes,) = drawn(figures.predictive_band(band, [0.0, 0.1], [-1.0, 1.0]))
    low, high = axes.get_ylim()
    np.testing.assert_allclose([low, high], [-5.4, 5.4])


def test_classification_surface_draws_probability_entropy_and_data():
    x, y = np.linspace(-2, 2, 21), np.linspace(-1, 1, 11)
    probs = 1 / (1 + np.exp(-3 * (x[None, :] + y[:, None])))
    inputs, targets = rng().normal(size=(30, 2)), np.arange(30) % 2
    axes = drawn(figures.classification_surface({"MAP": probs, "HMC": probs}, x, y, inputs=inputs, targets=targets))
    assert len(axes) == 6  # four maps and two colour bars
    np.testing.assert_allclose(np.asarray(axes[0].images[0].get_array()), probs)
    expected = -probs * np.log(probs) - (1 - probs) * np.log(1 - probs)
    np.testing.assert_allclose(np.asarray(axes[2].images[0].get_array()), expected, atol=1e-12)
    np.testing.assert_allclose(line(axes[3], 1), inputs[1::2].T)
    np.testing.assert_allclose(axes[0].images[0].get_extent(), [-2.1, 2.1, -1.1, 1.1])
    with pytest.raises(ValueError, match=r"'MAP' must be \(11, 21\) like the grid of `x` and `y`; got \(21, 11\)"):
        figures.classification_surface({"MAP": probs.T}, x, y, inputs=inputs, targets=targets)


def test_figures_are_the_same_every_time():
    first, second = (png(figures.severity_curves({"MAP": np.ones((6, 3))}, "NLL")) for _ in range(2))
    assert first == second

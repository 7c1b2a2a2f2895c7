import numpy as np
import pytest
import torch

from torchbayes.report import looks
from torchbayes.report.figures.classes import wilson_interval
from torchbayes.report.figures.curves import spread_of
from torchbayes.report.figures.images import displayable, entropy
from torchbayes.report.style import as_array, far_apart, grid_shape, metric_label, one_page, told


def test_known_methods_keep_their_look_in_any_company():
    alone = {name: looks([name])[name] for name in ("MAP", "Deep ensemble", "SWAG", "MultiSWAG", "HMC")}
    together = looks(["my method", *reversed(alone), "other"])
    assert {name: together[name] for name in alone} == alone
    assert looks(["deep-ensemble"])["deep-ensemble"] == alone["Deep ensemble"]


def test_six_methods_have_six_colours():
    for names in (["MAP", "SWAG", "a", "b", "c", "d"], list("abcdef"), ["HMC", "VI", "Laplace", "SWA", "x", "y"]):
        actual = looks(names)
        assert list(actual) == names
        assert len({look.colour for look in actual.values()}) == 6


def test_more_methods_than_colours_still_get_a_look():
    assert len(set(looks(f"m{i}" for i in range(40)).values())) == 40


def test_methods_of_one_report_share_neither_colour_nor_marker():
    compared = ["single network", "Laplace", "deep ensemble", "SWAG", "MultiSWAG", "SGLD", "SGHMC", "cSGHMC", "HMC"]
    for names in (compared, [*compared, "VI", "my method"], ["Laplace", "last layer", "tuned", "wide SWAG"]):
        actual = looks(names).values()
        assert len({look.colour for look in actual}) == len({look.marker for look in actual}) == len(names)


def test_shares_are_per_cent_wherever_they_stand():
    assert told(0.9889, "agreement with HMC") == told(0.9889, "accuracy") == "98.9 %"
    assert told(-0.176, "confidence − accuracy") == "−17.6 %"
    assert told(0.0274, "total variation to HMC") == "0.027"


def test_values_far_apart_are_on_a_logarithmic_axis():
    assert far_apart([0.02, 0.2, float("nan")])
    assert not far_apart([0.05, 0.2])
    assert not far_apart([0.02, 0.2], [-0.01, 0.3])
    assert not far_apart([])
    assert not far_apart([0.0, 1.0])
    assert not far_apart([-0.1, 1.0])
    assert not far_apart([float("inf")])


@pytest.mark.parametrize(("panels", "shape"), [(1, (1, 1)), (4, (1, 4)), (5, (2, 3)), (6, (2, 3)), (9, (3, 3))])
def test_grid_shape(panels: int, shape: tuple[int, int]):
    assert grid_shape(panels) == shape


def test_metric_labels_say_unit_and_direction():
    assert metric_label("NLL") == "negative log likelihood (nats), lower is better"
    assert metric_label("accuracy") == "accuracy, higher is better"
    assert metric_label("my score", "high") == "my score, higher is better"
    assert metric_label("loss") == "loss per row (nats), lower is better"
    assert metric_label("log_density") == "log density (nats)"
    assert metric_label("lr") == "lr"


def test_as_array_takes_tensors_and_names_what_is_wrong():
    tensor = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    np.testing.assert_array_equal(as_array(tensor, 1, "x"), [1.0, 2.0])
    with pytest.raises(ValueError, match="`x` must have 2 axes and not be empty; got shape \\(2,\\)"):
        as_array([1, 2], 2, "x")
    with pytest.raises(ValueError, match="`x` must be finite; got 2 values"):
        as_array([np.nan, 1, np.inf], 1, "x", finite=True)


def test_wilson_interval_is_the_set_of_shares_not_rejected():
    # p lies in the interval exactly when |share − p| ≤ z √(p(1−p)/n): at its ends the two sides are equal.
    share, count = np.array([0.0, 0.2, 0.5, 1.0]), np.array([3.0, 10.0, 40.0, 7.0])
    low, high = wilson_interval(share, count)
    for end in (low, high):
        np.testing.assert_allclose((share - end) ** 2, 4 * end * (1 - end) / count, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose((low[0], high[3]), (0, 1), atol=1e-15)


def test_spreads():
    values = np.array([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]])
    mean, low, high = spread_of(values, "std")
    np.testing.assert_allclose(mean, [3, 4])
    np.testing.assert_allclose(high - low, [2 * np.sqrt(7), 0])
    _, low, high = spread_of(values, "sem")
    np.testing.assert_allclose(high - low, [4 * np.sqrt(7 / 3), 0])
    _, low, high = spread_of(values, "range")
    np.testing.assert_allclose([low, high], [[1, 4], [6, 4]])
    with pytest.raises(ValueError, match="one of std, sem, range; got 'iqr'"):
        spread_of(values, "iqr")  # pyright: ignore[reportArgumentType]


def test_entropy_and_image_scaling():
    probs = np.array([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(entropy(probs), [0, np.log(3)])
    kept = np.linspace(0, 1, 24).reshape(2, 3, 2, 2)
    np.testing.assert_array_equal(displayable(kept), np.moveaxis(kept, 1, -1))
    stretched = displayable((kept[:, :1] - 0.4) / 0.2)
    np.testing.assert_allclose([stretched.min(), stretched.max()], [0, 1])
    assert stretched.shape == (2, 2, 2)


def test_on_one_page_a_name_looks_the_same_in_every_figure():
    figures = (["x", "MAP", "y"], ["z", "y", "HMC"], ["y", "MLE", "x", "z", "MAP"])
    with one_page():
        drawn = [looks(names) for names in figures]
    assert len({look for figure in drawn for look in figure.values()}) == len({n for names in figures for n in names})
    for figure in drawn:
        assert len({look.colour for look in figure.values()}) == len(figure)
        assert all(figure[name] == other[name] for other in drawn for name in figure.keys() & other.keys())
    assert looks(["y"])["y"] != drawn[0]["y"]  # alone it takes the first colour

"""Intervals and tables of a predictive: against quantiles of mixtures and columns by hand."""

from __future__ import annotations

import pytest
import torch
from torch import distributions

import torchbayes as tb
from torchbayes.data.base import Standardise
from torchbayes.predictive import Predictive


def numbers(draws: int = 3, rows: int = 5) -> Predictive:
    outputs = torch.randn(draws, rows, 1, generator=torch.Generator().manual_seed(0)).double()
    return Predictive(outputs, tb.likelihoods.Gaussian(0.5))


def labels(draws: int = 2, rows: int = 4) -> Predictive:
    outputs = torch.randn(draws, rows, 3, generator=torch.Generator().manual_seed(0)).double()
    return Predictive(outputs, tb.likelihoods.Categorical())


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.999])
def test_half_of_the_rest_lies_on_either_side(level: float) -> None:
    predictive = numbers()
    mixture = distributions.Normal(predictive.outputs_SBK, 0.5)
    low, high = predictive.interval(level)
    for end, share in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
        torch.testing.assert_close(mixture.cdf(end).mean(0), torch.full_like(end, share), rtol=0, atol=1e-9)
    one = Predictive(predictive.outputs_SBK[:1], tb.likelihoods.Gaussian(0.5))
    half = distributions.Normal(0.0, 0.5).icdf(torch.tensor((1 + level) / 2, dtype=torch.float64))
    torch.testing.assert_close(one.interval(level)[1], one.mean + half, rtol=0, atol=1e-8)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 90.0, float("nan")])
def test_a_level_that_is_no_probability_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        numbers().interval(level)
    with pytest.raises(ValueError, match="level"):
        numbers().frame(level=level)


def test_classes_have_no_interval() -> None:
    with pytest.raises(TypeError, match="classes"):
        labels().interval()


def test_a_frame_holds_numbers_in_raw_units() -> None:
    pytest.importorskip("pandas")
    predictive, raw = numbers(), Standardise(torch.tensor([10.0]), torch.tensor([4.0]))
    frame = predictive.frame(level=0.8, targets=raw)
    assert list(frame) == ["mean", "sd", "sd_of_function", "low_0.8", "high_0.8"]
    assert frame["mean"].to_list() == pytest.approx((predictive.mean[:, 0] * 4 + 10).tolist())
    assert frame["sd"].to_list() == pytest.approx((predictive.variance[:, 0].sqrt() * 4).tolist())
    assert frame["low_0.8"].to_list() == pytest.approx((predictive.interval(0.8)[0][:, 0] * 4 + 10).tolist())


def test_a_frame_names_the_classes() -> None:
    pytest.importorskip("pandas")
    frame = labels().frame(classes=("a", "b", "c"))
    assert list(frame) == ["prediction", "p(a)", "p(b)", "p(c)", "entropy", "mutual_information"]
    assert frame[["p(a)", "p(b)", "p(c)"]].sum(axis=1).to_list() == pytest.approx([1.0] * 4)
    assert list(frame["prediction"]) == ["abc"[k] for k in labels().probs.argmax(1).tolist()]


def test_a_tree_of_outputs_is_no_frame() -> None:
    pytest.importorskip("pandas")
    places = Predictive(torch.zeros(2, 4, 5, 3), tb.likelihoods.Categorical())
    with pytest.raises(TypeError, match="no columns"):
        places.frame()

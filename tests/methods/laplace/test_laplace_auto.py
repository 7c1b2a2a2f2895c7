"""`curvature="auto"`: exact for few outputs a row, sampled for many; a warning where many are asked for exactly."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.curvature.discovery import LayerSupport
from torchbayes.methods.laplace import curvature_pass
from torchbayes.methods.laplace.curvature_pass import MOST_OUTPUTS, CurvatureSettings

ROWS = 4


def model_of(classes: int, places: int = 1) -> tb.Model:
    torch.manual_seed(0)
    head = nn.Linear(2, classes * places, bias=False, dtype=torch.float64)
    net = nn.Sequential(head, nn.Unflatten(1, (places, classes))) if places > 1 else head
    return tb.Model(net, tb.likelihoods.Categorical())


def data_of(classes: int, places: int = 1) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    labels = torch.randint(classes, (ROWS, places), generator=source)
    return torch.randn(ROWS, 2, generator=source), labels if places > 1 else labels[:, 0]


def fitted(classes: int, places: int = 1, **settings: Any) -> dict[str, Tensor]:
    model, method = (
        model_of(classes, places),
        tb.Laplace(**{"structure": "diagonal", "check_mode": False, "prior": "model", **settings}),
    )
    start = model.given_weights()
    return tb.fit(model, data_of(classes, places), method, start=start, callbacks=()).tensors()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("classes", "places"),
    [(3, 1), *(pytest.param(*case, marks=pytest.mark.study) for case in ((MOST_OUTPUTS, 1), (MOST_OUTPUTS // 4, 4)))],
)
def test_it_is_exact_up_to_the_threshold(classes: int, places: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual, exact = fitted(classes, places), fitted(classes, places, curvature="ggn")
    assert same(actual, exact)
    assert not same(actual, fitted(classes, places, curvature="fisher"))


@pytest.mark.parametrize(
    ("classes", "places"), [pytest.param(MOST_OUTPUTS + 1, 1, marks=pytest.mark.study), (MOST_OUTPUTS // 4 + 1, 4)]
)
def test_it_is_sampled_above_the_threshold(classes: int, places: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual, sampled = fitted(classes, places, samples=2), fitted(classes, places, samples=2, curvature="fisher")
    assert same(actual, sampled)
    said = rf"each of the {classes * places:,} outputs of a row; curvature='fisher', .* takes 2 in all. 'auto' chooses"
    with pytest.warns(UserWarning, match=said):
        assert not same(actual, fitted(classes, places, samples=2, curvature="ggn"))


def test_a_low_rank_is_exact_for_any_number_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature_pass, "MOST_OUTPUTS", 4)
    defaults = (CurvatureSettings.__init__.__defaults__ or ())[:-1]
    monkeypatch.setattr(CurvatureSettings.__init__, "__defaults__", (*defaults, 4))  # of `most_outputs`
    settings = {"structure": "low_rank", "rank": 2, "passes": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(fitted(5), fitted(5, curvature="fisher")), "four outputs are the most"
        exact = fitted(5, **settings, curvature="ggn")
        assert same(fitted(5, **settings), exact)


def test_the_support_remembers_the_number_of_outputs() -> None:
    model = model_of(5, 4)
    posterior: Any = tb.fit(
        model, data_of(5, 4), tb.Laplace(check_mode=False, prior="model"), start=model.given_weights()
    )
    assert LayerSupport.parse(posterior.layer_support).outputs == 20


@pytest.mark.parametrize(("classes", "curvature"), [(50, "ggn"), (51, "fisher")])
def test_a_run_of_many_passes_is_exact_up_to_fifty_outputs(classes: int, curvature: Any) -> None:
    actual, auto = [], tb.OnlineLaplace("diagonal", epochs_of_descent=2, check_mode=False)
    for method in (auto, replace(auto, curvature=curvature)):
        actual.append(tb.fit(model_of(classes), data_of(classes), method, callbacks=()).tensors())
    assert same(*actual)

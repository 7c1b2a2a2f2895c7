"""A class that is masked: its logit is −∞, or very low, and everything is as for the network without that class."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.oracles import assert_close, classes, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.metrics import fit_temperature
from torchbayes.model.likelihoods.expected import expected_lse

MASKS = [-math.inf, torch.finfo(torch.float64).min, -1e9]
K, ROWS = 4, 24
FULL = [0, 1, 3]  # classes that are not masked


class Masked(nn.Module):
    """A classifier with a mask on one class, everywhere or in the rows whose first input is positive."""

    def __init__(self, mask: float, *, added: bool = False, by_row: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, K)).double()
        self.mask, self.added, self.by_row = mask, added, by_row

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, where = self.body(inputs), torch.arange(K) == 2
        where = where & (inputs[..., :1] > 0) if self.by_row else where
        mask = torch.zeros_like(outputs).masked_fill(where, self.mask)
        return outputs + mask if self.added else torch.where(where, self.mask, outputs)


def without() -> nn.Module:
    """Return the same network without the masked class."""
    body: Any = Masked(0.0).body
    last = nn.Linear(5, K - 1).double()
    with torch.no_grad():
        last.weight.copy_(body[2].weight[FULL])
        last.bias.copy_(body[2].bias[FULL])
    return nn.Sequential(body[0], body[1], last)


def rows() -> tuple[Tensor, Tensor]:
    return normal(ROWS, 3, seed=1), classes(ROWS, K - 1, seed=2)


@cache
def laplace(structure: str, mask: float | None, **network: Any) -> Any:
    inputs, labels = rows()
    net = without() if mask is None else Masked(mask, **network)
    targets = labels if mask is None else torch.tensor(FULL)[labels]
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    method = tb.Laplace(structure=structure, prior="model", check_mode=False)
    return tb.fit(model, (inputs, targets), method, start=net, callbacks=())


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("added", [False, True], ids=["set", "added"])
def test_laplace_predicts_as_without_the_class(structure: str, mask: float, added: bool):
    masked, plain = laplace(structure, mask, added=added), laplace(structure, None)
    inputs, labels = rows()
    for link in ("auto", "pairwise", "bridge", "probit"):
        actual, expected = (tb.predict(tb.Linearised(each, link), inputs) for each in (masked, plain))
        assert_close(actual.probs[:, FULL], expected.probs, rtol=1e-8)
        assert not actual.probs[:, 2].any()
        assert_close(actual.entropy, expected.entropy, rtol=1e-8)
        scaled = tb.TemperatureScaling.fit(actual, torch.tensor(FULL)[labels])
        assert math.isclose(scaled.temperature, tb.TemperatureScaling.fit(expected, labels).temperature, rel_tol=1e-6)
        assert_close(scaled(actual).probs.sum(-1), torch.ones(ROWS).double())
    # the evidence lacks the prior of the weights of the class at the mode, −½ |w|²
    lost = masked.mean_MD.square().sum() - plain.mean_MD.square().sum()
    assert_close(masked.log_evidence() + 0.5 * lost, plain.log_evidence(), rtol=1e-8)
    expected = tb.evaluate(plain, (inputs, labels)).metrics
    assert tb.evaluate(masked, (inputs, torch.tensor(FULL)[labels])).metrics == pytest.approx(expected, rel=1e-7)


def test_masks_of_rows_and_draws():
    inputs = rows()[0]
    for by_row in (False, True):
        source, masked = laplace("dense", -math.inf, by_row=by_row), inputs[:, 0] > (0 if by_row else -math.inf)
        for predictive in (tb.predict(source, inputs), tb.predict(source, inputs, draws=8)):
            assert not predictive.probs[masked, 2].any()
            assert (predictive.probs[~masked, 2] > 0).all()
            assert_close(predictive.probs.sum(-1), torch.ones(ROWS).double())
            parts = predictive.expected_entropy + predictive.mutual_information
            assert_close(parts, predictive.entropy)


def test_the_functional_form_is_that_of_the_dense_matrix():
    inputs, labels = rows()
    net = Masked(-math.inf)
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    functional = tb.functional_laplace(model, (inputs, torch.tensor(FULL)[labels]), net)
    dense = laplace("dense", -math.inf)
    assert_close(functional.predictive(inputs).probs, tb.predict(dense, inputs).probs, rtol=1e-8)
    assert_close(functional.log_evidence(), dense.log_evidence()[0], rtol=1e-9)


@pytest.mark.parametrize(("at", "mask", "soft"), [(0, -math.inf, True), (2, -math.inf, False), (2, MASKS[1], True)])
def test_expectation_propagation_is_that_of_fewer_classes(at: int, mask: float, soft: bool):
    inputs, labels = (each[:8] for each in rows())
    kept, labels = [k for k in range(3) if k != at], labels % 2

    class Linear(nn.Module):
        def __init__(self, outputs: int):
            super().__init__()
            self.linear = nn.Linear(3, outputs, dtype=torch.float64)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs = self.linear(inputs)
            return outputs if outputs.shape[-1] == 2 else outputs.masked_fill(torch.arange(3) == at, mask)

    actual = []
    for count in (2, 3):
        targets: Tensor = normal(8, 2, seed=4).softmax(-1) if soft else labels
        if count == 3:
            wider = torch.zeros(8, 3).double().index_copy(1, torch.tensor(kept), targets) if soft else None
            targets = torch.tensor(kept)[targets] if wider is None else wider
        model = tb.Model(Linear(count), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
        posterior: Any = tb.fit(model, (inputs, targets), tb.EP(), callbacks=())
        weight = model.network.layout.split(posterior.mean_MD)["linear.weight"][0]
        actual.append((weight if count == 2 else weight[kept], posterior.log_evidence()))
    assert_close(actual[1][0], actual[0][0], rtol=1e-4, atol=1e-6)
    assert_close(actual[1][1], actual[0][1], rtol=1e-7)


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_a_last_layer_is_fitted_as_without_the_class(mask: float, soft: bool):
    """With the prior alone on the weights of the class, which are apart from the others."""
    inputs, labels = rows()
    values = normal(ROWS, K - 1, seed=4).softmax(-1) if soft else labels
    wider = torch.zeros(ROWS, K).double()
    wider[:, FULL] = F.one_hot(labels, K - 1).double() if not soft else values
    actual = []
    for net, targets in ((without(), values), (Masked(mask), wider if soft else torch.tensor(FULL)[labels])):
        model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
        method = tb.VBLL(epochs=3, kl_weight=1.0, optimizer=tb.SGD(0.05, momentum=0.0), covariance="diagonal")
        posterior: Any = tb.fit(model, (inputs, targets), method, start=net, callbacks=())
        probs = tb.predict(posterior, inputs[:4]).probs
        assert probs.shape[1] < K or not probs[:, 2].any()
        both = (posterior.mean_MD, posterior.covariance.diagonal())
        first, _, weight, bias = zip(*[model.network.layout.split(each).values() for each in both], strict=True)
        kept = FULL if probs.shape[1] == K else [0, 1, 2]
        actual.append([*first, *[each[:, kept] for each in (*weight, *bias)]])
    for mine, expected in zip(*actual, strict=True):
        assert_close(mine, expected, rtol=1e-7)


def test_functions_of_an_ensemble_repel_where_no_mask_is():
    inputs, labels = rows()
    weights = []
    for net, targets in ((Masked(-math.inf), torch.tensor(FULL)[labels]), (Masked(-1e9), torch.tensor(FULL)[labels])):
        model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
        method = tb.RepulsiveEnsemble(members=3, epochs=2, prior="functions", plan="loop")
        posterior: Any = tb.fit(model, (inputs, targets), method, callbacks=())
        weights.append(posterior.weights_MD)
    assert torch.isfinite(weights[0]).all()
    assert_close(weights[0], weights[1])


@pytest.mark.parametrize("bound", ["jensen", "knowles_minka"])
def test_bounds_are_those_of_fewer_classes(bound: Any):
    mean, variance = normal(5, K), normal(5, K, seed=1).exp()
    mean[:, 2] = -math.inf
    assert_close(expected_lse(mean, variance, bound=bound), expected_lse(mean[:, FULL], variance[:, FULL], bound=bound))


def test_a_temperature_leaves_out_classes_of_probability_zero():
    outputs, labels = 3 * normal(50, 3), classes(50, 3, seed=1)
    wider = torch.cat([outputs, torch.full((50, 1), -math.inf).double()], dim=1)
    assert math.isclose(fit_temperature(wider, labels), fit_temperature(outputs, labels), rel_tol=1e-8)
    soft = normal(50, 3, seed=2).softmax(-1)
    with_zero = torch.cat([soft, torch.zeros(50, 1).double()], dim=1)
    assert math.isclose(fit_temperature(wider, with_zero), fit_temperature(outputs, soft), rel_tol=1e-8)


class Sick(nn.Module):
    """Outputs that are not numbers where the first input is above 2."""

    def __init__(self, value: float):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.value = nn.Linear(3, K).double(), value

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.where(inputs[..., :1] > 2, self.value, self.linear(inputs))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("draws", [None, 4])
def test_outputs_that_say_nothing_are_said(value: float, draws: int | None):
    net, (inputs, labels) = Sick(value), rows()
    inputs = inputs.clamp(max=1.9)
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    method = tb.Laplace(structure="diagonal", prior="model", check_mode=False)
    posterior = tb.fit(model, (inputs, labels), method, start=net, callbacks=())
    inputs[[3, 7], 0] = 3.0
    with pytest.raises(ValueError, match=f"at 2 of {ROWS} inputs, the first of them 3"):
        tb.predict(posterior, inputs, draws=draws)
    with pytest.raises(ValueError, match=r"not finite|no weights make it likely"):
        tb.functional_laplace(model, (inputs, labels), net)


def test_labels_of_masked_classes_are_said():
    inputs, labels = rows()
    net = Masked(-math.inf)
    for likelihood, targets in (
        (tb.likelihoods.Categorical(), labels),  # of which some are 2, the masked one
        (tb.likelihoods.Categorical(label_smoothing=0.1), torch.tensor(FULL)[labels]),
        (tb.likelihoods.Weighted(tb.likelihoods.Categorical()), (labels, torch.ones(ROWS).double())),
    ):
        with pytest.raises(ValueError, match="no weights make it likely"):
            tb.fit(tb.Model(net, likelihood), (inputs, targets), tb.MAP(epochs=1), callbacks=())
    rows_of_none = tb.likelihoods.Weighted(tb.likelihoods.Categorical())
    tb.Model(net, rows_of_none).check(tb.Batch(inputs, (labels, (labels != 2).double())))

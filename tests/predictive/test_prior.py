"""Functions drawn from a prior: closed forms of their correlations, every prior, every form of inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.laws.cases import normal
from torch import Tensor, distributions, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from torchbayes.linalg import Diagonal

GAUSSIAN = tb.likelihoods.Gaussian(0.3)


def linear(inputs: int = 3, outputs: int = 1, *, bias: bool = False, prior: Any = None) -> tb.Model:
    return tb.Model(nn.Linear(inputs, outputs, bias=bias).double(), GAUSSIAN, prior or tb.priors.Normal(0.7))


def cosines(inputs: Tensor) -> Tensor:
    unit = inputs / inputs.norm(dim=1, keepdim=True)
    return unit @ unit.T


def error_of(correlation: Tensor, draws: int) -> Tensor:
    """Standard error of a sample correlation."""
    return (1 - correlation**2) / math.sqrt(draws) + 1e-6


def test_the_correlation_of_a_linear_model_is_the_cosine_whatever_the_scale():
    inputs = normal(6, 3)
    for scale in (0.02, 1.0, 40.0):
        actual = tb.prior_predictive(linear(outputs=2, prior=tb.priors.Normal(scale)), inputs, draws=4000, seed=3)
        exact = cosines(inputs)
        for each in (*actual.correlation_KBB, actual.correlation):
            assert ((each - exact).abs() < 4 * error_of(exact, 4000)).all()
            assert torch.allclose(each.diagonal(), torch.ones(6, dtype=torch.float64))
        assert torch.equal(actual.correlation, actual.correlation.T)


def test_outputs_have_the_variance_of_the_prior_through_the_likelihood():
    inputs = normal(5, 3)
    actual = tb.prior_predictive(linear(bias=True), inputs, draws=6000)
    exact = 0.7**2 * (inputs.square().sum(1, keepdim=True) + 1)
    assert torch.allclose(actual.predictive.variance, exact + 0.3**2, rtol=0.08)
    assert torch.allclose(actual.outputs_SBK.var(0), exact, rtol=0.08)
    assert actual.predictive.mean.abs().max() < 4 * (exact / 6000).sqrt().max()


def test_a_wide_relu_network_has_the_arc_cosine_kernel():
    inputs, width, draws = normal(5, 3, seed=2), 400, 1500
    net = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1)).double()
    prior = tb.priors.FanInNormal(gain=1.0, bias_scale=0.5)
    actual = tb.prior_predictive(tb.Model(net, GAUSSIAN, prior), inputs, draws=draws, seed=1)
    first = inputs @ inputs.T / 3 + 0.25
    norm = first.diagonal().sqrt()
    angle = (first / torch.outer(norm, norm)).clamp(-1, 1).acos()
    second = torch.outer(norm, norm) * (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi) + 0.25
    scale = second.diagonal().sqrt()
    exact = second / torch.outer(scale, scale)
    assert ((actual.correlation - exact).abs() < 4 * error_of(exact, draws)).all()
    assert torch.allclose(actual.outputs_SBK.squeeze(-1).var(0), second.diagonal(), rtol=0.12)


def test_correlations_are_those_of_numpy():
    import numpy as np

    actual = tb.prior_predictive(linear(outputs=2, bias=True), normal(4, 3), draws=9)
    for k in range(2):
        expected = np.corrcoef(actual.outputs_SBK[:, :, k].numpy(), rowvar=False)
        assert np.allclose(actual.correlation_KBB[k].numpy(), expected)
    assert torch.allclose(actual.correlation, actual.correlation_KBB.mean(0))


def test_class_correlations_average_pairs_of_different_inputs():
    actual = tb.prior_predictive(linear(), normal(6, 3), draws=50)
    labels = torch.tensor([7, 2, 2, 7, 2, 9])
    table, by_pair = actual.class_correlation(labels), actual.correlation
    for i, first in enumerate((2, 7, 9)):
        for j, second in enumerate((2, 7, 9)):
            pairs = [
                float(by_pair[a, b])
                for a in range(6)
                for b in range(6)
                if a != b and labels[a] == first and labels[b] == second
            ]
            if pairs:
                assert float(table[i, j]) == pytest.approx(sum(pairs) / len(pairs))
            else:
                assert table[i, j].isnan()
    assert torch.allclose(actual.class_correlation(labels.tolist()), table, equal_nan=True)


def test_an_input_where_functions_do_not_vary_has_no_correlation():
    inputs = torch.cat([torch.zeros(1, 3, dtype=torch.float64), normal(3, 3)])
    actual = tb.prior_predictive(linear(outputs=2), inputs, draws=20)
    assert actual.correlation[0].isnan().all()
    assert actual.correlation[1:, 1:].isfinite().all()
    assert actual.class_correlation([0, 0, 0, 1]).isfinite()[0].all()  # the pairs of the others


def test_functions_are_the_same_on_other_inputs_and_by_seed():
    model, inputs = linear(), normal(4, 3)
    actual = tb.prior_predictive(model, inputs, draws=5, seed=2)
    again = tb.prior_predictive(model, inputs[2:], draws=5, seed=2, chunk_size=1)
    assert torch.allclose(actual.outputs_SBK[:, 2:], again.outputs_SBK)
    assert torch.equal(actual.weights_SD, again.weights_SD)
    assert torch.equal(actual.functions(inputs), actual.outputs_SBK)
    assert not torch.equal(tb.prior_predictive(model, inputs, draws=5, seed=3).outputs_SBK, actual.outputs_SBK)


def test_weights_drawn_in_blocks_are_independent(monkeypatch):
    monkeypatch.setattr("torchbayes.predictive.prior._BLOCK", 3 * 7)
    weights = tb.prior_predictive(linear(), normal(1, 3), draws=2000).weights_SD / 0.7
    assert len(weights.unique(dim=0)) == 2000
    assert torch.allclose(weights.T.cov(), torch.eye(3, dtype=torch.float64), atol=0.1)


PRIORS = {
    "normal": tb.priors.Normal(),
    "laplace": tb.priors.Laplace(),
    "student": tb.priors.StudentT(3.0),
    "logistic": tb.priors.Logistic(),
    "mixture": tb.priors.NormalMixture(),
    "fan-in": tb.priors.FanInNormal(),
    "horseshoe": tb.priors.Horseshoe(0.1),
    "univariate": distributions.Cauchy(0.0, 0.1),
    "rules": {"0.*": tb.priors.Normal(0.1), "*": tb.priors.Laplace(2.0)},
}


@pytest.mark.parametrize("name", PRIORS)
def test_every_proper_prior_gives_functions(name):
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    model = tb.Model(net, tb.likelihoods.Categorical(), PRIORS[name])
    actual = tb.prior_predictive(model, normal(5, 2, dtype=torch.float32), draws=30)
    assert actual.outputs_SBK.shape == (30, 5, 3)
    assert actual.outputs_SBK.dtype == torch.float32
    assert torch.allclose(actual.predictive.probs.sum(-1), torch.ones(5))
    assert actual.correlation.isfinite().all()


def test_a_joint_prior_gives_its_functions():
    covariance = Diagonal(torch.full((1, 3), 1e-6, dtype=torch.float64))
    joint = tb.as_prior(tb.Gaussian(linear(), torch.arange(3.0, dtype=torch.float64)[None], covariance))
    actual = tb.prior_predictive(linear(prior=joint), torch.eye(3, dtype=torch.float64), draws=20)
    assert torch.allclose(actual.predictive.mean[:, 0], torch.arange(3.0, dtype=torch.float64), atol=1e-2)


@pytest.mark.parametrize(
    "prior", [tb.priors.Flat(), tb.priors.LogUniform(), {"bias": tb.priors.Flat(), "*": tb.priors.Normal()}]
)
def test_an_improper_prior_is_refused(prior):
    with pytest.raises(ValueError, match="improper"):
        tb.prior_predictive(tb.Model(nn.Linear(2, 1), GAUSSIAN, prior), torch.ones(3, 2))


def test_learned_noise_is_drawn_too():
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian("learned"), tb.priors.Normal())
    actual = tb.prior_predictive(model, normal(3, 2), draws=40)
    noise = actual.predictive.distribution.stddev
    assert noise.expand(40, 3, 1)[:, 0, 0].unique().numel() == 40


def test_inputs_in_any_form():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            return self.layer(one + two)

    model, inputs = tb.Model(Sum(), GAUSSIAN), normal(5, 2, dtype=torch.float32)
    both = tb.prior_predictive(model, {"one": inputs, "two": inputs}, draws=4).outputs_SBK
    assert torch.allclose(both, tb.prior_predictive(model, (2 * inputs, 0 * inputs), draws=4).outputs_SBK)
    plain = tb.Model(nn.Linear(2, 1), GAUSSIAN)
    loader = DataLoader(TensorDataset(inputs, inputs), batch_size=2)
    expected = tb.prior_predictive(plain, inputs, draws=4)
    assert torch.allclose(tb.prior_predictive(plain, loader, draws=4).outputs_SBK, expected.outputs_SBK)


def test_places_of_a_row_count_as_outputs():
    model = tb.Model(nn.Linear(3, 2).double(), GAUSSIAN)
    inputs = normal(4, 5, 3)
    actual = tb.prior_predictive(model, inputs, draws=300)
    assert actual.outputs_SBK.shape == (300, 4, 5, 2)
    assert actual.correlation_KBB.shape == (10, 4, 4)
    assert torch.allclose(actual.correlation, actual.correlation_KBB.mean(0))


def test_batch_norm_has_the_statistics_of_the_calibration_inputs():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1)).double()
    model, inputs = tb.Model(net, GAUSSIAN), normal(50, 3)
    with pytest.raises(ValueError, match=r"`1` is a batch norm.*calibration=inputs"):
        tb.prior_predictive(model, inputs)
    actual = tb.prior_predictive(model, inputs[:2], draws=3, calibration=inputs)
    uneven = tb.prior_predictive(model, inputs[:2], draws=3, calibration=inputs, chunk_size=49)  # no batch of one row
    assert uneven.outputs_SBK.isfinite().all()
    loader = DataLoader(TensorDataset(inputs, inputs), batch_size=50)
    same = tb.prior_predictive(model, inputs[:2], draws=3, calibration=loader)
    assert torch.allclose(actual.outputs_SBK, same.outputs_SBK)
    for s in range(3):
        views, _ = model.split(actual.weights_SD[s])
        hidden = inputs @ views["0.weight"].T + views["0.bias"]
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0) + 1e-5).sqrt()
        expected = hidden[:2] @ views["2.weight"].T + views["2.bias"]
        assert torch.allclose(actual.outputs_SBK[s], expected)


def test_dropout_is_off():
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    plain = nn.Sequential(nn.Linear(3, 4), nn.Identity(), nn.Linear(4, 1)).double()
    first, second = (tb.prior_predictive(tb.Model(n, GAUSSIAN), normal(4, 3), draws=3) for n in (net, plain))
    assert torch.equal(first.outputs_SBK, second.outputs_SBK)


def test_what_has_no_correlation_is_said():
    one = tb.prior_predictive(linear(), normal(2, 3), draws=1)
    with pytest.raises(ValueError, match="at least 2 draws; got 1"):
        _ = one.correlation
    wild = tb.Model(nn.Linear(3, 1), GAUSSIAN, tb.priors.Normal(1e38))
    told = pytest.warns(tb.ProblemWarning, match="drawn are not finite")
    with pytest.raises(ValueError, match="NaN or infinite"), told:
        _ = tb.prior_predictive(wild, normal(4, 3, dtype=torch.float32) * 1e3).correlation
    actual = tb.prior_predictive(linear(), normal(2, 3))
    for labels, error in (([0, 1, 2], ValueError), ([0.5, 1.0], TypeError), ("ab", TypeError), (None, TypeError)):
        with pytest.raises(error, match="`labels`"):
            actual.class_correlation(labels)


def test_nonsense_inputs_are_refused():
    for inputs in (torch.full((2, 3), math.nan), torch.zeros(0, 3)):
        with pytest.raises(ValueError, match="inputs"):
            tb.prior_predictive(linear(), inputs)

"""Predicted numbers, row by row, against evaluate and arithmetic by hand."""

from typing import ClassVar

import pytest
import torch
from tests.laws.cases import normal
from torch import nn
from torch.distributions import Distribution, MultivariateNormal

import torchbayes as tb
from torchbayes import likelihoods
from torchbayes.assess.intervals import predicted_numbers
from torchbayes.posteriors import Point


def posterior_of(likelihood, outputs: int = 1, members: int = 2) -> Point:
    model = tb.Model(nn.Linear(2, outputs).double(), likelihood)
    return Point(model, normal(members, model.layout.size, seed=3))


class Silent(Distribution):
    """A density and nothing else."""

    arg_constraints: ClassVar = {}  # type: ignore[assignment]

    def __init__(self, outputs):
        self.outputs = outputs
        super().__init__(outputs.shape, validate_args=False)

    def log_prob(self, value):
        return -0.5 * (value - self.outputs).square()


def test_they_are_those_of_evaluate():
    posterior = posterior_of(likelihoods.Gaussian(scale=0.7))
    data = normal(2500, 2), normal(2500, 1, seed=1)  # in three batches
    actual, expected = predicted_numbers(posterior, data), tb.evaluate(posterior, data)
    assert actual is not None
    assert expected.mean is not None
    assert expected.scale is not None
    torch.testing.assert_close(actual.mean, expected.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(actual.scale, expected.scale, rtol=1e-12, atol=0)
    assert torch.equal(actual.targets, data[1])
    inside = (actual.low <= actual.targets) & (actual.targets <= actual.high)
    assert inside.double().mean().item() == pytest.approx(expected.metrics["coverage"], abs=1e-12)
    assert (actual.levels <= 0.95).double().mean().item() == pytest.approx(expected.metrics["coverage"], abs=1e-12)
    assert actual.weights.tolist() == [1.0] * 2500


def test_one_target_or_several_for_a_row():
    inputs = normal(5, 2)
    plain = predicted_numbers(posterior_of(likelihoods.Gaussian(scale=1.0)), (inputs, normal(5)))
    assert plain is not None
    assert plain.targets.shape == plain.levels.shape == (5, 1)
    three = predicted_numbers(posterior_of(likelihoods.Gaussian(scale=1.0), 3), (inputs, normal(5, 3)))
    assert three is not None
    assert three.low.shape == (5, 3)
    assert torch.equal(three.targets, normal(5, 3))


def test_rows_of_weight_zero_are_left_out():
    posterior = posterior_of(likelihoods.Weighted(likelihoods.Gaussian(scale=1.0)))
    targets, weights = normal(4, 1), torch.tensor([1.0, 0.0, 2.0, 0.5]).double()
    actual = predicted_numbers(posterior, (normal(4, 2), (targets, weights)))
    assert actual is not None
    assert torch.equal(actual.targets, targets[[0, 2, 3]])
    assert actual.weights.tolist() == [1.0, 2.0, 0.5]


def test_counts_have_intervals():
    actual = predicted_numbers(posterior_of(likelihoods.Poisson()), (normal(6, 2), torch.arange(6).double()[:, None]))
    assert actual is not None
    assert actual.is_finite
    assert (actual.low <= actual.high).all()
    assert (actual.low >= 0).all()


def test_moments_that_do_not_exist_are_said():
    heavy = likelihoods.StudentT(df=1.0, scale=1.0)
    actual = predicted_numbers(posterior_of(heavy), (normal(6, 2), normal(6, 1)))
    assert actual is not None
    assert not actual.is_finite
    assert actual.low.isfinite().all()


def test_what_has_no_numbers_has_none_and_several_at_once_have_each_their_own():
    labels = torch.tensor([0, 1, 1, 0])
    assert predicted_numbers(posterior_of(likelihoods.Categorical(), 2), (normal(4, 2), labels)) is None
    both = likelihoods.Custom(lambda outputs: MultivariateNormal(outputs, torch.eye(2, dtype=torch.float64)))
    pair = predicted_numbers(posterior_of(both, 2, members=1), (normal(4, 2), normal(4, 2, seed=1)))
    assert pair is not None  # by samples of each; 2,000 of them give the end of an interval to about 0.06
    torch.testing.assert_close(pair.low, pair.mean - 1.96, rtol=0, atol=0.2)
    without = likelihoods.Custom(Silent)
    assert predicted_numbers(posterior_of(without), (normal(4, 2), normal(4, 1))) is None

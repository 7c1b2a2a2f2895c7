"""The posterior over finitely many functions, against moments by hand and BoTorch's own class."""

from typing import Any

import pytest
import torch

pytest.importorskip("botorch")

import botorch.sampling.get_sampler as sampling
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from botorch.sampling.index_sampler import IndexSampler

from tests.botorch.cases import points
from tests.oracles import assert_close
from torchbayes.botorch import DrawnPosterior

SHAPE = torch.Size([128])
get_sampler: Any = sampling.get_sampler


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 10, 2), (5, 7, 10, 1), (2, 5, 7, 3, 2)])
def test_moments_are_those_of_an_ensemble(shape, dtype):
    values = points(*shape, dtype=dtype)
    ours, theirs = DrawnPosterior(values), EnsemblePosterior(values)
    for name in ("mean", "variance", "mixture_mean", "mixture_variance"):
        assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4)
    assert_close(ours.variance, values.var(-3), rtol=1e-4)
    assert ours._extended_shape(SHAPE) == theirs._extended_shape(SHAPE) == SHAPE + shape[:-3] + shape[-2:]
    assert ours.rsample(SHAPE).shape == ours._extended_shape(SHAPE)
    assert ours.dtype == dtype


def test_weights_of_every_place_of_a_batch():
    values, weights = points(4, 3, 2), points(6, 5, 4)
    posterior, shares = DrawnPosterior(values, weights), weights / weights.sum(-1, keepdim=True)
    mean = torch.einsum("abs,sqm->abqm", shares, values)
    assert_close(posterior.mean, mean)
    squares = (shares[..., None, None] * (values - mean.unsqueeze(-3)).square()).sum(-3)
    assert_close(posterior.variance, squares / (1 - shares.square().sum(-1))[..., None, None])
    assert posterior.batch_shape == (6, 5)
    samples = get_sampler(posterior, torch.Size([4096]), seed=0)(posterior)
    assert_close(samples.mean(0), mean, atol=1e-3)
    assert_close(samples.var(0, correction=0), squares, rtol=0.02)


def test_a_sample_is_one_function_at_all_points_and_places():
    values = torch.arange(5.0)[:, None, None].expand(3, 5, 4, 2)
    samples = get_sampler(DrawnPosterior(values), SHAPE, seed=0)(DrawnPosterior(values))
    assert_close(samples, samples[:, :1, :1, :1].expand_as(samples))
    counts = samples[:, 0, 0, 0].long().bincount()
    assert counts.min() >= 24
    assert counts.max() <= 27  # quasi-random numbers are spread evenly over 5 functions


@pytest.mark.parametrize("sampler", [SobolQMCNormalSampler, IIDNormalSampler, IndexSampler])
def test_samplers_reproduce_mean_and_variance(sampler):
    posterior = DrawnPosterior(points(9, 3, 2))
    samples = sampler(torch.Size([4096]), seed=1)(posterior)
    assert_close(samples.mean(0), posterior.mean, rtol=0.1)
    assert_close(samples.var(0), posterior.variance * 8 / 9, rtol=0.1)


def test_noise_is_added_to_each_function():
    values, noise = points(9, 3, 2), points(9, 3, 2, seed=6)
    posterior = DrawnPosterior(values, noise=noise)
    assert_close(posterior.variance, values.var(-3) + noise.mean(-3))
    samples = get_sampler(posterior, torch.Size([2**14]), seed=1)(posterior)
    assert_close(samples.mean(0), values.mean(-3), atol=0.01)
    assert_close(samples.var(0), values.var(-3, correction=0) + noise.mean(-3), rtol=0.05)
    with pytest.raises(ValueError, match="no noise can be made"):
        IndexSampler(SHAPE)(posterior)


def test_one_function_is_certain():
    posterior = DrawnPosterior(points(1, 3, 2))
    assert_close(posterior.variance, torch.zeros(3, 2).double())
    assert_close(posterior.rsample(torch.Size([4])), posterior.values.expand(4, 3, 2))
    collapsed = DrawnPosterior(points(3, 4, 1), torch.tensor([0.0, 1.0, 0.0]))
    assert_close(collapsed.variance, torch.zeros(4, 1).double())


def test_empty_batches_and_wrong_shapes():
    empty = DrawnPosterior(points(0, 3, 5, 2))
    assert empty.rsample(torch.Size([4])).shape == (4, 0, 5, 2)
    with pytest.raises(ValueError, match=r"must have shape \(4, 1\); got \(5, 1\)"):
        DrawnPosterior(points(3, 5, 2)).rsample_from_base_samples(torch.Size([4]), torch.zeros(5, 1))


def test_a_sum_of_targets():
    values, noise, weights = points(4, 3, 2), points(4, 3, 2, seed=1), torch.tensor([0.5, -2.0]).double()
    scalar = DrawnPosterior(values, noise=noise).weighed(weights, 1.0)
    assert_close(scalar.mean[..., 0], values.mean(0) @ weights + 1)
    assert_close(scalar.variance[..., 0], (values @ weights).var(0) + noise.mean(0) @ weights.square())

"""Modes: the closed form where there is one, two ways to climb, and mirror images of a network."""

import itertools
import math

import numpy as np
import pytest
import torch

import torchbayes as tb
from torchbayes import networks
from torchbayes.evidence import ModelTarget, linear_gaussian_evidence
from torchbayes_experiments.shared.modes import climb, climb_regression, laplace, log_symmetries, rearranged


def problem(rows, hidden, *, outputs=1, noise=0.3, scale=1.2):
    source = torch.Generator().manual_seed(3)
    inputs = torch.randn(rows, 2, generator=source, dtype=torch.float64)
    targets = torch.sin(2 * inputs[:, :1]) + 0.3 * torch.randn(rows, outputs, generator=source, dtype=torch.float64)
    network = networks.mlp(2, outputs, hidden=hidden, activation="tanh").double()
    return tb.Model(network, tb.likelihoods.Gaussian(noise), tb.priors.Normal(scale)), (inputs, targets)


def test_a_linear_model_is_exact():
    model, data = problem(12, ())
    starts_MD = model.starting_weights([0, 1])[0]
    design = torch.cat([data[0], torch.ones(12, 1, dtype=torch.float64)], 1)
    precision = design.mT @ design / 0.3**2 + torch.eye(3, dtype=torch.float64) / 1.2**2
    expected = torch.linalg.solve(precision, design.mT @ data[1] / 0.3**2)[:, 0]
    modes = climb(ModelTarget(model, data, plan="loop"), starts_MD, steps=200)
    mode, promise = climb_regression(model, data, starts_MD[0], steps=50, tolerance=1e-12)
    torch.testing.assert_close(modes[1].weights_D, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mode.weights_D, expected, rtol=1e-8, atol=1e-8)
    assert promise < 1e-12
    posterior, is_mode = laplace(model, data, mode)
    assert is_mode
    exact = linear_gaussian_evidence(model, data).log_evidence
    assert float(posterior.log_evidence()) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("hidden", [2, 8])  # fewer weights than rows, and more
def test_both_climbs_end_at_one_mode(hidden):
    model, data = problem(15, (hidden,))
    target = ModelTarget(model, data, plan="loop")
    start_D = model.starting_weights([4])[0][0]
    mode, promise = climb_regression(model, data, start_D, steps=300, tolerance=1e-10)
    again = climb(target, mode.weights_D[None], steps=2000)[0]
    value = target.parts(mode.weights_D[None]).at(torch.ones(1))
    assert mode.log_joint == pytest.approx(float(value.log_density), rel=1e-10)
    assert again.log_joint == pytest.approx(mode.log_joint, abs=1e-6)
    assert float(value.gradient.norm()) < 1e-3
    # what it promises is what the Gauss-Newton posterior says of the gradient
    early, far = climb_regression(model, data, start_D, steps=1, tolerance=0.0)
    assert far > promise
    posterior, _ = laplace(model, data, early)
    gradient_D = target.parts(early.weights_D[None]).at(torch.ones(1)).gradient[0]
    covariance = posterior.gaussian.covariance.dense()[0]
    one_more = climb_regression(model, data, early.weights_D, steps=1, tolerance=math.inf)[1]
    assert one_more == pytest.approx(0.5 * float(gradient_D @ covariance @ gradient_D), rel=1e-8)


def test_modes_are_ordered_and_a_slope_is_said_to_be_none():
    model, data = problem(40, (3,))
    target = ModelTarget(model, data, plan="loop")
    modes = climb(target, target.draw(4, 0), steps=500)
    heights = [mode.log_joint for mode in modes]
    assert heights == sorted(heights, reverse=True)
    assert laplace(model, data, modes[0])[1]
    slope = type(modes[0])(modes[0].weights_D + 2.0, 0.0)
    assert not laplace(model, data, slope)[1]


def test_symmetries_are_counted():
    assert math.exp(log_symmetries(1)) == pytest.approx(2)
    assert math.exp(log_symmetries(3)) == pytest.approx(8 * 6)
    # every one of the 48 arrangements of three units is drawn about as often
    model, _ = problem(1, (3,), outputs=2)
    weights_D = torch.arange(1.0, model.layout.size + 1, dtype=torch.float64)
    drawn = rearranged(model, weights_D.repeat(9600, 1), seed=2)
    seen, counts = np.unique(drawn[:, :6].numpy(), axis=0, return_counts=True)
    assert len(seen) == 48
    assert counts.std() == pytest.approx(math.sqrt(200), rel=0.35)
    signs = {tuple(row) for row in itertools.product((-1.0, 1.0), repeat=3)}
    assert {tuple(np.sign(row[[0, 2, 4]])) for row in seen} == signs


def test_rearranged_networks_are_the_same_functions():
    model, (inputs, _) = problem(9, (4,), outputs=2)
    draws_SD = ModelTarget(model, (inputs, torch.zeros(9, 2, dtype=torch.float64))).draw(20, 0)
    turned_SD = rearranged(model, draws_SD, seed=5)
    assert not torch.equal(turned_SD, draws_SD)
    for before, after in zip(draws_SD, turned_SD, strict=True):
        torch.testing.assert_close(model.network(after, inputs), model.network(before, inputs))

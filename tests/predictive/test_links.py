"""Closed forms of averaged probabilities against quadrature, their limits and each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.oracles import assert_close, normal
from tests.predictive.test_linearised import averaged_sigmoid
from torch import Tensor

from torchbayes.curvature.features import apart
from torchbayes.predictive.links import centre, class_probit, laplace_bridge, pairwise_probit, probit

Link = Callable[[Tensor, Tensor], Tensor]


def softmax_probit(mean: Tensor, covariance: Tensor) -> Tensor:
    return class_probit(mean, apart(covariance, centre(mean))).log_softmax(-1)


both = pytest.mark.parametrize("link", [pairwise_probit, laplace_bridge, softmax_probit])


def covariance(classes: int, rows: int = 4, seed: int = 1) -> Tensor:
    half = normal(rows, classes, classes, seed=seed)
    return half @ half.mT


@pytest.mark.parametrize("variance", [1e-3, 0.1, 1.0, 5.0, 30.0, 1e3])
def test_probit_is_near_the_integral(variance: float):
    mean = torch.linspace(-12, 12, 97, dtype=torch.float64)
    spread = torch.full_like(mean, variance)
    error = (probit(mean, spread).sigmoid() - averaged_sigmoid(mean, spread)).abs()
    # Φ(√(π/8) f) has the slope of σ(f) at 0 and is at most 0.0177 away; averages of both are no farther apart
    assert error.max() < 0.0177
    assert probit(mean, spread)[48] == 0  # ½ whatever the variance


def test_probit_without_variance_is_the_sigmoid():
    mean = normal(5)
    assert torch.equal(probit(mean, torch.zeros(5, dtype=torch.float64)), mean)


@pytest.mark.parametrize("link", [pairwise_probit, softmax_probit])
def test_two_classes_are_the_binary_probit(link: Link):
    mean, spread = normal(4, 2), covariance(2)
    apart = spread[:, 0, 0] + spread[:, 1, 1] - 2 * spread[:, 0, 1]
    expected = probit(mean[:, 0] - mean[:, 1], apart).sigmoid()
    assert_close(link(mean, spread).exp(), torch.stack([expected, 1 - expected], dim=-1))


@pytest.mark.parametrize("link", [pairwise_probit, softmax_probit])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_without_variance_it_is_the_softmax(link: Link, classes: int):
    mean = 3 * normal(4, classes)
    zero = torch.zeros(4, classes, classes, dtype=torch.float64)
    assert_close(link(mean, zero), mean.log_softmax(-1))


def test_pairwise_is_its_formula():
    mean, spread = normal(4, 5), covariance(5)
    expected = torch.empty(4, 5, dtype=torch.float64)
    for b in range(4):
        for k in range(5):
            total = 0.0
            for j in range(5):
                apart = float(spread[b, k, k] + spread[b, j, j] - 2 * spread[b, j, k])
                total += math.exp(-float(mean[b, k] - mean[b, j]) / math.sqrt(1 + math.pi / 8 * apart))
            expected[b, k] = 1 / total
    assert_close(pairwise_probit(mean, spread).exp(), expected / expected.sum(-1, keepdim=True))


@both
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_random_shift_that_all_outputs_share_changes_nothing(link: Link, classes: int):
    """f + s 1, where s is correlated with f: softmax ignores it."""
    mean, spread, along = normal(4, classes), covariance(classes), normal(4, classes, seed=3)
    shared = spread + along.unsqueeze(-1) + along.unsqueeze(-2) + 5.0
    assert_close(link(mean + 3.0, shared), link(mean, spread), rtol=1e-8, atol=1e-9)


@both
def test_probabilities_are_normalised_and_follow_the_order_of_the_classes(link: Link):
    mean, spread = normal(4, 6), covariance(6)
    actual = link(mean, spread)
    assert_close(actual.exp().sum(-1), torch.ones(4))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert_close(link(mean[:, order], spread[:, order][:, :, order]), actual[:, order])


def dirichlet(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the Gaussian that the bridge gives for Dirichlet(α) (MacKay 1998)."""
    classes, inverse = alpha.shape[-1], 1 / alpha
    mean = alpha.log() - alpha.log().mean(-1, keepdim=True)
    total = inverse.sum(-1)[..., None, None] / classes**2
    spread = torch.diag_embed(inverse) - (inverse.unsqueeze(-1) + inverse.unsqueeze(-2)) / classes + total
    return mean, spread


@pytest.mark.parametrize("along", [0.0, 1e-14, 1e-6, 1.0, 1e3], ids=lambda v: f"variance {v:g} of the sum")
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_bridge_comes_back_to_the_dirichlet_it_left(classes: int, along: float):
    alpha = normal(5, classes, seed=classes).exp()
    mean, spread = dirichlet(alpha)
    expected = alpha / alpha.sum(-1, keepdim=True)
    assert_close(laplace_bridge(mean, spread + along).exp(), expected, rtol=1e-7)


def test_bridge_is_its_formula_for_the_projected_gaussian():
    mean, spread = normal(4, 5), covariance(5)
    plane = torch.eye(5, dtype=torch.float64) - 1 / 5
    for b in range(4):
        own, variance = plane @ mean[b], (plane @ spread[b] @ plane).diagonal()
        alpha = (1 - 2 / 5 + own.exp() / 25 * (-own).exp().sum()) / variance
        assert_close(laplace_bridge(mean, spread)[b].exp(), alpha / alpha.sum(), rtol=1e-8)


def test_bridge_of_a_reference_class_is_near_the_integral():
    """Two classes, of which the last has the fixed logit 0: conditioned on the plane, it would have probability 1."""
    mean = torch.linspace(-4, 4, 33, dtype=torch.float64)
    outputs, spread = F.pad(mean.unsqueeze(-1), (0, 1)), torch.diag(torch.tensor([1.0, 0.0])).double()
    actual = laplace_bridge(outputs, spread.expand(33, 2, 2)).exp()[:, 0]
    assert (actual - averaged_sigmoid(mean, torch.ones_like(mean))).abs().max() < 0.04


@pytest.mark.parametrize("mask", [-math.inf, torch.finfo(torch.float64).min, -3e38, -1e9, -1e4])
@pytest.mark.parametrize("variance", [0.0, 1.0])
@pytest.mark.parametrize("masked", [[3], [0, 2]], ids=str)
@pytest.mark.parametrize("link", [pairwise_probit, laplace_bridge, softmax_probit])
def test_a_masked_class_gets_nothing_and_the_others_what_they_get_without_it(
    link: Link, masked: list[int], variance: float, mask: float
):
    mean, spread = normal(3, 5), covariance(5, rows=3)
    kept = [k for k in range(5) if k not in masked]
    mean[:, masked] = mask
    spread[:, masked] *= variance
    spread[:, :, masked] *= variance
    inside = spread[:, kept][:, :, kept]
    actual = link(mean, spread).exp()
    assert torch.equal(actual[:, masked], torch.zeros(3, len(masked)).double())
    assert_close(actual[:, kept], link(mean[:, kept], inside).exp(), rtol=1e-9)


@both
def test_masks_may_differ_from_row_to_row(link: Link):
    mean, spread = normal(2, 4), covariance(4, rows=2)
    mean[0, 1] = mean[1, 3] = -math.inf
    for b, kept in enumerate(([0, 2, 3], [0, 1, 2])):
        alone = link(mean[b : b + 1, kept], spread[b : b + 1, kept][:, :, kept])
        assert_close(link(mean, spread)[b, kept], alone[0])


@both
def test_a_class_without_rivals_is_certain(link: Link):
    mean = torch.tensor([[-math.inf, 1.0, -math.inf]], dtype=torch.float64)
    assert torch.equal(link(mean, covariance(3, rows=1)).exp(), torch.tensor([[0.0, 1.0, 0.0]]).double())


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_bridge_of_equal_outputs_is_uniform(scale: float):
    actual = laplace_bridge(torch.zeros(2, 4).double(), scale * torch.eye(4).double().expand(2, 4, 4))
    assert_close(actual.exp(), torch.full((2, 4), 0.25))


@both
@pytest.mark.parametrize("size", [1e2, 1e3])
def test_large_outputs_in_single_precision_stay_finite(link: Link, size: float):
    mean = torch.tensor([[size, 0.0, -size], [0.0, 0.0, 0.0]])
    for spread in (torch.zeros(2, 3, 3), 1e-6 * torch.eye(3).expand(2, 3, 3), 1e4 * torch.eye(3).expand(2, 3, 3)):
        actual = link(mean, spread)
        assert torch.isfinite(actual).all()
        assert actual[0, 0] >= actual[0, 1] >= actual[0, 2]


@both
def test_links_are_near_the_average_of_the_softmax(link: Link):
    """A Monte Carlo average of 200,000 draws; both forms are meant for moderate means and variances."""
    alpha = torch.tensor([[8.0, 4.0, 6.0], [16.0, 3.0, 5.0]], dtype=torch.float64)
    mean, spread = dirichlet(alpha)
    spread = spread + 0.1
    exact = _draws(mean, spread).softmax(-1).mean(0)
    assert (link(mean, spread).exp() - exact).abs().max() < 0.03


def _draws(mean: Tensor, spread: Tensor) -> Tensor:
    return mean + (torch.linalg.cholesky(spread) @ normal(200_000, *mean.shape).unsqueeze(-1)).squeeze(-1)

"""Radii and volumes against those of ellipsoids."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.geometry.problems import INPUTS, LABELS, NAMES, hessian, made, problem
from tests.laws.cases import normal
from torchbayes.geometry import basin, volumes
from torchbayes.posteriors.problems import ProblemWarning

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")


def quadratic(size: int, rows: int = 40, *, spread: float = 0.3):
    """A linear regression at its minimum, and the Hessian of its mean loss."""
    scales = torch.logspace(0, spread, size, dtype=torch.float64)
    inputs = normal(rows, size) * scales
    model = tb.Model(made(lambda: nn.Linear(size, 1, bias=False)), tb.likelihoods.Gaussian(1.0))
    targets = normal(rows, 1, seed=4)
    best = torch.linalg.lstsq(inputs, targets).solution[:, 0]
    return model, (inputs, targets), best, inputs.T @ inputs / rows


def log_ellipsoid(matrix: Tensor, threshold: float) -> float:
    size = len(matrix)
    ball = size / 2 * math.log(math.pi) - math.lgamma(size / 2 + 1)
    return ball + size / 2 * math.log(2 * threshold) - 0.5 * float(torch.linalg.slogdet(matrix).logabsdet)


def root(matrix: Tensor) -> Tensor:
    """A matrix M with Mᵀ H M = I that is not symmetric, so that its transpose would not do."""
    return torch.linalg.inv(torch.linalg.cholesky(matrix)).T


@pytest.mark.parametrize("threshold", [1e-3, 0.5, 40.0])
def test_radii_are_those_of_the_quadratic(threshold, monkeypatch):
    model, data, best, matrix = quadratic(6)
    kept = {}
    original = volumes._directions

    def spy(*args, **options):
        kept["found"] = original(*args, **options)
        return kept["found"]

    monkeypatch.setattr(volumes, "_directions", spy)
    actual = basin(model, data, best, threshold=threshold, directions=20)
    unit = kept["found"].unit_KD
    exact = (2 * threshold / ((unit @ matrix) * unit).sum(1)).sqrt()
    assert torch.allclose(actual.radii_K, exact, rtol=1e-3)
    assert torch.allclose(unit.norm(dim=1), torch.ones(20, dtype=torch.float64))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_volume_is_that_of_the_ellipsoid(size):
    model, data, best, matrix = quadratic(size)
    actual = basin(model, data, best, directions=4000)
    exact = log_ellipsoid(matrix, 0.1)
    assert abs(actual.log_volume - exact) < 4 * actual.error + 1e-3 * size
    assert actual.size == size
    assert not actual.problems


@pytest.mark.parametrize("size", [3, 30])
def test_directions_by_the_hessian_have_no_variance_on_a_quadratic(size):
    model, data, best, matrix = quadratic(size, rows=200, spread=1.0)
    actual = basin(model, data, best, shape=root(matrix), directions=12)
    assert actual.log_volume == pytest.approx(log_ellipsoid(matrix, 0.1), abs=1e-3 * size)
    assert actual.ess == pytest.approx(12, rel=1e-2)
    assert actual.error < 1e-3 * size
    assert not actual.problems


def test_a_diagonal_is_the_dense_matrix_with_it():
    model, data, best, matrix = quadratic(4)
    diagonal = matrix.diagonal().rsqrt()
    one, two = (basin(model, data, best, shape=s, directions=5) for s in (diagonal, torch.diag(diagonal)))
    assert torch.allclose(one.radii_K, two.radii_K)
    assert one.log_volume == pytest.approx(two.log_volume)


def test_any_invertible_matrix_gives_the_same_volume():
    model, data, best, matrix = quadratic(3)
    other = torch.eye(3, dtype=torch.float64) + 0.2 * normal(3, 3, seed=9)
    actual = basin(model, data, best, shape=other, directions=20_000)
    assert abs(actual.log_volume - log_ellipsoid(matrix, 0.1)) < 4 * actual.error + 3e-3


def test_the_error_is_calibrated():
    model, data, best, matrix = quadratic(3, spread=0.7)
    actual = [basin(model, data, best, directions=200, seed=s) for s in range(60)]
    exact = log_ellipsoid(matrix, 0.1)
    scores = torch.tensor([(f.log_volume - exact) / f.error for f in actual])
    assert 0.75 < float(scores.square().mean().sqrt()) < 1.25


def test_few_effective_directions_are_told():
    model, data, best, matrix = quadratic(30, spread=1.5)
    with pytest.warns(ProblemWarning, match="effective directions"):
        actual = basin(model, data, best, directions=64)
    assert actual.ess < 10
    assert actual.log_volume < log_ellipsoid(matrix, 0.1) - 2


def test_endless_directions_are_capped_and_told():
    model, data = problem("rank deficient")
    net = made(lambda: nn.Linear(8, 1))
    with pytest.warns(ProblemWarning, match="does not rise"):
        actual = basin(model, data, net, threshold=1e9, limit=3.0)
    assert actual.capped == 64
    assert torch.equal(actual.radii_K, torch.full((64,), 3.0, dtype=torch.float64))
    assert actual.limit == 3.0


def test_losses_that_are_not_finite_end_the_basin():
    class Wall(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 1, bias=False)

        def forward(self, x):
            bad = self.inner.weight.norm() > 2
            return torch.where(bad, torch.nan, 1.0) * self.inner(x)

    model = tb.Model(made(Wall), tb.likelihoods.Gaussian(1.0))
    actual = basin(model, (INPUTS * 0, INPUTS[:, :1] * 0), torch.zeros(2, dtype=torch.float64), limit=50.0)
    assert torch.allclose(actual.radii_K, torch.full((64,), 2.0, dtype=torch.float64), rtol=1e-3)
    assert actual.log_volume == pytest.approx(math.log(4 * math.pi), abs=2e-3)
    assert actual.capped == 0


def test_filters_do_not_see_the_scale_of_layers():
    def scaled(by):
        net = made(lambda: nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False)))
        with torch.no_grad():
            net.get_parameter("0.weight").mul_(by)
            net.get_parameter("2.weight").div_(by)
        return tb.Model(net, tb.likelihoods.Categorical()), net

    one, two = (basin(m, (INPUTS, LABELS), n, shape="filters", threshold=0.3) for m, n in (scaled(1.0), scaled(5.0)))
    assert torch.allclose(one.radii_K, two.radii_K, rtol=2e-3)
    assert math.isnan(one.log_volume)
    raw = [basin(m, (INPUTS, LABELS), n, threshold=0.3).radii_K for m, n in (scaled(1.0), scaled(5.0))]
    assert not torch.allclose(*raw, rtol=0.1)


def test_stacks_of_directions_give_the_same(monkeypatch):
    model, data = problem("classifier")
    whole = basin(model, data, model.given_weights(), directions=7)
    monkeypatch.setattr(volumes, "_STACK", 1)
    assert torch.allclose(whole.radii_K, basin(model, data, model.given_weights(), directions=7).radii_K, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_model_has_radii_at_which_the_loss_has_risen(name):
    model, data = problem(name)
    actual = basin(model, data, model.given_weights(), directions=4, limit=100.0)
    assert actual.radii_K.shape == (4,)
    assert bool((actual.radii_K > 0).all())
    curved = float(torch.linalg.eigvalsh(hessian(model, data)).max())
    assert curved > 0


def test_batch_norm_has_the_statistics_of_the_posterior():
    model, data = problem("conv")
    buffers = {name: b[None] + 1 for name, b in model.network.buffers.items()}
    point = tb.Point(model, model.given_weights()[None], buffers_M=buffers)
    actual = basin(model, data, point, directions=2)
    rows, own = model.unpack(data), {name: b[0] for name, b in buffers.items()}
    assert actual.loss == pytest.approx(-float(model.log_likelihood(model.given_weights(), rows, own).mean()))


def test_one_network_is_asked_for():
    model, data = problem("classifier")
    with pytest.raises(ValueError, match="one network"):
        basin(model, data, model.given_weights().expand(2, -1))


def test_matrices_that_do_not_fit_are_refused():
    model, data, best, _ = quadratic(3)
    for shape, said in ((torch.zeros(3), "invertible"), (torch.ones(4), r"\(3,\)"), (torch.ones(3) / 0, "finite")):
        with pytest.raises(ValueError, match=said):
            basin(model, data, best, shape=shape)

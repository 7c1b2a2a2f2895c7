"""Surrogates in one line, and what they do with few rows, odd rows and further ones."""

import warnings

import pytest
import torch

pytest.importorskip("botorch")

from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf

import torchbayes as tb
from tests.botorch.cases import points
from tests.oracles import assert_close
from torchbayes.botorch import surrogate, thompson

SHORT = tb.HMC(1, 12, 6, mass="layer")
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # of chains as short as these


def valley(X):
    """Its maximum, 40, is at (3, 3)."""
    return 40 - (X - 3).square().sum(-1, keepdim=True)


def test_the_default_finds_a_maximum():
    X = points(12, 2) * 10 - 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = surrogate(X, valley(X), bounds=[[-2.0, -2.0], [8.0, 8.0]])
    said = model.posterior(X)
    assert (said.mean - valley(X)).abs().max() < 0.1 * valley(X).std()
    bounds = torch.tensor([[-2.0, -2.0], [8.0, 8.0]]).double()
    candidate, _ = optimize_acqf(qLogExpectedImprovement(model, valley(X).max()), bounds, 1, 4, 32)
    assert valley(candidate).item() > valley(X).max()
    assert model.posterior(X, observation_noise=True).variance.min() > 0
    assert_close(model.train_inputs[0], X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize(
    "method", [SHORT, tb.MAP(2, 5, 16), tb.SWAG(1, 6, rank=2), tb.SGLD(1, 12, 6, 1, step_size=1e-5)]
)
def test_methods_dtypes_and_several_targets(method, targets, dtype):
    X = points(8, 3, dtype=dtype)
    Y = torch.cat([X.sum(-1, keepdim=True)] * targets, dim=-1)
    model = surrogate(X, Y, method=method)
    said = model.posterior(X.view(2, 4, 3), observation_noise=True)
    assert said.mean.shape == (2, 4, targets)
    assert said.mean.dtype == dtype
    assert said.mean.isfinite().all()
    assert thompson(model)(X).shape == (8, targets)
    assert model.network_posterior.model.network.dtype == dtype


def test_laplace_is_a_normal_over_functions():
    X = points(10, 2)
    noise = tb.likelihoods.Gaussian(0.1)
    model = surrogate(X, valley(X), method=tb.Laplace(structure="kronecker"), likelihood=noise)
    assert model.posterior(X).distribution.covariance_matrix.shape == (10, 10)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 400), (5, 1)])
def test_few_rows_and_many_columns(rows, columns):
    X = points(rows, columns)
    model = surrogate(X, X[:, :1], method=SHORT)
    assert model.posterior(points(3, columns)).variance.isfinite().all()


def test_a_constant_column_and_constant_targets():
    X = points(6, 2)
    X[:, 1] = 4.0
    model = surrogate(X, torch.full((6, 1), 7.0, dtype=torch.float64), method=SHORT)
    assert model.posterior(X).mean.isfinite().all()


@pytest.mark.parametrize("targets", [1, 2])
def test_further_rows(targets):
    X, more = points(6, 2), points(3, 2, seed=9)
    Y, more_Y = valley(X).expand(-1, targets), valley(more).expand(-1, targets)
    model = surrogate(X, Y, method=SHORT)
    for warm in (True, False):
        again = model.refit(more, more_Y, warm=warm)
        twice = again.refit(points(1, 2, seed=10), valley(points(1, 2, seed=10)).expand(-1, targets))
        rows = twice.train_inputs[0] if targets == 1 else twice.train_inputs[0][0]
        assert_close(rows[:9], torch.cat([X, more]))
        assert twice.num_outputs == targets
    cold = surrogate(torch.cat([X, more]), torch.cat([Y, more_Y]), method=SHORT)
    assert_close(again.posterior(X).mean, cold.posterior(X).mean)


def test_the_same_seed_gives_the_same_surrogate():
    X = points(6, 2)
    one, same, other = (surrogate(X, valley(X), method=SHORT, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.posterior(X).values, same.posterior(X).values)
    assert not torch.equal(one.posterior(X).values, other.posterior(X).values)


@pytest.mark.parametrize(
    ("X", "Y", "text"),
    [
        (points(4, 2), points(4), r"`Y` must be floating point \(..., n, m\), with an axis of targets"),
        (points(4, 2), points(3, 1), "same number of rows; got 4 and 3"),
        (points(0, 2), points(0, 1), "has no rows. Evaluate a few points first"),
        (points(2, 4, 2), points(2, 4, 1), r"`train_X` must be \(n, d\)"),
        (points(4, 2) / 0, points(4, 1), "`X` must be finite; 8 of its 8"),
        (torch.ones(4, 2, dtype=torch.long), points(4, 1), "floating point"),
    ],
)
def test_what_is_refused(X, Y, text):
    with pytest.raises(ValueError, match=text):
        surrogate(X, Y)


def test_refusals_of_settings():
    X = points(4, 2)
    with pytest.raises(ValueError, match=r"`bounds` must be \(2, 2\)"):
        surrogate(X, valley(X), bounds=[[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="a smaller number above a larger one"):
        surrogate(X, valley(X), bounds=[[1.0, 1.0], [0.0, 2.0]])
    with pytest.raises(TypeError, match="method"):
        surrogate(X, valley(X), method=tb.HMC)
    model = surrogate(X, valley(X), method=SHORT)
    with pytest.raises(ValueError, match=r"`X` must be \(n, 2\)"):
        model.refit(points(3, 3), points(3, 1))

"""A posterior as a model of BoTorch: exact regressions, drawn networks one by one, and dense Jacobians."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("botorch")

from botorch.acquisition import ExpectedImprovement, LogExpectedImprovement, qExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelList, SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import LinearKernel
from gpytorch.means import ZeroMean

import torchbayes as tb
from tests.botorch.cases import NOISE, bayesian_line, drawn_networks, line_given, normal_ei, points
from tests.oracles import assert_close
from torchbayes.botorch import PosteriorModel, thompson
from torchbayes.linalg import Dense, Diagonal

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*has known numerical issues:botorch.exceptions.warnings.NumericsWarning"
)


def by_hand(posterior, X):
    """The outputs of drawn networks one by one, (S, ..., q, K)."""
    model = posterior.model
    return torch.stack([
        model.network(model.split(w)[0], X.flatten(0, -2)) for w in posterior.weights_MSD[0]
    ]).unflatten(1, X.shape[:-1])


def samples(count):
    return SobolQMCNormalSampler(torch.Size([count]), seed=0)


def gp_of(X, Y):
    """BoTorch's Gaussian process that is the regression of `bayesian_line`."""
    kernel = LinearKernel().double()
    kernel.variance = 1.0
    gp = SingleTaskGP(
        X, Y, torch.full_like(Y, NOISE**2), covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None
    )
    return gp.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(10, 3), (5, 10, 3), (2, 5, 1, 3), (0, 4, 3)])
@pytest.mark.parametrize("outputs", [1, 2])
def test_drawn_functions(shape, outputs, dtype):
    posterior = drawn_networks(3, outputs, dtype=dtype)
    model, X = PosteriorModel(posterior), points(*shape, dtype=dtype)
    said = model.posterior(X)
    assert said.values.shape == (*shape[:-2], 12, shape[-2], outputs)
    assert said.dtype == dtype
    assert (model.num_outputs, model.batch_shape) == (outputs, ())
    if X.numel():
        expected = by_hand(posterior, X).movedim(0, -3)
        rounding = {"rtol": 1e-5, "atol": 10 * torch.finfo(dtype).eps}
        assert_close(said.values, expected, **rounding)
        assert_close(model.posterior(X.requires_grad_()).values, expected, **rounding)
    assert said.rsample(torch.Size([6])).shape == (6, *shape[:-1], outputs)


def test_points_of_another_dtype_keep_theirs():
    said = PosteriorModel(drawn_networks(dtype=torch.float32)).posterior(points(4, 2))
    assert said.mean.dtype == torch.float64


def test_networks_that_cannot_be_stacked_have_the_same_gradient():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1).double()

        def forward(self, x):
            if x.detach().sum().item() > -1e9:  # which no transform can take
                x = x.sin()
            return self.layer(x)

    model = tb.Model(Odd(), tb.likelihoods.Gaussian())
    weights = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    X = points(3, 2).requires_grad_()
    said = PosteriorModel(tb.Draws(model, weights)).posterior(X)
    assert_close(said.values[..., 0], weights[0, :, :2] @ X.sin().T + weights[0, :, 2:])
    gradient = torch.autograd.grad(said.values.sum(), X)[0]
    assert_close(gradient, X.cos() * weights[0, :, :2].sum(0))


def test_noise_is_that_of_the_likelihood():
    model, X = PosteriorModel(drawn_networks(likelihood=tb.likelihoods.Gaussian(0.7))), points(4, 2)
    assert_close(model.posterior(X, observation_noise=True).variance, model.posterior(X).variance + 0.49)
    given = torch.full((1, 1), 0.2, dtype=torch.float64)
    assert_close(model.posterior(X, observation_noise=given).variance, model.posterior(X).variance + 0.2)
    learned = drawn_networks(likelihood=tb.likelihoods.Gaussian("learned"))
    scales = learned.weights_MSD[0, :, -1].exp()
    noisy = PosteriorModel(learned).posterior(X, observation_noise=True)
    assert_close(noisy.variance, PosteriorModel(learned).posterior(X).variance + scales.square().mean(), rtol=1e-7)
    both = drawn_networks(outputs=2, likelihood=tb.likelihoods.HeteroscedasticGaussian(1e-3))
    noisy, raw = PosteriorModel(both).posterior(X, observation_noise=True), by_hand(both, X)[..., 1:]
    assert noisy.mean.shape == (4, 1)
    assert_close(
        noisy.variance, PosteriorModel(both).posterior(X).variance + (nn.functional.softplus(raw) + 1e-3).mean(0)
    )


@pytest.mark.parametrize("form", ["auto", "draws", "normal"])
def test_transforms_of_botorch(form):
    X, Y = points(9, 2) * 7 - 3, points(9, 2, seed=1) * 100 + 40
    scale, units = Normalize(2), Standardize(2)
    for transform, rows in ((scale, X), (units, Y)):
        transform(rows)
        transform.eval()
    posterior = drawn_networks(2, 2)
    plain = PosteriorModel(posterior, form=form)
    model = PosteriorModel(posterior, form=form, input_transform=scale, outcome_transform=units)
    inside, outside = plain.posterior(scale(X), observation_noise=True), model.posterior(X, observation_noise=True)
    assert_close(outside.mean, inside.mean * Y.std(0) + Y.mean(0), rtol=1e-6)
    assert_close(outside.variance, inside.variance * Y.var(0), rtol=1e-6)
    few = model.posterior(X, output_indices=[1])
    assert_close(few.mean, model.posterior(X).mean[:, 1:], rtol=1e-6)
    assert_close(few.variance, model.subset_output([1]).posterior(X).variance, rtol=1e-6)
    assert_close(few.variance, model.posterior(X).variance[:, 1:], rtol=1e-6)


def test_logarithms_of_targets():
    log = Log()
    log(points(4, 1))
    model, X = PosteriorModel(drawn_networks(), outcome_transform=log.eval()), points(4, 2)
    assert_close(model.posterior(X).values, PosteriorModel(drawn_networks()).posterior(X).values.exp())


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("shape", [(4, 2), (3, 2), (5, 3, 2), (40, 2, 2), (0, 3, 2), (6, 1, 2)])
def test_the_closed_form_is_joint_over_points(shape, targets):
    posterior, X, Y = bayesian_line(targets=targets)
    at = points(*shape)
    if not len(at) and targets > 1:
        pytest.skip("GPyTorch has no empty batch of several targets")
    said = PosteriorModel(posterior).posterior(at)
    precision = X.T @ X / NOISE**2 + torch.eye(2).double()
    assert_close(said.mean, at @ torch.linalg.solve(precision, X.T @ Y) / NOISE**2, rtol=1e-6)
    within = at @ torch.linalg.solve(precision, at.mT)
    whole = torch.einsum("...ij,kl->...ikjl", within, torch.eye(targets).double()).flatten(-2).flatten(-3, -2)
    assert_close(said.distribution.covariance_matrix, whole, atol=1e-7)
    noisy = PosteriorModel(posterior).posterior(at, observation_noise=True)
    assert_close(noisy.variance, said.variance + NOISE**2, atol=1e-6)


def test_linearised_networks_of_several_modes():
    drawn = drawn_networks(draws=3)
    model, means = drawn.model, drawn.weights_MSD[0]
    spread = points(3, model.layout.size, seed=8)
    laplace = tb.Linearised(tb.Gaussian(model, means, Diagonal(spread)))
    X = points(2, 3, 2)
    said = PosteriorModel(laplace).posterior(X)

    def outputs(w, x):
        return model.network(model.split(w)[0], x)[:, 0]

    mean = torch.stack([torch.stack([outputs(w, x) for x in X]) for w in means])
    jacobians = [torch.stack([torch.func.jacrev(outputs)(w, x) for x in X]) for w in means]
    covariance = torch.stack([(j * s) @ j.mT for j, s in zip(jacobians, spread, strict=True)]).mean(0)
    moves = mean - mean.mean(0)
    assert_close(said.mean[..., 0], mean.mean(0), rtol=1e-6)
    assert_close(
        said.distribution.covariance_matrix, covariance + torch.einsum("mbi,mbj->bij", moves, moves) / 3, atol=1e-6
    )


def test_expected_improvement_of_a_regression_and_of_botorchs_gaussian_process():
    posterior, X, Y = bayesian_line()
    exact, gp, at = PosteriorModel(posterior), gp_of(X, Y), points(5, 1, 2)
    said, theirs = exact.posterior(at), gp.posterior(at)
    assert_close(said.mean, theirs.mean, rtol=1e-5)
    assert_close(said.variance, theirs.variance, rtol=1e-4)
    best = float(said.mean.mean())
    expected = normal_ei(said.mean[:, 0, 0], said.variance[:, 0, 0].sqrt(), best)
    assert_close(ExpectedImprovement(exact, best)(at), expected, rtol=1e-6)
    assert_close(LogExpectedImprovement(exact, best)(at), expected.log(), rtol=1e-5)
    drawn = PosteriorModel(posterior, draws=4096)
    assert_close(
        qExpectedImprovement(drawn, best, SobolQMCNormalSampler(torch.Size([4096]), seed=0))(at), expected, rtol=0.05
    )
    pairs = points(4, 2, 2, seed=9)
    sampler = samples(2**14)
    of_gp = qExpectedImprovement(gp, best, sampler)(pairs)
    assert_close(qExpectedImprovement(exact, best, sampler)(pairs), of_gp, rtol=0.02)
    assert_close(
        qExpectedImprovement(drawn, best, SobolQMCNormalSampler(torch.Size([2**14]), seed=0))(pairs), of_gp, rtol=0.06
    )


def test_observations_of_other_targets_count():
    """Two outputs of a network share weights, so that those of one tell of the other."""
    model = tb.Model(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double(), tb.likelihoods.Gaussian(0.3))
    root = points(model.layout.size, model.layout.size, seed=3)
    posterior = tb.Gaussian(
        model, model.given_weights()[None], Dense.of_precision((root @ root.T + 0.1 * torch.eye(len(root)))[None])
    )
    surrogate = PosteriorModel(tb.Linearised(posterior))
    X, Y, at = points(3, 2, seed=11), points(3, 2, seed=12), points(4, 2)
    whole = surrogate.condition_on_observations(X, Y)
    part = whole.subset_output([1])
    for actual in (whole.posterior(at, output_indices=[1]), part.posterior(at)):
        assert_close(actual.mean[:, 0], whole.posterior(at).mean[:, 1], rtol=1e-6)
        assert_close(actual.variance[:, 0], whole.posterior(at).variance[:, 1], rtol=1e-6)
    sets = torch.stack([Y, Y + 1])
    assert surrogate.condition_on_observations(X, sets).subset_output([1]).batch_shape == (2,)
    more = part.condition_on_observations(at[:1], points(1, 1, seed=13))
    assert bool((more.posterior(at[:1]).variance < part.posterior(at[:1]).variance).all())


@pytest.mark.parametrize("targets", [1, 2])
def test_conditioning_is_the_posterior_of_all_rows(targets):
    posterior, X, Y = bayesian_line(targets=targets)
    more_X, more_Y, at = points(3, 2, seed=11), points(3, targets, seed=12), points(4, 2)
    whole = PosteriorModel(line_given(torch.cat([X, more_X]), torch.cat([Y, more_Y])))
    for model in (
        PosteriorModel(posterior).condition_on_observations(more_X, more_Y),
        PosteriorModel(posterior)
        .condition_on_observations(more_X[:1], more_Y[:1])
        .condition_on_observations(more_X[1:], more_Y[1:]),
    ):
        assert_close(model.posterior(at).mean, whole.posterior(at).mean, rtol=1e-4)
        covariance = model.posterior(at).distribution.covariance_matrix
        assert_close(covariance, whole.posterior(at).distribution.covariance_matrix, atol=1e-6)
    vague = torch.full_like(more_Y, 0.5)  # so that many draws are left
    drawn = PosteriorModel(posterior, draws=20_000).condition_on_observations(more_X, more_Y, noise=vague).posterior(at)
    exact = PosteriorModel(posterior).condition_on_observations(more_X, more_Y, noise=vague).posterior(at)
    assert_close(drawn.mean, exact.mean, atol=0.01)
    assert_close(drawn.variance, exact.variance, rtol=0.05)
    sets = more_Y + torch.arange(5.0)[:, None, None] / 10
    batch = PosteriorModel(posterior).condition_on_observations(more_X, sets)
    assert batch.batch_shape == (5,)
    assert batch.posterior(at).mean.shape == (5, 4, targets)
    assert_close(batch.posterior(at).mean[0], whole.posterior(at).mean, rtol=1e-4)


def test_given_noise_of_observations():
    posterior, _, _ = bayesian_line()
    X, at = points(2, 2, seed=11), points(4, 2)
    Y = PosteriorModel(posterior).posterior(X).mean + 0.1
    same = torch.full_like(Y, NOISE**2)
    for draws in (None, 2000):
        model = PosteriorModel(posterior, draws=draws)
        assert_close(
            model.condition_on_observations(X, Y, noise=same).posterior(at).mean,
            model.condition_on_observations(X, Y).posterior(at).mean,
        )
    once = PosteriorModel(posterior).condition_on_observations(X, Y, noise=same)
    with pytest.raises(ValueError, match="for all or none"):
        once.condition_on_observations(X, Y)


def test_few_draws_are_left():
    model: Any = PosteriorModel(drawn_networks(draws=50))
    X = points(8, 2)
    assert float(model.state.effective_draws) == 50
    with pytest.warns(tb.ProblemWarning, match="this conditioned model should not be trusted: the observations leave"):
        made = model.condition_on_observations(X, model.posterior(X).values[3])
    values, weights = model.posterior(X).values, made.posterior(X).weights
    log_prob = -(values - values[3]).square().sum((-1, -2)) / (2 * NOISE**2)
    assert_close(weights, log_prob.softmax(0))
    assert_close(made.state.effective_draws, 1 / weights.square().sum())


def test_fantasies():
    for model in (PosteriorModel(bayesian_line()[0]), PosteriorModel(drawn_networks(draws=64))):
        made = model.fantasize(points(3, 1, 2), samples(4))
        assert made.batch_shape == (4, 3)
        assert made.posterior(points(3, 5, 2)).mean.shape == (4, 3, 5, 1)
        assert (made.posterior(points(3, 1, 2)).variance <= model.posterior(points(3, 1, 2)).variance * 1.5).all()
        given = model.fantasize(points(3, 1, 2), samples(4), torch.full((1, 1), 0.1).double())
        assert given.batch_shape == (4, 3)


def test_a_function_that_is_held_fixed():
    posterior = drawn_networks(outputs=2)
    units = Standardize(2)
    units(points(9, 2) * 5)
    model, X = PosteriorModel(posterior, outcome_transform=units.eval()), points(3, 4, 2)
    values = model.posterior(X).values
    drawn = []
    for seed in range(30):
        said = thompson(model, seed=seed).posterior(X)
        assert_close(said.variance, torch.zeros_like(said.variance))
        assert_close(thompson(model, seed=seed)(X), said.mean)
        same = [s for s in range(12) if torch.allclose(values[:, s], said.mean)]
        assert len(same) == 1
        drawn += same
    assert len(set(drawn)) > 8
    assert_close(thompson(model.subset_output([1]), seed=0)(X), thompson(model, seed=0)(X)[..., 1:])


@pytest.mark.filterwarnings("ignore:this conditioned model:torchbayes.ProblemWarning")
def test_a_function_is_drawn_by_its_weight():
    model, X = PosteriorModel(drawn_networks()), points(8, 2)
    weighted: Any = model.condition_on_observations(X[:2], model.posterior(X[:2]).values[3] + 0.3)
    values, weights = model.posterior(X).values, weighted.posterior(X).weights
    drawn = torch.zeros(12).double()
    for seed in range(120):
        drawn[int((values - thompson(weighted, seed=seed)(X)).abs().flatten(1).sum(1).argmin())] += 1 / 120
    assert_close(drawn, weights, atol=0.15)
    assert weights.max() > 0.2
    with pytest.raises(ValueError, match="conditioned on observations"):
        thompson(model.condition_on_observations(X[:1], points(3, 1, 1)))


def test_functions_of_a_linearised_network_have_its_law():
    posterior, _, _ = bayesian_line()
    model, X = PosteriorModel(posterior), points(3, 2)
    values = torch.stack([thompson(model, seed=seed)(X) for seed in range(600)])
    said = model.posterior(X)
    assert_close(values.mean(0), said.mean, atol=4 * float(said.variance.max().sqrt()) / math.sqrt(600))
    assert_close(values[..., 0].T.cov(), said.distribution.covariance_matrix, rtol=0.3, atol=0.003)
    X.requires_grad_()
    with torch.inference_mode():
        assert_close(thompson(model, seed=3)(X.detach().clone()), values[3].detach())
    gradient = torch.autograd.grad(thompson(model, seed=3)(X).sum(), X)[0]
    assert_close(gradient, posterior.sample(1, seed=3).expand(3, 2))
    with pytest.raises(ValueError, match="conditioned on observations"):
        thompson(model.condition_on_observations(points(2, 2), points(2, 1)))


def test_models_in_lists_and_weighed_targets():
    X, weights = points(3, 2, 2), torch.tensor([1.0, -2.0]).double()
    one, other = PosteriorModel(drawn_networks()), PosteriorModel(bayesian_line()[0])
    both: Any = ModelList(one, other).posterior(X)
    assert both.mean.shape == (3, 2, 2)
    for form in ("draws", "normal"):
        model = PosteriorModel(drawn_networks(outputs=2), form=form)
        said: Any = model.posterior(X, posterior_transform=ScalarizedPosteriorTransform(weights, offset=0.5))
        assert_close(said.mean[..., 0], model.posterior(X).mean @ weights + 0.5, rtol=1e-6)
        values = PosteriorModel(drawn_networks(outputs=2)).posterior(X).values @ weights
        assert_close(said.variance[..., 0], values.var(-2), rtol=1e-5)


def test_the_same_seed_gives_the_same_candidate():
    model, bounds = PosteriorModel(drawn_networks()), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    actual = []
    for _ in range(2):
        torch.manual_seed(4)
        acquisition = qExpectedImprovement(model, 0.1)
        actual.append(optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=8)[0])
    assert torch.equal(*actual)


def test_what_is_refused():
    with pytest.raises(ValueError, match="Categorical gives targets without a mean"):
        PosteriorModel(drawn_networks(outputs=3, likelihood=tb.likelihoods.Categorical()))
    with pytest.raises((TypeError, ValueError), match="posterior"):
        PosteriorModel(3)
    model = PosteriorModel(drawn_networks())
    with pytest.raises(TypeError, match="`X` must be a tensor; got"):
        model.posterior([[0.0, 1.0]])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"floating point \(..., q, d\); got torch.int64 of shape"):
        model.posterior(torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="same number of rows; got 2 and 3"):
        model.condition_on_observations(points(2, 2), points(3, 1))
    with pytest.raises(ValueError, match="must have 1 targets in each row; got 2"):
        model.condition_on_observations(points(2, 2), points(2, 2))
    with pytest.raises(ValueError, match="`Y` must be finite; 2 of its 2 numbers"):
        model.condition_on_observations(points(2, 2), points(2, 1) * math.nan)
    with pytest.raises(TypeError, match="`noise` must be a tensor of variances"):
        model.condition_on_observations(points(2, 2), points(2, 1), noise=0.1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="`model` must be a surrogate of torchbayes"):
        thompson(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"torchbayes\.botorch\.surrogate"):
        model.refit(points(2, 2), points(2, 1))
    layers = (nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 4), nn.Flatten())
    unknown = tb.Model(nn.Sequential(*layers), tb.likelihoods.Gaussian())
    with pytest.raises(ValueError, match="Give `num_inputs`, the d of X"):
        PosteriorModel(tb.Draws(unknown, torch.randn(1, 2, unknown.layout.size)))
    assert PosteriorModel(tb.Draws(unknown, torch.randn(1, 2, unknown.layout.size)), num_inputs=4).num_outputs == 2


def test_known_problems_are_said():
    posterior = drawn_networks().with_problems(["chain 1 never moved"])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        PosteriorModel(posterior)
    assert "chain 1 never moved" in str(said[0].message)
    assert said[0].filename == __file__

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, distributions, nn

from tests.oracles import assert_close, mass, normal
from torchbayes.model import Batch, Layout, Model, likelihoods, priors
from torchbayes.model.priors import mixture
from torchbayes.model.priors.axes import Axes
from torchbayes.model.priors.bound import BoundPrior
from torchbayes.model.priors.univariate import Prior

LAYOUT = Layout({"body.weight": (4, 3), "body.bias": (4,), "head.weight": (2, 4), "head.bias": (2,), "scale": ()})


def double(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64)


def mixture_logpdf(x: Any) -> Any:
    return np.log(0.75 * stats.norm.pdf(x, scale=2.0) + 0.25 * stats.norm.pdf(x, scale=0.1))


def inverse_chi_logpdf(x: Any, df: float, scale: Any) -> Any:
    """Of w = log s with df scale² / (2 s²) = G ~ Gamma(df/2), so that log G = log(df/2) − 2 (w − log scale)."""
    with np.errstate(over="ignore"):  # far below, where the density is 0
        return stats.loggamma.logpdf(math.log(df / 2) - 2 * (np.asarray(x) - np.log(scale)), df / 2) + math.log(2)


CASES: dict[str, tuple[Prior, Callable[[Any], Any]]] = {
    "normal": (priors.Normal(0.7, loc=0.3), lambda x: stats.norm.logpdf(x, 0.3, 0.7)),
    "laplace": (priors.Laplace(0.7, loc=0.3), lambda x: stats.laplace.logpdf(x, 0.3, 0.7)),
    "student t": (priors.StudentT(3.5, 0.7, loc=0.3), lambda x: stats.t.logpdf(x, 3.5, 0.3, 0.7)),
    "noise scale": (priors.LogInverseChi(3.0, 0.7), lambda x: inverse_chi_logpdf(x, 3.0, 0.7)),
    "noise scale, few degrees": (priors.LogInverseChi(0.6, 1.7), lambda x: inverse_chi_logpdf(x, 0.6, 1.7)),
    "logistic": (priors.Logistic(0.7, loc=0.3), lambda x: stats.logistic.logpdf(x, 0.3, 0.7)),
    "mixture": (priors.NormalMixture((2.0, 0.1), (3.0, 1.0)), mixture_logpdf),
    "torch gumbel": (
        priors.Univariate(distributions.Gumbel(double(0.3), double(0.8))),
        lambda x: stats.gumbel_r.logpdf(x, 0.3, 0.8),
    ),
}
each = pytest.mark.parametrize(("prior", "oracle"), CASES.values(), ids=CASES.keys())


@each
def test_log_prob_is_scipys(prior: Prior, oracle: Callable[[Any], Any]):
    weights = 3 * normal(2, 5)
    assert_close(prior.log_prob(weights), oracle(weights.numpy()))


@each
def test_density_integrates_to_one(prior: Prior, oracle: Callable[[Any], Any]):
    # a tail of t(3.5) beyond 2,000 holds less than 1e-8
    assert_close(mass(prior.log_prob, -2000.0, 2000.0, 2_000_001), 1.0, rtol=1e-6)


@each
def test_far_weights_have_a_finite_density_and_gradient(prior: Prior, oracle: Callable[[Any], Any]):
    far = torch.tensor([-300.0, 300.0], dtype=torch.float64).requires_grad_()
    value = prior.log_prob(far)
    (gradient,) = torch.autograd.grad(value[1:].sum(), far)
    assert torch.isfinite(value[1:]).all()
    assert gradient[1] < 0  # back towards the centre


@each
def test_bound_gradient_is_autograds(prior: Prior, oracle: Callable[[Any], Any]):
    bound, weights = BoundPrior(LAYOUT, prior), normal(3, LAYOUT.size)
    leaf = weights.clone().requires_grad_()
    (expected,) = torch.autograd.grad(bound.log_prob(leaf).sum(), leaf)
    start = normal(3, LAYOUT.size, seed=1)
    gradient = start.clone()
    with torch.no_grad():
        bound.add_gradient_(gradient, weights, 0.3)
    assert_close(gradient, start + 0.3 * expected)
    assert_close(bound.log_prob(weights), torch.as_tensor(oracle(weights.numpy())).sum(-1))


@pytest.mark.parametrize(
    ("scales", "proportions"),
    [((1.0, 0.002), (1.0, 3.0)), ((0.002, 1.0), (3.0, 1.0)), ((0.3, 2.0, 1e-4), (1.0, 1.0, 5.0)), ((0.5,), (2.0,))],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mixtures_in_one_pass_are_their_log_density_and_its_derivative(scales, proportions, dtype, monkeypatch):
    monkeypatch.setattr(mixture, "_BLOCK", 7)
    prior = priors.NormalMixture(scales, proportions)
    weights = (normal(3, 2, 40) * torch.tensor([1e-4, 3e-3, 0.03, 1.0, 300.0]).repeat(8)).to(dtype)
    leaf = weights.double().requires_grad_()
    expected = prior.log_prob(leaf)
    (slope,) = torch.autograd.grad(expected.sum(), leaf)
    start = normal(3, 2, 40, seed=1).to(dtype)
    gradient = start.clone()
    actual = prior.visit_(weights, gradient, 1e-3)
    rtol = 1e-12 if dtype == torch.float64 else 1e-5  # of a float32 sum with terms of either sign
    assert actual.dtype == torch.float64
    assert_close(actual, expected.detach().sum(-1), rtol=rtol)
    assert_close(gradient, (start + 1e-3 * slope).to(dtype), rtol=rtol, atol=rtol)
    assert_close(prior.total(weights), actual, rtol=1e-14)
    assert_close(prior.total(leaf), expected.sum(-1), rtol=1e-14)


def test_a_mixture_weights_that_are_not_finite_is_not_finite():
    prior, gradient = priors.NormalMixture(), torch.zeros(3)
    assert not torch.isfinite(prior.visit_(torch.tensor([0.0, math.nan, 1.0]), gradient, 1.0))
    assert gradient.isnan().tolist() == [False, True, False]


def test_each_glob_has_its_density_and_the_first_match_wins():
    rules = {"head.*": priors.Laplace(0.5), "*bias": priors.StudentT(3.0), "*": distributions.Normal(double(0.0), 2.0)}
    weights = normal(2, 3, LAYOUT.size)
    views = {n: v.numpy() for n, v in LAYOUT.split(weights).items()}
    expected = (
        stats.laplace.logpdf(views["head.weight"], scale=0.5).sum((-1, -2))
        + stats.laplace.logpdf(views["head.bias"], scale=0.5).sum(-1)
        + stats.t.logpdf(views["body.bias"], 3.0).sum(-1)
        + stats.norm.logpdf(views["body.weight"], scale=2.0).sum((-1, -2))
        + stats.norm.logpdf(views["scale"], scale=2.0)
    )
    bound = BoundPrior(LAYOUT, rules)
    assert_close(bound.log_prob(weights), expected)
    leaf = weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(bound.log_prob(leaf).sum(), leaf)
    own = torch.zeros_like(weights)
    bound.add_gradient_(own, weights, 1.0)
    assert_close(own, gradient)


def test_neighbours_with_one_prior_become_one_segment_without_changing_values():
    merged = BoundPrior(LAYOUT, priors.Normal(0.7))
    rules: dict[str, priors.PriorLike] = {n: priors.Normal(0.7, loc=0.0) for n in LAYOUT.names}
    alternating = BoundPrior(LAYOUT, {**rules, "body.bias": priors.StudentT(1e9, 0.7)})  # a normal, but not equal
    assert len(merged.segments) == 1
    assert len(BoundPrior(LAYOUT, rules).segments) == 1
    assert len(alternating.segments) == 3
    weights = normal(3, LAYOUT.size)
    expected = stats.norm.logpdf(weights.numpy(), scale=0.7).sum(-1)
    assert_close(merged.log_prob(weights), expected)
    assert_close(alternating.log_prob(weights), expected, rtol=1e-6)


def test_fan_in_scales_by_the_shape():
    prior = priors.FanInNormal(gain=3.0, bias_scale=0.5)
    assert prior.resolve(Axes.dense((10, 9))) == priors.Normal(1.0)  # 3 / √9
    assert prior.resolve(Axes.dense((8, 4, 3, 3))) == priors.Normal(0.5)  # 3 / √36
    assert prior.resolve(Axes.dense((10,))) == prior.resolve(Axes.dense(())) == priors.Normal(0.5)
    weights = normal(LAYOUT.size)
    views = LAYOUT.split(weights)
    expected = stats.norm.logpdf(views["body.weight"], scale=3 / math.sqrt(3)).sum()
    expected += stats.norm.logpdf(views["head.weight"], scale=1.5).sum()
    for name in ("body.bias", "head.bias", "scale"):
        expected += stats.norm.logpdf(views[name], scale=0.5).sum()
    assert_close(BoundPrior(LAYOUT, prior).log_prob(weights), expected)


def test_fan_in_keeps_the_spread_of_a_layer_at_any_width():
    for width in (4, 64):
        prior = priors.FanInNormal(gain=1.0).resolve(Axes.dense((width, width)))
        assert isinstance(prior, priors.Normal)
        outputs = normal(2000, 1, width) @ (prior.scale * normal(2000, width, width, seed=1))
        assert outputs.var().item() == pytest.approx(1.0, rel=0.1)  # 4 sigma for 2,000 independent networks


def test_flat_prior_makes_the_mode_the_maximum_likelihood():
    inputs, noise = normal(20, 2), 0.1 * normal(20, seed=1)
    targets = inputs @ torch.tensor([1.0, -2.0], dtype=torch.float64) + 0.5 + noise
    model = Model(nn.Linear(2, 1).double(), likelihoods.Gaussian(0.3), priors.Flat())
    features = torch.cat([inputs, torch.ones(20, 1, dtype=torch.float64)], dim=1)
    best = torch.linalg.lstsq(features, targets.unsqueeze(1)).solution[:, 0].requires_grad_()
    value = model.log_joint(best, Batch(inputs, targets), 20)
    (gradient,) = torch.autograd.grad(value, best)
    assert_close(gradient, torch.zeros(3), atol=1e-9)
    assert_close(value, stats.norm.logpdf(targets, (features @ best).detach(), 0.3).sum())
    own = normal(2, 3)
    model.prior.add_gradient_(own, normal(2, 3), 1.0)
    assert torch.equal(own, normal(2, 3))


def test_a_distribution_of_the_caller_is_a_prior():
    skewed = distributions.Gumbel(double(0.0), double(1.0))
    weights = normal(2, LAYOUT.size)
    assert_close(BoundPrior(LAYOUT, skewed).log_prob(weights), stats.gumbel_r.logpdf(weights.numpy()).sum(-1))

    class Quartic:
        def log_prob(self, weights: Tensor) -> Tensor:
            return -(weights**4)

    assert_close(BoundPrior(LAYOUT, Quartic()).log_prob(weights), -(weights**4).sum(-1))


def test_rules_and_names_must_match_up():
    with pytest.raises(
        ValueError, match=r"glob 'tail\.\*', 'x' matches no random parameter; the names are body\.weight"
    ):
        BoundPrior(LAYOUT, {"tail.*": priors.Flat(), "x": priors.Flat(), "*": priors.Normal()})
    with pytest.raises(
        ValueError, match=r"no glob of the prior matches `head\.weight`\. Add it, or a last rule `'\*'`"
    ):
        BoundPrior(LAYOUT, {"body.*": priors.Normal()})


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (3.0, r"`prior` must be an object such as Normal\(\); got"),
        (priors.Normal, r"got the class Normal\. Write Normal\(\)"),
        (distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)), r"must be univariate.*event shape \(2,\)"),
        (distributions.Normal(torch.zeros(4), torch.ones(4)), r"must be univariate; got batch shape \(4,\)"),
    ],
)
def test_what_is_no_univariate_prior(prior: Any, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        BoundPrior(LAYOUT, prior)


MIXED = distributions.Categorical(torch.ones(2))


@pytest.mark.parametrize(
    "part",
    [
        distributions.HalfNormal(1.0),
        distributions.Gamma(2.0, 1.0, validate_args=False),
        distributions.LogNormal(0.0, 1.0),
        distributions.Uniform(-5.0, 5.0),
        distributions.Poisson(3.0),
        distributions.MixtureSameFamily(MIXED, distributions.HalfNormal(torch.ones(2))),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_prior_over_a_part_of_the_numbers_is_refused_where_the_model_is_made(part: distributions.Distribution):
    with pytest.raises(
        ValueError, match=r"(?s)`prior` of '\*eight' must have a density at all real.* support is .*Normal"
    ):
        Model(nn.Linear(2, 1), likelihoods.Gaussian(1.0), {"*eight": part, "*": priors.Normal()})


def test_a_distribution_over_all_numbers_is_a_prior_however_it_is_made():
    shifted = distributions.TransformedDistribution(
        distributions.Gumbel(double(0.3), double(0.8)), distributions.AffineTransform(double(1.0), double(2.0))
    )
    mixture = distributions.MixtureSameFamily(MIXED, distributions.Normal(torch.zeros(2), torch.tensor([2.0, 0.1])))
    bound = BoundPrior(LAYOUT, {"body.*": shifted, "*": mixture})
    weights = normal(LAYOUT.size)
    expected = stats.gumbel_r.logpdf(weights[:16], 1.6, 1.6).sum()
    pdf = 0.5 * stats.norm.pdf(weights[16:], scale=2.0) + 0.5 * stats.norm.pdf(weights[16:], scale=0.1)
    assert_close(bound.log_prob(weights), expected + np.log(pdf).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priors.Normal(0.0), r"`scale` must be above 0; got 0\.0"),
        (lambda: priors.Laplace(-1.0), r"`scale` must be above 0"),
        (lambda: priors.StudentT(df=math.inf), "`df` must be finite and above 0; got inf"),
        (lambda: priors.StudentT(scale=math.nan), "`scale` must be above 0; got nan"),
        (lambda: priors.Logistic(0.0), "`scale`"),
        (lambda: priors.FanInNormal(gain=0.0), "`gain`"),
        (lambda: priors.FanInNormal(bias_scale=-1.0), "`bias_scale`"),
        (lambda: priors.NormalMixture((1.0, 2.0), (1.0,)), "the same length; got"),
        (lambda: priors.NormalMixture((), ()), "must be a tuple of one or more numbers"),
        (lambda: priors.NormalMixture((1.0, -2.0)), r"`scales` must be above 0; got -2\.0"),
        (lambda: priors.NormalMixture((1.0, 2.0), (1.0, 0.0)), "`proportions` must be above 0"),
    ],
)
def test_settings_outside_their_range(make: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        make()


# --- noise scales ---


@pytest.mark.parametrize("df", [0.5, 2.0, 30.0])
def test_moments_of_a_log_noise_scale(df: float):
    prior = priors.LogInverseChi(df, 0.3)
    log_gamma = stats.loggamma(df / 2)
    assert_close(prior.std, log_gamma.std() / 2, rtol=1e-6)
    assert_close(prior.loc, math.log(0.3) + (math.log(df / 2) - log_gamma.mean()) / 2, rtol=1e-6)


@pytest.mark.parametrize(("squares", "rows"), [(0.0, 10), (0.0, 100_000), (3.0, 7), (1e6, 3)])
def test_the_mode_of_a_noise_scale_stays_above_zero(squares: float, rows: int):
    """At σ² = (S + ν s²)/(N + ν), for networks that interpolate too."""
    prior, df, scale = priors.LogInverseChi(2.0, 0.3), 2.0, 0.3
    mode = (0.5 * double((squares + df * scale**2) / (rows + df)).log()).requires_grad_()
    value = -rows * mode - squares / 2 * torch.exp(-2 * mode) + prior.log_prob(mode)
    (slope,) = torch.autograd.grad(value, mode, create_graph=True)
    (bend,) = torch.autograd.grad(slope, mode)
    assert_close(slope.detach(), 0.0, atol=1e-9 * (rows + df))
    assert_close(bend, -2 * (rows + df))


def test_each_noise_scale_has_its_own_prior():
    layout, weights = Layout({"a": (2,), "b": (2,), "c": (3,)}), normal(5, 7)
    prior = priors.LogInverseChi(2.0, (0.1, 40.0))
    bound = BoundPrior(layout, {"c": priors.LogInverseChi(2.0, 3.0), "*": prior})
    scales = np.array([0.1, 40.0, 0.1, 40.0, 3.0, 3.0, 3.0])
    assert_close(bound.log_prob(weights), inverse_chi_logpdf(weights.numpy(), 2.0, scales).sum(-1))
    gradient = torch.zeros_like(weights)
    bound.add_gradient_(gradient, weights, 0.5)
    leaf = weights.clone().requires_grad_()
    (expected,) = torch.autograd.grad(bound.log_prob(leaf).sum(), leaf)
    assert_close(gradient, 0.5 * expected)
    assert_close(bound.precision(weights), 4 * np.exp(-2 * (weights.numpy() - np.log(scales))))
    assert_close(bound.locs() - bound.locs()[:1], np.log(scales / 0.1))
    draws = bound.sample(4000, seed=3)
    assert_close(draws.mean(0), bound.locs(), rtol=0, atol=5 * float(bound.stds()[0]) / math.sqrt(4000))
    with pytest.raises(ValueError, match="2 scales for 3 elements"):
        BoundPrior(layout, prior)


# --- draws ---


@each
def test_draws_have_the_priors_distribution(prior: Prior, oracle: Callable[[Any], Any]):
    """Kolmogorov's test against the distribution function, which is the integral of the oracle's density."""
    bound = BoundPrior(Layout({"w": (4,)}), prior)
    draws = bound.sample(5000, seed=1).flatten().numpy()
    grid = np.linspace(-400, 400, 400_001)
    with np.errstate(divide="ignore"):  # of a density that is 0 there
        density = np.exp(oracle(grid))
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2) * (grid[1] - grid[0])])
    assert stats.kstest(draws, lambda x: np.interp(x, grid, below)).pvalue > 1e-3
    # neighbours and rows do not depend on each other
    columns = torch.special.ndtri(torch.as_tensor(np.interp(draws, grid, below)).clamp(1e-6, 1 - 1e-6)).view(5000, 4)
    assert_close(torch.corrcoef(columns.T), torch.eye(4), rtol=0, atol=5 / math.sqrt(5000))
    assert abs(float((columns[1:] * columns[:-1]).mean())) < 5 / math.sqrt(20_000)


def test_draws_of_each_glob_are_its_own(untouched_rng: None):
    rules = {
        "head.*": priors.Normal(3.0, loc=100.0),
        "*bias": distributions.Gumbel(double(50.0), double(0.1)),
        "body.weight": priors.FanInNormal(gain=1e-3),
        "*": priors.Laplace(0.1, loc=-50.0),
    }
    bound = BoundPrior(LAYOUT, rules)
    draws = bound.sample(400, seed=2)
    assert draws.shape == (400, LAYOUT.size)
    assert draws.dtype == torch.float64
    views = LAYOUT.split(draws)
    assert_close(views["head.weight"].mean(), 100.0, atol=5 * 3 / math.sqrt(3200))
    assert_close(views["head.weight"].std(), 3.0, rtol=0.1)
    assert stats.kstest(views["body.bias"].flatten(), stats.gumbel_r(50.0, 0.1).cdf).pvalue > 1e-3
    assert_close(views["body.weight"].std(), 1e-3 / math.sqrt(3), rtol=0.1)
    assert_close(views["scale"].mean(), -50.0, atol=0.05)
    assert len(draws.unique()) == draws.numel()
    assert torch.equal(draws, bound.sample(400, seed=2))
    assert not torch.equal(draws, bound.sample(400, seed=3))
    assert torch.isfinite(bound.log_prob(draws)).all()


def test_draws_of_a_distribution_in_float32_are_float64():
    draws = BoundPrior(LAYOUT, distributions.Normal(torch.tensor([2.0]), torch.tensor([1.0]))).sample(500, seed=0)
    assert draws.shape == (500, LAYOUT.size)
    assert draws.dtype == torch.float64
    assert_close(draws.mean(), 2.0, atol=5 / math.sqrt(draws.numel()))


def test_priors_without_draws():
    class Own:
        def log_prob(self, weights: Tensor) -> Tensor:
            return -weights.abs()

    with pytest.raises(ValueError, match=r"from Flat\(\), which is improper. Choose a prior such as Normal"):
        BoundPrior(LAYOUT, {"head.*": priors.Normal(), "*": priors.Flat()}).sample(2)
    with pytest.raises(ValueError, match=r"which has no `sample`"):
        BoundPrior(LAYOUT, Own()).sample(2)


@pytest.mark.parametrize("loc", [0.0, pytest.param(0.3, marks=pytest.mark.study)])
def test_the_density_of_many_weights_is_a_sum_in_float64(loc: float):
    weights = normal(2, 2 * 2**20 + 5).float()  # more than two blocks
    exact = stats.norm.logpdf(weights.double().numpy(), loc, 0.7).sum(1, dtype=np.longdouble).astype(float)
    # with a mean, differences are formed in float32
    assert_close(priors.Normal(0.7, loc=loc).total(weights), torch.from_numpy(exact), rtol=1e-13 if not loc else 1e-8)

"""Priors of weights together: normal with a covariance that rows share, and variances that groups share.

Densities are compared with scipy's, in float64, gradients with autograd, draws with their moments, and posteriors with
closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate
from scipy import stats as _stats
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.model import Layout, priors
from torchbayes.model.priors.axes import Axes
from torchbayes.model.priors.bound import BoundPrior, Closed, Segment
from torchbayes.model.priors.expected import add_expected_, is_closed
from torchbayes.model.priors.groups import SharedVariance

stats: Any = _stats  # whose types are of single numbers
LAYOUT = Layout({"0.weight": (4, 3), "0.bias": (4,), "2.weight": (2, 4, 2, 2)})
SPREAD = normal(3, 3, seed=7)
dense = Axes.dense


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


COVARIANCE = SPREAD @ SPREAD.T + 0.1 * eye(3)
FILTERS = priors.Correlated.filters(2, lengthscale=1.5, scale=0.7)


def gaussian(matrix: Tensor, rows: Any) -> float:
    return float(stats.multivariate_normal(np.zeros(len(matrix)), matrix.numpy()).logpdf(rows).sum())


def student(df: float, scale: float, rows: Tensor) -> float:
    """Multivariate t of every row."""
    shape = scale**2 * np.eye(rows.shape[1])
    return float(np.sum(stats.multivariate_t(np.zeros(len(shape)), shape, df).logpdf(rows.numpy())))


def by_columns(weight: Tensor) -> Tensor:
    return weight.movedim(1, 0).reshape(weight.shape[1], -1)


CASES: dict[str, tuple[Any, Callable[[dict[str, Tensor]], float]]] = {
    "rows of a layer": (
        {"0.weight": priors.Correlated(COVARIANCE)},
        lambda w: gaussian(COVARIANCE, w["0.weight"]),
    ),
    "filters": (
        {"2.weight": FILTERS},
        lambda w: gaussian(FILTERS.covariance, w["2.weight"].reshape(8, 4)),
    ),
    "inputs": (
        {"0.weight": priors.EmpCov.of(normal(20, 3, seed=5), scale=0.5, jitter=0.01)},
        lambda w: gaussian(0.25 * normal(20, 3, seed=5).T @ normal(20, 3, seed=5) / 19 + 0.01 * eye(3), w["0.weight"]),
    ),
    "scale of a layer": (
        {"0.weight": priors.Hierarchical(0.7, 3.0)},
        lambda w: student(3.0, 0.7, w["0.weight"].reshape(1, -1)),
    ),
    "scales of rows": (
        {"2.weight": priors.Hierarchical(0.7, 3.0, "rows")},
        lambda w: student(3.0, 0.7, w["2.weight"].flatten(1)),
    ),
    "scales of columns": (
        {"2.weight": priors.Hierarchical(0.7, 3.0, "columns")},
        lambda w: student(3.0, 0.7, by_columns(w["2.weight"])),
    ),
}
each = pytest.mark.parametrize(("rule", "oracle"), CASES.values(), ids=CASES.keys())


def bound_of(rule: Any) -> BoundPrior:
    return BoundPrior(LAYOUT, {**rule, "*": priors.Normal(0.5)})


@each
def test_density_is_scipys(rule: Any, oracle: Callable[[dict[str, Tensor]], float]) -> None:
    bound, weights = bound_of(rule), normal(3, LAYOUT.size)
    rest = [n for n in LAYOUT.names if n not in rule]
    for row, actual in zip(weights, bound.log_prob(weights), strict=True):
        views = LAYOUT.split(row)
        others = sum(stats.norm.logpdf(views[n].numpy(), scale=0.5).sum() for n in rest)
        assert_close(actual, oracle(views) + others)


@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradient_is_autograds(rule: Any, oracle: Any, dtype: torch.dtype) -> None:
    bound, weights = bound_of(rule), normal(3, LAYOUT.size).to(dtype)
    leaf = weights.double().requires_grad_()
    (expected,) = torch.autograd.grad(bound.log_prob(leaf).sum(), leaf)
    start = normal(3, LAYOUT.size, seed=1).to(dtype)
    gradient, actual = start.clone(), bound.log_prob(weights)
    with torch.no_grad():
        bound.add_gradient_(gradient, weights, 0.3)
    rtol = 1e-10 if dtype == torch.float64 else 1e-4
    assert actual.dtype == torch.float64
    assert_close(gradient, start + 0.3 * expected, rtol=rtol, atol=rtol)
    assert_close(actual, bound.log_prob(weights.double()), rtol=rtol / 10)
    rest = torch.zeros(3, LAYOUT.size, dtype=dtype)
    total = bound.add_rest_(rest, weights, 1.0)  # what a kernel leaves to be added to the part that it computes
    for segment in bound.segments:
        if isinstance(segment.prior, Closed):
            assert (rest[:, segment.where] == 0).all()
            constants = (segment.where.stop - segment.where.start) * segment.prior.log_constant
            total = total + segment.total(weights) + constants
        else:
            assert_close(rest[:, segment.where], expected[:, segment.where], rtol=rtol, atol=rtol)
    assert_close(total, actual, rtol=rtol)


@each
def test_draws_have_its_moments(rule: Any, oracle: Any) -> None:
    bound = bound_of(rule)
    draws = bound.sample(10_000, seed=2)
    assert draws.dtype == torch.float64
    assert torch.equal(bound.sample(50, seed=2), bound.sample(50, seed=2))
    assert_close(bound.locs(), torch.zeros(LAYOUT.size))
    # by the fourth root for heavy tails: E |w|^½ of a t with 3 degrees and of a normal
    roots = draws.abs().sqrt()
    kind = stats.t(3.0) if "Hierarchical" in repr(rule) else stats.norm()
    for n, where in LAYOUT.slices.items():
        law, std = (kind, bound.stds()[where]) if n in rule else (stats.norm(), bound.stds()[where])
        scale = 0.7 * torch.ones_like(std) if law.dist.name == "t" else std
        moment = law.expect(lambda w: abs(w) ** 0.5)
        error = roots[:, where].std(0) / len(draws) ** 0.5
        assert ((roots[:, where].mean(0) - scale.sqrt() * moment) / error).abs().max() < 5


def test_draws_of_rows_have_the_covariance_and_are_independent() -> None:
    draws = BoundPrior(Layout({"w": (2, 3)}), priors.Correlated(COVARIANCE)).sample(40_000, seed=1)
    expected = torch.block_diag(COVARIANCE, COVARIANCE)
    error = (expected.diagonal().unsqueeze(1) * expected.diagonal() + expected.square()).sqrt() / 200
    assert ((draws.T @ draws / 40_000 - expected) / error).abs().max() < 5


def test_groups_share_a_variance_in_draws() -> None:
    """|w_a| and |w_b| are correlated in a group and not between groups: log |w| has the variance of log s in common."""
    draws = BoundPrior(Layout({"w": (3, 2)}), priors.Hierarchical(0.3, 4.0, "columns")).sample(20_000, seed=3)
    covariance = torch.cov(draws.abs().log().T).view(3, 2, 3, 2)
    common = priors.LogInverseChi(4.0, 0.3).std ** 2
    for i, j in ((0, 1), (1, 2), (0, 2)):
        assert_close(covariance[i, 0, j, 0], common, rtol=0.2)
        assert abs(float(covariance[i, 0, j, 1])) < 0.05


def test_inputs_of_a_grouped_convolution_have_variances_of_their_own_in_draws() -> None:
    """The same place of two groups of the convolution is two input channels, which have nothing in common."""
    prior = priors.Hierarchical(0.3, 4.0, "columns").resolve(Axes((4, 2), 0, 1, groups=2, fan_in=2.0))
    assert isinstance(prior, SharedVariance)
    assert prior.grid == (2, 2, 2, 1)
    draws = prior.sample((20_000, 8), torch.Generator().manual_seed(3))
    covariance = torch.cov(draws.abs().log().T).view(4, 2, 4, 2)
    for i, j in ((0, 1), (2, 3)):
        assert_close(covariance[i, 0, j, 0], priors.LogInverseChi(4.0, 0.3).std ** 2, rtol=0.2)
    assert float(covariance[:2, :, 2:].abs().max()) < 0.05
    assert abs(float(covariance[0, 0, 1, 1])) < 0.05


def test_single_weights_of_a_group_are_students_t_or_the_horseshoe() -> None:
    assert priors.Hierarchical(0.7, 3.0, "weights").resolve(dense((4, 3))) == priors.StudentT(3.0, 0.7)
    assert priors.Hierarchical(0.7, None, "weights").resolve(dense((4, 3))) == priors.Horseshoe(0.7)
    assert priors.Hierarchical(0.7, 3.0, "rows").resolve(dense((4, 1))) == priors.StudentT(3.0, 0.7)
    assert priors.Hierarchical(0.7, 3.0, "rows").resolve(dense((4,))) == priors.Hierarchical(0.7, 3.0).resolve(
        dense((4,))
    )


@pytest.mark.parametrize("df", [1.0, 3.0])
def test_a_group_is_the_mixture_over_its_variance(df: float) -> None:
    prior, weights = (
        priors.Hierarchical(0.6, df).resolve(dense((1, 3))),
        torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64),
    )
    law = stats.invgamma(df / 2, scale=df * 0.36 / 2)

    def part(log_v: float) -> float:
        v = math.exp(log_v)
        return float(np.exp(stats.norm.logpdf(weights, scale=v**0.5).sum()) * law.pdf(v) * v)

    assert_close(prior.log_prob(weights), math.log(integrate.quad(part, -20, 20, epsabs=0)[0]), rtol=1e-8)


@pytest.mark.parametrize("df", [3.0, None])
def test_densities_of_log_scales_are_those_of_the_variance(df: float | None) -> None:
    """Of v by Jacobian 2v, of √v by √v; as of formulas: IG(ν/2, ν s²/2), or half-Cauchy."""
    log_scale, s = torch.linspace(-6, 6, 25, dtype=torch.float64), 0.6
    v = (2 * log_scale).exp().numpy()
    expected = (
        stats.halfcauchy(scale=s).logpdf(v**0.5) + np.log(v) / 2
        if df is None
        else stats.invgamma(df / 2, scale=df * s**2 / 2).logpdf(v) + np.log(2 * v)
    )
    assert_close(priors.Hierarchical(s, df).log_scales().log_prob(log_scale), expected)


# --- the covariance of inputs


def test_second_moments_are_those_of_all_rows_however_they_come() -> None:
    inputs, labels = normal(50, 2, 3), torch.zeros(50)
    flat = inputs.flatten(1)
    expected = 4 * flat.T @ flat / 49 + 1e-3 * eye(6)
    rows = torch.utils.data.TensorDataset(inputs, labels)
    ways = [inputs, inputs.numpy(), (inputs, labels), [inputs[:20], inputs[20:]], [(inputs[:7], 1), (inputs[7:], 2)]]
    ways += [torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)]
    for way in ways:
        assert_close(priors.EmpCov.of(way, scale=2.0, jitter=1e-3).covariance, expected)
    last_axis = priors.EmpCov.of(inputs, layer=nn.Linear(3, 2), jitter=1e-3).covariance
    each_place = inputs.reshape(-1, 3)
    assert_close(last_axis, each_place.T @ each_place / 99 + 1e-3 * eye(3))
    assert_close(priors.EmpCov.of(inputs, layer=nn.Linear(6, 2), jitter=1e-3, scale=2.0).covariance, expected)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, 3),
        nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        nn.Conv2d(2, 3, 2, padding="same"),
        nn.Conv2d(2, 3, 3, padding="valid"),
        nn.Conv1d(2, 3, 4, stride=2, padding=1),
        nn.Conv1d(2, 3, 4, padding="same", dilation=2),
    ],
    ids=str,
)
def test_patches_are_what_filters_meet(layer: Any) -> None:
    """Σ over rows and places of (w · patch)² is that of the outputs of the layer, for every filter w."""
    inputs = normal(6, 2, *((7, 8) if isinstance(layer, nn.Conv2d) else (9,)))
    layer = layer.double()
    prior = priors.EmpCov.of(inputs, layer=layer, jitter=1e-2)
    outputs = layer(inputs) - layer.bias.view(-1, *[1] * (inputs.ndim - 2))
    count = outputs[:, 0].numel()
    weight = layer.weight.flatten(1)
    actual = ((weight @ (prior.covariance - 1e-2 * eye(weight.shape[1]))) * weight).sum(1)
    assert_close(actual, outputs.square().movedim(1, 0).flatten(1).sum(1) / (count - 1), rtol=1e-9)
    model = tb.Model(layer, lambda f: torch.distributions.Normal(f, 1.0), {"weight": prior, "*": priors.Normal()})
    assert model.prior.sample(2).shape == (2, model.layout.size)


def linear_with_a_null_direction() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs that lie in a plane of three dimensions, its normal vector, and targets."""
    basis = torch.linalg.qr(normal(3, 3, seed=4)).Q
    inputs = normal(30, 2, seed=5) @ basis[:2]
    return inputs, basis[2], inputs @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3 * normal(30, seed=6)


def test_a_null_direction_keeps_its_prior() -> None:
    """Exactly N(0, ε) under EmpCov and N(0, s²) under a normal prior, whatever the targets are."""
    inputs, null, targets = linear_with_a_null_direction()
    net = nn.Linear(3, 1, bias=False).double()
    for prior, variance in ((priors.EmpCov.of(inputs, jitter=1e-4), 1e-4), (priors.Normal(2.0), 4.0)):
        model = tb.Model(net, tb.likelihoods.Gaussian(0.3), prior)
        fitted = tb.fit(model, (inputs, targets), tb.Laplace("dense", prior="model", check_mode=False),
                        start=net, callbacks=())  # fmt: skip
        assert isinstance(fitted, tb.LaplacePosterior)
        assert_close(null @ fitted.gaussian.covariance.dense()[0] @ null, variance, rtol=1e-7)


def test_laplace_is_exact_for_a_linear_model_beside_other_priors() -> None:
    inputs, _, targets = linear_with_a_null_direction()
    rule = priors.EmpCov.of(inputs, jitter=1e-2)
    model = tb.Model(
        nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.3), {"weight": rule, "*": priors.Normal(2.0, loc=0.5)}
    )
    features = torch.cat([inputs, torch.ones(30, 1)], 1)
    prior = torch.block_diag(torch.linalg.inv(rule.covariance), torch.tensor([[0.25]], dtype=torch.float64))
    precision = features.T @ features / 0.09 + prior
    mean = torch.linalg.solve(precision, features.T @ targets / 0.09 + prior @ torch.tensor([0, 0, 0, 0.5]).double())
    fitted = tb.fit(model, (inputs, targets), tb.Laplace("dense", prior="model"), start=mean, callbacks=())
    assert isinstance(fitted, tb.LaplacePosterior)
    assert not fitted.problems
    assert_close(fitted.gaussian.covariance.dense()[0], torch.linalg.inv(precision), rtol=1e-8)
    whole = features @ torch.linalg.inv(prior) @ features.T + 0.09 * eye(30)
    expected = stats.multivariate_normal(0.5 * np.ones(30), whole.numpy()).logpdf(targets.numpy())
    assert_close(fitted.log_evidence(), [expected], rtol=1e-8)
    assert_close(fitted.effective_parameters(), [4 - torch.trace(prior @ torch.linalg.inv(precision))], rtol=1e-8)


@pytest.mark.study  # `test_laplace_is_exact_for_a_linear_model_beside_other_priors` has it
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("method", ["hmc", "elliptical"])
def test_samplers_meet_the_posterior_of_a_linear_model(method: str, temperature: float) -> None:
    inputs, _, targets = linear_with_a_null_direction()
    rule = priors.EmpCov.of(inputs, scale=0.5, jitter=0.05)
    model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(1.0), {"weight": rule, "*": priors.Normal(2.0)},
                     temperature=temperature)  # fmt: skip
    features = torch.cat([inputs, torch.ones(30, 1)], 1)
    prior = torch.block_diag(torch.linalg.inv(rule.covariance), torch.tensor([[0.25]], dtype=torch.float64))
    covariance = torch.linalg.inv(features.T @ features + prior)
    mean = covariance @ features.T @ targets
    own: Any = tb.HMC(48, 110, 60, jitter=0.5) if method == "hmc" else tb.EllipticalSlice(48, 800, 200, 12)
    draws = tb.fit(model, (inputs, targets), own, callbacks=()).sample(2400)
    root = torch.linalg.inv(torch.linalg.cholesky(temperature * covariance))
    whitened = (draws - mean) @ root.T
    assert_close(whitened.mean(0), torch.zeros(4), atol=0.12)
    assert_close(torch.cov(whitened.T), eye(4), rtol=0, atol=0.15)


# --- methods


def small(rules: Any, dtype: torch.dtype = torch.float32, likelihood: Any = None) -> tb.Model:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    return tb.Model(net, likelihood or tb.likelihoods.Categorical(), {**rules, "*": priors.Normal()})


RULES: dict[str, Any] = {
    "empcov": {"0.weight": priors.EmpCov.of(normal(20, 3, seed=5))},
    "hierarchical": {"0.weight": priors.Hierarchical(groups="columns"), "2.*": priors.Hierarchical()},
}
METHODS: dict[str, Any] = {
    "map": tb.MAP(members=2, epochs=3),
    "vi": tb.VI(epochs=3, kl_weight=1.0),
    "ivon": tb.IVON(epochs=3),
    "svgd": tb.SVGD(3, epochs=3),
    "sgld": tb.SGLD(steps=40, burn_in=10, thin=10, step_size=1e-4),
    "nuts": tb.NUTS(1, 12, 4),
}


@pytest.mark.filterwarnings("ignore:.*should not be trusted")
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_methods_fit_and_files_remember(method: Any, rules: Any, dtype: torch.dtype, tmp_path: Any) -> None:
    model = small(rules, dtype)
    data = (normal(20, 3, seed=5).to(dtype), torch.arange(20) % 2)
    posterior = tb.fit(model, data, method, callbacks=())
    drawn = posterior.sample(posterior.members)
    assert drawn.isfinite().all()
    assert drawn.dtype == dtype
    path = posterior.save(tmp_path / "p.safetensors")
    assert_close(tb.load(path, model).sample(posterior.members), drawn)
    with pytest.raises(ValueError, match="prior of weights"):
        tb.load(path, small({}, dtype))


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
def test_every_way_to_run_has_the_same_density(rules: Any) -> None:
    model, weights = small(rules, torch.float64), normal(3, 26)
    batch = tb.Batch(normal(20, 3, seed=5), torch.arange(20) % 2)
    leaf = weights.clone().requires_grad_()
    expected = torch.stack([model.log_joint(row, batch, 20) for row in leaf])
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    plans = {plan: tb.LogDensity(model, 20, batch, plan=plan) for plan in ("auto", "native", "loop", "vmap")}
    for density in plans.values():
        value = density(weights)
        assert_close(value.log_density, expected)
        assert_close(value.gradient, gradient)
    assert plans["auto"].plan is not None
    assert plans["auto"].plan.backend == "native"


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
def test_expectations_under_normal_weights_are_those_of_draws(rules: Any) -> None:
    bound = small(rules, torch.float64).prior
    mean, std = normal(1, 26), 0.3 + normal(1, 26, seed=2).abs()
    draws = mean + std * normal(40_000, 26, seed=3)
    for segment in bound.segments:
        if is_closed(segment):
            spare = [torch.zeros(1, 26, dtype=torch.float64) for _ in range(2)]
            actual = add_expected_(segment, mean, std.square(), scale=1.0, into=spare)
            values = segment.total(draws)
            assert abs(float((actual - values.mean()) / values.std())) < 5 / 200
    assert is_closed(Segment(bound.segments[0].prior, slice(0, 12))) == ("Joint" in repr(bound.segments[0].prior))


@pytest.mark.parametrize(
    ("rules", "likelihood", "method", "message"),
    [
        (RULES["empcov"], None, tb.Laplace(prior="model"), r"got 'kronecker'\. Use Laplace\('dense', prior='model'\)"),
        (RULES["empcov"], None, tb.Laplace("diagonal"), r"got 'diagonal'\. Use Laplace\('dense', prior='model'\)"),
        (RULES["empcov"], None, tb.Laplace("dense"), r"no factor .* got prior='scalar'\. Use prior='model'"),
        (RULES["empcov"], None, tb.Laplace("dense", prior=2.0), r"prior=2\.0\. Use"),
        (
            RULES["empcov"],
            tb.likelihoods.Gaussian("learned", 2),
            tb.Laplace("dense", prior="model"),
            "others are not normal",
        ),
        (RULES["hierarchical"], None, tb.Laplace(), r"have no precision of their own.*StudentT\(4, 1\)"),
    ],
)
def test_laplace_says_what_it_cannot_take(rules: Any, likelihood: Any, method: Any, message: str) -> None:
    model = small(rules, torch.float64, likelihood)
    targets = torch.arange(20) % 2 if likelihood is None else normal(20, 2)
    for start in (None, model.given_weights()):  # and before any training
        with pytest.raises(ValueError, match=message):
            tb.fit(model, (normal(20, 3), targets), method, callbacks=(), start=start)


def test_laplace_in_float32_is_that_in_float64() -> None:
    actual = []
    for dtype in (torch.float64, torch.float32):
        model, data = small(RULES["empcov"], dtype), (normal(20, 3, seed=5).to(dtype), torch.arange(20) % 2)
        method = tb.Laplace("dense", prior="model", check_mode=False)
        own: Any = tb.fit(model, data, method, start=model.given_weights(), callbacks=())
        actual.append((own.gaussian.covariance.dense(), own.log_evidence(), own.effective_parameters()))
    for double, single in zip(*actual, strict=True):
        assert_close(single, double, rtol=1e-3, atol=1e-4)


def test_a_subspace_conditions_the_correlated_prior() -> None:
    model = small(RULES["empcov"], torch.float64)
    basis = normal(2, 26, seed=8)
    space = tb.Subspace(model, torch.zeros(26).double(), basis)
    joint = model.prior.joint
    assert joint is not None
    precision = torch.linalg.inv(joint.covariance.dense()[0])
    assert_close(space.axes_RD @ precision @ space.axes_RD.T, eye(2), atol=1e-9)


# --- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priors.Correlated(torch.ones(2, 3)), r"square matrix of real numbers; got shape \(2, 3\)"),
        (lambda: priors.Correlated(torch.tensor([[1.0, 0.5], [0.4, 1.0]])), "must be symmetric"),
        (lambda: priors.Correlated(torch.ones(2, 2)), "positive definite; its smallest eigenvalue is"),
        (lambda: priors.Correlated(torch.full((2, 2), math.nan)), "must be finite"),
        (lambda: priors.Correlated.filters(0), "`kernel_size` must be .*got 0"),
        (lambda: priors.Correlated.filters(3, lengthscale=-1.0), "`lengthscale` must be above 0"),
        (lambda: priors.EmpCov.of(torch.ones(1, 4)), "at least 2 rows, for a covariance; got 1"),
        (lambda: priors.EmpCov.of(torch.empty(0, 4)), "at least 2 rows, for a covariance; got 0"),
        (lambda: priors.EmpCov.of(torch.tensor([[math.nan], [1.0]])), "`inputs` must be finite"),
        (lambda: priors.EmpCov.of([torch.ones(2, 3), torch.ones(2, 4)]), "rows of one size; got 4 after 3"),
        (lambda: priors.EmpCov.of(torch.ones(3, 4), layer=nn.Linear(5, 2)), "must have the 5 features of Linear"),
        (lambda: priors.EmpCov.of(torch.ones(3, 4), layer=nn.Conv2d(1, 2, 3)), "images of 1 channels"),
        (lambda: priors.EmpCov.of(torch.ones(3, 2, 4, 4), layer=nn.Conv2d(2, 2, 3, groups=2)), "without groups"),
        (lambda: priors.EmpCov.of(torch.ones(3, 1, 2, 3), layer=nn.Conv2d(1, 2, 3)), "no smaller than the filters"),
        (lambda: priors.EmpCov.of(torch.ones(3, 4), jitter=0.0), "`jitter` must be above 0"),
        (lambda: priors.EmpCov.of(1e6 * torch.ones(3, 4)), r"`jitter` must be at least 6 beside.*got 0\.01"),
        (lambda: priors.Hierarchical(df=None).resolve(dense((4, 3))), r"of a group of 12 weights.*with_scales"),
        (lambda: priors.Hierarchical(groups="filters"), r"`groups` must be .*got 'filters'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_structured_prior(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_covariance_that_does_not_fit_names_the_parameter() -> None:
    rule = priors.EmpCov.of(normal(10, 3))
    with pytest.raises(
        ValueError, match=r"`prior` of `0\.bias`: EmpCov\(3 x 3.*over 3 weights of a row.*\{'0\.weight'"
    ):
        BoundPrior(LAYOUT, rule)
    masks = {"0.weight": torch.rand(4, 3) < 2, "2.weight": torch.ones(2, 4).bool()}
    masks["0.weight"][0, 0] = False
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"only some weights of `0\.weight` are random"):
        tb.Model(net, tb.likelihoods.Categorical(), {"0.*": rule, "*": priors.Normal()}, random=masks)


def test_a_prior_of_two_layers_is_one_for_each() -> None:
    rule = priors.Correlated(COVARIANCE)
    layout = Layout({"a": (2, 3), "b": (5, 3)})
    bound, weights = BoundPrior(layout, rule), normal(21)
    assert len(bound.segments) == 2
    assert_close(bound.log_prob(weights), gaussian(COVARIANCE, weights.view(7, 3)))
    assert F.mse_loss(bound.stds(), COVARIANCE.diagonal().sqrt().repeat(7)) < 1e-20

"""Leave-one-out densities, against closed forms of linear models, refits, and arviz."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from tests.oracles import LinearGaussian, assert_close, classes, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.linalg import Dense

NOISE = 0.5


def linear(seed: int = 0, rows: int = 30, columns: int = 3) -> tuple[Tensor, Tensor, LinearGaussian]:
    inputs = normal(rows, columns, seed=seed)
    targets = inputs @ normal(columns, seed=seed + 1) + NOISE * normal(rows, seed=seed + 2)
    return inputs, targets, LinearGaussian(inputs, targets, prior_scale=1.0, noise_scale=NOISE)


def exact_elpd(inputs: Tensor, targets: Tensor) -> Tensor:
    """log p(y_n | the others) of each row, from as many posteriors."""
    actual = []
    for n in range(len(inputs)):
        rest = torch.arange(len(inputs)) != n
        mean, variance = LinearGaussian(inputs[rest], targets[rest], 1.0, NOISE).predictive(inputs[n : n + 1])
        actual.append(torch.distributions.Normal(mean, variance.sqrt()).log_prob(targets[n])[0])
    return torch.stack(actual)


@cache
def regression(columns: int = 3) -> tb.Model:
    return tb.Model(nn.Linear(columns, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(1.0))


def exact_draws(truth: LinearGaussian, chains: int, draws: int) -> tb.Draws:
    mean, covariance = truth.posterior()
    noise = normal(chains, draws, len(mean), seed=9)
    return tb.Draws(regression(), mean + noise @ torch.linalg.cholesky(covariance).T)


@pytest.mark.parametrize(("draws", "most"), [(400, 0.1), (4000, 0.05)])
def test_draws_of_a_linear_model_give_the_exact_density(draws: int, most: float) -> None:
    """The bounds are those of the published error per row, .069 and .033, on 30 rows and 4 weights."""
    inputs, targets, truth = linear()
    actual = tb.loo(exact_draws(truth, 1, draws), (inputs, targets.unsqueeze(1)))
    exact = exact_elpd(inputs, targets)
    assert float((actual.elpd_N - exact).abs().max()) < most
    assert actual.elpd == pytest.approx(float(exact.sum()), abs=2.5 * most)
    assert actual.error == pytest.approx(float((30 * exact.var(correction=0)).sqrt()), rel=0.1)
    within = torch.distributions.Normal(*_with(truth, inputs)).log_prob(targets).sum()
    assert actual.p_loo == pytest.approx(float(within - exact.sum()), abs=3 * most)
    assert not len(actual.untrusted)
    assert actual.problems == ()


def _with(truth: LinearGaussian, inputs: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = truth.predictive(inputs)
    return mean, variance.sqrt()


def test_densities_and_shapes_are_those_of_arviz() -> None:
    arviz = pytest.importorskip("arviz")
    inputs, targets, truth = linear(seed=5)
    posterior = exact_draws(truth, 1, 1000)
    actual = tb.loo(posterior, (inputs, targets.unsqueeze(1)))
    outputs = posterior.functions()(inputs)[..., 0]
    log_likelihood = torch.distributions.Normal(outputs, NOISE).log_prob(targets).unsqueeze(0).numpy()
    data = arviz.from_dict(posterior={"w": posterior.weights_MSD.numpy()}, log_likelihood={"y": log_likelihood})
    theirs = arviz.loo(data, pointwise=True, reff=1.0)
    assert_close(actual.elpd_N, np.asarray(theirs.loo_i), atol=1e-6)
    assert_close(actual.k_N, np.asarray(theirs.pareto_k), atol=1e-6)
    assert actual.elpd == pytest.approx(float(theirs.elpd_loo), abs=1e-5)
    assert actual.error == pytest.approx(float(theirs.se), abs=1e-5)
    assert actual.p_loo == pytest.approx(float(theirs.p_loo), abs=1e-5)
    assert actual.threshold == pytest.approx(float(theirs.good_k), abs=1e-9)


def test_the_closed_form_of_a_linear_model_is_exact() -> None:
    inputs, targets, _ = linear(seed=3)
    data = inputs, targets.unsqueeze(1)
    mean, _ = linear(seed=3)[2].posterior()
    actual = tb.loo(tb.fit(regression(), data, tb.Laplace(structure="dense", prior="model"), start=mean), data)
    assert_close(actual.elpd_N, exact_elpd(inputs, targets), rtol=1e-8)
    features = LinearGaussian.features(inputs)
    leverage = (features @ linear(seed=3)[2].posterior()[1] * features).sum(1) / NOISE**2
    assert_close(actual.k_N, leverage, rtol=1e-8)
    assert actual.closed


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_rows_that_count_twice_and_a_temperature_are_left_out_whole() -> None:
    """A row of weight 2 is two rows that go together; at the temperature T a row has the site p^(1/T)."""
    inputs, targets, _ = linear(seed=4)
    weights = torch.ones(30, dtype=torch.float64)
    weights[0] = 2.0
    model = tb.Model(
        nn.Linear(3, 1).double(),
        tb.likelihoods.Weighted(tb.likelihoods.Gaussian(NOISE)),
        tb.priors.Normal(1.0),
        temperature=0.5,
    )
    data = inputs, (targets.unsqueeze(1), weights)
    features = LinearGaussian.features(inputs)
    precision = 2 * ((weights / NOISE**2) * features.T @ features + torch.eye(4, dtype=torch.float64))
    shift = 2 * features.T @ (weights * targets) / NOISE**2
    mean = torch.linalg.solve(precision, shift)
    exact = []
    for n in range(30):
        site = 2 * weights[n] / NOISE**2
        rest = precision - site * torch.outer(features[n], features[n])
        left = torch.linalg.solve(rest, shift - site * targets[n] * features[n])
        variance = features[n] @ torch.linalg.solve(rest, features[n]) + NOISE**2
        exact.append(torch.distributions.Normal(features[n] @ left, variance.sqrt()).log_prob(targets[n]))
    draws = tb.Draws(model, (mean + normal(4000, 4) @ torch.linalg.cholesky(torch.linalg.inv(precision)).T)[None])
    actual = tb.loo(draws, data)
    trusted = actual.k_N < 0.7
    assert int(trusted.sum()) > 25
    assert float((actual.elpd_N - torch.stack(exact)).abs()[trusted].max()) < 0.06
    assert actual.elpd == pytest.approx(float((weights * actual.elpd_N).sum()))
    closed = tb.loo(tb.fit(model, data, tb.Laplace(structure="dense", prior="model"), start=mean), data)
    assert_close(closed.elpd_N, torch.stack(exact), rtol=1e-8)


@cache
def logistic() -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    inputs = normal(60, 3, seed=1)
    targets = (torch.sigmoid(2 * inputs[:, 0] - inputs[:, 1]) > torch.rand(60, generator=_source())).double()
    return tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Bernoulli(), tb.priors.Normal(1.0)), (
        inputs,
        targets.unsqueeze(1),
    )


def _source() -> torch.Generator:
    return torch.Generator().manual_seed(4)


@cache
def laplace_by_refits() -> Tensor:
    """log ∫ p(y_n | f) N(f; f₋, v₋) df at the mode of the others, by Newton's method and quadrature."""
    _, (inputs, targets) = logistic()
    features, actual = LinearGaussian.features(inputs), []
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    for n in range(len(inputs)):
        rest = torch.arange(len(inputs)) != n
        w, precision = torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
        for _ in range(30):
            p = torch.sigmoid(features[rest] @ w)
            precision = features[rest].T @ ((p * (1 - p)).unsqueeze(1) * features[rest]) + torch.eye(4).double()
            w = w + torch.linalg.solve(precision, features[rest].T @ (targets[rest, 0] - p) - w)
        deviation = (features[n] @ torch.linalg.solve(precision, features[n])).sqrt()
        f = features[n] @ w + deviation * torch.as_tensor(nodes)
        p = torch.sigmoid(f if targets[n] else -f)
        actual.append(math.log(float(torch.as_tensor(weights) @ p) / math.sqrt(2 * math.pi)))
    return torch.tensor(actual, dtype=torch.float64)


def test_the_closed_form_of_logistic_regression_is_close_to_refits() -> None:
    """60 rows and 4 weights: in published figures the largest error of a row is .007, of the sum .015."""
    model, data = logistic()
    posterior = tb.fit(model, data, tb.Laplace(structure="dense", prior="model"), start=_mode())
    actual = tb.loo(posterior, data)
    assert float((actual.elpd_N - laplace_by_refits()).abs().max()) < 0.015
    assert actual.elpd == pytest.approx(float(laplace_by_refits().sum()), abs=0.04)
    assert actual.p_loo > 0


def _mode() -> Tensor:
    _, (inputs, targets) = logistic()
    features, w = LinearGaussian.features(inputs), torch.zeros(4, dtype=torch.float64)
    for _ in range(30):
        p = torch.sigmoid(features @ w)
        precision = features.T @ ((p * (1 - p)).unsqueeze(1) * features) + torch.eye(4).double()
        w = w + torch.linalg.solve(precision, features.T @ (targets[:, 0] - p) - w)
    return w


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_members_in_different_modes_are_weighed_each_by_itself() -> None:
    """Two chains of other posteriors: the density is the mean of theirs, not that of all draws together."""
    inputs, targets, truth = linear(seed=7)
    data = inputs, targets.unsqueeze(1)
    near = exact_draws(truth, 1, 1000).weights_MSD
    both = torch.cat([near, near + 3.0])
    actual = tb.loo(tb.Draws(regression(), both), data)
    each = [tb.loo(tb.Draws(regression(), both[m : m + 1]), data).elpd_N for m in range(2)]
    assert_close(actual.elpd_NM, torch.stack(each, 1))
    assert_close(actual.elpd_N, torch.stack(each).logsumexp(0) - math.log(2))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_rows_of_large_leverage_are_said_and_refitted() -> None:
    """k is the leverage: one row far from the others has nearly 1, and a refit gives its exact density."""
    inputs, targets, _ = linear(seed=2)
    inputs[3] *= 40
    targets[3] += 6
    truth = LinearGaussian(inputs, targets, 1.0, NOISE)
    data, posterior = (inputs, targets.unsqueeze(1)), exact_draws(truth, 1, 1000)
    actual, exact = tb.loo(posterior, data), exact_elpd(inputs, targets)
    assert actual.untrusted.tolist() == [3]
    assert "k-hat is above 0.67 at 1 of 30 rows" in actual.problems[0]
    assert abs(float(actual.elpd_N[3] - exact[3])) > 0.3
    again = tb.loo(posterior, data, refit=tb.NUTS(chains=1, steps=900, burn_in=100, mass="dense"))
    assert float(again.elpd_N[3]) == pytest.approx(float(exact[3]), rel=0.15)
    assert again.problems == ()
    assert_close(again.elpd_N[:3], actual.elpd_N[:3])


def test_an_approximation_is_weighed_by_the_posterior() -> None:
    """Draws of a Gaussian wider than the posterior: without p/q the densities would be those of another posterior."""
    inputs, targets, truth = linear(seed=6)
    mean, covariance = truth.posterior()
    wide = tb.Gaussian(regression(), mean[None], Dense.of_precision(torch.linalg.inv(1.5 * covariance)[None]))
    actual, exact = tb.loo(wide, (inputs, targets.unsqueeze(1))), exact_elpd(inputs, targets)
    assert float((actual.elpd_N - exact).abs().max()) < 0.15


def test_what_cannot_be_left_out_is_refused() -> None:
    inputs, targets, truth = linear()
    data = inputs, targets.unsqueeze(1)
    with pytest.raises(TypeError, match="neither"):
        tb.loo(tb.Point(regression(), torch.zeros(2, 4, dtype=torch.float64)), data)
    with pytest.raises(ValueError, match="at least 25 draws of each member"):
        tb.loo(exact_draws(truth, 2, 24), data)
    broken = exact_draws(truth, 1, 30).weights_MSD.clone()
    broken[0, 3] = math.nan
    with pytest.raises(ValueError, match="not finite"), pytest.warns(tb.ProblemWarning):
        tb.loo(tb.Draws(regression(), broken), data)


def test_classes_have_sobol_averages() -> None:
    """Softmax of three classes in closed form: near to what 4,000 draws of the same Gaussian outputs say."""
    inputs, labels = normal(50, 2, seed=8), classes(50, 3, seed=3)
    model = tb.Model(nn.Linear(2, 3).double(), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    start = tb.fit(model, (inputs, labels), tb.MAP(epochs=60, batch_size=50, optimizer=tb.Adam(0.1)))
    posterior = tb.fit(model, (inputs, labels), tb.Laplace(structure="dense", prior="model"), start=start)
    actual = tb.loo(posterior, (inputs, labels))
    assert -80 < actual.elpd < float(actual.lpd_N.sum())
    assert 0 < actual.p_loo < 9


def test_batches_may_be_padded_to_different_lengths() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    tokens = tb.Model(network, tb.likelihoods.Categorical(ignore_index=-100), tb.priors.Normal(1.0))
    draws = tb.Draws(tokens, 0.1 * torch.randn(1, 400, tokens.layout.size))
    inputs, targets = torch.randint(5, (6, 4)), torch.randint(3, (6, 4))
    padded = nn.functional.pad(inputs, (0, 2)), nn.functional.pad(targets, (0, 2), value=-100)
    plain, longer = (tb.loo(draws, [(inputs[:3], targets[:3]), (t[3:], y[3:])]) for t, y in ((inputs, targets), padded))
    assert torch.allclose(plain.elpd_N, longer.elpd_N)

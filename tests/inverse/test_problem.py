"""Posteriors of inverse problems against closed forms and quadrature, and the rows they are made of."""

import math
import warnings

import pytest
import torch
from torch import distributions, nn

import torchbayes as tb
from tests.inverse import cases
from torchbayes.curvature.discovery import layer_support
from torchbayes.density.layers.uses import uses
from torchbayes.inverse import Problem, derivatives

DOUBLE = torch.float64


def net(inputs=1, outputs=1, *, dtype=DOUBLE):
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs)).to(dtype)


def decay(**settings):
    """u′ + k u = 0 with unknown k, and a tiny network."""
    quantities = {"u": lambda u, x, k: u(x), "equation": lambda u, x, k: derivatives(u, x)[1] + k["k"] * u(x)}
    settings = {"coefficients": {"k": tb.priors.Normal()}, "noise": {"u": 0.1, "equation": 0.2}} | settings
    return Problem(net(), quantities, **settings)


def test_laplace_of_a_linear_problem_is_exact():
    problem, rows, mean, covariance = cases.linear()
    leaf = mean.clone().requires_grad_()
    problem.model.log_joint(leaf, rows, 10).backward()
    torch.testing.assert_close(leaf.grad, torch.zeros(3, dtype=DOUBLE), atol=1e-9, rtol=0)
    method = tb.Laplace("dense", prior="model")
    posterior = tb.fit(problem.model, rows, method, start=mean, callbacks=())
    torch.testing.assert_close(posterior.gaussian.mean_MD[0], mean)
    torch.testing.assert_close(posterior.gaussian.covariance.dense()[0], covariance)


def test_hmc_of_a_linear_problem_is_exact():
    problem, rows, mean, covariance = cases.linear()
    low, high = torch.linalg.eigvalsh(covariance).sqrt()[[0, -1]].tolist()
    method = tb.HMC(chains=32, steps=45, burn_in=10, trajectory=1.5 * high, step_size=low, plan="vmap")
    posterior = tb.fit(problem.model, rows, method, start=mean, callbacks=())
    draws_SD = posterior.sample(1120)
    sds = covariance.diagonal().sqrt()
    assert float(((draws_SD.mean(0) - mean) / sds).abs().max()) < 0.2
    scaled = draws_SD.T.cov() / sds / sds[:, None]
    torch.testing.assert_close(scaled, covariance / sds / sds[:, None], atol=0.2, rtol=0)


@pytest.mark.parametrize(
    ("belief", "log_prior", "low", "high"),
    [
        (tb.priors.Normal(0.5, loc=1.0), lambda k: -0.5 * ((k - 1) / 0.5) ** 2, -2, 4),
        (distributions.LogNormal(0.3, 0.4), lambda k: -k.log() - 0.5 * ((k.log() - 0.3) / 0.4) ** 2, 0, 6),
        (distributions.Uniform(0.7, 1.5), lambda k: 0 * k, 0.7, 1.5),
        (distributions.Gamma(2.0, 3.0), lambda k: k.log() - 3 * k, 0, 6),
    ],
)
def test_an_unknown_coefficient_by_quadrature(belief, log_prior, low, high):
    problem, rows = cases.scalar(belief)
    z = torch.linspace(-12, 12, 4001, dtype=DOUBLE)
    log = torch.stack([problem.model.log_joint(each[None], rows, 5) for each in z[::8]])
    weights = (log - log.max()).exp() / (log - log.max()).exp().sum()
    k = problem.coefficients(tb.Draws(problem.model, z[::8, None].unsqueeze(0)))["k"]
    mean, sd = cases.moments(log_prior, low, high)
    assert float((weights * k).sum()) == pytest.approx(mean, rel=1e-5)
    assert float((weights * (k - mean) ** 2).sum().sqrt()) == pytest.approx(sd, rel=1e-4)


def test_a_sampler_finds_the_coefficient():
    problem, rows = cases.scalar(distributions.LogNormal(0.3, 0.4))
    method = tb.HMC(chains=16, steps=60, burn_in=10, trajectory=0.16, step_size=0.04, plan="vmap")
    computed = problem.summary(tb.fit(problem.model, rows, method, callbacks=()))["k"]
    mean, sd = cases.moments(lambda k: -k.log() - 0.5 * ((k.log() - 0.3) / 0.4) ** 2, 0, 6)
    assert abs(computed["mean"] - mean) < 0.2 * sd
    assert abs(computed["sd"] / sd - 1) < 0.2
    assert computed["rhat"] < 1.1
    assert computed["low"] < mean < computed["high"]


def test_the_density_of_a_coefficient_is_that_of_its_distribution():
    belief = distributions.Gamma(2.0, 3.0)
    problem, rows = cases.scalar(belief)
    z = torch.tensor([[-0.4]], dtype=DOUBLE)
    right = belief.log_prob(z.exp()) + z
    torch.testing.assert_close(problem.model.log_prior(z), right[:, 0])
    residuals = cases.SLOPES - z.exp()[0] * 2 * torch.cos(2 * cases.POINTS)
    likelihood = distributions.Normal(0.0, 0.3).log_prob(residuals)
    torch.testing.assert_close(problem.model.log_likelihood(z[0], rows), likelihood)
    draws = problem.model.prior.sample(20_000).exp()
    assert abs(float(draws.mean()) - 2 / 3) < 0.02


def test_what_the_rows_do_not_depend_on_keeps_its_prior():
    problem = Problem(
        cases.Wave(),
        {"u": lambda u, x, k: k["k"] * u(x) + 0 * k["lost"]},
        coefficients={"k": tb.priors.Normal(), "lost": tb.priors.Normal(2.0, loc=5.0)},
        noise={"u": 0.1},
    )
    rows = problem.rows({"u": (cases.POINTS, cases.SLOPES)})
    k = float((2 * cases.POINTS).sin() @ cases.SLOPES / ((2 * cases.POINTS).sin().square().sum() + 0.1**2))
    start = torch.tensor([k, 5.0], dtype=DOUBLE)
    posterior = tb.fit(problem.model, rows, tb.Laplace("dense", prior="model"), start=start, callbacks=())
    variances = posterior.gaussian.covariance.dense()[0].diagonal()
    right = 1 / ((2 * cases.POINTS).sin().square().sum() / 0.1**2 + 1)
    torch.testing.assert_close(variances, torch.stack([right, torch.tensor(4.0, dtype=DOUBLE)]))
    computed = problem.summary(posterior, draws=4000)
    assert computed["lost"]["mean"] == pytest.approx(5, abs=0.1)
    assert computed["lost"]["sd"] == pytest.approx(computed["lost"]["prior_sd"], rel=0.05)
    assert computed["k"]["sd"] < 0.1 * computed["k"]["prior_sd"]


def test_an_unknown_noise_is_a_number_like_the_others():
    problem, rows = cases.scalar(tb.priors.Normal(), noise=distributions.LogNormal(-1.0, 0.5))
    assert problem.model.layout.names == ("coefficients.k", "noise.f")
    weights = torch.tensor([0.9, -1.3], dtype=DOUBLE)
    residuals = cases.SLOPES - 0.9 * 2 * torch.cos(2 * cases.POINTS)
    right = distributions.Normal(0.0, math.exp(-1.3)).log_prob(residuals)
    torch.testing.assert_close(problem.model.log_likelihood(weights, rows), right)
    posterior = tb.Draws(problem.model, weights.expand(1, 3, 2))
    assert set(problem.summary(posterior)) == {"k", "noise.f"}
    assert problem.summary(posterior)["noise.f"]["mean"] == pytest.approx(math.exp(-1.3))


def test_rows_of_every_member_give_the_same():
    problem = decay()
    x = torch.linspace(0, 1, 6, dtype=DOUBLE)
    inputs, targets = problem.rows({"equation": (x, 0.0), "u": (x, x.exp())})
    weights_MD = torch.randn(2, problem.model.layout.size, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    order = torch.tensor([[3, 11, 0, 7], [8, 2, 5, 1]])
    batch = tb.Batch({key: each[order] for key, each in inputs.items()}, targets[order])
    for plan in ("loop", "vmap"):
        computed = tb.LogDensity(problem.model, 4, plan=plan)(weights_MD, batch)
        for m in range(2):
            rows = {key: each[order[m]] for key, each in inputs.items()}, targets[order[m]]
            torch.testing.assert_close(computed.log_density[m], problem.model.log_joint(weights_MD[m], rows, 4))


def test_columns_and_values_that_were_not_observed():
    quantities = {"u": lambda u, x, k: u(x), "first": lambda u, x, k: u(x)[:, 0]}
    problem = Problem(net(outputs=2), quantities, noise={"u": 0.1, "first": 0.2})
    x = torch.tensor([0.0, 1.0], dtype=DOUBLE)
    values = torch.tensor([[1.0, math.nan], [3.0, 4.0]])
    inputs, targets = problem.rows({"first": (x, [7.0, 8.0]), "u": (x, values)})
    assert inputs["quantity"].tolist() == [[1, 0], [1, 0], [0, 0], [0, 0], [0, 1]]
    assert targets[:, 0].tolist() == [7, 8, 1, 3, 4]
    u = net(outputs=2)(x[:, None])
    outputs = problem.model.network(problem.model.given_weights(), inputs)
    right = torch.stack([u[0, 0], u[1, 0], u[0, 0], u[1, 0], u[1, 1]])
    torch.testing.assert_close(outputs[:, 0], right)
    sds = problem.model.likelihood.distribution(outputs).stddev[:, 0]
    torch.testing.assert_close(sds, torch.tensor([0.2, 0.2, 0.1, 0.1, 0.1], dtype=DOUBLE))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # of the untrained network
def test_columns_and_points_of_a_laplace_posterior_are_those_of_one_function():
    quantities = {"u": lambda u, x, k: u(x), "both": lambda u, x, k: torch.cat([u(x), 2 * u(x) - 1, x**2 * u(x)], 1)}
    problem = Problem(net(), quantities, noise={"u": 0.1})
    rows = problem.rows({"u": (torch.linspace(-1, 1, 9, dtype=DOUBLE), torch.linspace(0, 1, 9, dtype=DOUBLE))})
    posterior = tb.fit(
        problem.model, rows, tb.Laplace(structure="dense"), start=problem.model.given_weights(), callbacks=()
    )
    at = torch.tensor([0.5, 2.0], dtype=DOUBLE)
    first, second, third = problem.values(posterior, "both", at).unbind(-1)
    torch.testing.assert_close(second, 2 * first - 1)
    torch.testing.assert_close(third, at**2 * first)
    assert not torch.equal(problem.values(posterior, "u", at, seed=1), problem.values(posterior, "u", at))


def test_a_coefficient_that_is_a_function():
    problem = Problem(
        net(),
        {"flux": lambda u, x, k: k["conductivity"](x) * derivatives(u, x)[1]},
        coefficients={"conductivity": net()},
        noise={"flux": 0.1},
        prior={"network.*": tb.priors.Normal(1.0), "functions.*": tb.priors.Normal(0.5)},
    )
    x = torch.linspace(0, 1, 3, dtype=DOUBLE)[:, None]
    assert "functions.conductivity.0.weight" in problem.model.layout.names
    computed = problem.values(tb.Point(problem.model, problem.model.given_weights()[None]), "flux", x)
    torch.testing.assert_close(computed[0], net()(x) * derivatives(net(), x)[1])
    assert problem.coefficients(tb.Point(problem.model, problem.model.given_weights()[None])) == {}


def test_predictions_of_sensors_and_of_what_no_sensor_sees():
    problem, rows, mean, covariance = cases.linear()
    posterior = tb.fit(
        problem.model, rows, tb.Laplace("dense", prior="model", check_mode=False), start=mean, callbacks=()
    )
    x = torch.linspace(-1, 1, 3, dtype=DOUBLE)
    drawn = problem.values(posterior, "f", x, draws=250)
    j = torch.arange(1, 4, dtype=DOUBLE)
    design = torch.sin(x[:, None] * j + j) * (2 - j**2)
    assert drawn.shape == (250, 3, 1)
    torch.testing.assert_close(drawn[..., 0].mean(0), design @ mean, atol=0.2, rtol=0)
    sensors = tb.predict(posterior, problem.at("f", x), draws=250)
    right = (design @ covariance * design).sum(1) + cases.NOISE_F**2
    torch.testing.assert_close(sensors.variance[:, 0], right, rtol=0.3, atol=0)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # of fits that are too short
def test_a_problem_in_single_precision_through_the_usual_methods(tmp_path):
    problem = Problem(
        net(dtype=torch.float32),
        {"u": lambda u, x, k: u(x), "equation": lambda u, x, k: derivatives(u, x)[1] + k["k"] * u(x)},
        coefficients={"k": distributions.LogNormal(0.0, 1.0)},
        noise={"u": 0.1, "equation": 0.1},
    )
    x = torch.linspace(0, 1, 12)
    rows = problem.rows({"u": (x, (-x).exp()), "equation": (x, 0.0)})
    start = problem.model.given_weights()
    chain = tb.SGLD(steps=6, burn_in=2, thin=1, step_size=1e-4)
    for method in (tb.MAP(epochs=3), tb.VI(epochs=3, batch_size=8), chain, tb.Laplace(prior="model")):
        posterior = tb.fit(problem.model, rows, method, start=start, callbacks=())
        assert problem.summary(posterior)["k"]["mean"] > 0
    again = tb.load(posterior.save(tmp_path / "posterior.safetensors"), problem.model)
    assert problem.summary(again) == problem.summary(posterior)


@pytest.mark.parametrize(
    ("observations", "said"),
    [
        ({"v": ([0.0], [1.0])}, "quantity called 'v'"),
        ({"slope": ([0.0], [1.0])}, "says nothing of 'slope'"),
        ({"u": ([0.0, 1.0], [1.0])}, r"\(2, 1\)"),
        ({"u": ([0.0], [math.inf])}, "infinite"),
        ({"u": ([0.0], [math.nan])}, "only NaN"),
        ({"u": ([math.nan], [1.0])}, "finite"),
        ({"u": (torch.zeros(0), torch.zeros(0))}, "at least one"),
        ({"mean": ([0.0, 1.0], [1.0, 1.0])}, "mixes its rows"),
        ({"total": ([0.0, 1.0], 0.0)}, r"shape \(\)|shape \(1,"),
        ({"log": ([-1.0, 1.0], 0.0)}, "not finite"),
        ({"lost": ([-1.0, 1.0], 0.0)}, "cannot be computed.*KeyError: 'k'"),
        ({"u": (torch.zeros(2, 3), 0.0)}, "cannot be computed.*shapes"),
    ],
)
def test_observations_that_are_wrong(observations, said):
    quantities = {
        "u": lambda u, x, k: u(x),
        "slope": lambda u, x, k: derivatives(u, x)[1],
        "mean": lambda u, x, k: u(x).mean().expand(len(x)),
        "total": lambda u, x, k: u(x).sum().view(1, 1, 1),
        "log": lambda u, x, k: x.log(),
        "lost": lambda u, x, k: k["k"] * u(x),
    }
    problem = Problem(net(), quantities, noise=dict.fromkeys(("u", "mean", "total", "log", "lost"), 0.1))
    with pytest.raises(ValueError, match=said):
        problem.rows(observations)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"coefficients": {"k": 0.7}}, "Write a known number"),
        ({"coefficients": {"k": distributions.Poisson(3.0)}}, "must be a real number"),
        ({"coefficients": {"k": distributions.Normal(torch.zeros(2), 1.0)}}, "one number"),
        ({"coefficients": {"k-1": tb.priors.Normal()}}, "Python can use"),
        ({"coefficients": {"type": tb.priors.Normal()}}, "nn.Module does not"),
        ({"noise": {"u": -0.1}}, "above 0"),
        ({"noise": {"v": 0.1}}, "called 'v'"),
        ({"noise": {"u": distributions.Normal(0.0, 1.0)}}, "positive numbers"),
    ],
)
def test_problems_that_are_wrong(settings, said):
    with pytest.raises((ValueError, TypeError), match=said):
        decay(**settings)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("layer", [nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.SiLU])
def test_equations_that_a_network_without_curvature_cannot_have(layer, order):
    torch.manual_seed(7)
    last = nn.Linear(9, 1, dtype=DOUBLE)
    network = nn.Sequential(nn.Linear(1, 9, dtype=DOUBLE), layer(), last)
    rows = {"f": (torch.linspace(-1, 1, 20), 0.0)}
    nested = Problem(
        network, {"f": lambda u, x, k: derivatives(lambda x: derivatives(u, x)[order - 1], x)[1]}, noise={"f": 1.0}
    )
    at_once = Problem(network, {"f": lambda u, x, k: derivatives(u, x, order=order)[order]}, noise={"f": 1.0})
    flat = order == 2 and layer in {nn.ReLU, nn.LeakyReLU}
    for problem in (nested, at_once):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            problem.rows(rows)
            assert [w.category for w in said] == [tb.ProblemWarning] * flat
    nn.init.zeros_(last.weight)  # as of networks that begin at a constant
    at_once.rows(rows)  # pytest makes errors of warnings


def test_layers_are_not_taken_apart():
    """Values and derivatives share each draw of the weights, and no layer's rows are those of a batch."""
    problem = decay()
    x = torch.linspace(0, 1, 6, dtype=DOUBLE)
    for observed in ({"u": (x, x)}, {"equation": (x, 0.0)}, {"u": (x, x), "equation": (x[:1], 0.0)}):
        inputs, _ = problem.rows(observed)
        assert uses(problem.model.network, inputs) == {}
        support = layer_support(problem.model, problem.model.given_weights(), inputs)
        assert set(support.lost) == set(problem.model.layout.names)

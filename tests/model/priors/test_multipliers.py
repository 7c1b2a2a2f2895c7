"""Layers with multipliers: the priors they stand for, closed divergences, and networks that compute what they did."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats as _stats
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.model import priors
from torchbayes.model.priors.bound import Segment
from torchbayes.model.priors.expected import add_expected_, is_closed
from torchbayes.model.priors.multiplied import Multiplied

stats: Any = _stats  # whose types are of single numbers


def expected_of(prior: Any, mean: Tensor, variance: Tensor) -> Tensor:
    """E log p under N(mean, variance), one number."""
    spare = [torch.zeros_like(mean) for _ in range(2)]
    return add_expected_(Segment(prior, slice(0, mean.shape[1])), mean, variance, scale=1.0, into=spare)


def test_log_half_normal_is_the_law_of_a_logarithm() -> None:
    law, w = priors.LogHalfNormal(0.3), torch.linspace(-6, 1, 71, dtype=torch.float64)
    assert_close(law.log_prob(w), stats.halfnorm(scale=0.3).logpdf(w.exp().numpy()) + w.numpy())
    drawn = law.sample((200_000,), torch.Generator().manual_seed(1))
    assert_close(drawn.mean(), law.loc, rtol=0.0, atol=5 * law.std / 200_000**0.5)
    assert_close(drawn.std(), law.std, rtol=0.01)
    slope = torch.zeros_like(w)
    law.add_gradient_(slope, w, 2.0)
    x = w.clone().requires_grad_()
    assert_close(slope, torch.autograd.grad(2 * law.log_prob(x).sum(), x)[0])


def test_expectation_of_log_half_normal_is_that_of_quadrature() -> None:
    law = priors.LogHalfNormal(0.3)
    mean, variance = torch.tensor([[-1.5, 0.2]], dtype=torch.float64), torch.tensor([[0.3, 0.04]], dtype=torch.float64)
    z = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    exact = (density * law.log_prob(mean.T + variance.sqrt().T * z)).sum()
    assert_close(expected_of(law, mean, variance), exact[None])
    assert is_closed(Segment(law, slice(0, 2)))
    by = torch.zeros(2, 1, 2, dtype=torch.float64)
    add_expected_(Segment(law, slice(0, 2)), mean, variance, scale=1.0, into=(by[0], by[1]))
    for k in range(2):
        for i in range(2):
            step = torch.zeros_like(mean)
            step[0, i] = 1e-5
            up, down = ((mean + s, variance) if k == 0 else (mean, variance + s) for s in (step, -step))
            assert_close(by[k, :, i], (expected_of(law, *up) - expected_of(law, *down)) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_divergences_of_the_horseshoe_are_the_closed_ones(scale: float) -> None:
    """Of log-normal q(a), q(b) from Gamma(½, scale θ = 2 scale²) and IG(½, 1/2), on the logarithms of √a and √b."""
    m, v = -0.7, 0.4  # of log √a and log √b
    mean, variance = torch.full((1, 1), m, dtype=torch.float64), torch.full((1, 1), v, dtype=torch.float64)
    entropy = 0.5 * math.log(2 * math.pi * math.e * v)
    mu, s2, theta = 2 * m, 4 * v, 2 * scale**2  # of log a
    gamma = math.exp(mu + s2 / 2) / theta - 0.5 * (mu - math.log(theta) + math.log(s2) + 1 + math.log(2))
    assert_close(-expected_of(priors.LogHalfNormal(scale), mean, variance) - entropy, [gamma])
    nu = mu + math.log(2)  # of log 2b, which is IG(½, 1)
    inverse = math.exp(-nu + s2 / 2) + 0.5 * (nu - math.log(s2) - 1 - math.log(2))
    assert_close(-expected_of(priors.LogInverseChi(1.0, 1.0), mean, variance) - entropy, [inverse])


def test_horseshoe_multipliers_are_half_cauchy() -> None:
    rule = priors.GroupHorseshoe(0.1)
    source = torch.Generator().manual_seed(0)
    drawn = {name: law.sample((4000, 1), source) for name, law in rule.laws().items()}  # type: ignore[attr-defined]
    own = (drawn["log_numerators"] + drawn["log_inverses"]).exp().flatten()
    layer = (drawn["layer_log_numerator"] + drawn["layer_log_inverse"]).exp().flatten()
    assert stats.kstest(own.numpy(), stats.halfcauchy().cdf).pvalue > 0.001
    assert stats.kstest(layer.numpy(), stats.halfcauchy(scale=0.1).cdf).pvalue > 0.001
    assert_close(rule.multipliers(drawn).flatten(), own * layer)


@pytest.mark.parametrize("rule", [priors.GroupNormalJeffreys(), priors.GroupHorseshoe(0.1)])
def test_moments_are_those_of_draws(rule: Any) -> None:
    means = {n: 0.3 * normal(3, seed=k) + 0.5 for k, n in enumerate(rule.laws())}
    variances = {n: 0.01 + 0.02 * normal(3, seed=9 + k).square() for k, n in enumerate(rule.laws())}
    e = {n: normal(200_000, 3, seed=20 + k) for k, n in enumerate(means)}
    z = rule.multipliers({n: means[n] + variances[n].sqrt() * e[n] for n in means})
    actual = rule.moments(means, variances)
    assert_close(actual.mean, z.mean(0), rtol=0.01)
    assert_close(actual.variance, z.var(0), rtol=0.03)
    if isinstance(rule, priors.GroupNormalJeffreys):
        assert_close(actual.noise, (actual.variance / actual.mean**2).log())
    else:  # the mode of a log-normal z with log z ~ N(m, v) is e^{m − v}
        m, v = (sum(of.values()) for of in (means, variances))
        assert_close(actual.noise, v - m)


NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "dense": (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)), (3,)),
    "conv1d": (nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(20, 2)), (2, 5)),
    "conv2d": (nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 2)), (1, 7, 7)),
    "conv3d": (nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(16, 2)), (1, 3, 3, 3)),
    "groups": (nn.Sequential(nn.Conv1d(4, 4, 3, groups=2, padding_mode="circular", padding=1)), (4, 5)),
}


@pytest.mark.parametrize("rule", [priors.GroupNormalJeffreys(), priors.GroupHorseshoe()])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_computes_what_it_did(name: str, rule: Any) -> None:
    net, shape = NETWORKS[name]
    net = net.double()
    before = {n: p.clone() for n, p in net.named_parameters()}
    made = priors.with_multipliers(net, rule)
    assert isinstance(made.network, nn.Module)
    x = normal(4, *shape)
    assert_close(made.network(x), net(x))
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())
    kind = tb.likelihoods.Custom(lambda f: torch.distributions.Normal(f, 1.0))
    model = tb.Model(made.network, kind, made.prior)
    assert model.prior.log_prob(model.network.weights()[None]).isfinite().all() or rule == priors.GroupNormalJeffreys()
    # multipliers multiply the weights of their units
    layers = [m for m in made.network.modules() if isinstance(m, Multiplied)]
    with torch.no_grad():
        for layer in layers:
            for part in rule.laws():
                getattr(layer, part).add_(0.1 * normal(*getattr(layer, part).shape, seed=3))
    plain = priors.with_multipliers(net, rule).network
    assert isinstance(plain, nn.Module)
    with torch.no_grad():
        for one, other in zip(layers, [m for m in plain.modules() if isinstance(m, Multiplied)], strict=True):
            z = rule.multipliers({part: getattr(one, part) for part in rule.laws()})
            other.layer.weight.mul_(other.along(z))
    assert_close(made.network(x), plain(x))


def test_members_begin_at_multipliers_of_one() -> None:
    made = priors.with_multipliers(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), _HORSESHOE)
    model = tb.Model(made.network, tb.likelihoods.Gaussian(0.5), made.prior)
    assert model.prior.sample(3, seed=0).isfinite().all() if hasattr(model.prior, "sample") else True
    data = (normal(20, 3).float(), normal(20, 1).float())
    with pytest.warns(tb.ProblemWarning):
        actual = tb.fit(model, data, tb.VI(members=2, epochs=1, kl_weight=1.0, optimizer=tb.SGD(1e-12)), callbacks=())
    assert isinstance(actual, tb.Gaussian)
    for mean_D in actual.mean_MD:
        parts = model.layout.split(mean_D)
        z = _HORSESHOE.multipliers({n: parts[f"0.{n}"] for n in _HORSESHOE.laws()})
        assert_close(z, torch.ones(3), rtol=1e-5)
    assert not torch.equal(actual.mean_MD[0], actual.mean_MD[1])


_HORSESHOE = priors.GroupHorseshoe(0.1)


def test_a_layer_with_two_names_has_its_multipliers_once() -> None:
    shared = nn.Linear(3, 3)
    net = nn.Sequential(shared, nn.Tanh(), shared)
    made = priors.with_multipliers(net, priors.GroupNormalJeffreys()).network
    assert isinstance(made, nn.Sequential)
    assert made[0] is made[2]
    assert [n for n, _ in made.named_parameters()] == ["0.bias", "0.multiplier", "0.layer.weight"]
    x = normal(2, 3).float()
    assert_close(made(x), net(x))


def test_other_weights_keep_their_priors() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    rules = {"0.weight": priors.GroupHorseshoe(), "*.bias": priors.Laplace(0.3), "*": priors.Normal(2.0)}
    made = priors.with_multipliers(net, rules)
    model = tb.Model(made.network, tb.likelihoods.Gaussian(1.0), made.prior)
    actual = {
        name: segment.prior
        for name, where in model.layout.slices.items()
        for segment in model.prior.segments
        if segment.where.start <= where.start and where.stop <= segment.where.stop
    }
    assert actual["0.layer.weight"] == priors.Normal()
    assert actual["0.bias"] == actual["2.bias"] == priors.Laplace(0.3)
    assert actual["2.weight"] == actual["1.weight"] == priors.Normal(2.0)
    assert actual["0.log_numerators"] == priors.LogHalfNormal(1.0)


def test_refusals_say_what_is_wrong() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    rule = priors.GroupNormalJeffreys()
    with pytest.raises(ValueError, match=r"`rules` give `1.weight` a group prior, which is for the `weight` of linear"):
        priors.with_multipliers(net, {"1.*": rule, "*": priors.Normal()})
    with pytest.raises(ValueError, match="must give the weight of a linear or convolutional layer a group prior"):
        priors.with_multipliers(net, {"*": priors.Normal()})
    with pytest.raises(ValueError, match=r"`weight` belongs to the network itself.* Put the layer into"):
        priors.with_multipliers(nn.Linear(2, 1), rule)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"`0.weight` is shared by several modules"):
        priors.with_multipliers(tied, rule)


@pytest.mark.study  # the network, its priors and their divergences are exact, above
@pytest.mark.slow
def test_variational_inference_finds_the_inputs_that_count() -> None:
    """Of ten inputs two have an effect: under the horseshoe multipliers of the others are small."""
    x = normal(150, 10).float()
    y = (2 * x[:, :1] - x[:, 1:2]) + 0.3 * normal(150, 1, seed=2).float()
    made = priors.with_multipliers(nn.Sequential(nn.Linear(10, 1)), priors.GroupHorseshoe(0.1))
    model = tb.Model(made.network, tb.likelihoods.Gaussian(0.3), made.prior)
    posterior = tb.fit(model, (x, y), tb.VI(epochs=400, kl_weight=1.0), callbacks=(), seed=0)
    parts = model.layout.split(posterior.sample(400))
    z = priors.GroupHorseshoe(0.1).multipliers({n: parts[f"0.{n}"] for n in priors.GroupHorseshoe().laws()})
    w = (z * parts["0.layer.weight"][:, 0]).double()
    assert_close(w.mean(0)[:2], [2.0, -1.0], rtol=0.0, atol=0.1)
    assert w[:, 2:].std(0).max() < 0.06  # under N(0, 1) it would be .3/√150 = .025; none is lost to z
    assert z[:, :2].median() > 1.5 * z[:, 2:].median()


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # so few steps say nothing
def test_samplers_take_the_horseshoe_and_not_the_improper_prior() -> None:
    data = (normal(20, 3).float(), normal(20, 1).float())
    for rule in (priors.GroupHorseshoe(0.1), priors.GroupNormalJeffreys()):
        made = priors.with_multipliers(nn.Sequential(nn.Linear(3, 1)), rule)
        model = tb.Model(made.network, tb.likelihoods.Gaussian(0.3), made.prior)
        method = tb.HMC(steps=6, burn_in=3, trajectory=3e-3, step_size=1e-3)
        if isinstance(rule, priors.GroupHorseshoe):
            assert tb.fit(model, data, method, callbacks=()).sample(4).isfinite().all()
        else:
            with pytest.raises(ValueError, match="the posterior is improper"):
                tb.fit(model, data, method, callbacks=())

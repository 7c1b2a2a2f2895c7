"""PBP: exact where it must be, what of the model it takes, what it refuses, and what it reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.laws.cases import normal
from tests.native.test_propagation import network
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.linalg import Dense, Diagonal
from torchbayes.methods.ep.gammas import as_log_scales, of_log_scales
from torchbayes.methods.ep.pbp import State
from torchbayes.model.priors import FanInNormal, LogInverseChi, Normal
from torchbayes.model.priors.joint import Joint
from torchbayes.model.sources.sources import as_source
from torchbayes.native.propagation import Beliefs, Rows, outputs_of, propagate
from torchbayes.networks import mlp
from torchbayes.randomness.seeds import member_seeds

ROWS = 60
INPUTS = normal(ROWS, 3, seed=2)
TARGETS = torch.sin(2 * INPUTS[:, :1]) + 0.5 * INPUTS[:, 1:2] + 0.1 * normal(ROWS, 1, seed=3)
TRAIN = (INPUTS, TARGETS)
Learned = tb.likelihoods.Gaussian("learned")


def net(outputs: int = 1, hidden: tuple[int, ...] = (20,), dtype: torch.dtype = torch.float64) -> nn.Module:
    return mlp(3, outputs, hidden=hidden).to(dtype)


def fitted(model: tb.Model, data: Any = TRAIN, *, seed: int = 0, start: Any = None, **settings: Any) -> tb.Gaussian:
    actual = tb.fit(model, data, tb.PBP(**settings), seed=seed, callbacks=(), start=start)
    assert isinstance(actual, tb.Gaussian)
    return actual


# --- exact answers


def test_orthogonal_rows_of_a_linear_model_give_the_exact_posterior() -> None:
    """Rows that share no weight: independent weights are exact, in every order, and noise is as it is."""
    inputs, noise, scale = 2.0 * torch.eye(3, dtype=torch.float64), 0.7, 0.4
    targets = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    module = nn.Linear(3, 1, bias=False).double()
    model = tb.Model(module, tb.likelihoods.Gaussian(noise), Normal(scale, loc=0.3))
    actual = fitted(model, (inputs, targets), epochs=1, prior="model")
    precision = 4 / noise**2 + 1 / scale**2
    expected = (2 * targets[:, 0] / noise**2 + 0.3 / scale**2) / precision
    torch.testing.assert_close(actual.mean_MD[0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(actual.covariance.diagonal()[0], torch.full((3,), 1 / precision).double())
    exact = torch.distributions.Normal(inputs @ expected, math.sqrt(4 / precision + noise**2)).log_prob(targets[:, 0])
    seen = tb.predict(tb.Propagated(actual), inputs).log_prob(targets)
    torch.testing.assert_close(seen, exact, rtol=1e-10, atol=1e-10)


def test_the_first_pass_ends_with_the_prior_in_the_place_of_the_start() -> None:
    """Weights that no row has told of, of inputs that are zero, keep the prior: not what they started at."""
    inputs = torch.cat([INPUTS[:, :2], torch.zeros(ROWS, 1, dtype=torch.float64)], 1)
    model = tb.Model(net(), tb.likelihoods.Gaussian(0.1), Normal(0.5))
    actual = fitted(model, (inputs, TARGETS), epochs=1, prior="model")
    means, variances = (model.split(t)[0]["1.weight"][0, :, 2] for t in (actual.mean_MD, actual.covariance.diagonal()))
    torch.testing.assert_close(means, torch.zeros(20).double(), rtol=0, atol=1e-15)
    torch.testing.assert_close(variances, torch.full((20,), 0.25).double(), rtol=1e-15, atol=0)


def test_weights_of_the_paper_are_these_over_their_prior_scales() -> None:
    """Inputs over √(fan_in + 1) under weights of prior variance 1/λ: the same update, in other units."""
    layers, size = network(3, 5, 1)
    scale_D = torch.cat([torch.full((20,), 1 / 2), torch.full((6,), 1 / math.sqrt(6))]).double()
    mean_D, variance_D = normal(size).requires_grad_(), normal(size, seed=1).square().requires_grad_()
    mean, variance = outputs_of(layers, scale_D * mean_D, scale_D**2 * variance_D, inputs_BI=INPUTS[:1])
    log_z = torch.distributions.Normal(mean, (variance + 0.2).sqrt()).log_prob(TARGETS[:1]).sum()
    by_mean_D, by_variance_D = torch.autograd.grad(log_z, (mean_D, variance_D))
    mean_D, variance_D = mean_D.detach(), variance_D.detach()
    actual = Beliefs((scale_D * mean_D).unsqueeze(0), (scale_D**2 * variance_D).unsqueeze(0))
    rows = Rows(INPUTS[:1].unsqueeze(0), TARGETS[:1].unsqueeze(0))
    propagate(layers, actual, torch.tensor([0.2], dtype=torch.float64), rows=rows)
    moved_D = mean_D + variance_D * by_mean_D
    left_D = variance_D - variance_D.square() * (by_mean_D.square() - 2 * by_variance_D)
    torch.testing.assert_close(actual.mean_MD[0] / scale_D, moved_D, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(actual.variance_MD[0] / scale_D**2, left_D, rtol=1e-10, atol=0)


def test_half_a_stream_after_the_other_is_one_pass() -> None:
    """Assumed density filtering: the posterior of the first rows is the prior of the others, noise included."""
    module = nn.Sequential(nn.Linear(3, 1)).double()
    first, second = [(INPUTS[part], TARGETS[part]) for part in (slice(None, 30), slice(30, None))]

    def after(*parts: tuple[Tensor, Tensor]) -> tb.Gaussian:
        prior: Any = Normal(0.7)
        for part in parts:
            method, likelihood = tb.PBP(epochs=1, prior="model"), tb.likelihoods.Gaussian("learned", spread=1.0)
            model = tb.Model(module, likelihood, prior)
            source = as_source(model, part, len(part[0]))
            density = tb.LogDensity(model, source.num_data, plan="loop")
            weights_MD, buffers = model.starting_weights([0])
            state = method.init(density, weights_MD, buffers, seeds=[0], steps_per_epoch=1)
            batch = tb.Batch(*(t.unsqueeze(0) for t in part))  # in the order given
            state, _ = method.step(density, state, batch)
            posterior = method.posterior(density, state)
            prior = tb.as_prior(posterior)
        return posterior  # type: ignore[possibly-unbound]

    one, two = after(TRAIN), after(first, second)
    torch.testing.assert_close(two.mean_MD, one.mean_MD, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(two.covariance.diagonal(), one.covariance.diagonal(), rtol=1e-9, atol=0)


def test_a_gamma_and_the_normal_of_its_log_scale_are_each_others() -> None:
    gammas = torch.tensor([[1.1, 0.3], [6.0, 6.0], [250.0, 3.0], [1e5, 2e3]], dtype=torch.float64)
    torch.testing.assert_close(of_log_scales(*as_log_scales(gammas)), gammas, rtol=1e-8, atol=0)
    drawn = torch.distributions.Gamma(6.0, 6.0).sample((200_000,)).log() / -2
    mean, variance = as_log_scales(gammas[1])
    assert float(mean) == pytest.approx(float(drawn.mean()), abs=4e-3)
    assert float(variance) == pytest.approx(float(drawn.var()), rel=0.03)


def test_noise_is_found() -> None:
    """800 rows of a function with a kink, noise 0.3: the learned scale, and the predictive on new rows."""
    inputs = normal(1200, 3, seed=8)
    values = inputs[:, :1].abs() - 0.5 * inputs[:, 1:2]
    targets = values + 0.3 * normal(1200, 1, seed=9)
    actual = fitted(tb.Model(net(), Learned, Normal(0.5)), (inputs[:800], targets[:800]), epochs=30)
    scale = float(actual.mean_MD[0, -1].exp())
    assert 0.25 < scale < 0.36
    test = (inputs[800:], targets[800:])
    closed, drawn = tb.evaluate(tb.Propagated(actual), test).metrics, tb.evaluate(actual, test, draws=200).metrics
    best = 0.5 + math.log(0.3 * math.sqrt(2 * math.pi))
    assert closed["nll"] < best + 0.1
    assert closed["nll"] == pytest.approx(drawn["nll"], abs=0.02)
    assert not actual.problems


def test_closed_form_meets_draws() -> None:
    actual = fitted(tb.Model(net(), Learned, Normal(0.5)), epochs=3, members=2)
    closed, drawn = tb.predict(tb.Propagated(actual), INPUTS), tb.predict(actual, INPUTS, draws=20_000)
    assert closed.draws == 2
    spread = drawn.epistemic.sqrt()
    assert ((closed.mean - drawn.mean) / spread).abs().max() < 0.05
    torch.testing.assert_close(closed.epistemic, drawn.epistemic, rtol=0.15, atol=0)
    torch.testing.assert_close(closed.aleatoric, drawn.aleatoric, rtol=0.02, atol=0)
    parts = tb.predict(tb.Propagated(actual), INPUTS, chunk_size=7)
    torch.testing.assert_close(parts.outputs_SBK, closed.outputs_SBK, rtol=1e-12, atol=1e-12)


# --- what it takes of the model


def test_the_prior_is_a_factor_times_the_models() -> None:
    """A prior ten times too wide is narrowed by λ; taken as it is, it stays."""
    wide = tb.Model(net(), Learned, Normal(5.0))
    seen: list[float] = []
    tb.fit(wide, TRAIN, tb.PBP(epochs=10), callbacks=[lambda event: seen.append(event.record["prior_factor"]) and None])
    assert seen[-1] > 2
    fixed: list[float] = []
    method = tb.PBP(epochs=2, prior="model")
    tb.fit(wide, TRAIN, method, callbacks=[lambda event: fixed.append(event.record["prior_factor"]) and None])
    assert fixed == [1.0, 1.0]


def state_of(model: tb.Model, **settings: Any) -> State:
    density = tb.LogDensity(model, ROWS, plan="loop")
    seeds = member_seeds(0, 1)
    weights_MD, buffers = model.starting_weights(seeds)
    return tb.PBP(**settings).init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=1)


def test_the_noise_before_the_data_is_the_likelihoods_prior() -> None:
    """Without one it is worth twelve residuals of the targets' spread, as in the paper."""
    usual = state_of(tb.Model(net(), tb.likelihoods.Gaussian("learned", spread=3.0)))
    assert usual.noise_MG2.tolist() == [[[6.0, 54.0]]]
    weak = state_of(tb.Model(net(), tb.likelihoods.Gaussian("learned", spread=3.0)), shape=2.0)
    assert weak.noise_MG2.tolist() == [[[2.0, 18.0]]]
    chi = tb.likelihoods.Gaussian("learned", prior=LogInverseChi(df=8, scale=0.5))
    assert state_of(tb.Model(net(), chi)).noise_MG2.tolist() == [[[4.0, 1.0]]]
    log_normal = tb.likelihoods.Gaussian("learned", prior=Normal(0.2, loc=-1.0))
    mean, variance = as_log_scales(state_of(tb.Model(net(), log_normal)).noise_MG2)
    assert [float(mean), float(variance)] == pytest.approx([-1.0, 0.04], rel=1e-10)
    assert state_of(tb.Model(net(), tb.likelihoods.Gaussian(0.3))).noise_MG2.shape == (1, 0, 2)


def test_starts_are_the_networks_and_layers_have_their_own_prior() -> None:
    model = tb.Model(net(), Learned, FanInNormal())
    state = state_of(model)
    torch.testing.assert_close(state.mean_MD, model.starting_weights(member_seeds(0, 1))[0][:, :-1], rtol=0, atol=0)
    widths = model.split(torch.cat([state.variance_MD, torch.ones(1, 1).double()], 1))[0]
    assert float(widths["1.weight"].max()) == pytest.approx(1.2 * 2 / 3)
    assert float(widths["3.weight"].min()) == pytest.approx(1.2 * 2 / 20)


def test_several_outputs_with_a_noise_each() -> None:
    targets = torch.cat([TARGETS, 3 * INPUTS[:, 2:] + 0.5 * normal(ROWS, 1, seed=5)], 1)
    model = tb.Model(net(2), tb.likelihoods.Gaussian("learned", outputs=2), Normal(0.5))
    actual = fitted(model, (INPUTS, targets), epochs=20)
    scales = actual.mean_MD[0, -2:].exp()
    assert scales[0] < scales[1]
    one = fitted(tb.Model(net(2), Learned, Normal(0.5)), (INPUTS, targets), epochs=2)
    assert one.mean_MD.shape == (1, 20 * 4 + 42 + 1)
    fixed = fitted(tb.Model(net(2), tb.likelihoods.Gaussian((0.1, 0.4)), Normal(0.5)), (INPUTS, targets), epochs=2)
    assert tb.predict(tb.Propagated(fixed), INPUTS).mean.shape == (ROWS, 2)


def test_a_row_of_weight_zero_has_no_effect_and_one_of_two_more() -> None:
    likelihood = tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.3))

    def of(weights: Tensor, rows: int = ROWS, kind: Any = likelihood) -> tb.Gaussian:
        data = (INPUTS[:rows], (TARGETS[:rows], weights[:rows]))
        model = tb.Model(nn.Linear(3, 1).double(), kind, Normal(0.5))
        return fitted(model, data, epochs=1, prior="model")

    ones, zero = torch.ones(ROWS).double(), torch.ones(ROWS).double()
    zero[40:] = 0
    plain = fitted(tb.Model(nn.Linear(3, 1).double(), likelihood.base, Normal(0.5)), epochs=1, prior="model")
    torch.testing.assert_close(of(ones).mean_MD, plain.mean_MD, rtol=1e-12, atol=1e-12)
    twice = of(2 * ones).covariance.diagonal()
    assert (twice < of(ones).covariance.diagonal()).all()
    assert (of(zero).covariance.diagonal() > of(ones).covariance.diagonal()).all()
    learned = tb.likelihoods.Weighted(Learned)
    with pytest.warns(tb.ProblemWarning, match="weight 0"):
        nothing = of(0 * ones, kind=learned)
    assert torch.equal(nothing.covariance.diagonal()[0, :4], torch.full((4,), 0.25).double())


def test_members_differ_by_start_and_order() -> None:
    actual = fitted(tb.Model(net(), Learned, Normal(0.5)), epochs=2, members=2)
    assert not torch.allclose(actual.mean_MD[0], actual.mean_MD[1])
    linear = fitted(tb.Model(nn.Linear(3, 1).double(), Learned, Normal(0.5)), epochs=1, members=2)
    difference = (linear.mean_MD[0] - linear.mean_MD[1]).abs().max()
    assert 0 < difference < 0.2  # the order of the rows alone


def test_a_float32_network_gives_float32_and_nearly_the_same() -> None:
    double = fitted(tb.Model(net(), Learned, Normal(0.5)), epochs=5)
    single = tb.Model(net(dtype=torch.float32), Learned, Normal(0.5))
    actual = fitted(single, tuple(t.float() for t in TRAIN), epochs=5)
    assert actual.mean_MD.dtype == actual.covariance.diagonal().dtype == torch.float32
    expected = tb.predict(tb.Propagated(double), INPUTS).mean
    seen = tb.predict(tb.Propagated(actual), INPUTS.float()).mean
    assert (expected - seen).square().mean().sqrt() < 0.1  # from a start of other bits


# --- what it refuses and reports


def tanh() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 1)).double()


def ends_in_relu() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 1), nn.ReLU()).double()


MODELS: dict[str, tuple[Callable[[], tb.Model], str]] = {
    "tanh": (lambda: tb.Model(tanh(), Learned), "`1` is a Tanh. Take `networks.mlp`"),
    "norm": (lambda: tb.Model(with_norm(), Learned), "`1` is a LayerNorm"),
    "own class": (lambda: tb.Model(type("Own", (nn.Linear,), {})(3, 1).double(), Learned), "got .*Own"),
    "activation at the end": (lambda: tb.Model(ends_in_relu(), Learned), "ends in an activation"),
    "frozen": (lambda: tb.Model(net(), Learned, random="3.*"), "`1.weight` is not random"),
    "likelihood": (lambda: tb.Model(net(), tb.likelihoods.StudentT()), "normal noise alone; got .*StudentT"),
    "network's noise": (lambda: tb.Model(net(2), tb.likelihoods.HeteroscedasticGaussian()), "got .*Heteroscedastic"),
    "prior": (lambda: tb.Model(net(), Learned, tb.priors.Laplace()), r"needs normal priors; got Laplace\(.*Use priors"),
    "temperature": (lambda: tb.Model(net(), Learned, temperature=0.5), "T = 1; the model has temperature 0.5"),
    "weak noise": (
        lambda: tb.Model(net(), tb.likelihoods.Gaussian("learned", prior=LogInverseChi(2.0, 0.1))),
        "worth 2 residuals; PBP needs more than 2",
    ),
    "flat noise": (
        lambda: tb.Model(net(), tb.likelihoods.Gaussian("learned", prior=tb.priors.Flat())),
        "must be normal, or priors.LogInverseChi; got Flat",
    ),
}


@pytest.mark.parametrize(("make", "said"), MODELS.values(), ids=MODELS)
def test_another_model_is_refused(make: Callable[[], tb.Model], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tb.fit(make(), TRAIN, tb.PBP(), callbacks=())


def test_a_correlated_prior_is_refused() -> None:
    module = nn.Linear(3, 1).double()
    fixed = tb.likelihoods.Gaussian(0.3)
    prior = Joint(torch.zeros(4).double(), Dense.of_precision(torch.eye(4).double().unsqueeze(0)))
    with pytest.raises(ValueError, match=r"needs independent weights; the joint prior has a .* covariance"):
        tb.fit(tb.Model(module, fixed, prior), TRAIN, tb.PBP(), callbacks=())


def test_rows_of_another_shape_are_refused() -> None:
    stack = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    posterior = tb.Gaussian(tb.Model(stack, Learned), torch.zeros(1, 22).double(), Diagonal(torch.ones(1, 22).double()))
    with pytest.raises(ValueError, match=r"takes rows of 3 features; got rows of shape \(2, 3\)"):
        tb.Propagated(posterior).predictive(torch.zeros(5, 2, 3))


def test_propagated_refuses_other_posteriors() -> None:
    model = tb.Model(net(), Learned)
    with pytest.raises(TypeError, match=r"must be a Gaussian one; got .*Point.*Fit by PBP"):
        tb.Propagated(tb.Point(model, torch.zeros(1, model.layout.size).double()))  # type: ignore[arg-type]
    mean_MD = torch.zeros(1, 4).double()
    dense = tb.Gaussian(
        tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.3)),
        mean_MD,
        Dense.of_precision(torch.eye(4).double().unsqueeze(0)),
    )
    with pytest.raises(ValueError, match="must have independent weights"):
        tb.Propagated(dense)


def test_targets_on_another_scale_are_a_problem() -> None:
    """A noise of 0.01 under targets of thousands: updates are undone, or the residuals are beyond all noise."""
    model = tb.Model(net(), tb.likelihoods.Gaussian(0.01), Normal(0.5))
    with pytest.warns(tb.ProblemWarning, match="targets, network and noise are probably not on one scale"):
        actual = fitted(model, (INPUTS, 5000 * TARGETS), epochs=3)
    assert actual.problems


def test_values_beyond_floating_point_end_the_run() -> None:
    inputs = INPUTS.clone()
    inputs[3, 0] = 1e200
    with pytest.raises(tb.DivergedError, match=r"log Z is not finite at step 0 .* up to 1e\+200 in its inputs"):
        fitted(tb.Model(net(), Learned, Normal(0.5)), (inputs, TARGETS), epochs=1)


def test_one_row_and_one_weight() -> None:
    single = fitted(tb.Model(net(), tb.likelihoods.Gaussian(0.3), Normal(0.5)), (INPUTS[:1], TARGETS[:1]), epochs=2)
    assert torch.isfinite(single.mean_MD).all()
    model = tb.Model(nn.Linear(1, 1, bias=False).double(), Learned, Normal(1.0))
    actual = fitted(model, (INPUTS[:, :1], 2 * INPUTS[:, :1] + 0.1 * normal(ROWS, 1)), epochs=5)
    assert float(actual.mean_MD[0, 0]) == pytest.approx(2.0, abs=0.1)

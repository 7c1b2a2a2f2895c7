"""What a fit takes from its targets before it begins: the scale of learned noise, against closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.covering import some_of
from tests.oracles import assert_close, normal
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from torchbayes.model.likelihoods.shapes import spread
from torchbayes.model.likelihoods.weighted import informed, spread_of
from torchbayes.model.subspace import Subspace

FEATURES, ROWS = 3, 40
Gaussian, Weighted, LogInverseChi = tb.likelihoods.Gaussian, tb.likelihoods.Weighted, tb.priors.LogInverseChi
pytestmark = pytest.mark.usefixtures("unjudged_fits")

ignored = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")


def linear(outputs: int = 1) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(FEATURES, outputs).double()


def table(scale: float = 1.0, outputs: int = 1) -> tuple[Tensor, Tensor]:
    inputs = normal(ROWS, FEATURES)
    return inputs, scale * (inputs[:, :outputs] + 0.3 * normal(ROWS, outputs, seed=1))


def model(likelihood: Any = None, outputs: int = 1) -> tb.Model:
    return tb.Model(linear(outputs), likelihood or Gaussian("learned"))


def fit(data: Any, given: tb.Model | None = None, method: Any = None, **about: Any) -> Any:
    return tb.fit(given or model(), data, method or tb.MAP(epochs=2), callbacks=(), **about)


# --- the standard deviation of targets ---


def test_spread_is_that_of_each_column_or_of_all() -> None:
    targets = 5.0 + torch.tensor([1.0, 20.0]).double() * normal(30, 2)
    each = np.std(targets.numpy(), axis=0)
    assert_close(spread(targets, columns=2), each)
    assert_close(spread(targets), [np.sqrt(np.mean(each**2))])
    assert_close(spread(targets[:, 0]), each[:1])
    assert_close(spread(targets.view(15, 2, 2), columns=2), each)


def test_a_weight_is_a_count() -> None:
    targets, weights = normal(6, 2), torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0, 1.0])
    assert_close(spread(targets, weights, columns=2), spread(targets.repeat_interleave(weights.long(), 0), columns=2))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([300.0] * 5, 300.0),
        ([0.1] * 5, 0.1),
        ([0.0] * 5, 1.0),
        ([-7.0], 7.0),
        ([math.nan, 1.0, 3.0, math.inf], 1.0),
        ([math.nan], 1.0),
        ([1e200, -1e200], 1e140),
        ([1e-200, -1e-200], 1e-140),
        ([1e5, 1e5 + 1e-3], 5e-4),
    ],
)
def test_targets_without_a_standard_deviation(values: list[float], expected: float) -> None:
    targets = torch.tensor(values, dtype=torch.float64)
    assert_close([size / expected for size in spread(targets)], [1.0], rtol=1e-5)
    assert informed(Gaussian("learned"), targets).parameters()["log_scale"].start().isfinite()


def test_likelihoods_that_take_nothing_are_left_alone() -> None:
    targets = normal(10, 1)
    for likelihood in (
        Gaussian(0.3),
        Gaussian("learned", initial=0.2, prior=tb.priors.Normal()),
        Gaussian("learned", spread=3.0),
        tb.likelihoods.Poisson(),
        tb.likelihoods.StudentT(),
        tb.likelihoods.HeteroscedasticGaussian(),
    ):
        assert informed(likelihood, targets) is likelihood
    weighted = informed(Weighted(Gaussian("learned", initial=0.2)), (targets, torch.arange(10.0)))
    assert_close(spread_of(weighted), spread(targets, torch.arange(10.0)))


# --- where a fit begins ---


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
@ignored
def test_noise_begins_on_the_scale_of_the_targets(scale: float) -> None:
    inputs, targets = table(scale)
    posterior, size = fit((inputs, targets)), float(targets.std(correction=0))
    (own,) = [s.prior for s in posterior.model.prior.segments if isinstance(s.prior, LogInverseChi)]
    assert_close(own.scales, [0.1 * size])
    assert_close(posterior.model.given_weights()[-1], math.log(0.5 * size))
    assert abs(float(posterior.weights_MD[0, -1]) - math.log(0.5 * size)) < 0.1  # a few steps of 0.01


@ignored
def test_each_output_has_its_scale() -> None:
    inputs, targets = table(outputs=2)
    targets = targets * torch.tensor([1e-3, 50.0]).double()
    posterior = fit((inputs, targets), model(Gaussian("learned", outputs=2), 2))
    each = targets.std(0, correction=0)
    assert_close(posterior.model.given_weights()[-2:], (0.5 * each).log())
    assert_close(posterior.model.prior.locs()[-2:].diff(), each.log().diff())


@ignored
def test_what_is_given_stays() -> None:
    data = table(100.0)
    given = model(Gaussian("learned", initial=0.2))
    assert_close(fit(data, given).model.given_weights()[-1], math.log(0.2))
    given = model(Gaussian("learned", prior=tb.priors.Normal(3.0)))
    assert fit(data, given).model.prior.segments[-1].prior == tb.priors.Normal(3.0)
    given = model(Gaussian("learned", initial=0.2, prior=tb.priors.Normal(3.0)))
    assert fit(data, given).model is given
    alone = model()
    assert_close(alone.given_weights()[-1], math.log(0.5))  # of no data: as for targets of standard deviation 1
    assert alone.prior.segments[-1].prior == LogInverseChi(2.0, 0.1)


@ignored
def test_a_trained_network_brings_the_noise_of_its_residuals() -> None:
    """σ² = (S + ν s²)/(N + ν) at its weights, which is where `Laplace` then is."""
    inputs, targets = table(30.0)
    net = linear()
    with torch.no_grad():
        net.weight.copy_(30 * torch.eye(1, FEATURES))
        net.bias.zero_()
        squares = float((targets - net(inputs)).square().sum())
    belief = 0.1 * float(targets.std(correction=0))
    expected = 0.5 * math.log((squares + 2 * belief**2) / (ROWS + 2))
    actual = fit((inputs, targets), tb.Model(net, Gaussian("learned")), tb.Laplace(check_mode=False), start=net)
    assert_close(actual.mean_MD[0, -1], expected, rtol=1e-5)  # the search ends at steps of 1e-6
    space = Subspace.random(given := tb.Model(net, Gaussian("learned")), given.network.weights(), 2)
    inside = fit((inputs, targets), given, tb.Laplace(check_mode=False), start=net, space=space)
    assert_close(inside.inner.mean_MD[0, -1], expected, rtol=1e-5)
    kept = tb.Model(net, Gaussian("learned", initial=2.0))
    actual = fit((inputs, targets), kept, tb.Laplace(check_mode=False), start=net)
    assert_close(actual.mean_MD[0, -1], math.log(2.0))


@ignored
def test_an_interpolating_network_under_a_flat_prior_brings_none() -> None:
    net = linear()
    inputs = normal(ROWS, FEATURES)
    data = inputs, net(inputs).detach()
    given = tb.Model(net, Gaussian("learned", prior=tb.priors.Flat()))
    actual = fit(data, given, tb.MAP(epochs=1), start=net)
    assert math.isfinite(float(actual.weights_MD[0, -1]))


@ignored
def test_noise_does_not_collapse_where_the_network_interpolates() -> None:
    """Two rows and four weights: without the prior there is no mode; with it σ² tends to ν s²/(N + ν)."""
    inputs, targets = normal(2, FEATURES), torch.tensor([[-1.0], [1.0]]).double()
    given = tb.Model(linear(), Gaussian("learned"), tb.priors.Normal(1e4))
    actual = fit((inputs, targets), given, tb.MAP(epochs=750, optimizer=tb.Adam(0.1)))
    assert_close(actual.weights_MD[0, -1], 0.5 * math.log(2 * 0.1**2 / 4), rtol=1e-4)


# --- files and runs ---


@ignored
@pytest.mark.parametrize(
    ("likelihood", "method"),
    some_of(
        [Gaussian("learned"), Weighted(Gaussian("learned"))],
        [tb.MAP(epochs=2), tb.SGLD(steps=20, burn_in=4), tb.Laplace(check_mode=False)],
        one_in=2,
    ),
)
def test_files_bring_the_scale_along(likelihood: Any, method: Any, tmp_path: Path) -> None:
    inputs, targets = table(70.0)
    given, weighted = model(likelihood), isinstance(likelihood, Weighted)
    data = (inputs, (targets, torch.ones(ROWS).double())) if weighted else (inputs, targets)
    start = {"start": linear()} if isinstance(method, tb.Laplace) else {}
    posterior = fit(data, given, method, directory=tmp_path, **start)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model"]["spread"] == pytest.approx([float(targets.std(correction=0))])
    for known in (given, posterior.model):
        loaded = tb.load(tmp_path / "posterior.safetensors", known)
        assert spread_of(loaded.model.likelihood) == spread_of(posterior.model.likelihood)
        assert torch.equal(loaded.sample(4), posterior.sample(4))
        assert torch.equal(loaded.model.log_prior(loaded.sample(4)), posterior.model.log_prior(posterior.sample(4)))
    other = model(Weighted(Gaussian("learned", spread=1.0)) if weighted else Gaussian("learned", spread=1.0))
    with pytest.raises(ValueError, match="another model: its prior of weights"):
        tb.load(tmp_path / "posterior.safetensors", other)


@ignored
def test_a_resumed_run_has_the_scale_that_it_began_with(tmp_path: Path) -> None:
    """A stream may give other rows at each pass, and so another estimate."""
    inputs, targets = table(3.0)

    class Shrinking:
        passes = 0

        def __iter__(self) -> Any:
            Shrinking.passes += 1
            return iter([(inputs, targets / Shrinking.passes)])

    first = fit(Shrinking(), directory=tmp_path)
    again = fit(Shrinking(), directory=tmp_path, resume=True)
    assert spread_of(again.model.likelihood) == spread_of(first.model.likelihood)
    assert torch.equal(again.weights_MD, first.weights_MD)


@ignored
def test_loaders_and_tables_agree() -> None:
    data = table(5.0)
    loader = DataLoader(TensorDataset(*data), batch_size=16, shuffle=True)
    one, other = (spread_of(fit(rows).model.likelihood) for rows in (data, loader))
    assert_close(one, other)


@ignored
def test_a_subspace_keeps_the_prior_of_its_coordinates() -> None:
    given = model()
    space = Subspace.random(given, given.network.weights(), 2, prior_scale=0.3)
    actual = fit(table(), given, space=space)
    assert actual.space.prior_scale == 0.3
    assert_close(actual.space.axes_RD, 0.3 * space.basis_RD)
    assert_close(actual.space.centre_D, space.origin_D)


@ignored
def test_a_subspace_and_what_is_built_on_it_have_the_scale(tmp_path: Path) -> None:
    data, given = table(9.0), model()
    space = Subspace.random(given, given.network.weights(), 2)
    actual = fit(data, given, tb.MAP(epochs=2), space=space, directory=tmp_path)
    assert spread_of(actual.inner.model.likelihood) == spread_of(actual.model.likelihood) == spread(data[1])
    again = tb.load(tmp_path / "posterior.safetensors", given)
    assert spread_of(again.model.likelihood) == spread(data[1])
    assert torch.equal(again.sample(1), actual.sample(1))


# --- methods that change priors ---


@ignored
def test_a_tuned_laplace_keeps_the_prior_of_the_noise(tmp_path: Path) -> None:
    """Two modes with other noise scales, at which that prior has other precisions."""
    data, given = table(), model(Gaussian("learned", spread=1.0))
    start = torch.stack([given.given_weights()] * 2)
    start[1, -1] += 0.7
    actual = fit(data, given, tb.Laplace(prior=3.0, check_mode=False), start=start)
    weights = normal(4, given.layout.size)
    size = given.network.layout.size
    own = LogInverseChi(2.0, 0.1).log_prob(weights[:, -1])
    rest = tb.priors.Normal(3.0**-0.5).log_prob(weights[:, :size]).sum(-1)
    assert_close(actual.model.log_prior(weights), own + rest)
    actual.save(tmp_path / "p.safetensors")
    assert_close(tb.load(tmp_path / "p.safetensors", given).model.log_prior(weights), own + rest)
    assert torch.isfinite(tb.tune(actual).log_evidence()).all()


@ignored
def test_online_laplace_takes_learned_noise() -> None:
    actual = fit(table(4.0), model(), tb.OnlineLaplace(epochs_of_descent=10))
    assert isinstance(actual.model.prior.segments[-1].prior, LogInverseChi)


@ignored
def test_hmc_explores_the_noise_of_a_known_mean() -> None:
    """With f fixed at 0 by a sharp prior, σ² has a scaled inverse χ² law of N + ν degrees of freedom."""
    targets = 0.4 * normal(12, 1)
    given = tb.Model(linear(), Gaussian("learned"), tb.priors.Normal(1e-6))
    actual = fit((normal(12, FEATURES), targets), given, tb.HMC(chains=8, steps=300, burn_in=100, mass="prior"), seed=1)
    belief = 0.1 * float(targets.std(correction=0))
    law = LogInverseChi(14.0, math.sqrt((float(targets.square().sum()) + 2 * belief**2) / 14))
    draws = actual.weights_MSD[..., -1].flatten()
    assert_close(draws.mean(), law.loc, rtol=0, atol=5 * law.std / math.sqrt(400))
    assert_close(draws.std(), law.std, rtol=0.15)

"""Subspaces of the weights: any method in them, and a posterior over all weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.covering import with_studies
from tests.laws.cases import assert_same_tensors, made, model_of, rows_of
from tests.oracles import LinearGaussian, assert_close, normal
from torchbayes.diagnostics import mcse_mean
from torchbayes.linalg import Dense, LowRankPlusDiagonal

FEATURES, RANK, NOISE = 5, 2, 0.7
INPUTS = normal(30, FEATURES, seed=1)
ORIGIN, BASIS = normal(FEATURES + 1, seed=4), normal(RANK, FEATURES + 1, seed=3)

METHODS: dict[str, Callable[[], Any]] = {
    "map": lambda: tb.MAP(2, epochs=5, plan="loop"),
    "swag": lambda: tb.SWAG(2, epochs=8, rank=2, plan="loop"),
    "hmc": lambda: tb.HMC(2, 16, 6, step_size=0.2, max_leapfrogs=4, plan="loop"),
    "nuts": lambda: tb.NUTS(2, 16, 6, max_doublings=3, plan="loop"),
    "random walk": lambda: tb.RandomWalk(2, 16, 6, plan="loop"),
    "elliptical slice": lambda: tb.EllipticalSlice(2, 16, 6, plan="loop"),
    "sghmc": lambda: tb.SGHMC(2, 16, 6, step_size=1e-4, batch_size=8, plan="loop", thin=1),
    "laplace": lambda: tb.Laplace("kronecker", check_mode=False, prior="model"),
    "online": lambda: tb.OnlineLaplace("dense", epochs_of_descent=4),
}
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
methods = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


def exact(scale: float = 1.5) -> LinearGaussian:
    return LinearGaussian(INPUTS, normal(30, seed=2), scale, NOISE)


def linear(prior: Any = None) -> tb.Model:
    prior = tb.priors.Normal(1.5) if prior is None else prior
    return tb.Model(nn.Linear(FEATURES, 1).double(), tb.likelihoods.Gaussian(NOISE), prior)


def data() -> tuple[Tensor, Tensor]:
    return INPUTS, exact().targets_N.unsqueeze(1)


def conditional(mean_D: Tensor, covariance_DD: Tensor) -> tuple[Tensor, Tensor]:
    """N(mean, covariance) given that the weights are ORIGIN + z BASIS: mean (D,) and covariance (D, D) of rank R."""
    precision_DD = torch.linalg.inv(covariance_DD)
    own_RR = torch.linalg.inv(BASIS @ precision_DD @ BASIS.T)
    shift_R = own_RR @ BASIS @ precision_DD @ (mean_D - ORIGIN)
    return ORIGIN + shift_R @ BASIS, BASIS.T @ own_RR @ BASIS


def fitted(make: Callable[[], Any], model: tb.Model, space: tb.Subspace, rows: Any, **options: Any) -> tb.InSubspace:
    method = make()
    start = space.origin_D if isinstance(method, tb.Laplace) else None
    return tb.fit(model, rows, method, space=space, start=start, callbacks=(), **options)  # type: ignore[return-value]


# --- truth ---


@pytest.mark.parametrize("prior", ["normal", "shifted", "correlated"])
def test_coordinates_have_the_conditional_prior(prior: str) -> None:
    """u ~ N(0, I) is the law of the weights under the prior, given the subspace."""
    root = torch.linalg.cholesky(torch.cov(normal(FEATURES + 1, 20, seed=9))).flip(0, 1)  # upper triangular
    priors: dict[str, tuple[Any, Tensor, Tensor]] = {
        "normal": (tb.priors.Normal(1.5), torch.zeros(6).double(), 2.25 * torch.eye(6).double()),
        "shifted": (
            tb.priors.Normal(0.5, 0.3),
            torch.full((6,), 0.3, dtype=torch.float64),
            0.25 * torch.eye(6).double(),
        ),
    }
    if prior == "correlated":
        gaussian = tb.Gaussian(linear(), normal(1, 6, seed=8), Dense(root.unsqueeze(0)))
        actual, mean_D, covariance_DD = tb.as_prior(gaussian), normal(1, 6, seed=8)[0], root @ root.T
    else:
        actual, mean_D, covariance_DD = priors[prior]
    space = tb.Subspace(linear(actual), ORIGIN, BASIS)
    expected = conditional(mean_D, covariance_DD)
    lifted = space.lift(torch.eye(3, RANK).double().flip(0))
    axes = torch.stack([lifted[1], lifted[2]]) - lifted[0]
    assert_close(lifted[0], expected[0], rtol=1e-9)
    assert_close(axes.T @ axes, expected[1], rtol=1e-9, atol=1e-11)
    assert_close(space.lift(space.coordinates(ORIGIN)), ORIGIN, rtol=1e-9)


def test_laplace_in_a_subspace_is_the_exact_conditional() -> None:
    space, (mean_D, covariance_DD) = tb.Subspace(linear(), ORIGIN, BASIS), conditional(*exact().posterior())
    model = space.whole
    actual = tb.fit(model, data(), tb.Laplace("dense", prior="model"), start=mean_D, space=space, callbacks=())
    assert isinstance(actual, tb.InSubspace)
    assert isinstance(actual.inner, tb.LaplacePosterior)
    assert actual.problems == ()
    assert_close(space.lift(actual.inner.mean_MD)[0], mean_D, rtol=1e-9)
    axes_RD = space.lift(torch.eye(RANK).double()) - space.lift(torch.zeros(RANK).double())
    covariance = axes_RD.T @ actual.inner.gaussian.covariance.dense()[0] @ axes_RD
    assert_close(covariance, covariance_DD, rtol=1e-8, atol=1e-12)


EXACT: dict[str, Any] = {
    "hmc": tb.HMC(32, 350, 100, jitter=0.3, trajectory=0.5),
    "nuts": tb.NUTS(48, 160, 60),
    "elliptical slice": tb.EllipticalSlice(100, 90, 20, plan="vmap"),
}
# Laplace above pins the density that HMC and NUTS take alike, and `test_a_sampler_takes_the_prior_of_the_coordinates`
# how elliptical slices split it
SAMPLERS = [pytest.param(EXACT[name], marks=() if name == "nuts" else pytest.mark.study, id=name) for name in EXACT]


@pytest.mark.slow
@pytest.mark.parametrize("method", SAMPLERS)
def test_samplers_in_a_subspace_meet_the_exact_conditional(method: Any) -> None:
    space, (mean_D, covariance_DD) = tb.Subspace(linear(), ORIGIN, BASIS), conditional(*exact().posterior())
    actual: Any = tb.fit(space.whole, data(), method, space=space, callbacks=())
    weights_MSD = space.lift(actual.inner.weights_MSD)
    centred = weights_MSD - mean_D
    for value, expected in ((centred, 0.0), (centred.square(), covariance_DD.diagonal())):
        assert ((value.mean((0, 1)) - expected).abs() < 4.5 * mcse_mean(value)).all()


def of_coordinates(scale: float, temperature: float) -> tuple[Tensor, Tensor]:
    """Posterior of z, N(0, scale²), of the linear model at ORIGIN + z BASIS; its likelihood to the power 1/T."""
    features_ND = torch.cat([INPUTS, torch.ones(30, 1).double()], 1)
    features_NR, rest_N = features_ND @ BASIS.T, exact().targets_N - features_ND @ ORIGIN
    precision_RR = torch.eye(RANK).double() / scale**2 + features_NR.T @ features_NR / NOISE**2 / temperature
    covariance_RR = torch.linalg.inv(precision_RR)
    return covariance_RR @ features_NR.T @ rest_N / NOISE**2 / temperature, covariance_RR


NORMAL, FLAT = tb.priors.Normal(1.5), tb.priors.Flat()


@pytest.mark.parametrize(
    ("prior", "temperature"), with_studies([(NORMAL, 4.0), (FLAT, 1.0)], (NORMAL, FLAT), (1.0, 4.0))
)
def test_a_prior_of_the_coordinates_takes_the_place_of_the_models(prior: Any, temperature: float) -> None:
    model = tb.Model(
        nn.Linear(FEATURES, 1).double(),
        tb.likelihoods.Gaussian(NOISE),
        prior,
        temperature=temperature,
        tempering="likelihood",
    )
    space = tb.Subspace(model, ORIGIN, BASIS, prior_scale=0.6)
    mean_R, covariance_RR = of_coordinates(0.6, temperature)
    method, start = tb.Laplace("dense", prior="model"), ORIGIN + mean_R @ BASIS
    actual: Any = tb.fit(model, data(), method, start=start, space=space, callbacks=())
    assert actual.problems == ()
    assert_close(space.lift(actual.inner.mean_MD)[0], ORIGIN + mean_R @ BASIS, rtol=1e-9)
    axes_RD = space.lift(torch.eye(RANK).double()) - space.lift(torch.zeros(RANK).double())
    covariance = axes_RD.T @ actual.inner.gaussian.covariance.dense()[0] @ axes_RD
    assert_close(covariance, BASIS.T @ covariance_RR @ BASIS, rtol=1e-8, atol=1e-12)


def test_a_sampler_takes_the_prior_of_the_coordinates() -> None:
    likelihood = tb.likelihoods.Gaussian(NOISE)
    model = tb.Model(nn.Linear(FEATURES, 1).double(), likelihood, NORMAL, temperature=4.0, tempering="likelihood")
    space, (mean_R, covariance_RR) = tb.Subspace(model, ORIGIN, BASIS, prior_scale=0.6), of_coordinates(0.6, 4.0)
    drawn: Any = tb.fit(model, data(), tb.EllipticalSlice(100, 24, 9, plan="vmap"), space=space, callbacks=())
    centred = space.lift(drawn.inner.weights_MSD) - ORIGIN - mean_R @ BASIS
    expected = (BASIS.T @ covariance_RR @ BASIS).diagonal()
    for value, wanted in ((centred, 0.0), (centred.square(), expected)):
        assert ((value.mean((0, 1)) - wanted).abs() < 4.5 * mcse_mean(value)).all()


@pytest.mark.study  # Laplace is, exactly, above; variational inference has its tests
def test_a_full_gaussian_in_a_subspace_is_the_exact_conditional() -> None:
    space, (mean_D, covariance_DD) = tb.Subspace(linear(), ORIGIN, BASIS), conditional(*exact().posterior())
    method = tb.VI(
        structure="dense",
        epochs=400,
        optimizer=tb.Adam(0.05),
        draws=64,
        antithetic=True,
        batch_size=30,
        kl_weight=1.0,
    )
    actual: Any = tb.fit(space.whole, data(), method, space=space, callbacks=())
    axes_RD = space.lift(torch.eye(RANK).double()) - space.lift(torch.zeros(RANK).double())
    assert_close(space.lift(actual.inner.mean_MD)[0], mean_D, atol=0.02)
    covariance = axes_RD.T @ actual.inner.gaussian.covariance.dense()[0] @ axes_RD
    assert_close(covariance, covariance_DD, rtol=0.1, atol=2e-3)


# --- subspaces of posteriors ---


def test_principal_components_of_a_low_rank_gaussian_are_those_of_its_covariance() -> None:
    factor_MRD, mean_MD = normal(1, 4, 6, seed=2), normal(1, 6, seed=3)
    posterior = tb.Gaussian(linear(), mean_MD, LowRankPlusDiagonal(torch.full((1, 6), 9.0).double(), factor_MRD))
    space = tb.Subspace.of(posterior, rank=4)
    assert_close(space.origin_D, mean_MD[0], rtol=1e-12)
    assert_close(space.basis_RD.T @ space.basis_RD, factor_MRD[0].T @ factor_MRD[0], rtol=1e-9, atol=1e-12)
    values, vectors = torch.linalg.eigh(factor_MRD[0].T @ factor_MRD[0])
    first = tb.Subspace.of(posterior, rank=2, prior_scale=1.0).basis_RD
    wanted = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    assert_close(first.T @ first, wanted, rtol=1e-9, atol=1e-12)


def mixture_covariance(factor_MRD: Tensor, mean_MD: Tensor) -> Tensor:
    """The covariance of a mixture of low-rank Gaussians of equal weight: within members, and between their means."""
    within_DD = torch.einsum("mrd,mre->de", factor_MRD, factor_MRD) / len(mean_MD)
    return within_DD + torch.cov(mean_MD.T, correction=0)


@pytest.mark.parametrize("apart", [0.0, 0.5])
@pytest.mark.parametrize(("members", "rank"), [(1, 2), (2, 1), (4, 2), (3, 5)])
def test_principal_components_of_low_rank_members_are_those_of_their_mixture(
    members: int, rank: int, apart: float
) -> None:
    factor_MRD, mean_MD = normal(members, rank, 6, seed=2), apart * normal(members, 6, seed=3) + normal(6, seed=4)
    tiny_MD = torch.full((members, 6), 1e-12).double()
    posterior = tb.Gaussian(linear(), mean_MD, LowRankPlusDiagonal(tiny_MD, factor_MRD))
    exact_DD = mixture_covariance(factor_MRD, mean_MD)
    values_D, vectors_DD = torch.linalg.eigh(exact_DD)
    largest = min(2, int((values_D > 1e-9 * values_D[-1]).sum()))
    space = tb.Subspace.of(posterior, rank=largest)
    wanted_DD = (vectors_DD[:, -largest:] * values_D[-largest:]) @ vectors_DD[:, -largest:].T
    assert_close(space.basis_RD.T @ space.basis_RD, wanted_DD, rtol=1e-9, atol=1e-12)
    assert_close(space.origin_D, mean_MD.mean(0), rtol=1e-9, atol=1e-12)


def test_that_mixture_is_the_law_of_the_draws() -> None:
    factor_MRD, mean_MD = normal(3, 2, 6, seed=2), 0.5 * normal(3, 6, seed=3)
    posterior = tb.Gaussian(linear(), mean_MD, LowRankPlusDiagonal(torch.full((3, 6), 1e-12).double(), factor_MRD))
    expected_DD = mixture_covariance(factor_MRD, mean_MD)
    assert_close(torch.cov(posterior.sample(60_000).T), expected_DD, rtol=0.05, atol=0.1)


def test_equal_members_are_one() -> None:
    factor_MRD, mean_MD, tiny_MD = normal(1, 2, 6, seed=2), normal(1, 6, seed=3), torch.full((1, 6), 1e-12).double()
    spaces = [
        tb.Subspace.of(
            tb.Gaussian(
                linear(),
                mean_MD.repeat(members, 1),
                LowRankPlusDiagonal(tiny_MD.repeat(members, 1), factor_MRD.repeat(members, 1, 1)),
            ),
            rank=2,
        )
        for members in (1, 4)
    ]
    assert_close(spaces[0].basis_RD.abs(), spaces[1].basis_RD.abs(), rtol=1e-9)


def test_a_subspace_of_a_posterior_serves_the_same_network_at_another_temperature() -> None:
    posterior = tb.Draws(linear(), normal(2, 10, 6, seed=4))
    tempered = tb.Model(
        nn.Linear(FEATURES, 1).double(), tb.likelihoods.Gaussian(NOISE), temperature=4.0, tempering="likelihood"
    )
    here, there = (tb.Subspace.of(posterior, rank=RANK, prior_scale=0.6, model=model) for model in (None, tempered))
    assert here.whole is posterior.model
    assert there.whole is tempered
    assert torch.equal(here.origin_D, there.origin_D)
    assert torch.equal(here.basis_RD, there.basis_RD)
    features_NR = torch.cat([INPUTS, torch.ones(30, 1).double()], 1) @ there.basis_RD.T
    precision_RR = torch.eye(RANK).double() / 0.6**2 + features_NR.T @ features_NR / NOISE**2 / 4
    method = tb.Laplace("dense", prior="model", check_mode=False)
    actual: Any = tb.fit(tempered, data(), method, start=there.origin_D, space=there, callbacks=())
    covariance_RR = 0.6**2 * actual.inner.gaussian.covariance.dense()[0]
    assert_close(covariance_RR, torch.linalg.inv(precision_RR), rtol=1e-8, atol=1e-12)
    with pytest.raises(ValueError, match="another model's weights"):
        tb.fit(tempered, data(), method, start=here.origin_D, space=here, callbacks=())


def test_draws_and_members_span_subspaces() -> None:
    weights_MSD = normal(2, 10, 6, seed=4)
    rows_SD = weights_MSD.flatten(0, 1)
    for posterior in (tb.Draws(linear(), weights_MSD), tb.Point(linear(), rows_SD)):
        space = tb.Subspace.of(posterior, rank=6)
        assert_close(space.basis_RD.T @ space.basis_RD, torch.cov(rows_SD.T), rtol=1e-9)
        assert_close(space.origin_D, rows_SD.mean(0), rtol=1e-9, atol=1e-12)
    plane = tb.Subspace.of(tb.Point(linear(), rows_SD[:3]), rank=2)
    assert_close(plane.lift(plane.coordinates(rows_SD[:3])), rows_SD[:3], rtol=1e-9, atol=1e-12)


def test_a_single_point_spans_nothing() -> None:
    with pytest.raises(ValueError, match="vary"):
        tb.Subspace.of(tb.Point(linear(), normal(1, 6)), rank=2)
    with pytest.raises(TypeError, match="posterior"):
        tb.Subspace.of(normal(1, 6), rank=2)  # type: ignore[arg-type]


def test_a_subspace_of_a_posterior_is_found_again_in_a_file(tmp_path: Path) -> None:
    model = linear(tb.priors.Flat())
    swag = tb.fit(model, data(), tb.SWAG(epochs=12, rank=5, per_epoch=1, batch_size=8), callbacks=())
    space = tb.Subspace.of(swag, rank=3, prior_scale=2.0)
    actual = tb.fit(model, data(), tb.EllipticalSlice(2, 40, 10), space=space, callbacks=(), directory=tmp_path / "run")
    again = tb.load(actual.save(tmp_path / "posterior.safetensors"), model)
    assert_close(again.sample(20), actual.sample(20), rtol=0)
    assert again.space.prior_scale == 2.0  # type: ignore[attr-defined]
    resumed = tb.Subspace(model, space.origin_D, space.basis_RD, prior_scale=1.0)
    assert resumed.checksum != space.checksum


def test_a_mode_in_a_subspace_is_the_conditional_mean() -> None:
    space, expected = tb.Subspace(linear(), ORIGIN, BASIS), conditional(*exact().posterior())[0]
    actual = tb.fit(space.whole, data(), tb.MAP(epochs=300, optimizer=tb.Adam(0.05)), space=space, callbacks=())
    assert_close(actual.sample(1)[0], expected, rtol=1e-5)


# --- any method, any network ---


@methods
def test_every_method_runs_in_a_subspace_and_speaks_of_weights(make: Callable[[], Any], tmp_path: Path) -> None:
    model, rows = model_of(), rows_of()
    space = tb.Subspace.random(model, model.network.weights(), 3, seed=5)
    actual = fitted(make, model, space, rows, directory=tmp_path)
    assert isinstance(actual, tb.InSubspace)
    assert actual.model is model
    draws = 2 * actual.members
    weights_SD = actual.sample(draws, seed=1)
    assert weights_SD.shape == (draws, model.layout.size)
    outside = weights_SD - space.lift(space.coordinates(weights_SD))
    assert_close(outside, torch.zeros_like(outside), atol=1e-12)
    here, there = (tb.predict(posterior, rows[0], draws=draws, seed=1).probs for posterior in (actual, actual.inner))
    assert_close(here, there, rtol=1e-9)
    loaded = tb.load(tmp_path / "posterior.safetensors", model)
    assert_same_tensors(loaded.tensors(), actual.tensors())
    assert torch.equal(loaded.sample(draws, seed=1), weights_SD)


# a descent, a chain on all rows and one on some, and a descent with passes over the rows; laws pin how others go on
GO_ON = {"swag", "nuts", "sghmc", "online"}


@pytest.mark.parametrize(
    "make", [pytest.param(METHODS[n], marks=() if n in GO_ON else pytest.mark.study, id=n) for n in METHODS]
)
def test_a_run_in_a_subspace_goes_on(make: Callable[[], Any], tmp_path: Path) -> None:
    model, rows = model_of(), rows_of()
    space = tb.Subspace.random(model, model.network.weights(), 3, seed=5)
    expected = fitted(make, model, space, rows)
    start = space.origin_D if isinstance(make(), tb.Laplace) else None
    stop: Any = [lambda event: event.epoch == 2]
    with pytest.raises(ValueError, match=r"ended|snapshots|not over|burn-in") if _needs_more(make()) else _nothing():
        tb.fit(model, rows, make(), space=space, start=start, callbacks=stop, directory=tmp_path)
    resumed = fitted(make, model, space, rows, directory=tmp_path, resume=True)
    assert_same_tensors(resumed.tensors(), expected.tensors())


def test_a_run_goes_on_in_its_own_subspace_alone(tmp_path: Path) -> None:
    model, rows = model_of(), rows_of()
    spaces = [tb.Subspace.random(model, model.network.weights(), 3, seed=seed) for seed in (5, 5, 6)]
    options: Any = {"directory": tmp_path, "callbacks": ()}
    expected = tb.fit(model, rows, tb.MAP(epochs=2), space=spaces[0], **options)
    resumed = tb.fit(model, rows, tb.MAP(epochs=2), space=spaces[1], resume=True, **options)
    assert_same_tensors(resumed.tensors(), expected.tensors())
    with pytest.raises(ValueError, match=r"belongs to another run: its space is '[0-9a-f]{8}', now '[0-9a-f]{8}'"):
        tb.fit(model, rows, tb.MAP(epochs=2), space=spaces[2], resume=True, **options)


def test_points_in_a_subspace_are_a_start_inside_it_and_outside() -> None:
    model, rows = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    space = tb.Subspace.random(model, model.network.weights(), 3, seed=5)
    modes = tb.fit(model, rows, tb.MAP(2, epochs=2), space=space, callbacks=())
    inside = tb.fit(
        model, rows, tb.Laplace("dense", check_mode=False, prior="model"), start=modes, space=space, callbacks=()
    )
    outside = tb.fit(model, rows, tb.Laplace("diagonal", check_mode=False, prior="model"), start=modes, callbacks=())
    assert isinstance(inside, tb.InSubspace)
    assert isinstance(inside.inner, tb.LaplacePosterior)
    assert isinstance(outside, tb.LaplacePosterior)
    assert_close(space.lift(inside.inner.mean_MD), modes.sample(2), rtol=1e-9)
    assert_close(outside.mean_MD, modes.sample(2), rtol=1e-9)
    assert_same_tensors(inside.buffers_M or {}, modes.buffers_M or {})


def _needs_more(method: Any) -> bool:
    return not isinstance(method, tb.MAP | tb.Laplace)


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_batch_norm_and_dropout_train_as_they_do_outside() -> None:
    for network in ("conv_batch_norm", "dropout", "tied", "frozen"):
        model, rows = model_of(network), rows_of(network)
        space = tb.Subspace.random(model, model.network.weights(), 3)
        actual = tb.fit(model, rows, tb.MAP(2, epochs=1, batch_size=12), space=space, seed=1, callbacks=())
        if network == "conv_batch_norm":
            assert actual.buffers_M is not None
            assert actual.buffers_M.keys() == model.network.buffers.keys()
            assert (actual.buffers_M["1.running_mean"] != 0).all()
        assert torch.isfinite(tb.predict(actual, rows[0]).probs).all()
        assert_same_tensors(dict(made(network).state_dict()), dict(made(network).state_dict()))


def test_learned_noise_stays_a_coordinate_of_its_own() -> None:
    model = tb.Model(nn.Linear(FEATURES, 1).double(), tb.likelihoods.Gaussian("learned"), tb.priors.Normal(1.5))
    space = tb.Subspace(model, ORIGIN, BASIS)
    actual = tb.fit(model, data(), tb.MAP(epochs=500, optimizer=tb.Adam(0.05)), space=space, callbacks=())
    weights_D = actual.sample(1)[0]
    assert weights_D.shape == (FEATURES + 2,)
    residual = data()[1][:, 0] - INPUTS @ weights_D[:FEATURES] - weights_D[FEATURES]
    assert_close(weights_D[-1].exp(), residual.square().mean().sqrt(), rtol=0.1)


def test_the_principal_components_of_draws() -> None:
    mixing = torch.tensor([[2.0, 0, 0, 1, 0, 0], [0, 0.5, 0, 0, 0, 1]]).double()
    weights_SD = ORIGIN + normal(500, 2, seed=6) @ mixing
    space = tb.Subspace.spanned(linear(), weights_SD, 2)
    assert_close(space.lift(space.coordinates(weights_SD)), weights_SD, rtol=1e-8)
    assert_close(torch.cov(space.basis_RD.T @ normal(2, 10**5, seed=7)), torch.cov(weights_SD.T), rtol=0.05, atol=0.02)


# --- refusals ---


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: tb.Subspace(m, ORIGIN[:3], BASIS), "`origin` must have 6 columns"),
        (lambda m: tb.Subspace(m, ORIGIN, BASIS[:, :4]), "`basis_RD` must have 6 columns"),
        (lambda m: tb.Subspace(m, ORIGIN, BASIS * torch.nan), "`basis_RD` must be finite"),
        (lambda m: tb.Subspace(m, ORIGIN, BASIS[[0, 1, 0]]), "the 3 rows of `basis_RD` must be linearly independent"),
        (lambda m: tb.Subspace(m, ORIGIN, 0 * BASIS), "the 2 rows of `basis_RD` must be linearly independent"),
        (lambda m: tb.Subspace(m, ORIGIN, BASIS[:0]), "`basis_RD` must have 6 columns"),
        (lambda _: tb.Subspace(linear(tb.priors.Laplace(1.0)), ORIGIN, BASIS), "prior along its directions, .* normal"),
        (lambda _: tb.Subspace(linear(tb.priors.Flat()), ORIGIN, BASIS), "prior along its directions, .* normal"),
        (lambda m: tb.Subspace.spanned(m, BASIS, 2), r"`rank` must lie in 1..1 for 2 sets of weights; got 2"),
        (
            lambda m: tb.fit(m, data(), tb.MAP(epochs=1), space=tb.Subspace(linear(), ORIGIN, BASIS)),
            "`space` is a subspace of another model's weights",
        ),
    ],
)
def test_what_is_refused(make: Callable[[tb.Model], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(linear())


def test_what_a_posterior_does_not_span_is_told():
    model = model_of()
    with pytest.raises(TypeError, match=r"must be a posterior.* got 'run'.*load\('RUN/posterior.safetensors', model\)"):
        tb.Subspace.of("run")  # type: ignore[arg-type]
    weights_D = model.network.weights()
    same = tb.Point(model, weights_D.expand(3, -1).clone())
    with pytest.raises(ValueError, match=r"along which the weights vary, 0; got 1\. Give weights .* that differ more"):
        tb.Subspace.of(same, rank=1)
    two = tb.Point(model, torch.stack([weights_D, 2 * weights_D, 3 * weights_D]))
    with pytest.raises(ValueError, match=r"along which the weights vary, 1; got 2\. Lower it to 1, or give"):
        tb.Subspace.of(two, rank=2)
    assert tb.Subspace.of(two, rank=1).rank == 1
    with pytest.raises(ValueError, match=f"at most the {len(weights_D)} random weights"):
        tb.Subspace.random(model, weights_D, len(weights_D) + 1)

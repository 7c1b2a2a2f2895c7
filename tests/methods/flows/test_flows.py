"""Variational inference with flows against quadrature, closed forms and finite differences, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.cases import normal
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.health.draws import Drawn
from torchbayes.health.ending import Case, NoHistory
from torchbayes.linalg import Dense
from torchbayes.methods.choices import is_open
from torchbayes.methods.flows import fitted
from torchbayes.methods.flows.fitted import Drawing, Terms, differentiate
from torchbayes.methods.flows.normalizing import FlowFamily
from torchbayes.methods.optimise.descent import start
from torchbayes.model.batches.batch import Batch
from torchbayes.model.sources.sources import as_source
from torchbayes.posteriors.flows.posterior import Transform, flow_of

needs_zuko = pytest.mark.skipif(find_spec("zuko") is None, reason="zuko is not installed")
NEURAL: list[Any] = [pytest.param(kind, marks=needs_zuko) for kind in ("realnvp", "iaf", "spline")]
KINDS: list[Any] = ["planar", "radial", *NEURAL]
ROWS, NOISE = 6, 0.5
X = normal(ROWS, 2, seed=1) @ torch.tensor([[1.0, 0.8], [0.0, 0.5]], dtype=torch.float64)
Y = X @ torch.tensor([[1.0], [-0.6]], dtype=torch.float64) + NOISE * normal(ROWS, 1, seed=2)


class Bent(nn.Module):
    """One function of two weights, whatever the inputs: its posterior is a banana, or a ring."""

    def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weights, self.of = nn.Parameter(torch.zeros(2, dtype=torch.float64)), of

    def forward(self, inputs: Tensor) -> Tensor:
        return self.of(self.weights).expand(len(inputs), 1)


def banana(weights: Tensor) -> Tensor:
    return weights[0] + 1.5 * weights[1].square()


def ring(weights: Tensor) -> Tensor:
    return (weights.square().sum() + 1e-6).sqrt()


TARGETS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {"banana": (banana, 1.0), "ring": (ring, 1.5)}
POINTS = torch.cartesian_prod(*[torch.linspace(-6, 6, 121, dtype=torch.float64)] * 2)
STEP = 0.1**2


def problem(name: str) -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    """A model of two weights, and four rows."""
    of, target = TARGETS[name]
    rows = (torch.zeros(4, 1, dtype=torch.float64), torch.full((4, 1), target, dtype=torch.float64))
    return tb.Model(Bent(of), tb.likelihoods.Gaussian(0.5), tb.priors.Normal(1.0)), rows


def log_joint(name: str, weights: Tensor) -> Tensor:
    """log p(D, w), by hand."""
    of, target = TARGETS[name]
    value = torch.vmap(of)(weights)
    return Normal(0.0, 1.0).log_prob(weights).sum(-1) + 4 * Normal(value, 0.5).log_prob(torch.tensor(target))


def bound(name: str, log_prob: Tensor) -> float:
    """∫ q (log p(D, w) − log q) over a grid, of q that has no mass beyond."""
    mass = log_prob.exp() * STEP
    assert float(mass.sum()) == pytest.approx(1, abs=0.02)
    return float((mass * (log_joint(name, POINTS) - log_prob)).sum())


def linear(prior: Any = None, **settings: Any) -> tb.Model:
    layer = nn.Linear(2, 1, bias=False).double()
    return tb.Model(layer, tb.likelihoods.Gaussian(NOISE), prior or tb.priors.Normal(1.0), **settings)


def exact() -> tuple[MultivariateNormal, float]:
    """Posterior and log evidence of the linear model."""
    precision = X.T @ X / NOISE**2 + torch.eye(2, dtype=torch.float64)
    mean = torch.linalg.solve(precision, X.T @ Y[:, 0] / NOISE**2)
    covariance = X @ X.T + NOISE**2 * torch.eye(ROWS, dtype=torch.float64)
    evidence = MultivariateNormal(torch.zeros(ROWS, dtype=torch.float64), covariance).log_prob(Y[:, 0])
    return MultivariateNormal(mean, precision_matrix=precision), float(evidence)


def family_of(kind: Transform, size: int = 2) -> FlowFamily:
    return FlowFamily(flow_of(kind, size, layers=3, hidden=5, bins=4), size)


def parameters_of(kind: Transform, bend: float) -> Tensor:
    """Parameters of one member, bent away from a normal distribution around the exact mean."""
    family = family_of(kind)
    rest = family.start(normal(1, family.num_parameters)) + bend * normal(1, family.num_parameters, seed=1)
    scale = torch.tensor([[0.25, 0.4]], dtype=torch.float64)
    return torch.cat([exact()[0].mean[None], scale.log(), rest], dim=1)


def objective(
    kind: Transform, parameters_MP: Tensor, *, draws: int, seed: int = 3, **settings: Any
) -> tuple[Terms, Tensor]:
    """The objective of the linear model on all rows, and its gradient."""
    weight = settings.pop("kl_weight", 1.0)
    density = LogDensity(linear(**settings), ROWS, None, training=True)
    begin = start(parameters_MP, {}, [seed], optimizer=tb.SGD(), epochs=1, steps_per_epoch=1)
    batch = Batch(X.unsqueeze(0), Y.unsqueeze(0))
    terms = differentiate(
        density, begin, batch, family=family_of(kind), drawing=Drawing("weights", draws), kl_weight=weight
    )
    return terms, begin.gradient_MD


# --- the objective


ABOUT: list[dict[str, Any]] = [
    {},
    {"kl_weight": 0.3, "temperature": 0.5},
    {"temperature": 2.0, "tempering": "likelihood"},
    {"prior": tb.priors.StudentT(3.0)},
    {"prior": {"weight": tb.priors.NormalMixture((1.0, 0.3)), "*": tb.priors.Normal()}},
]


# the objective asks a flow for draws and their densities alone, whatever the prior and the temperature
@pytest.mark.parametrize(
    ("kind", "about"),
    [
        pytest.param(
            *(getattr(kind, "values", (kind,))[0], about),
            marks=[*getattr(kind, "marks", ())] + [pytest.mark.study] * ((place + number) % 2),
        )
        for place, kind in enumerate(KINDS)
        for number, about in enumerate(ABOUT)
    ],
)
def test_the_gradient_is_that_of_the_objective(kind: Transform, about: dict[str, Any]) -> None:
    """Along a random direction, by central differences under the same noise."""
    parameters = parameters_of(kind, bend=0.3)
    _, gradient = objective(kind, parameters, draws=4, **about)
    direction, step = normal(*parameters.shape, seed=10), 1e-5
    ahead, behind = (
        objective(kind, parameters + sign * step * direction, draws=4, **about)[0].loss_M for sign in (1, -1)
    )
    slope = float((ahead - behind) / (2 * step))
    assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-7)


# the gradients of all are above, and their densities in tests/posteriors/flows
@pytest.mark.parametrize(
    "kind",
    [
        *("planar", pytest.param("radial", marks=pytest.mark.study), pytest.param("realnvp", marks=needs_zuko)),
        *(pytest.param(kind, marks=[needs_zuko, pytest.mark.study]) for kind in ("iaf", "spline")),
    ],
)
def test_the_objective_is_unbiased(kind: Transform) -> None:
    """Its mean over 6,000 draws is the integral of q (log p(D, w) − log q), within 4 standard errors."""
    parameters = parameters_of(kind, bend=0.3)
    family, mean_MD = family_of(kind), parameters[:, :2]
    about: dict[str, Any] = {"layers": 3, "hidden": 5, "bins": 4}
    actual = tb.FlowPosterior(linear(), mean_MD, parameters[:, 2:4].exp(), parameters[:, 4:], transform=kind, **about)
    assert family.num_parameters == parameters.shape[1] - 4
    count = 321 if kind == "spline" else 161  # whose density has kinks
    points = torch.cartesian_prod(*[torch.linspace(-4, 4, count, dtype=torch.float64)] * 2)
    log_q = actual.log_prob(points)
    posterior, evidence = exact()
    mass = log_q.exp() * (8 / (count - 1)) ** 2
    assert float(mass.sum()) == pytest.approx(1, abs=5e-3)
    expected = float((mass * (posterior.log_prob(points) + evidence - log_q)).sum())
    each = torch.tensor([-ROWS * float(objective(kind, parameters, draws=600, seed=s)[0].loss_M) for s in range(10)])
    error = float(each.std()) / math.sqrt(10)
    assert float(each.mean()) == pytest.approx(expected, abs=4 * error + 0.02)
    assert error < 0.2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kl_weight", [1.0, 0.25])
def test_it_begins_as_mean_field(kind: Transform, kl_weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first, noise of ±√D e_i, exact for quadratics, gives the gradient of independent normal weights."""
    points = math.sqrt(2) * torch.eye(2, dtype=torch.float64)
    monkeypatch.setattr(fitted, "normals", lambda *_, like: torch.cat([points, -points]).flatten().expand_as(like))
    precision = X.T @ X / NOISE**2 / kl_weight + torch.eye(2, dtype=torch.float64)
    mean = torch.linalg.solve(precision, X.T @ Y[:, 0] / NOISE**2 / kl_weight)
    family = family_of(kind)
    at_optimum = torch.cat([mean[None], -0.5 * precision.diagonal()[None].log()], dim=1)
    rest = family.start(normal(1, family.num_parameters))
    terms, gradient = objective(kind, torch.cat([at_optimum, rest], dim=1), draws=4, kl_weight=kl_weight)
    torch.testing.assert_close(gradient[:, :4], torch.zeros(1, 4, dtype=torch.float64), rtol=0, atol=1e-10)
    assert float(gradient[:, 4:].abs().max()) > 1e-4  # from where the flow can only gain
    if kl_weight == 1:
        gap = 0.5 * float(precision.diagonal().log().sum() - torch.logdet(precision))
        assert exact()[1] + ROWS * float(terms.loss_M) == pytest.approx(gap, abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_before_the_first_step_is_a_narrow_normal(kind: Transform) -> None:
    method, model = tb.NormalizingFlow(kind, members=2, kl_weight=1.0, initial_scale=0.3), linear()
    weights_MD = normal(2, 2, seed=5)
    density = LogDensity(model, ROWS, None, training=True)
    state = method.init(density, weights_MD, {}, seeds=[1, 2], steps_per_epoch=1)
    actual = method.posterior(density, state)
    points = weights_MD[0] + 0.3 * normal(20, 2, seed=6)
    each = Normal(weights_MD.unsqueeze(1), 0.3).log_prob(points).sum(-1)
    torch.testing.assert_close(actual.log_prob(points), each.logsumexp(0) - math.log(2))


# --- fits


def fitted_to(kind: Any, model: tb.Model, data: Any, **options: Any) -> Any:
    """A fit by a flow, or by a dense normal."""
    about: dict[str, Any] = {
        "kl_weight": 1.0,
        "epochs": 300 if kind == "radial" else 90,
        "draws": 32,
        "optimizer": tb.Adam(0.05),
        "initial_scale": 0.3,
    }
    if kind == "dense":
        return tb.fit(model, data, tb.VI("dense", **about), **options, callbacks=())
    layers = 8 if kind in {"planar", "radial"} else 3
    return tb.fit(model, data, tb.NormalizingFlow(kind, layers=layers, hidden=16, **about), **options, callbacks=())


@cache
def linear_fit(kind: str) -> Any:
    """The fit of a flow to the posterior of the linear model."""
    return fitted_to(kind, linear(), (X, Y))


@pytest.mark.parametrize(  # the bounds and gradients of all are those of the tests of the objective, above
    "kind",
    [
        *("planar", pytest.param("radial", marks=pytest.mark.study)),
        *(pytest.param(kind, marks=[needs_zuko, pytest.mark.study]) for kind in ("realnvp", "iaf", "spline")),
    ],
)
def test_bounds_of_a_linear_model_are_close_below_its_evidence(kind: str) -> None:
    """Correlations of a normal posterior are within reach of every flow but the radial one, which beats mean field."""
    posterior, evidence = exact()
    actual = linear_fit(kind)
    log_q = actual.log_prob(POINTS)
    mass = log_q.exp() * STEP
    reached = float((mass * (posterior.log_prob(POINTS) + evidence - log_q)).sum())
    precision = posterior.precision_matrix
    mean_field = 0.5 * float(precision.diagonal().log().sum() - torch.logdet(precision))
    assert float(mass.sum()) == pytest.approx(1, abs=5e-3)
    assert -1e-3 < evidence - reached < (mean_field if kind == "radial" else mean_field / 10)


@cache
def bent_fit(kind: str, name: str) -> Any:
    """The fit of a flow, or a dense normal, to a bent posterior."""
    model, data = problem(name)
    return fitted_to(kind, model, data, start=torch.tensor([0.3, 0.6], dtype=torch.float64))


# the bounds of the other flows are those of the tests of the objective, and two fits are those of the linear model
BENT = {("spline", "banana")}


@pytest.mark.study  # the objective is unbiased, and its gradient exact, by the tests above
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(
            kind,
            name,
            marks=[needs_zuko] * (kind not in {"planar", "radial"}) + [pytest.mark.study] * ((kind, name) not in BENT),
        )
        for kind in ("planar", "radial", "realnvp", "iaf", "spline")
        for name in TARGETS
    ],
)
def test_every_flow_beats_a_dense_normal_where_the_posterior_is_bent(kind: str, name: str) -> None:
    actual, gaussian = bent_fit(kind, name), bent_fit("dense", name)
    evidence = float((log_joint(name, POINTS).exp() * STEP).sum().log())
    reached, dense = (bound(name, q.log_prob(POINTS)) for q in (actual, gaussian))
    assert dense + 0.05 < reached < evidence + 1e-3


@pytest.mark.study  # of the same fits
@needs_zuko
def test_importance_ratios_of_a_spline_are_more_equal() -> None:
    """On average; far out, where nothing is trained, a spline has any tail: its k-hat is 0.3 to 1.0, by the seed."""
    spread = {}
    for kind in ("dense", "spline"):
        actual = bent_fit(kind, "banana")
        weights = actual.sample(40_000, seed=0)
        ratios = log_joint("banana", weights) - actual.log_prob(weights)
        spread[kind] = float((ratios - ratios.median()).abs().mean())
    assert spread["spline"] < 0.75 * spread["dense"]


def test_a_subspace_is_a_model_with_few_weights(tmp_path: Path) -> None:
    """The flow is over the coordinates; the posterior speaks of all weights, and comes back from its file."""
    torch.manual_seed(0)
    inputs = torch.linspace(-1, 1, 40).unsqueeze(1)
    targets = torch.sin(3 * inputs) + 0.1 * normal(40, 1, dtype=torch.float32)
    model = tb.Model(nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1)), tb.likelihoods.Gaussian(0.1))
    swag = tb.fit(model, (inputs, targets), tb.SWAG(rank=5, epochs=120, optimizer=tb.Adam(0.05)), callbacks=())
    space = tb.Subspace.spanned(model, swag.sample(30), 3)
    method = tb.NormalizingFlow(layers=4, epochs=50, kl_weight=1.0, optimizer=tb.Adam(0.03), draws=4)
    actual = tb.fit(model, (inputs, targets), method, space=space, callbacks=())
    assert isinstance(actual, tb.InSubspace)
    assert isinstance(actual.inner, tb.FlowPosterior)
    assert actual.inner.mean_MD.shape == (1, 3)
    assert tb.evaluate(actual, (inputs, targets)).metrics["rmse"] < 0.2
    loaded = tb.load(actual.save(tmp_path / "q.safetensors"), model)
    assert torch.equal(loaded.sample(5, seed=1), actual.sample(5, seed=1))
    coordinates = actual.inner.sample(5, seed=1)
    torch.testing.assert_close(space.lift(coordinates), actual.sample(5, seed=1))
    assert bool(torch.isfinite(actual.inner.log_prob(coordinates)).all())
    judged = tb.diagnose(actual.inner, inputs, targets, draws=50)
    drawn = actual.inner.sample(50)
    joint = torch.stack([actual.inner.model.log_joint(u, tb.Batch(inputs, targets), 40) for u in drawn])
    torch.testing.assert_close(judged.log_ratios_S, joint - actual.inner.log_prob(drawn), rtol=1e-4, atol=1e-3)


def test_only_weights_that_are_random_have_a_flow() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    model = tb.Model(net, tb.likelihoods.Categorical(), random="2.*")
    data = (normal(30, 3, dtype=torch.float32), torch.arange(30) % 2)
    actual = tb.fit(model, data, tb.NormalizingFlow("radial", epochs=3, kl_weight=1.0), callbacks=())
    assert isinstance(actual, tb.FlowPosterior)
    assert actual.mean_MD.shape == (1, 18)
    torch.testing.assert_close(tb.predict(actual, data[0]).probs.sum(-1), torch.ones(30))


# --- hostile inputs


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("planar", torch.float32),
        ("radial", torch.bfloat16),
        pytest.param("spline", torch.float64, marks=needs_zuko),
        pytest.param("spline", torch.bfloat16, marks=needs_zuko),
    ],
)
def test_one_weight_and_one_row(kind: Transform, dtype: torch.dtype) -> None:
    model = tb.Model(nn.Linear(1, 1, bias=False).to(dtype), tb.likelihoods.Gaussian(1.0))
    method = tb.NormalizingFlow(kind, epochs=20, kl_weight=1.0, layers=2, draws=3, initial_scale=0.5)
    actual = tb.fit(model, (torch.ones(1, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype)), method, callbacks=())
    assert actual.sample(4).dtype == model.network.dtype
    assert bool(torch.isfinite(actual.sample(4)).all())


@needs_zuko
@pytest.mark.parametrize("kind", ["realnvp", "iaf"])
def test_a_flow_that_needs_two_weights_says_so_before_it_starts(kind: Transform, tmp_path: Path) -> None:
    model = tb.Model(nn.Linear(1, 1, bias=False), tb.likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match="the model has one random weight"):
        tb.fit(
            model,
            (torch.ones(3, 1), torch.ones(3, 1)),
            tb.NormalizingFlow(kind, kl_weight=1.0),
            directory=tmp_path / "run",
        )
    assert not (tmp_path / "run" / "posterior.safetensors").exists()


def test_held_out_rows_choose_the_weight_of_the_divergence() -> None:
    inputs = normal(60, 2, dtype=torch.float32)
    data = (inputs, inputs.sum(1, keepdim=True))
    model = tb.Model(nn.Linear(2, 1), tb.likelihoods.Gaussian(1.0))
    method = tb.NormalizingFlow(epochs=20, layers=2, optimizer=tb.Adam(0.03))
    actual = tb.fit(model, data, method, callbacks=())
    assert isinstance(actual, tb.FlowPosterior)
    assert is_open(tb.NormalizingFlow())
    assert not tb.NormalizingFlow(kl_weight=tb.WarmUp()).choices


def test_a_run_that_diverges_stops() -> None:
    data = (1e3 * normal(20, 2), 1e6 * normal(20, 1))
    method = tb.NormalizingFlow(epochs=50, kl_weight=1.0, optimizer=tb.Adam(1e4))
    with pytest.raises(tb.DivergedError, match="the fit diverged at step"):
        tb.fit(linear(), data, method, callbacks=())


def _posterior(scale: float, mean: float = 0.0) -> tb.FlowPosterior:
    flow = flow_of("planar", 2, layers=1, hidden=1, bins=2)
    parts = torch.full((1, 2), mean), torch.full((1, 2), scale), flow.start(torch.ones(1, flow.layout.size))
    return tb.FlowPosterior(linear(), *(part.double() for part in parts), transform="planar", layers=1)


@pytest.mark.parametrize(
    ("scale", "mean", "said"),
    [
        (0.1, 0.0, None),
        (1e-9, 0.0, "the distribution has collapsed to a point"),
        (300.0, 0.0, "less likely"),
        (0.1, 1e4, "less likely"),
    ],
)
def test_what_cannot_be_trusted_is_said(scale: float, mean: float, said: str | None) -> None:
    source = as_source(linear(), (X, X @ torch.tensor([[0.1], [0.2]], dtype=torch.float64)), ROWS)
    actual = Drawn().problems(Case(_posterior(scale, mean), source, NoHistory()))
    assert (not actual) if said is None else said in " ".join(actual)


def test_a_good_fit_has_no_problems() -> None:
    actual = linear_fit("planar")
    assert actual.problems == ()


def test_the_density_of_a_joint_prior_counts_once() -> None:
    """A posterior of an earlier task as prior: the objective has its log density, not a sum over weights of it."""
    posterior, _ = exact()
    root = torch.linalg.cholesky(posterior.covariance_matrix.flip(0, 1)).flip(0, 1)  # upper triangular
    earlier = tb.Gaussian(linear(), posterior.mean[None], Dense(root[None]))
    prior = tb.as_prior(earlier)
    parameters = parameters_of("planar", bend=0.0)
    terms, _ = objective("planar", parameters, draws=2000, prior=prior)
    q = MultivariateNormal(parameters[0, :2], torch.diag(parameters[0, 2:4].mul(2).exp()))
    expected = float(torch.distributions.kl_divergence(q, posterior))
    assert float(terms.kl_M) == pytest.approx(expected, abs=0.15)

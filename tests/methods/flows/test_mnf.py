"""Multiplicative normalising flows against closed forms, autograd and finite differences, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.cases import normal
from torch import Tensor, nn
from torch.distributions import Normal

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.methods.choices import Lowered
from torchbayes.methods.flows.fitted import Drawing, Terms, differentiate
from torchbayes.methods.flows.mnf import MNFFamily
from torchbayes.methods.optimise.descent import start
from torchbayes.model.batches.batch import Batch
from torchbayes.posteriors.flows.multipliers import GATE, Multipliers, multiplied

X, Y, NOISE = 1.3, 0.9, 0.7
MEAN, SCALE = 1.2, 0.6  # m and s, of the multiplier
SLOPE, SPREAD = 0.5, 0.3  # μ and σ, of the weight given the multiplier
GATED = 1 / (1 + math.exp(-GATE))


ROW = (torch.full((1, 1), X, dtype=torch.float64), torch.full((1, 1), Y, dtype=torch.float64))
VARIANCE = SPREAD**2 + SLOPE**2 * SCALE**2  # of the marginal q(w) = N(m μ, σ² + μ² s²)


def one_weight() -> tb.Model:
    """y = w x + e with one row, and w ~ N(0, 1)."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    return tb.Model(net, tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(1.0))


def log_evidence() -> float:
    return float(Normal(0.0, math.hypot(X, NOISE)).log_prob(torch.tensor(Y, dtype=torch.float64)))


def elbo_of_the_marginal() -> float:
    """The bound of q(w), in closed form."""
    mean = MEAN * SLOPE
    square = (Y - mean * X) ** 2 + VARIANCE * X**2
    expected = -0.5 * math.log(2 * math.pi * NOISE**2) - 0.5 * square / NOISE**2
    return expected - 0.5 * (VARIANCE + mean**2 - 1 - math.log(VARIANCE))


def family_of(model: tb.Model) -> MNFFamily:
    return MNFFamily(Multipliers(multiplied(model), model.layout.size, 2, 4), 0.1)


def parameters_of(model: tb.Model, bend: float = 0.0, *, scale: float = 0.2) -> Tensor:
    """Parameters (1, P) of a network."""
    family, size = family_of(model), model.layout.size
    rest = family.start(normal(1, family.num_parameters)) + bend * normal(1, family.num_parameters, seed=1)
    return torch.cat(
        [normal(1, size, seed=2), torch.full((1, size), math.log(scale), dtype=torch.float64), rest], dim=1
    )


def of_one_weight(**auxiliary: float) -> Tensor:
    """Parameters (1, P) of the case with one weight, with r(z | w) = N(a + b t, e^{2 (l + d t)}), t = tanh(c w).

    Flows of one multiplier are z' = g z + (1 − g) in their first step and nothing in their second, so that what
    comes out of them is known.
    """
    layout = family_of(one_weight()).multipliers.layout
    parts = layout.split(parameters_of(one_weight())[:, 2:].clone())
    before = {"q.mean": (MEAN - (1 - GATED)) / GATED, "q.log_scale": math.log(SCALE / GATED)}
    for name, value in {**before, **{f"r.{n}": v for n, v in auxiliary.items()}}.items():
        parts[f"0.weight.{name}"] = torch.full((1, 1), value, dtype=torch.float64)
    given = torch.tensor([[SLOPE, math.log(SPREAD)]], dtype=torch.float64)
    return torch.cat([given, layout.join(parts)], dim=1)


def objective(
    model: tb.Model,
    parameters_MP: Tensor,
    data: tuple[Tensor, Tensor],
    *,
    draws: int,
    estimator: Any = "weights",
    seeds: Sequence[int] = (3,),
) -> tuple[Terms, Tensor]:
    """The objective on all rows, and its gradient, for each seed."""
    density, count = LogDensity(model, len(data[0]), None, training=True), len(seeds)
    begin = start(parameters_MP.repeat(count, 1), {}, seeds, optimizer=tb.SGD(), epochs=1, steps_per_epoch=1)
    batch = Batch(*data).map(lambda part: part.expand(count, *part.shape))
    about: dict[str, Any] = {"family": family_of(model), "drawing": Drawing(estimator, draws), "kl_weight": 1.0}
    return differentiate(density, begin, batch, **about), begin.gradient_MD


def bound(**auxiliary: float) -> tuple[float, float]:
    """The bound of the case with one weight by 40,000 draws, and four standard errors."""
    parameters = of_one_weight(**auxiliary)
    each = -objective(one_weight(), parameters, ROW, draws=4000, seeds=range(10))[0].loss_M
    return float(each.mean()), 4 * float(each.std()) / math.sqrt(len(each)) + 1e-6


def told(intercept: float, slope: float, scale: float) -> dict[str, float]:
    """Auxiliary parameters under which z ~ N(intercept + slope w, scale²): it acts on y = g z + 1 − g."""
    small = 1e-4  # tanh is linear there
    a, log_scale = GATED * intercept + 1 - GATED, math.log(GATED * scale)
    return {"a": a, "b": GATED * slope / small, "c": small, "d": 0.0, "l": log_scale}


# --- the bound, where everything is known


def test_the_bound_is_that_of_the_marginal_where_the_auxiliary_is_exact() -> None:
    slope = SLOPE * SCALE**2 / VARIANCE
    auxiliary = told(MEAN - slope * MEAN * SLOPE, slope, math.sqrt(SCALE**2 - SLOPE**2 * SCALE**4 / VARIANCE))
    actual, error = bound(**auxiliary)
    assert error < 0.06
    assert actual == pytest.approx(elbo_of_the_marginal(), abs=error)
    assert actual < log_evidence()


def test_an_auxiliary_that_ignores_weights_costs_the_mutual_information() -> None:
    actual, error = bound(**told(MEAN, 0.0, SCALE))
    information = 0.5 * math.log(VARIANCE / SPREAD**2)
    assert information > 5 * error
    assert actual == pytest.approx(elbo_of_the_marginal() - information, abs=error)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.study) for seed in (1, 2))])
def test_any_other_auxiliary_costs_its_divergence(seed: int) -> None:
    """ELBO − bound = E KL(q(z | w) ‖ r(z | w)), integrated over w."""
    a, b, c, d, ell = (float(x) for x in normal(5, seed=seed) * torch.tensor([0.5, 0.5, 1.0, 0.3, 0.2]))
    actual, error = bound(a=1 + a, b=b, c=c, d=d, l=ell - 0.5)
    w = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    mass = Normal(MEAN * SLOPE, math.sqrt(VARIANCE)).log_prob(w).exp() * float(w[1] - w[0])
    slope = SLOPE * SCALE**2 / VARIANCE
    exact = Normal(
        GATED * (MEAN + slope * (w - MEAN * SLOPE)) + 1 - GATED,
        GATED * math.sqrt(SCALE**2 - SLOPE**2 * SCALE**4 / VARIANCE),
    )
    r = Normal(1 + a + b * torch.tanh(c * w), torch.exp(ell - 0.5 + d * torch.tanh(c * w)))
    lost = float((mass * torch.distributions.kl_divergence(exact, r)).sum())
    assert actual == pytest.approx(elbo_of_the_marginal() - lost, abs=error)
    assert actual < log_evidence()


# --- networks


def convolutional() -> nn.Module:
    layers = (nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, 4, 1, groups=1), nn.Flatten(), nn.Linear(16, 2))
    return nn.Sequential(*layers)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {"dense": (dense, (3,)), "convolutional": (convolutional, (2, 3, 3))}


def classifier(name: str, prior: Any = None) -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    make, shape = NETWORKS[name]
    model = tb.Model(make().double(), tb.likelihoods.Categorical(), prior or tb.priors.Normal(1.0))
    return model, (normal(6, *shape, seed=4), torch.arange(6) % 2)


@pytest.mark.parametrize(
    "prior", [None, tb.priors.StudentT(3.0), {"0.*": tb.priors.Laplace(0.5), "*": tb.priors.StudentT(4.0)}]
)
@pytest.mark.parametrize("estimator", ["weights", "auto", "local", "flipout"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_is_that_of_the_objective(name: str, estimator: Any, prior: Any) -> None:
    model, data = classifier(name, prior)
    parameters = parameters_of(model, bend=0.2)
    about: dict[str, Any] = {"draws": 3, "estimator": estimator}
    _, gradient = objective(model, parameters, data, **about)
    direction, step = normal(*parameters.shape, seed=10), 1e-5
    ahead, behind = (
        objective(model, parameters + sign * step * direction, data, **about)[0].loss_M for sign in (1, -1)
    )
    slope = float((ahead - behind) / (2 * step))
    assert float((gradient * direction).sum()) == pytest.approx(slope, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize(  # `test_vi_layers.py` has both estimators of dense layers
    ("name", "estimator"), [pytest.param("dense", "local", marks=pytest.mark.study), ("convolutional", "flipout")]
)
def test_layers_that_take_distributions_have_the_same_expectation_and_less_noise(name: str, estimator: Any) -> None:
    model, data = classifier(name)
    parameters = parameters_of(model, bend=0.2)
    actual = {
        way: objective(model, parameters, data, draws=1, estimator=way, seeds=range(80))[1]
        for way in ("weights", estimator)
    }
    error = torch.stack([part.var(0) / len(part) for part in actual.values()]).sum(0).sqrt()
    z = (actual["weights"].mean(0) - actual[estimator].mean(0)) / error.clamp_min(1e-12)
    assert float(z.abs().max()) < 5
    assert float(z.square().mean()) < 1.6
    chosen, own = (objective(model, parameters, data, draws=2, estimator=way)[1] for way in ("auto", estimator))
    if name == "dense":  # where every layer has one position, and `auto` is local noise
        assert torch.equal(chosen, own)
    size = model.layout.size  # of the means, whose gradient the noise of the weights reaches
    assert float(actual[estimator][:, :size].var(0).mean()) < 0.95 * float(actual["weights"][:, :size].var(0).mean())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_auxiliary_begins_as_the_law_of_the_multipliers(name: str) -> None:
    model, _ = classifier(name)
    own, parameters = family_of(model).multipliers, parameters_of(model)
    size = model.layout.size
    noise = normal(1, 2000, own.noise_size, seed=5)
    actual = own.draw(
        parameters[:, :size], parameters[:, size : 2 * size].exp(), parameters[:, 2 * size :], noise_MSE=noise
    )
    torch.testing.assert_close(actual.free_MS, torch.zeros(1, 2000, dtype=torch.float64), rtol=0, atol=1e-10)
    factors = (actual.mean_MSD / parameters[:, None, :size])[0]
    plain = torch.ones(size, dtype=torch.bool)
    for layer in own.layers:
        plain[layer.where] = False
        mine = factors[:, layer.where].unflatten(1, layer.shape).movedim(1 + layer.axis, 1).flatten(2)
        torch.testing.assert_close(mine, mine[..., :1].expand_as(mine))  # one multiplier for each along the axis
        assert float((mine.mean() - 1).abs()) < 0.01
        assert float(mine[..., 0].std()) == pytest.approx(0.1 * GATED, rel=0.05)
    torch.testing.assert_close(factors[:, plain], torch.ones_like(factors[:, plain]))
    noise_left = (actual.weights_MSD - actual.mean_MSD)[0] / 0.2
    torch.testing.assert_close(noise_left, noise[0, :, own.count :])


def test_dense_layers_have_a_multiplier_for_each_input_and_convolutions_for_each_filter() -> None:
    actual = multiplied(classifier("convolutional")[0])
    assert [(layer.name, layer.axis, layer.length) for layer in actual] == [
        ("0.weight", 0, 3), ("2.weight", 0, 4), ("4.weight", 1, 16)
    ]  # fmt: skip
    assert [(layer.name, layer.axis, layer.length) for layer in multiplied(classifier("dense")[0])] == [
        ("0.weight", 1, 3), ("3.weight", 1, 5)
    ]  # fmt: skip


def test_frozen_layers_and_parts_of_layers_have_none() -> None:
    net = dense()
    net[0].requires_grad_(False)  # type: ignore[index]
    assert [layer.name for layer in multiplied(tb.Model(net, tb.likelihoods.Categorical()))] == ["3.weight"]
    mask = torch.zeros(5, 3, dtype=torch.bool)
    mask[0] = True
    masks = {"0.weight": mask, "3.weight": torch.eye(2, 5, dtype=torch.bool)}
    with pytest.raises(ValueError, match="has random weights; random are"):
        multiplied(tb.Model(dense(), tb.likelihoods.Categorical(), random=masks))


@pytest.mark.parametrize("random", ["*.bias", "2.*"])
def test_a_network_without_such_layers_is_refused(random: str, tmp_path: Path) -> None:
    model = tb.Model(dense(), tb.likelihoods.Categorical(), random=random)
    data = (normal(6, 3, dtype=torch.float32), torch.arange(6) % 2)
    with pytest.raises(ValueError, match=r"no `nn.Linear` or `nn.Conv` of the model has random weights; random are"):
        tb.fit(model, data, tb.MNF(kl_weight=1.0), directory=tmp_path / "run", callbacks=())


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # a few steps move no scale
def test_its_density_is_refused_with_a_reason() -> None:
    model, data = classifier("dense")
    actual = tb.fit(model, data, tb.MNF(kl_weight=1.0, epochs=2, hidden=3), callbacks=())
    assert isinstance(actual, tb.MNFPosterior)
    with pytest.raises(NotImplementedError, match="an integral over all multipliers, of which training knows a bound"):
        actual.log_prob(actual.sample(1))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # a few steps move no scale
def test_a_file_is_of_one_network(tmp_path: Path) -> None:
    model, data = classifier("convolutional")
    actual = tb.fit(model, data, tb.MNF(members=2, kl_weight=1.0, epochs=2, hidden=3), callbacks=())
    loaded = tb.load(actual.save(tmp_path / "q.safetensors"), model)
    assert torch.equal(loaded.sample(6, seed=2), actual.sample(6, seed=2))
    assert {name.partition(".")[0] for name in actual.tensors()} == {"mean_MD", "scale_MD", "flow"}
    assert len({name for name in actual.tensors() if name.startswith("flow.4.weight.")}) == 7 + 2 * 12
    with pytest.raises(ValueError, match="does not fit this model"):
        tb.load(tmp_path / "q.safetensors", classifier("dense")[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_row_of_one_input(dtype: torch.dtype) -> None:
    model = tb.Model(nn.Linear(1, 1).to(dtype), tb.likelihoods.Gaussian("learned"))
    data = (torch.ones(1, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype))
    actual = tb.fit(model, data, tb.MNF(kl_weight=1.0, epochs=10, draws=2, hidden=2), callbacks=())
    assert actual.sample(3).dtype == model.network.dtype
    assert actual.sample(3).shape == (3, 3)


@pytest.mark.study  # its bound and gradient are exact, above, and a fit has no problems below
def test_the_spread_of_a_regression_grows_away_from_the_data() -> None:
    torch.manual_seed(0)
    inputs = torch.cat([torch.linspace(-1, -0.4, 30), torch.linspace(0.4, 1, 30)]).unsqueeze(1)
    targets = torch.sin(4 * inputs) + 0.1 * normal(60, 1, dtype=torch.float32)
    net = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 1))
    model = tb.Model(net, tb.likelihoods.Gaussian(0.1), tb.priors.Normal(1.0))
    method = tb.MNF(kl_weight=1.0, epochs=200, batch_size=60, optimizer=tb.Adam(0.05), hidden=10)
    actual = tb.fit(model, (inputs, targets), method, callbacks=())
    assert actual.problems == ()
    spread = actual.functions(200)(torch.tensor([[-0.7], [0.7], [2.5], [-2.5]])).std(0)[:, 0]
    assert tb.evaluate(actual, (inputs, targets)).metrics["rmse"] < 0.2
    assert float(spread[2:].min()) > 2 * float(spread[:2].max())


def test_images_with_a_class_for_each_pixel_and_a_learned_flow() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 1))
    model = tb.Model(net, tb.likelihoods.Categorical(class_axis=1))
    images = normal(12, 1, 5, 5, dtype=torch.float32)
    labels = (images[:, 0] > 0).long()
    for method in (
        tb.MNF(2, 20, hidden=4, kl_weight=0.1),
        tb.NormalizingFlow("radial", 2, 20, layers=2, kl_weight=0.1),
    ):
        actual = tb.fit(model, (images, labels), replace(method, optimizer=tb.Adam(0.15)), callbacks=())
        assert actual.problems == ()
        assert tb.evaluate(actual, (images, labels)).metrics["accuracy"] > 0.9
        assert tb.predict(actual, images, draws=4).probs.shape == (12, 5, 5, 2)


def test_coordinates_of_a_subspace_are_no_layers() -> None:
    model, data = classifier("dense")
    space = tb.Subspace.random(model, model.given_weights(), 2)
    with pytest.raises(ValueError, match=r"random are coordinates\. Choose others by `random=`, or fit `VI`"):
        tb.fit(model, data, tb.MNF(kl_weight=1.0), space=space, callbacks=())


def test_trial_runs_are_of_one_fold_and_as_long_as_the_run() -> None:
    (weight,) = tb.MNF().choices
    assert isinstance(weight, Lowered)
    assert (weight.setting, weight.folds, dict(weight.trial)) == ("kl_weight", 1, {})

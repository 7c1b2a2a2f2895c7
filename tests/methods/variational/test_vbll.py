"""Variational last layers: the bound against the evidence and autograd, what is trained, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.covering import some_of, with_studies
from tests.laws.cases import assert_same_tensors
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.choices import Lowered
from torchbayes.methods.variational.last_layer import last_layer
from torchbayes.methods.variational.vbll import Bounded
from torchbayes.model.likelihoods.expected import expected_log_prob, expected_lse

COVARIANCES = ("dense", "diagonal", "low_rank")
UNIT = 10.0  # in which the parameters of a covariance are stored


def stacked(inputs: int = 2, outputs: int = 2, width: int = 4, *, bias: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        layers = (nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs, bias=bias))
        return nn.Sequential(*layers).double()


def regression(rows: int, outputs: int = 2) -> tuple[Tensor, Tensor]:
    inputs = normal(rows, 2, seed=1)
    means = [inputs[:, 0].sin(), inputs[:, 1] * inputs[:, 0], inputs[:, 1]]
    return inputs, torch.stack(means[:outputs], 1) + 0.2 * normal(rows, outputs, seed=2)


def classes(rows: int, count: int = 3) -> tuple[Tensor, Tensor]:
    inputs = normal(rows, 2, seed=1)
    return inputs, (2 * inputs[:, 0] + normal(rows, seed=3)).round().long().abs() % count


def both_of(model: tb.Model, covariance: Any, members: int = 2, *, rank: int = 2) -> tuple[Any, Tensor]:
    """A last layer, and weights with parameters of its covariance that are anything."""
    layer = last_layer(model, covariance, rank=rank)
    weights = 0.5 * normal(members, model.layout.size, seed=3)
    return layer, torch.cat([weights, 0.05 * normal(members, sum(layer.sizes), seed=4) - 0.03], 1)


def loss_of(model: tb.Model, layer: Any, both: Tensor, data: Any, num_data: int, **options: Any) -> Any:
    """Value and gradient at the same rows for each member."""
    rows = tb.Batch(*data).map(lambda t: t.expand(len(both), *t.shape))
    target, out = Bounded(model, num_data, layer, **options), torch.empty_like(both)
    return target.loss(both, rows, buffers={}, seeds=[5, 6][: len(both)], out=out)


# --- the bound


def test_the_bound_at_the_exact_posterior_is_the_log_evidence() -> None:
    """Each output has its own noise and its own trace term; features and noise are fixed."""
    scales, s0, (x, y) = (0.3, 0.7, 1.1), 0.8, regression(40, 3)
    net = stacked(outputs=3)
    model = tb.Model(net, tb.likelihoods.Gaussian(scales), tb.priors.Normal(s0), random="2.*")
    features = torch.cat([net[1](net[0](x)), torch.ones(40, 1, dtype=torch.float64)], 1).detach()  # type: ignore[index]
    layer = last_layer(model, "dense", rank=1)
    weights, log_scales, beside, evidence = torch.zeros(model.layout.size, dtype=torch.float64), [], [], 0.0
    for k, scale in enumerate(scales):
        precision = features.T @ features / scale**2 + torch.eye(5, dtype=torch.float64) / s0**2
        root = torch.linalg.inv(torch.linalg.cholesky(precision)).T  # upper triangular
        weights[layer.grid_KI[k]] = torch.linalg.solve(precision, features.T @ y[:, k] / scale**2)
        log_scales.append(root.diagonal().log())
        above = root / root.diagonal().unsqueeze(1)
        beside.append(above[tuple(torch.triu_indices(5, 5, offset=1))])
        marginal = s0**2 * features @ features.T + scale**2 * torch.eye(40, dtype=torch.float64)
        zero = torch.zeros(40, dtype=torch.float64)
        evidence += float(torch.distributions.MultivariateNormal(zero, marginal).log_prob(y[:, k]))
    both = torch.cat([weights, torch.cat(log_scales) / UNIT, torch.cat(beside) / UNIT]).unsqueeze(0)
    value = loss_of(model, layer, both, (x, y), 40)
    assert abs(float(value[0]) * -40 - evidence) < 1e-10 * abs(evidence)
    assert float(value.gradient.abs().max()) < 1e-10  # it is the maximum
    assert float(loss_of(model, layer, both + 0.01, (x, y), 40)[0]) > float(value[0])


NAMES = ("gaussian", "learned", "categorical", "knowles_minka", "bernoulli", "smoothed")


@pytest.mark.parametrize(("covariance", "name"), some_of(COVARIANCES, NAMES, one_in=3))
def test_the_gradient_is_that_of_the_loss(covariance: str, name: str) -> None:
    likelihoods = {
        "gaussian": tb.likelihoods.Gaussian((0.4, 0.9)),
        "learned": tb.likelihoods.Gaussian("learned", outputs=2),
        "bernoulli": tb.likelihoods.Bernoulli(),
        "smoothed": tb.likelihoods.Categorical(label_smoothing=0.1, weights=(1.0, 2.0)),
    }
    likelihood = likelihoods.get(name, tb.likelihoods.Categorical())
    real = name in {"gaussian", "learned"}
    x, y = regression(12) if real else classes(12, 2)
    y = torch.stack([y, 1 - y], 1).double() if name == "bernoulli" else y
    model = tb.Model(stacked(), likelihood, tb.priors.Normal(1.3), temperature=0.7)
    layer, both = both_of(model, covariance)
    option: Any = {"bound": "knowles_minka"} if name == "knowles_minka" else {}

    def loss(at: Tensor) -> Any:
        return loss_of(model, layer, at, (x, y), 30, **option)

    gradient, step = loss(both).gradient, 1e-6
    for at in (7, model.layout.size - 1, model.layout.size + 1, both.shape[1] - 1):
        ends = []
        for sign in (1, -1):
            moved = both.clone()
            moved[:, at] += sign * step
            ends.append(loss(moved)[0])
        assert_close(gradient[:, at], (ends[0] - ends[1]) / (2 * step), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_loss_is_the_formula_on_dense_matrices(covariance: str, weight: float) -> None:
    (x, y), s0, loc, noise, num_data = regression(9), 1.3, 0.2, (0.4, 0.9), 30
    model = tb.Model(stacked(), tb.likelihoods.Gaussian(noise), tb.priors.Normal(s0, loc=loc))
    layer, both = both_of(model, covariance)
    sigma = layer.structure(both[:, model.layout.size :], model.layout.size).dense()
    actual = loss_of(model, layer, both, (x, y), num_data, kl_weight=weight)
    for m in range(2):
        weights = both[m, : model.layout.size]
        views = model.layout.split(weights)
        hidden = torch.tanh(x @ views["0.weight"].T + views["0.bias"])
        seen = torch.cat([hidden, torch.ones(9, 1, dtype=torch.float64)], 1)
        fit, divergence = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for k, scale in enumerate(noise):
            at = layer.grid_KI[k]
            own, mean = sigma[m][at][:, at], weights[at]
            normal_k = torch.distributions.Normal(seen @ mean, scale)
            trace = torch.einsum("bi,ij,bj->b", seen, own, seen)
            fit = fit + (normal_k.log_prob(y[:, k]) - 0.5 * trace / scale**2).sum()
            rest = own.trace() / s0**2 - 5 + 5 * 2 * math.log(s0) - own.logdet()
            divergence = divergence + 0.5 * ((mean - loc).square().sum() / s0**2 + rest)
        features = torch.distributions.Normal(0 * weights[:12] + loc, s0).log_prob(weights[:12]).sum()
        assert_close(-num_data * actual[0][m], num_data / 9 * fit - weight * divergence + features)
        assert sigma[m][:12].abs().max() == 0


def test_bounds_lie_below_the_mean_and_knowles_minka_above_jensen() -> None:
    mean, variance = torch.tensor([0.4, -0.3, 0.9]), torch.tensor([1.5, 0.6, 0.9])
    mean, variance = mean.double(), variance.double()
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(60))
    weights = weights / weights.sum()
    at = [mean[k] + variance[k].sqrt() * nodes for k in range(3)]
    grid = torch.stack(torch.meshgrid(*at, indexing="ij"), -1)
    exact = float(torch.einsum("ijk,i,j,k->", grid.logsumexp(-1), weights, weights, weights))
    jensen = float(expected_lse(mean, variance))
    tight = float(expected_lse(mean, variance, bound="knowles_minka"))
    assert exact < tight < jensen
    assert tight - exact < 0.5 * (jensen - exact)
    # at the best a it is stationary, and where nothing varies both are exact
    assert_close(expected_lse(mean, 0 * variance), mean.logsumexp(0))
    assert_close(expected_lse(mean, 0 * variance, bound="knowles_minka"), mean.logsumexp(0))
    a, wide = torch.zeros(3, dtype=torch.float64), 40 * variance  # by many small steps
    for _ in range(2000):
        a = a + ((mean + (0.5 - a) * wide).softmax(-1) - a) / (1 + 0.5 * wide)
    lowest = 0.5 * (a.square() * wide).sum() + (mean + (0.5 - a) * wide).logsumexp(0)
    assert_close(expected_lse(mean, wide, bound="knowles_minka"), lowest, rtol=1e-5)


@pytest.mark.parametrize("bound", ["jensen", "knowles_minka"])
def test_bounds_of_each_likelihood_lie_below_many_draws(bound: Any) -> None:
    mean, variance = normal(5, 3, seed=1), normal(5, 3, seed=2).square()
    drawn = mean + variance.sqrt() * normal(4000, 5, 3, seed=3)
    labels, soft = torch.tensor([0, 2, 1, 1, 0]), normal(5, 3, seed=4).softmax(-1)
    cases: list[tuple[Any, Tensor]] = [
        (tb.likelihoods.Categorical(), labels),
        (tb.likelihoods.Categorical(ignore_index=1, weights=(1.0, 1.0, 3.0)), labels),
        (tb.likelihoods.Categorical(), soft),
        (tb.likelihoods.Bernoulli(), (soft > 0.3).double()),
        (tb.likelihoods.Gaussian((0.5, 1.0, 2.0)), soft),
    ]
    for likelihood, targets in cases:
        each = likelihood.log_prob(drawn, targets)
        exact, error = each.mean(0), each.std(0) / each.shape[0] ** 0.5
        actual = expected_log_prob(likelihood, mean, variance, targets=targets, parameters={}, bound=bound)
        assert (actual <= exact + 4 * error).all()
        if isinstance(likelihood, tb.likelihoods.Gaussian):
            assert ((actual - exact).abs() <= 5 * error).all()
        if likelihood == cases[1][0]:
            assert (actual[2:4] == 0).all()


def test_minibatches_and_weighted_rows_count_as_they_say() -> None:
    model = tb.Model(stacked(), tb.likelihoods.Gaussian(0.5))
    layer, both = both_of(model, "dense")
    x, y = regression(12)
    whole = loss_of(model, layer, both, (x, y), 12)[0]
    parts = [loss_of(model, layer, both, (x[a : a + 4], y[a : a + 4]), 12)[0] for a in (0, 4, 8)]
    assert_close(torch.stack(parts).mean(0), whole)
    counts = torch.tensor([2.0, 0.0, 1.0, 3.0] * 3, dtype=torch.float64)
    weighted = tb.Model(stacked(), tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.5)))
    rows = tb.Batch(x, (y, counts)).map(lambda t: t.expand(2, *t.shape))
    value = Bounded(weighted, 18, layer).loss(both, rows, buffers={}, seeds=[5, 6], out=torch.empty_like(both))
    repeated = counts.long().repeat_interleave(1)
    again = loss_of(model, layer, both, (x.repeat_interleave(repeated, 0), y.repeat_interleave(repeated, 0)), 18)
    assert_close(value[2] * 12 / 18, again[2])  # the likelihood is scaled by rows, of which there are 12


# --- training


@pytest.mark.study  # the loss is its formula, its gradient exact, and the bound at the posterior the evidence
@pytest.mark.parametrize(
    ("covariance", "weight"),
    with_studies([("dense", 0.5)], COVARIANCES, (1.0, 0.5)),  # its formula, above, is that of all
)
def test_training_reaches_the_best_bound_of_fixed_features(covariance: Any, weight: float) -> None:
    """The noise is so wide that the prior, and with it β, counts in every direction."""
    (x, y), net, noise = regression(60, 1), stacked(outputs=1), 0.8
    model = tb.Model(net, tb.likelihoods.Gaussian(noise), tb.priors.Normal(1.0), random="2.*")
    method = tb.VBLL(covariance, epochs=400, batch_size=60, optimizer=tb.Adam(0.08), rank=2, kl_weight=weight)
    posterior = tb.fit(model, (x, y), method, callbacks=())
    seen = torch.cat([net[1](net[0](x)), torch.ones(60, 1, dtype=torch.float64)], 1).detach()  # type: ignore[index]
    precision = seen.T @ seen / noise**2 + weight * torch.eye(5, dtype=torch.float64)  # that of q is 1/β times as much
    mean = torch.linalg.solve(precision, seen.T @ y[:, 0] / noise**2)
    assert isinstance(posterior, tb.Gaussian)
    assert_close(posterior.mean_MD[0], mean, rtol=5e-3, atol=5e-3)
    actual = posterior.covariance.dense()[0] / weight
    if covariance == "dense":
        assert_close(actual, torch.linalg.inv(precision), rtol=1e-3, atol=1e-5)
    elif covariance == "diagonal":
        assert_close(actual.diagonal(), 1 / precision.diagonal(), rtol=1e-3, atol=0.0)
    else:  # between the two
        assert float((actual.diagonal() * precision.diagonal()).min()) > 1.0
        assert (actual.diagonal() < torch.linalg.inv(precision).diagonal() * 1.05).all()


@pytest.mark.filterwarnings("ignore:.*the noise explains what the mean could:torchbayes.ProblemWarning")
@pytest.mark.parametrize(
    "covariance", ["dense", *(pytest.param(kind, marks=pytest.mark.study) for kind in ("diagonal", "low_rank"))]
)
def test_predictions_are_the_exact_ones_of_what_was_trained(covariance: Any, tmp_path: Path) -> None:
    data = regression(50)
    model = tb.Model(stacked(), tb.likelihoods.Gaussian("learned", outputs=2))
    method = tb.VBLL(covariance, 2, 50, 50, tb.Adam(0.06), rank=2, kl_weight=0.5)
    posterior = tb.fit(model, data, method, callbacks=())
    assert isinstance(posterior, tb.Gaussian)
    x = 3 * normal(7, 2, seed=9)
    prediction, drawn = tb.predict(posterior, x), posterior.functions(8000, seed=1)(x)
    of_members = drawn.view(4000, 2, 7, 2)
    assert_close(prediction.outputs_SBK, of_members.mean(0), rtol=0.05, atol=0.05)
    jacobians = []
    for m in range(2):
        network = lambda w: model.network(model.split(w)[0], x)  # noqa: E731
        jacobians.append(torch.func.jacrev(network)(posterior.mean_MD[m]))
    sigma = posterior.covariance.dense()
    exact = torch.stack([torch.einsum("bki,ij,blj->bkl", j, s, j) for j, s in zip(jacobians, sigma, strict=True)])
    assert prediction.function_variance is not None
    assert_close(prediction.function_variance, exact.diagonal(dim1=-2, dim2=-1), rtol=1e-8)
    assert_close(tb.Linearised(posterior).functions(x).covariance_MBKK, exact, rtol=1e-8, atol=1e-12)
    joint = tb.Linearised(posterior).joint(x).covariance_MBKK
    for m in range(2):
        flat = jacobians[m].flatten(0, 1)
        assert_close(joint[m].reshape(14, 14), flat @ sigma[m] @ flat.T, rtol=1e-8, atol=1e-12)
    loaded = tb.load(posterior.save(tmp_path / "p.safetensors"), model)
    assert_same_tensors(loaded.tensors(), posterior.tensors())
    assert_close(tb.predict(loaded, x).function_variance, prediction.function_variance)
    assert tb.evaluate(posterior, data).metrics["nll"] < 2.0


# bounds of either kind are below many draws, above
@pytest.mark.parametrize("bound", [pytest.param("jensen", marks=pytest.mark.study), "knowles_minka"])
def test_classes_are_drawn_from_the_outputs_and_features_are_learned(bound: Any) -> None:
    inputs = normal(200, 2, seed=1)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).long()  # no line separates them
    model = tb.Model(stacked(width=16), tb.likelihoods.Categorical())
    method = tb.VBLL(bound=bound, epochs=20, optimizer=tb.Adam(0.06), kl_weight=0.1)
    posterior = tb.fit(model, (inputs, labels), method, callbacks=())
    prediction = tb.predict(posterior, inputs)
    assert prediction.outputs_SBK.shape[0] == 100
    assert tb.evaluate(posterior, (inputs, labels)).metrics["accuracy"] > 0.9
    many = posterior.functions(4000)(inputs[:20]).softmax(-1).mean(0)
    outputs = tb.predict(replace(tb.Linearised(posterior, "samples"), samples=4000), inputs[:20])  # type: ignore[arg-type]
    assert_close(outputs.probs, many, rtol=0.0, atol=0.03)
    assert (tb.predict(posterior, inputs[:5]).mutual_information > 0).all()


@pytest.mark.study  # predictions are the exact ones of what was trained, above
def test_spread_grows_away_from_the_data() -> None:
    x = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(1)
    y = (3 * x).sin() + 0.1 * normal(60, 1, seed=4)
    model = tb.Model(stacked(1, 1, 20), tb.likelihoods.Gaussian(0.1))
    posterior = tb.fit(
        model, (x, y), tb.VBLL(epochs=150, batch_size=60, optimizer=tb.Adam(0.03), kl_weight=1.0), callbacks=()
    )
    at = torch.tensor([[0.0], [3.0]], dtype=torch.float64)
    spread = tb.predict(posterior, at).function_variance
    assert spread is not None
    assert float(spread[0, 1]) > 5 * float(spread[0, 0])


# lengths beside other settings are those of `test_the_averaging_rate_is_that_of_a_search_by_hand`
@pytest.mark.study  # the choice is that of every method with such a weight, in `tests/selection`
@pytest.mark.parametrize("name", ["weight", "both"])
def test_held_out_rows_choose_the_weight_of_the_divergence(name: str, tmp_path: Path) -> None:
    """With several classes the bound is loose, and β = 1 too cautious."""
    inputs = normal(100, 5, seed=2)
    net = nn.Sequential(nn.Linear(5, 50), nn.Tanh(), nn.Linear(50, 5)).double()
    model = tb.Model(net, tb.likelihoods.Categorical())
    new, nlls, chosen = normal(500, 5, seed=3), [], []
    about: dict[str, Any] = {"batch_size": 50, "optimizer": tb.Adam(0.03)}
    fixed: dict[str, Any] = {"epochs": 20, "kl_weight": 1.0}
    chosen_by_rows: dict[str, Any] = {} if name == "both" else {"epochs": 20}
    for number, settings in enumerate((chosen_by_rows, fixed)):
        method, where = tb.VBLL("diagonal", **about, **settings), tmp_path / str(number)
        posterior = tb.fit(model, (inputs, inputs.argmax(1)), method, seed=1, directory=where, callbacks=())
        nlls.append(tb.evaluate(posterior, (new, new.argmax(1))).metrics["nll"])
        chosen.append(json.loads((where / "config.json").read_text()).get("chosen", {}).get("settings", {}))
    assert chosen[0].keys() == ({"kl_weight", "epochs"} if name == "both" else {"kl_weight"})
    assert chosen[0]["kl_weight"] < 0.3
    assert not chosen[1]
    assert nlls[0] < nlls[1] - 0.1


# --- networks of others


class Squeezed(nn.Module):
    """A network whose outputs have no axis of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(inputs))).squeeze(-1)


class Elsewhere(nn.Module):
    """A network that holds its last layer first."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 4), nn.Linear(4, 4)
        if tied:
            self.body.weight = self.head.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(inputs)))


def test_held_out_rows_choose_the_weight_unless_it_is_given() -> None:
    (weight,) = (choice for choice in tb.VBLL().choices if isinstance(choice, Lowered))
    assert (weight.setting, weight.trial, max(weight.values)) == ("kl_weight", {"covariance": "diagonal"}, 1.0)
    assert not any(isinstance(choice, Lowered) for choice in tb.VBLL(kl_weight=1.0).choices)


def test_networks_of_others_are_taken() -> None:
    conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3, bias=False))
    images, labels = normal(30, 1, 4, 4).float(), torch.arange(30) % 3
    model = tb.Model(conv, tb.likelihoods.Categorical())
    method = tb.VBLL(epochs=2, kl_weight=1.0)
    actual = tb.fit(model, (images, labels), method, callbacks=())
    assert actual.buffers_M is not None
    assert tb.predict(actual, images).probs.shape == (30, 3)
    assert actual.mean_MD.dtype == torch.float32  # type: ignore[attr-defined]
    x, y = (part.float() for part in regression(30, 1))
    alone = tb.fit(tb.Model(Squeezed(), tb.likelihoods.Gaussian(0.3)), (x, y[:, 0]), method, callbacks=())
    assert tb.predict(alone, x).mean.shape[0] == 30
    places = nn.Sequential(nn.Embedding(5, 4), nn.Tanh(), nn.Linear(4, 5))
    tokens = torch.arange(24).view(6, 4) % 5
    model = tb.Model(places, tb.likelihoods.Categorical(ignore_index=0))
    actual = tb.fit(model, (tokens, (2 * tokens) % 5), replace(method, covariance="diagonal"), callbacks=())
    assert tb.predict(actual, tokens).probs.shape == (6, 4, 5)
    low = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Tanh(), nn.Linear(4, 1)).bfloat16()
    actual = tb.fit(tb.Model(low, tb.likelihoods.Gaussian(0.3)), (x, y), replace(method, epochs=200), callbacks=())
    assert tb.predict(actual, x).mean.isfinite().all()


class Columns(nn.Module):
    """A linear layer with a column of weights for each output, as `Conv1D` of GPT-2."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(like.weight.detach().T.clone()), nn.Parameter(like.bias.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addmm(self.bias, inputs, self.weight)


class Counting(nn.Linear):
    """A linear layer of a class of its own."""

    calls = 0

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(input)


def _ending_in(kind: Any, outputs: int) -> nn.Module:
    net: Any = stacked(outputs=outputs, width=3)
    plain = net[2]
    net[2] = Columns(plain) if kind is Columns else Counting(3, outputs).double()
    if kind is Counting:
        net[2].load_state_dict(plain.state_dict())
    return net


@pytest.mark.parametrize("kind", [Columns, Counting])
@pytest.mark.parametrize("outputs", [2, 3])
def test_last_layers_of_any_class_are_those_of_torch(kind: Any, outputs: int) -> None:
    """With three outputs of three features only numbers tell whether rows or columns of W are outputs."""
    data, x, method = (
        regression(30, outputs),
        normal(7, 2, seed=9),
        tb.VBLL(epochs=6, optimizer=tb.Adam(0.1), kl_weight=1.0),
    )
    actual = []
    for net in (stacked(outputs=outputs, width=3), _ending_in(kind, outputs)):
        model = tb.Model(net, tb.likelihoods.Gaussian(0.3))
        actual.append(tb.predict(tb.fit(model, data, method, start=net, callbacks=()), x))
    expected, seen = actual
    assert expected.function_variance is not None
    assert_close(seen.outputs_SBK, expected.outputs_SBK, rtol=1e-9)
    assert_close(seen.function_variance, expected.function_variance, rtol=1e-9)


class Scaled(nn.Linear):
    """Not linear in its weights: they are taken to unit length."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight / self.weight.norm(dim=1, keepdim=True), self.bias)


def test_one_weight_and_one_row() -> None:
    model = tb.Model(nn.Linear(1, 1, bias=False).double(), tb.likelihoods.Gaussian(0.5))
    data = (torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    posterior = tb.fit(model, data, tb.VBLL(epochs=120, optimizer=tb.Adam(0.08), kl_weight=1.0), callbacks=())
    assert_close(posterior.tensors()["mean_MD"], torch.tensor([[0.8]]).double(), rtol=1e-2)
    assert isinstance(posterior, tb.Gaussian)
    assert_close(posterior.covariance.dense(), torch.tensor([[[0.2]]]).double(), rtol=1e-2)


def test_refusals_say_what_to_do() -> None:
    data, method = regression(20), tb.VBLL(epochs=2)
    noise = tb.likelihoods.Gaussian(scale=1.0)

    def refused(net: nn.Module, message: str, likelihood: Any = noise, rows: Any = data, **options: Any) -> None:
        with pytest.raises(ValueError, match=message):
            tb.fit(tb.Model(net, likelihood, **options), rows, method, callbacks=())

    refused(
        stacked(), r"a normal prior.*Use priors.Normal", prior={"2.*": tb.priors.Laplace(1.0), "*": tb.priors.Normal()}
    )
    refused(stacked(), r"Gaussian, Categorical and Bernoulli likelihoods; got StudentT", tb.likelihoods.StudentT())
    refused(stacked(), "must all be random, and used by no other layer", random="0.*")
    refused(nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)).double(), "logits in the place of probabilities")
    refused(nn.Sequential(nn.Conv1d(2, 2, 1), nn.Flatten()).double(), "no linear layer",
            rows=(data[0].unsqueeze(-1), data[1]))  # fmt: skip
    wide = (normal(20, 4, seed=1), normal(20, 4, seed=2))
    refused(Elsewhere().double(), "must return what its last linear layer `body` gives", rows=wide)
    refused(Elsewhere(tied=True).double(), "used by no other layer", rows=wide)
    ended: Any = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), Scaled(3, 2)).double()
    refused(ended, r"`2` computes something else. Use VI")
    ended[2] = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2).double())
    with pytest.raises(ValueError, match=r"`2` computes its weights from others. Use VI"):
        tb.fit(tb.Model(ended, noise), data, method, start=ended, callbacks=())
    hooked = stacked()
    hooked[2].register_forward_hook(lambda *_: None)  # type: ignore[index]
    refused(hooked, "has hooks")


def test_features_have_any_prior() -> None:
    rules = {"0.*": tb.priors.Laplace(1.0), "2.*": tb.priors.Normal(0.5)}
    model = tb.Model(stacked(), tb.likelihoods.Gaussian(0.5), rules)
    assert tb.fit(model, regression(20), tb.VBLL(epochs=3), callbacks=()).tensors()["mean_MD"].isfinite().all()


@pytest.mark.parametrize("covariance", ["dense", "diagonal", "low_rank"])
def test_outputs_have_the_variances_of_their_own_weights_and_no_others(covariance: Any) -> None:
    """V_kk = aᵀ S_k a with a = (φ, 1), and 0 between outputs."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4)).double()
    model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    inputs = normal(6, 2)
    actual: Any = tb.fit(model, (inputs, torch.arange(6) % 4), tb.VBLL(covariance, epochs=2, rank=2), callbacks=())
    views = model.split(actual.mean_MD[0])[0]
    features = (inputs @ views["0.weight"].T + views["0.bias"]).tanh()
    size, places = model.layout.size, model.layout.split(torch.arange(model.layout.size))
    matrix = torch.stack([actual.covariance.matvec(unit[None])[0] for unit in torch.eye(size).double()])
    expected = torch.zeros(6, 4, 4).double()
    for k in range(4):
        where = torch.cat([places["2.weight"][k], places["2.bias"][k : k + 1]])
        given = torch.cat([features, torch.ones(6, 1).double()], dim=1)
        expected[:, k, k] = torch.einsum("bi,ij,bj->b", given, matrix[where][:, where], given)
    linear = tb.Linearised(actual, "samples", samples=4000)
    assert_close(linear.functions(inputs).covariance_MBKK[0], expected, rtol=1e-9)
    assert_close(
        linear.functions(inputs, diagonal=True).covariance_MBKK[0], expected.diagonal(dim1=1, dim2=2), rtol=1e-9
    )
    drawn = linear.predictive(inputs).outputs_SBK
    spread = drawn.var(0) / expected.diagonal(dim1=1, dim2=2)
    assert (spread - 1).abs().max() < 5 * math.sqrt(2 / 4000)
    assert torch.corrcoef(drawn[:, 0].T).triu(1).abs().max() < 5 / math.sqrt(4000)

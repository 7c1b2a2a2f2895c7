"""Layers that take their weights as distributions: unbiased, exact where they say so, and less noisy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.laws.cases import Tied, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.density.layers import passes
from torchbayes.density.layers.passes import by_layers
from torchbayes.density.layers.randomness import Randomness
from torchbayes.density.layers.uses import how
from torchbayes.model.batches.batch import Batch

ROWS = 6


def small(layers: nn.Module) -> nn.Module:
    return layers.double()


MLP = lambda: small(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))  # noqa: E731
CNN = lambda: small(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)))  # noqa: E731


class Attention(nn.Module):
    """Tokens, attention by linear layers, a norm, a head on the average over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(4, 12)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = self.projection(inputs).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.head(self.norm(inputs + mixed).mean(1))


class OneFunction(nn.Module):
    """The same by `nn.MultiheadAttention`, whose weights go to one function; attention has the settings it is given."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.first = settings.get("batch_first", True)
        self.attend = nn.MultiheadAttention(4, 2, **{"batch_first": True, **settings})
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        given = inputs if self.first else inputs.transpose(0, 1)
        mixed, _ = self.attend(given, given, given, key_padding_mask=padding(inputs))
        mixed = mixed if self.first else mixed.transpose(0, 1)
        return self.head(self.norm(inputs + mixed).mean(1))


class ByHand(nn.Module):
    """`OneFunction`, by linear layers and a product."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.projection, self.out = nn.Linear(4, 12, bias=bias), nn.Linear(4, 4, bias=bias)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        parts = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in self.projection(inputs).chunk(3, dim=-1))
        mask = ~padding(inputs)[:, None, None]
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2).flatten(2)
        return self.head(self.norm(inputs + self.out(mixed)).mean(1))


class Between(nn.Module):
    """Attention of tokens to their averages."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        means = inputs.cumsum(1) / 5
        return self.head(self.attend(inputs, means, means)[0].mean(1))


def padding(inputs: Tensor) -> Tensor:
    """Which positions are none: the last, of every second example."""
    mask = torch.zeros(inputs.shape[:2], dtype=torch.bool)
    mask[::2, -1] = True
    return mask


SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (MLP, (3,)),
    "cnn": (CNN, (1, 3, 3)),
    "attention": (lambda: small(Attention()), (5, 4)),
    "one function": (lambda: small(OneFunction()), (5, 4)),
}


def prepared(name: str, plan: Any = "auto") -> tuple[tb.Model, LogDensity, Batch, Tensor, Tensor]:
    """Model, density, one minibatch, means and scales."""
    make, shape = SHAPES[name]
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = tb.Model(make(), tb.likelihoods.Categorical(), tb.priors.Normal())
    density = LogDensity(model, 40, None, training=True, plan=plan)
    inputs = normal(1, ROWS, *shape, seed=5)
    batch = Batch(inputs, (inputs.flatten(2).sum(-1) > 0).long())
    mean_MD = model.given_weights().unsqueeze(0)
    return model, density, batch, mean_MD, 0.2 * normal(1, model.layout.size, seed=6).exp()


def drawn(name: str, estimator: Any, seeds: int) -> Tensor:
    """Gradients by means and scales for many seeds, (S, 2, D)."""
    model, density, batch, mean_MD, scale_MD = prepared(name, "vmap" if estimator == "weights" else "auto")
    if estimator == "weights":  # of all seeds together
        noise = normal(seeds, model.layout.size, seed=10_000)
        gradient = density.nll(mean_MD + scale_MD * noise, batch.map(lambda t: t.expand(seeds, *t.shape[1:]))).gradient
        return torch.stack([gradient, gradient * noise], 1)
    about: dict[str, Any] = {"batch": batch, "estimator": estimator, "buffers": {}, "seeds": [7]}
    each = (by_layers(density, mean_MD, scale_MD, **about, step=seed) for seed in range(seeds))
    return torch.stack([torch.cat([parts.mean_MD, parts.scale_MD]) for parts in each])


def test_local_noise_of_a_linear_layer_has_the_exact_law() -> None:
    """For one layer and squared loss, E loss and its gradients are known: Σ ((m − y)² + v)/2."""
    net = nn.Linear(3, 1).double()
    model = tb.Model(net, tb.likelihoods.Gaussian(1.0), tb.priors.Normal())
    density = LogDensity(model, ROWS, None, training=True)
    inputs, targets = normal(1, ROWS, 3, seed=1), normal(1, ROWS, 1, seed=2)
    mean_MD, scale_MD = model.given_weights().unsqueeze(0), torch.full((1, 4), 0.3, dtype=torch.float64)
    batch = Batch(inputs, targets)
    actual = [
        by_layers(density, mean_MD, scale_MD, batch=batch, estimator="local", buffers={}, seeds=[7], step=seed)
        for seed in range(1500)
    ]
    rows = torch.cat([inputs[0], torch.ones(ROWS, 1, dtype=torch.float64)], dim=1)
    residual = rows @ mean_MD[0] - targets[0, :, 0]
    exact = torch.stack([rows.T @ residual / ROWS, rows.square().T.sum(1) * 0.3 / ROWS])
    seen = torch.stack([torch.stack([part.mean_MD[0], part.scale_MD[0]]) for part in actual])
    error = seen.std(0) / len(seen) ** 0.5
    assert ((seen.mean(0) - exact).abs() < 4.5 * error).all()


ESTIMATORS: dict[str, tuple[str, ...]] = {
    "mlp": ("flipout", "local"),  # by "auto" it has local noise
    "cnn": ("auto", "flipout"),
    "attention": ("auto",),  # flips the projection; the head has one position, as the layers above
    "one function": ("auto", "flipout"),
}


# by one function it is that of linear layers: `test_attention_of_one_function_has_the_noise_of_its_linear_layers`
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.study] * (name == "one function")) for name in SHAPES]
)
def test_estimators_are_unbiased(name: str) -> None:
    """Flipout on every network, local noise where a layer has one position: the mean gradient is that of weights."""
    reference = drawn(name, "weights", 400)
    for estimator in ESTIMATORS[name]:
        actual = drawn(name, estimator, 60)
        error = (reference.var(0) / len(reference) + actual.var(0) / len(actual)).sqrt()
        z = (actual.mean(0) - reference.mean(0)) / error.clamp_min(1e-12)
        assert float(z.abs().max()) < 5, estimator
        assert float(z.square().mean()) < 1.6, estimator


def test_noise_of_each_example_lowers_the_variance() -> None:
    """By scales: local < flipout < weights."""
    variance = {name: float(drawn("mlp", name, 80)[:, 1].var(0).mean()) for name in ("local", "flipout", "weights")}
    assert variance["local"] < 0.8 * variance["flipout"]
    assert variance["flipout"] < variance["weights"]


def test_no_two_random_numbers_of_passes_are_one() -> None:
    """Of members, steps, calls, weight and bias, and of the signs of inputs and outputs; again they are the same."""
    like = torch.empty(8, 16, dtype=torch.float64)

    def drawn() -> tuple[list[Tensor], list[Tensor]]:
        each = [Randomness(seed, step) for seed in (3, 4) for step in (0, 1)]
        normals = [random.drawn(number, like) for random in each for number in (0, 1)]
        for random in each:
            for call in (1, 2):
                normals += [random.change(call, like, bias=bias) for bias in (False, True)]
                normals.append(random.noise_of(call, like, like.shape))
        calls = [(random, call, outputs) for random in each for call in (1, 2) for outputs in (False, True)]
        return normals, [random.signs(call, like.shape, like, outputs=outputs) for random, call, outputs in calls]

    for actual, again in zip(drawn(), drawn(), strict=True):
        flat = torch.stack(actual).flatten(1)
        assert torch.equal(flat, torch.stack(again).flatten(1))
        assert len(flat.unique(dim=0)) == len(flat)
        assert float(torch.corrcoef(flat).fill_diagonal_(0).abs().max()) < 0.5  # six standard errors


def test_positions_that_share_weights_keep_their_covariance_under_flipout() -> None:
    """The average over a 6 x 6 map varies as it should by flipout, and too little by local noise."""
    channels, passes = 50, 30  # channels have weights of their own
    layer = nn.Conv2d(1, channels, 3, bias=False).double()
    net = nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = tb.Model(net, tb.likelihoods.Gaussian(1.0), tb.priors.Normal())
    density = LogDensity(model, 1, None, training=True)
    image, scale = normal(1, 1, 1, 8, 8, seed=3), 0.3
    patches = F.unfold(image[0], 3)[0].mean(1)
    exact = float((patches.square() * scale**2).sum())
    target = net(image[0]).detach().unsqueeze(0)
    scale_MD = torch.full((1, 9 * channels), scale, dtype=torch.float64)
    about: dict[str, Any] = {"batch": Batch(image, target), "buffers": {}}
    seen = {}
    for estimator in ("flipout", "local"):
        loss = [
            float(
                by_layers(
                    density, model.given_weights()[None], scale_MD, estimator=estimator, seeds=[7], step=s, **about
                ).nll_M
            )
            for s in range(passes)
        ]
        seen[estimator] = 2 * sum(loss) / len(loss) / channels - torch.log(torch.tensor(2 * torch.pi)).item()
    assert seen["flipout"] == pytest.approx(exact, rel=0.1)
    assert seen["local"] < 0.7 * exact


def test_what_each_parameter_gets_can_be_read() -> None:
    _, density, batch, *_ = prepared("attention")
    actual = how(density, batch.map(lambda t: t[0]), "auto")
    assert actual["projection.weight"] == actual["projection.bias"] == "flipout"
    assert actual["head.weight"] == actual["head.bias"] == "local"
    assert actual["norm.weight"] == "drawn"


@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize("settings", [{}, {"batch_first": False}, {"bias": False}, {"vdim": 4}], ids=str)
def test_attention_of_one_function_has_the_noise_of_its_linear_layers(settings: dict[str, Any], estimator: Any) -> None:
    """Two networks of the same weights in the same order, one by `nn.MultiheadAttention`, have the same gradients."""
    actual = []
    for net in (OneFunction(**settings), ByHand(bias=settings.get("bias", True))):
        model = tb.Model(small(net), tb.likelihoods.Categorical(), tb.priors.Normal())
        density = LogDensity(model, 40, None, training=True)
        inputs = normal(1, ROWS, 5, 4, seed=5)
        batch = Batch(inputs, (inputs.flatten(2).sum(-1) > 0).long())
        size = model.layout.size
        mean_MD, scale_MD = normal(1, size, seed=3), 0.2 * normal(1, size, seed=6).exp()
        about: dict[str, Any] = {"batch": batch, "estimator": estimator, "buffers": {}, "seeds": [3], "step": 2}
        hows = how(density, batch.map(lambda t: t[0]), estimator)
        assert {name for name, value in hows.items() if value == "drawn"} == {"norm.weight", "norm.bias"}
        actual.append(by_layers(density, mean_MD, scale_MD, **about))
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Careful(nn.Module):
    """Asks a weight for its dtype, device and shape before it is used, as networks of mixed precision do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.first.weight
        assert weight.shape[1] == inputs.shape[-1]
        assert weight.dim() == 2
        return self.first(inputs.to(weight.device, weight.dtype))


def test_a_layer_whose_weight_is_only_described_elsewhere_takes_it_as_a_distribution() -> None:
    model = tb.Model(small(Careful()), tb.likelihoods.Categorical(), tb.priors.Normal())
    density = LogDensity(model, 10, None, training=True)
    batch = Batch(normal(1, ROWS, 3), torch.zeros(1, ROWS).long())
    assert set(how(density, batch.map(lambda t: t[0]), "auto").values()) == {"local"}
    weights = model.given_weights()[None]
    about: dict[str, Any] = {"batch": batch, "estimator": "auto", "buffers": {}, "seeds": [1], "step": 0}
    assert by_layers(density, weights, torch.ones_like(weights), **about).nll_M.isfinite()


def test_attention_between_two_sequences_is_drawn() -> None:
    model = tb.Model(small(Between()), tb.likelihoods.Categorical(), tb.priors.Normal())
    density = LogDensity(model, 10, None, training=True)
    actual = how(density, Batch(normal(ROWS, 5, 4), torch.zeros(ROWS).long()), "auto")
    assert {name for name, value in actual.items() if value != "drawn"} == {"head.weight", "head.bias"}


def test_tied_weights_are_drawn_once() -> None:
    model = tb.Model(Tied().double(), tb.likelihoods.Categorical(), tb.priors.Normal())
    density = LogDensity(model, 10, None, training=True)
    actual = how(density, Batch(normal(5, 4), torch.zeros(5).long()), "local")
    assert {name: value for name, value in actual.items() if value == "drawn"}.keys() >= {"first.weight"}
    assert actual["head.weight"] == "local"


def test_zero_inputs_have_finite_gradients() -> None:
    """√v has no derivative at v = 0."""
    net = nn.Linear(3, 2, bias=False).double()
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal())
    density = LogDensity(model, 4, None, training=True)
    batch = Batch(torch.zeros(1, 4, 3, dtype=torch.float64), torch.zeros(1, 4).long())
    ones = torch.ones(1, 6, dtype=torch.float64)
    parts = by_layers(density, ones, ones, batch=batch, estimator="local", buffers={}, seeds=[0], step=0)
    assert all(part.isfinite().all() for part in parts)


class Fickle(nn.Module):
    """Uses its weight as a layer's, but for large inputs in another way."""

    def __init__(self, otherwise: str) -> None:
        super().__init__()
        self.layer, self.norm, self.otherwise = nn.Linear(3, 3), nn.BatchNorm1d(3), otherwise

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.norm(inputs)
        assert self.norm.running_mean is not None
        if float(self.norm.running_mean.max()) < 10:
            return self.layer(inputs)
        if self.otherwise == "matrix":
            return inputs @ self.layer.weight.T
        if self.otherwise == "in a list":
            return F.linear(inputs, torch.cat([self.layer.weight[:1], self.layer.weight[1:]]))
        if self.otherwise == "twice":
            return self.layer(torch.tanh(self.layer(inputs)))
        inputs = inputs.requires_grad_()
        (slope,) = torch.autograd.grad(torch.tanh(self.layer(inputs)).sum(), inputs, create_graph=True)
        return slope


@pytest.mark.parametrize("otherwise", ["matrix", "in a list", "twice", "derivative"])
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_where_a_network_uses_a_weight_otherwise_the_pass_draws_all(otherwise: str, estimator: Any) -> None:
    net = Fickle(otherwise).double()
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal())
    density = LogDensity(model, 4, None, training=True)
    mean_MD, labels = model.given_weights().unsqueeze(0), torch.zeros(1, 4).long()
    mean_MD = torch.cat([mean_MD, -mean_MD])
    scale_MD, buffers_M = mean_MD.abs(), {k: b.expand(2, *b.shape).clone() for k, b in model.network.buffers.items()}
    about: dict[str, Any] = {"estimator": estimator, "buffers": buffers_M, "seeds": [5, 6]}
    inputs = normal(4, 3)
    rows_M = [Batch(torch.stack([shift + inputs] * 2), labels.expand(2, 4)) for shift in (0.0, 1000.0)]
    by_layers(density, mean_MD, scale_MD, batch=rows_M[0], step=0, **about)
    before_M = {name: buffer.clone() for name, buffer in buffers_M.items()}
    actual = by_layers(density, mean_MD, scale_MD, batch=rows_M[1], step=1, **about)

    for m, seed in enumerate((5, 6)):
        mean_D, scale_D = (part_MD[m].clone().requires_grad_() for part_MD in (mean_MD, scale_MD))
        random = Randomness(seed, 1)
        means, scales = model.layout.split(mean_D), model.layout.split(scale_D)
        held = {k: means[k] + scales[k] * random.drawn(n, means[k]) for n, k in enumerate(means)}
        kept = {name: buffer[m] for name, buffer in before_M.items()}
        with model.network.training():
            nll = -model.log_likelihood(held, Batch(1000 + inputs, labels[0]), kept).mean()
        wanted = torch.autograd.grad(nll, (mean_D, scale_D))
        torch.testing.assert_close(actual.nll_M[m], nll.detach())
        torch.testing.assert_close((actual.mean_MD[m], actual.scale_MD[m]), wanted)
        for name, buffer in kept.items():
            torch.testing.assert_close(buffers_M[name][m], buffer)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # a few steps move no scale
def test_layers_without_a_bias_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.LayerNorm(4)).double()
    model, passed = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal()), []
    original = passes._log_prob
    monkeypatch.setattr(passes, "_log_prob", lambda *a, **k: (passed.append(a[2].pass_.hows), original(*a, **k))[1])
    method = tb.VI(epochs=1, batch_size=10, kl_weight=1.0)
    tb.fit(model, (normal(20, 3), torch.arange(20) % 4), method, callbacks=())
    assert len(passed) == 2
    assert {name: value for name, value in passed[0].items() if "weight" in name} == {
        "0.weight": "local",
        "2.weight": "local",
        "3.weight": "drawn",
    }


def test_vi_draws_weights_by_itself_where_no_layer_takes_them() -> None:
    rows, about = (normal(20, 3), torch.arange(20) % 2), tb.VI(epochs=2, batch_size=10, kl_weight=1.0)
    linear = nn.Linear(3, 2).double()
    norm = nn.Sequential(nn.LayerNorm(3), nn.Softplus()).double()
    cases: list[tuple[nn.Module, dict[str, Any], bool]] = [
        (linear, {}, False),
        (linear, {"antithetic": True, "draws": 2}, True),
        (linear, {"structure": "dense"}, True),
        (linear, {"structure": "radial"}, True),
        (norm, {}, True),
    ]
    for net, settings, drawn in cases:
        model, method = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal()), replace(about, **settings)
        actual = [
            tb.fit(model, rows, each, seed=3, callbacks=()).tensors()["mean_MD"]
            for each in (method, replace(method, estimator="weights"))
        ]
        assert torch.equal(*actual) is drawn

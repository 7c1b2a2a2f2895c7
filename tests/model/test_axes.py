"""What the axes of a parameter are to its layer, against derivatives of the layer itself; priors that need to know."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats as _stats
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.model import priors
from torchbayes.model.priors.axes import axes_of

stats: Any = _stats  # whose types are of single numbers
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(3, 4, bias=False), (3,)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, bias=False), (3, 5)),
    "conv2d": (lambda: nn.Conv2d(2, 3, (2, 3), stride=2, dilation=2, bias=False), (2, 6, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, bias=False), (2, 3, 3, 3)),
    "in groups": (lambda: nn.Conv2d(4, 6, 2, groups=2, bias=False), (4, 3, 3)),
    "depthwise": (lambda: nn.Conv1d(3, 6, 2, groups=3, bias=False), (3, 4)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 2, 3, padding=2, bias=False), (4, 6)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(2, 5, 2, stride=2, bias=False), (2, 3, 3)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(3, 2, (2, 3, 1), padding=(1, 2, 0), bias=False), (3, 4, 4, 2)),
    "transposed with strides": (lambda: nn.ConvTranspose1d(3, 2, 3, 2, 2, output_padding=1, bias=False), (3, 7)),
    "transposed in groups": (lambda: nn.ConvTranspose2d(4, 6, 2, groups=2, padding=1, bias=False), (4, 4, 4)),
}
each = pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS.keys())


def slopes(layer: nn.Module, inputs: Tensor) -> Tensor:
    """∂ outputs / ∂ weight, (*outputs, weights), of one row."""
    weight: Any = layer.weight

    def run(own: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": own}, (inputs,))[0]

    made: Any = torch.func.jacrev(run)(weight.detach())
    return made.flatten(made.ndim - weight.ndim)


def channels(slope: Tensor) -> Tensor:
    """Which output channels a weight reaches, bool (channels, weights)."""
    return (slope != 0).flatten(1, -2).any(1) if slope.ndim > 2 else slope != 0


def model_of(network: nn.Module, prior: Any) -> tb.Model:
    return tb.Model(network.double(), tb.likelihoods.Gaussian(1.0), prior)


@each
def test_the_variance_of_outputs_is_the_squared_gain(layer: Any, shape: tuple[int, ...]) -> None:
    """Var f = Σ_i (∂f/∂w_i)² s_i² of inputs of 1, on average over the outputs, is gain² at any width."""
    model = model_of(layer(), priors.FanInNormal(gain=1.5))
    slope = slopes(layer().double(), torch.ones(1, *shape, dtype=torch.float64))
    assert_close((slope.square() @ model.prior.stds().square()).mean(), 1.5**2)


@each
def test_groups_of_weights_are_those_of_output_and_of_input_channels(layer: Any, shape: tuple[int, ...]) -> None:
    """Weights share a variance by rows where they reach one output channel, by columns where one input reaches them."""
    made = layer().double()
    reached = channels(slopes(made, torch.ones(1, *shape, dtype=torch.float64)))
    seen = torch.stack([
        channels(slopes(made, torch.zeros(1, *shape).double().index_fill_(1, torch.tensor([c]), 1.0))).any(0)
        for c in range(shape[0])
    ])
    both: list[tuple[Any, Tensor]] = [("rows", reached), ("columns", seen)]
    for groups, oracle in both:
        assert (oracle.sum(0) == 1).all()
        of_weight = oracle.int().argmax(0)
        weights = normal(made.weight.numel(), seed=3).requires_grad_()
        model = model_of(layer(), priors.Hierarchical(0.7, 3.0, groups))
        expected = 0.0
        for unit in range(len(oracle)):
            own = weights.detach()[of_weight == unit].numpy()
            expected += stats.multivariate_t(np.zeros(len(own)), 0.49 * np.eye(len(own)), 3.0).logpdf(own)
        assert_close(model.log_prior(weights), expected)
        (slope,) = torch.autograd.grad(model.log_prior(weights), weights)
        gradient = torch.zeros_like(weights)
        model.prior.add_gradient_(gradient, weights.detach(), 1.0)
        assert_close(gradient, slope)
        scaled: Any = priors.with_scales(layer().double(), priors.Hierarchical(0.7, None, groups)).network
        with torch.no_grad():
            scaled.standard["weight"].fill_(1.0)
            scaled.log_scales["weight"].copy_(torch.arange(len(oracle)).double())
        assert_close(scaled.scaled()["weight"].flatten().log(), of_weight.double())


def test_an_embedding_looks_up_one_entry() -> None:
    for layer in (nn.Embedding(5, 3), nn.EmbeddingBag(5, 3)):
        assert set(model_of(layer, priors.FanInNormal(gain=1.5)).prior.stds().tolist()) == {1.5}
        axes = axes_of(layer, ["weight"])["weight"]
        assert priors.Hierarchical(groups="columns").grid(axes) == (1, 1, 5, 3)
        assert priors.Hierarchical(groups="rows").grid(axes) == (1, 5, 3, 1)


def test_the_products_of_a_bilinear_layer_and_the_gates_of_recurrent_ones_are_summed_over_their_inputs() -> None:
    stds = lambda net: model_of(net, priors.FanInNormal(gain=3.0, bias_scale=0.5)).prior  # noqa: E731
    bilinear = nn.Bilinear(2, 3, 4, bias=False)
    assert set(stds(bilinear).stds().tolist()) == {3.0 / 6**0.5}
    for kind, cell in itertools.product((nn.RNN, nn.LSTM, nn.GRU), (False, True)):
        net = {nn.RNN: nn.RNNCell, nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell}[kind](4, 9) if cell else kind(4, 9)
        prior = stds(net)
        for name, where in prior.layout.slices.items():
            wanted = 0.5 if "bias" in name else 3.0 / (3.0 if "hh" in name else 2.0)
            assert set(prior.stds()[where].tolist()) == {wanted}, name


@pytest.mark.parametrize(
    "layer",
    [
        nn.LayerNorm([6, 4]),
        nn.RMSNorm([6, 4]),
        nn.GroupNorm(2, 6),
        nn.BatchNorm2d(6),
        nn.InstanceNorm1d(6, affine=True),
    ],
    ids=str,
)
def test_weights_of_norms_are_no_matrices(layer: nn.Module) -> None:
    """They multiply, element by element: their scale is that of biases, and they are one group."""
    model = model_of(layer, priors.FanInNormal(gain=3.0, bias_scale=0.5))
    assert set(model.prior.stds().tolist()) == {0.5}
    size = model.layout.sizes[0]
    for groups in ("rows", "columns"):
        weights = normal(model.layout.size, seed=3)
        hierarchical = model_of(layer, {"weight": priors.Hierarchical(0.7, 3.0, groups), "*": priors.Flat()})
        law = stats.multivariate_t(np.zeros(size), 0.49 * np.eye(size), 3.0)
        assert_close(hierarchical.log_prior(weights), law.logpdf(weights[:size].numpy()))


def test_attention_has_matrices_and_two_biases_of_three_axes() -> None:
    net = nn.MultiheadAttention(4, 2, add_bias_kv=True, kdim=9, vdim=16)
    prior = model_of(net, priors.FanInNormal(gain=6.0, bias_scale=0.5)).prior
    actual = {name: set(prior.stds()[where].tolist()) for name, where in prior.layout.slices.items()}
    weights = {"q_proj_weight": {3.0}, "k_proj_weight": {2.0}, "v_proj_weight": {1.5}, "out_proj.weight": {3.0}}
    assert actual == {**{name: {0.5} for name in actual}, **weights}
    assert model_of(nn.MultiheadAttention(4, 2), priors.FanInNormal(gain=6.0)).prior.stds()[0] == 3.0


class Own(nn.Module):
    """A layer with x W in the place of x Wᵀ, and a linear one that shares its weight with an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.gain = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(4))
        self.table, self.tied = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        self.tied.weight = self.table.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.tied((inputs @ self.matrix * self.gain)[:, :3])


@pytest.mark.parametrize(
    "prior", [priors.FanInNormal(), priors.Hierarchical(groups="rows"), priors.Hierarchical(groups="columns")], ids=str
)
def test_parameters_whose_axes_are_not_known_need_a_prior_that_does_not_ask(prior: Any) -> None:
    with pytest.raises(ValueError, match=r"`prior` of `matrix`: .*shape \(3, 4\).* Own uses it in a way of its own"):
        model_of(Own(), prior)
    with pytest.raises(ValueError, match=r"`prior` of `table.weight`: .* layers share it that use it in different"):
        model_of(Own(), {"matrix": priors.Normal(), "*": prior})
    named = {"matrix": priors.Normal(), "table.*": priors.Normal(), "*": prior}
    assert model_of(Own(), named).log_prior(normal(28)).isfinite()
    if isinstance(prior, priors.Hierarchical):
        with pytest.raises(ValueError, match=r"the `rules`: it is not known"):
            priors.with_scales(Own(), {"matrix": prior, "*": priors.Normal()})
    for groups in ("layer", "weights"):
        assert model_of(Own(), priors.Hierarchical(groups=groups)).log_prior(normal(28)).isfinite()


def test_partly_random_weights_have_the_fan_in_of_all() -> None:
    layer = nn.ConvTranspose1d(4, 2, 3, bias=False).double()
    mask = {"weight": normal(4, 2, 3) < 0.5}
    model = tb.Model(layer, tb.likelihoods.Gaussian(1.0), priors.FanInNormal(gain=1.0), random=mask)
    assert_close(model.prior.stds(), torch.full((int(mask["weight"].sum()),), 12**-0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(9, 2),
        nn.Linear(3, 3),
        nn.Conv2d(9, 2, 1),
        nn.Conv2d(2, 2, (1, 9)),
        nn.Conv1d(2, 2, 9),
        nn.Bilinear(3, 3, 2),
    ],
    ids=str,
)
def test_a_prior_of_filters_is_for_filters_of_its_lengths(layer: nn.Module) -> None:
    """Nine inputs, nine channels or a row of nine positions are no filter of 3 x 3."""
    rules = {"weight": priors.Correlated.filters(3), "*": priors.Normal()}
    with pytest.raises(ValueError, match="positions of filters of 3 x 3"):
        model_of(layer, rules)
    for fits in (nn.Conv2d(2, 2, 3), nn.ConvTranspose2d(2, 2, 3), nn.Conv2d(4, 4, 3, groups=2)):
        assert_close(model_of(fits, rules).prior.stds(), torch.ones(sum(p.numel() for p in fits.parameters())))

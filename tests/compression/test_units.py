"""Networks without units that have no effect: the same outputs, whatever the layers are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.compression.surgery import PickedLinear
from torchbayes.compression.units import Smaller, outputs_of, smaller


def made_smaller(net: nn.Module, x: Tensor) -> Smaller:
    """Taken out units of a network, with a model whose network does not matter."""
    kind = tb.likelihoods.Custom(lambda f: torch.distributions.Normal(f, 1.0))
    net = net.double().eval()
    return smaller(net, tb.Model(net, kind, tb.priors.Flat()), (x, x))


def sizes(net: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in net.named_parameters() if name.endswith("weight")}


def zeroed(net: nn.Sequential, **rows: Any) -> nn.Sequential:
    """Weights `layer_axis` = positions, set to zero."""
    with torch.no_grad():
        for key, index in rows.items():
            layer, axis = key.removeprefix("l").split("_")
            net[int(layer)].weight.index_fill_(int(axis), torch.tensor(index), 0.0)  # type: ignore[operator, union-attr]
    return net


def test_units_that_nothing_takes_are_gone_and_so_is_what_they_take_alone() -> None:
    """Unit 1 of the second layer is not taken; of the first layer unit 3 is taken by it alone."""
    net = zeroed(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)), l4_1=[1])
    with torch.no_grad():
        net[2].weight[[0, 2], 3] = 0.0  # type: ignore[index]
    x = normal(7, 4)
    actual = made_smaller(net, x)
    assert sizes(actual.network) == {"0.weight": (4, 4), "2.weight": (2, 4), "4.weight": (2, 2)}
    assert_close(actual.network(x), net(x))
    assert actual.difference < 1e-14
    assert actual.stayed == ()
    linear = actual.network.get_submodule("2")
    assert isinstance(linear, nn.Linear)
    assert (linear.in_features, linear.out_features) == (4, 2)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.Softplus()])
def test_units_without_weights_are_constants_that_biases_take(activation: nn.Module) -> None:
    net = zeroed(nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 2)), l0_0=[0, 2])
    x = normal(7, 4)
    actual = made_smaller(net, x)
    assert sizes(actual.network) == {"0.weight": (3, 4), "2.weight": (2, 3)}
    assert_close(actual.network(x), net(x))


def test_inputs_without_weights_are_not_taken() -> None:
    net = zeroed(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), l1_1=[0, 3, 4])
    x = normal(7, 2, 3)
    actual = made_smaller(net, x)
    layer = actual.network.get_submodule("1")
    assert isinstance(layer, PickedLinear)
    assert layer.index.tolist() == [1, 2, 5]
    assert_close(actual.network(x), net(x))


def conv_net(padding: int = 0, pool: nn.Module | None = None, sides: int = 8) -> nn.Sequential:
    left = (sides if padding else sides - 4) // 2
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=padding), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=padding), nn.ReLU(),
        pool or nn.MaxPool2d(2), nn.Flatten(), nn.Linear(5 * left * left, 6), nn.ReLU(), nn.Linear(6, 2),
    )  # fmt: skip


def test_filters_are_gone_with_all_their_places() -> None:
    net = zeroed(conv_net(), l0_0=[1], l2_0=[0, 4], l8_1=[5])
    x = normal(7, 1, 8, 8)
    actual = made_smaller(net, x)
    assert sizes(actual.network) == {
        "0.weight": (3, 1, 3, 3),
        "2.weight": (3, 3, 3, 3),
        "6.weight": (5, 12),
        "8.weight": (2, 5),
    }
    assert_close(actual.network(x), net(x))


def test_positions_of_a_channel_that_do_not_count_are_not_taken() -> None:
    net = conv_net()
    with torch.no_grad():
        net[6].weight[:, :3] = 0.0  # type: ignore[index]
    x = normal(7, 1, 8, 8)
    actual = made_smaller(net, x)
    assert sizes(actual.network)["6.weight"] == (6, 17)
    assert_close(actual.network(x), net(x))


def constants(net: nn.Module, layer: int, units: list[int], values: list[float]) -> nn.Module:
    """Set the weights of units of a layer to zero, and their biases to values."""
    with torch.no_grad():
        net[layer].weight[units] = 0.0  # type: ignore[index]
        net[layer].bias[units] = torch.tensor(values, dtype=net[layer].bias.dtype)  # type: ignore[index]
    return net


@pytest.mark.parametrize(
    ("taking", "left"),
    [
        ({"padding": 1}, 4),
        ({"padding": "same"}, 4),
        ({"padding": (0, 1)}, 4),
        ({"padding": 1, "bias": False}, 4),
        ({"bias": False}, 4),
        ({}, 3),
        ({"padding": 1, "padding_mode": "reflect"}, 3),
        ({"padding": 1, "padding_mode": "replicate"}, 3),
        ({"padding": 1, "padding_mode": "circular"}, 3),
        ({"stride": 2, "dilation": 2}, 3),
    ],
)
def test_constants_in_front_of_a_convolution_are_exact_at_its_border(taking: dict[str, Any], left: int) -> None:
    """Where the border is padded by zeros, or there is no bias, one constant stays and stands for the others."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 3, **taking), nn.Tanh(), nn.AdaptiveAvgPool2d(3),
        nn.Flatten(), nn.Linear(27, 2),
    ).double()  # fmt: skip
    x = normal(40, 1, 8, 8)
    actual = made_smaller(constants(net, 0, [0, 2, 5], [0.7, -1.0, 0.4]), x[:7])
    assert sizes(actual.network)["0.weight"][0] == left
    assert actual.difference < 1e-14
    assert_close(actual.network(x), net(x), rtol=1e-12, atol=1e-14)
    silent = made_smaller(constants(net, 0, [0, 2, 5], [-0.7, -1.0, -0.4]), x[:7])  # zeros may go behind any border
    assert sizes(silent.network)["0.weight"][0] == 3
    assert_close(silent.network(x), net(x), rtol=1e-12, atol=1e-14)


def test_a_linear_layer_without_a_bias_takes_one_constant() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 2, bias=False)).double()
    actual = made_smaller(constants(net, 0, [0, 2, 3], [0.7, 0.0, -2.0]), normal(7, 4))
    assert sizes(actual.network) == {"0.weight": (3, 4), "2.weight": (2, 3)}
    assert_close(actual.network(normal(40, 4, seed=1)), net(normal(40, 4, seed=1)), rtol=1e-12, atol=1e-14)


class Between(nn.Module):
    """Two layers, and a function of the units between them and of their inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.one, self.gate, self.function = nn.Linear(4, 6), nn.Linear(4, 6), function
        self.two = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.function(self.one(x), self.gate(x), x))


def _hard(h: Tensor, g: Tensor, x: Tensor) -> Tensor:
    return h * (x[:, :1] > 1.5)  # on none of the few rows that are looked at


NOT_CONSTANT = {
    "normalize": lambda h, g, x: nn.functional.normalize(h, dim=-1),
    "layer norm": lambda h, g, x: nn.functional.layer_norm(h, (6,)),
    "rms norm": lambda h, g, x: nn.functional.rms_norm(h, (6,)),
    "group norm": lambda h, g, x: nn.functional.group_norm(h, 2),
    "softmax": lambda h, g, x: h.softmax(-1),
    "gate": lambda h, g, x: h * g.sigmoid(),
    "gate of its own": lambda h, g, x: h * h.mean(-1, keepdim=True),
    "gate of inputs": lambda h, g, x: h * x.sum(-1, keepdim=True),
    "hard gate": _hard,
    "largest": lambda h, g, x: h - h.amax(-1, keepdim=True),
    "residual": lambda h, g, x: h + g,
    "skip": lambda h, g, x: h + x.repeat(1, 2)[:, :6],
    "attention": lambda h, g, x: nn.functional.scaled_dot_product_attention(
        h[:, None, :], torch.stack([h, g], 1), torch.stack([h, g], 1)
    )[:, 0],
    "distance": lambda h, g, x: (h - g).square(),
    "neighbours": lambda h, g, x: h.cumsum(-1),
}


@pytest.mark.parametrize("name", NOT_CONSTANT)
def test_units_without_weights_stay_where_they_are_not_constant(name: str) -> None:
    torch.manual_seed(2)
    net = Between(NOT_CONSTANT[name]).double()
    with torch.no_grad():
        net.one.weight[[0, 3]] = 0.0
        net.one.bias[[0, 3]] = torch.tensor([0.9, -0.6]).double()
    few = normal(200, 4)
    few = few[few[:, 0] < 1.0][:9]
    actual = made_smaller(net, few)
    assert sizes(actual.network)["one.weight"] == (6, 4)
    many = 3 * normal(300, 4, seed=5)
    assert_close(actual.network(many), net(many), rtol=1e-12, atol=1e-13)
    assert actual.difference < 1e-14


@pytest.mark.parametrize("name", NOT_CONSTANT)
def test_units_that_nothing_takes_stay_where_others_feel_them(name: str) -> None:
    torch.manual_seed(3)
    net = Between(NOT_CONSTANT[name]).double()
    with torch.no_grad():
        net.two.weight[:, 1] = 0.0
    actual = made_smaller(net, normal(50, 4))
    many = 3 * normal(300, 4, seed=5)
    assert_close(actual.network(many), net(many), rtol=1e-12, atol=1e-13)


def test_one_group_that_stays_does_not_keep_another() -> None:
    net = nn.Sequential(
        nn.Linear(4, 5), nn.LayerNorm(5, elementwise_affine=False), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)
    ).double()
    x = normal(60, 4)
    actual = made_smaller(constants(constants(net, 0, [1], [0.5]), 2, [0, 4], [0.5, -0.5]), x[:9])  # type: ignore[arg-type]
    assert sizes(actual.network) == {"0.weight": (5, 4), "2.weight": (4, 5), "4.weight": (2, 4)}
    assert_close(actual.network(x), net(x), rtol=1e-12, atol=1e-13)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.stem(x)).relu()
        h = h + self.two(self.one(h).relu())
        return self.head(h.mean((2, 3)))


def test_units_of_a_residual_stream_need_all_of_their_sources() -> None:
    net = Residual().double().eval()
    assert net.norm.running_mean is not None
    net.norm.running_mean.copy_(normal(4))
    with torch.no_grad():
        net.one.weight[[0, 1]] = 0.0
        assert net.one.bias is not None
        net.one.bias[[0, 1]] = -1.0
        net.two.weight[2] = 0.0  # but the stem gives channel 2 too
        net.head.weight[:, 3] = 0.0  # but the block takes channel 3 too
    x = normal(5, 1, 6, 6)
    actual = made_smaller(net, x)
    assert sizes(actual.network) == {
        "stem.weight": (4, 1, 3, 3),
        "norm.weight": (4,),
        "one.weight": (2, 4, 3, 3),
        "two.weight": (4, 2, 3, 3),
        "head.weight": (3, 3),  # takes three of the four channels
    }
    assert_close(actual.network(x), net(x))
    with torch.no_grad():
        net.one.weight[:, 3] = 0.0
    actual = made_smaller(net, x)
    assert sizes(actual.network)["norm.weight"] == (3,)
    assert actual.network.get_submodule("norm").num_features == 3
    assert_close(actual.network(x), net(x))


def test_units_stay_where_the_network_needs_them() -> None:
    x = normal(5, 4)
    normed = zeroed(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2)), l3_1=[0])
    actual = made_smaller(normed, x)
    assert sizes(actual.network)["0.weight"] == (5, 4)
    assert "belongs to a LayerNorm, which is not cut" in actual.stayed[0]
    assert_close(actual.network(x), normed(x))

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x).view(-1, 6).relu())

    fixed = Fixed().double()
    with torch.no_grad():
        fixed.two.weight[:, 1] = 0.0
    actual = made_smaller(fixed, x)
    assert sizes(actual.network)["one.weight"] == (6, 4)
    assert "does not run without some" in actual.stayed[0]
    assert_close(actual.network(x), fixed(x))


def test_one_unit_of_a_layer_stays() -> None:
    net = zeroed(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), l2_1=[0, 1, 2, 3, 4])
    x = normal(5, 4)
    actual = made_smaller(net, x)
    assert sizes(actual.network) == {"0.weight": (1, 4), "2.weight": (2, 1)}
    assert_close(actual.network(x), net(x))


def test_weights_inside_of_layers_stay_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    with torch.no_grad():
        net[0].weight[0, 0] = 0.0  # type: ignore[index]
    x = normal(5, 4)
    actual = made_smaller(net, x)
    assert sizes(actual.network) == sizes(net)
    assert [torch.equal(a, b) for a, b in zip(actual.network.parameters(), net.parameters(), strict=True)] == [True] * 4
    assert_close(outputs_of(actual.network, x)[0], net(x))

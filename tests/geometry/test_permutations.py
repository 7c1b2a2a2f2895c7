"""Groups of hidden units are found in networks of every kind, and moving them leaves the function as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.geometry.networks import NETWORKS, Recurrent, Shuffled, Viewed, filled, made, normal
from tests.oracles import assert_close
from torchbayes.geometry import permutation_groups
from torchbayes.geometry.symmetry.rules import RULES
from torchbayes.geometry.symmetry.units import Segment, Ties, fixed
from torchbayes.randomness.seeds import Purpose, seeded


class Applied(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.function(inputs)


def change(model: tb.Model, data: object = None, seed: int = 3) -> tuple[int, float, float]:
    """Return the number of groups, and how far a random permutation changes outputs and weights."""
    groups = permutation_groups(model, data)
    weights_D = model.given_weights()
    orders = [o if (o.diff() < 0).any() else o.flip(0) for o in groups.random(seed=seed)]  # not as they are
    moved_D, buffers = groups.permute(weights_D, orders)
    size = model.network.layout.size
    before = model.network(weights_D[:size], groups.inputs)
    after = model.network(moved_D[:size], groups.inputs, buffers)
    scale = 1 + float(before.abs().max())
    return len(groups.groups), float((before - after).abs().max()) / scale, float((weights_D - moved_D).abs().max())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_function_does_not_change(name: str):
    model, data = made(name)
    count, gap, moved = change(model, data)
    assert count == NETWORKS[name][2]
    assert gap < 1e-12
    assert moved > 0.1


# the other residual network goes on to the same edges
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.study if n == "preresnet20" else ()) for n in tb.networks.names()]
)
def test_the_librarys_own_networks(name: str):
    """Inputs are made up: all of these begin with a linear layer or a convolution."""
    shape = (1, 28, 28) if name == "lenet" else (3, 16, 16)
    count, gap, _ = change(tb.Model(filled(tb.networks.build(name, shape, 10)), tb.likelihoods.Categorical()))
    expected = {"linear": 0, "mlp": 2, "tabular": 2, "lenet": 3, "small_cnn": 2, "resnet20_frn": 12, "preresnet20": 12}
    assert count == expected[name]
    assert gap < 1e-12


def test_views_by_sizes():
    with seeded(Purpose.FACTORY, 1):
        model = tb.Model(filled(Viewed()), tb.likelihoods.Gaussian(1.0))
    count, gap, moved = change(model, (normal(3, 2, 8, 8), normal(3, 3)))
    assert count == 1  # layers that are not used stay as they are
    assert gap < 1e-12 < moved


def test_a_stage_of_a_residual_network_is_one_group():
    network = tb.networks.build("preresnet20", (3, 16, 16), 10)
    groups = permutation_groups(tb.Model(network, tb.likelihoods.Categorical())).groups
    streams = {group.size: {place.name for place in group.places} for group in groups if len(group.places) > 10}
    assert sorted(streams) == [16, 32, 64]
    assert {"0.weight", "1.conv2.weight", "4.shortcut.weight", "1.norm1.running_var"} <= streams[16]
    assert {"7.shortcut.weight", "14.weight", "10.running_mean"} <= streams[64]


def test_flattened_channels_move_in_blocks():
    model = tb.Model(tb.networks.build("lenet", (1, 28, 28), 10), tb.likelihoods.Categorical())
    places = permutation_groups(model).groups[1].places
    assert [(place.name, place.axis, place.inner) for place in places] == [
        ("3.weight", 0, 1), ("3.bias", 0, 1), ("7.weight", 1, 16)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("likelihood", "count"), [(tb.likelihoods.Gaussian(), 1), (tb.likelihoods.HeteroscedasticGaussian(), 1)]
)
def test_learned_parameters_of_the_likelihood_stay(likelihood: object, count: int):
    net = filled(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    model = tb.Model(net, likelihood)  # type: ignore[arg-type]
    actual, gap, _ = change(model)
    assert actual == count
    assert gap < 1e-12


def test_tied_layers_move_together():
    """One layer used twice: its units are those on both of its axes."""
    layer = nn.Linear(4, 4)
    model = tb.Model(
        filled(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), layer, nn.Tanh(), layer)), tb.likelihoods.Gaussian(1.0)
    )
    assert len(permutation_groups(model).groups) == 0  # the second use gives the outputs
    model = tb.Model(
        filled(nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 2))), tb.likelihoods.Gaussian(1.0)
    )
    assert len(permutation_groups(model).groups) == 0  # the first has the inputs
    ends = nn.Linear(3, 4), nn.Linear(4, 2)
    net = nn.Sequential(ends[0], nn.Tanh(), layer, nn.Tanh(), layer, nn.Tanh(), ends[1])
    count, gap, moved = change(tb.Model(filled(net), tb.likelihoods.Gaussian(1.0)))
    assert count == 1
    assert gap < 1e-12 < moved


def test_frozen_layers_keep_their_units():
    net = filled(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)))
    groups = permutation_groups(tb.Model(net, tb.likelihoods.Gaussian(1.0), random=["2.*", "4.*"]))
    assert [group.size for group in groups.groups] == [4]
    assert any("`0.weight` is not random" in why for why in groups.kept)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[0] = True
    some = {"2.weight": mask, "4.weight": torch.ones(2, 4, dtype=torch.bool)}
    groups = permutation_groups(tb.Model(net, tb.likelihoods.Gaussian(1.0), random=some))
    assert len(groups.groups) == 0


def test_adapters_have_units_of_their_own():
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.lora_a, self.lora_b = (
                nn.Linear(6, 4),
                nn.Linear(6, 3, bias=False),
                nn.Linear(3, 4, bias=False),
            )

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.base(inputs) + self.lora_b(self.lora_a(inputs))

    model = tb.Model(
        filled(nn.Sequential(Adapted(), nn.Tanh(), nn.Linear(4, 2))), tb.likelihoods.Gaussian(1.0), random="*lora*"
    )
    count, gap, moved = change(model)
    assert count == 1
    assert gap < 1e-12 < moved


def test_a_single_unit_has_no_permutation():
    count, gap, moved = change(
        tb.Model(filled(nn.Sequential(nn.Linear(3, 1), nn.Tanh(), nn.Linear(1, 2))), tb.likelihoods.Gaussian(1.0))
    )
    assert (count, gap, moved) == (0, 0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_any_precision(dtype: torch.dtype):
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    count, gap, _ = change(tb.Model(net, tb.likelihoods.Gaussian(1.0)))
    assert count == 1
    assert gap < 20 * torch.finfo(dtype).eps


def test_the_users_network_is_untouched():
    net = filled(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    before = [parameter.clone() for parameter in net.parameters()]
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in net.modules()]
    change(tb.Model(net, tb.likelihoods.Gaussian(1.0)))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert hooks == [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in net.modules()]
    assert torch.is_grad_enabled()


def test_what_cannot_be_followed_is_named():
    data = normal(4, 3), normal(4, 2)
    model = tb.Model(filled(nn.Sequential(Shuffled())), tb.likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match=r"`0`.*linalg_solve_triangular.*keep="):
        permutation_groups(model, data)
    assert len(permutation_groups(model, data, keep=["*.first.*", "*.head.weight"]).groups) == 0
    model = tb.Model(filled(Recurrent(nn.LSTM)), tb.likelihoods.Gaussian(1.0))
    rows = normal(4, 6, 3), normal(4, 2)
    with pytest.raises(ValueError, match=r"`body`.*operator `mkldnn_rnn_layer`"):
        permutation_groups(tb.Model(filled(Recurrent(nn.LSTM)).float(), tb.likelihoods.Gaussian(1.0)), rows)
    with pytest.raises(ValueError, match=r"begins with a LSTM.*Give `data`"):
        permutation_groups(model)


def test_units_that_are_looked_at_stay():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs)
            return self.head(hidden if hidden[0, 1] > 0 else -hidden)

    groups = permutation_groups(tb.Model(filled(Branching()), tb.likelihoods.Gaussian(1.0)))
    assert len(groups.groups) == 0  # a single unit is looked at, so that all stay


def test_other_groups_stay_where_a_layer_sorts():
    class Sorting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.second(self.first(inputs).cumsum(-1))))

    groups = permutation_groups(tb.Model(filled(Sorting()), tb.likelihoods.Gaussian(1.0)))
    assert [group.size for group in groups.groups] == [4]
    assert "operator cumsum depends on the order" in groups.kept[0]


@pytest.mark.parametrize(
    "layer",
    [
        nn.GLU(1), nn.Hardswish(), nn.Softmax(1), nn.RReLU(), nn.LocalResponseNorm(2), nn.PixelShuffle(2),
        nn.PixelUnshuffle(2), nn.Unfold(2), nn.ReflectionPad2d(1), nn.CircularPad2d(1), nn.LPPool2d(2, 2),
        nn.ConstantPad3d((1, 1, 1, 1, 2, 1), 0.0), nn.ChannelShuffle(2), nn.AdaptiveMaxPool2d(3),
        nn.LayerNorm([8, 4, 4]),
    ],
)  # fmt: skip
def test_layers_between_convolutions(layer: nn.Module):
    """None changes the function; those that mix channels in an order of their own are refused."""

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer = nn.Conv2d(2, 8, 1), layer
            self.head = nn.Linear(self.body(torch.zeros(1, 2, 4, 4)).shape[1], 3)

        def body(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(self.first(inputs))).flatten(1)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(inputs))

    model = tb.Model(filled(Between()), tb.likelihoods.Gaussian(1.0))
    data = normal(4, 2, 4, 4), normal(4, 3)
    if isinstance(layer, nn.ChannelShuffle):
        with pytest.raises(ValueError, match="channel_shuffle"):
            permutation_groups(model, data)
        return
    count, gap, moved = change(model, data)
    neighbours = isinstance(layer, nn.LocalResponseNorm)
    assert count == (0 if neighbours else 1)
    assert gap < 1e-12
    assert moved > 0.1 or neighbours


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.normalize(x, dim=1),
        lambda x: x / (1 + x.std(1, keepdim=True)) + x.amax(1, keepdim=True).expand_as(x),
        lambda x: x[:, torch.tensor([0, 2, 1, 3, 4, 5])],
        lambda x: torch.cat([x[:, 2:], x[:, :2]], 1),
        lambda x: torch.stack([x, 2 * x], 1).sum(1),
        lambda x: torch.einsum("bn,bm->bnm", x, x).mean(2),
        lambda x: x.clone().mul_(2).clamp(-1, 1),
        lambda x: x.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6),
        lambda x: torch.where(x > x.mean(1, keepdim=True), x, torch.zeros_like(x)),
        lambda x: x.repeat(1, 2)[:, 3:9],
    ],
)
def test_functions_of_units(function: Callable[[torch.Tensor], torch.Tensor]):
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(function(self.first(inputs))))

    _, gap, _ = change(tb.Model(filled(Between()), tb.likelihoods.Gaussian(1.0)), seed=1)
    assert gap < 1e-12


class Pair(nn.Module):
    """Two layers, a function of the units of both, and a head."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.function = nn.Linear(3, 6), nn.Linear(3, 6), function
        size = function(torch.rand(4, 6), torch.rand(4, 6)).shape[1]
        self.head = nn.Linear(size, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        one, two = torch.tanh(self.one(inputs)), torch.tanh(self.two(inputs))
        return self.head(torch.tanh(self.function(one, two)))


TABLE = normal(50, 3, seed=9)


def index(units: torch.Tensor, size: int) -> torch.Tensor:
    return (units * 1000).long().abs() % size


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (lambda a, b: a + TABLE.to(a)[:, 0][index(b, 50)], [6]),
        (lambda a, b: TABLE.to(a)[index(b, 50)].flatten(1), [6, 6]),
        (lambda a, b: TABLE.to(a)[index(b, 50)][..., 0].cumsum(1), [6]),
        (lambda a, b: a.gather(1, index(b, 6)), [6]),
        (lambda a, b: a.gather(1, b.argsort(1)), []),
        (lambda a, b: a.gather(0, index(b, len(a))), [6]),
        (lambda a, b: a.T.gather(1, index(b.T[:2], len(a))).T, [2, 4, 4]),
        (lambda a, b: a.index_select(0, index(b[:, 1], len(a))), [6]),
        (lambda a, b: a.index_select(0, index(b.sum(1), len(a))), [6, 6]),
        (lambda a, b: torch.take_along_dim(a, b.argsort(1), 1), []),
        (lambda a, b: a * b.argmax(1, keepdim=True), [6]),
        (lambda a, b: a[:, b.argmax(1)[:2]].mean(2) if a.ndim > 2 else a[:, index(b.mean(), 6)][:, None], [6]),
        (lambda a, b: torch.where(a.flip(1) > b.roll(1, 1), a, b), []),
        (lambda a, b: torch.cat([a[:, ::2], b], 1), [6]),
        (lambda a, b: torch.cat([a, b], 1).view(-1, 2, 6).transpose(1, 2).flatten(1), [6]),
    ],
)
def test_units_that_pick_others_are_followed(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], sizes: list[int]
):
    """What is picked by units moves with them; that which is picked from stays in order."""
    model, data = tb.Model(filled(Pair(function)), tb.likelihoods.Gaussian(1.0)), (normal(64, 3), normal(64, 2))
    groups = permutation_groups(model, data)
    assert sorted(group.size for group in groups.groups) == sorted(sizes)
    weights_D = model.given_weights()
    for seed in range(3):
        moved_D, buffers = groups.permute(weights_D, groups.random(seed=seed))
        assert_close(model.network(moved_D, data[0], buffers), model.network(weights_D, data[0]), atol=1e-12)


@pytest.mark.parametrize("function", [
    lambda x: torch.tensor(x.tolist()).to(x).flip(1),
    lambda x: torch.from_numpy(x.detach().numpy().cumsum(1)),
    lambda x: torch.tensor([row if i > 1 else [sum(row)] * 6 for i, row in enumerate(x.tolist())]).to(x),
])  # fmt: skip
def test_an_order_that_no_operator_shows_is_found_by_the_outputs(function: Callable[[torch.Tensor], torch.Tensor]):
    """Numbers that leave torch are not followed: outputs are compared, on more rows than the two that are watched."""
    net = filled(nn.Sequential(nn.Linear(3, 6), Applied(function), nn.Linear(6, 2)))
    groups = permutation_groups(tb.Model(net, tb.likelihoods.Gaussian(1.0)), (normal(20, 3), normal(20, 2)))
    weights_D = groups.model.given_weights()
    same_D, _ = groups.permute(weights_D, [torch.arange(group.size) for group in groups.groups])
    assert torch.equal(same_D, weights_D)
    with pytest.raises(ValueError, match=r"another function when its hidden units are permuted.*`keep=`"):
        groups.permute(weights_D, groups.random(seed=1))


@pytest.mark.parametrize("rule", [lambda call: [[fixed(1)]], lambda call: {}["dim"], lambda call: []])
def test_a_rule_that_does_not_fit_is_a_refusal(rule: Callable[[object], object], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RULES, "addmm", rule)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"units of `0` cannot be followed through the operator `addmm`"):
        permutation_groups(made("mlp")[0])


def test_permutations_are_checked():
    groups = permutation_groups(made("mlp")[0])
    weights_D = groups.model.given_weights()
    good = list(groups.random())
    wrong = [good[:1], [good[0].double(), good[1]], [good[0], good[1].clamp_max(2)], [good[1], good[0]]]
    for each in wrong:
        with pytest.raises(ValueError, match="`permutations`"):
            groups.permute(weights_D, each)
    with pytest.raises(TypeError, match="`permutations`"):
        groups.permute(weights_D, "ab")  # type: ignore[arg-type]


def test_a_permutation_and_its_inverse():
    model, data = made("batch norm")
    groups = permutation_groups(model, data)
    weights_D, orders = model.given_weights(), groups.random(seed=5)
    moved_D, buffers = groups.permute(weights_D, orders)
    back_D, own = groups.permute(moved_D, [order.argsort() for order in orders], buffers=buffers)
    assert torch.equal(back_D, weights_D)
    assert all(torch.equal(own[name], buffer) for name, buffer in model.network.buffers.items())
    assert not all(torch.equal(buffers[name], buffer) for name, buffer in model.network.buffers.items())


def test_axes_are_joined_and_divided():
    ties = Ties()
    whole, halves, blocks = ties.free(12), ties.free(6) + ties.free(6), ties.free(3)
    ties.join(whole, halves)
    assert [segment.units for segment in ties.resolved(whole)] == [6, 6]
    half = ties.resolved(whole)[:1]
    ties.join(half, (blocks[0]._replace(inner=2),))
    assert ties.resolved(whole)[0] == Segment(blocks[0].group, 3, 2)
    ties.join(ties.resolved(whole)[1:], fixed(6))
    assert ties.resolved(whole) == (Segment(blocks[0].group, 3, 2), Segment(None, 6))
    ties.join(ties.free(6)[:1], ties.resolved(whole)[:1])
    with_two = ties.free(4)
    ties.join((with_two[0]._replace(inner=3),), ties.free(12))
    ties.join((with_two[0]._replace(inner=3),), tuple(s._replace(inner=2) for s in ties.free(6)))
    assert ties.resolved(with_two) == fixed(4)  # blocks of 3 and of 2 have no order in common
    assert ties.reasons

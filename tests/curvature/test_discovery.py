"""Which layers are taken by their own forms, which are not, and why."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.covering import with_studies
from tests.curvature import oracle
from tests.curvature.networks import NETS, SelfAttention, places
from tests.oracles import normal
from torchbayes.curvature.discovery import LayerSupport, NetworkLayers, layer_support, network_layers

every_net = pytest.mark.parametrize("name", NETS)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
SHARED = {
    "tied": set(),
    "multihead attention": set(),
    "linear attention": {"norm", "mix", "out", "wide", "narrow"},
    "twice": {"again"},
    "outputs at places": {"0", "2"},
    "mlp": set(),
    "conv1d": {"0"},
    "groups": {"0"},
}


def actual(name: str, rows: int = 4, *, joint: bool = True) -> NetworkLayers:
    net = NETS[name]
    weights_D, inputs = oracle.weights_of(net)[1], net.inputs(rows)
    model = oracle.model_of(net, torch.zeros(1, dtype=torch.int64))
    return network_layers(model, layer_support(model, weights_D, inputs), joint_bias=joint)


@pytest.mark.parametrize("rows", [4, pytest.param(1, marks=pytest.mark.study)])
@every_net
def test_layers_and_their_ways(name: str, rows: int):
    own = actual(name, rows)
    ways = {(layer.module, layer.description) for layer in own.layers}
    if NETS[name].either:
        assert ways >= set(NETS[name].ways)
        return
    assert ways == set(NETS[name].ways)
    assert (own.whole.layout.names if own.whole else ()) == tuple(lost for lost, _ in NETS[name].lost)


@pytest.mark.parametrize(
    ("name", "joint"), with_studies([(n, i % 2 == 0) for i, n in enumerate(NETS)], NETS, (True, False))
)
def test_every_weight_belongs_to_one_part(name: str, joint: bool):
    own = actual(name, joint=joint)
    assert own.order.sort().values.tolist() == list(range(own.model.network.layout.size))
    assert own.order.tolist() == [i for part in own.parts for i in part.index.flatten().tolist()]


@pytest.mark.parametrize("name", [name for name, net in NETS.items() if net.lost])
def test_why_a_weight_has_no_layer_is_said(name: str):
    own = actual(name)
    said = own.describe()
    assert own.whole is not None
    for parameter, words in NETS[name].lost:
        assert parameter in said
        assert words in own.whole.reason


@pytest.mark.parametrize(("name", "modules"), SHARED.items(), ids=SHARED)
def test_weights_used_at_several_places_of_a_row(name: str, modules: set[str]):
    assert actual(name).shared == modules


@pytest.mark.parametrize("name", ["linear", "last layer", "bias of the head", "frozen", "linear, no bias, one input"])
def test_a_single_layer_is_known_as_such(name: str):
    own = actual(name)
    assert own.single is own.layers[0]


@pytest.mark.parametrize("name", ["mlp", "tied", "outputs at places", "groups", "batch norm"])
def test_more_than_a_single_layer_is_known_as_such(name: str):
    assert actual(name).single is None


def test_a_convolution_alone_is_no_single_layer():
    model = tb.Model(nn.Sequential(nn.Conv2d(2, 3, 4), nn.Flatten()).double(), tb.likelihoods.Categorical())
    assert network_layers(model, layer_support(model, model.given_weights(), normal(4, 2, 4, 4))).single is None


@pytest.mark.parametrize("name", ["mlp", "groups", "conv1d"])
def test_biases_apart_are_layers_of_their_own(name: str):
    together, apart = actual(name), actual(name, joint=False)
    assert len(apart.layers) == 2 * len(together.layers)
    assert {tuple(layer.index.shape[-1:]) for layer in apart.layers[1::2]} == {(1,)}


def test_findings_survive_a_file():
    support = LayerSupport({"a.weight": "why"}, ("b", "c"), False, {"everywhere": 17, "in turn": 9, "few": 5}, 3)
    assert LayerSupport.parse(support.text()) == support


def test_rows_go_together_where_they_can():
    net = NETS["multihead attention"]
    model = oracle.model_of(net, torch.zeros(1, dtype=torch.int64))
    assert layer_support(model, model.given_weights(), net.inputs(4)).stacked


def test_float32_networks_are_taken_by_their_layers():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(50, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    model = tb.Model(module, tb.likelihoods.Categorical())
    assert not layer_support(model, model.given_weights(), torch.randn(4, 50)).lost


def test_looking_changes_neither_the_module_nor_the_generator():
    model = tb.Model(SelfAttention().double(), tb.likelihoods.Categorical())
    before = torch.default_generator.get_state()
    held = {n: p.clone() for n, p in model.network.module.named_parameters()}
    layer_support(model, 2 * model.given_weights(), places(3))
    assert all(torch.equal(p, held[n]) and p.grad is None for n, p in model.network.module.named_parameters())
    assert not any(part._forward_hooks for part in model.network.module.modules())
    assert torch.equal(torch.default_generator.get_state(), before)

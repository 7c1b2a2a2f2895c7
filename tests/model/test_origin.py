"""Weights that are drawn again where they are asked for are those that a network with memory would hold."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.evidence.linear import linear_gaussian_evidence
from torchbayes.model import Network
from torchbayes.model.network import module_at
from torchbayes.posteriors.load import load
from torchbayes.randomness.seeds import Purpose, seeded

INPUTS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(12) % 2


class Tied(nn.Module):
    """Two layers that share their weights, beside one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.second(self.first(inputs).tanh()).tanh())


class Last(nn.Module):
    """The last step of a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs.unsqueeze(-1))[0][:, -1])


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
    "double": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
    "bfloat16": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).bfloat16(),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)),
    "tied": Tied,
    "recurrent": Last,
}
each_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def made(make: Callable[[], nn.Module]) -> nn.Module:
    with seeded(Purpose.FACTORY):
        return make()


def model_of(network: nn.Module | Callable[[], nn.Module], **settings: object) -> tb.Model:
    return tb.Model(network, tb.likelihoods.Categorical(), **settings)  # type: ignore[arg-type]


def without_memory(network: Network) -> bool:
    own = dict(network.module.named_parameters())
    return all(own[name].is_meta for name in network.layout.names)


@each_network
def test_a_factorys_weights_take_no_memory_and_are_those_it_makes(make: Callable[[], nn.Module], untouched_rng: None):
    network, held = Network(make), Network(made(make))
    assert without_memory(network)
    assert not without_memory(held)
    for _ in range(2):
        assert torch.equal(network.weights(), held.weights())
        assert all(torch.equal(view, held.initial[name]) for name, view in network.initial.items())
    inputs = INPUTS.to(network.precision.inputs)
    assert torch.equal(network(network.weights(), inputs), held(held.weights(), inputs))
    assert torch.equal(network(network.initial, inputs), held(held.initial, inputs))


@each_network
def test_a_network_on_the_meta_device_is_drawn_as_one_with_memory(make: Callable[[], nn.Module], untouched_rng: None):
    network, held = Network(on_meta(make)), Network(made(make))
    assert without_memory(network)
    assert (network.device, network.dtype) == (held.device, held.dtype)
    assert network.layout == held.layout
    (weights_MD, buffers_M), (expected_MD, expected_M) = (each.fresh([3, 4]) for each in (network, held))
    assert torch.equal(weights_MD, expected_MD)
    assert not torch.equal(weights_MD[0], weights_MD[1])
    assert buffers_M.keys() == expected_M.keys()
    assert all(torch.equal(buffer, expected_M[name]) for name, buffer in buffers_M.items())
    assert all(torch.equal(buffer, held.buffers[name]) for name, buffer in network.buffers.items())
    inputs = INPUTS.to(network.precision.inputs)
    assert torch.equal(network(weights_MD[0], inputs), held(expected_MD[0], inputs))


@pytest.mark.parametrize("form", [on_meta, lambda make: make], ids=["meta", "factory"])
def test_a_fit_is_that_of_a_network_with_memory(form: Callable[..., nn.Module], tmp_path: Path):
    make = NETWORKS["batch norm"]
    method = tb.MAP(members=2, epochs=3, batch_size=4)
    model, held = model_of(form(make)), model_of(made(make))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tb.ProblemWarning)
        actual, expected = (
            tb.fit(m, (INPUTS, TARGETS), method, directory=tmp_path / name, callbacks=())
            for name, m in (("none", model), ("held", held))
        )
        torch.testing.assert_close(tb.predict(actual, INPUTS).probs, tb.predict(expected, INPUTS).probs)
        read = load(tmp_path / "held" / "posterior.safetensors", model)
        torch.testing.assert_close(tb.predict(read, INPUTS).probs, tb.predict(expected, INPUTS).probs)
        average = actual.module()
        torch.testing.assert_close(average(INPUTS)["probs"], tb.predict(actual, INPUTS).probs)
        trained = module_at(model.network, expected.weights_MD[0])  # type: ignore[attr-defined]
        again = tb.fit(model, (INPUTS, TARGETS), tb.MAP(epochs=1), start=trained, callbacks=())
        same = tb.fit(held, (INPUTS, TARGETS), tb.MAP(epochs=1), start=trained, callbacks=())
    torch.testing.assert_close(again.weights_MD, same.weights_MD)  # type: ignore[attr-defined]
    assert without_memory(model.network)


def test_weights_that_are_not_random_are_kept_and_the_others_drawn():
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), on_meta(lambda: nn.Linear(4, 2)))
    body = network[0].weight.clone()  # type: ignore[union-attr]
    model = model_of(network, random="2.*")
    assert torch.equal(model.network.constants["0.weight"], body)
    _, expected = seeded_linear(7), model.network.fresh([7])[0][0]
    assert torch.equal(model.layout.split(expected)["2.weight"], seeded_linear(7))
    made_here = Network(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), "2.*")
    assert not any(constant.is_meta for constant in made_here.constants.values())


def seeded_linear(seed: int) -> Tensor:
    with seeded(Purpose.INITIALISATION, seed):
        return nn.Linear(4, 2).weight.detach()


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_laplace_subspaces_and_evidence_know_weights_without_memory():
    def make() -> nn.Module:
        return nn.Linear(3, 1).double()

    targets = INPUTS[:, :1].double()
    data = (INPUTS.double(), targets)
    actual = []
    for network in (make, made(make)):
        model = tb.Model(network, tb.likelihoods.Gaussian(0.5), tb.priors.Normal(1.0))
        start = model.given_weights()
        evidence = linear_gaussian_evidence(model, data).log_evidence
        space = tb.Subspace.random(model, start, 2)
        posterior = tb.fit(model, data, tb.MAP(epochs=2), space=space, callbacks=(), seed=1)
        spread = tb.fit(model, data, tb.Laplace(check_mode=False, prior="model"), start=start, callbacks=())
        assert isinstance(spread, tb.LaplacePosterior)
        means = [tb.predict(each, data[0]).mean for each in (posterior, tb.Linearised(spread))]
        actual.append([torch.tensor(evidence), *means])
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other)


# --- what cannot be drawn ---


class Table(nn.Module):
    """A buffer that only the constructor computes."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(3), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs * self.scale)


class Bare(nn.Module):
    """A parameter that only the constructor sets."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.gain


def test_what_no_initialiser_writes_is_named():
    with pytest.raises(ValueError, match=r"`the network` \(Table\) owns scale, and no `reset_parameters` or `init_wei"):
        model_of(on_meta(Table))
    network = Network(on_meta(lambda: nn.Sequential(nn.Linear(3, 3), Bare())))  # files can be read with it
    with pytest.raises(ValueError, match=r"`1` \(Bare\) owns gain, and no `reset_parameters` or `init_weights` writes"):
        network.fresh([0])
    with pytest.raises(ValueError, match=r"`1` \(Bare\) owns gain"):
        network.weights()


def test_constants_and_starts_need_values():
    two = nn.Sequential(on_meta(lambda: nn.Linear(3, 4)), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"not random, such as `0\.weight`, are on the meta device"):
        model_of(two, random="1.*")
    with pytest.raises(ValueError, match=r"2 of the 4 random parameters, such as .*, are on the meta device, without"):
        model_of(two)
    mask = {"weight": torch.tensor([[True, False, True]])}
    with pytest.raises(ValueError, match=r"not random, such as `weight`, are on the meta device"):
        model_of(on_meta(lambda: nn.Linear(3, 1, bias=False)), random=mask)
    make = NETWORKS["mlp"]
    model = model_of(make)
    with pytest.raises(ValueError, match=r"`start` has no values for `0\.weight`"):
        tb.fit(model, (INPUTS, TARGETS), tb.MAP(epochs=1), start=on_meta(make), callbacks=())


def test_the_meta_device_is_no_default():
    make = NETWORKS["mlp"]
    with pytest.raises(ValueError, match=r"`0\.weight` is made on the meta device, where it gets no values"):
        model_of(lambda: on_meta(make))
    with torch.device("meta"), pytest.raises(ValueError, match=r"Call Model outside of `with torch.device\('meta'\)`"):
        model_of(make())

"""A fit says where the outputs have no gradient in random weights."""

from __future__ import annotations

import warnings
from random import uniform
from typing import Any

import pytest
import torch
from tests.covering import with_studies
from tests.oracles import assert_close, normal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchbayes as tb
from torchbayes.checks import SettingError
from torchbayes.driver.checks import UnusedWeightsWarning

X = normal(30, 3).float()
Y = (X[:, 0] > 0).long()


class Odd(nn.Module):
    """Two layers, the first of which is called in some way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.last, self.way = nn.Linear(3, 4), nn.Linear(4, 2), way

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self._hidden(inputs)))

    def _hidden(self, inputs: Tensor) -> Tensor:
        if self.way == "no_grad":
            with torch.no_grad():
                return self.first(inputs)
        if self.way == "detached":
            return self.first(inputs).detach()
        if self.way == "at random":
            skipped = self.training and float(torch.rand(())) > 0.5
            return torch.cat([inputs, inputs[:, :1]], 1) if skipped else self.first(inputs)
        if self.way in {"reentrant", "recomputed"}:
            return checkpoint(self.first, inputs, use_reentrant=self.way == "reentrant")
        if self.way == "recomputed otherwise":
            return checkpoint(self._given, inputs, use_reentrant=False)
        return torch.cat([inputs, inputs[:, :1]], 1) if self.way == "left out" else self.first(inputs)

    def _given(self, inputs: Tensor) -> Tensor:
        return self.first(inputs) * uniform(0, 1)


def fit(way: str, method: Any, **options: Any) -> Any:
    return tb.fit(tb.Model(Odd(way), tb.likelihoods.Categorical(), **options), (X, Y), method, callbacks=())


pytestmark = pytest.mark.usefixtures("unjudged_fits")

METHODS = [
    tb.MAP(epochs=2),
    tb.VI(epochs=2, kl_weight=1.0, optimizer=tb.Adam(0.3)),
    tb.SGLD(steps=4, burn_in=1, thin=1, step_size=1e-5),
    tb.HMC(steps=2, burn_in=1),
]


WAYS = ["left out", "no_grad", "detached"]


@pytest.mark.parametrize(
    ("way", "method"),
    with_studies([*((WAYS[0], method) for method in METHODS), *((way, METHODS[0]) for way in WAYS[1:])], WAYS, METHODS),
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_weights_without_a_gradient_are_told(way: str, method: Any) -> None:
    with pytest.warns(UnusedWeightsWarning, match=r"2 of 4 random parameters, such as `first.weight`.*is their prior"):
        fit(way, method)


def test_a_network_whose_outputs_have_no_gradient_at_all_is_refused() -> None:
    with pytest.raises(SettingError, match="2 of 2 random parameters"):
        fit("no_grad", tb.RandomWalk(steps=3, burn_in=1, step_size=0.1), random="first.*")


@pytest.mark.parametrize("way", ["plain", "at random", "reentrant", "recomputed"])
def test_where_all_weights_are_used_now_and_then_nothing_is_said(way: str) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        fit(way, tb.MAP(epochs=2))


def test_weights_that_are_left_out_of_the_random_ones_are_not_missed() -> None:
    fit("left out", tb.MAP(epochs=2), random="last.*")


def test_the_check_changes_nothing() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 2))
    model = tb.Model(net, tb.likelihoods.Categorical())
    torch.manual_seed(7)
    before, state = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tb.fit(model, (X, Y), tb.MAP(epochs=1), callbacks=())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("method", METHODS[:2], ids=lambda method: type(method).__name__)
def test_activations_that_are_not_those_of_the_first_pass_are_refused(method: Any) -> None:
    with pytest.raises(SettingError, match=r"others than those of the first pass.*gradient_checkpointing_disable"):
        fit("recomputed otherwise", method)


class Product(nn.Module):
    """A layer beside a product of two factors, one of which starts at zero, as an adapter does."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.left, self.right = (
            nn.Linear(3, 2),
            nn.Parameter(normal(2, 3).float()),
            nn.Parameter(torch.zeros(2, 2)),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.plain(inputs) + inputs @ self.left.T @ self.right.T


class Gated(nn.Module):
    """A residual network whose branch starts at zero, with units that are dead, an attention and a normalised end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.gate, self.norm = nn.Parameter(torch.zeros(())), nn.LayerNorm(2, elementwise_affine=False)
        with torch.no_grad():
            self.first.bias[:3] = -100.0  # three of four units are dead
            self.last.weight.zero_()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs))
        return self.norm(self.last(hidden + self.gate * torch.relu(self.branch(hidden)))).log_softmax(-1)


class Steps(nn.Module):
    """A network of step functions: no gradient anywhere, yet outputs depend on every weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return (8 * self.last(torch.sign(self.first(inputs)))).round()


EVERY = [*METHODS, tb.IVON(epochs=2), tb.SWAG(epochs=4), tb.Laplace(prior="model", check_mode=False)]


@pytest.mark.parametrize("method", EVERY, ids=lambda method: type(method).__name__)
def test_a_factor_of_a_constant_zero_is_told(method: Any) -> None:
    start = Product()
    for random, told in ((["*left", "plain.*"], True), (["*left", "*right"], False)):
        model = tb.Model(Product(), tb.likelihoods.Categorical(), tb.priors.Normal(), random=random)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            tb.fit(model, (X, Y), method, start=start, callbacks=())
        of_weights = [str(one.message) for one in said if issubclass(one.category, UnusedWeightsWarning)]
        assert (len(of_weights) == 1) == told
        assert not told or "1 of 3 random parameters, such as `left`" in of_weights[0]
    with pytest.raises(SettingError, match="multiplies them by a zero that is not random"):
        tb.fit(
            tb.Model(Product(), tb.likelihoods.Categorical(), random="left"), (X, Y), method, start=start, callbacks=()
        )


@pytest.mark.parametrize("network", [Gated, Steps])
def test_gradients_that_are_zero_only_where_a_fit_begins_are_no_alarm(network: Any) -> None:
    method = tb.RandomWalk(steps=3, burn_in=1, step_size=0.1) if network is Steps else tb.MAP(epochs=1)
    tb.fit(tb.Model(network(), tb.likelihoods.Categorical()), (X, Y), method, start=network(), callbacks=())


class Recomputing(nn.Module):
    """Recomputes its first layer in training alone, as networks of Hugging Face do."""

    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        def body(rows: Tensor) -> Tensor:
            return self.first(rows).tanh()

        return self.last(
            checkpoint(body, inputs, use_reentrant=False) if self.training and self.recomputes else body(inputs)
        )


@pytest.mark.parametrize("method", [tb.MAP(epochs=1), tb.IVON(epochs=1), tb.Laplace()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("factory", [False, True])
def test_a_fit_with_recomputed_activations_is_the_fit_without(factory: bool, method: Any) -> None:
    outputs = []
    for recomputes in (False, True):

        def make(recomputes: bool = recomputes) -> nn.Module:
            torch.manual_seed(0)
            return Recomputing(recomputes)

        model = tb.Model(make if factory else make(), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
        posterior = tb.fit(model, (X, Y), method, callbacks=())
        outputs.append(tb.predict(posterior, X, draws=4, seed=1).probs)
    assert_close(outputs[1], outputs[0], rtol=1e-5)

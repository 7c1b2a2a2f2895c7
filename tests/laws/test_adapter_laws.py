"""Laws of methods that need low-rank adapters: each network of the registry, with one around its last layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws import cases, test_method_laws
from tests.laws.cases import Net, assert_same_tensors, everything, normal, unjudged
from tests.laws.test_layer_laws import obey, runs
from tests.laws.test_method_laws import break_after, keep_every
from torchbayes.driver.checkpoint import flatten
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import member_seeds

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps


class Adapter(nn.Module):
    """W x + b + B A x, with W and b as they are."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.lora_B(self.lora_A(inputs))


class Counted(nn.Module):
    """A network that counts its calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.calls = network, nn.Buffer(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.network(inputs)


def adapted(make: Callable[[], nn.Module]) -> nn.Module:
    """A network whose last linear layer has an adapter; the other layers are random as they were."""
    network = make()
    name, last = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Linear)][-1]
    setattr(network, name, Adapter(last))
    return network


WITH_ADAPTERS = {name: Net(partial(adapted, net.make), net.shape) for name, net in cases.NETWORKS.items()}
BLOB = {"blob": partial(tb.BLoB, optimizer=tb.Adam(lr=0.05))}
LAWS = [
    test_method_laws.test_interrupted_and_resumed_equals_uninterrupted,
    test_method_laws.test_members_together_equal_members_alone,
    test_method_laws.test_step_is_pure_and_donating_changes_nothing,
    test_method_laws.test_pieces_by_hand_equal_fit,
    test_method_laws.test_every_method_learns_on_every_network_and_nothing_else_moves,
    test_method_laws.test_saved_posterior_is_the_returned_one,
]


@pytest.fixture(autouse=True)
def networks_with_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every network of the registry have an adapter."""
    monkeypatch.setattr(cases, "NETWORKS", WITH_ADAPTERS)


@pytest.mark.parametrize(("make", "law", "network"), [*runs(BLOB, LAWS, WITH_ADAPTERS)])
def test_law_of_blob(make: Any, law: Callable[..., None], network: str, request: pytest.FixtureRequest) -> None:
    obey(law, make, network, request)


# --- TFB, which starts at trained networks


def searched(network: str, dtype: torch.dtype = torch.float64, plan: str = "loop", **options: Any) -> Posterior:
    """One small search for two members: four passes of three minibatches.

    By the loop: "auto" measures, so that two runs may take different plans, which round differently.
    """
    model, data = cases.model_of(network, dtype), cases.rows_of(network, dtype)
    start = 0.5 * normal(2, model.layout.size, seed=5, dtype=dtype)
    settings = {"start": start, "seed": 7, "callbacks": (), **options}
    with unjudged():
        return tb.fit(model, data, tb.TFB(tolerance=0.1, passes=4, draws=2, batch_size=8, plan=plan), **settings)


@pytest.fixture(
    params=[pytest.param(n, marks=() if n == "conv_batch_norm" else pytest.mark.study) for n in WITH_ADAPTERS]
)
def network(request: pytest.FixtureRequest) -> str:
    return request.param


def test_interrupted_tfb_equals_uninterrupted(network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = searched(network, directory=tmp_path / "whole")
    keep_every(monkeypatch, 10.0)
    for steps in (2, 3, 8):  # within the first pass, at the start of the second, and at the end of the third
        with monkeypatch.context() as inside:
            break_after(inside, tb.TFB, steps)
            with pytest.raises(KeyboardInterrupt):
                searched(network, directory=tmp_path / str(steps))
        resumed = searched(network, directory=tmp_path / str(steps), resume=True)
        assert_same_tensors(everything(resumed), everything(expected))
        assert cases.losses(tmp_path / str(steps)) == cases.losses(tmp_path / "whole")
    loaded = tb.load(tmp_path / "whole" / "posterior.safetensors", expected.model)
    assert_same_tensors(everything(loaded), everything(expected))


def test_members_of_tfb_together_equal_members_alone(network: str) -> None:
    together, model = everything(searched(network, plan="auto")), cases.model_of(network)
    start = 0.5 * normal(2, model.layout.size, seed=5)
    for m, seed in enumerate(member_seeds(7, 2)):
        alone = everything(searched(network, start=start[m], seed=seed))
        for name, tensor in together.items():
            torch.testing.assert_close(tensor[m], alone[name][0], rtol=1e-10, atol=1e-12)


def test_a_step_of_tfb_is_pure(network: str) -> None:
    """In evaluation mode, as `fit` runs it; the counter of calls in the network does not change either."""
    model = tb.Model(Counted(cases.made(network)), tb.likelihoods.Categorical())
    method, (inputs, targets) = tb.TFB(passes=3, draws=2, batch_size=8), cases.rows_of(network)
    density, seeds = tb.LogDensity(model, len(inputs), plan="loop"), member_seeds(3, 2)
    state = method.init(density, *model.starting_weights(seeds), seeds=seeds, steps_per_epoch=3)
    for number in range(9):
        rows = slice(8 * (number % 3), 8 * (number % 3) + 8)
        batch = tb.Batch(inputs[rows].expand(2, *inputs[rows].shape), targets[rows].expand(2, -1))
        before = {name: tensor.clone() for name, tensor in flatten(state)[0].items()}
        following, info = method.step(density, state, batch)
        again, same = method.step(density, state, batch)
        assert_same_tensors(flatten(state)[0], before)
        assert_same_tensors(flatten(again)[0], flatten(following)[0])
        assert torch.equal(info.nll_M, same.nll_M)
        state = following
    assert method.visit(state) is None


def test_tfb_keeps_dtype_and_moves_nothing_else(network: str) -> None:
    module = cases.made(network, torch.float32).train()
    model, data = tb.Model(module, tb.likelihoods.Categorical()), cases.rows_of(network, torch.float32)
    with test_method_laws.untouched(module), unjudged():
        posterior = tb.fit(model, data, tb.TFB(tolerance=0.1, passes=3, draws=2), start=module, callbacks=())
        probs = tb.predict(posterior, data[0]).probs
    assert all(tensor.dtype == torch.float32 for tensor in posterior.tensors().values())
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(probs)))
    kept: Mapping[str, Tensor] = model.layout.split(posterior.tensors()["mean_MD"][0])
    given = dict(module.named_parameters())
    assert all(torch.equal(kept[name], given[name]) for name in kept if "lora" not in name)

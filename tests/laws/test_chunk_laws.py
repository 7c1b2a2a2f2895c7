"""Laws of chunks: a minibatch that goes through the network a few rows at a time is, to rounding, a whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchbayes as tb
from tests.laws.cases import METHODS, everything, made, model_of, normal, rows_of
from torchbayes.density.autograd import Chunk
from torchbayes.density.backend import Mixing

pytestmark = pytest.mark.usefixtures("unjudged_fits")
CLASSES = 3
SAMPLERS: dict[str, Callable[..., Any]] = {
    name: lambda kind=kind, **settings: kind(chains=2, steps=6, burn_in=2, thin=1, batch_size=8, **settings)
    for name, kind in (("sgld", tb.SGLD), ("sghmc", tb.SGHMC))
}
TRAINED = [name for name in METHODS if name != "repulsive_functions"]


def fitted(make: Callable[..., Any], network: str, plan: str, **options: Any) -> dict[str, Tensor]:
    trained = {} if make in SAMPLERS.values() else {"members": 2, "epochs": 2, "batch_size": 8}
    fixed = "plan" not in getattr(make(**trained), "__dataclass_fields__", {})
    method = make(**trained, **({} if fixed else {"plan": plan}))
    return everything(tb.fit(model_of(network, **options), rows_of(network), method, seed=7, callbacks=()))


def assert_alike(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-7, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("name", TRAINED)
def test_every_method(name: str) -> None:
    """Methods that draw masks in the network are tested by what they draw for each chunk."""
    network = "nested" if TRAINED.index(name) % 2 else "mlp"
    assert_alike(*(fitted(METHODS[name], network, "loop", chunk_size=size) for size in (3, None)))


@pytest.mark.parametrize("plan", ["loop", "vmap", "native"])
@pytest.mark.parametrize("name", ["map_sgd", "ivon_pairs", "sgld", "sghmc"])
@pytest.mark.parametrize("size", [1, 5])
def test_every_plan(name: str, plan: str, size: int) -> None:
    make = {**METHODS, **SAMPLERS}[name]
    assert_alike(*(fitted(make, "mlp", plan, chunk_size=each) for each in (size, None)))


@contextmanager
def held(limit: list[int]) -> Iterator[None]:
    """Note the most numbers that graphs hold at once, parameters aside."""
    now = [0]

    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor, self.size = tensor, tensor.numel()
            now[0] += self.size
            limit[0] = max(limit[0], now[0])

        def __del__(self) -> None:
            now[0] -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        yield


class Deep(nn.Module):
    """Blocks that may be checkpointed."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.first, self.last, self.checkpointed = nn.Linear(4, 16), nn.Linear(16, CLASSES), checkpointed
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpointed else block(hidden)
        return self.last(hidden)


def asked(module: nn.Module, *, rows: int = 64, mixing: Mixing | None = None, **options: Any) -> tuple[Any, int]:
    """Value and gradient on a minibatch, and the most numbers that its graphs held."""
    model = tb.Model(module, tb.likelihoods.Categorical(), tb.priors.Normal(1.0), **options)
    density, most = tb.LogDensity(model, 100, plan="loop", training=True), [0]
    weights_MD = model.given_weights().expand(2, -1) + 0.1 * normal(2, model.layout.size)
    inputs, targets = normal(rows, 4, seed=3), torch.arange(rows) % CLASSES
    batch = tb.Batch(inputs.expand(2, -1, -1), targets.expand(2, -1))
    density.nll(weights_MD, batch, seeds=(1, 2), mixing=mixing)
    with held(most):
        return density.nll(weights_MD, batch, seeds=(1, 2), mixing=mixing), most[0]


@pytest.mark.parametrize("mixing", [None, Mixing(2, 0.5)], ids=["", "mixed"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_graphs_hold_one_chunk(checkpointed: bool, mixing: Mixing | None) -> None:
    torch.manual_seed(0)
    module = Deep(checkpointed).double()
    (whole, all_rows), (cut, few) = (asked(module, chunk_size=size, mixing=mixing) for size in (None, 4))
    for actual, expected in zip(cut, whole, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)
    parameters = sum(p.numel() for p in module.parameters())
    assert few <= all_rows / 16 + 2 * parameters  # weights are held for the products of every row


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")
def test_adapters_of_a_checkpointed_language_model() -> None:
    from tests.adapters.tiny import WORDS, adapted  # skips without its libraries

    def drawn(method: Any, *, recomputes: bool, **options: Any) -> Tensor:
        network = adapted("llama", head=False)
        network.train()
        if recomputes:
            network.gradient_checkpointing_enable({"use_reentrant": False})
        likelihood = tb.likelihoods.Categorical(ignore_index=-100)
        model = tb.Model(network.double(), likelihood, tb.priors.Normal(1.0), random="*lora*", **options)
        tokens = torch.randint(3, WORDS, (8, 6), generator=torch.Generator().manual_seed(1))
        labels = tokens.clone().index_fill(1, torch.tensor([0, 1]), -100)
        posterior: Any = tb.fit(model, {"input_ids": tokens, "labels": labels}, method, callbacks=())
        assert model.network.held.recomputes(training=True) is recomputes
        return posterior.sample(2)

    for method in (tb.MAP(epochs=2, batch_size=4), tb.VI(epochs=2, batch_size=4), tb.IVON(epochs=2, batch_size=4)):
        expected = drawn(method, recomputes=False)
        actual = drawn(method, recomputes=True, chunk_size=3)
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


def test_weights_of_rows() -> None:
    inputs, targets = rows_of()
    counts = torch.arange(len(targets)).double() % 3
    drawn = []
    for size in (5, None):
        likelihood = tb.likelihoods.Weighted(tb.likelihoods.Categorical())
        model = tb.Model(made("mlp"), likelihood, tb.priors.Normal(1.0), chunk_size=size)
        posterior: Any = tb.fit(model, (inputs, (targets, counts)), tb.MAP(epochs=2, batch_size=12), callbacks=())
        drawn.append(posterior.sample(1))
    torch.testing.assert_close(*drawn, rtol=1e-9, atol=1e-12)


def test_every_chunk_has_dropout_masks_of_its_own() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)).double()
    model = tb.Model(module, tb.likelihoods.Categorical(), chunk_size=3)
    density, weights_MD = tb.LogDensity(model, 6, training=True), model.given_weights().unsqueeze(0)
    row = tb.Batch(normal(1, 1, 4).expand(1, 3, 4), torch.ones(1, 3, dtype=torch.int64))
    both = density.nll(weights_MD, row.map(lambda t: torch.cat([t, t], 1)), seeds=[5])
    later = Chunk(row, 3, None).seeds([5])
    assert later != [5]
    parts = [density.nll(weights_MD, row, seeds=seeds) for seeds in ([5], later)]
    assert not torch.equal(parts[0].gradient, parts[1].gradient)
    torch.testing.assert_close(both.gradient, (parts[0].gradient + parts[1].gradient) / 2, rtol=1e-12, atol=1e-14)


class Following(nn.Module):
    """A layer that follows the mean of its inputs, counts its calls, and has a mask with infinities."""

    mean: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * inputs.mean(0))
            self.calls.add_(1)
        return self.layer(inputs)


def test_buffers_are_those_after_one_batch() -> None:
    after = []
    for size in (3, None):
        model = tb.Model(Following().double(), tb.likelihoods.Categorical(), chunk_size=size)
        buffers = model.network.stacked_buffers(1)
        batch = tb.Batch(normal(1, 7, 4), torch.zeros(1, 7, dtype=torch.int64))
        tb.LogDensity(model, 7, training=True).loss(model.given_weights().unsqueeze(0), batch, buffers=buffers)
        after.append(buffers)
    assert int(after[0]["calls"]) == 1
    for name, buffer in after[1].items():
        torch.testing.assert_close(after[0][name], buffer, rtol=1e-14, atol=1e-16)


def test_all_the_data_and_predictions_go_through_in_chunks_too() -> None:
    sizes: list[int] = []

    class Counting(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            sizes.append(len(input))
            return super().forward(input)

    inputs, targets = normal(10, 4, dtype=torch.float32), torch.arange(10) % CLASSES
    model = tb.Model(Counting(4, CLASSES), tb.likelihoods.Categorical(), chunk_size=4)
    posterior = tb.fit(model, (inputs, targets), tb.HMC(chains=1, steps=3, burn_in=1), callbacks=())
    tb.evaluate(posterior, (inputs, targets))
    trained = {"epochs": 1, "batch_size": 10, "plan": "loop"}
    for method in (tb.MAP(adversarial=0.1, **trained), tb.VI(**trained), tb.VBLL(epochs=1, batch_size=10)):
        tb.fit(model, (inputs, targets), method, callbacks=())
    tb.fit(model, (inputs, targets), tb.Laplace(check_mode=False), start=model.given_weights(), callbacks=())
    assert max(sizes) <= 8  # the check of a few rows, without a graph


@pytest.mark.parametrize(("network", "problem"), [("conv_batch_norm", "is a batch norm.*2 rows at a time.*GroupNorm")])
def test_what_cannot_be_cut_is_refused(network: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tb.fit(model_of(network, chunk_size=2), rows_of(network), tb.MAP(epochs=1), callbacks=())
    with pytest.raises(ValueError, match=r"functions repel on all rows of a batch at once.*is 2"):
        tb.fit(model_of(chunk_size=2), rows_of(), METHODS["repulsive_functions"](), callbacks=())
    with pytest.raises(ValueError, match=r"coupled, so that all must go through.*got `chunk_size` 2. Leave it out"):
        model_of(coupled=True, chunk_size=2)


def test_rows_that_depend_on_each_other_are_refused() -> None:
    class Centred(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input - input.mean(0))

    def model(**options: Any) -> tb.Model:
        return tb.Model(Centred(4, CLASSES).double(), tb.likelihoods.Categorical(), **options)

    inputs, targets = rows_of()
    with pytest.warns(tb.ProblemWarning, match="outputs of a row change with the rows beside it"):
        tb.fit(model(), (inputs, targets), tb.MAP(epochs=1), callbacks=())
    with pytest.raises(ValueError, match="outputs of a row change with the rows beside it"):
        tb.fit(model(chunk_size=8), (inputs, targets), tb.MAP(epochs=1), callbacks=())

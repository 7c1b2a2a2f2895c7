"""The body of a network, which no random weight reaches, runs once for the same rows; results are those without it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.oracles import assert_close
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import _disable_current_modes

import torchbayes as tb
from torchbayes.density import LogDensity
from torchbayes.density.body import record
from torchbayes.density.body.record import Pass, reach_of
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.model import Batch

WIDTH, ROWS, CHUNK, DRAWS = 6, 7, 4, 6
PASSES: list[int] = []  # rows of each pass of a `Counted`


class Counted(nn.Module):
    """A frozen layer that notes how many rows each call has."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        PASSES.append(len(inputs))
        return self.layer(inputs).tanh()


class Net(nn.Module):
    """A body of two layers, the first of which is called twice, and a head; `way` says what lies between them."""

    def __init__(self, way: Callable[[Net, Tensor, Tensor], Tensor], tied: bool = False) -> None:
        super().__init__()
        self.way, self.tied = [way], tied
        self.body, self.norm, self.inner = Counted(), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.rectified, self.dropout, self.head = nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)
        self.again = self.body if tied else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        body = self.again(self.body(self.norm(inputs)) + inputs)
        return self.way[0](self, body, self.head(body))


def plain(net: Net, body: Tensor, random: Tensor) -> Tensor:
    return random


def twice(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """The body is called once more, on what depends on random weights."""
    return net.body(random) + net.body.layer.weight.sum()


def rectified(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """Modules write in place to what others return."""
    return net.head(net.rectified(net.inner(body))) + random


def by_rows(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """Python looks at the rows."""
    return random if body[0, 0] > 0 else net.inner(body) * random


def pair(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """A part of a large tensor is used, and another part is not."""
    return random + torch.stack([net.inner(body), body])[1]


EXACT = [plain, twice, rectified, by_rows, pair]


def by_weights(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """Python looks at what depends on random weights."""
    return net.inner(body) * random if random[0, 0].item() > 0 else random


def by_list(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """The same, unseen by any operation."""
    return net.inner(body) * random if random.detach().tolist()[0][0] > 0 else random


def sizes(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """The size of a tensor depends on random weights."""
    return random * len(random[random > 0])


def largest(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """A frozen layer is given whole numbers."""
    return random + net.inner(random.argmax(1, keepdim=True).expand(-1, WIDTH).to(random))


def without_gradient(net: Net, body: Tensor, random: Tensor) -> Tensor:
    with torch.no_grad():
        fixed = net.inner(random)
    return random + fixed


def written(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """The network writes to what the body returns."""
    hidden = net.inner(body)
    return hidden.add_(random) + hidden


def unseen(net: Net, body: Tensor, random: Tensor) -> Tensor:
    """An operation is hidden, as those of a compiled function are."""
    with _disable_current_modes():
        hidden = random * 2
    return random + net.inner(hidden)


HIDDEN = [largest, without_gradient]  # autograd does not see that they depend on random weights
REFUSED = [by_weights, by_list, sizes, written, unseen]


def model_of(way: Any, tied: bool = False, random: str = "head.*") -> tb.Model:
    torch.manual_seed(1)
    net = Net(way, tied).double().eval()
    net.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
    return tb.Model(net, tb.likelihoods.Categorical(), random=random)


def rows(size: int = ROWS) -> Batch:
    source = torch.Generator().manual_seed(size)
    inputs = torch.randn(size, WIDTH, generator=source, dtype=torch.float64)
    return Batch(inputs, torch.arange(size) % WIDTH)


def weights_of(model: tb.Model, count: int = DRAWS) -> Tensor:
    source = torch.Generator().manual_seed(3)
    return torch.randn(count, model.layout.size, generator=source, dtype=model.network.dtype)


def direct(model: tb.Model, weights_SD: Tensor, inputs: Any) -> Tensor:
    """Outputs of the module by PyTorch alone, one draw after the other."""
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
    net = model.network.module
    state = {n: p for n, p in model.network.constants.items()}
    with torch.no_grad():
        made = [functional_call(net, {**state, **model.split(w)[0]}, args, kwargs) for w in weights_SD]
    return torch.stack([getattr(each, "logits", each) for each in made])


def assert_exact(model: tb.Model, weights_SD: Tensor, inputs: Any, *, chunk_size: int = 1024) -> None:
    outputs = tb.Functions(model, weights_SD)(inputs, chunk_size=chunk_size)
    starts = range(0, batch_size(inputs), chunk_size)
    chunks = [direct(model, weights_SD, rows_of(inputs, slice(start, start + chunk_size))) for start in starts]
    assert_close(outputs, torch.cat(chunks, dim=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("way", EXACT)
def test_predictions_run_the_body_once_for_a_chunk(way: Any, tied: bool) -> None:
    model = model_of(way, tied)
    weights_SD, inputs = weights_of(model), rows().inputs
    assert_exact(model, weights_SD, inputs, chunk_size=CHUNK)  # the first call looks at one row too
    PASSES.clear()
    tb.Functions(model, weights_SD)(inputs, chunk_size=CHUNK)
    below = 2 if tied else 1
    above = DRAWS + 2 if way is twice else 0  # while it is recorded and tried, and for each draw
    assert PASSES.count(CHUNK) == below + above == PASSES.count(ROWS - CHUNK)


@pytest.mark.parametrize("way", [*EXACT, *HIDDEN, *REFUSED])
def test_predictions_are_those_of_the_whole_network(way: Any) -> None:
    model = model_of(way)
    weights_SD = weights_of(model)
    for size in (ROWS, 5, 1):
        assert_exact(model, weights_SD, rows(size).inputs)
    body = record.record(Pass(model, model.split(weights_SD[0])[0], rows().inputs))
    assert (body is None) == (way in REFUSED)
    if body is not None and way is not by_rows:
        assert ("inner" in body.outputs) == (way in {rectified, pair})


@pytest.mark.parametrize("plan", ["loop", "vmap"])
@pytest.mark.parametrize("way", [plain, rectified, pair, *HIDDEN])
def test_a_density_of_all_the_data_runs_the_body_once_for_a_chunk(way: Any, plan: Any) -> None:
    model = model_of(way)
    weights_MD, data = weights_of(model), rows()
    density = LogDensity(model, ROWS, data, plan=plan, chunk_size=CHUNK)
    leaves_MD = weights_MD.clone().requires_grad_()
    expected_M = torch.stack([model.log_joint(w, data, ROWS) for w in leaves_MD])
    (gradient_MD,) = torch.autograd.grad(expected_M.sum(), leaves_MD)
    PASSES.clear()
    for _ in range(3):
        value = density(weights_MD)
        assert_close(value.log_density, expected_M.detach(), rtol=1e-12)
        assert_close(value.gradient, gradient_MD, rtol=1e-10, atol=1e-12)
    assert PASSES == [1, CHUNK, ROWS - CHUNK]  # one row tells how far random weights reach
    assert not any("forward" in vars(part) for part in model.network.module.modules())


def test_rows_that_are_not_numbers_stay_so() -> None:
    model = model_of(plain)
    inputs = rows().inputs
    inputs[2] = torch.nan
    outputs = tb.Functions(model, weights_of(model))(inputs)
    assert torch.equal(outputs.isnan(), direct(model, weights_of(model), inputs).isnan())
    assert outputs.isnan().any(-1).sum() == DRAWS


def test_rows_that_change_are_recorded_again() -> None:
    model, data = model_of(plain), rows()
    weights_MD = weights_of(model)
    density = LogDensity(model, ROWS, data, plan="loop", chunk_size=CHUNK)
    density(weights_MD)
    data.inputs.mul_(2.0)
    expected = model.log_joint(weights_MD[0], data, ROWS)
    assert_close(density(weights_MD).log_density[0], expected.detach(), rtol=1e-12)


def test_what_is_kept_fits_in_the_budget_and_goes_with_the_density(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = model_of(plain), rows()
    weights_MD = weights_of(model)
    size = CHUNK * WIDTH * 8
    for budget, passes in ((size, (1, 3)), (size - 1, (3, 1))):  # of the first chunk and of the second
        monkeypatch.setattr(record, "BUDGET", budget)
        density = LogDensity(model, ROWS, data, plan="vmap", chunk_size=CHUNK)
        PASSES.clear()
        density(weights_MD)
        density(weights_MD)
        assert (PASSES.count(CHUNK), PASSES.count(ROWS - CHUNK)) == passes
    bodies = weakref.ref(density._bodies)
    del density
    gc.collect()
    assert bodies() is None


class Stateful(nn.Module):
    """A body that leaves something behind in itself."""

    def __init__(self, number: bool) -> None:
        super().__init__()
        self.layer, self.head, self.number = Leaving(number), nn.Linear(WIDTH, 3), number

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layer(inputs)) * self.layer.left


class Leaving(Counted):
    """A layer that notes the sum of its inputs, as a number or in a list."""

    def __init__(self, number: bool) -> None:
        super().__init__()
        self.number, self._left = number, [torch.zeros(())]
        self.left: Any = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        self._left[0] = inputs.sum()
        if self.number:
            self.left = float(inputs.sum())
        return super().forward(inputs)


class Listed(Stateful):
    """The same with the list read by the network."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layer(inputs)) * self.layer._left[0]


@pytest.mark.parametrize("network", [Stateful(True), Listed(False)])
def test_a_body_that_leaves_something_behind_runs_each_time(network: nn.Module) -> None:
    model = tb.Model(network.double().eval(), tb.likelihoods.Categorical(), random="head.*")
    weights_SD = weights_of(model)
    for size in (ROWS, 3, ROWS):
        assert_exact(model, weights_SD, rows(size).inputs)


def test_dropout_that_is_on_is_never_recorded() -> None:
    def dropped(net: Net, body: Tensor, random: Tensor) -> Tensor:
        return net.dropout(random)

    model, data = model_of(dropped), rows()
    density = LogDensity(model, ROWS, data, plan="loop", training=True)
    weights_MD = weights_of(model)
    first, second = (density(weights_MD, seeds=seeds).log_density for seeds in (range(6), range(6, 12)))
    assert not torch.equal(first, second)
    at = Pass(model, model.split(weights_MD[0])[0], data.inputs)
    with model.network.training():
        assert reach_of(at) == record.Reach()


def test_four_threads_share_nothing() -> None:
    model = model_of(twice)
    weights_SD = weights_of(model)
    expected = [direct(model, weights_SD, rows(size).inputs) for size in (9, 8, 7, 6)]
    results = dict[int, Tensor]()

    def ask(number: int) -> None:
        for _ in range(5):
            results[number] = tb.Functions(model, weights_SD)(rows(9 - number).inputs, chunk_size=CHUNK)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, outputs in enumerate(expected):
        assert_close(results[number], outputs, rtol=1e-12, atol=1e-12)


def test_a_frozen_body_of_convolutions() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    net = nn.Sequential(body, nn.Flatten(), nn.Linear(36, 3)).double().eval()
    model = tb.Model(net, tb.likelihoods.Categorical(), random="2.*")
    inputs = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    assert_exact(model, weights_of(model), inputs, chunk_size=2)
    density = LogDensity(model, 5, Batch(inputs, torch.arange(5) % 3), plan="loop")
    expected = model.log_joint(weights_of(model)[0], (inputs, torch.arange(5) % 3), 5)
    for _ in range(2):
        assert_close(density(weights_of(model)).log_density[0], expected.detach(), rtol=1e-12)
    bodies: Any = density._bodies
    assert next(iter(bodies._known.values()), None) is not None


@pytest.mark.filterwarnings("ignore")  # of transformers and peft
@pytest.mark.parametrize(
    ("kind", "random", "settings", "recorded"),
    [
        ("LlamaForSequenceClassification", "score.*", {}, True),
        ("LlamaForCausalLM", "lm_head.*", {}, True),
        ("LlamaForCausalLM", "*embed_tokens*", {"tie_word_embeddings": True}, False),  # is the head as well
        ("LlamaForSequenceClassification", "*lora*", {"layers_to_transform": [1]}, True),
        ("LlamaForSequenceClassification", "*lora*", {"layers_to_transform": None}, False),
    ],
)
def test_a_llama_with_and_without_adapters(kind: str, random: str, settings: Any, recorded: bool) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12, "vocab_size": 31, "num_labels": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}
    tied = {"tie_word_embeddings": settings.get("tie_word_embeddings", False)}
    net = getattr(transformers, kind)(transformers.LlamaConfig(**sizes, **heads, **tied))
    if random == "*lora*":
        net = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **settings))
    model = tb.Model(net.double().eval(), tb.likelihoods.Categorical(), random=random)
    tokens = torch.randint(1, 31, (6, 5), generator=torch.Generator().manual_seed(0))
    real = torch.ones_like(tokens)
    tokens[1, 3:], real[1, 3:] = 0, 0
    inputs, weights_SD = {"input_ids": tokens, "attention_mask": real}, weights_of(model)
    share = reach_of(Pass(model, model.split(weights_SD[0])[0], inputs)).body
    assert (share > 0.3) == recorded
    for chunk_size in (6, 2, 1024):  # one draw after the other, and draws together
        assert_exact(model, weights_SD, inputs, chunk_size=chunk_size)

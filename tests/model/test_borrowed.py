"""What is not random stays in the memory of the given network: it is never copied, and never written to."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchbayes as tb
from tests.architectures.helpers import METHODS, start_of
from tests.model.helpers import snapshot
from tests.oracles import assert_close
from torchbayes.model import Network
from torchbayes.native.process import widen
from torchbayes.randomness.seeds import Purpose, seeded

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps

WIDTH = 96
INPUTS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(8) % 2
MAP = tb.MAP(members=2, epochs=2, batch_size=4)


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter, between a frozen first layer and a frozen last one."""

    def __init__(self, width: int = WIDTH, rank: int = 2) -> None:
        super().__init__()
        self.first, self.body, self.last = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 2)
        self.lora_A, self.lora_B = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        return self.last((self.body(hidden) + self.lora_B(self.lora_A(hidden))).tanh())


def adapted(width: int = WIDTH) -> Adapted:
    with seeded(Purpose.FACTORY):
        return Adapted(width)


def model_of(network: Any, random: Any = "*lora*", **settings: Any) -> tb.Model:
    return tb.Model(network, tb.likelihoods.Categorical(), random=random, **settings)


def fitted(model: tb.Model, method: Any = MAP, **settings: Any) -> Any:
    return tb.fit(model, (INPUTS, TARGETS), method, callbacks=(), **settings)


def places(tensors: Any) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors}


def assert_borrowed(network: Network, given: nn.Module) -> None:
    """Constants lie in the memory of the given module, in this thread's module too, and random weights do not."""
    theirs, ours = places(given.named_parameters()), places(network.module.named_parameters())
    assert network.constants.keys() == theirs.keys() - set(network.shapes.names)
    assert all(network.constants[name].data_ptr() == theirs[name] for name in network.constants)
    assert all((ours[name] == theirs[name]) == (name in network.constants) for name in theirs)
    assert not any(constant.requires_grad for constant in network.constants.values())


# --- memory ---


def test_constants_are_those_of_a_given_module():
    given = adapted()
    model = model_of(given)
    fitted(model)
    assert_borrowed(model.network, given)


def test_constants_are_those_of_the_only_network_that_a_factory_makes():
    made = list[Adapted]()

    def make() -> Adapted:
        made.append(Adapted())  # the frozen layers too are drawn at every call
        return made[-1]

    model = model_of(make)
    posterior = fitted(model)
    tb.predict(posterior, INPUTS)
    assert len(made) == 1
    assert_borrowed(model.network, made[0])
    like = model_of(adapted())
    same = fitted(like)
    assert model.network.constants.keys() == like.network.constants.keys()
    assert all(
        torch.equal(model.network.constants[name], like.network.constants[name]) for name in like.network.constants
    )
    # the last bit depends on where tensors lie in memory: one fit in a hundred differs by 1.5e-8
    torch.testing.assert_close(posterior.weights_MD, same.weights_MD, rtol=0, atol=1e-6)


class Allocations(TorchDispatchMode):
    """Counts the results of operations that have new memory of at least so many bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_storage(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = func(*args, **(kwargs or {}))
        fresh = [t for t in tree_leaves(made) if isinstance(t, Tensor) and _storage(t) not in known]
        self.count += sum(t.untyped_storage().nbytes() >= self.size and not t.is_meta for t in fresh)
        return made


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def counting(size: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocations]:
    """Count allocations of operations, and copies of whole storages, which are none."""
    plain = torch.UntypedStorage.clone
    with Allocations(size) as counted:

        def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
            counted.count += storage.nbytes() >= size
            return plain(storage)

        with monkeypatch.context() as patched:
            patched.setattr(torch.UntypedStorage, "clone", clone)
            yield counted


BASE = WIDTH * WIDTH * 4  # bytes of the largest frozen weight; all of the adapter is smaller, and so are its rows
LEAN: dict[str, Any] = {
    "map": MAP,
    "ivon": METHODS["ivon"],
    "vi": METHODS["vi"],
    "swag": METHODS["swag"],
    "laplace": METHODS["diagonal"],
    "hmc": METHODS["hmc"],
}


@pytest.mark.parametrize("form", ["module", "factory"])
@pytest.mark.parametrize("name", LEAN)
def test_no_method_allocates_a_second_base(name: str, form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    given = adapted()
    widen()  # which the first fit of a process does, by a large allocation
    for copied in (given.body.weight, given.body.weight.untyped_storage()):
        with counting(BASE, monkeypatch) as counted:
            copy.deepcopy(copied)
        assert counted.count > 0
    with counting(BASE, monkeypatch) as counted:
        model = model_of(given if form == "module" else lambda: given)
        start = model.given_weights() if name == "laplace" else None
        posterior = fitted(model, LEAN[name], start=start)
        again = tb.load(posterior.save(tmp_path / "posterior.safetensors"), model)
        probs = tb.predict(again, INPUTS, draws=4).probs
        tb.evaluate(posterior, (INPUTS, TARGETS), draws=4)
        if name == "laplace":
            tb.predict(tb.Linearised(posterior), INPUTS)
    assert counted.count == 0
    assert_close(probs.sum(-1), torch.ones(len(INPUTS)), rtol=1e-5)


def test_a_parameter_that_is_random_in_part_is_copied_once():
    given = adapted(8)
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[0, :3] = True
    network = Network(given, {"body.weight": mask})
    held = network.module.get_parameter("body.weight").data_ptr()
    assert held == network.mask.tensors["body.weight"].data_ptr() != given.body.weight.data_ptr()
    assert torch.equal(network(network.weights(), INPUTS), given(INPUTS))
    assert network.fresh([0])[0].shape == (1, 3)
    assert torch.equal(network(network.weights(), INPUTS), given(INPUTS))


def test_tables_of_whole_numbers_are_borrowed_and_other_buffers_copied():
    given = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    given[0].register_buffer("codes", torch.arange(6).view(2, 3))
    network = Network(given, "2.*")
    theirs, ours = places(given.named_buffers()), places(network.module.named_buffers())
    assert [name for name in theirs if ours[name] == theirs[name]] == ["0.codes"]
    assert [*network.borrowed.tensors] == ["0.weight", "0.bias", "1.weight", "1.bias", "0.codes"]


def test_a_base_of_inference_mode_is_copied_because_nothing_can_be_differentiated_through_it():
    with torch.inference_mode():
        body = nn.Linear(4, 6).requires_grad_(False)
    network = Network(nn.Sequential(nn.Linear(4, 4), body, nn.Linear(6, 2)))
    weights_D = network.weights().requires_grad_()
    network(weights_D, INPUTS).sum().backward()
    assert weights_D.grad is not None
    assert torch.isfinite(weights_D.grad).all()
    assert not network.constants["1.weight"].is_inference()


# --- how often a factory is called ---


class Bare(nn.Module):
    """A head that only the constructor draws."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, width))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T


class Smaller(nn.Linear):
    """A head that its constructor draws smaller than its initialiser does."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 2)
        nn.init.normal_(self.weight, std=0.2 / width**0.5)


def trained_head(width: int) -> nn.Linear:
    head = nn.Linear(width, 2)
    nn.init.ones_(head.bias)
    head.bias.data[0] = 4.0
    return head


HEADS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "as initialised": (lambda width: nn.Linear(width, 2), 1),
    "no initialiser": (Bare, 4),
    "smaller": (Smaller, 4),
    "a bias that is trained": (trained_head, 4),
}


@pytest.mark.parametrize(("head", "calls"), HEADS.values(), ids=HEADS.keys())
def test_a_factory_is_called_again_only_where_initialisers_draw_otherwise(head: Any, calls: int):
    made = list[nn.Module]()

    def make() -> nn.Module:
        made.append(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), head(64)))
        return made[-1]

    network = Network(make, "2.*")
    weights_MD, _ = network.fresh([3, 4, 3])
    network(network.initial, INPUTS)
    network.weights()
    assert len(made) == calls
    assert torch.equal(weights_MD[0], weights_MD[2])
    if calls > 1:  # the members' weights are those of the networks made for them
        for weights_D, each in zip(weights_MD, made[1:], strict=True):
            assert torch.equal(
                weights_D, torch.cat([p.detach().flatten() for p in each.get_submodule("2").parameters()])
            )
    for name, constant in network.constants.items():
        assert torch.equal(constant, dict(made[0].named_parameters())[name])


def test_a_factory_of_weights_that_are_mostly_random_is_called_on_demand_and_takes_no_memory():
    def make() -> nn.Module:
        made = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        made[0].bias.requires_grad_(False)
        return made

    network = Network(make)
    own = dict(network.module.named_parameters())
    assert all(own[name].is_meta for name in network.layout.names)
    with seeded(Purpose.FACTORY):
        assert torch.equal(network.constants["0.bias"], make()[0].bias)  # type: ignore[index]


def test_initialisers_do_not_write_to_what_is_not_random():
    class Whole(nn.Module):
        """Initialises all of its parts at once, as Hugging Face does, and reads the frozen ones."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
            self.init_weights()

        def init_weights(self) -> None:
            nn.init.normal_(self.body.weight)
            self.body.weight.data[0].zero_()
            self.body.bias.data.copy_(torch.ones(8))
            self.head.weight.data.copy_(self.body.weight + torch.randn(8, 8))
            torch._foreach_add_([self.body.bias.data, self.head.bias.data], 1.0)  # pyright: ignore[reportPrivateImportUsage]

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.body(inputs))

    given = Whole()
    with torch.no_grad():
        given.body.weight.fill_(20.0)
    before = snapshot(given)
    with pytest.raises(ValueError, match=r"`head.weight` has a root mean square of .* and 20 after its initialisers"):
        Network(given, "head.*").fresh([0])
    after = snapshot(given)
    assert all(torch.equal(after[name], value) for name, value in before.items())


# --- the network is the user's ---


@pytest.mark.parametrize("name", METHODS)
def test_no_method_writes_to_the_given_network(name: str):
    given = adapted(8)
    given(INPUTS).sum().backward()
    before, versions = snapshot(given), [p._version for p in given.parameters()]
    model = model_of(given)
    posterior = fitted(model, METHODS[name], start=start_of(model, name))
    tb.predict(posterior, INPUTS, draws=4)
    assert [p._version for p in given.parameters()] == versions
    after = snapshot(given)
    assert after.keys() == before.keys()
    for key, value in before.items():
        assert torch.equal(after[key], value), key


class Clamping(nn.Module):
    """Writes to a frozen weight in every call, past its version counter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.weight.data.clamp_(min=0.1)
        return inputs @ self.weight.log()


class Renorming(nn.Module):
    """Shortens the frozen rows that it looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 4, max_norm=0.5).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.table((inputs[:, 0] > 0).long())


@pytest.mark.parametrize("part", [Clamping, Renorming])
def test_a_network_that_writes_to_frozen_weights_is_given_copies(part: Callable[[], nn.Module]):
    given = nn.Sequential(nn.Linear(4, 4), part(), nn.Linear(4, 2))
    reference, before = copy.deepcopy(given), snapshot(given)
    model = model_of(given, "*")
    for _ in range(2):
        assert torch.equal(model.network(model.network.weights(), INPUTS), reference(INPUTS))
    fitted(model)
    after = snapshot(given)
    assert all(torch.equal(after[name], value) for name, value in before.items())


# --- and may be changed ---


def by_hand(network: Adapted) -> None:
    with torch.no_grad():
        network.first.bias[1] += 1.0


def row_of_a_matrix(network: Adapted) -> None:
    with torch.no_grad():
        network.body.weight[-1].zero_()


def past_the_counter(network: Adapted) -> None:
    network.body.weight.data += network.lora_B.weight.data @ network.lora_A.weight.data  # as adapters are merged


def fused(network: Adapted) -> None:
    optimizer = torch.optim.Adam(network.parameters(), fused=True)  # moves no counter either
    network(INPUTS).sum().backward()
    optimizer.step()


def loaded(network: Adapted) -> None:
    network.load_state_dict(Adapted().state_dict())


CHANGES = [by_hand, row_of_a_matrix, past_the_counter, fused, loaded]


@pytest.mark.parametrize("change", CHANGES)
def test_a_network_that_is_changed_later_is_refused(change: Callable[[Adapted], None], tmp_path: Path):
    given = adapted()
    model = model_of(given)
    posterior = fitted(model)
    change(given)
    with pytest.raises(ValueError, match=r"was changed later: `(first|body)\.\w+`.* not random. .*copy.deepcopy"):
        tb.predict(posterior, INPUTS)
    with pytest.raises(ValueError, match="was changed later"):
        fitted(model)
    with pytest.raises(ValueError, match="was changed later"):
        posterior.save(tmp_path / "posterior.safetensors")
    with pytest.raises(ValueError, match="was changed later"):
        posterior.module()
    assert not [*tmp_path.iterdir()]
    fitted(model_of(given))  # a new model is of the network as it is now


def other_memory(network: Adapted) -> None:
    network.double()


def random_weights(network: Adapted) -> None:
    with torch.no_grad():
        network.lora_A.weight.zero_()


def modes(network: Adapted) -> None:
    network.eval().requires_grad_(False)
    network(INPUTS)


@pytest.mark.parametrize("change", [other_memory, random_weights, modes])
def test_what_leaves_constants_as_they_are_changes_nothing(change: Callable[[Adapted], None]):
    given = adapted()
    posterior = fitted(model_of(given))
    expected = tb.predict(posterior, INPUTS).probs
    change(given)
    assert torch.equal(tb.predict(posterior, INPUTS).probs, expected)


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_of_a_network_may_be_changed(change: Callable[[Adapted], None]):
    given = adapted()
    posterior = fitted(model_of(copy.deepcopy(given)))
    expected = tb.predict(posterior, INPUTS).probs
    change(given)
    assert torch.equal(tb.predict(posterior, INPUTS).probs, expected)


def test_statistics_of_a_frozen_batch_norm_are_those_at_the_time():
    given = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    posterior = fitted(model_of(given, "3.*"))
    expected = tb.predict(posterior, INPUTS).probs
    given.train()(100 * INPUTS)
    assert torch.equal(tb.predict(posterior, INPUTS).probs, expected)
    assert given[1].running_mean.abs().max() > 1  # type: ignore[union-attr,operator]


# --- unusual bases ---


class Tied(nn.Module):
    """A frozen table that is the last layer too, with an adapter between."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(2, 4), nn.Linear(4, 2, bias=False)
        self.last.weight = self.table.weight
        self.lora = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.lora(inputs + self.table((inputs[:, 0] > 0).long())))


def views() -> nn.Module:
    """Two frozen weights, one of which is a part of the other, and of a random one."""
    made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    whole, part = made[0].weight, made[1]
    part.weight = nn.Parameter(whole.detach().T, requires_grad=False)  # type: ignore[union-attr,operator]
    made[2].weight = nn.Parameter(made[3].weight.detach()[:1].expand(4, 4), requires_grad=False)  # type: ignore[union-attr,index]
    return made


def half_frozen() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    made[0].weight.requires_grad_(False)
    made[2].bias.requires_grad_(False)
    return made


def flat() -> nn.Module:
    """All weights, random ones too, lie behind one another, as in a file that is mapped into memory."""
    made = adapted(8)
    memory, start = torch.cat([p.detach().flatten() for p in made.parameters()]), 0
    for parameter in made.parameters():
        parameter.data = memory[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    return made


def low() -> nn.Module:
    return adapted(8).bfloat16()


UNUSUAL: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tied": (Tied, "lora*"),
    "views": (views, "3.*"),
    "flat": (flat, "*lora*"),
    "half frozen": (half_frozen, "*"),
    "bfloat16": (low, "*lora*"),
}
each_unusual = pytest.mark.parametrize(("make", "random"), UNUSUAL.values(), ids=UNUSUAL.keys())


@each_unusual
@pytest.mark.parametrize("form", ["module", "factory"])
def test_unusual_bases_are_borrowed(make: Callable[[], nn.Module], random: str, form: str):
    with torch.random.fork_rng(devices=[]):
        given = make()
    before = snapshot(given)
    model = model_of(given if form == "module" else lambda: given, random)
    assert_borrowed(model.network, given)
    inputs = INPUTS.to(model.network.precision.inputs)
    assert_close(model.network(model.network.weights(), inputs), given(inputs).float())
    posterior = fitted(model)
    tb.predict(posterior, INPUTS)
    after = snapshot(given)
    assert all(torch.equal(after[name], value) for name, value in before.items())


@each_unusual
@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copied_model_has_a_base_of_its_own(make: Callable[[], nn.Module], random: str, way: Callable[..., tb.Model]):
    given = make()
    model = model_of(given, random)
    other, weights_D = way(model), model.given_weights()
    inputs = INPUTS.to(model.network.precision.inputs)
    expected = other.network(weights_D, inputs)
    # the kernel that a processor takes depends on strides, which views have and copies do not
    torch.testing.assert_close(model.network(weights_D, inputs), expected)
    assert not {*places(other.network.constants.items()).values()} & {*places(given.named_parameters()).values()}
    with torch.no_grad():
        for parameter in given.parameters():
            if parameter.is_contiguous():
                parameter.mul_(2)
    assert torch.equal(other.network(weights_D, inputs), expected)
    other.place(INPUTS)
    with torch.no_grad():
        next(iter(other.network.constants.values())).data.fill_(3.0)
    with pytest.raises(ValueError, match="was changed later"):
        other.place(INPUTS)


def test_a_pickled_model_holds_its_base_once():
    given = adapted()
    base = sum(p.nbytes for name, p in given.named_parameters() if "lora" not in name)
    assert len(pickle.dumps(model_of(given))) < 1.5 * base


@pytest.mark.parametrize("form", ["module", "factory"])
def test_threads_read_one_base(form: str):
    given = adapted()
    model = model_of(given if form == "module" else lambda: given)
    posterior = fitted(model)
    expected, actual, wrong = tb.predict(posterior, INPUTS).probs, [], []

    def work() -> None:
        try:
            assert_borrowed(model.network, given)
            actual.append((tb.predict(posterior, INPUTS).probs, fitted(model).weights_MD))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for probs, weights_MD in actual:
        assert torch.equal(probs, expected)
        assert_close(weights_MD, posterior.weights_MD, rtol=1e-5, atol=1e-6)

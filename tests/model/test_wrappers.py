"""Modules wrapped by torch.compile, whole or in part, or by data parallelism: all is as of the plain module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import torchbayes as tb
from tests.oracles import classes, normal

ROWS = (normal(12, 3, seed=0), classes(12, 3, seed=1))


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def whole() -> nn.Module:
    return torch.compile(plain(), backend="eager")  # type: ignore[return-value]


def part() -> nn.Module:
    module = plain()
    module[0] = torch.compile(module[0], backend="eager")  # type: ignore[assignment]
    return module


def in_place() -> nn.Module:
    module = plain()
    module.compile(backend="eager")
    return module


class Decorated(nn.Sequential):
    @torch.compile(backend="eager")
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(input)


def decorated() -> nn.Module:
    return Decorated(*plain())


def parallel() -> nn.Module:
    return nn.DataParallel(plain())


def both() -> nn.Module:
    return torch.compile(nn.DataParallel(whole()), backend="eager")  # type: ignore[return-value]


WRAPPED = {"whole": whole, "part": part, "in_place": in_place, "parallel": parallel, "both": both}
# A method that is compiled cannot be unwrapped: PyTorch traces what the library watches calls by, and warns of it.
_TRACED = pytest.mark.filterwarnings("ignore::UserWarning")
EVERY = [*(pytest.param(make, id=name) for name, make in WRAPPED.items())]
EVERY += [pytest.param(decorated, id="decorated", marks=_TRACED)]


@pytest.fixture
def process_group() -> Iterator[None]:
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model(network: nn.Module | Callable[[], nn.Module]) -> tb.Model:
    return tb.Model(network, tb.likelihoods.Categorical())


@pytest.mark.parametrize("make", EVERY)
def test_a_wrapped_module_is_fitted_saved_and_loaded_as_the_plain_one(make: Callable[[], nn.Module], tmp_path: Path):
    given = make()
    names = [*given.state_dict()]
    wrapped, bare = model(given), model(plain())
    assert wrapped.layout.names == bare.layout.names
    assert [*given.state_dict()] == names

    method = tb.MAP(members=2, epochs=2)
    ours, theirs = tb.fit(wrapped, ROWS, method), tb.fit(bare, ROWS, method)
    assert isinstance(ours, tb.Point)
    assert isinstance(theirs, tb.Point)
    torch.testing.assert_close(ours.weights_MD, theirs.weights_MD)
    for posterior, other in ((ours, bare), (theirs, wrapped)):
        loaded = tb.load(posterior.save(tmp_path / f"{id(other)}.safetensors"), other)
        before = tb.predict(posterior, ROWS[0]).probs
        torch.testing.assert_close(tb.predict(loaded, ROWS[0]).probs, before)


@pytest.mark.parametrize("make", EVERY)
def test_a_fit_starts_at_a_wrapped_module_and_laplace_sees_its_layers(make: Callable[[], nn.Module]):
    trained = make()
    inside = {n.replace("_orig_mod.", "").removeprefix("module."): t for n, t in trained.state_dict().items()}
    start = plain()
    start.load_state_dict(inside)
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    for network in (plain(), make()):
        ours = tb.fit(model(network), ROWS, method, start=trained)
        theirs = tb.fit(model(plain()), ROWS, method, start=start)
        assert isinstance(ours, tb.LaplacePosterior)
        assert isinstance(theirs, tb.LaplacePosterior)
        expected = tb.Linearised(theirs).functions(ROWS[0])
        torch.testing.assert_close(tb.Linearised(ours).functions(ROWS[0]), expected)


def test_members_come_from_a_function_that_compiles():
    ours, theirs = (model(make).starting_weights([3, 4])[0] for make in (whole, plain))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_compiled_part_used_twice_is_unwrapped_at_both_places():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.compile(nn.Linear(3, 3), backend="eager")
            self.second = self.first

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(inputs))

    made = model(Twice().double())
    assert made.layout.names == ("first.weight", "first.bias")
    weight, bias = made.layout.split(made.given_weights()).values()
    expected = (ROWS[0] @ weight.T + bias) @ weight.T + bias
    torch.testing.assert_close(made.network(made.given_weights(), ROWS[0]), expected)


@pytest.mark.usefixtures("process_group")
def test_a_module_of_distributed_data_parallelism_is_the_one_inside():
    inside = plain()
    wrapped = nn.parallel.DistributedDataParallel(inside)
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    made = model(wrapped)
    assert made.layout.names == model(inside).layout.names
    for network in (wrapped, plain()):
        posterior = tb.fit(model(network), ROWS, method, start=wrapped)
        assert isinstance(posterior, tb.LaplacePosterior)
        torch.testing.assert_close(posterior.mean_MD[0], made.given_weights(), rtol=0, atol=0)


@pytest.mark.usefixtures("process_group")
def test_a_start_may_be_split_over_processes():
    shards = plain()
    expected = model(shards).given_weights()
    fully_shard(shards, mesh=init_device_mesh("cpu", (1,)))
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    posterior = tb.fit(model(plain()), ROWS, method, start=shards)
    assert isinstance(posterior, tb.LaplacePosterior)
    torch.testing.assert_close(posterior.mean_MD[0], expected, rtol=0, atol=0)


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning")
def test_layers_that_hold_or_compute_on_shards_in_other_ways_are_refused():
    mesh = init_device_mesh("cpu", (1,))
    first = FullyShardedDataParallel(plain(), device_mesh=mesh, device_id=torch.device("cpu"))
    tensor_parallel = parallelize_module(plain(), mesh, {"0": ColwiseParallel()})
    buffered = plain()
    buffered.register_buffer("shift", distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
    for network, message in (
        (first, "FullyShardedDataParallel, the first FSDP"),
        (tensor_parallel, "compute on shards, as tensor parallelism"),
        (buffered, "`shift` is a buffer that is split"),
    ):
        with pytest.raises(ValueError, match=message):
            model(network)

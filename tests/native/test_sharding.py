"""Networks that are split over two processes: every fit and file is as that of the whole network."""

from __future__ import annotations

import weakref
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchbayes as tb
from tests.oracles import assert_close, classes, normal
from tests.ranks import check, launch
from torchbayes.adapters import shard
from torchbayes.checks import SettingError
from torchbayes.density.ranks import chunk_of
from torchbayes.native import sharding

ROWS = (normal(13, 5, seed=0), classes(13, 3, seed=1))  # 13, so that the processes have other numbers of rows
DEEP = 6  # frozen layers
METHODS: dict[str, Any] = {
    "map": tb.MAP(members=2, epochs=2, batch_size=5),
    "ivon": tb.IVON(epochs=2, batch_size=5),
    "kronecker": tb.Laplace(structure="kronecker", check_mode=False, prior="model"),
    "sghmc": tb.SGHMC(steps=8, burn_in=4, thin=1, step_size=1e-3, batch_size=5),
    "hmc": tb.HMC(chains=2, steps=3, burn_in=1, step_size=1e-2, trajectory=0.03, chunk_size=6),
}


def made() -> nn.Sequential:
    """Random layers before and after frozen ones, one of which is used twice."""
    layers: list[nn.Module] = [nn.Linear(5, 7), nn.Tanh()]
    tied = nn.Linear(7, 7, bias=False)
    layers += [tied, nn.LayerNorm(7), nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7), tied, nn.Tanh(), nn.Linear(7, 3)]
    network = nn.Sequential(*layers).double()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=number) / parameter.shape[-1] ** 0.5)
    network[2:9].requires_grad_(False)
    return network


def by_fsdp() -> nn.Module:
    """The network with `fully_shard` on a frozen layer, and on all, so that random weights are split too."""
    network = made()
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(network[4], mesh=mesh)
    fully_shard(network, mesh=mesh)
    network(ROWS[0])  # leaves what is outside of layer 4 gathered
    return network


def model(network: nn.Module) -> tb.Model:
    return tb.Model(network, tb.likelihoods.Categorical())


def predicted(posterior: tb.Posterior) -> Tensor:
    return tb.predict(posterior, ROWS[0], draws=4).probs


def same_fits(folder: Path) -> None:
    torch.use_deterministic_algorithms(True)
    with tb.Ranks.grid(chains=1) as ranks:
        alone, shards = model(made()), model(shard(made()))
        assert shards.layout.shapes == alone.layout.shapes
        for name, method in METHODS.items():
            start: dict[str, Any] = {"start": made()} if name == "kronecker" else {}
            expected = tb.fit(alone, ROWS, method, **start)
            path, probs = folder / f"{name}.safetensors", predicted(expected)
            ours = tb.fit(shards, ROWS, method, ranks=ranks, **start)
            assert_close(predicted(ours), probs, rtol=1e-6)
            if name in {"map", "kronecker"}:
                assert_close(predicted(tb.fit(model(by_fsdp()), ROWS, method, **start)), probs, rtol=1e-6)
            if ranks.first:  # one process saves, and any number read
                tb.load(ours.save(path), alone)
                expected.save(path)
            ranks.wait()
            assert_close(predicted(tb.load(path, shards)), probs)
        tb.fit(shards, ROWS, METHODS["map"], ranks=ranks, directory=folder / "run")
        refusals(shards, ranks, folder)


def refusals(shards: tb.Model, ranks: tb.Ranks, folder: Path) -> None:
    method, posterior = METHODS["map"], tb.fit(shards, ROWS, METHODS["map"])
    for plan in ("native", "vmap", "compiled"):
        with pytest.raises(SettingError, match="the network is split over processes"):
            tb.fit(shards, ROWS, tb.MAP(members=2, epochs=1, plan=plan))
    with pytest.raises(ValueError, match="each would write to the same `directory`"):
        tb.fit(shards, ROWS, method, directory=folder / "twice")
    with pytest.raises(ValueError, match="2 ranks that share the members do not"):
        tb.fit(shards, ROWS, method, ranks=tb.Ranks.grid(data=1, chains=2))
    narrow, rows = nn.Linear(5, 1, bias=False).double().requires_grad_(False), ROWS[0]  # less than a row each
    expected = narrow(rows)
    assert_close(shard(narrow)(rows), expected, rtol=0, atol=0)
    raised = list[Exception]()

    def elsewhere() -> None:
        try:
            tb.predict(posterior, ROWS[0])
        except SettingError as error:
            raised.append(error)

    thread = Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "Use it in the thread that made the Model" in str(raised[0])
    with pytest.raises(ValueError, match="no frozen matrix to split"):
        shard(nn.Linear(2, 3))
    with pytest.raises(ValueError, match="must have one dimension; got 2"):
        shard(made(), mesh=init_device_mesh("cpu", (1, 2)))
    reading = nn.MultiheadAttention(4, 1)
    fully_shard(reading.requires_grad_(False), mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(SettingError, match="reads a parameter that is split over processes from another layer"):
        tb.fit(model(Attending(reading)), (normal(6, 2, 4, seed=0).float(), classes(6, 4, seed=1)), tb.MAP(epochs=1))


class Attending(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.head = attention, nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.attention(inputs, inputs, inputs)[0]).mean(1)


def memory() -> None:
    """In both passes a process holds its shards, and at most the layer that is computed and the one before."""
    with tb.Ranks.grid(chains=1):
        widths = [nn.Linear(40, 40, bias=False).requires_grad_(False) for _ in range(DEEP)]
        network = shard(nn.Sequential(nn.Linear(5, 40), *widths, nn.Linear(40, 3)))
        made, alive = model(network), list[weakref.ref[Tensor]]()
        held = sum(sharding.local(t).untyped_storage().nbytes() for t in made.network.constants.values())
        assert held == DEEP * 40 * 40 * 4 // 2
        whole, most, calls = sharding.whole, 0, 0

        def counted(tensor: Tensor) -> Tensor:
            nonlocal most, calls
            gathered = whole(tensor)
            if gathered is not tensor:
                alive.append(weakref.ref(gathered))
                calls += 1
                most = max(most, sum(ref() is not None for ref in alive))
            return gathered

        sharding.whole = counted
        density = tb.density.LogDensity(made, 13, tb.Batch(ROWS[0].float(), ROWS[1]))
        density(made.given_weights().unsqueeze(0))
        most = calls = 0
        density(made.given_weights().unsqueeze(0))
        assert calls == 2 * DEEP
        assert 1 <= most <= 2


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_fits_and_files_are_those_of_the_whole_network(tmp_path: Path) -> None:
    check(launch(same_fits, 2, tmp_path, tmp_path))


def test_a_process_holds_its_shards_and_a_layer(tmp_path: Path) -> None:
    check(launch(memory, 2, tmp_path))


def test_there_must_be_processes() -> None:
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="no process group over which to split the network"):
        shard(made())


@pytest.mark.parametrize(("rows", "size"), [(13, 6), (13, 1), (9, 2), (12, 5), (2, 1)])
def test_all_shares_of_the_rows_have_as_many_chunks(rows: int, size: int) -> None:
    ranks = tb.Ranks(data=2)
    chunk = chunk_of(ranks, rows, size)
    assert -(-(rows // 2) // chunk) == -(-(rows - rows // 2) // chunk)
    assert chunk >= size

"""A step does not wait for the device: no number of it is looked at, and nothing is copied to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import torchbayes as tb
from tests.device.emulated import DEVICE, Emulated
from tests.device.test_methods import model_on, start_of
from tests.laws.cases import METHODS, normal, rows_of, with_variants_as_studies
from tests.laws.test_last_layer_laws import vbll
from tests.laws.test_method_laws import SMALL
from tests.laws.test_sampler_laws import SAMPLERS, VARIANTS
from torchbayes.density import density
from torchbayes.driver.loop import Means, Reader
from torchbayes.driver.run import Shard
from torchbayes.methods import finite
from torchbayes.model.sources.sources import as_source

SEEDS = (7, 8)
LONGER = {**SMALL, "batch_size": 6}  # epochs of four steps; the last of an epoch may be looked at
# online Laplace takes eigenvalues in its passes; scores of particles solve a system of their number at each step; maps
# of zuko look for the true places of a mask
WAITING = {n for n in METHODS if "online" in n or n.startswith("repulsive") or n == "flow_spline"}
FREE: dict[str, Callable[[], Any]] = {
    **{n: lambda make=make: make(members=2, **LONGER) for n, make in METHODS.items() if n not in WAITING},
    "vbll": lambda: vbll(members=2, **LONGER),
    **{n: make for n, make in SAMPLERS.items() if make().needs.batch_size},
}
ON_ALL_ROWS = {n: make for n, make in SAMPLERS.items() if not make().needs.batch_size}


class Steps:
    """A method that has begun to run on the device, with its steps taken one by one."""

    def __init__(self, method: Any) -> None:
        self.method, self.model = method, model_on(DEVICE)
        needs = method.needs
        source = as_source(self.model, rows_of(), needs.batch_size or 1)
        rows = source.rows() if needs.chunk_size is not None else None
        training = needs.network == "train"
        self.density = tb.LogDensity(self.model, source.num_data, rows, plan="loop", training=training)
        weights_MD, (_, buffers) = start_of(self.model), self.model.starting_weights(SEEDS)
        about = {"seeds": SEEDS, "steps_per_epoch": source.steps_per_epoch}
        self.state = method.init(self.density, weights_MD, buffers, **about)
        self.reader, self.means = Reader(source, SEEDS), Means(Shard(2))

    def take(self, counts: Emulated) -> tuple[int, int]:
        """Take a step; returns how often the program waited for a number, and for a copy to the device."""
        visit = self.method.visit(self.state)
        assert visit is not None
        batch = self.reader.read(visit)
        counts.forget()
        self.state, info = self.method.step(self.density, self.state, batch, donate=True)
        self.method.draw(self.state)
        self.means.add(info)
        return len(counts.waits), len(counts.uploads)


# what these do in a step others of their class do too
ALIKE = (
    "map_adamw",
    "fge_sam",
    "vi_alpha_by_layers",
    "mnf_by_layers",
    "flow_radial",
    "bsam_parts",
    "sgld_preconditioned",
    *("map_sgd", "vi", "vi_alpha", "vi_radial", "ivon", "sghmc", "smile_preconditioned", "swa", "swag_diagonal"),
)


@pytest.mark.parametrize("make", with_variants_as_studies(FREE, ALIKE))
def test_steps_on_minibatches_never_wait(make: Callable[[], Any], counts: Emulated) -> None:
    steps = Steps(make())
    steps.take(counts)  # the first step checks its rows
    for _ in range(2):
        waited = steps.take(counts)
        assert waited == (0, 0), [*counts.waits, *counts.uploads]


# five steps of these end before a mass is there; `hmc` and `mclmc` take them
LIKE_THESE = (*VARIANTS, "hmc_diagonal", "mams")


@pytest.mark.parametrize("name", with_variants_as_studies({n: n for n in ON_ALL_ROWS}, LIKE_THESE))
def test_metropolis_waits_a_few_times_an_iteration_whatever_its_length(
    name: str, counts: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its test, and in burn-in for the acceptance; it gives the device all step sizes and uniforms at once."""
    steps, adapting = Steps(ON_ALL_ROWS[name]()), ON_ALL_ROWS[name]().burn_in
    evaluated = _watched(monkeypatch)
    for number in range(5):
        evaluated.clear()
        waits, uploads = steps.take(counts)
        if name.startswith(
            "nuts"
        ):  # at each leapfrog step whether trees grow; at each doubling where, and which chains stop
            doublings = len(evaluated).bit_length()
            waits, uploads = waits - len(evaluated) - 16 * doublings, uploads - len(evaluated) - doublings
        if name.startswith("elliptical"):  # at each evaluation which chains go on; it gives the device these and angles
            waits, uploads = waits - len(evaluated), uploads - 2 * len(evaluated)
            uploads -= 3  # at each step heights, and means and standard deviations of the prior
        assert waits <= (2 if number < adapting else 1), counts.waits
        assert uploads <= 2, counts.uploads


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every evaluation of a density."""
    seen: list[int] = []
    evaluate = density._scaled

    def counted(*args: Any) -> Any:
        seen.append(1)
        return evaluate(*args)

    monkeypatch.setattr(density, "_scaled", counted)
    return seen


def test_what_waits_is_counted(counts: Emulated) -> None:
    """Controls: each of these makes a program wait for a GPU."""
    numbers = torch.arange(4.0, device=DEVICE)
    waiting: dict[str, Callable[[], object]] = {
        "item": numbers[0].item,
        "bool": lambda: bool((numbers > 1).any()),
        "cpu": numbers.cpu,
        "tolist": numbers.tolist,
        "nonzero": numbers.nonzero,
        "mask": lambda: numbers[numbers > 1],
        "equal": lambda: torch.equal(numbers, numbers),
    }
    for name, wait in waiting.items():
        counts.forget()
        wait()
        assert len(counts.waits) == 1, name
    for upload in (lambda: torch.tensor([1.0, 2.0], device=DEVICE), lambda: numbers[torch.tensor([0, 1])]):
        counts.forget()
        upload()
        assert len(counts.uploads) == 1
    counts.forget()
    torch.where(numbers > 1, numbers, 0.0).sum()
    assert not counts.waits
    assert not counts.uploads


def _mixed_noise(like_MD: Tensor) -> Tensor:
    return like_MD + torch.randn(like_MD.shape, dtype=like_MD.dtype)


def _mixed_mask(weights_MD: Tensor) -> Tensor:
    return torch.where(torch.ones(weights_MD.shape, dtype=torch.bool), weights_MD, 0.0)


def _wrong_generator(weights_MD: Tensor) -> Tensor:
    return weights_MD.clone().normal_(generator=torch.Generator().manual_seed(3))


def _not_moved(weights_MD: Tensor) -> Tensor:
    return weights_MD * torch.from_numpy(np.ones(weights_MD.shape))


@pytest.mark.parametrize("wrong", [_mixed_noise, _mixed_mask, _wrong_generator, _not_moved])
def test_mixed_devices_are_refused(wrong: Callable[[Tensor], Tensor], counts: Emulated) -> None:
    """Controls: each of these works on a CPU and fails on a GPU."""
    del counts
    wrong(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match=r"same device|generator of the device"):
        wrong(torch.zeros(2, 3, dtype=torch.float64, device=DEVICE))
    right = torch.randn(2, 3, device=DEVICE, generator=torch.Generator(device=DEVICE).manual_seed(3))
    assert right.device.type == DEVICE.type


def test_a_method_with_a_wrong_step_fails(monkeypatch: pytest.MonkeyPatch, counts: Emulated) -> None:
    """The control of the tests of methods: noise made on the CPU passes there, and fails on the device."""

    def wrong(state: Any, step: int, scale: float) -> Tensor:
        return scale * normal(*state.weights_MD.shape, seed=step)

    monkeypatch.setattr("torchbayes.methods.sgmcmc.sgld.scaled_noise", wrong)
    with pytest.raises(RuntimeError, match="same device"):
        Steps(SAMPLERS["sgld"]()).take(counts)


LATE: dict[str, tuple[Any, str]] = {
    "map": (tb.MAP(optimizer=tb.SGD(lr=1e6), epochs=50, batch_size=6, plan="loop"), "learning rate"),
}


@pytest.mark.parametrize("name", LATE)
def test_divergence_that_is_seen_late_names_its_step_and_spoils_no_checkpoint(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a GPU: the message is that of a CPU, where every step is looked at; what was saved stays finite."""
    method, words = LATE[name]
    inputs = normal(24, 4)
    data = (inputs, inputs[:, :1])

    def raised(directory: Path) -> str:
        model = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(0.1))
        with pytest.raises(tb.DivergedError, match=rf"diverged at step \d+ of .*{words}") as caught:
            tb.fit(
                model, data, method, start=torch.zeros(model.layout.size).double(), directory=directory, callbacks=()
            )
        return str(caught.value).partition(", at")[0]

    expected = raised(tmp_path / "each")
    monkeypatch.setattr(finite, "LAG", {})
    monkeypatch.setattr("torchbayes.driver.loop.all_finite", lambda _: True)  # else the end of an epoch sees it too
    assert raised(tmp_path / "late") == expected
    kept = load_file(tmp_path / "late" / "checkpoint.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in kept.values() if tensor.is_floating_point())


def test_a_chain_that_is_seen_late_to_have_diverged_goes_back_to_weights_that_were_sound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where no step waits to be looked at: what was drawn until then is replaced."""
    monkeypatch.setattr(finite, "LAG", {})
    inputs = normal(200, 4)  # epochs of 34 steps, each of which multiplies an error by hundreds
    model = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(0.1))
    method = tb.SGLD(2, 200, 0, step_size=0.005, batch_size=6, plan="loop", thin=1)
    with pytest.warns(tb.ProblemWarning, match="chain 1 diverged"):
        posterior = tb.fit(model, (inputs, inputs[:, :1]), method, callbacks=())
    assert isinstance(posterior, tb.Draws)
    assert (posterior.weights_MSD.abs() < 3).all()

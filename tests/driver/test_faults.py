"""Samplers that are killed, run out of disk, find damage or are resumed differently: nothing is lost or wrong."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tests.disks import fill_draws
from tests.laws.cases import (
    assert_same_tensors,
    losses,
    model_of,
    normal,
    rows_of,
    with_variants_as_studies,
)
from tests.laws.test_method_laws import keep_every
from tests.oracles import assert_close
from tests.processes import forked

import torchbayes as tb
from torchbayes.driver import run as run_module
from torchbayes.driver.run import Shard
from torchbayes.methods.sampler import Sampler, retained_steps
from torchbayes.posteriors.files import read_tensors
from torchbayes.posteriors.store import DrawFile

pytestmark = pytest.mark.usefixtures("unjudged_fits")

KILLED: dict[str, Sampler] = {
    "hmc": tb.HMC(2, 60, 25, 2, trajectory=0.6, jitter=0.3, mass="diagonal", plan="loop"),
    "sghmc": tb.SGHMC(2, 240, 40, 3, step_size=1e-3, batch_size=6, preconditioned=True, plan="loop"),
}
SHORT: dict[str, Sampler] = {
    "hmc": tb.HMC(2, 24, 8, 2, step_size=0.05, trajectory=0.1, plan="loop"),
    "sghmc": tb.SGHMC(2, 24, 8, 2, step_size=1e-3, batch_size=6, plan="loop"),
}
# whatever the method, its files are written and read by the same code; here batches end within epochs
shorts = pytest.mark.parametrize("method", with_variants_as_studies(SHORT, ["hmc"]))


def run(method: Any, directory: Any, model: tb.Model | None = None, **settings: Any) -> tb.Draws:
    """Start or continue one fit."""
    options = {"seed": 11, "resume": True, "callbacks": (), **settings}
    posterior = tb.fit(model or model_of(), options.pop("data", rows_of()), method, directory=directory, **options)
    assert isinstance(posterior, tb.Draws)
    return posterior


def run_slowly(name: str, directory: Path, pause: float = 0.004) -> None:
    """A run, in a process of its own, whose density sleeps, so that whatever comes while it is on comes in a step."""
    run_module._EVERY = 0.05  # seconds between checkpoints
    evaluate = tb.LogDensity.__call__

    def slowly(*args: Any, **options: Any) -> Any:
        time.sleep(pause)
        return evaluate(*args, **options)

    tb.LogDensity.__call__ = slowly  # type: ignore[method-assign]
    run(KILLED[name], directory)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def step_of(directory: Path) -> int:
    """The step after which the last checkpoint was written; -1 without one."""
    path = directory / "checkpoint.safetensors"
    return read_tensors(path)[1]["numbers"]["/step"] if path.exists() else -1


# --- killed ---


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sghmc", pytest.param("hmc", marks=pytest.mark.study)])  # the files are the same
def test_killed_within_a_step_and_resumed_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    method, whole, directory = KILLED[name], tmp_path / "whole", tmp_path / "run"
    expected = run(method, whole)
    _kill(name, directory, after=random.Random(name).uniform(0.1, 0.5))
    assert 0 < step_of(directory) < method.steps, "killed before the first checkpoint or after the last"
    with (directory / "draws.bin").open("ab") as file:  # a draw that was being written
        file.write(b"torn")
    actual = run(method, directory)
    assert_same_tensors(actual.tensors(), expected.tensors())
    assert torch.equal(DrawFile.open(directory).read(), DrawFile.open(whole).read())
    assert losses(directory) == losses(whole)
    assert contents(directory).keys() == contents(whole).keys()


def _kill(name: str, directory: Path, after: float) -> None:
    """Start or continue a run, and kill it some seconds after its first new step."""
    log = directory / "log.jsonl"
    before, until = log.stat().st_mtime_ns if log.exists() else 0, time.monotonic() + 240
    process = forked().Process(target=run_slowly, args=(name, directory))
    process.start()
    try:
        while process.is_alive() and (not log.exists() or log.stat().st_mtime_ns == before):
            assert time.monotonic() < until, "the run did not start"
            time.sleep(0.005)
        time.sleep(after)
    finally:
        process.kill()
        process.join()


# --- a full disk ---


def run_out(monkeypatch: pytest.MonkeyPatch, method: Any, directory: Path, *, everything: bool) -> BaseException:
    """Let the disk be full after 5 draws, for draws alone or for all files, with a checkpoint after every step."""
    append = DrawFile.append

    def fail(*_: Any, **__: Any) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")

    with monkeypatch.context() as inside:

        def append_or_fail(self: DrawFile, weights_MD: torch.Tensor) -> None:
            if len(self) == 5:
                fill_draws(inside)
                if everything:
                    inside.setattr("torchbayes.posteriors.files.save_file", fail)
            append(self, weights_MD)

        keep_every(inside, 10.0)
        inside.setattr(DrawFile, "append", append_or_fail)
        with pytest.raises(OSError, match="No space left on device") as caught:
            run(method, directory)
    return caught.value


disks = pytest.mark.parametrize("everything", [False, True], ids=["draws", "everything"])


@shorts
@disks
def test_a_full_disk_leaves_what_was_written_readable(
    method: Sampler, everything: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(method, tmp_path / "whole")
    run_out(monkeypatch, method, tmp_path / "full", everything=everything)
    torch.testing.assert_close(DrawFile.open(tmp_path / "full").read(), expected.weights_MSD[:, :5], rtol=0, atol=0)
    assert not (tmp_path / "full" / "posterior.safetensors").exists()
    assert step_of(tmp_path / "full") == 19  # the last step before the one whose draw was not written
    assert not [name for name in contents(tmp_path / "full") if name.startswith(".")]


@shorts
@disks
def test_a_full_disk_is_said_once(
    method: Sampler, everything: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = run_out(monkeypatch, method, tmp_path, everything=everything)
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
    assert "draw 6 could not be written" in str(error)
    assert not getattr(error, "__notes__", [])  # no word of a state that is not in the checkpoint


@shorts
@disks
def test_a_run_goes_on_when_there_is_room_again(
    method: Sampler, everything: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(method, tmp_path / "whole")
    run_out(monkeypatch, method, tmp_path / "full", everything=everything)
    assert_same_tensors(run(method, tmp_path / "full").tensors(), expected.tensors())
    assert losses(tmp_path / "full") == losses(tmp_path / "whole")


@shorts
def test_draws_reach_the_disk_before_the_checkpoint_that_counts_them(
    method: Sampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, counted = [0], []
    sync, save = DrawFile.sync, run_module.save_checkpoint

    def recorded(self: DrawFile) -> None:
        sync(self)
        synced.append(len(self))

    def checked(path: Path, state: Any, about: Any) -> None:
        counted.append((len(retained_steps(method, state.step)), synced[-1]))
        save(path, state, about)

    keep_every(monkeypatch, 10.0)
    monkeypatch.setattr(DrawFile, "sync", recorded)
    monkeypatch.setattr(run_module, "save_checkpoint", checked)
    run(method, tmp_path)
    assert len(counted) >= 24
    assert all(draws == on_disk for draws, on_disk in counted)
    assert counted[-1] == (8, 8)


# --- damage ---

DAMAGED: dict[str, tuple[Callable[[bytes, Path], bytes], str]] = {
    "cut": (lambda whole, _: whole[: len(whole) // 2], "checkpoint.safetensors is damaged"),
    "other": (lambda _, run: (run / "posterior.safetensors").read_bytes(), "is not a checkpoint but a 'draws'"),
}


@shorts
@pytest.mark.parametrize(("damage", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_checkpoint_is_refused_and_the_draws_are_left(
    method: Sampler, damage: Callable[[bytes, Path], bytes], message: str, tmp_path: Path
) -> None:
    expected, path = run(method, tmp_path).weights_MSD.clone(), tmp_path / "checkpoint.safetensors"
    path.write_bytes(damage(path.read_bytes(), tmp_path))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message):
        run(method, tmp_path, steps=40)
    assert contents(tmp_path) == before
    torch.testing.assert_close(DrawFile.open(tmp_path).read(), expected, rtol=0, atol=0)


@shorts
def test_draws_that_were_cut_are_missed(method: Sampler, tmp_path: Path) -> None:
    run(method, tmp_path)
    file = DrawFile.open(tmp_path)
    file.truncate(3)
    with pytest.raises(ValueError, match=r"holds 3 draws, but the checkpoint is 8 draws into the run"):
        run(method, tmp_path)
    assert len(file) == 3


@shorts
def test_draws_beyond_the_checkpoint_are_made_anew(method: Sampler, tmp_path: Path) -> None:
    """As after a kill between draw and checkpoint: the file is right again, and a reader keeps what was behind."""
    expected = run(method, tmp_path / "whole")
    run(method, tmp_path / "cut", steps=20)
    file = DrawFile.open(tmp_path / "cut")
    for number in range(3):
        file.append(normal(2, file.size, seed=number))
    seen_MSD, place = file.read(), file.path.stat().st_ino
    assert_same_tensors(run(method, tmp_path / "cut").tensors(), expected.tensors())
    assert file.path.stat().st_ino != place  # else what was mapped may be there no more
    assert seen_MSD.shape[1] == 9
    assert torch.equal(seen_MSD[:, 8], normal(2, file.size, seed=2))


def test_a_chain_that_diverges_keeps_its_draws_and_its_last_finite_state(tmp_path: Path) -> None:
    model, inputs = tb.Model(torch.nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(0.1)), normal(24, 4)
    method = tb.SGHMC(2, 400, 0, 1, step_size=1e3, batch_size=6, plan="loop")
    with pytest.raises(tb.DivergedError, match=r"diverged at step \d+ of 400.*Lower the step size") as caught:
        run(method, tmp_path, model, data=(inputs, inputs[:, :1]))
    step = step_of(tmp_path)
    assert f"diverged at step {step - 1} of" in str(caught.value)
    weights_MSD = DrawFile.open(tmp_path).read()
    assert weights_MSD.shape[1] == step > 3
    kept = load_file(tmp_path / "checkpoint.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in kept.values())
    assert torch.equal(kept["/weights_MD"], weights_MSD[:, -1])


# --- made longer ---


def test_a_run_that_ended_within_an_epoch_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    """Four steps an epoch: the log is that of one run to the last end, with one line for each epoch.

    It ends twice within an epoch, at the end of that, within the next and within a later one.
    """
    method, ends = dataclasses.replace(SHORT["sghmc"], thin=1), (9, 10, 12, 13, 22, 24)
    expected = run(method, tmp_path / "whole", steps=ends[-1])
    for end in ends:
        run(method, tmp_path / "parts", steps=end)
        lines = losses(tmp_path / "parts")
        assert [line["epoch"] for line in lines] == list(range(1, -(-end // 4) + 1))
        assert lines[-1]["step"] == end
        whole = end // 4  # what is said of an epoch that is not over differs
        assert lines[:whole] == losses(tmp_path / "whole")[:whole]
    assert torch.equal(DrawFile.open(tmp_path / "parts").read(), expected.weights_MSD)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.parametrize("steps", [10, 9])
def test_a_run_that_ended_within_an_epoch_and_is_made_no_longer_is_left_as_it_is(steps: int, tmp_path: Path) -> None:
    method, told = dataclasses.replace(SHORT["sghmc"], thin=1), []
    run(method, tmp_path, steps=10)
    before = contents(tmp_path)
    run(method, tmp_path, steps=steps, callbacks=[told.append])
    after = contents(tmp_path)
    assert {name for name in before if before[name] != after[name]} <= {"checkpoint.safetensors"}
    assert not told
    run(method, tmp_path, steps=24)
    run(method, tmp_path / "whole", steps=24)
    assert losses(tmp_path) == losses(tmp_path / "whole")


@pytest.mark.parametrize("stop", [10, 11])
def test_a_run_that_is_killed_once_it_was_made_longer_has_one_line_for_each_epoch(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the kill comes within the epoch in which the run had ended, or after it."""
    method, step = dataclasses.replace(SHORT["sghmc"], thin=1), tb.SGHMC.step
    expected = run(method, tmp_path / "whole")
    run(method, tmp_path / "parts", steps=10)
    keep_every(monkeypatch, 10.0)

    def interrupted(self: Any, density: Any, state: Any, *more: Any, **others: Any) -> Any:
        if state.step == stop + 1:
            raise KeyboardInterrupt
        return step(self, density, state, *more, **others)

    with monkeypatch.context() as inside:
        inside.setattr(tb.SGHMC, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(method, tmp_path / "parts")
    assert step_of(tmp_path / "parts") > 10
    assert_same_tensors(run(method, tmp_path / "parts").tensors(), expected.tensors())
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


# --- resumed with other settings ---


@shorts
def test_resuming_with_fewer_steps_than_were_taken_loses_none(method: Sampler, tmp_path: Path) -> None:
    """What was drawn is returned, and the run can still be made longer."""
    expected = run(method, tmp_path / "whole", steps=32)
    first = run(method, tmp_path / "run").weights_MSD.clone()
    before = contents(tmp_path / "run")
    shorter = run(method, tmp_path / "run", steps=12)
    torch.testing.assert_close(shorter.weights_MSD, first, rtol=0, atol=0)
    after = contents(tmp_path / "run")
    assert {name for name in before if before[name] != after[name]} <= {"checkpoint.safetensors"}
    assert_same_tensors(run(method, tmp_path / "run", steps=32).tensors(), expected.tensors())


def test_a_resumed_run_knows_the_lines_of_its_log_up_to_its_step(tmp_path: Path) -> None:
    """By which the whole run is judged: later lines are written anew."""
    with run_module.Run(tmp_path, {}, resume=False, shard=Shard(2)) as first:
        first.restore(None)
        for step in (1, 2, 3):
            first.log({"epoch": step, "step": step, "loss": [float(step), -float(step)]})
    with run_module.Run(tmp_path, {}, resume=True, shard=Shard(2)) as again:
        again.resume_log(2)
        assert_close(again.history.columns()["loss"], [[1.0, 2.0], [-1.0, -2.0]])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sampler], Path]:
    """The directory of each short run, once: what is refused below leaves it as it was."""

    @cache
    def directory_of(method: Sampler) -> Path:
        run(method, directory := tmp_path_factory.mktemp("run") / "of")
        return directory

    return directory_of


@shorts
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"step_size": 0.01}, r"its method\.step_size is .*, now 0\.01"),
        ({"thin": 3}, r"its method\.thin is 2, now 3"),
        ({"burn_in": 4}, r"its method\.burn_in is 8, now 4"),
        ({"chains": 3}, r"its method\.chains is 2, now 3"),
        ({"plan": "vmap"}, r"its method\.plan is 'loop', now 'vmap'"),
    ],
)
def test_resuming_with_other_settings_is_refused(
    method: Sampler, setting: dict[str, Any], message: str, finished: Callable[[Sampler], Path]
) -> None:
    before = contents(directory := finished(method))
    with pytest.raises(ValueError, match=message):
        run(dataclasses.replace(method, **setting), directory)
    assert contents(directory) == before


@shorts
@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"model": model_of(temperature=0.5)}, "its model.temperature is 1.0, now 0.5"),
        ({"method": tb.SGLD(2, 24, 8, 2, step_size=1e-3, batch_size=6, plan="loop")}, "its method.name is"),
        ({"method": tb.MAP(members=2, epochs=6, batch_size=6)}, "its method.name is"),
    ],
)
def test_resuming_another_run_is_refused(
    method: Sampler, own: dict[str, Any], message: str, finished: Callable[[Sampler], Path]
) -> None:
    before = contents(directory := finished(method))
    with pytest.raises(ValueError, match=message):
        run(**{"method": method, "directory": directory, **own})
    assert contents(directory) == before


def test_only_chains_can_be_given_another_length(tmp_path: Path) -> None:
    message = r"`steps` is for samplers, whose chains can go on; got 10 for MAP, .* belongs to its epochs\. .*`start=`"
    with pytest.raises(ValueError, match=message):
        tb.fit(model_of(), rows_of(), tb.MAP(epochs=2), steps=10, directory=tmp_path / "run", callbacks=())
    assert not (tmp_path / "run").exists()


@shorts
@pytest.mark.parametrize(("steps", "message"), [(0, "`steps` must be"), (8, "`burn_in` must lie"), (9, "`thin` must")])
def test_a_length_that_leaves_nothing_is_refused(method: Sampler, steps: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        run(method, tmp_path / "run", steps=steps)
    assert not (tmp_path / "run").exists()

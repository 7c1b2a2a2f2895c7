"""Run directories: one writer at a time, in whatever process; damage costs what is damaged and is said in words."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from tests.covering import some_of
from tests.damage import nobody
from tests.disks import fill
from tests.driver.test_faults import KILLED, SHORT, contents, run, run_slowly
from tests.laws.cases import assert_same_tensors, everything, losses, model_of, rows_of
from tests.processes import forked

import torchbayes as tb
from torchbayes.catalogue.config import CONFIG, fit_run
from torchbayes.catalogue.problem import Problem
from torchbayes.cli.commands import main
from torchbayes.comparison.compare import compare
from torchbayes.comparison.settings import Comparison
from torchbayes.driver.log import read_log
from torchbayes.posteriors import Posterior
from torchbayes.posteriors.files import PART, read_tensors, write_tensors
from torchbayes.posteriors.load import read_draws
from torchbayes.posteriors.locks import NAME, FileWarning, Locked
from torchbayes_experiments import reproduce

pytestmark = pytest.mark.usefixtures("unjudged_fits")

PATIENCE = 240.0  # seconds
SWAG = tb.SWAG(members=2, epochs=6, batch_size=8, rank=2, plan="loop")
SGHMC = SHORT["sghmc"]
METHODS = pytest.mark.parametrize("method", [SWAG, SGHMC], ids=["swag", "sghmc"])


def resume_slowly(directory: Path, said: Path) -> None:
    """Resume in a process of its own, and leave what it says on its standard error."""
    with said.open("w") as file, redirect_stderr(file):
        try:
            run_slowly("sghmc", directory, pause=0.003)
        except BaseException:
            traceback.print_exc()
            raise


def fitted(method: Any, directory: Path, resume: bool = True, **settings: Any) -> Posterior:
    options = {"seed": 11, "callbacks": (), **settings}
    return tb.fit(model_of(), rows_of(), method, directory=directory, resume=resume, **options)


# --- one writer


@pytest.mark.slow
def test_two_resumes_at_once_leave_the_draws_of_one(tmp_path: Path) -> None:
    expected, said = run(KILLED["sghmc"], tmp_path / "whole"), tmp_path / "said.txt"
    first = forked().Process(target=resume_slowly, args=(tmp_path / "run", said))
    first.start()
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "run" / "log.jsonl").exists():
        assert time.monotonic() < until, "the run did not start"
        time.sleep(0.01)
    with pytest.raises(BlockingIOError, match=f"is being written to by process {first.pid} on"):
        run(KILLED["sghmc"], tmp_path / "run")
    first.join(PATIENCE)
    assert said.read_text() == ""
    assert first.exitcode == 0
    assert torch.equal(read_draws(tmp_path / "run", model_of()), expected.weights_MSD)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert contents(tmp_path / "run").keys() == contents(tmp_path / "whole").keys()


@METHODS
def test_a_fit_within_a_fit_of_the_same_directory_is_refused(method: Any, tmp_path: Path) -> None:
    expected = fitted(method, tmp_path / "whole")
    said: list[str] = []

    def again(event: tb.Event) -> None:
        if event.epoch == 2:
            with pytest.raises(BlockingIOError) as caught:
                fitted(method, tmp_path / "run")
            said.append(str(caught.value))

    actual = fitted(method, tmp_path / "run", callbacks=[again])
    assert_same_tensors(everything(actual), everything(expected))
    assert len(said) == 1
    assert f"{tmp_path / 'run'} is being written to by process {os.getpid()} on" in said[0]
    assert contents(tmp_path / "run").keys() == contents(tmp_path / "whole").keys()
    fitted(method, tmp_path / "run")  # free again


def test_the_directory_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fitted(SWAG, tmp_path, callbacks=[lambda event: event.epoch // 0])
    assert not (tmp_path / NAME).exists()
    with pytest.raises(ValueError, match="already holds a run") as kept:
        fitted(SWAG, tmp_path, resume=False)
    assert kept.value.__traceback__ is not None  # whose frames live on
    fitted(SWAG, tmp_path)


def test_what_a_killed_process_left_blocks_nobody_and_goes(tmp_path: Path) -> None:
    expected = fitted(SGHMC, tmp_path / "whole")
    fitted(SGHMC, tmp_path / "run", steps=12)
    (tmp_path / "run" / NAME).write_text('{"host": "far", "process": 1, "since": "then"}')
    for name in ("checkpoint.safetensors", "posterior.safetensors", "draws.bin", "log.jsonl"):
        (tmp_path / "run" / f".{name}.abcdefgh{PART}").write_bytes(b"half")
    other = tmp_path / "run" / ".download.iso.part"
    other.write_bytes(b"another program's")
    assert_same_tensors(everything(fitted(SGHMC, tmp_path / "run")), everything(expected))
    other.unlink()  # which is there
    assert contents(tmp_path / "run").keys() == contents(tmp_path / "whole").keys()


def test_readers_need_no_lock(tmp_path: Path) -> None:
    seen: list[int] = []

    def look(event: tb.Event) -> None:
        assert (tmp_path / NAME).exists()
        draws = read_draws(tmp_path, model_of())
        log = read_log(tmp_path)
        assert log[-1]["step"] == event.step
        seen.append(draws.shape[1])
        if draws.shape[1] >= 4:
            assert tb.diagnose(tb.Draws(model_of(), draws), rows_of()[0], log=tmp_path).draws == draws.shape[1]

    fitted(SGHMC, tmp_path, callbacks=[look])
    assert seen == [0, 0, 2, 4, 6, 8]


@METHODS
def test_a_directory_that_is_removed_ends_the_run_and_is_not_made_again(method: Any, tmp_path: Path) -> None:
    def remove(event: tb.Event) -> None:
        if event.epoch == 3:
            shutil.rmtree(tmp_path / "run")

    message = r"run was removed or replaced while it was written to\. What it held is gone; start anew"
    with pytest.raises(FileNotFoundError, match=message):
        fitted(method, tmp_path / "run", callbacks=[remove])
    assert not (tmp_path / "run").exists()


@METHODS
def test_a_directory_that_may_not_be_written_to_is_said(method: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o555)
    with nobody(), pytest.raises(PermissionError, match=str(tmp_path)):
        fitted(method, tmp_path / "run")


# --- the same for what the command line and the experiments write

LITTLE = Problem(data="digits", network="linear", train_size=40)
COMPARISON = Comparison(LITTLE, {"single": tb.MAP(epochs=1)})


def test_a_fit_by_the_command_line_leaves_the_settings_of_one_that_is_going_on(tmp_path: Path) -> None:
    setup, method = LITTLE.setup(), tb.SGHMC(2, 8, 2, step_size=1e-3, batch_size=20, thin=1)
    fit_run(setup, method, tmp_path, callbacks=())
    before = contents(tmp_path)
    longer = tb.SGHMC(2, 12, 2, step_size=1e-3, batch_size=20, thin=1)
    with Locked(tmp_path), pytest.raises(BlockingIOError, match="being written to by"):
        fit_run(setup, longer, tmp_path, resume=True, callbacks=())
    assert contents(tmp_path) == before
    fit_run(setup, longer, tmp_path, resume=True, callbacks=())
    assert contents(tmp_path)[CONFIG] != before[CONFIG]


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_comparison_is_one_writer_too(how: dict[str, Any], tmp_path: Path) -> None:
    with Locked(tmp_path), pytest.raises(BlockingIOError, match="being written to by"):
        compare(COMPARISON, tmp_path, **how)
    assert list(tmp_path.iterdir()) == []


def test_fits_that_are_going_on_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("data: digits\n")
    fitted(SWAG, tmp_path / "fits" / "multiswag")
    before = contents(tmp_path / "fits" / "multiswag")
    with Locked(tmp_path / "fits" / "multiswag"), pytest.raises(BlockingIOError, match="multiswag is being written to"):
        compare(COMPARISON, tmp_path, overwrite=True)
    assert contents(tmp_path / "fits" / "multiswag") == before


def test_an_experiment_and_a_comparison_of_networks_are_one_writer_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Locked(tmp_path), pytest.raises(BlockingIOError, match="being written to by"):
        reproduce("uci_table", directory=tmp_path)
    with Locked(tmp_path):
        assert main(["evidence", "--data", "two_moons", "--directory", str(tmp_path)]) == 2
    assert f"torchbayes: {tmp_path} is being written to by process {os.getpid()} on" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_results_of_an_experiment_that_are_damaged_are_said(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"experiment": ')
    with pytest.raises(ValueError, match=r"recipe\.json is damaged \(.*\)\. Remove it: what it held is computed anew"):
        reproduce("uci_table", directory=tmp_path)


# --- damage


@cache
def _finished(method: Any) -> tuple[Posterior, TemporaryDirectory[str]]:
    """A run that is over, and its directory, which is there as long as it is known."""
    home = TemporaryDirectory()
    return fitted(method, Path(home.name) / "run"), home


def finished(method: Any, directory: Path) -> Posterior:
    """Put a run that is over into a directory, and return its posterior."""
    posterior, home = _finished(method)
    shutil.copytree(Path(home.name) / "run", directory, dirs_exist_ok=True)
    return posterior


# damages in turn of a run with draws and of one without: what reads a description or a log knows no method
@pytest.mark.parametrize(
    ("damage", "method"),
    some_of([b"", b"{", b"\xff\xfe", b"[1]", b'{"run": 3}', b"[" * 100_000], (SWAG, SGHMC), one_in=2),
    ids=range(12),
)
def test_a_damaged_description_is_removed_and_the_run_goes_on(method: Any, damage: bytes, tmp_path: Path) -> None:
    expected = finished(method, tmp_path)
    path, before = tmp_path / "config.json", read_tensors(tmp_path / "checkpoint.safetensors")[1]["about"]["run"]
    whole = json.loads(path.read_text())
    path.write_bytes(damage)
    with pytest.raises(ValueError, match=r"config\.json (is damaged|has format 1)"):
        fitted(method, tmp_path)
    path.unlink()  # as it says
    with pytest.raises(ValueError, match=r"already holds a run\. Pass resume=True"):
        fitted(method, tmp_path, resume=False)
    assert_same_tensors(everything(fitted(method, tmp_path)), everything(expected))
    assert json.loads(path.read_text()) == whole
    assert whole["run"] == before


@METHODS
def test_a_checkpoint_without_a_description_is_not_given_another_runs(method: Any, tmp_path: Path) -> None:
    expected = finished(method, tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors belongs to another run: its seed is 11, now 12"):
        fitted(method, tmp_path, seed=12)
    assert not (tmp_path / "config.json").exists()
    assert_same_tensors(everything(fitted(method, tmp_path)), everything(expected))
    shutil.copyfile(tmp_path / "posterior.safetensors", tmp_path / "checkpoint.safetensors")
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is not a checkpoint but a '(gaussian|draws)'"):
        fitted(method, tmp_path)


def test_advice_on_a_damaged_description_fits_what_is_there(tmp_path: Path) -> None:
    finished(SWAG, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("2", "3", 1))
    with pytest.raises(ValueError, match=r"config\.json"):
        fitted(SWAG, tmp_path)
    path.write_text("{}x")
    with pytest.raises(ValueError, match=r"Restore it, or remove it and resume: the checkpoint holds the same\."):
        fitted(SWAG, tmp_path)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match=r"is damaged \(.*\)\. Start the run anew\."):
        fitted(SWAG, tmp_path)


LINES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "no JSON": lambda lines: [*lines[:2], b"{", *lines[3:]],
    "no object": lambda lines: [*lines[:2], b"[1, 2]", *lines[3:]],
    "no step": lambda lines: [*lines[:2], b'{"epoch": 3}', *lines[3:]],
    "no text": lambda lines: [*lines[:2], b"\xff\xfe\x00", *lines[3:]],
    "another number": lambda lines: [*lines[:2], lines[2].replace(b'"step": ', b'"step": 1'), *lines[3:]],
    "too deep": lambda lines: [*lines[:2], b"[" * 100_000, *lines[3:]],
    "lost": lambda lines: [*lines[:2], *lines[3:]],
}


@pytest.mark.parametrize(
    ("damage", "method"),
    some_of(LINES.values(), (SWAG, SGHMC), one_in=2),
    ids=[f"{name}-{method}" for name in LINES for method in ("swag", "sghmc")],
)
def test_a_damaged_line_of_the_log_costs_itself_alone(
    method: Any, damage: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    expected = finished(method, tmp_path)
    path, kept = tmp_path / "log.jsonl", read_log(tmp_path)
    del kept[2]
    path.write_bytes(b"\n".join([*damage(path.read_bytes().splitlines()), b""]))
    with pytest.warns(FileWarning, match=r"log\.jsonl is damaged: .*epoch 3 left no line\. The others are kept\."):
        assert read_log(tmp_path) == kept
    with pytest.warns(FileWarning, match=r"epoch 3 left no line"):
        actual = fitted(method, tmp_path)
    assert_same_tensors(everything(actual), everything(expected))
    with pytest.warns(FileWarning, match=r"log\.jsonl is damaged: epoch 3 left no line\."):
        assert read_log(tmp_path) == kept


def test_a_log_in_another_order_or_with_lines_twice_is_put_right(tmp_path: Path) -> None:
    finished(SGHMC, tmp_path)
    path, kept = tmp_path / "log.jsonl", read_log(tmp_path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    assert read_log(tmp_path) == kept
    path.write_bytes(b"".join([*lines, lines[1]]))
    with pytest.warns(FileWarning, match=r"1 of its lines cannot be read or are another run's\. The others are kept"):
        assert read_log(tmp_path) == kept
    with pytest.warns(FileWarning, match="1 of its lines"):
        fitted(SGHMC, tmp_path)
    assert path.read_bytes() == whole


def test_lines_that_are_lost_at_the_end_are_missed_once_a_checkpoint_knows_of_them(tmp_path: Path) -> None:
    finished(SWAG, tmp_path)
    path, kept = tmp_path / "log.jsonl", read_log(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]) + lines[-3][:20])
    with pytest.warns(FileWarning, match=rf"epochs {len(kept) - 2}-{len(kept)} left no line"):
        assert read_log(tmp_path) == kept[:-3]
    path.unlink()
    with pytest.warns(FileWarning, match=rf"epochs 1-{len(kept)} left no line"):
        fitted(SWAG, tmp_path)


def test_a_full_disk_costs_no_line_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fitted(SWAG, tmp_path / "whole")
    with monkeypatch.context() as inside:
        fill(inside, lambda path, mode: mode == "ab" and path.read_bytes().count(b"\n") == 3, room=30)
        message = (
            r"the line of epoch 4 could not be written to .*log\.jsonl \(No space.*before it are whole\. Make room"
        )
        with pytest.raises(OSError, match=message) as caught:
            fitted(SWAG, tmp_path / "run")
    assert caught.value.errno == errno.ENOSPC
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")[:3]
    assert_same_tensors(everything(fitted(SWAG, tmp_path / "run")), everything(expected))
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


# --- files of other runs and versions


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "draws.bin", "draws.json", "config.json"])
def test_a_file_of_another_run_of_the_same_settings_is_told(name: str, tmp_path: Path) -> None:
    inputs, targets = rows_of()
    finished(SGHMC, tmp_path / "one")
    tb.fit(model_of(), (inputs + 0.1, targets), SGHMC, seed=11, directory=tmp_path / "two", callbacks=())
    shutil.copyfile(tmp_path / "two" / name, tmp_path / "one" / name)
    with pytest.raises(ValueError, match=r"(belongs to another run|of another shape, dtype, layout or run|is damaged)"):
        fitted(SGHMC, tmp_path / "one")
    if name != "checkpoint.safetensors":
        with pytest.raises(ValueError, match=r"(belongs to another run|is damaged)"):
            tb.load(tmp_path / "one" / "posterior.safetensors", model_of())


def test_a_posterior_of_another_run_is_told_and_one_that_was_put_there_is_not(tmp_path: Path) -> None:
    posterior = finished(SWAG, tmp_path / "one")
    fitted(SWAG, tmp_path / "two")
    path = tmp_path / "one" / "posterior.safetensors"
    shutil.copyfile(tmp_path / "two" / "posterior.safetensors", path)
    with pytest.raises(ValueError, match=r"posterior\.safetensors belongs to another run than .*config\.json"):
        tb.load(path, model_of())
    posterior.save(path)
    assert_same_tensors(tb.load(path, model_of()).tensors(), posterior.tensors())
    shutil.copyfile(tmp_path / "two" / "posterior.safetensors", tmp_path / "one" / "second.safetensors")
    tb.load(tmp_path / "one" / "second.safetensors", model_of())  # stored next to another run
    shutil.copyfile(tmp_path / "two" / "posterior.safetensors", tmp_path / "alone.safetensors")
    assert_same_tensors(tb.load(tmp_path / "alone.safetensors", model_of()).tensors(), posterior.tensors())


CHANGES: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    r"`/step` is missing": lambda tensors, numbers: numbers.pop("/step"),
    r"`/new` has no place": lambda tensors, numbers: numbers.update({"/new": 1}),
    r"`/more` has no place": lambda tensors, numbers: tensors.update({"/more": torch.ones(2)}),
    r"`/weights_MD` must have shape \(2, 51\) and torch.float64; got nothing": lambda tensors, numbers: tensors.pop(
        "/weights_MD"
    ),
    r"`/weights_MD` must have shape \(2, 51\) and torch.float64; got \(2, 50\) and torch.float64": (
        lambda tensors, numbers: tensors.update({"/weights_MD": tensors["/weights_MD"][:, 1:]})
    ),
    r"`/weights_MD` must have shape \(2, 51\) and torch.float64; got \(2, 51\) and torch.float32": (
        lambda tensors, numbers: tensors.update({"/weights_MD": tensors["/weights_MD"].float()})
    ),
}


@pytest.mark.parametrize(("message", "change"), CHANGES.items(), ids=range(len(CHANGES)))
def test_a_state_of_another_version_is_told(
    message: str, change: Callable[[dict[str, Any], dict[str, Any]], object], tmp_path: Path
) -> None:
    fitted(SGHMC, tmp_path, steps=12)
    path = tmp_path / "checkpoint.safetensors"
    tensors, header = read_tensors(path)
    change(tensors, header["numbers"])
    write_tensors(path, tensors, header)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"\.safetensors does not hold a state of this run: {message}\. Resume"):
        fitted(SGHMC, tmp_path)
    assert contents(tmp_path) == before

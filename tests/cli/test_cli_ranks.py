"""`torchrun ... -m torchbayes fit`: several processes, one run."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from tests.oracles import assert_close
from tests.ranks import launch
from torch import Tensor

import torchbayes as tb
from torchbayes.catalogue.config import load_run
from torchbayes.cli import main
from torchbayes.cli.options import join

FIT = [
    "fit",
    "--data",
    "toy_sine",
    "--method",
    "HMC",
    "--method.chains",
    "2",
    "--method.step_size",
    "0.002",
    "--method.trajectory",
    "0.02",
]
FIT += ["--method.steps", "8", "--method.burn_in", "2", "--directory"]


def torchrun(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in `count` processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*start, "-m", "torchbayes", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


def command(folder: Path, *arguments: str) -> None:
    """The command line in one of the processes that `launch` starts, whose output goes to a file of its own."""
    rank = os.environ["RANK"]
    out, err = ((folder / f"{kind}_{rank}").open("w") for kind in ("out", "err"))
    with out, err, redirect_stdout(out), redirect_stderr(err):
        code = main(list(arguments))
    raise SystemExit(code)


def launched(folder: Path, *arguments: str) -> tuple[list[int | None], str, str]:
    """The exit codes of two processes with the command line, and what both printed."""
    ended = launch(command, 2, folder, folder, *arguments)
    out, error = ("".join((folder / f"{kind}_{rank}").read_text() for rank in range(2)) for kind in ("out", "err"))
    return [one.code for one in ended], out, error


# `test_several_processes_give_the_run_of_one` starts its processes with the variables that torchrun sets
@pytest.mark.study
@pytest.mark.slow
def test_torchrun_gives_the_run_of_one(tmp_path: Path) -> None:
    ended = torchrun(2, *FIT, str(tmp_path / "data"), "--ranks", "data")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Posterior:") == 1
    assert main([*FIT, str(tmp_path / "one")]) == 0
    assert_close(drawn(tmp_path / "data"), drawn(tmp_path / "one"), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_several_processes_give_the_run_of_one(tmp_path: Path) -> None:
    assert main([*FIT, str(tmp_path / "one")]) == 0
    expected = drawn(tmp_path / "one")
    assert expected.shape[:2] == (2, 6)
    assert main([*FIT, str(tmp_path / "chains"), "--steps", "4"]) == 0
    resumed = ["fit", "--directory", str(tmp_path / "chains"), "--resume", "--steps", "8"]  # by more than it began with
    codes, out, err = launched(tmp_path, *resumed, "--ranks", "chains")
    assert codes == [0, 0], err
    assert out.count("Posterior:") == 1
    # float32: another order of sums, through 80 leapfrog steps
    assert_close(drawn(tmp_path / "chains"), expected, rtol=1e-3, atol=1e-4)


def drawn(directory: Path) -> Tensor:
    """The draws of a run."""
    _, posterior = load_run(directory)
    assert isinstance(posterior, tb.Draws)
    return posterior.weights_MSD.clone()


@pytest.mark.study  # `test_a_rank_that_stops_with_an_error_stops_the_others` of `tests/laws/test_rank_laws.py`
@pytest.mark.slow
def test_an_error_of_one_rank_is_said_once_and_ends_all(tmp_path: Path) -> None:
    assert main([*FIT, str(tmp_path / "run")]) == 0
    codes, _, err = launched(tmp_path, *FIT, str(tmp_path / "run"))
    assert 0 not in codes
    assert err.count("already holds a run") == 1


def test_ranks_need_torchrun_and_a_known_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match=r"`--ranks` must be data, chains, or two numbers such as 2x4; got '2,2'\."):
        join("2,2", members=2, device="cpu")
    with pytest.raises(ValueError, match=r"Start them with: torchrun --nproc-per-node 2"):
        join("chains", members=2, device="cpu")
    assert join(None, members=2, device="cpu") == tb.Ranks()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with monkeypatch.context() as patch:  # the grids themselves are those of `tests/laws/test_rank_laws.py`
        patch.setattr(tb.Ranks, "grid", lambda *shares, members, device: (shares, members, device))
        for text, shares in {"data": (None, 1), "chains": (1, None), "2x4": (2, 4)}.items():
            assert join(text, members=3, device="cpu") == (shares, 3, "cpu")
        assert join(None, members=3, device="cpu") == ((None, None), 3, "cpu")
    assert main(["list"]) == 2
    assert "`list` runs in one process" in capsys.readouterr().err

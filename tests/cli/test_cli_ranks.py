"""`torchrun ... -m torchbayes fit`: several processes, one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.oracles import assert_close

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
FIT += ["--method.steps", "6", "--method.burn_in", "2", "--directory"]


def torchrun(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in `count` processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*start, "-m", "torchbayes", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["data", "chains"])
def test_torchrun_gives_the_run_of_one_process(how: str, tmp_path: Path) -> None:
    ended = torchrun(2, *FIT, str(tmp_path / "two"), "--ranks", how)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Posterior:") == 1
    assert main([*FIT, str(tmp_path / "one")]) == 0
    drawn = []
    for name in ("one", "two"):
        _, posterior = load_run(tmp_path / name)
        assert isinstance(posterior, tb.Draws)
        drawn.append(posterior.weights_MSD)
    assert drawn[0].shape[:2] == (2, 4)
    # float32: another order of sums, through 60 leapfrog steps
    assert_close(drawn[1], drawn[0], rtol=1e-3, atol=1e-4)
    if how == "data":  # more processes can resume where fewer ended
        longer = torchrun(2, "fit", "--directory", str(tmp_path / "one"), "--resume", "--steps", "8")
        assert longer.returncode == 0, longer.stderr
        assert load_run(tmp_path / "one")[1].tensors()["weights_MSD"].shape[1] == 6


@pytest.mark.slow
def test_an_error_of_one_rank_is_said_once_and_ends_all(tmp_path: Path) -> None:
    assert main([*FIT, str(tmp_path)]) == 0
    again = torchrun(2, *FIT, str(tmp_path))
    assert again.returncode != 0
    assert again.stderr.count("already holds a run") == 1


def test_ranks_need_torchrun_and_a_known_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match=r"`--ranks` must be data, chains, or two numbers such as 2x4; got '2,2'\."):
        join("2,2", members=2, device="cpu")
    with pytest.raises(ValueError, match=r"Start them with: torchrun --nproc-per-node 2"):
        join("chains", members=2, device="cpu")
    assert join(None, members=2, device="cpu") == tb.Ranks()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["list"]) == 2
    assert "`list` runs in one process" in capsys.readouterr().err

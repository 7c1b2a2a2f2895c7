"""`make gpu`, tiny and on the CPU; and what it says where there is no GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.device import __main__ as bench

ADAPTERS = importlib.util.find_spec("transformers") and importlib.util.find_spec("peft")


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # PEFT's calls
# what takes longest is another pytest: `test_the_tests_are_run_on_the_device` sees how it is called
@pytest.mark.parametrize(
    "parts", [pytest.param([*bench.PARTS], marks=pytest.mark.study), [part for part in bench.PARTS if part != "tests"]]
)
def test_it_runs_every_part_and_writes_what_it_found(
    parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    status = bench.main(["--device", "cpu", "--small", "--out", str(out), "--parts", *parts])
    said, actual = capsys.readouterr().out, json.loads(out.read_text("utf-8"))
    assert status == 0, said
    assert [*actual["parts"]] == parts
    skipped = {name for name, part in actual["parts"].items() if part["status"] == "skipped"}
    without = set() if ADAPTERS else {"adapter step", "adapter draws"}
    assert skipped == {"compiled leapfrog", "cuda graphs", "cuda graphs of gradients"} | without
    assert all(actual["parts"][name]["reason"] in said for name in skipped)
    aims = {name: part["aim"] for name, part in actual["parts"].items() if "aim" in part}
    assert aims == {
        "training step": 1.05, "30-draw prediction": 1.0, "sghmc step": 1.1, "full-data gradient": 0.5,
        "kronecker fit": 2.0, **({"adapter step": 1.2, "adapter draws": 3.0} if ADAPTERS else {}),
    }  # fmt: skip
    assert all(part[side] > 0 for part in actual["parts"].values() if "ratio" in part for side in ("ours", "plain"))


@pytest.mark.parametrize("code", [0, 1])
def test_the_tests_are_run_on_the_device(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, cwd: Path, env: dict[str, str], **_: Any) -> Any:
        assert command[:3] == [sys.executable, "-m", "pytest"]
        assert (Path(cwd) / "tests" / "device").samefile(Path(__file__).parent)
        assert "tests/device" in command
        assert command[command.index("-k") + 1] == "divergence"
        assert env["TORCHBAYES_DEVICE"] == "cpu"
        return subprocess.CompletedProcess(command, code, "one of them\n3 of them\n")

    monkeypatch.setattr(bench.subprocess, "run", run)
    out = tmp_path / "gpu.json"
    assert bench.main(["--device", "cpu", "--small", "--out", str(out), "--parts", "tests"]) == code
    actual = json.loads(out.read_text("utf-8"))["parts"]["tests"]
    assert actual["status"] == ("failed" if code else "done")
    assert (actual["reason"] if code else actual["said"]).endswith("3 of them")


def test_a_part_that_fails_is_named_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> dict[str, object]:
        raise ZeroDivisionError("inside")

    monkeypatch.setitem(bench.PARTS, "training step", broken)
    out = tmp_path / "gpu.json"
    parts = ["training step", "one process"]
    assert bench.main(["--device", "cpu", "--small", "--out", str(out), "--parts", *parts]) == 1
    actual = json.loads(out.read_text("utf-8"))["parts"]
    assert actual["training step"]["reason"] == "ZeroDivisionError: inside"
    assert actual["one process"]["status"] == "done"


def test_no_part_begins_when_the_time_is_over(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert bench.main(["--device", "cpu", "--small", "--seconds", "-1", "--out", str(out)]) == 0
    parts = json.loads(out.read_text("utf-8"))["parts"]
    assert {part["reason"] for part in parts.values()} == {"the time is over"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    assert bench.main(["--out", str(out)]) == bench.NO_DEVICE == 3
    assert capsys.readouterr().out == "no CUDA device: nothing was run\n"
    assert not out.exists()

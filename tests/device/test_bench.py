"""`make gpu`, tiny and on the CPU; and what it says where there is no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.device import __main__ as bench


def test_it_runs_every_part_and_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    status = bench.main(["--device", "cpu", "--small", "--out", str(out)])
    said, found = capsys.readouterr().out, json.loads(out.read_text("utf-8"))
    assert status == 0, said
    assert found["parts"].keys() == bench.PARTS.keys()
    skipped = {name for name, part in found["parts"].items() if part["status"] == "skipped"}
    assert skipped == {"compiled leapfrog", "cuda graphs", "cuda graphs of gradients"}
    assert all(found["parts"][name]["reason"] in said for name in skipped)
    aims = {name: part["aim"] for name, part in found["parts"].items() if "aim" in part}
    assert aims == {
        "training step": 1.05, "30-draw prediction": 1.0, "sghmc step": 1.1, "full-data gradient": 0.5,
        "kronecker fit": 2.0,
    }  # fmt: skip
    assert all(part[side] > 0 for part in found["parts"].values() if "ratio" in part for side in ("ours", "plain"))


def test_a_part_that_fails_is_named_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> dict[str, object]:
        raise ZeroDivisionError("inside")

    monkeypatch.setitem(bench.PARTS, "training step", broken)
    out = tmp_path / "gpu.json"
    parts = ["training step", "one process"]
    assert bench.main(["--device", "cpu", "--small", "--out", str(out), "--parts", *parts]) == 1
    found = json.loads(out.read_text("utf-8"))["parts"]
    assert found["training step"]["reason"] == "ZeroDivisionError: inside"
    assert found["one process"]["status"] == "done"


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

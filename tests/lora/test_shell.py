"""The command `torchbayes lora`, end to end in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lora.made import MARKS
from tests.oracles import assert_close
from tests.pictures import unpainted
from torchbayes import lora
from torchbayes.cli import main
from torchbayes.lora import run

pytestmark = MARKS
OPTIONS = ["--epochs", "2", "--lr", "0.05", "--batch_size", "16", "--template", "{question} {choices} Answer:"]


def files(folder: Path, **more: str) -> list[str]:
    named = {"data": "train.jsonl", "test": "test.jsonl", **more}
    return [word for name, file in named.items() for word in (f"--{name}", str(folder / file))]


def test_fit_resume_and_predict(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "run"
    first = ["lora", str(folder / "base"), *files(folder, other="other.jsonl"), *OPTIONS, "--directory", str(home)]
    assert main([*first, "--method", "tfb"]) == 0
    out, err = capsys.readouterr()
    assert "fitting: TFB" in err
    assert all(word in out for word in ("TFB", "base alone", "AUROC", "95 % intervals", "report.html"))
    unpainted(monkeypatch)  # the first page is painted
    assert main([*first, "--method", "tfb"]) == 2  # there is a run already
    assert "Add --resume" in capsys.readouterr().err
    assert main(["lora", "--directory", str(home), "--resume", "--method", "blob", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert [*numbers] == ["map", "tfb", "blob", "base"]
    loaded = lora.load(home)
    assert_close(numbers["blob"]["nll"], lora.score(loaded)["blob"].metrics["nll"], rtol=1e-6)
    page = (home / "report.html").read_text(encoding="utf-8")
    assert "LoRA of rank 8" in page
    assert page.count("<img") == 4
    predicting = ["lora", "--directory", str(home), "--predict", str(folder / "other.jsonl")]
    assert main(predicting) == 2
    assert "tfb, blob" in capsys.readouterr().err
    assert main([*predicting, "--method", "blob", "--output", str(tmp_path / "said.jsonl")]) == 0
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text(encoding="utf-8").splitlines()]
    assert said == lora.predict(loaded, folder / "other.jsonl", method="blob")
    assert main([*predicting, "--method", "blob", "--output", str(tmp_path / "said.jsonl")]) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_rounds(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    unpainted(monkeypatch)
    asked = {"base": str(folder / "base"), "data": str(folder / "train.jsonl"), "method": ["blob"]}
    (tmp_path / "asked.yaml").write_text(json.dumps({**asked, "acquire": 6, "first": 6, "rounds": 1}), encoding="utf-8")
    asking = ["lora", "--config", str(tmp_path / "asked.yaml"), *OPTIONS, "--directory", str(tmp_path / "run")]
    assert main(asking) == 0
    out = capsys.readouterr().out
    assert "accuracy, BALD" in out
    assert (tmp_path / "run" / "rounds.html").is_file()


def test_ctrl_c_says_how_to_go_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    unpainted(monkeypatch)

    def stopped(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "fit_posterior", stopped)
        begun = ["lora", str(folder / "base"), *files(folder), *OPTIONS, "--directory", str(tmp_path / "run")]
        assert main([*begun, "--method", "blob"]) == 130
    said = capsys.readouterr().err
    command = f"torchbayes lora --directory {tmp_path / 'run'} --resume"
    assert f"Continue with: {command}" in said
    assert main(command.split()[1:]) == 0
    assert "BLoB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say which base"),
        (["base"], "say which questions"),
        (["base", "--data", "none.jsonl"], "there is no file none.jsonl"),
        (["base", "--data", "none.jsonl", "--method", "tbf"], "Did you mean tfb"),
        (["base", "--data", "none.jsonl", "--dtype", "float8"], "must be one of auto, float32"),
        (["base", "--data", "none.jsonl", "--rnak", "4"], "Did you mean --rank"),
        (["--resume"], "say which run to resume"),
        (["--directory", "none", "--resume"], "there is no run of adapters in none"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    assert main(["lora", *words]) == 2
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]

"""The code of the page on adapters runs, with a tiny base in the place of a trained one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.test_questions import written
from tests.adapters.tiny import base, tokenizer

pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # a base of random weights learns nothing
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]
PAGE = Path(__file__).parents[2] / "docs" / "api" / "adapters.md"
CHAT = "{% for turn in messages %}{{ turn.content }}{% endfor %}"


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    base("llama").save_pretrained("base")
    words = tokenizer()
    words.chat_template = CHAT
    words.save_pretrained("base")
    lines = re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0].splitlines()
    for name, part in {"train": lines[:2], "test": lines[:2], "open": lines[2:]}.items():
        written(tmp_path / f"{name}.jsonl", *part)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["prediction"].probs.shape == (1, 4)  # type: ignore[attr-defined]
    assert (tmp_path / "draw" / "adapter_model.safetensors").exists()


def test_importing_the_room_imports_nothing_of_hugging_face():
    script = "import sys, torchbayes.adapters; print({'transformers', 'peft', 'tokenizers'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"

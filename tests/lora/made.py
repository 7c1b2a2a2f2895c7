"""A tiny base in a folder, and questions whose answers follow a rule: the colour in the question."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.tiny import base, tokenizer
from torchbayes.lora import Settings

pytest.importorskip("peft")
MARKS = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]

COLOURS = ["red", "blue", "green"]


def based(folder: Path, kind: str = "llama", *, tied: bool = False, words: bool = True, **settings: Any) -> Path:
    """A folder with a base and, if `words`, its tokenizer."""
    base(kind, tied=tied).save_pretrained(folder)
    if words:
        tokenizer(**settings).save_pretrained(folder)
    return folder


def asked(path: Path, count: int, *, seed: int = 0, answers: bool = True) -> Path:
    """Questions: the answer is A, B or C as the colour is red, blue or green; some have two choices only."""
    draw, lines = random.Random(seed), []
    for number in range(count):
        answer = draw.randrange(3)
        choices = ["one", "two"] if answer < 2 and number % 4 == 0 else ["one", "two", "three"]
        words = [draw.choice(["the", "what"]) for _ in range(draw.randrange(1, 4))]
        text = " ".join([*words, COLOURS[answer], COLOURS[answer]])
        lines.append({"question": text, "choices": choices, **({"answer": answer} if answers else {})})
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def settings(folder: Path, **changed: Any) -> Settings:
    """Settings of a short run in a folder that has `base`, `train.jsonl` and `test.jsonl`."""
    files = {"base": str(folder / "base"), "data": str(folder / "train.jsonl"), "test": str(folder / "test.jsonl")}
    usual = {
        "epochs": 15,
        "lr": 0.05,
        "prior": 10.0,
        "batch_size": 16,
        "members": 2,
        "template": "{question} {choices} Answer:",
    }
    return Settings(**{**files, **usual, **changed})

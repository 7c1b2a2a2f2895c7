"""The code of the tutorial on adapters runs as it stands, and what its text says of the outputs holds here."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.lora.made import MARKS

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "when-does-your-adapter-not-know.md"
NUMBER = re.compile(r"-?\d[\d,.]*")
pytestmark = [*MARKS, pytest.mark.slow]


def test_the_tutorial_shows_what_its_text_says():
    pages, scope = PAGE.read_text(encoding="utf-8"), dict[str, Any]()
    shown, blocks = re.findall(r"```text\n(.*?)```", pages, re.S), re.findall(r"```python\n(.*?)```", pages, re.S)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), scope)
    lines, expected = printed.getvalue().splitlines(), "".join(shown).splitlines()
    assert len(lines) == len(expected)
    rows = {}
    for line, recorded in zip(lines, expected, strict=True):
        assert len(NUMBER.findall(line)) == len(NUMBER.findall(recorded)), line
        if recorded.startswith(("places", "colours", "untold")):
            rows[tuple(recorded.split()[:2])] = [float(number) for number in NUMBER.findall(line)]
    for method in ("map", "laplace", "ensemble"):
        assert rows["places", method][0] > 0.5 > rows["colours", method][0] + 0.1
        assert rows["colours", method][1] > 1.39  # worse than giving every letter the same
    assert rows["colours", "laplace"][1] < rows["colours", "map"][1]
    assert rows["places", "ensemble"][1] < rows["places", "map"][1]

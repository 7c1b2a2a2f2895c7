"""The code of README's first screen is run, and prints what README says."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
NUMBER = r"\d+\.\d+|\d+"


def test_the_first_block_of_code_prints_the_block_below_it() -> None:
    blocks = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, flags=re.DOTALL)
    assert blocks is not None
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(blocks[1], "README.md", "exec"), {})
    assert re.sub(NUMBER, "#", printed.getvalue()) == re.sub(NUMBER, "#", blocks[2])
    actual, said = ([float(n) for n in re.findall(r"\d\.\d+", text)] for text in (printed.getvalue(), blocks[2]))
    assert actual == pytest.approx(said, abs=0.03)  # other versions of PyTorch round differently, and sums diverge

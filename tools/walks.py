"""Walks through the library: the files and functions that a piece of work passes, as they run.

`python -m tools.walks [WALK ...]` prints for each walk its files in the order in which they are first entered, with the
functions called there. docs/design.md is built with the same tables.

step     one step of MAP on a minibatch, from the rows to new weights
predict  one row through `predict`, from a fitted posterior to probabilities
fit      one CSV through `torchbayes fit`, from the shell to the files of the run
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import torchbayes as tb

PACKAGE = Path(tb.__file__).parent


class Walk:
    """The calls of the library's functions while it is entered: file -> function -> how often, by the first call."""

    def __init__(self) -> None:
        self.calls: dict[str, Counter[str]] = {}

    def __enter__(self) -> Walk:
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def see(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Count a call, as `sys.setprofile` tells of it."""
        code = frame.f_code
        # comprehensions and lambdas are their function's, and a file that is read for the first time is not called
        if event == "call" and not code.co_name.startswith("<") and code.co_filename.startswith(str(PACKAGE)):
            file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            self.calls.setdefault(file, Counter())[code.co_qualname.replace("<locals>.", "")] += 1

    @property
    def total(self) -> int:
        """The number of calls."""
        return sum(counter.total() for counter in self.calls.values())

    def table(self, most: int = 4) -> str:
        """Return files and functions as a table in Markdown, the functions of a file in order, at most so many."""
        lines = ["| File | Functions |", "|---|---|"]
        for file, functions in self.calls.items():
            named = [f"`{name}`" for name in functions][:most]
            rest = len(functions) - len(named)
            lines.append(f"| `{file}` | {', '.join(named)}{f' and {rest} more' if rest else ''} |")
        return "\n".join(lines)


def step() -> Walk:
    """Return the walk of a step of MAP, the third, when what is measured or built once has been."""
    inputs, targets = torch.linspace(-1, 1, 40)[:, None], torch.linspace(0, 1, 40)[:, None]
    model = tb.Model(tb.networks.mlp((1,), 1, hidden=(8,)), tb.likelihoods.Gaussian(0.1))
    walk = Walk()

    class Walked(tb.MAP):
        """MAP that is looked at between the third question for rows and the fourth."""

        def visit(self, state: Any) -> Any:
            if state.step == 2:
                sys.setprofile(walk.see)
            elif state.step == 3:
                sys.setprofile(None)
            return super().visit(state)

    try:
        tb.fit(model, (inputs, targets), Walked(epochs=1, batch_size=10, plan="loop"), callbacks=())
    finally:
        sys.setprofile(None)
    return walk


def predict() -> Walk:
    """Return the walk of one row through `predict`."""
    inputs, targets = torch.linspace(-1, 1, 40)[:, None], torch.linspace(0, 1, 40)[:, None]
    model = tb.Model(tb.networks.mlp((1,), 1, hidden=(8,)), tb.likelihoods.Gaussian(0.1))
    posterior = tb.fit(model, (inputs, targets), tb.MAP(epochs=1), callbacks=())
    with Walk() as walk:
        _ = tb.predict(posterior, inputs[:1]).mean
    return walk


def fit() -> Walk:
    """Return the walk of a table through `torchbayes fit`, of one epoch."""
    from torchbayes.cli import main

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        rows = "".join(f"{x},{x % 7},{x % 3}\n" for x in range(40))
        Path("table.csv").write_text("size,colour,weight\n" + rows)
        said = io.StringIO()
        fitted = ["--data", "table.csv", "--target", "size", "--method", "MAP", "--method.epochs", "1"]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), Walk() as walk:
            if main(["fit", *fitted, "--directory", "run"]):
                raise RuntimeError(said.getvalue())
    return walk


def quietly(walk: Callable[[], Walk]) -> Callable[[], Walk]:
    """Return a walk without the warnings of its fit, which is as short as it can be."""

    def walked() -> Walk:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tb.ProblemWarning)
            return walk()

    return walked


WALKS: dict[str, Callable[[], Walk]] = {"step": quietly(step), "predict": quietly(predict), "fit": quietly(fit)}


def main(names: list[str]) -> Iterator[str]:
    """Yield what is printed."""
    for name in names or WALKS:
        walk = WALKS[name]()
        yield f"{name}: {len(walk.calls)} files, {walk.total:,} calls\n\n{walk.table()}\n"


if __name__ == "__main__":
    print("\n".join(main(sys.argv[1:])))

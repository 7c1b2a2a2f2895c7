"""A data set that is added to those of the library, in a process that has not yet read which there are."""

import os
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from torchbayes.data import datasets
from torchbayes.data.base import Raw


def rings(split: int) -> Raw:
    """Points on two circles around 0."""
    rng = np.random.default_rng(split)
    labels = np.arange(60) % 2
    angle = rng.uniform(0, 2 * np.pi, size=60)
    points = (1 + labels)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return Raw((points[:40], labels[:40]), (points[40:], labels[40:]), "two rings", ("inner", "outer"))


def command(folder: Path) -> None:
    """Add it, and list, fit and evaluate it on the command line; what that prints goes to a file of the folder."""
    os.chdir(folder)
    warnings.simplefilter("ignore")
    datasets._SETS["two_rings"] = datasets._Entry("two rings in 2-d", lambda split, _: rings(split), 20, False)
    from torchbayes.cli import main  # which reads the table

    words = ["--data", "two_rings", "--split", "3", "--method", "MAP", "--method.epochs", "30", "--directory", "run"]
    with Path("said.txt").open("w") as said, redirect_stdout(said), redirect_stderr(said):
        code = main(["list", "data"]) or main(["fit", *words]) or main(["evaluate", "run"])
    raise SystemExit(code)

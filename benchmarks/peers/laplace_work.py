"""The work of the Laplace benchmarks: networks, data and what is done with them, the same for every library.

This module needs numpy alone, so that it runs in the environment of the peers as well as in ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

PRIOR_PRECISION = 1.0
FITTED = 100  # rows that the posterior of a prediction, of an evidence step and of a task's value is fitted on
PREDICTED = 2000  # rows of a prediction
VALUED = 10  # rows whose predictions are compared before anything is timed
BACKENDS = ("curvlinops", "asdl", "backpack")
WORKS, STRUCTURES = ("fit", "predict", "evidence"), ("diag", "kron", "last")


@dataclass(frozen=True)
class Case:
    """A network and its data.

    Attributes:
        name: name, also of the network in torchbayes.networks.
        data: "noise", or a data set of images.
        shape: of one input.
        rows: N.
        batch: rows of a batch of a fit.
        chunk: rows that a peer predicts at a time for all weights; its Jacobians are (chunk, 10, D).
        kinds: the layers whose weights are random, "linear" for Linear and Conv2d alone, "all".
    """

    name: str
    data: str
    shape: tuple[int, ...]
    rows: int
    batch: int
    chunk: int
    kinds: str = "all"


# No backend of laplace-torch knows filter response normalisation: its weights are constants, here and there.
CASES = {
    case.name: case
    for case in (
        Case("mlp", "noise", (784,), 10_000, 500, 50),
        Case("lenet", "mnist", (1, 28, 28), 10_000, 500, 20),
        Case("resnet20_frn", "cifar10", (3, 32, 32), 2_000, 100, 5, kinds="linear"),
    )
}


@dataclass(frozen=True)
class Task:
    """One thing to time.

    Attributes:
        case: network and data.
        work: "fit": accumulate and decompose, one pass over the rows; "predict": GLM predictive and probit link of
            `PREDICTED` rows; "evidence": one step of gradient ascent on the log evidence by the prior precision.
        structure: "diag" or "kron" of all random weights, or "last", dense for the last layer.
    """

    case: Case
    work: str
    structure: str

    @property
    def name(self) -> str:
        """CASE/WORK/STRUCTURE."""
        return f"{self.case.name}/{self.work}/{self.structure}"

    @property
    def rows(self) -> int:
        """Rows of one unit of the work; 1 for a step."""
        return {"fit": self.case.rows, "predict": PREDICTED, "evidence": 1}[self.work]


TASKS = {
    task.name: task
    for task in (Task(case, work, structure) for case, work, structure in product(CASES.values(), WORKS, STRUCTURES))
}


@dataclass(frozen=True)
class Numbers:
    """Data and weights.

    Attributes:
        inputs: N rows, float32.
        targets: classes (N,), int64.
        test_inputs: PREDICTED rows, float32.
        weights: (D,), float32, in the order of `parameters()`.
    """

    inputs: np.ndarray
    targets: np.ndarray
    test_inputs: np.ndarray
    weights: np.ndarray


def file(case: Case, environment: Path) -> Path:
    """Return where the numbers of a case are kept, below the environment of the peers."""
    return environment / "data" / f"{case.name}.npz"


def save(numbers: Numbers, path: Path) -> None:
    """Write the numbers of a case."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **vars(numbers))


def load(path: Path) -> Numbers:
    """Read the numbers of a case."""
    with np.load(path) as archive:
        return Numbers(**archive)

"""Means of the parameters and their squares: in closed form, or by long runs of blackjax, kept in references.json.

python -m benchmarks.statistical.references [POSTERIOR ...]     makes that file anew: 4 chains of 5,000 draws each
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor

import torchbayes as tb
from benchmarks.peers.client import ROOT
from benchmarks.statistical.posteriors import POSTERIORS
from benchmarks.statistical.runs import blackjax

FILE = Path(__file__).with_name("references.json")
LENGTHS = (1000, 5000, 4)  # burn-in, draws, chains
EXACT = {
    "ill": [0.0] * 20 + [10.0 ** (2 * (-2 + 3 * number / 19)) for number in range(20)],
    "correlated": [0.0] * 10 + [1.0] * 10,
    "funnel": [0.0] * 6 + [1.0] + [math.exp(0.5)] * 5,
}


def reference(name: str) -> tuple[Tensor, Tensor]:
    """Return the means of parameters and squares, and their standard errors, each (2 D,)."""
    if name in EXACT:
        exact_F = torch.tensor(EXACT[name], dtype=torch.float64)
        return exact_F, torch.zeros_like(exact_F)
    found = json.loads(FILE.read_text())[name]
    return torch.tensor(found["mean"], dtype=torch.float64), torch.tensor(found["error"], dtype=torch.float64)


def made(name: str, *, kept: Path, where: Path) -> dict[str, list[float]]:
    """Return the means of a long run, and their standard errors."""
    values_MSF = blackjax(name, LENGTHS, file=kept / f"ref-{name}.npz", where=where, seed=100).values_MSF
    error_F = (values_MSF.flatten(0, 1).var(0) / tb.diagnostics.ess(values_MSF)).sqrt()
    return {
        "mean": [float(f"{value:.8g}") for value in values_MSF.mean((0, 1))],
        "error": [float(f"{value:.3g}") for value in error_F],
    }


def main() -> None:
    """Make the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="POSTERIOR", default=[name for name in POSTERIORS if name not in EXACT]
    )
    parser.add_argument("--where", type=Path, default=ROOT / ".peers", help="where setup.sh made the environments")
    parser.add_argument("--kept", type=Path, help="where runs are kept, and read if they are there")
    options = parser.parse_args()
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            found[name] = made(name, kept=options.kept or Path(folder), where=options.where)
            FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

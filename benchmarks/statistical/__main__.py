"""The table: our NUTS and HMC against the NUTS of blackjax, with equal warm-up, draws and chains.

    python -m benchmarks.statistical [POSTERIOR ...]        after benchmarks/peers/setup.sh

Efficiency is the least effective size of the parameters and their squares per gradient after burn-in, by one estimator
for all. |z| is the largest of their means, against closed forms, quadrature or long runs (references.py). Gradients of
burn-in are those of one chain.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

import torchbayes as tb
from benchmarks.peers.client import ROOT
from benchmarks.statistical.posteriors import POSTERIORS
from benchmarks.statistical.references import reference
from benchmarks.statistical.runs import blackjax, ours

COLUMNS = (
    "posterior", "ESS per gradient", "blackjax", "ratio", "HMC", "|z|", "blackjax", "HMC",
    "gradients in burn-in", "blackjax", "ratio",
)  # fmt: skip


def main() -> None:
    """Print a line for each posterior as it is done, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="POSTERIOR", default=list(POSTERIORS))
    parser.add_argument("--where", type=Path, default=ROOT / ".peers", help="where setup.sh made the environments")
    parser.add_argument("--kept", type=Path, help="where runs of blackjax are kept, and read if they are there")
    parser.add_argument("--burn-in", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=4)
    options = parser.parse_args()
    if unknown := set(options.names) - set(POSTERIORS):
        parser.error(f"unknown posterior {', '.join(sorted(unknown))}; choose from {', '.join(POSTERIORS)}.")
    console, table, ratios = Console(width=160), Table(*COLUMNS), []
    lengths = (options.burn_in, options.draws, options.chains)
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            file = (options.kept or Path(folder)) / f"cmp-{name}.npz"
            peer = blackjax(name, lengths, file=file, where=options.where)
        length = options.chains, options.burn_in + options.draws, options.burn_in
        nuts, hmc = ours(name, tb.NUTS(*length)), ours(name, tb.HMC(*length))
        runs, exact = (nuts, peer, hmc), reference(name)
        ratios.append(nuts.efficiency / peer.efficiency)
        row = [
            name,
            *(f"{part:.4f}" for part in (nuts.efficiency, peer.efficiency)),
            f"{ratios[-1]:.2f}",
            f"{hmc.efficiency:.4f}",
            *(f"{run.worst(*exact):.1f}" for run in runs),
            *(f"{run.burn_in:,.0f}" for run in (nuts, peer)),
            f"{nuts.burn_in / peer.burn_in:.2f}",
        ]
        console.print(*row)
        table.add_row(*row)
    console.print(table)
    print(f"Median of the ratios of ESS per gradient: {statistics.median(ratios):.2f}; least: {min(ratios):.2f}.")


if __name__ == "__main__":
    main()

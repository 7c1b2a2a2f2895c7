"""The table: gradients to low error of our samplers and of blackjax's on six targets of sampler-benchmarks.

    python -m benchmarks.low_error [TARGET ...]        after benchmarks/peers/setup.sh

Every sampler has its defaults and the same starts; what it spends on tuning stands apart (crossing.py, targets.py). ±
is a standard deviation over resamples of the chains, and `pooled` the error that is left in the mean over all chains.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import torchbayes as tb
from benchmarks.low_error.crossing import Run, moments, pooled
from benchmarks.low_error.runs import blackjax, ours
from benchmarks.low_error.targets import TARGETS
from benchmarks.peers.client import ROOT

OURS: dict[str, type[Any]] = {
    "MCLMC": tb.MCLMC, "UnderdampedLangevin": tb.UnderdampedLangevin, "MAMS": tb.MAMS, "NUTS": tb.NUTS,
}  # fmt: skip
PEERS = ("mclmc", "nuts")
COLUMNS = ("target", "sampler", "mean over parameters", "±", "maximum", "±", "pooled", "tuning", "step size", "L")


def row(name: str, sampler: str, run: Run) -> list[str]:
    """Return a row of the table."""
    needed = [f"{number:,.0f}" for pair in zip(run.needed_C, run.spread_C(), strict=True) for number in pair]
    settings = f"{run.tuning:,.0f}", f"{run.step_size:.3g}", f"{run.trajectory:.3g}"
    return [name, sampler, *needed, f"{pooled(run, moments(name)):.1e}", *settings]


def main() -> None:
    """Print a line for each run as it is done, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TARGET", default=list(TARGETS))
    parser.add_argument("--where", type=Path, default=ROOT / ".peers", help="where setup.sh made the environments")
    parser.add_argument("--samplers", nargs="+", default=[*OURS, *PEERS], help=f"of {', '.join([*OURS, *PEERS])}")
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--burn-in", type=int, help="steps of burn-in of ours but NUTS")
    options = parser.parse_args()
    if unknown := (set(options.names) - set(TARGETS)) | (set(options.samplers) - {*OURS, *PEERS}):
        parser.error(f"unknown {', '.join(sorted(unknown))}; targets are {', '.join(TARGETS)}.")
    console, table = Console(width=140), Table(*COLUMNS)
    given = {} if options.burn_in is None else {"burn_in": options.burn_in, "steps": options.burn_in + 100}
    for name in options.names:
        for sampler in options.samplers:
            if sampler in OURS:
                method = OURS[sampler](options.chains, **({} if sampler == "NUTS" else given))
                run = ours(name, method, seed=options.seed)
            else:
                run = blackjax(name, sampler, chains=options.chains, where=options.where, seed=options.seed)
            line = row(name, f"blackjax {sampler}" if sampler in PEERS else sampler, run)
            console.print(*line)
            table.add_row(*line)
    console.print(table)


if __name__ == "__main__":
    main()

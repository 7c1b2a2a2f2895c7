"""Make the table of probabilistic predictions on tables, from where an earlier run stopped.

    make tables ARGS="--sets yacht glass --methods constant forest torchbayes --splits 2"

Each set, split and method has a record, a file in the folder of the results. Delete it, and it is made again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.tables.methods import METHODS
from benchmarks.tables.records import Job, Records
from benchmarks.tables.report import report
from benchmarks.tables.run import run
from benchmarks.tables.sets import SETS, SPLITS
from benchmarks.tables.work import work


def main() -> None:
    """Do the jobs that have no record yet, and print the tables of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS, metavar="SET")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--splits", type=int, default=SPLITS, choices=range(SPLITS + 1), help="the first so many")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time, one core each")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds on the clock after which a fit is ended")
    parser.add_argument("--minutes", type=float, default=55.0, help="after so many no fit is begun")
    parser.add_argument("--results", type=Path, default=Path("tables"), help="folder of the records and of the tables")
    parser.add_argument("--peers", type=Path, default=Path(".peers/tables"), help="folder of packages of others")
    asked = parser.parse_args()
    sys.path.append(str(asked.peers.absolute()))  # last, so that it brings no other versions of what we have
    there = [name for name in asked.methods if METHODS[name].is_here]
    for name in asked.methods:
        if name not in there:
            print(f"{name} is left out: {METHODS[name].package} is not installed, nor in {asked.peers}.")
    records = Records(asked.results)
    jobs = [Job(name, split, method) for split in range(asked.splits) for name in asked.sets for method in there]
    shared = {METHODS[name].module for name in there if METHODS[name].forks}
    run(
        jobs,
        records,
        work,
        workers=asked.workers,
        limit=asked.limit,
        minutes=asked.minutes,
        preload=sorted(shared),
        say=lambda line: print(line, flush=True),
    )
    shown = [record for record in records if record.set in asked.sets and record.split < asked.splits]
    print(report(shown, asked.methods, asked.results))


if __name__ == "__main__":
    main()

"""Fit every method with its defaults to every set, and print the table of docs/defaults.md.

    TORCHBAYES_DATA=... python -m benchmarks.defaults --output defaults.jsonl

Results are added to the file line by line, and those that it holds are not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.defaults.sets import NAMES, SPLITS, problem
from benchmarks.defaults.table import tables
from benchmarks.defaults.ways import WAYS


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--output", type=Path, default=Path("defaults.jsonl"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in asked.output.read_text().splitlines()] if asked.output.exists() else []
    done = {(row["set"], row["split"], row["way"]) for row in rows}
    for split in range(asked.splits):
        for name in asked.sets:
            for way in (way for way in asked.ways if (name, split, way) not in done):
                row = {"set": name, "split": split, "way": way, **_numbers(name, split, way)}
                rows.append(row)
                with asked.output.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(tables(rows))


def _numbers(name: str, split: int, way: str) -> dict[str, Any]:
    """Return the scores of one way on one split; of a way that failed, the error."""
    given = problem(name, split)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems are counted
        try:
            results: dict[str, Any] = dict(WAYS[way](given, split))
        except Exception as error:
            results = {"error": f"{type(error).__name__}: {error}"}
    return {**results, "seconds": round(time.perf_counter() - began, 2)}


if __name__ == "__main__":
    main()

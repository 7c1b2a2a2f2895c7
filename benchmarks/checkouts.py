"""The same work by two checkouts of the library, so that a change that makes a step slower is seen at once.

Run as `python -m benchmarks.checkouts OTHER`, the folder of a second checkout, such as a `git worktree` of the last
release. Each round runs a process of either checkout, in alternating order. Only public names, and settings that both
must know, are used.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Work, peak_memory, race

HERE = Path(__file__).resolve().parents[1]
IMPORT, MEMORY = "import torchbayes", "peak memory"


def network(inputs: int, width: int, outputs: int) -> Any:
    """Return a perceptron with two hidden layers and fixed weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    widths = (nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
    return nn.Sequential(*widths)


def trainings(wide: Any, narrow: Any, table: Any) -> dict[str, tuple[Any, Any, Any, int]]:
    """Return name -> (make a model, rows, method, steps in it)."""
    import torchbayes as tb

    normal = tb.priors.Normal(1.0)
    adam = tb.Adam(1e-3)

    def large() -> Any:
        return tb.Model(network(784, 200, 10), tb.likelihoods.Categorical(), normal)

    def small() -> Any:
        return tb.Model(network(64, 50, 10), tb.likelihoods.Categorical(), normal)

    def regression() -> Any:
        return tb.Model(network(8, 50, 1), tb.likelihoods.Gaussian(), normal)

    hmc = tb.HMC(chains=1, steps=20, burn_in=10, step_size=1e-3, trajectory=0.05)
    return {
        "step of MAP, 1 member": (large, wide, tb.MAP(epochs=2, optimizer=adam), 64),
        "step of MAP, 8 members": (large, wide, tb.MAP(members=8, epochs=1, optimizer=adam), 32),
        "step of MAP, small table": (regression, table, tb.MAP(epochs=100, batch_size=32, optimizer=adam), 1300),
        "step of SWAG": (large, wide, tb.SWAG(epochs=4, averaging_lr=0.01, burn_in=0.5), 128),
        "step of VI": (large, wide, tb.VI(epochs=2, kl_weight=1.0, optimizer=adam), 64),
        "step of IVON": (large, wide, tb.IVON(epochs=2), 64),
        "step of SGHMC": (large, wide, tb.SGHMC(chains=1, steps=100, burn_in=50, step_size=1e-4), 100),
        "leapfrog step of HMC": (small, narrow, hmc, 1000),
        "draw of NUTS": (small, narrow, tb.NUTS(chains=1, steps=15, burn_in=8, max_doublings=5), 15),
        "fit of Laplace, diagonal": (small, narrow, tb.Laplace(structure="diagonal"), 1),
        "fit of Laplace, kronecker": (small, narrow, tb.Laplace(structure="kronecker"), 1),
    }


def works() -> tuple[dict[str, Work], dict[str, int]]:
    """Return the work of this process by name, and the units in each."""
    import torch

    import torchbayes as tb

    source = torch.Generator().manual_seed(0)

    def rows(number: int, inputs: int) -> Any:
        return torch.randn(number, inputs, generator=source)

    def labels(number: int) -> Any:
        return torch.randint(10, (number,), generator=source)

    wide, narrow = (rows(4096, 784), labels(4096)), (rows(1000, 64), labels(1000))
    table = rows(400, 8), rows(400, 1)
    methods = trainings(wide, narrow, table)

    def fit(name: str) -> Any:
        make, data, method, _ = methods[name]
        started = start if isinstance(method, tb.Laplace) else None
        return tb.fit(make(), data, method, start=started, seed=0, callbacks=())

    def fits(name: str) -> Work:
        return lambda: fit(name)

    start = tb.fit(methods["leapfrog step of HMC"][0](), narrow, tb.MAP(epochs=20), seed=0, callbacks=())
    point, swag, laplace = fit("step of MAP, 1 member"), fit("step of SWAG"), fit("fit of Laplace, kronecker")
    ways: dict[str, Work] = {name: fits(name) for name in methods}
    ways["30 draws of SWAG, 1,024 rows"] = lambda: tb.predict(swag, wide[0][:1024], draws=30).probs
    ways["30 draws of Laplace, 1,000 rows"] = lambda: tb.predict(laplace, narrow[0], draws=30).probs
    ways["one row of MAP"] = lambda: tb.predict(point, wide[0][:1]).probs
    return ways, {name: steps for name, (*_, steps) in methods.items()}


def worker(only: str) -> dict[str, float]:
    """Return the seconds of each work in this process, and its peak memory in MiB."""
    began = time.perf_counter()
    import torchbayes  # noqa: F401 (its import is what is timed)

    seconds = {IMPORT: time.perf_counter() - began}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ways, units = works()
        for name, way in ways.items():
            if only in name:
                (timing,) = race({name: way}, rounds=3, warmup=1)
                seconds[name] = timing.median / units.get(name, 1)
    return {**seconds, MEMORY: peak_memory()}


def run(checkout: Path, only: str) -> dict[str, float]:
    """Run the work by a checkout, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.checkouts", str(checkout), "--worker", "--only", only]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without its cache, an import is mostly compilation
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the work failed in {checkout}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def report(seen: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """Return a table of medians, and of the ratios of them and of single rounds."""
    table = Table(*("work", "that", "this", "this / that", "of single rounds"))
    for work in seen["this"][0]:
        that, this = ([numbers[work] for numbers in seen[name]] for name in ("that", "this"))
        ratios = [new / old for old, new in zip(that, this, strict=True)]
        scale, unit = (1, "MiB") if work == MEMORY else (1e3, "ms")
        medians = [statistics.median(values) for values in (that, this)]
        written = [f"{scale * value:.4g} {unit}" for value in medians]
        table.add_row(work, *written, f"{medians[1] / medians[0]:.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}")
    return table


def main() -> None:
    """Compare this checkout with another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkouts", description=__doc__)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each checkout")
    parser.add_argument("--only", default="", help="part of the name of the work to do")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(options.only)))
        return
    if not (options.other / "src" / "torchbayes").is_dir():
        parser.error(f"{options.other} is no checkout: it has no src/torchbayes")
    checkouts = {"that": options.other.resolve(), "this": HERE}
    seen: dict[str, list[Mapping[str, float]]] = {name: [] for name in checkouts}
    for number in range(options.rounds):
        for name in list(checkouts)[:: 1 if number % 2 else -1]:
            seen[name].append(run(checkouts[name], options.only))
    Console(width=100).print(report(seen))


if __name__ == "__main__":
    main()

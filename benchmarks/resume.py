"""A fit killed with SIGKILL at a random moment and resumed, against the uninterrupted one: equal bit for bit, 20 times.

Run as `python -m benchmarks.resume [TRIALS]`.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import torchbayes as tb
from torchbayes.data import load
from torchbayes.networks import build
from torchbayes.posteriors.files import read_tensors


def run(directory: str) -> None:
    """Fit MultiSWAG on the digits in a run directory, resuming whatever is there."""
    data = load("digits", train_size=400)
    model = tb.Model(lambda: build("preresnet20", (1, 8, 8), 10), tb.likelihoods.Categorical(), tb.priors.Normal(0.3))
    method = tb.SWAG(members=2, epochs=10, batch_size=100, plan="loop")
    tb.fit(model, data.train, method, directory=directory, resume=Path(directory, "config.json").exists(), callbacks=())


def start(directory: Path) -> subprocess.Popen[bytes]:
    """Run the fit in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "benchmarks.resume", "--run", str(directory)])


def same(first: Path, second: Path) -> bool:
    """Say whether two runs left equal posteriors and equal losses."""
    a, _ = read_tensors(first / "posterior.safetensors")
    b, _ = read_tensors(second / "posterior.safetensors")
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def main() -> None:
    """Kill, resume, compare; exit 1 if any trial differs."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    source = random.Random(0)
    with tempfile.TemporaryDirectory() as root:
        whole = Path(root, "whole")
        began = time.monotonic()
        if start(whole).wait():
            raise SystemExit("the uninterrupted run failed")
        seconds = time.monotonic() - began
        equal = kills = 0
        for trial in range(trials):
            directory = Path(root, f"trial{trial}")
            process = start(directory)
            try:
                process.wait(timeout=source.uniform(0.1, 0.95) * seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            if not (directory / "posterior.safetensors").exists() and start(directory).wait():
                raise SystemExit(f"trial {trial}: the resumed run failed")
            equal += same(whole, directory)
        print(f"{equal} of {trials} equal bit for bit, {kills} of them killed ({seconds:.0f} s uninterrupted)")
        if equal != trials:
            raise SystemExit(1)


if __name__ == "__main__":
    run(sys.argv[2]) if sys.argv[1:2] == ["--run"] else main()

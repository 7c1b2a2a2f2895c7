"""Peak memory: a full-batch gradient of resnet20_frn in chunks, and 1,000 draws of its weights streamed to disk.

Each figure is of a process of its own. The gradient's memory is bounded by `chunk_size`, not by the number of images; a
stream of draws takes none.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import torchbayes as tb
from benchmarks.harness import peak_memory
from torchbayes.networks import build
from torchbayes.posteriors.store import DrawFile

DRAWS = 1000


@dataclass(frozen=True)
class Work:
    """What a process does: a gradient over `images` in chunks, or nothing but hold them; or a stream of draws."""

    images: int
    chunk_size: int
    gradient: bool
    draws: int = 0

    def command(self) -> list[str]:
        """Return the command line of the process that does it."""
        words = [self.images, self.chunk_size, int(self.gradient), self.draws]
        return [sys.executable, "-m", "benchmarks.memory", *map(str, words)]

    def run(self) -> float:
        """Return the peak memory of a process that does it, in MiB."""
        return float(subprocess.run(self.command(), check=True, capture_output=True, text=True).stdout)


def model() -> tb.Model:
    """Return resnet20_frn, 272,474 weights."""
    return tb.Model(lambda: build("resnet20_frn", (3, 32, 32), 10), tb.likelihoods.Categorical())


def do(work: Work) -> None:
    """Do the work and print the peak memory."""
    network = model()
    weights, _ = network.starting_weights([0])
    images = torch.randn(work.images, 3, 32, 32)
    if work.gradient:
        rows = tb.Batch(images, torch.randint(10, (work.images,)))
        tb.LogDensity(network, work.images, rows, plan="loop", chunk_size=work.chunk_size)(weights)
    if work.draws:
        with tempfile.TemporaryDirectory() as folder:
            stream(Path(folder), weights, work.draws)
    print(peak_memory())


def stream(folder: Path, weights_MD: Tensor, draws: int) -> None:
    """Write draws, and read each of them once."""
    file = DrawFile.create(folder, weights_MD, {})
    for _ in range(draws):
        file.append(weights_MD)
    assert len(file) == draws


def main() -> None:
    """Print the table, or with arguments do one piece of work."""
    if len(sys.argv) > 1:
        images, chunk_size, gradient, draws = map(int, sys.argv[1:])
        do(Work(images, chunk_size, bool(gradient), draws))
        return
    table = Table(title="Peak memory, resnet20_frn")
    for column in ("work", "above the images alone, MiB"):
        table.add_column(column, justify="right")
    for images in (2_000, 10_000):
        idle = Work(images, 1, False).run()
        for chunk_size in (100, 400):
            extra = Work(images, chunk_size, True).run() - idle
            table.add_row(f"gradient over {images:,} images, chunks of {chunk_size}", f"{extra:.0f}")
    idle = Work(1, 1, False).run()
    for draws in (1, DRAWS):
        table.add_row(f"{draws:,} draws streamed", f"{Work(1, 1, False, draws).run() - idle:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

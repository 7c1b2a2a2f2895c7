"""Peak memory of fits of an adapter whose frozen base is split over processes, in multiples of the base.

Network and fits are those of `benchmarks.adapter_memory`; each process makes the network and keeps its shards. Each
figure is the largest peak of a process after that, beyond what it had before there was a base. The least is one share,
1/R for R processes, and the largest layer is 0.05 bases. What a plain training step needs, as the gradients and the
activations, is not taken off. malloc must return freed layers to the system, or the heap keeps them:

    MALLOC_MMAP_THRESHOLD_=1000000 torchrun --nproc-per-node 2 -m benchmarks.sharded_memory

Arguments are names of methods, all by default.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import torchbayes as tb
from benchmarks.adapter_memory import METHODS, adapted, base_size, library
from benchmarks.harness import memory_now, peak_memory
from torchbayes.adapters import shard
from torchbayes.native.process import trim


def peak(name: str) -> float:
    """Return the largest peak of a process in a fit, in MiB."""
    library(shard(adapted(8, 1)), METHODS[name])  # code that is loaded when it is first used is no memory of a fit
    trim()
    before = memory_now()
    network = shard(adapted())
    trim()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten: the network was whole
    library(network, METHODS[name])
    most = torch.tensor(peak_memory() - before)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def main() -> None:
    """Print a row for each method."""
    with tb.Ranks.grid(chains=1) as ranks:
        for name in sys.argv[1:] or METHODS:
            bases = peak(name) / base_size()
            if ranks.first:
                print(f"{name}: {bases:.2f} bases in each of {ranks.size} processes", flush=True)


if __name__ == "__main__":
    main()

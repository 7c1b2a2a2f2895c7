"""What `fit` costs per step beyond a hand-written loop with a fused optimiser, and in memory: MLP 784-400-400-10.

Both train the same network on the same 12,800 rows with Adam and batches of 128. The hand-written loop shuffles each
epoch and reads the loss at its end. Seconds per step are the difference between a long and a short run, so that what
is done once (checks of the data, initialisation, the posterior) does not count.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import Timing, peak_memory, report
from torchbayes.networks import build

ROWS, BATCH, SHORT, LONG = 12_800, 128, 1, 5


def network() -> nn.Module:
    """Return a fresh network."""
    return build("mlp", (784,), 10, hidden=(400, 400))


def data() -> tuple[Tensor, Tensor]:
    """Return made-up rows."""
    source = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 784, generator=source), torch.randint(10, (ROWS,), generator=source)


def hand_written(inputs: Tensor, targets: Tensor, epochs: int, *, weight_decay: float = 0.0) -> list[float]:
    """Train as one would without a library."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-6, fused=True, weight_decay=weight_decay)
    losses = []
    for _ in range(epochs):
        total = torch.zeros(())
        for index in torch.randperm(ROWS).split(BATCH):
            loss = F.cross_entropy(net(inputs[index]), targets[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        losses.append(float(total))
    return losses


def library(inputs: Tensor, targets: Tensor, epochs: int, *, prior: tb.priors.Flat | tb.priors.Normal) -> tb.Point:
    """Train with `fit`."""
    model = tb.Model(network, tb.likelihoods.Categorical(), prior)
    method = tb.MAP(epochs=epochs, batch_size=BATCH, optimizer=tb.Adam(lr=1e-6), schedule=tb.Constant())
    return tb.fit(model, (inputs, targets), method, callbacks=())  # type: ignore[return-value]


def memory(way: str) -> float:
    """Return the peak memory of one way in a process of its own, in MiB."""
    command = [sys.executable, "-m", "benchmarks.overhead", way]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table, or with an argument run one way and print its peak memory."""
    inputs, targets = data()
    prior = tb.priors.Normal(1.0)
    ways: dict[str, Callable[[int], object]] = {
        "hand-written": lambda epochs: hand_written(inputs, targets, epochs),
        "hand-written, weight decay": lambda epochs: hand_written(inputs, targets, epochs, weight_decay=1 / ROWS),
        "fit, flat prior": lambda epochs: library(inputs, targets, epochs, prior=tb.priors.Flat()),
        "fit, normal prior": lambda epochs: library(inputs, targets, epochs, prior=prior),
    }
    if len(sys.argv) > 1:
        ways[sys.argv[1]](SHORT)
        print(peak_memory())
        return
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(7):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            marks = [time.perf_counter()]
            for epochs in (SHORT, LONG):
                ways[way](epochs)
                marks.append(time.perf_counter())
            short, long = marks[1] - marks[0], marks[2] - marks[1]
            if number:  # the first round is a warm-up
                seconds[way].append((long - short) / (LONG - SHORT) / (ROWS // BATCH))
    note = ", ".join(f"{way}: {memory(way):.0f} MiB" for way in ways)
    report("One step, MLP 784-400-400-10", [Timing(w, s) for w, s in seconds.items()], "hand-written", note)


if __name__ == "__main__":
    main()

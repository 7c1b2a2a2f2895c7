"""What `fit` costs per step beyond a hand-written loop with a fused optimiser, and in memory: MLP 784-400-400-10.

Both train the same network on the same 12,800 rows with Adam and batches of 128 for two epochs. The hand-written
loop shuffles each epoch and reads the loss at its end.
"""

from __future__ import annotations

import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import peak_memory, race, report
from torchbayes.networks import build

ROWS, BATCH, EPOCHS = 12_800, 128, 2


def network() -> nn.Module:
    """Return a fresh network."""
    return build("mlp", (784,), 10, hidden=(400, 400))


def data() -> tuple[Tensor, Tensor]:
    """Return made-up rows."""
    source = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 784, generator=source), torch.randint(10, (ROWS,), generator=source)


def hand_written(inputs: Tensor, targets: Tensor, *, weight_decay: float = 0.0) -> list[float]:
    """Train as one would without a library."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), fused=True, weight_decay=weight_decay)
    losses = []
    for _ in range(EPOCHS):
        total = torch.zeros(())
        for index in torch.randperm(ROWS).split(BATCH):
            loss = F.cross_entropy(net(inputs[index]), targets[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        losses.append(float(total))
    return losses


def library(inputs: Tensor, targets: Tensor, *, prior: tb.priors.Flat | tb.priors.Normal) -> tb.Point:
    """Train with `fit`."""
    model = tb.Model(network, tb.likelihoods.Categorical(), prior)
    method = tb.MAP(epochs=EPOCHS, batch_size=BATCH, optimizer=tb.Adam(), schedule=tb.Constant())
    return tb.fit(model, (inputs, targets), method, callbacks=())  # type: ignore[return-value]


def memory(way: str) -> float:
    """Return the peak memory of one way in a process of its own, in MiB."""
    command = [sys.executable, "-m", "benchmarks.overhead", way]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table, or with an argument run one way and print its peak memory."""
    inputs, targets = data()
    prior = tb.priors.Normal(1.0)
    ways = {
        "hand-written": lambda: hand_written(inputs, targets),
        "hand-written, weight decay": lambda: hand_written(inputs, targets, weight_decay=1 / ROWS),
        "fit, flat prior": lambda: library(inputs, targets, prior=tb.priors.Flat()),
        "fit, normal prior": lambda: library(inputs, targets, prior=prior),
    }
    if len(sys.argv) > 1:
        ways[sys.argv[1]]()
        print(peak_memory())
        return
    note = ", ".join(f"{way}: {memory(way):.0f} MiB" for way in ways)
    report(f"{EPOCHS * ROWS // BATCH} steps, MLP 784-400-400-10", race(ways, rounds=9, warmup=1), "hand-written", note)


if __name__ == "__main__":
    main()

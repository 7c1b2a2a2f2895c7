"""One training step of variational methods over that of a single network: MLP 784-400-400-10, batch 128.

The learning rate is so small that the network never fits its one batch by heart: once it does, gradients become
denormal numbers, on which every way is slow. The published implementation of IVON is no package of this environment, so
there is no peer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import torchbayes as tb
from benchmarks.harness import Work, race, report
from torchbayes.networks import build

BATCH, NUM_DATA = 128, 60_000


def network() -> nn.Module:
    """Return a fresh network."""
    return build("mlp", (784,), 10, hidden=(400, 400))


def step(method: Any, rows: tb.Batch) -> Work:
    """Return one step of a method on one minibatch."""
    model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(0.1))
    seeds = tb.member_seeds(0, 1)
    density = tb.LogDensity(model, NUM_DATA, training=True)
    state = method.init(density, *model.starting_weights(seeds), seeds=seeds, steps_per_epoch=-(-NUM_DATA // BATCH))

    def work() -> None:
        nonlocal state
        state, _ = method.step(density, state, rows, donate=True)

    return work


def main() -> None:
    """Print the table."""
    source = torch.Generator().manual_seed(0)
    rows = tb.Batch(torch.randn(1, BATCH, 784, generator=source), torch.randint(10, (1, BATCH), generator=source))
    ways = {
        "MAP, SGD": step(tb.MAP(epochs=10_000, optimizer=tb.SGD(1e-6)), rows),
        "MAP, Adam": step(tb.MAP(epochs=10_000, optimizer=tb.Adam(1e-6)), rows),
        "VI": step(tb.VI(epochs=10_000, optimizer=tb.Adam(1e-6), kl_weight=1.0), rows),
        "VI, local noise": step(tb.VI(epochs=10_000, optimizer=tb.Adam(1e-6), kl_weight=1.0, estimator="local"), rows),
        "VI, flipout": step(tb.VI(epochs=10_000, optimizer=tb.Adam(1e-6), kl_weight=1.0, estimator="flipout"), rows),
        "IVON": step(tb.IVON(epochs=10_000, lr=1e-6), rows),
        "IVON, 2 draws": step(tb.IVON(epochs=10_000, lr=1e-6, draws=2), rows),
    }
    report("Training step, MLP 784-400-400-10", race(ways, rounds=25), "MAP, Adam")


if __name__ == "__main__":
    main()

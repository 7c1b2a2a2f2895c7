"""One training step of variational methods over that of a single network: MLP 784-400-400-10 and LeNet, batch 128.

Steps of black-box α are timed beside those of as many draws without it, also for the small network of a table.

The learning rate is so small that the network never fits its one batch by heart: once it does, gradients become
denormal numbers, on which every way is slow. The published implementation of IVON is no package of this environment, so
there is no peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchbayes as tb
from benchmarks.harness import Work, race, report
from torchbayes.networks import build

BATCH, NUM_DATA = 128, 60_000
DRAWS = (2, 5, 10)


NETWORKS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "MLP 784-400-400-10": ((784,), lambda: build("mlp", (784,), 10, hidden=(400, 400))),
    "LeNet 20-50-500": ((1, 28, 28), lambda: build("lenet", (1, 28, 28), 10)),
}


def step(method: Any, network: Callable[[], nn.Module], rows: tb.Batch) -> Work:
    """Return one step of a method on one minibatch."""
    model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(0.1))
    seeds = tb.member_seeds(0, 1)
    density = tb.LogDensity(model, NUM_DATA, training=True)
    state = method.init(density, *model.starting_weights(seeds), seeds=seeds, steps_per_epoch=-(-NUM_DATA // BATCH))

    def work() -> None:
        nonlocal state
        state, _ = method.step(density, state, rows, donate=True)

    return work


def inference(**settings: Any) -> tb.VI:
    """Return variational inference that goes on for ever."""
    return tb.VI(epochs=10_000, optimizer=tb.Adam(1e-6), kl_weight=1.0, **settings)


def mixtures(name: str, shape: tuple[int, ...], network: Callable[[], nn.Module]) -> None:
    """Print what a step with draws that are combined row by row takes, over one with their mean."""
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, BATCH, *shape, generator=source)
    rows = tb.Batch(inputs, torch.randint(10, (1, BATCH), generator=source))
    for draws in DRAWS:
        ways = {
            f"{estimator}, alpha {alpha}": step(inference(estimator=estimator, draws=draws, alpha=alpha), network, rows)
            for estimator in ("weights", "local")
            for alpha in (0.0, 0.5)
        }
        report(f"Step with {draws} draws, {name}", race(ways, rounds=5), "weights, alpha 0.0")


def main() -> None:
    """Print the tables."""
    source = torch.Generator().manual_seed(0)
    methods = {
        "MAP, SGD": tb.MAP(epochs=10_000, optimizer=tb.SGD(1e-6)),
        "MAP, Adam": tb.MAP(epochs=10_000, optimizer=tb.Adam(1e-6)),
        "VI": inference(estimator="weights"),
        "VI, local noise": inference(estimator="local"),
        "VI, flipout": inference(estimator="flipout"),
        "IVON": tb.IVON(epochs=10_000, lr=1e-6),
        "IVON, 2 draws": tb.IVON(epochs=10_000, lr=1e-6, draws=2),
    }
    for name, (shape, network) in NETWORKS.items():
        inputs = torch.randn(1, BATCH, *shape, generator=source)
        rows = tb.Batch(inputs, torch.randint(10, (1, BATCH), generator=source))
        ways = {way: step(method, network, rows) for way, method in methods.items()}
        report(f"Training step, {name}", race(ways, rounds=25), "MAP, Adam")
    mixtures("MLP 784-400-400-10", *NETWORKS["MLP 784-400-400-10"])
    mixtures("MLP 10-50-10", (10,), lambda: build("mlp", (10,), 10, hidden=(50,)))


if __name__ == "__main__":
    main()

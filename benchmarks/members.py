"""One training step of 8 members of an MLP 784-200-200-10, batch 128, Adam: together against one after the other.

The learning rate is so small that the networks never fit their one batch by heart: once they do, gradients become
denormal numbers, on which every way is slow.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import torchbayes as tb
from benchmarks.harness import Work, race, report
from torchbayes.networks import build

MEMBERS, BATCH, NUM_DATA = 8, 128, 60_000


def network() -> nn.Module:
    """Return a fresh network."""
    return build("mlp", (784,), 10, hidden=(200, 200))


def ours(model: tb.Model, rows: tb.Batch, plan: str) -> Work:
    """Return one step of MAP on the whole stack."""
    method = tb.MAP(members=len(rows.targets), epochs=10_000, optimizer=tb.Adam(lr=1e-6), plan=plan)
    seeds = tb.member_seeds(0, method.members)
    weights, buffers = model.starting_weights(seeds)
    density = tb.LogDensity(model, NUM_DATA, plan=plan, training=True)  # type: ignore[arg-type]
    state = method.init(density, weights, buffers, seeds=seeds, steps_per_epoch=100)

    def step() -> None:
        nonlocal state
        state, _ = method.step(density, state, rows, donate=True)

    return step


def plain(rows: tb.Batch, *, fused: bool) -> Work:
    """Return a hand-written step of one network after the other, with torch.optim.Adam on each."""
    networks = [network() for _ in range(MEMBERS)]
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-6, fused=fused) for net in networks]

    def step() -> None:
        for member in range(MEMBERS):
            loss = F.cross_entropy(networks[member](rows.inputs[member]), rows.targets[member])
            optimizers[member].zero_grad()
            loss.backward()
            optimizers[member].step()

    return step


def main() -> None:
    """Print the table."""
    source = torch.Generator().manual_seed(0)
    rows = tb.Batch(
        torch.randn(MEMBERS, BATCH, 784, generator=source),
        torch.randint(10, (MEMBERS, BATCH), generator=source),
    )
    flat = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Flat())
    normal = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    ways = {
        "plain loop": plain(rows, fused=False),
        "plain loop, fused Adam": plain(rows, fused=True),
        "native": ours(flat, rows, "native"),
        "vmap": ours(flat, rows, "vmap"),
        "compiled": ours(flat, rows, "compiled"),
        "loop": ours(flat, rows, "loop"),
        "native, normal prior": ours(normal, rows, "native"),
        "vmap, normal prior": ours(normal, rows, "vmap"),
    }
    report("Training step of 8 members, MLP 784-200-200-10", race(ways), "plain loop")


if __name__ == "__main__":
    main()

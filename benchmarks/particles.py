"""One step of ten particles over one step of ten members of MAP, which do not see each other.

Perceptron 784-400-400-10 (478,410 weights), batches of 128, plans as by default: `python -m benchmarks.particles`.
"""

from __future__ import annotations

from typing import Any

import torch

import torchbayes as tb
from benchmarks.harness import Work, race, report
from torchbayes.networks import build
from torchbayes.randomness.seeds import member_seeds

MEMBERS, BATCH, CLASSES, STEPS = 10, 128, 10, 1_000_000
WAYS: dict[str, Any] = {
    "MAP": tb.MAP(MEMBERS),
    "SVGD": tb.SVGD(MEMBERS),
    "weights that repel, kde": tb.RepulsiveEnsemble(MEMBERS, space="weights"),
    "weights that repel, ssge": tb.RepulsiveEnsemble(MEMBERS, space="weights", score="ssge"),
    "functions that repel": tb.RepulsiveEnsemble(MEMBERS),
    "functions that repel, prior of weights": tb.RepulsiveEnsemble(MEMBERS, prior="weights"),
}


def stepping(model: tb.Model, method: Any, batch: tb.Batch) -> Work:
    """Return one step of a method, which goes on where the last one ended."""
    seeds = member_seeds(0, MEMBERS)
    density = tb.LogDensity(model, 100 * BATCH, plan=method.plan, training=True)
    state = method.init(density, *model.starting_weights(seeds), seeds=seeds, steps_per_epoch=STEPS)

    def step() -> None:
        nonlocal state
        state, _ = method.step(density, state, batch, donate=True)

    return step


def main() -> None:
    """Print the table."""
    model = tb.Model(build("mlp", (784,), CLASSES, hidden=(400, 400)), tb.likelihoods.Categorical())
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(MEMBERS, BATCH, 784, generator=source)
    batch = tb.Batch(inputs, torch.randint(CLASSES, (MEMBERS, BATCH), generator=source))
    timings = race({name: stepping(model, method, batch) for name, method in WAYS.items()})
    report(f"{MEMBERS} particles, one step", timings, "MAP")


if __name__ == "__main__":
    main()

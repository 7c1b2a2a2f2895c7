"""One SWAG snapshot of resnet20 (272 k weights): flat vector against a loop over parameters, as a share of an epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.harness import Work, race, report
from benchmarks.members import ours
from torchbayes.methods.moments import Moments
from torchbayes.model import Batch, Model, likelihoods
from torchbayes.networks import build

RANK, BATCH, ROWS = 20, 128, 50_000


def flat(weights_MD: Tensor) -> Work:
    """Return one snapshot of the flat vector."""
    moments = Moments.empty(weights_MD, RANK)

    def collect() -> None:
        nonlocal moments
        moments = moments.collect(weights_MD, donate=True)

    return collect


def per_parameter(tensors: list[Tensor]) -> Work:
    """Return one snapshot of every parameter on its own: raw moments and a list of deviations, as in the paper."""
    mean = [torch.zeros_like(t) for t in tensors]
    square = [torch.zeros_like(t) for t in tensors]
    deviations: list[list[Tensor]] = [[] for _ in tensors]
    count = 0

    def collect() -> None:
        nonlocal count
        count += 1
        for i, t in enumerate(tensors):
            mean[i] = mean[i] * ((count - 1) / count) + t / count
            square[i] = square[i] * ((count - 1) / count) + t**2 / count
            deviations[i].append((t - mean[i]).flatten())
            del deviations[i][:-RANK]

    return collect


def main() -> None:
    """Print the table."""
    network = build("resnet20_frn", (3, 32, 32), 10)
    model = Model(network, likelihoods.Categorical())
    weights_MD = model.given_weights().unsqueeze(0)
    source = torch.Generator().manual_seed(0)
    rows = Batch(torch.randn(1, BATCH, 3, 32, 32, generator=source), torch.randint(10, (1, BATCH), generator=source))
    ways = {
        "per parameter": per_parameter([p.detach() for p in network.parameters()]),
        "flat vector": flat(weights_MD),
        "training step": ours(model, rows, "loop"),
    }
    timings = race(ways, rounds=7)
    seconds = {t.name: t.median for t in timings}
    epoch = seconds["training step"] * -(-ROWS // BATCH)
    note = f"a snapshot is {seconds['flat vector'] / epoch:.1e} of an epoch over {ROWS:,} images"
    report("SWAG snapshot, resnet20_frn", timings, "per parameter", note)


if __name__ == "__main__":
    main()

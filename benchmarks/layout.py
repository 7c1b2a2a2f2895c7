"""One training step of each convolutional network with images as they come and with channels last."""

from __future__ import annotations

import torch
from torch import Tensor

import torchbayes as tb
from benchmarks.harness import Work, race, report
from torchbayes.networks import build

CASES = {
    "lenet": ((1, 28, 28), 128),
    "small_cnn": ((1, 8, 8), 128),
    "resnet20_frn": ((3, 32, 32), 32),
    "preresnet20": ((3, 32, 32), 32),
}


def step(model: tb.Model, inputs: Tensor, targets: Tensor, *, arrange: bool) -> Work:
    """Return value and gradient of the log likelihood on one batch."""
    weights = model.given_weights().requires_grad_()
    buffers = model.network.stacked_buffers(1)

    def run() -> Tensor:
        own = {n: b[0].clone() for n, b in buffers.items()}
        rows = tb.Batch(model.network.arrange(inputs) if arrange else inputs, targets)
        with model.network.training():
            total = model.log_likelihood(weights, rows, own).sum()
        return torch.autograd.grad(total, weights)[0]

    return run


def main() -> None:
    """Print the tables."""
    source = torch.Generator().manual_seed(0)
    for name, (shape, batch) in CASES.items():
        model = tb.Model(build(name, shape, 10), tb.likelihoods.Categorical())
        inputs = torch.randn(batch, *shape, generator=source)
        targets = torch.randint(10, (batch,), generator=source)
        ways = {
            "as given": step(model, inputs, targets, arrange=False),
            "channels last": step(model, inputs, targets, arrange=True),
        }
        report(f"Gradient of {name}, batch {batch}", race(ways, rounds=9), "as given")


if __name__ == "__main__":
    main()

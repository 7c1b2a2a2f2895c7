"""Value and gradient of the log density on all the data, for small perceptrons: the kernel against autograd."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import torchbayes as tb
from benchmarks.harness import race, report
from torchbayes.networks import build


@dataclass(frozen=True)
class Case:
    """Network, rows and members."""

    features: int
    outputs: int
    hidden: tuple[int, ...]
    rows: int
    members: int

    def density(self, plan: str) -> tuple[tb.LogDensity, torch.Tensor]:
        """Return the density on made-up rows, and weights."""
        source = torch.Generator().manual_seed(0)
        inputs = torch.randn(self.rows, self.features, generator=source)
        if self.outputs > 1:
            targets, likelihood = torch.randint(self.outputs, (self.rows,)), tb.likelihoods.Categorical()
        else:
            targets, likelihood = torch.randn(self.rows, generator=source), tb.likelihoods.Gaussian(0.1)
        activation = "relu" if self.outputs > 1 else "tanh"
        model = tb.Model(
            lambda: build("mlp", (self.features,), self.outputs, hidden=self.hidden, activation=activation), likelihood
        )
        weights, _ = model.starting_weights(range(self.members))
        return tb.LogDensity(model, self.rows, tb.Batch(inputs, targets), plan=plan), weights  # type: ignore[arg-type]


CASES = (
    Case(64, 10, (50, 50), 1437, 1),
    Case(64, 10, (50, 50), 1437, 8),
    Case(1, 1, (50, 50), 100, 1),
    Case(1, 1, (50, 50), 100, 8),
    Case(784, 10, (400, 400), 8000, 1),
)


def main() -> None:
    """Print the tables."""
    for case in CASES:
        ways = {}
        for plan in ("loop", "native"):
            density, weights = case.density(plan)
            ways[plan] = lambda density=density, weights=weights: density(weights)
        widths = "-".join(map(str, (case.features, *case.hidden, case.outputs)))
        report(f"Gradient of {widths}, {case.rows} rows, {case.members} members", race(ways, rounds=7), "loop")


if __name__ == "__main__":
    main()

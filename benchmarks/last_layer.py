"""Predictions of a last-layer Laplace posterior in closed form: against one forward pass of the network alone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import Work, race, report
from torchbayes.networks import build

ROWS = 256


def without_gradient(module: nn.Module, inputs: Tensor) -> Work:
    """Return a call of a module."""

    @torch.no_grad()
    def run() -> object:
        return module(inputs)

    return run


def head_of(module: nn.Module) -> str:
    """Return the name of the last linear layer."""
    return [name for name, part in module.named_modules() if isinstance(part, nn.Linear)][-1]


def case(title: str, module: nn.Module, inputs: Tensor, *, structure: str, rounds: int) -> None:
    """Race the network, its module and its linearised predictive."""
    model = tb.Model(module.eval(), tb.likelihoods.Categorical(), random=f"{head_of(module)}.*")
    targets = torch.arange(len(inputs)) % 10
    posterior = tb.fit(
        model, (inputs, targets), tb.Laplace(structure=structure, prior="model"), start=copy.deepcopy(module)
    )
    assert isinstance(posterior, tb.LaplacePosterior)
    linearised = tb.Linearised(posterior)
    average, prediction = linearised.module(), tb.predict(linearised, inputs)
    torch.testing.assert_close(average(inputs)["probs"], prediction.probs, rtol=1e-3, atol=1e-4)
    ways = {
        "network": without_gradient(module, inputs),
        "module": without_gradient(average, inputs),
        "predict": lambda: tb.predict(linearised, inputs).probs,
    }
    report(title, race(ways, rounds=rounds, warmup=1), "network")


def main() -> None:
    """Print the tables."""
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, 784, generator=source)
    images = torch.randn(ROWS, 3, 32, 32, generator=source)
    for structure in ("kronecker", "dense"):
        wide = build("mlp", (784,), 10, hidden=(1024, 1024, 128))
        case(f"MLP 784-1024-1024-128-10, {structure}", wide, rows, structure=structure, rounds=15)
        deep = build("resnet20_frn", (3, 32, 32), 10)
        case(f"resnet20_frn, images of 32 x 32, {structure}", deep, images, structure=structure, rounds=5)


if __name__ == "__main__":
    main()

"""A pass of probabilistic backpropagation: against one forward pass with moments of all rows, the least it takes.

The pass is row by row, each row after the other; the forward pass is in tensor operations, and changes nothing.
"""

from __future__ import annotations

import time
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.harness import Work, race, report
from torchbayes.native.description import Activation, Layer
from torchbayes.native.propagation import Beliefs, Rows, outputs_of, propagate

ROWS = 2000
WIDTHS = ((13, 50, 1), (9, 100, 1), (13, 50, 50, 1), (784, 400, 400, 1))


def layers_of(widths: tuple[int, ...]) -> tuple[tuple[Layer, ...], int]:
    """Return the layers of a perceptron with biases, and the number of its weights."""
    layers: list[Layer] = []
    at = 0
    for number, (fan_in, fan_out) in enumerate(pairwise(widths), 2):
        bias_at = at + fan_in * fan_out
        activation = Activation.IDENTITY if number == len(widths) else Activation.RELU
        layers.append(Layer(at, bias_at, fan_in, fan_out, activation))
        at = bias_at + fan_out
    return tuple(layers), at


def case(widths: tuple[int, ...], rows: int) -> None:
    """Race a pass and the forward pass."""
    layers, size = layers_of(widths)
    source = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=source)

    data = Rows(normal(1, rows, widths[0]), normal(1, rows, 1))
    scale = widths[0] ** -0.5
    beliefs = Beliefs(scale * normal(1, size), torch.full((1, size), scale**2, dtype=torch.float64))
    noise = torch.tensor([[[6.0, 6.0]]], dtype=torch.float64)

    @torch.no_grad()
    def forward() -> object:
        return outputs_of(layers, beliefs.mean_MD[0], beliefs.variance_MD[0], inputs_BI=data.inputs_MBI[0])

    ways: dict[str, Work] = {
        "forward pass with moments": forward,
        "pass": lambda: propagate(layers, beliefs, noise, rows=data),
    }
    timings = race(ways, rounds=9, warmup=1, clock=time.process_time)
    each = {timing.name: 1e6 * timing.median / rows for timing in timings}
    note = f"{size:,} weights; microseconds a row: " + ", ".join(f"{name} {value:.2f}" for name, value in each.items())
    report(f"{'-'.join(map(str, widths))}, {rows:,} rows", timings, "forward pass with moments", note)


def main() -> None:
    """Print the tables."""
    for widths in WIDTHS:
        case(widths, ROWS if widths[0] < 100 else ROWS // 10)


if __name__ == "__main__":
    main()

"""A linear layer with a low-rank adapter, whose factors are named as those of PEFT."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Adapted(nn.Module):
    """W x + b + s B A x, in float64; no factor is 0."""

    def __init__(self, inputs: int = 5, outputs: int = 4, rank: int = 3, scaling: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(inputs, outputs)
        self.lora_A, self.lora_B = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        self.scaling = scaling
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.scaling * self.lora_B(self.lora_A(inputs))

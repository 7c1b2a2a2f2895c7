"""Masked RealNVP as multiplicative normalising flows use it (Louizos and Welling 2017; Dinh et al. 2017).

    h = tanh(F (k ∘ z) + f),    μ = A h + a,    s = sigmoid(B h + b)
    z' = k ∘ z + (1 − k) ∘ (s ∘ z + (1 − s) ∘ μ),    log det = Σ (1 − k) log s

In the paper the masks k are random at each call. Here they are fixed: one step keeps every second number, the next
step the others, so that two steps move each number once. Parameters of members are stacked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from torchbayes.model.layout import Layout

GATE = 2.0  # initial b: s = 0.88


@dataclass(frozen=True)
class Coupling:
    """Steps of a masked RealNVP over n numbers."""

    size: int  # n
    steps: int
    hidden: int  # units in h
    centre: float = 1.0  # initial a, around which z contracts

    @cached_property
    def layout(self) -> Layout:
        """F, f, A, a, B and b of each step."""
        n, h = self.size, self.hidden
        shapes = {"F": (h, n), "f": (h,), "A": (n, h), "a": (n,), "B": (n, h), "b": (n,)}
        return Layout({f"{step}.{name}": shape for step in range(self.steps) for name, shape in shapes.items()})

    @property
    def moves(self) -> Tensor:
        """How often each number is moved, (n,)."""
        return torch.stack([1 - self._kept(step, torch.zeros(())) for step in range(self.steps)]).sum(0)

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return initial parameters from standard normals: z contracts around `centre`, each number on its own."""
        parts = self.layout.split(noise_MP)
        for name, value in parts.items():
            kind = name.rpartition(".")[2]
            if kind == "F":
                parts[name] = value / math.sqrt(self.size)
            else:
                parts[name] = torch.full_like(value, {"a": self.centre, "b": GATE}.get(kind, 0.0))
        return self.layout.join(parts)

    def forward(self, parts: Mapping[str, Tensor], z_MSn: Tensor, prefix: str = "") -> tuple[Tensor, Tensor]:
        """Return where points go, and the log determinant there, (M, S).

        `parts` are the parameters by name, each (M, ...); `prefix` stands before the names.
        """
        total_MS = z_MSn.new_zeros(z_MSn.shape[:-1])
        for step in range(self.steps):
            parameters = {name: parts[f"{prefix}{step}.{name}"] for name in ("F", "f", "A", "a", "B", "b")}
            keep_n = self._kept(step, z_MSn)
            h_MSh = torch.tanh((keep_n * z_MSn) @ parameters["F"].mT + parameters["f"].unsqueeze(1))
            shift_MSn = h_MSh @ parameters["A"].mT + parameters["a"].unsqueeze(1)
            gate_MSn = h_MSh @ parameters["B"].mT + parameters["b"].unsqueeze(1)
            s_MSn = torch.sigmoid(gate_MSn)
            z_MSn = keep_n * z_MSn + (1 - keep_n) * (s_MSn * z_MSn + (1 - s_MSn) * shift_MSn)
            total_MS = total_MS + ((1 - keep_n) * F.logsigmoid(gate_MSn)).sum(-1)
        return z_MSn, total_MS

    def _kept(self, step: int, like: Tensor) -> Tensor:
        """Return k of a step, (n,). If n = 1, the first step moves the number."""
        return ((torch.arange(self.size, device=like.device) + step) % 2).to(like.dtype)

r"""Masked RealNVP as multiplicative normalising flows have it (Louizos and Welling 2017; Dinh et al. 2017).

    h = tanh(F (k ∘ z) + f),    μ = A h + a,    s = sigmoid(B h + b)
    z' = k ∘ z + (1 − k) ∘ (s ∘ z + (1 − s) ∘ μ),    log det = Σ (1 − k) log s

The masks k, random at each call in the paper, are fixed: every second number is kept, the others in the next step, so
that two steps move each number once. Parameters of members are stacked.
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

GATE = 2.0  # b at first: s = 0.88


@dataclass(frozen=True)
class Coupling:
    """Steps of a masked RealNVP over a few numbers.

    Attributes:
        size: n.
        steps: how many.
        hidden: units in h.
        centre: a at first, around which z contracts.
    """

    size: int
    steps: int
    hidden: int
    centre: float = 1.0

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
        """Return parameters of steps that contract around `centre` and look at no other number."""
        parts = self.layout.split(noise_MP)
        for name, part in parts.items():
            kind = name.rpartition(".")[2]
            if kind == "F":
                parts[name] = part / math.sqrt(self.size)
            else:
                parts[name] = torch.full_like(part, {"a": self.centre, "b": GATE}.get(kind, 0.0))
        return self.layout.join(parts)

    def forward(self, parts: Mapping[str, Tensor], z_MSn: Tensor, prefix: str = "") -> tuple[Tensor, Tensor]:
        """Return where points go, and the log determinant there, (M, S).

        Args:
            parts: the parameters by name, each (M, ...).
            z_MSn: the points.
            prefix: of the names.
        """
        total_MS = z_MSn.new_zeros(z_MSn.shape[:-1])
        for step in range(self.steps):
            own = {name: parts[f"{prefix}{step}.{name}"] for name in ("F", "f", "A", "a", "B", "b")}
            kept_n = self._kept(step, z_MSn)
            h_MSh = torch.tanh((kept_n * z_MSn) @ own["F"].mT + own["f"].unsqueeze(1))
            shift_MSn = h_MSh @ own["A"].mT + own["a"].unsqueeze(1)
            gate_MSn = h_MSh @ own["B"].mT + own["b"].unsqueeze(1)
            s_MSn = torch.sigmoid(gate_MSn)
            z_MSn = kept_n * z_MSn + (1 - kept_n) * (s_MSn * z_MSn + (1 - s_MSn) * shift_MSn)
            total_MS = total_MS + ((1 - kept_n) * F.logsigmoid(gate_MSn)).sum(-1)
        return z_MSn, total_MS

    def _kept(self, step: int, like: Tensor) -> Tensor:
        """Return k of a step, (n,): of one number alone, the first step moves it."""
        return ((torch.arange(self.size, device=like.device) + step) % 2).to(like.dtype)

"""Protocol of flows: invertible maps of D numbers, with one set of parameters for each member."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from torch import Tensor

from torchbayes.model.layout import Layout
from torchbayes.posteriors.flows.neural import Neural
from torchbayes.posteriors.flows.simple import Planar, Radial

Transform = Literal["planar", "radial", "realnvp", "iaf", "spline"]
TRANSFORMS = ("planar", "radial", "realnvp", "iaf", "spline")
SIMPLE = ("planar", "radial")


class Flow(Protocol):
    """Invertible maps f of D numbers, one for each member."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters of one member."""
        ...

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return parameters (M, P) of the identity, made of standard normals (M, P)."""
        ...

    def forward(self, parameters_MP: Tensor, base_MSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(ε), (M, S, D), and log |det ∂f/∂ε|, (M, S)."""
        ...

    def inverse(self, parameters_MP: Tensor, points_MSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return ε = f⁻¹(z), and log |det ∂f/∂ε| there."""
        ...


def flow_of(transform: Transform, size: int, *, layers: int, hidden: int, bins: int) -> Flow:
    """Return a flow of `layers` maps over D = `size` numbers; their networks have `hidden` units, splines `bins` bins.

    A ValueError if it needs a package that is not installed, or there is no such flow over so many numbers.
    """
    if transform in SIMPLE:
        return (Planar if transform == "planar" else Radial)(size, layers)
    kind: Any = transform
    return Neural(size, layers, kind, hidden, bins)

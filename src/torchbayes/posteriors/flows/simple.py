"""Planar and radial flows (Rezende and Mohamed 2015), invertible whatever their parameters.

    planar    z + û tanh(vᵀz + b),           û = u + (m(vᵀu) − vᵀu) v/‖v‖²
              log det = log(1 + ûᵀv (1 − tanh²))
    radial    z + β (z − z₀)/(α + r),        r = ‖z − z₀‖
              log det = (D − 1) log(1 + β h) + log(1 + α β h²),    h = 1/(α + r)

A planar map is invertible where vᵀû > −1, which m ensures, because it increases from −1 + δ. A radial map is
invertible where β > −α. Both use one function of a free number, m(a) = δ − 1 + softplus(a + c) and β = α m(β̂),
where the constant c is such that m(0) = 0, so zero parameters are the identity. δ = 0.001 keeps logarithms finite
under rounding.

The inverse of a radial map has a closed form. With R = ‖y − z₀‖ and k = α + β − R it is z₀ + (y − z₀)/(1 + β/(α +
r)), r = ½ (−k + √(k² + 4 α R)). That of a planar map moves along v alone: t + vᵀû tanh(t + b) = vᵀy has one root t
= vᵀz, which is found by bisection.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from torchbayes.model.layout import Layout

_LEAST = 1e-3  # δ
_SHIFT = math.log(math.expm1(1 - _LEAST))  # c
_HALVINGS = 64  # of an interval, down to the precision of float64


def bounded(free: Tensor) -> Tensor:
    """Return m(a) = δ − 1 + softplus(a + c), which is 0 at 0."""
    return F.softplus(free + _SHIFT) - (1 - _LEAST)


class Flow(Protocol):
    """Invertible maps f of D numbers, with one set of parameters for each member."""

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of the parameters of one member."""
        raise NotImplementedError

    @abstractmethod
    def start(self, noise_MP: Tensor) -> Tensor:
        """Return parameters (M, P) of the identity, made of standard normals (M, P)."""

    @abstractmethod
    def forward(self, parameters_MP: Tensor, base_MSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(ε), (M, S, D), and log |det ∂f/∂ε|, (M, S)."""

    @abstractmethod
    def inverse(self, parameters_MP: Tensor, points_MSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return ε = f⁻¹(z), and log |det ∂f/∂ε| there."""


@dataclass(frozen=True)
class Planar(Flow):
    """Planar maps, one after the other."""

    size: int  # D
    layers: int  # L, maps

    @cached_property
    def layout(self) -> Layout:
        """Of u, v and b of all maps."""
        return Layout({"u": (self.layers, self.size), "v": (self.layers, self.size), "b": (self.layers,)})

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return parameters of the identity: random normals v of length about 1, and u = 0."""
        parts = self.layout.split(noise_MP)
        return self.layout.join({
            "u": torch.zeros_like(parts["u"]),
            "v": parts["v"] / math.sqrt(self.size),
            "b": parts["b"],
        })

    def forward(self, parameters_MP: Tensor, base_MSD: Tensor) -> tuple[Tensor, Tensor]:
        z, total = base_MSD, base_MSD.new_zeros(base_MSD.shape[:-1])
        for push_MD, normal_MD, offset_M1, along_M1 in self._maps(parameters_MP):
            bent_MS = torch.tanh(_dot(z, normal_MD) + offset_M1)
            z = z + bent_MS.unsqueeze(-1) * push_MD.unsqueeze(1)
            total = total + torch.log1p(along_M1 * (1 - bent_MS.square()))
        return z, total

    def inverse(self, parameters_MP: Tensor, points_MSD: Tensor) -> tuple[Tensor, Tensor]:
        y, total = points_MSD, points_MSD.new_zeros(points_MSD.shape[:-1])
        for push_MD, normal_MD, offset_M1, along_M1 in reversed([*self._maps(parameters_MP)]):
            bent_MS = torch.tanh(_root(_dot(y, normal_MD), offset_M1, along_M1) + offset_M1)
            y = y - bent_MS.unsqueeze(-1) * push_MD.unsqueeze(1)
            total = total + torch.log1p(along_M1 * (1 - bent_MS.square()))
        return y, total

    def _maps(self, parameters_MP: Tensor) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return û, v, b and vᵀû of each map."""
        parts = self.layout.split(parameters_MP)
        maps = []
        for u, v, b in zip(parts["u"].unbind(1), parts["v"].unbind(1), parts["b"].unbind(1), strict=True):
            along_M1 = (u * v).sum(-1, keepdim=True)
            allowed_M1 = bounded(along_M1)
            square_M1 = v.square().sum(-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
            maps.append((u + (allowed_M1 - along_M1) / square_M1 * v, v, b.unsqueeze(-1), allowed_M1))
        return maps


@dataclass(frozen=True)
class Radial(Flow):
    """Radial maps, one after the other."""

    size: int  # D
    layers: int  # L, maps

    @cached_property
    def layout(self) -> Layout:
        """Of z₀, log α and β̂ of all maps."""
        return Layout({"centre": (self.layers, self.size), "log_alpha": (self.layers,), "beta": (self.layers,)})

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return parameters of the identity: random centres, α = √D, the typical distance from them, and β = 0."""
        parts = self.layout.split(noise_MP)
        return self.layout.join({
            "centre": parts["centre"],
            "log_alpha": torch.full_like(parts["log_alpha"], 0.5 * math.log(self.size)),
            "beta": torch.zeros_like(parts["beta"]),
        })

    def forward(self, parameters_MP: Tensor, base_MSD: Tensor) -> tuple[Tensor, Tensor]:
        z, total = base_MSD, base_MSD.new_zeros(base_MSD.shape[:-1])
        for centre_MD, alpha_M1, beta_M1 in self._maps(parameters_MP):
            apart_MSD = z - centre_MD.unsqueeze(1)
            inner_MS = 1 / (alpha_M1 + torch.linalg.vector_norm(apart_MSD, dim=-1))  # the norm has slope 0 at 0
            z = z + (beta_M1 * inner_MS).unsqueeze(-1) * apart_MSD
            total = total + self._log_det(alpha_M1, beta_M1, inner_MS)
        return z, total

    def inverse(self, parameters_MP: Tensor, points_MSD: Tensor) -> tuple[Tensor, Tensor]:
        y, total = points_MSD, points_MSD.new_zeros(points_MSD.shape[:-1])
        for centre_MD, alpha_M1, beta_M1 in reversed([*self._maps(parameters_MP)]):
            apart_MSD = y - centre_MD.unsqueeze(1)
            distance_MS = torch.linalg.vector_norm(apart_MSD, dim=-1)
            k_MS = alpha_M1 + beta_M1 - distance_MS
            root_MS = torch.sqrt(k_MS.square() + 4 * alpha_M1 * distance_MS)
            # a sum of numbers of one sign, because a difference would cancel
            r_MS = torch.where(k_MS > 0, 2 * alpha_M1 * distance_MS / (root_MS + k_MS.abs()), 0.5 * (root_MS - k_MS))
            inner_MS = 1 / (alpha_M1 + r_MS)
            y = centre_MD.unsqueeze(1) + apart_MSD / (1 + beta_M1 * inner_MS).unsqueeze(-1)
            total = total + self._log_det(alpha_M1, beta_M1, inner_MS)
        return y, total

    def _log_det(self, alpha_M1: Tensor, beta_M1: Tensor, inner_MS: Tensor) -> Tensor:
        around = (self.size - 1) * torch.log1p(beta_M1 * inner_MS)
        return around + torch.log1p(alpha_M1 * beta_M1 * inner_MS.square())

    def _maps(self, parameters_MP: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return z₀, α and β of each map."""
        parts = self.layout.split(parameters_MP)
        alpha_ML = parts["log_alpha"].exp()
        beta_ML = alpha_ML * bounded(parts["beta"])
        rows = zip(parts["centre"].unbind(1), alpha_ML.unbind(1), beta_ML.unbind(1), strict=True)
        return [(centre, alpha.unsqueeze(-1), beta.unsqueeze(-1)) for centre, alpha, beta in rows]


def _dot(points_MSD: Tensor, normal_MD: Tensor) -> Tensor:
    return (points_MSD @ normal_MD.unsqueeze(-1)).squeeze(-1)


def _root(value_MS: Tensor, offset_M1: Tensor, along_M1: Tensor) -> Tensor:
    """Return t with t + a tanh(t + b) = value, which lies within |a| of the value."""
    low, high = value_MS - along_M1.abs(), value_MS + along_M1.abs()
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = middle + along_M1 * torch.tanh(middle + offset_M1) < value_MS
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)

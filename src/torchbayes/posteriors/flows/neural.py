"""Flows whose maps are given by small networks, from `zuko`: RealNVP, inverse autoregressive flows, neural splines.

    realnvp    z_b ← e^{a(z_a)} z_b + c(z_a), halves a and b in turn           (Dinh et al. 2017)
    iaf        z_i ← e^{a_i(z_<i)} z_i + c_i(z_<i), orders in turn             (Kingma et al. 2016)
    spline     z_b ← ρ(z_b; z_a), ρ monotone, rational quadratic on [−5, 5]    (Durkan et al. 2019)

The last layer of every network starts at zero, so the map starts at the identity. A draw takes one pass through
each map. So does the density of a point, except for `iaf`, where it takes D passes. One weight alone has no other
half: a spline is then one function of one variable.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchbayes.checks import free_memory, size_of
from torchbayes.model.layout import Layout
from torchbayes.posteriors.flows.simple import Flow
from torchbayes.randomness.seeds import Purpose, seeded

Kind = Literal["realnvp", "iaf", "spline"]
_MASK_BYTES = 20  # for each pair of weights, while the masks of an autoregressive network are computed


def check_installed(kind: str) -> None:
    """Raise a ValueError unless the library of these flows is installed."""
    if importlib.util.find_spec("zuko") is None:
        raise ValueError(
            f"`transform` must be 'planar' or 'radial' where the package zuko is not installed; got {kind!r}. Run: pip "
            f"install torchbayes[flows]."
        )


@dataclass(frozen=True)
class Neural(Flow):
    """Maps of one kind, one after the other."""

    size: int  # D
    layers: int  # L, maps
    kind: Kind
    hidden: int  # units in each of the two hidden layers of a network
    bins: int  # of a spline

    def __post_init__(self) -> None:
        check_installed(self.kind)
        if self.size == 1 and self.kind != "spline":
            raise ValueError(
                f"`transform` {self.kind!r} moves weights by functions of other weights, and the model has one random "
                f"weight. Use 'spline', 'planar' or 'radial'."
            )
        needed, free = _MASK_BYTES * self.size**2, free_memory()
        if self.kind == "iaf" and needed > free:
            raise ValueError(
                f"`transform` 'iaf' finds a mask for every pair of the {self.size:,} random weights: that would take "
                f"{size_of(needed)}, and {size_of(free)} are free. Make fewer weights random, fit in a `Subspace`, or "
                f"use 'realnvp', which has none."
            )

    @cached_property
    def layout(self) -> Layout:
        """Of the parameters of the networks, by zuko's names."""
        return Layout.of(dict(self._module.named_parameters()))

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return parameters of the identity: last layers are zero, others scaled by 1/√inputs."""
        last, parts = _last_layers(self._module), {}
        for name, noise in self.layout.split(noise_MP).items():
            layer, _, kind = name.rpartition(".")
            free = kind == "weight" and layer not in last
            parts[name] = noise / math.sqrt(noise.shape[-1]) if free else torch.zeros_like(noise)
        return self.layout.join(parts)

    def forward(self, parameters_MP: Tensor, base_MSD: Tensor) -> tuple[Tensor, Tensor]:
        return self._each(parameters_MP, base_MSD, inverse=False)

    def inverse(self, parameters_MP: Tensor, points_MSD: Tensor) -> tuple[Tensor, Tensor]:
        return self._each(parameters_MP, points_MSD, inverse=True)

    def _each(self, parameters_MP: Tensor, points_MSD: Tensor, *, inverse: bool) -> tuple[Tensor, Tensor]:
        """Return the maps of all members, one after the other, since members are few."""
        buffers = {name: buffer.to(points_MSD.device) for name, buffer in self._module.named_buffers()}
        results = [
            functional_call(
                self._module, (self.layout.split(parameters_P), buffers), (points_SD,), {"inverse": inverse}
            )
            for parameters_P, points_SD in zip(parameters_MP.unbind(0), points_MSD.unbind(0), strict=True)
        ]
        points, log_dets = zip(*results, strict=True)
        return torch.stack(points), torch.stack(log_dets)

    @property
    def _module(self) -> nn.Module:
        return _built(self.kind, self.size, self.layers, self.hidden, self.bins, threading.get_ident())


class _Chain(nn.Module):
    """Maps, one after the other."""

    def __init__(self, maps: list[Any]) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)

    def forward(self, points_SD: Tensor, *, inverse: bool) -> tuple[Tensor, Tensor]:
        """Return where points go, and the log determinants of the maps in the direction from base to points."""
        total_S = points_SD.new_zeros(points_SD.shape[:-1])
        for build in reversed(self.maps) if inverse else self.maps:
            map_ = build()
            before = map_.inv(points_SD) if inverse else points_SD
            after, log_det_S = map_.call_and_ladj(before)
            points_SD, total_S = before if inverse else after, total_S + log_det_S
        return points_SD, total_S


def _last_layers(module: nn.Module) -> set[str]:
    """Return the names of the last layer of each network."""
    linear = [name.removesuffix(".weight") for name, _ in module.named_parameters() if name.endswith(".weight")]
    return {*{name.rpartition(".")[0]: name for name in linear}.values()}


@lru_cache(maxsize=32)
def _built(kind: Kind, size: int, layers: int, hidden: int, bins: int, thread: int) -> nn.Module:
    """Return the maps of a thread, without memory for parameters, which those of members replace."""
    del thread
    with seeded(Purpose.FLOW_MAPS):  # zuko draws random parameters all the same
        chain = _Chain([*_maps(kind, size, layers, hidden, bins)]).requires_grad_(False)
    for module in chain.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(parameter.to("meta"), requires_grad=False))
    return chain


def _maps(kind: Kind, size: int, layers: int, hidden: int, bins: int) -> Iterator[Any]:
    """Yield the maps; each moves the half that the one before left alone, or takes the weights in reverse order."""
    flows: Any = importlib.import_module("zuko.flows")  # zuko may be absent, and takes a while to import
    options: dict[str, Any] = {"hidden_features": (hidden, hidden), "activation": nn.Tanh}
    if kind == "spline":
        options |= {
            "univariate": importlib.import_module("zuko.transforms").MonotonicRQSTransform,
            "shapes": [(bins,), (bins,), (bins - 1,)],
        }
    if size == 1:
        options = {name: value for name, value in options.items() if name in {"univariate", "shapes"}}
    indices = torch.arange(size)
    for layer in range(layers):
        if kind == "iaf":
            order = indices.flip(0) if layer % 2 else indices
            yield flows.MaskedAutoregressiveTransform(size, order=order, **options)
        else:
            yield flows.GeneralCouplingTransform(size, mask=(indices + layer) % 2 == 1, **options)

"""A compressed network: smaller, with weights of few bits, and a file of the size that it states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import check_kind
from torchbayes.compression.plain import filled, multipliers_removed
from torchbayes.compression.rounding import Rounding, packed, unpacked
from torchbayes.compression.surgery import Surgery
from torchbayes.model.model import PREFIX, Model, having
from torchbayes.model.network import Network
from torchbayes.model.priors.univariate import Flat
from torchbayes.posteriors.files import read_tensors, write_tensors
from torchbayes.posteriors.point import Point

_KIND, _FULL = "compressed", 32
_NUMBERS = ("num_weights", "num_kept", "difference", "change")


@dataclass(frozen=True)
class Compressed:
    """A network that was made smaller.

    Attributes:
        posterior: the smaller network as a point, which `predict` and `evaluate` take; rounded, if it is.
        surgery: what of the network was kept.
        roundings: parameter -> its fixed-point numbers; others are kept as they are.
        num_weights: weights of the network before.
        num_kept: weights that were not pruned; rounding may make some of them zero.
        thresholds: layer -> noise from which on its units were pruned.
        stayed: why hidden units without effect may still be there, a sentence each.
        difference: the largest difference between outputs of the smaller network and of the full-size one with
            zeros for the pruned weights, relative to the largest output, before rounding; on up to 256 rows.
        change: likewise, between the smaller network and the posterior's means: the effect of pruning itself.
    """

    posterior: Point
    surgery: Surgery
    roundings: Mapping[str, Rounding]
    num_weights: int
    num_kept: int
    thresholds: Mapping[str, float]
    stayed: tuple[str, ...]
    difference: float
    change: float

    @property
    def network(self) -> nn.Module:
        """The smaller network, a new plain module."""
        model = self.posterior.model
        buffers = {name: buffer[0] for name, buffer in (self.posterior.buffers_M or {}).items()}
        return filled(model.network.module, {**self._tensors(), **buffers})

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """Numbers of inputs and outputs that are left, of each linear or convolutional layer."""
        named = self.posterior.model.network.shapes.shapes
        return {name.rpartition(".")[0]: (s[1], s[0]) for name, s in named.items() if len(s) > 1}

    @property
    def num_left(self) -> int:
        """Weights of the smaller network, zeros included."""
        return self.posterior.model.network.layout.size

    @property
    def rate(self) -> float:
        """Number of weights before, over number of weights that were not pruned."""
        return self.num_weights / max(1, self.num_kept)

    @property
    def size(self) -> int:
        """Bits of all weights, including masks that mark zeros inside tensors."""
        return sum(min(self._sizes(name, tensor)) for name, tensor in self._tensors().items())

    @property
    def rate_with_bits(self) -> float:
        """Bits of the network before, in float32, over `size`."""
        return _FULL * self.num_weights / max(1, self.size)

    def __repr__(self) -> str:
        layers = ", ".join(f"{name} {i}→{o}" for name, (i, o) in self.layers.items())
        return (
            f"Compressed({self.num_weights:,} weights → {self.num_left:,}, {self.num_kept:,} of them kept; "
            f"{self.rate:.1f} times fewer, {self.rate_with_bits:.1f} times fewer bits; {layers})"
        )

    def _tensors(self) -> dict[str, Tensor]:
        return self.posterior.model.split(self.posterior.weights_MD[0])[0]

    def _sizes(self, name: str, tensor: Tensor) -> tuple[int, int]:
        """Return the bits of a tensor with all of its numbers, and with its nonzero numbers and a mask."""
        bits = self.roundings[name].bits if name in self.roundings else 8 * tensor.element_size()
        return bits * tensor.numel(), tensor.numel() + bits * int((tensor != 0).sum())

    def save(self, path: str | Path) -> Path:
        """Write the network to a safetensors file of packed numbers, atomically; `load` reads it.

        Args:
            path: where to write, such as `run/small.safetensors`.

        Returns:
            The path.
        """
        entries, content = dict[str, Any](), dict[str, Tensor]()
        for name, tensor in self._tensors().items():
            rounding, (dense, sparse) = self.roundings.get(name), self._sizes(name, tensor)
            dtype = str(tensor.dtype).removeprefix("torch.")
            entries[name] = {"shape": list(tensor.shape), "dtype": dtype, "sparse": sparse < dense}
            values = tensor
            if sparse < dense:
                content[f"mask.{name}"] = packed((tensor != 0).long(), 1)
                values = tensor[tensor != 0]
            if rounding is None:
                content[f"values.{name}"] = values
            else:
                entries[name] |= {"exponent": rounding.exponent, "bits": rounding.bits, "count": values.numel()}
                content[f"values.{name}"] = packed(rounding.whole(values), rounding.bits)
        model = self.posterior.model
        content |= {f"buffer.{name}": buffer[0] for name, buffer in (self.posterior.buffers_M or {}).items()}
        learned = model.split(self.posterior.weights_MD[0])[1]
        content |= {f"learned.{name}": t for name, t in learned.items()}
        masks, places = self.surgery.masks()
        content |= {f"positions.{number}": packed(mask.long(), 1) for number, mask in enumerate(masks)}
        meta = {name: getattr(self, name) for name in _NUMBERS} | {"stayed": list(self.stayed), "places": places}
        meta |= {"thresholds": dict(self.thresholds), "sizes": [len(mask) for mask in masks]}
        return write_tensors(path, content, {"kind": _KIND, "weights": entries, **meta})


def load(path: str | Path, model: Model) -> Compressed:
    """Read a network that `Compressed.save` wrote.

    Args:
        path: the file.
        model: of the network before it was compressed, with or without multipliers; its weights are not used.

    Returns:
        The compressed network, on the model's device.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, holds no compressed network, or one of another architecture.
        TypeError: if `model` is not a model.
    """
    check_kind(Model, "a Model", model=model)
    tensors, header = read_tensors(path, "cpu")
    if header.get("kind") != _KIND:
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a compressed network. Read it by `tb.load`.")
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        parts.setdefault(kind, {})[rest] = tensor
    try:
        sizes = enumerate(header["sizes"])
        masks = [unpacked(parts["positions"][str(number)], 1, size) == 1 for number, size in sizes]
        surgery = Surgery.of(masks, header["places"])
        network = surgery.apply(multipliers_removed(model.network.module, model.network.initial))
        weights, roundings = _weights(header["weights"], parts)
        parameters = dict(network.named_parameters())
        if {n: t.shape for n, t in weights.items()} != {n: parameters[n].shape for n in weights}:
            raise ValueError("its layers have other sizes")
    except (AttributeError, KeyError, IndexError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{path} does not fit the network of this model: {error}. Give the model it was made of."
        ) from error
    state = {**weights, **parts.get("buffer", {})}
    posterior = point_of(filled(network, state), model, parts.get("learned", {}), names=tuple(weights))
    entries = {name: header.get(name, math.nan) for name in _NUMBERS} | {"thresholds": header["thresholds"]}
    return Compressed(posterior, surgery, roundings, **entries, stayed=tuple(header["stayed"]))


def point_of(network: nn.Module, model: Model, learned: Mapping[str, Tensor], *, names: tuple[str, ...]) -> Point:
    """Return a network, with these random parameters, as a point of a model with the likelihood of `model`.

    `learned` are parameters of the likelihood.
    """
    device = model.network.device
    small = Network(network.to(device), names, class_axis=model.network.class_axis)
    small_model = having(model, network=small, prior=Flat())
    tensors = {**small.initial, **{PREFIX + n: t.to(device) for n, t in learned.items()}}
    buffers_M = {name: buffer[None].clone() for name, buffer in small.buffers.items()}
    weights_D = small_model.layout.join(tensors)
    return Point(small_model, weights_D[None], buffers_M=buffers_M or None, statistics_known=True)


def _weights(
    entries: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]
) -> tuple[dict[str, Tensor], dict[str, Rounding]]:
    """Return the weights of a file, and how they are rounded."""
    weights, roundings = {}, {}
    for name, entry in entries.items():
        values, shape = parts["values"][name], entry["shape"]
        if "bits" in entry:
            roundings[name] = Rounding(entry["exponent"], entry["bits"])
            whole = unpacked(values, entry["bits"], entry["count"])
            values = (whole.double() * 2.0 ** -entry["exponent"]).to(getattr(torch, entry["dtype"]))
        if entry["sparse"]:
            mask = unpacked(parts["mask"][name], 1, math.prod(shape)) == 1
            values = values.new_zeros(math.prod(shape)).masked_scatter(mask, values)
        weights[name] = values.view(shape)
    return weights, roundings

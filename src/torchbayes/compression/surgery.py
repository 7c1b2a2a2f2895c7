"""Cutting tensors out of a network: positions along axes of parameters, and the inputs of linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from torchbayes.compression.plain import put, replaced
from torchbayes.model.initialisation import copied

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SIZES: dict[tuple[type, str, int], str] = {
    (nn.Linear, "weight", 0): "out_features",
    (nn.Linear, "weight", 1): "in_features",
    **{(kind, "weight", axis): name for kind in CONVOLUTIONS for axis, name in enumerate(("out_channels", "in_channels"))},
    **{(kind, "weight", 0): "num_features" for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)},
}


class PickedLinear(nn.Linear):
    """A linear layer that takes some of its inputs and leaves the others alone.

    Attributes:
        index: the inputs that it takes.
    """

    index: Tensor

    def __init__(self, layer: nn.Linear, index: Tensor) -> None:
        """Take some inputs of a layer."""
        like = layer.weight
        super().__init__(len(index), layer.out_features, bias=layer.bias is not None, device=like.device, dtype=like.dtype)
        self.weight = nn.Parameter(layer.weight.detach().index_select(1, index))
        self.bias = layer.bias
        self.register_buffer("index", index)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (its name in nn.Linear)
        """Return the outputs."""
        return super().forward(input.index_select(-1, self.index))


@dataclass(frozen=True)
class Surgery:
    """What of a network is kept.

    Attributes:
        kept: (parameter or buffer, axis) -> positions along it.
        inputs: linear layer -> the inputs that it takes, of those that are left.
    """

    kept: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return named tensors, such as variances of parameters, without what is cut."""
        found = dict(tensors)
        for (name, axis), index in self.kept.items():
            if name in found:
                found[name] = found[name].index_select(axis, index.to(found[name].device))
        for layer, index in self.inputs.items():
            if (name := f"{layer}.weight") in found:
                found[name] = found[name].index_select(1, index.to(found[name].device))
        return found

    def apply(self, network: nn.Module) -> nn.Module:
        """Return the smaller network, with what is left of the tensors of a whole one."""
        made = copied(network)
        for (name, axis), index in self.kept.items():
            owner, _, own = name.rpartition(".")
            part = made.get_submodule(owner)
            tensor = getattr(part, own).detach()
            put(made, name, tensor.index_select(axis, index.to(tensor.device)))
            if (size := _SIZES.get((type(part), own, axis))) is not None:
                setattr(part, size, len(index))
        for name, index in self.inputs.items():
            layer = made.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            made = replaced(made, name, PickedLinear(layer, index.to(layer.weight.device)))
        return made.eval()

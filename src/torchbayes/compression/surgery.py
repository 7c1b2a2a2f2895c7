"""Cutting tensors out of a network: positions along axes of parameters, and the inputs of linear layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.compression.plain import put
from torchbayes.model.initialisation import copied
from torchbayes.model.priors.multiplied import replaced

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SIZES: tuple[tuple[Any, tuple[str, ...]], ...] = (  # what a module calls the lengths of the axes of its weight
    (nn.Linear, ("out_features", "in_features")),
    (CONVOLUTIONS, ("out_channels", "in_channels")),
    (NORMS, ("num_features",)),
)


class PickedLinear(nn.Linear):
    """A linear layer that takes some of its inputs and leaves the others alone.

    Attributes:
        index: the inputs that it takes.
    """

    index: Tensor

    def __init__(self, layer: nn.Linear, index: Tensor) -> None:
        """Take some inputs of a layer."""
        like = layer.weight
        super().__init__(
            len(index), layer.out_features, bias=layer.bias is not None, device=like.device, dtype=like.dtype
        )
        self.weight = nn.Parameter(layer.weight.detach().index_select(1, index))
        self.bias = layer.bias
        self.register_buffer("index", index)

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs."""
        return super().forward(input.index_select(-1, self.index))


@dataclass(frozen=True)
class Surgery:
    """What of a network is kept.

    Attributes:
        kept: (parameter or buffer, axis) -> which positions along it are kept, bool.
        inputs: linear layer -> which inputs it takes, of those that are left, bool.
    """

    kept: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, masks: Sequence[Tensor], places: Sequence[Sequence[Any]]) -> Surgery:
        """Return the surgery that `masks` describes."""
        kept = {(name, int(axis)): masks[number] for number, name, axis in places if axis is not None}
        return cls(kept, {name: masks[number] for number, name, axis in places if axis is None})

    def masks(self) -> tuple[list[Tensor], list[list[Any]]]:
        """Return the masks, each once, and where they are: (number, name, axis), without an axis of picked inputs."""
        found, places = list[Tensor](), list[list[Any]]()
        asked = [(*key, mask) for key, mask in self.kept.items()] + [(n, None, m) for n, m in self.inputs.items()]
        for name, axis, mask in asked:
            number = next((k for k, known in enumerate(found) if torch.equal(known, mask)), len(found))
            found += [mask] if number == len(found) else []
            places.append([number, name, axis])
        return found, places

    def tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return named tensors, such as variances of parameters, without what is cut."""
        found = dict(tensors)
        for (name, axis), mask in self.kept.items():
            if name in found:
                found[name] = _taken(found[name], axis, mask)
        for layer, mask in self.inputs.items():
            if (name := f"{layer}.weight".removeprefix(".")) in found:
                found[name] = _taken(found[name], 1, mask)
        return found

    def apply(self, network: nn.Module) -> nn.Module:
        """Return the smaller network, with what is left of the tensors of a whole one."""
        made = copied(network)
        for (name, axis), mask in self.kept.items():
            owner, _, own = name.rpartition(".")
            part = made.get_submodule(owner)
            put(made, name, _taken(getattr(part, own).detach(), axis, mask))
            sizes = next((sizes for kinds, sizes in _SIZES if isinstance(part, kinds)), ())
            if own in {"weight", "running_mean"} and axis < len(sizes):
                setattr(part, sizes[axis], int(mask.sum()))
        for name, mask in self.inputs.items():
            layer = made.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            made = replaced(made, layer, PickedLinear(layer, mask.nonzero()[:, 0].to(layer.weight.device)))
        return made.eval()


def _taken(tensor: Tensor, axis: int, mask: Tensor) -> Tensor:
    """Return a tensor at the positions of a mask along an axis.

    Raises:
        ValueError: if the axis is of another length.
    """
    if len(mask) != tensor.shape[axis]:
        raise ValueError(f"an axis has {tensor.shape[axis]} positions in the place of {len(mask)}")
    return tensor.index_select(axis, mask.nonzero()[:, 0].to(tensor.device))

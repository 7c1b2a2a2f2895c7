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
_SIZES: tuple[tuple[Any, tuple[str, ...]], ...] = (  # attributes with the lengths of the axes of a weight
    (nn.Linear, ("out_features", "in_features")),
    (CONVOLUTIONS, ("out_channels", "in_channels")),
    (NORMS, ("num_features",)),
)


class PickedLinear(nn.Linear):
    """A linear layer that takes some of its inputs, those of `index`, and ignores the others."""

    index: Tensor

    def __init__(self, layer: nn.Linear, index: Tensor) -> None:
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
    """What of a network is kept."""

    kept: dict[tuple[str, int], Tensor] = field(default_factory=dict)  # (tensor, axis) -> kept positions, bool
    inputs: dict[str, Tensor] = field(default_factory=dict)  # linear layer -> inputs it takes of those left, bool

    @classmethod
    def of(cls, masks: Sequence[Tensor], places: Sequence[Sequence[Any]]) -> Surgery:
        """Return the surgery that `masks` describes."""
        kept = {(name, int(axis)): masks[number] for number, name, axis in places if axis is not None}
        return cls(kept, {name: masks[number] for number, name, axis in places if axis is None})

    def masks(self) -> tuple[list[Tensor], list[list[Any]]]:
        """Return the masks, each once, and where they apply: (number, name, axis), axis None for picked inputs."""
        masks, places = list[Tensor](), list[list[Any]]()
        entries = [(*key, mask) for key, mask in self.kept.items()] + [(n, None, m) for n, m in self.inputs.items()]
        for name, axis, mask in entries:
            number = next((k for k, known in enumerate(masks) if torch.equal(known, mask)), len(masks))
            masks += [mask] if number == len(masks) else []
            places.append([number, name, axis])
        return masks, places

    def tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return named tensors, such as variances of parameters, without the cut positions."""
        cut = dict(tensors)
        for (name, axis), mask in self.kept.items():
            if name in cut:
                cut[name] = _taken(cut[name], axis, mask)
        for layer, mask in self.inputs.items():
            if (name := f"{layer}.weight".removeprefix(".")) in cut:
                cut[name] = _taken(cut[name], 1, mask)
        return cut

    def apply(self, network: nn.Module) -> nn.Module:
        """Return the smaller network, with the kept parts of the tensors of a whole one."""
        smaller = copied(network)
        for (name, axis), mask in self.kept.items():
            owner, _, attribute = name.rpartition(".")
            submodule = smaller.get_submodule(owner)
            put(smaller, name, _taken(getattr(submodule, attribute).detach(), axis, mask))
            sizes = next((sizes for kinds, sizes in _SIZES if isinstance(submodule, kinds)), ())
            if attribute in {"weight", "running_mean"} and axis < len(sizes):
                setattr(submodule, sizes[axis], int(mask.sum()))
        for name, mask in self.inputs.items():
            layer = smaller.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            smaller = replaced(smaller, layer, PickedLinear(layer, mask.nonzero()[:, 0].to(layer.weight.device)))
        return smaller.eval()


def _taken(tensor: Tensor, axis: int, mask: Tensor) -> Tensor:
    """Return a tensor at the positions of a mask along an axis; a ValueError if the axis is of another length."""
    if len(mask) != tensor.shape[axis]:
        raise ValueError(f"an axis has {tensor.shape[axis]} positions in the place of {len(mask)}")
    return tensor.index_select(axis, mask.nonzero()[:, 0].to(tensor.device))

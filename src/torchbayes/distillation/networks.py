"""The network of a student: a copy of the teacher's whose last layer is wider."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from torchbayes.model.initialisation import copied
from torchbayes.model.priors.multiplied import replaced

_INSTEAD = "Give `network`, a module of your own with {outputs} outputs."
_PLAIN = {nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d}


def last_of(network: nn.Module, *, outputs: int) -> str:
    """Return the name of the last linear or convolutional layer, in the order in which the network holds its modules.

    `outputs` are those that it must get. A ValueError if there is none, it shares its weights, or it is no plain layer.
    """
    layers = [(n, m) for n, m in network.named_modules() if isinstance(m, nn.Linear | _ConvNd)]
    advice = _INSTEAD.format(outputs=outputs)
    if not layers:
        raise ValueError(f"the network has no linear or convolutional layer that could be its last. {advice}")
    name, layer = layers[-1]
    weights = [id(p) for m in network.modules() for p in m._parameters.values() if p is not None]
    if any(weights.count(id(p)) != 1 for p in layer.parameters()) or type(layer) not in _PLAIN:
        raise ValueError(f"the last layer `{name}` shares its weights, or is of a class of its own. {advice}")
    return name


def size_of(network: nn.Module, name: str) -> int:
    """Return the number of outputs of a linear or convolutional layer."""
    layer: Any = network.get_submodule(name)
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def widened(network: nn.Module, name: str, outputs: int) -> nn.Module:
    """Return a copy of a network whose layer of this name has so many outputs, freshly drawn."""
    made = copied(network)
    old: Any = made.get_submodule(name)
    options: dict[str, Any] = {
        "bias": old.bias is not None,
        "device": old.weight.device,
        "dtype": old.weight.dtype,
    }
    if isinstance(old, nn.Linear):
        new: nn.Module = nn.Linear(old.in_features, outputs, **options)
    else:
        names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        options |= {each: getattr(old, each) for each in names}
        new = type(old)(old.in_channels, outputs, **options)
    return replaced(made, old, new)

"""Networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from torchbayes.checks import nearest, seen
from torchbayes.networks.resnet import preresnet20, resnet20_frn
from torchbayes.networks.small import InputShape, lenet, linear, mlp, small_cnn
from torchbayes.networks.tabular import tabular

_FACTORIES: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "linear": (linear, "linear model: no hidden layer; inputs of any shape are flattened"),
    "mlp": (mlp, "multilayer perceptron; inputs of any shape are flattened (hidden, activation, dropout)"),
    "tabular": (
        tabular,
        "tables: each column clipped and cut at quantiles, then a multilayer perceptron (hidden, activation, dropout)",
    ),
    "lenet": (
        lenet,
        "LeNet 20-50-500: two 5x5 convolutions and a hidden layer; images from 16x16 (channels, hidden, dropout)",
    ),
    "small_cnn": (small_cnn, "two 3x3 convolutions and a linear head, about 10,000 weights; images from 8x8 (dropout)"),
    "resnet20_frn": (
        resnet20_frn,
        "ResNet-20, filter response normalisation and swish; images from 8x8 (bias, threshold, width)",
    ),
    "preresnet20": (preresnet20, "pre-activation ResNet-20, batch normalisation and ReLU; images from 8x8 (width)"),
}


def names() -> dict[str, str]:
    """Return the name of every network, with a one-line description.

    Returns:
        name -> line.
    """
    return {name: line for name, (_, line) in _FACTORIES.items()}


def factories() -> dict[str, Callable[..., nn.Module]]:
    """Return the function that builds each network, by name."""
    return {name: factory for name, (factory, _) in _FACTORIES.items()}


def build(name: str, input_shape: InputShape, num_outputs: int, **settings: Any) -> nn.Module:
    """Return a freshly initialised network by name.

    Args:
        name: one of `names()`.
        input_shape: shape of one input without the batch axis.
        num_outputs: K.
        **settings: keyword arguments of that network.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if the name or a setting is unknown, or the network cannot take the shape.
    """
    if not isinstance(name, str) or name not in _FACTORIES:
        raise ValueError(f"There is no network {seen(name)}. {nearest(name, _FACTORIES)}")
    factory, _ = _FACTORIES[name]
    parameters = inspect.signature(factory).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    for setting in settings:
        if setting not in known:
            raise ValueError(f"Network {name!r} has no setting {setting!r}. {nearest(setting, known)}")
    return factory(input_shape, num_outputs, **settings)

"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from torchbayes.checks import check_choice, check_counts, check_each, check_share, plain_value
from torchbayes.networks.shapes import InputShape, check_outputs, num_features

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "swish": nn.SiLU}


def mlp(
    input_shape: InputShape,
    num_outputs: int,
    *,
    hidden: Sequence[int] = (50, 50),
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return a multilayer perceptron; inputs of any shape are flattened first.

        h_0 = x,  h_l = φ(W_l h_{l-1} + b_l),  f = W_L h_{L-1} + b_L.

    With dropout each hidden h_l is multiplied by a random mask in training mode. Weights and biases start as PyTorch's
    default for linear layers, U(−1/√fan_in, 1/√fan_in).

    Args:
        input_shape: shape of one input without the batch axis, or the number of its features.
        num_outputs: K.
        hidden: widths of the hidden layers; empty for a linear model.
        activation: φ, one of `relu`, `tanh`, `swish`.
        dropout: probability that a hidden unit is dropped; no such layers if 0.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if a size is not positive, `dropout` is not in [0, 1), or the activation is unknown.
    """
    check_outputs(num_outputs)
    check_choice(tuple(ACTIVATIONS), activation=activation)
    check_share(dropout=dropout)
    hidden = plain_value(hidden)
    check_each(check_counts, least=0, hidden=hidden)
    widths = [num_features(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation](), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


def linear(input_shape: InputShape, num_outputs: int) -> nn.Sequential:
    """Return a linear model, f = W x + b: the multilayer perceptron without hidden layers.

    Args:
        input_shape: shape of one input without the batch axis, or the number of its features.
        num_outputs: K.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if a size is not positive.
    """
    return mlp(input_shape, num_outputs, hidden=())

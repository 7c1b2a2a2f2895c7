"""Small networks in float64, one for every way in which a layer can be built, called or not called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.model.helpers import Tied, Tokens, tokens
from tests.oracles import normal
from torchbayes.networks.resnet import FilterResponseNorm2d


class Functional(nn.Module):
    """A layer whose weight is used a second time, outside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(inputs)) + F.linear(inputs, self.first.weight))


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` over four tokens, and a head on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.attend(inputs, inputs, inputs)[0].mean(1))


class LinearAttention(nn.Module):
    """A transformer block built of linear layers and layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 4)
        self.wide, self.narrow, self.head = nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.mix(self.norm(inputs)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        hidden = inputs + self.out(seen)
        hidden = hidden + self.narrow(F.gelu(self.wide(hidden)))
        return self.head(hidden.mean(1))


class Recurrent(nn.Module):
    """An LSTM and a head on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.cell(inputs)[0][:, -1])


class TimeFirst(nn.Module):
    """A layer that sees rows on its second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(inputs.transpose(0, 1))).mean(0))


class Columns(nn.Module):
    """A linear layer whose weights have a column for each output, as GPT-2 has them."""

    def __init__(self, fan_in: int, fan_out: int, *, bias: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-0.5, 0.4, fan_out)) if bias else None
        self.weight = nn.Parameter(torch.linspace(-0.7, 0.9, fan_in * fan_out).sin().view(fan_in, fan_out))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs @ self.weight
        return outputs if self.bias is None else outputs + self.bias


class OwnLinear(nn.Linear):
    """A linear layer with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight) + self.bias


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.again(inputs)))))


class Gained(nn.Module):
    """A parameter of the whole network next to layers that hold their own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs + self.gain * torch.tanh(self.first(inputs)))


class Unused(nn.Module):
    """A layer whose output is not used, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.never, self.head = nn.Linear(4, 2), nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        self.idle(inputs)
        return self.head(inputs)


class Sentences(nn.Module):
    """An embedding with a padding entry, its tokens averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(words)).mean(1))


class Branching(nn.Module):
    """A layer that looks at its numbers to decide what to do, so that rows cannot go through it together."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight if bool(torch.isfinite(inputs).all()) else inputs


class Pair(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(first) + self.right(second)))


class Nested(nn.Module):
    """A module with a parameter of its own around a layer, neither of them the network."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Gained(), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(inputs)))


class Scalar(nn.Module):
    """A network that gives a number for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 3), nn.Linear(3, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(inputs))).squeeze(-1)


def image(*layers: nn.Module, pixels: int) -> nn.Module:
    """Return layers on an image (B, 2, 4, 4) and a linear head on what they give."""
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(pixels, 3))


def sequence(*layers: nn.Module, places: int) -> nn.Module:
    """Return layers on a sequence (B, 2, 7) and a linear head on what they give."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(places, 3))


def weight_normed() -> nn.Module:
    """Return an MLP whose first weight is parametrised."""
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3))


def frozen() -> nn.Module:
    """Return an MLP whose first layer does not learn."""
    return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3))


@dataclass(frozen=True)
class Net:
    """How to make a network and its inputs, and which of its parameters no layer can take.

    Attributes:
        make: makes the network, in any dtype.
        inputs: number of rows -> inputs.
        ways: module -> how its curvature is taken.
        lost: module -> words of the reason why it is not.
        random: which parameters are random, or which of their elements.
        either: whether other parameters than those named may be taken by a layer or not: both are right.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    ways: tuple[tuple[str, str], ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    random: str | tuple[str, ...] | dict[str, Tensor] = "*"
    either: bool = False

    def module(self) -> nn.Module:
        """Return the network in float64, its numbers those of a seed."""
        torch.default_generator.manual_seed(3)  # a tenth of the time of torch.manual_seed: see tests/conftest.py
        return self.make().double().eval()


def flat(rows: int) -> Tensor:
    return normal(rows, 4, seed=rows)


def one(rows: int) -> Tensor:
    return normal(rows, 1, seed=rows)


def places(rows: int) -> Tensor:
    return normal(rows, 3, 4, seed=rows)


def images(rows: int) -> Tensor:
    return normal(rows, 2, 4, 4, seed=rows)


def series(rows: int) -> Tensor:
    return normal(rows, 2, 7, seed=rows)


def words(rows: int) -> Tensor:
    return torch.arange(rows * 4).view(rows, 4) * 5 % 6


def pairs(rows: int) -> tuple[Tensor, Tensor]:
    return normal(rows, 4, seed=rows), normal(rows, 2, seed=rows + 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def affine(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "affine") for name in names)


def rows_of_layer(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "rows of the layer") for name in names)


ENDS = affine("0", "3")
NETS: dict[str, Net] = {
    "mlp": Net(mlp, flat, affine("0", "2")),
    "no bias, one input": Net(
        lambda: nn.Sequential(nn.Linear(1, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)),
        one,
        affine("0", "2"),
    ),
    "linear": Net(lambda: nn.Linear(4, 3), flat, affine("")),
    "linear, no bias, one input": Net(lambda: nn.Linear(1, 3, bias=False), one, affine("")),
    "tied": Net(
        lambda: nn.Sequential(Tied()),
        lambda rows: normal(rows, 3, seed=rows),
        affine("0.encoder", "0.decoder"),
        (("0.encoder.weight", "share"),),
    ),
    "weight used elsewhere": Net(
        Functional,
        flat,
        affine("head"),
        (("first.weight", "outside its forward"), ("first.bias", "outside its forward")),
    ),
    "multihead attention": Net(
        SelfAttention,
        places,
        affine("head"),
        (
            ("attend.in_proj_weight", "one tensor into one tensor"),
            ("attend.in_proj_bias", "one tensor into one tensor"),
            ("attend.out_proj.weight", "not called"),
            ("attend.out_proj.bias", "not called"),
        ),
    ),
    "linear attention": Net(
        LinearAttention,
        places,
        (*rows_of_layer("norm"), *affine("mix", "out", "wide", "narrow", "head")),
    ),
    "lstm": Net(
        Recurrent,
        places,
        affine("head"),
        tuple((f"cell.{n}_l0", "one tensor") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")),
    ),
    "time first": Net(
        TimeFirst, places, affine("head"), (("first.weight", "first axis"), ("first.bias", "first axis"))
    ),
    "in place": Net(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), flat, affine("0", "2")
    ),
    "twice": Net(Twice, flat, affine("again", "head")),
    "batch norm": Net(
        lambda: image(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), pixels=8), images, (*affine("0", "4"), *rows_of_layer("1"))
    ),
    "layer norm": Net(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)),
        flat,
        (*ENDS, *rows_of_layer("1")),
    ),
    "group norm": Net(
        lambda: image(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), pixels=16),
        images,
        (*affine("0", "4"), *rows_of_layer("1")),
    ),
    "filter response norm": Net(
        lambda: image(nn.Conv2d(2, 2, 3), FilterResponseNorm2d(2, threshold=True), pixels=8),
        images,
        (*affine("0", "4"), *rows_of_layer("1")),
    ),
    "branching": Net(
        lambda: nn.Sequential(nn.Linear(4, 5), Branching(), nn.Tanh(), nn.Linear(5, 3)), flat, ENDS, (("1.weight", ""),)
    ),
    "prelu": Net(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(5), nn.Linear(5, 3)),
        flat,
        (*affine("0", "2"), *rows_of_layer("1")),
    ),
    "embedding": Net(Sentences, words, (("embed", "embedding"), *affine("head"))),
    "conv1d": Net(
        lambda: sequence(nn.Conv1d(2, 3, 2, stride=2, dilation=2, padding=1), nn.ReLU(inplace=True), places=12),
        series,
        affine("0", "3"),
    ),
    "conv1d, same": Net(lambda: sequence(nn.Conv1d(2, 2, 4, padding="same"), nn.Tanh(), places=14), series, ENDS),
    "groups": Net(lambda: image(nn.Conv2d(2, 4, 2, groups=2, stride=2), pixels=16), images, ENDS),
    "dilation": Net(lambda: image(nn.Conv2d(2, 2, (2, 3), dilation=(2, 1), padding=(1, 0)), pixels=16), images, ENDS),
    "same padding": Net(lambda: image(nn.Conv2d(2, 2, (2, 3), padding="same"), pixels=32), images, ENDS),
    "circular padding": Net(
        lambda: image(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), pixels=32), images, ENDS
    ),
    "reflected padding": Net(
        lambda: image(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), pixels=32), images, ENDS
    ),
    "one pixel": Net(lambda: image(nn.Conv2d(2, 3, 4, groups=1), pixels=3), images, ENDS),
    "columns of outputs": Net(lambda: nn.Sequential(Columns(4, 4), nn.Tanh(), Columns(4, 3)), flat, affine("0", "2")),
    "columns at places": Net(
        lambda: sequence(Columns(4, 2, bias=False), nn.Tanh(), Columns(2, 2), places=6), places, affine("0", "2", "4")
    ),
    "columns, biases alone": Net(
        lambda: nn.Sequential(Columns(4, 4), nn.Tanh(), Columns(4, 3)), flat, affine("0", "2"), random="*.bias"
    ),
    "own linear layer": Net(lambda: nn.Sequential(OwnLinear(4, 4), nn.Tanh(), OwnLinear(4, 3)), flat, affine("0", "2")),
    "weight norm": Net(
        weight_normed,
        flat,
        affine("0", "2"),
        (
            ("0.parametrizations.weight.original0", "one tensor"),
            ("0.parametrizations.weight.original1", "one tensor"),
        ),
    ),
    "frozen": Net(frozen, flat, affine("2")),
    "dict inputs": Net(Tokens, tokens, (("embed", "embedding"), *affine("head"))),
    "tuple inputs": Net(Pair, pairs, affine("left", "right", "head")),
    "parameter of the network": Net(Gained, flat, affine("first", "head"), either=True),
    "parameter of a block": Net(Nested, flat, affine("inner.first", "inner.head", "head"), either=True),
    "unused": Net(
        Unused,
        flat,
        affine("head"),
        (
            ("idle.weight", "depend"),
            ("idle.bias", "depend"),
            ("never.weight", "not called"),
            ("never.bias", "not called"),
        ),
    ),
    "outputs at places": Net(mlp, places, affine("0", "2")),
    "a number": Net(Scalar, flat, affine("first", "head")),
    "biases alone": Net(mlp, flat, affine("0", "2"), random="*.bias"),
    "bias of the head": Net(mlp, flat, affine("2"), random="2.bias"),
    "biases of convolutions": Net(
        lambda: image(nn.Conv2d(2, 4, 2, groups=2, stride=2), pixels=16), images, ENDS, random="*.bias"
    ),
    "weights alone": Net(mlp, flat, affine("0", "2"), random="*.weight"),
    "last layer": Net(mlp, flat, affine("2"), random="2.*"),
    "some elements": Net(
        mlp,
        flat,
        affine("2"),
        (("0.weight", "some of the weights"),),
        random={"0.weight": torch.arange(20).view(5, 4) % 3 == 1, "2.bias": torch.ones(3, dtype=torch.bool)},
    ),
    "first layer": Net(mlp, flat, affine("0"), random="0.*"),
}

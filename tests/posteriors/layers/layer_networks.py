"""Networks with dropout of every kind, and the shape of one of their inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


class Wrapped(nn.Module):
    """A network inside a module of one's own, whose masks no longer are a part of its weights."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)


class ByFunction(nn.Module):
    """Dropout by functions, at the rate of an attribute; in place behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(4, 6), nn.Linear(6, CLASSES), 0.4

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.dropout(self.first(inputs), self.dropout, self.training, inplace=True)
        return self.second(F.dropout(torch.tanh(hidden), 0.2, self.training))


class Shared(nn.Module):
    """One dropout layer that is used three times, each time with a mask of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.dropout = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)]), nn.Dropout(0.3)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(self.dropout(torch.relu(inputs)))
        return inputs


class Attention(nn.Module):
    """Attention with dropout of its weights, for each position, whichever way it is computed."""

    def __init__(self, need_weights: bool = False) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(4, 2, 0.3, batch_first=True), nn.Linear(4, CLASSES)
        self.need_weights = need_weights

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.attend(inputs, inputs, inputs, need_weights=self.need_weights)[0].mean(1))


class Encoder(nn.Module):
    """A transformer whose first axis is the rows, or inside the network the positions."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=batch_first)
        self.batch_first, self.head = batch_first, nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.batch_first:
            return self.head(self.encode(inputs).mean(1))
        return self.head(self.encode(inputs.transpose(0, 1)).mean(0))


class Recurrent(nn.Module):
    """An LSTM with dropout between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, 2, dropout=0.4, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.lstm(inputs)[0][:, -1])


class Flat(nn.Module):
    """Positions and rows on one axis, the rows first or last."""

    def __init__(self, rows_first: bool) -> None:
        super().__init__()
        self.first, self.dropout, self.head = nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, CLASSES)
        self.rows_first = rows_first

    def forward(self, inputs: Tensor) -> Tensor:
        axes = inputs if self.rows_first else inputs.transpose(0, 1)
        hidden = self.dropout(torch.relu(self.first(axes.reshape(-1, 4)))).view(*axes.shape[:2], 6)
        return self.head(hidden.mean(1 if self.rows_first else 0))


class EachPosition(nn.Module):
    """A class for each position of a sequence of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout, self.head = nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.dropout(torch.relu(self.first(inputs))))


class Noisy(nn.Module):
    """Noise that is no dropout, beside dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout = nn.Linear(4, CLASSES), nn.Dropout(0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.dropout(self.first(inputs + torch.randn_like(inputs) if self.training else inputs))


def stack() -> nn.Module:
    """Dropout in front of layers and behind them."""
    return nn.Sequential(
        nn.Dropout(0.1), nn.Linear(4, 6), nn.Dropout(0.3), nn.Tanh(),
        nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, CLASSES),
    )  # fmt: skip


def convolutional() -> nn.Module:
    """Dropped channels in front of a convolution and behind one, and features before the head; batch norm."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Dropout2d(0.3), nn.BatchNorm2d(3), nn.ReLU(),
        nn.Sequential(nn.MaxPool2d(2), nn.Identity(), nn.Dropout2d(0.4)), nn.Conv2d(3, 4, 1), nn.Tanh(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, CLASSES),
    )  # fmt: skip


def elements() -> nn.Module:
    """Single pixels of channels that are dropped."""
    layers = (nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(2, CLASSES))
    return nn.Sequential(*layers)


def alpha() -> nn.Module:
    """The dropout of self-normalising networks."""
    layers = (nn.Linear(4, 6), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(6, 5), nn.FeatureAlphaDropout(0.1))
    return nn.Sequential(*layers, nn.Linear(5, CLASSES))


Make = Callable[[], nn.Module]
IN_WEIGHTS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "stack": (stack, (4,)),
    "convolutional": (convolutional, (2, 4, 4)),
}
BESIDE: dict[str, tuple[Make, tuple[int, ...]]] = {
    "functional": (ByFunction, (4,)),
    "shared": (Shared, (4,)),
    "alpha": (alpha, (4,)),
    "elements": (elements, (2, 4, 4)),
    "wrapped": (lambda: Wrapped(stack()), (4,)),
    "attention": (Attention, (5, 4)),
    "attention_weights": (lambda: Attention(need_weights=True), (5, 4)),
    "encoder": (lambda: Encoder(batch_first=True), (5, 4)),
    "encoder_positions_first": (lambda: Encoder(batch_first=False), (5, 4)),
    "lstm": (Recurrent, (5, 4)),
    "flat": (lambda: Flat(rows_first=True), (5, 4)),
}
WITH_DROPOUT = {**IN_WEIGHTS, **BESIDE}


def made(make: Make) -> nn.Module:
    """A network in float64, always with the same weights, and statistics of batch norms that are not trivial."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = make().double()
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_()  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return net

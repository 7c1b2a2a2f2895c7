"""What `fit` costs per step beyond a loop written by hand, in time and in memory.

Both train the same network on the same made-up rows with a fused optimiser, Adam where no other is named. The loop by
hand shuffles each epoch, lets the optimiser decay the weights as the prior does, and reads the loss at an epoch's end.
They take turns, an epoch each, so that a noisy machine is noisy to both alike; what is done once (checks of the data,
initialisation, the posterior) does not count. Both profit from the wider heap that `fit` sets up
(`torchbayes.native.process`). Peak memory is what training takes in a process of its own beyond what that had before,
all of that included.

`python -m benchmarks.overhead` races every network, `python -m benchmarks.overhead lstm` one of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn

import torchbayes as tb
from benchmarks.harness import Timing, memory_now, peak_memory, report
from torchbayes.networks import build

CLASSES, EPOCHS, WARM_UP, LR = 10, 7, 1, 1e-6
WAYS = ("hand-written", "fit")
MODULE = "fit of a module"  # which holds weights of its own; the other is given a function


def convolutional() -> nn.Module:
    """Return three convolutions with batch norm."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.BatchNorm2d(fan_out), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, CLASSES))


def wide() -> nn.Module:
    """Return a perceptron of 25 million weights, which is no network of the kernel's."""
    sizes = (100, 2500, 2500, 2500, 2500, 2500)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(2500, CLASSES))


class Attention(nn.Module):
    """Two encoder layers of width 128 on sequences that are given as vectors, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B, K) of sequences (B, T, 128)."""
        return self.head(self.body(inputs).mean(1))


class Recurrent(nn.Module):
    """A recurrent layer of 128 units, read at its end."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.body = layer(32, 128, batch_first=True)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B, K) of sequences (B, T, 32)."""
        return self.head(self.body(inputs)[0][:, -1])


class Packed(Recurrent):
    """The same on sequences of 10 steps at least, each read at its own end."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B, K) of sequences (B, T, 32), whose first number tells their length."""
        lengths = (10 + 15 * (1 + inputs[:, 0, 0].clamp(-1, 1))).long().cpu()
        packed = rnn.pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.body(packed)[1][0][-1])


@dataclass(frozen=True)
class Case:
    """A network and what it is trained on.

    Attributes:
        network: makes a fresh one.
        shape: of the inputs of a row.
        batch: rows of a step.
        steps: of an epoch.
        momentum: of SGD; trained by Adam if None.
    """

    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    steps: int
    momentum: float | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.batch * self.steps

    def data(self) -> tuple[Tensor, Tensor]:
        """Return made-up rows."""
        source = torch.Generator().manual_seed(0)
        inputs = torch.randn(self.rows, *self.shape, generator=source)
        return inputs, torch.randint(CLASSES, (self.rows,), generator=source)


CASES = {
    "mlp": Case(lambda: build("mlp", (784,), CLASSES, hidden=(400, 400)), (784,), 128, 40),
    "convolutional": Case(convolutional, (3, 32, 32), 64, 20),
    "resnet20_frn": Case(lambda: build("resnet20_frn", (3, 32, 32), CLASSES), (3, 32, 32), 64, 8),
    "preresnet20": Case(lambda: build("preresnet20", (3, 32, 32), CLASSES), (3, 32, 32), 64, 8),
    "transformer": Case(Attention, (64, 128), 32, 40),
    "lstm": Case(Recurrent, (40, 32), 64, 50),
    "packed lstm": Case(Packed, (40, 32), 64, 50),
    "wide": Case(wide, (100,), 64, 2),
    "wide, SGD": Case(wide, (100,), 64, 2, momentum=0.9),
    "gru": Case(lambda: Recurrent(nn.GRU), (40, 32), 64, 50),
}


def hand_written(case: Case, rows: tuple[Tensor, Tensor]) -> Iterator[None]:
    """Train as one would without a library, and yield at the end of each epoch."""
    net, (inputs, targets) = case.network(), rows
    optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=LR, fused=True, weight_decay=1 / case.rows)
    if case.momentum is not None:
        decay = 1 / case.rows
        optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=case.momentum, fused=True, weight_decay=decay)
    while True:
        total = torch.zeros(())
        for index in torch.randperm(case.rows).split(case.batch):
            loss = F.cross_entropy(net(inputs[index]), targets[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        float(total)
        yield


def library(
    case: Case, rows: tuple[Tensor, Tensor], epochs: int, told: Callable[[object], None], *, module: bool = False
) -> None:
    """Train with `fit`, and tell of the end of each epoch."""
    model = tb.Model(case.network() if module else case.network, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    optimizer = tb.Adam(lr=LR) if case.momentum is None else tb.SGD(lr=LR, momentum=case.momentum)
    method = tb.MAP(epochs=epochs, batch_size=case.batch, optimizer=optimizer, schedule=tb.Constant())
    tb.fit(model, rows, method, callbacks=[told])


def compare(case: Case, *, clock: Callable[[], float], epochs: int = EPOCHS) -> list[Timing]:
    """Return seconds of a step in each epoch of both ways, less those that warm up."""
    rows, plain, ours = case.data(), [], []
    epoch, began = hand_written(case, rows), 0.0

    def turn(_: object) -> None:
        nonlocal began
        ended = clock()
        next(epoch)
        plain.append((clock() - ended) / case.steps)
        ours.append((ended - began) / case.steps)
        began = clock()

    library(case, rows, epochs + WARM_UP, turn)
    return [Timing(way, each[WARM_UP:]) for way, each in zip(WAYS, (plain, ours), strict=True)]


def memory(name: str, way: str) -> float:
    """Return what training takes in a process of its own, in MiB."""
    command = [sys.executable, "-m", "benchmarks.overhead", name, way]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(case: Case, way: str) -> float:
    """Return what training in one way adds to the memory of this process at its peak, in MiB."""
    rows = case.data()
    for tiny in (Case(Recurrent, (1, 32), 1, 1), Case(lambda: nn.Linear(1, CLASSES), (1,), 16, 4)):
        next(hand_written(tiny, tiny.data()))  # both load code when they are first used, which is no memory of training
        library(tiny, tiny.data(), 1, lambda _: None)
    before, epochs = memory_now(), 2
    if way == WAYS[0]:
        deque(islice(hand_written(case, rows), epochs))
    else:
        library(case, rows, epochs, lambda _: None, module=way == MODULE)
    return peak_memory() - before


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for every network, or for one; with a way, the memory that it takes."""
    name, way = (*arguments, "", "")[:2]
    if way:
        print(measure(CASES[name], way))
        return
    # where others work on the same machine, the time that this process was running is the less noisy one
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for each in (name,) if name else CASES:
        plain, ours, module = (median(memory(each, way) for _ in range(5)) for way in (*WAYS, MODULE))
        note = (
            f"memory: {plain:.0f} and {ours:.0f} MiB, {ours / plain:.2f} times as much; {module:.0f} MiB, "
            f"{module / plain:.2f} times, if Model is given a module"
        )
        report(f"One step, {each}, batch {CASES[each].batch}", compare(CASES[each], clock=clock), WAYS[0], note)


if __name__ == "__main__":
    main(sys.argv[1:])

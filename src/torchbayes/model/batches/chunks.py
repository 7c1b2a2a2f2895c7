"""Rows that go through a network in chunks: values and gradients are sums over them, so a batch may be of any size.

One weight vector is held for all chunks. What a network draws is drawn anew for each; noise of layers that take
distributions is that of the whole batch. Each chunk begins with the buffers before the batch. Afterwards those that are
floating-point numbers have moved by the mean over the rows, and others, such as counts, as the first chunk moves them.

In float16 a gradient below 6e-8 is zero, and one above 65,504 infinite. So the density is multiplied by a power of 2
before it is differentiated, and its gradient divided by it, which changes no other number. The power is that at which
the mean over the rows is multiplied by about 4,096. If the gradient is not finite, the same rows are taken again with a
power 16 times smaller. Nothing is remembered, so a step depends on its arguments alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.model.batches.batch import Batch, batch_size
from torchbayes.randomness.seeds import Purpose, mix

# of the mean over rows: gradients of it up to 16, and down to 1.5e-11, are numbers in float16
_FIRST = 4096.0
_SMALLER, _TRIES = 16.0, 7


class Chunk(NamedTuple):
    """Rows of a batch that go through the network at once."""

    rows: Batch
    start: int  # number of the first of them in the batch
    buffers: dict[str, Tensor] | None  # changed in place
    scale: float = 1.0  # factor on what is differentiated, by which its gradient is divided

    @property
    def adds(self) -> bool:
        """Whether its gradient is added to that of the chunks before."""
        return self.start > 0

    def seeds(self, seeds: Sequence[int]) -> list[int]:
        """Return the seeds of what the network draws for these rows."""
        return [mix(Purpose.CHUNK, seed, self.start) if self.adds else seed for seed in seeds]


def in_chunks(batch: Batch, size: int | None, *, axis: int = 0) -> Iterator[Batch]:
    """Yield a batch, whose rows are on an axis of its tensors, in parts of at most `size` rows; whole if it is None."""
    rows = batch_size(batch.inputs, axis)
    if size is None or rows <= size:
        yield batch
        return
    for start in range(0, rows, size):
        where = (slice(None),) * axis + (slice(start, start + size),)
        yield batch.map(lambda t, where=where: t[where])


def by_chunks(
    batch: Batch,
    run: Callable[[Chunk], Tensor],
    *,
    size: int | None,
    axis: int = 0,
    gradient: Tensor | None,
    factor: float,
    scaled: bool,
    buffers: dict[str, Tensor] | None,
) -> Tensor:
    """Return the sum of what `run` returns for each chunk.

    `run` writes the gradient of `factor` Σ_b log p(y_b | f_b), or adds it where the chunk `adds`. `axis` is that of the
    rows in the tensors of the batch, and `size` the most rows of a chunk; None for all. `scaled` says whether gradients
    may have passed through float16. Buffers are changed in place.
    """
    rows = batch_size(batch.inputs, axis)
    powers = _powers(abs(factor) * rows) if gradient is not None and scaled else [1.0]
    whole = len(powers) == 1 and (size is None or rows <= size)
    for scale in powers:
        values, start, moved = [], 0, _Moved({} if whole else buffers or {})
        for part in in_chunks(batch, size, axis=axis):
            own, count = moved.begun() or buffers, batch_size(part.inputs, axis)
            values.append(run(Chunk(part, start, own, scale)))
            moved.add(own or {}, count / rows)
            start += count
        total = sum(values[1:], values[0])
        if gradient is None or scale == powers[-1] or _is_finite(gradient) or not _is_finite(total):
            break
    moved.settle()
    return total


class _Moved:
    """Buffers by which the chunks of a batch begin, and those after all of them; of no buffers, nothing."""

    def __init__(self, buffers: dict[str, Tensor]) -> None:
        self._before, self._after = buffers, dict[str, Tensor]()

    def begun(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self._before.items()}

    def add(self, chunk: Mapping[str, Tensor], share: float) -> None:
        """Take in what a chunk, a share of the rows, has made of its buffers."""
        for name, before in self._before.items():
            buffer = chunk[name]
            if not buffer.is_floating_point():
                self._after.setdefault(name, buffer)
                continue
            change = torch.where(buffer == before, 0.0, (buffer - before) * share)  # a mask may hold -inf
            self._after[name] = self._after.get(name, before) + change

    def settle(self) -> None:
        for name, after in self._after.items():
            self._before[name].copy_(after)


def _powers(unit: float) -> list[float]:
    """Return factors to try, largest first, for a density whose factor times its rows is `unit`."""
    if not unit:
        return [1.0]
    first = 2.0 ** round(math.log2(_FIRST / unit))
    return [first / _SMALLER**number for number in range(_TRIES)]


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())

"""The random numbers of layers with distributions as weights; each kind has a stream of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.layers.uses import How, Use
from torchbayes.native.noise import fill_normal, fill_signs
from torchbayes.randomness.seeds import Purpose, mix


class Randomness(NamedTuple):
    """The random numbers of one pass, number `step`, of the member with this seed."""

    seed: int
    step: int

    def outputs(self, call: int) -> int:
        """Return the stream of the noise of a layer's outputs, by its number among the calls, from 1."""
        return self._stream(call, 0)

    def change(self, call: int, like: Tensor, *, bias: bool) -> Tensor:
        """Return ε of the weight or bias of a layer, in the shape of a tensor."""
        return self._normals(like, self._stream(call, 2 if bias else 1))

    def fill_change(self, call: int, into: Tensor, *, bias: bool) -> None:
        """Fill a contiguous tensor in float32 or float64 with the numbers of `change`."""
        fill_normal(into, seed=self.seed, stream=self._stream(call, 2 if bias else 1))

    def drawn(self, number: int, like: Tensor) -> Tensor:
        """Return ε of a parameter that is drawn, by its number in the layout."""
        return self._normals(like, mix(Purpose.LAYER_WEIGHTS, self.step, number))

    def signs(self, call: int, shape: Sequence[int], like: Tensor, *, outputs: bool) -> Tensor:
        """Return ±1 of the rows and channels of a layer's inputs or outputs, of the dtype and device of a tensor."""
        stream = mix(Purpose.LAYER_SIGNS, self.step, call, int(outputs))
        return fill_signs(like.new_empty(tuple(shape)), seed=self.seed, stream=stream)

    def noise_of(self, call: int, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the noise, of a given shape, of a layer's outputs."""
        return self._normals(like.new_empty(tuple(shape)), self.outputs(call))

    def _stream(self, call: int, number: int) -> int:
        return mix(Purpose.LAYER_OUTPUTS, self.step, call, number)

    def _normals(self, like: Tensor, stream: int) -> Tensor:
        """Return standard normals of the shape, dtype and device of a tensor."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        noise = torch.empty(like.shape, dtype=dtype, device=like.device)
        return fill_normal(noise, seed=self.seed, stream=stream).to(like.dtype)


class Place(NamedTuple):
    """Which rows of a batch this process has; the noise of an example does not depend on who computes it."""

    local_rows: slice  # the rows of this process
    total: int  # rows of the batch

    @property
    def rows(self) -> int:
        """Number of rows of this process."""
        return self.local_rows.stop - self.local_rows.start

    def whole(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a tensor for all rows of the batch; its first axis has the rows of this process."""
        return (self.total, *tensor.shape[1:])


class Pass(NamedTuple):
    """What all ways of taking a pass share."""

    hows: Mapping[str, How]  # estimator of each parameter
    uses: Mapping[str, Use]  # how layers use those that are not drawn
    place: Place  # rows of this process
    random: Sequence[Randomness]  # random numbers of each member

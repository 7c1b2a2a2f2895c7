"""How many bits a weight needs, from how well the data determine it; and weights as whole numbers of that many bits.

With the posterior variance v_i of the weights of a tensor, a rounding error that is uniform on ±Δ/2 costs about ½ Σ_i
Δ²/(12 v_i) nats of log density. With Δ² at most the harmonic mean of the v_i, that is 1/24 nat a weight or less:

    Δ = 2^−t,  t = ⌈½ log₂ mean(1/v)⌉,     k_i = round(w_i / Δ),     bits = 1 + ⌈log₂(1 + max |k|)⌉

with one bit for the sign. Louizos, Ullrich and Welling (2017) instead count the bits of a floating-point number, with
the variance in place of the standard deviation, and so with more bits where it is below 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_MOST = 24  # bits; beyond them float32 is as good


@dataclass(frozen=True)
class Rounding:
    """Fixed-point numbers of one tensor."""

    exponent: int  # t, of the step Δ = 2^−t
    bits: int  # of each number, with its sign

    @classmethod
    def of(cls, tensor: Tensor, variance: Tensor) -> Rounding | None:
        """Return the rounding of a tensor; None if it would save nothing, or a variance is 0.

        Variances of weights that are 0 do not count.
        """
        used = tensor != 0
        if not bool(used.any()):
            return cls(0, 1)
        known = variance[used].double()
        if not bool((known > 0).all()):
            return None
        exponent = math.ceil(0.5 * math.log2(float(known.reciprocal().mean())))
        largest = float((tensor.double().abs().max() * 2.0**exponent).round())
        bits = 1 + math.ceil(math.log2(1 + largest))
        return cls(exponent, bits) if bits < _MOST else None

    def whole(self, tensor: Tensor) -> Tensor:
        """Return w/Δ rounded, int64."""
        return (tensor.double() * 2.0**self.exponent).round().long()

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the rounded weights."""
        return (self.whole(tensor).double() * 2.0**-self.exponent).to(tensor)


def packed(numbers: Tensor, bits: int) -> Tensor:
    """Return whole numbers of so many bits, with sign, one after the other, uint8.

    Numbers are int64, of absolute value below 2^{bits − 1}.
    """
    shifted = (numbers.flatten().cpu() + (1 << (bits - 1)) - (1 if bits == 1 else 0)).numpy()
    bit_planes = (shifted[:, None] >> np.arange(bits)) & 1
    return torch.from_numpy(np.packbits(bit_planes.astype(np.uint8)))


def unpacked(content: Tensor, bits: int, count: int) -> Tensor:
    """Return the numbers that `packed` made into bytes, int64 (count,); a ValueError for another number of bytes."""
    if len(content) != -(-count * bits // 8):
        raise ValueError(f"{count} numbers of {bits} bits take {-(-count * bits // 8)} bytes; got {len(content)}")
    bit_planes = np.unpackbits(content.numpy(), count=count * bits).reshape(count, bits).astype(np.int64)
    whole = (bit_planes << np.arange(bits)).sum(1)
    return torch.from_numpy(whole - (1 << (bits - 1)) + (1 if bits == 1 else 0))

"""Networks that compute in bfloat16 or float16, or on several devices, wholly or in part.

The flat vector of random weights is at least float32, because a step of an optimiser or a sampler is smaller than the
gap between two numbers of 8 bits, and would be lost. Each parameter is cast to its own dtype where the network is
called. Gradients come back through the cast in the dtype of the vector, and outputs are cast to float32 before the
likelihood.

The vector is on one device, that of the first random parameter. Random parameters of other devices are copied there by
the same cast, and their gradients come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Precision:
    """The dtypes of a network."""

    weights: torch.dtype  # of the flat vector, the likelihood and the targets
    inputs: torch.dtype  # of floating-point inputs: the first parameter's if that is below float32, else the vector's
    casts: Mapping[str, torch.dtype]  # random parameter -> its dtype in the network, if below float32
    devices: Mapping[str, torch.device]  # random parameter -> its device, if that is not the vector's

    @classmethod
    def of(
        cls, named: Mapping[str, Tensor], random: Mapping[str, Tensor], devices: Mapping[str, torch.device]
    ) -> Precision:
        """Return the dtypes of a network from all its parameters, and the random ones.

        It raises TypeError if the random ones, apart from those below float32, do not share one floating-point dtype.
        """
        dtypes = {p.dtype for p in random.values()}
        wide = {torch.float32 if dtype in LOW else dtype for dtype in dtypes}
        if not wide < {torch.float32, torch.float64}:
            mend = "Convert the network with .float() or .double(); bfloat16 and float16 may be mixed with float32."
            if name := next((name for name, p in random.items() if p.is_complex()), ""):
                mend = (
                    f"Complex weights, such as `{name}`, are not supported: make their real and imaginary parts two "
                    f"parameters, and join these in `forward` by torch.complex."
                )
            dtypes = sorted(map(str, dtypes))
            raise TypeError(f"random weights must share one floating-point dtype; got {dtypes}. {mend}")
        weights, first = next(iter(wide)), next(iter(named.values())).dtype
        casts = {name: p.dtype for name, p in random.items() if p.dtype in LOW}
        return cls(weights, first if first in LOW else weights, casts, devices)

    def cast(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return random parameters in the dtypes, and on the devices, that the network computes with."""
        if not self.casts and not self.devices:
            return tensors
        return {
            name: tensor.to(self.devices.get(name, tensor.device), self.casts.get(name, tensor.dtype))
            for name, tensor in tensors.items()
        }

    def __str__(self) -> str:
        """Return in words which random parameters are below float32; an empty string if none is."""
        counts = {dtype: [*self.casts.values()].count(dtype) for dtype in LOW}
        return ", ".join(f"{count} random parameters in {dtype}" for dtype, count in counts.items() if count)


def widened(outputs: Tensor) -> Tensor:
    """Return outputs in float32 where they are of lower precision."""
    return outputs.float() if outputs.dtype in LOW else outputs

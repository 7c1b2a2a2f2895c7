"""Networks that compute in bfloat16 or float16, by their parameters or under autocast, or that lie on several devices.

The flat vector of random weights is at least float32, because a step of an optimiser or a sampler is smaller than the
gap between two numbers of 8 bits, and would be lost. Each parameter is cast to its own dtype where the network is
called. Gradients come back through the cast in the dtype of the vector, and outputs are cast to float32 before the
likelihood.

The vector is on one device, that of the first random parameter. Random parameters of other devices are copied there by
the same cast, and their gradients come back.

A model may instead ask for autocast: parameters stay in float32, and PyTorch chooses which operations cast what they
take. It is on inside `lowered` alone, around the network's call and nothing else: where densities are evaluated, and
functions. Whatever takes small differences (checks, curvature, derivatives of derivatives) calls the network in the
precision of its parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from torchbayes.checks import check_choice, optional
from torchbayes.native.process import AUTOCAST_KINDS

LOW = (torch.bfloat16, torch.float16)
Autocast = Literal["bfloat16", "float16"]
_DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class _Now(threading.local):
    """What a thread is doing."""

    lowered: bool = False  # whether networks run under the autocast that their models ask for


_NOW = _Now()


@contextmanager
def lowered() -> Iterator[None]:
    """Let networks run under the autocast that their models ask for, in this thread, inside the `with`."""
    before, _NOW.lowered = _NOW.lowered, True
    try:
        yield
    finally:
        _NOW.lowered = before


@dataclass(frozen=True)
class Precision:
    """The dtypes of a network."""

    weights: torch.dtype  # of the flat vector, the likelihood and the targets
    inputs: torch.dtype  # of floating-point inputs: the first parameter's if that is below float32, else the vector's
    casts: Mapping[str, torch.dtype]  # random parameter -> its dtype in the network, if below float32
    devices: Mapping[str, torch.device]  # random parameter -> its device, if that is not the vector's
    autocast: torch.dtype | None = None  # of products inside `lowered`; None if they have that of the parameters

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

    def under(self, autocast: Autocast | None, device: torch.device) -> Precision:
        """Return these dtypes with autocast.

        It raises ValueError if the device has none, or the weights are in float64, which autocast leaves alone.
        """
        optional(check_choice, tuple(_DTYPES), autocast=autocast)
        if autocast is None:
            return self
        if self.weights == torch.float64:
            raise ValueError(
                f"`autocast` lowers networks in float32, and leaves float64 as it is; got {autocast!r} for weights in "
                f"float64. Convert the network with .float(), or leave `autocast` out."
            )
        if not torch.amp.is_autocast_available(device.type):
            raise ValueError(f"`autocast` is not available on {device}; got {autocast!r}. Leave it out.")
        return replace(self, autocast=_DTYPES[autocast])

    @property
    def is_half(self) -> bool:
        """Whether something may be computed in float16, whose range is so small that gradients are scaled."""
        return torch.float16 in {self.autocast, self.inputs, *self.casts.values()}

    def region(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context for a call of the network: under its own autocast inside `lowered`, else under none.

        PyTorch would keep the casts of parameters until the outermost region ends, and not see that they change.
        """
        kind, dtype = device.type, self.autocast if _NOW.lowered else None
        if dtype is None and not (kind in AUTOCAST_KINDS and torch.is_autocast_enabled(kind)):
            return nullcontext()
        return torch.autocast(kind, dtype, enabled=dtype is not None, cache_enabled=False)

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

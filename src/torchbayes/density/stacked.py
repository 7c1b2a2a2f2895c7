"""Layers of a stack of members under `vmap`: dense ones with gradients in the weights' memory layout, and attention.

Under `vmap` a linear layer x Wᵀ with a weight per member becomes a batched product whose weight gradient is transposed,
and copying it back costs a tenth of a training step. (W xᵀ)ᵀ is the same number, and its gradient with respect to W is
contiguous. Attention runs member by member there, with torch's warning about it silenced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchbayes.native.process import quiet_vmap

_ATTENTION = {F.scaled_dot_product_attention, F.multi_head_attention_forward}


class StackedLayers(TorchFunctionMode):
    """While active, linear layers are computed as (W xᵀ)ᵀ + b."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what the call gives."""
        if func in _ATTENTION:
            with quiet_vmap():
                return func(*args, **(kwargs or {}))
        return (_linear if func is F.linear else func)(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = input.reshape(-1, input.shape[-1])
    outputs = (weight @ rows.mT).mT.reshape(*input.shape[:-1], weight.shape[0])
    return outputs if bias is None else outputs + bias

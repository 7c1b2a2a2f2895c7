"""Dense layers of a stack of members, with gradients laid out as the weights are.

Under `vmap` PyTorch turns a linear layer with a weight per member into a batched product whose gradient comes out
transposed and is copied back, which costs a tenth of a training step. Here the product is written with its own
backward, so that every gradient is contiguous: W (M, O, I) has gradient Gᵀ X, computed in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode


class _StackedLinear(Function):
    """y_m = x_m W_mᵀ + b_m for x (M, R, I), W (M, O, I), b (M, O)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return y, (M, R, O)."""
        ctx.save_for_backward(inputs, weight)
        ctx.biased = bias is not None
        transposed = weight.transpose(1, 2)
        return torch.bmm(inputs, transposed) if bias is None else torch.baddbmm(bias.unsqueeze(1), inputs, transposed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Return the gradients of x, W and b."""
        inputs, weight = ctx.saved_tensors
        (gradient,) = gradients
        toward_inputs = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        return toward_inputs, torch.bmm(gradient.transpose(1, 2), inputs), gradient.sum(1) if ctx.biased else None


class _Linear(Function):
    """A linear layer that becomes `_StackedLinear` under `vmap`."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x Wᵀ + b."""
        return F.linear(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: only the stacked form is differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *args: Tensor | None) -> tuple[Tensor, int]:
        """Return the stacked layer's outputs, (M, ..., O)."""
        inputs, weight, bias = (
            None if a is None else a.unsqueeze(0).expand(info.batch_size, *a.shape) if d is None else a.movedim(d, 0)
            for a, d in zip(args, in_dims, strict=True)
        )
        assert inputs is not None
        rows = inputs.reshape(info.batch_size, -1, inputs.shape[-1])
        outputs = _StackedLinear.apply(rows, weight, bias)
        return outputs.view(*inputs.shape[:-1], outputs.shape[-1]), 0


class StackedLayers(TorchFunctionMode):
    """While active, linear layers whose weights carry a member axis run as `_StackedLinear`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what the call gives: linear layers with stacked weights go to the stacked form."""
        # PyTorch has no public way to ask whether a tensor carries a vmapped axis
        if func is F.linear and torch._C._functorch.is_batchedtensor(args[1]):  # pyright: ignore[reportAttributeAccessIssue]
            return _Linear.apply(args[0], args[1], args[2] if len(args) > 2 else (kwargs or {}).get("bias"))
        return func(*args, **(kwargs or {}))

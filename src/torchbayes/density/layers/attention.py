"""Self-attention of `nn.MultiheadAttention`, taken apart: its two products with weights become calls of layers.

PyTorch hands all of its weights to one function. That function is called here with what the first product gives, and
with identity matrices in the place of the weights, so that masks, dropout and heads stay its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def taken_apart(
    mode: TorchFunctionMode, func: Callable[..., Any], args: tuple[Any, ...], *, kwargs: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None] | None:
    """Return what self-attention gives, whose one weight projects to q, k and v together.

    Args:
        mode: is asked for each part of the call, as if the network had called it.
        func: the function that the network calls.
        args: its arguments.
        kwargs: its arguments by name.

    Returns:
        The outputs, and the weights of the positions where they are asked for; None for any other call.
    """
    if func is not F.multi_head_attention_forward:
        return None
    given = dict(_SIGNATURE.bind(*args, **kwargs).arguments)
    alone = given["query"] is given["key"] and given["key"] is given["value"]
    if not alone or given.get("use_separate_proj_weight"):
        return None

    def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return mode.__torch_function__(F.linear, (), (inputs, weight, bias))

    projected = linear(given["query"], given["in_proj_weight"], given["in_proj_bias"])
    identity = torch.eye(projected.shape[-1] // 3, dtype=projected.dtype, device=projected.device)
    identities = dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight"), identity)
    without = {"in_proj_weight": None, "in_proj_bias": None, "out_proj_bias": None, "use_separate_proj_weight": True}
    parts = dict(zip(("query", "key", "value"), projected.chunk(3, dim=-1), strict=True))
    rest = {**given, **parts, **identities, **without}
    mixed, weights = mode.__torch_function__(F.multi_head_attention_forward, (), (), rest)
    return linear(mixed, given["out_proj_weight"], given["out_proj_bias"]), weights

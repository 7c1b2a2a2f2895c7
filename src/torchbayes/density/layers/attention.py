"""Self-attention of `nn.MultiheadAttention`, taken apart: its two products with weights become calls of layers.

PyTorch hands all of its weights to one function. Here that function gets the result of the first product, and
identity matrices instead of weights, so it still handles masks, dropout and heads.
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
    """Return the outputs, and where asked for the weights of positions, of self-attention with one projection weight.

    Each part goes through `mode` as if the network had called it. Returns None for any other call.
    """
    if func is not F.multi_head_attention_forward:
        return None
    arguments = dict(_SIGNATURE.bind(*args, **kwargs).arguments)
    is_self = arguments["query"] is arguments["key"] and arguments["key"] is arguments["value"]
    if not is_self or arguments.get("use_separate_proj_weight"):
        return None

    def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return mode.__torch_function__(F.linear, (), (inputs, weight, bias))

    projected = linear(arguments["query"], arguments["in_proj_weight"], arguments["in_proj_bias"])
    identity = torch.eye(projected.shape[-1] // 3, dtype=projected.dtype, device=projected.device)
    identities = dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight"), identity)
    without = {"in_proj_weight": None, "in_proj_bias": None, "out_proj_bias": None, "use_separate_proj_weight": True}
    parts = dict(zip(("query", "key", "value"), projected.chunk(3, dim=-1), strict=True))
    options = {**arguments, **parts, **identities, **without}
    mixed, weights = mode.__torch_function__(F.multi_head_attention_forward, (), (), options)
    return linear(mixed, arguments["out_proj_weight"], arguments["out_proj_bias"]), weights

"""What PyTorch's operators do to the axes of units: one rule for each kind of operator.

A rule takes a `Call` and returns the axes of its results. All functions and layers, relu(x), x + y and
`nn.BatchNorm2d` alike, run as a few hundred operators. Operators without a rule are refused where units reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchbayes.geometry.symmetry.layers import (
    attention,
    batch_norm,
    convolution,
    embedding,
    group_norm,
    layer_norm,
    linear,
    matrix,
    vector,
    weight_norm,
)
from torchbayes.geometry.symmetry.units import Axes, Axis, Call, broadcast, fixed, is_fixed, moving, shaped, widened

Rule = Callable[[Call], list[Axes]]


def _pointwise(call: Call) -> list[Axes]:
    result = call.results[0]
    axes = broadcast(call, call.tensors, result.ndim)
    return [axes for _ in call.results]


def _like_first(call: Call) -> list[Axes]:
    axes = call.axes_of(call.tensors[0])
    return [list(axes) if tensor.ndim == len(axes) else shaped(tensor.shape) for tensor in call.results]


def _constant(call: Call) -> list[Axes]:
    return [[call.ties.free(size) for size in tensor.shape] for tensor in call.results]


def _reshape(call: Call) -> list[Axes]:
    tensor, made = call.tensor("self"), call.results[0]
    return [call.ties.reshaped(call.axes("self"), tensor.shape, made.shape)]


def _permute(call: Call) -> list[Axes]:
    axes = call.axes("self")
    if call.name == "permute":
        order = [dim % len(axes) for dim in call.values["dims"]]
    else:
        order, (a, b) = list(range(len(axes))), (call.values.get("dim0", 0), call.values.get("dim1", 1))
        if len(axes) > 1:
            order[a], order[b] = order[b], order[a]
    return [[axes[dim] for dim in order]]


def _expand(call: Call) -> list[Axes]:
    tensor, made = call.tensor("self"), call.results[0]
    axes = [call.ties.free(size) for size in made.shape]
    for back in range(1, tensor.ndim + 1):
        if tensor.shape[-back] == made.shape[-back]:
            axes[-back] = call.axes("self")[-back]
    return [axes]


def _repeat(call: Call) -> list[Axes]:
    tensor, times = call.tensor("self"), call.values["repeats"]
    new = len(times) - tensor.ndim
    axes, sizes = [*shaped([1] * new), *call.axes("self")], [*[1] * new, *tensor.shape]
    return [[call.ties.free(n) if size == 1 else axis * n for axis, size, n in zip(axes, sizes, times, strict=True)]]


def _cut(call: Call, axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """Return the parts of an axis; each unit is in one of them."""
    if is_fixed(call.ties.resolved(axis)):
        return [fixed(size) for size in sizes]
    parts = [call.ties.free(size) for size in sizes]
    call.ties.join(sum(parts, ()), axis)
    return [call.ties.resolved(axis_part) for axis_part in parts]


def _split(call: Call) -> list[Axes]:
    axes, dim, made = call.axes("self"), call.values.get("dim", 0), call.results
    dim %= len(axes)
    parts = _cut(call, axes[dim], [tensor.shape[dim] for tensor in made])
    return [[*axes[:dim], axis_part, *axes[dim + 1 :]] for axis_part in parts]


def _slice(call: Call) -> list[Axes]:
    axes, dim, step = call.axes("self"), call.values.get("dim", 0), call.values.get("step", 1)
    dim %= len(axes)
    total, length = call.tensor("self").shape[dim], call.results[0].shape[dim]
    if length == total:
        return [axes]
    if step != 1:
        call.fix(axes[dim])
        axes[dim] = fixed(length)
    else:
        start = call.values.get("start") or 0
        start = min(max(start + total if start < 0 else start, 0), total)
        axes[dim] = _cut(call, axes[dim], [start, length, total - start - length])[1]
    return [axes]


def _select(call: Call) -> list[Axes]:
    axes = call.axes("self")
    call.fix(axes.pop(call.values.get("dim", 0)))
    return [axes for _ in call.results]


def _cat(call: Call) -> list[Axes]:
    tensors = [tensor for tensor in call.values["tensors"] if tensor.shape != (0,)]
    dim = call.values.get("dim", 0) % tensors[0].ndim
    parts, joined = [], list(call.axes_of(tensors[0]))
    for tensor in tensors:
        axes = list(call.axes_of(tensor))
        parts.append(axes[dim])
        joined = [call.ties.join(a, b) if k != dim else a for k, (a, b) in enumerate(zip(joined, axes, strict=True))]
    joined[dim] = call.ties.resolved(sum(parts, ()))
    return [joined]


def _stack(call: Call) -> list[Axes]:
    tensors, made = call.values["tensors"], call.results[0]
    axes = broadcast(call, tensors, tensors[0].ndim)
    axes.insert(call.values.get("dim", 0) % made.ndim, fixed(len(tensors)))
    return [axes]


def _reduce(call: Call) -> list[Axes]:
    """Return the axes that are left: a sum does not depend on the order."""
    axes, dims = call.axes("self"), call.values.get("dim")
    dims = range(len(axes)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    gone = {dim % max(len(axes), 1) for dim in dims}
    if call.name in _POSITIONS and (len(call.results) > 1 or call.name.startswith("arg")):
        call.fix(*(axes[dim] for dim in gone))
    kept = [axis for dim, axis in enumerate(axes) if dim not in gone]
    left = [fixed(1) if dim in gone else axis for dim, axis in enumerate(axes)]
    return [left if tensor.ndim == len(axes) else kept for tensor in call.results]


def _ordered(call: Call) -> list[Axes]:
    """Return the axes; those along which positions matter get a fixed order."""
    axes, dims = call.axes("self"), call.values.get("dim", call.values.get("dims", -1))
    dims = range(len(axes)) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
    call.fix(*(axes[dim] for dim in dims))
    return [[call.ties.resolved(axis) for axis in axes] for _ in call.results]


def _neighbours(call: Call) -> list[Axes]:
    """Return the axes; the last ones, places in images or sequences, stay in order. The name says how many."""
    axes, made = call.axes("self"), call.results[0]
    places = next(int(digit) for digit in "123" if f"{digit}d" in call.name)
    call.fix(*axes[-places:])
    return [[*axes[:-places], *shaped(tensor.shape[-places:])] for tensor in call.results if made.ndim == len(axes)]


def _pad(call: Call) -> list[Axes]:
    axes, pad = call.axes("self"), call.values["pad"]
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        if before < 0 or after < 0:
            call.fix(axes[-k - 1])
            axes[-k - 1] = fixed(call.results[0].shape[-k - 1])
        elif before or after:
            axes[-k - 1] = (*(fixed(before) if before else ()), *axes[-k - 1], *(fixed(after) if after else ()))
    return [axes]


def _glu(call: Call) -> list[Axes]:
    axes, dim = call.axes("self"), call.values.get("dim", -1)
    half = call.results[0].shape[dim]
    first, second = _cut(call, axes[dim], [half, half])
    axes[dim] = call.ties.join(first, second)
    return [axes]


def _blocks(call: Call) -> list[Axes]:
    """Return the axes where each channel becomes places, or the places of each become channels."""
    axes, made = call.axes("self"), call.results[0]
    dim = 1 if call.name == "im2col" else -3
    size, before = made.shape[dim], call.tensor("self").shape[dim]
    call.fix(*(axes[dim + 1 :] if dim > 0 else axes[-2:]))
    if before > size:
        channels = call.ties.free(size)
        call.ties.join(widened(channels, before // size), axes[dim])
    else:
        channels = call.ties.merged([axes[dim], fixed(size // before)], [before, size // before])
    left = axes[: dim % len(axes)]
    return [[*left, channels, *shaped(made.shape[len(left) + 1 :])]]


def _index(call: Call) -> list[Axes]:
    """Return the axes after a tensor picks from one of them, or a mask from several."""
    axes, picked = call.axes("self"), [(k, i) for k, i in enumerate(call.values["indices"]) if i is not None]
    for k, index in picked:
        mask = index.dtype is torch.bool
        call.fix(*axes[k : k + (index.ndim if mask else 1)], *(call.axes_of(index) if mask else ()))
    if len(picked) > 1:
        if next(moving(call), None) is not None:
            raise ValueError("units are picked by several tensors at once. Index one axis after the other.")
        return [shaped(call.results[0].shape)]
    k, index = picked[0]
    if index.dtype is torch.bool:
        return [[*axes[:k], fixed(call.results[0].shape[k]), *axes[k + index.ndim :]]]
    return [[*axes[:k], *call.axes_of(index), *axes[k + 1 :]]]


def _gather(call: Call) -> list[Axes]:
    """Return the axes of what is picked along one axis: those of the index, which may hold units of another layer."""
    axes, index, dim = call.axes("self"), call.axes("index"), call.values.get("dim", 0)
    call.fix(axes[dim])
    if call.name == "index_select":
        axes[dim] = index[0] if index else fixed(1)
        return [axes]
    for k, (axis, size) in enumerate(zip(axes, call.results[0].shape, strict=True)):
        if k != dim % len(axes):
            rest = sum(segment.size for segment in axis) - size
            index[k] = call.ties.join(index[k], _cut(call, axis, [size, rest])[0])
    return [index]


_POSITIONS = {"max", "min", "median", "nanmedian", "mode", "argmax", "argmin", "aminmax"}
_TABLE: list[tuple[Rule, str]] = [
    (_pointwise, "copy _prelu_kernel masked_fill dropout where hardtanh leaky_relu elu clamp log_sigmoid_forward "
                 "hardswish"),
    (_like_first, "_softmax _log_softmax _safe_softmax softmax log_softmax _to_copy rrelu_with_noise "
                  "contiguous alias detach lift_fresh"),
    (_constant, "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty "
                "scalar_tensor zero fill"),
    (_reshape, "view _unsafe_view reshape _reshape_alias unsqueeze squeeze view_copy flatten unflatten"),
    (_permute, "permute transpose t"),
    (_expand, "expand"),
    (_repeat, "repeat"),
    (_split, "split split_with_sizes unsafe_split unsafe_split_with_sizes chunk"),
    (_slice, "slice"),
    (_select, "select unbind"),
    (_cat, "cat _cat concatenate"),
    (_stack, "stack"),
    (_reduce, "sum mean amax amin var std var_mean std_mean prod logsumexp linalg_vector_norm norm any all max min "
              "argmax argmin count_nonzero nansum"),
    (_ordered, "cumsum cumprod flip roll sort topk logcumsumexp argsort"),
    (_neighbours, "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d "
                  "avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d "
                  "adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
                  "upsample_bilinear2d upsample_bicubic2d upsample_linear1d reflection_pad1d reflection_pad2d "
                  "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"),
    (_pad, "constant_pad_nd"),
    (_glu, "glu"),
    (_blocks, "pixel_shuffle pixel_unshuffle im2col"),
    (_index, "index"),
    (_gather, "gather index_select"),
    (matrix, "mm addmm bmm baddbmm"),
    (vector, "mv addmv dot vdot ger outer"),
    (linear, "linear mkldnn_linear _mkldnn_linear"),
    (convolution, "convolution _convolution mkldnn_convolution cudnn_convolution convolution_overrideable"),
    (batch_norm, "native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
                  "miopen_batch_norm"),
    (layer_norm, "native_layer_norm _fused_rms_norm"),
    (group_norm, "native_group_norm"),
    (weight_norm, "_weight_norm_interface"),
    (attention, "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
                 "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"),
    (embedding, "embedding"),
]  # fmt: skip
RULES: dict[str, Rule] = {name: rule for rule, names in _TABLE for name in names.split()}


def rule_of(call: Call) -> Rule | None:
    """Return the rule of an operator, None if there is none."""
    for name in (call.name, call.name.removesuffix("_"), call.name.removesuffix("_copy")):
        if name in RULES:
            return RULES[name]
    return _pointwise if call.pointwise else None

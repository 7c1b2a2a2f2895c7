"""What PyTorch's operators do to the axes of units: one rule for each kind of operator.

A rule takes a `Call` and gives the axes of what it returns. Below all functions and layers, `F.relu`, `x + y` and
`nn.BatchNorm2d` alike, there are a few hundred operators; those without a rule are refused where units reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchbayes.geometry.units import Axis, Ties, fixed, is_fixed

Axes = list[Axis]


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    Attributes:
        name: of the operator, without its overload, such as "addmm".
        values: its arguments by name.
        out: what it returned.
        ties: the groups of units.
        axes_of: tensor -> its axes.
        used: told (activations, axis) where activations are summed over an axis with weights.
        pointwise: whether PyTorch says that it works element by element.
    """

    name: str
    values: Mapping[str, Any]
    out: Any
    ties: Ties
    axes_of: Callable[[Tensor], Axes]
    used: Callable[[Tensor, int], None]
    pointwise: bool

    def tensor(self, *names: str) -> Tensor:
        """Return the first argument there is under one of these names."""
        return next(self.values[name] for name in names if name in self.values)

    def axes(self, *names: str) -> Axes:
        """Return the axes of the first argument there is under one of these names."""
        return list(self.axes_of(self.tensor(*names)))

    @property
    def tensors(self) -> list[Tensor]:
        """All arguments that are tensors, those in lists too."""
        return [value for value in pytree.tree_leaves(dict(self.values)) if isinstance(value, Tensor)]

    @property
    def results(self) -> list[Tensor]:
        """All tensors it returned."""
        return [value for value in pytree.tree_leaves(self.out) if isinstance(value, Tensor)]

    def fix(self, axis: Axis) -> None:
        """Fix the order of an axis, because of this operator."""
        self.ties.fix(axis, f"the operator {self.name} depends on the order of units")


Rule = Callable[[Call], list[Axes]]


def shaped(sizes: Sequence[int]) -> Axes:
    """Return axes in fixed order."""
    return [fixed(size) for size in sizes]


def broadcast(call: Call, tensors: Sequence[Tensor], ndim: int) -> Axes:
    """Join the axes of tensors that are combined element by element, and return those of the result."""
    found: list[Axis | None] = [None] * ndim
    for tensor in tensors:
        for back, axis in enumerate(reversed(call.axes_of(tensor)), 1):
            if tensor.shape[-back] != 1:
                before = found[-back]
                found[-back] = axis if before is None else call.ties.join(before, axis)
    return [fixed(1) if axis is None else call.ties.resolved(axis) for axis in found]


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
    given, made = call.tensor("self"), call.results[0]
    return [call.ties.reshaped(call.axes("self"), given.shape, made.shape)]


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
    given, made = call.tensor("self"), call.results[0]
    axes = [call.ties.free(size) for size in made.shape]
    for back in range(1, given.ndim + 1):
        if given.shape[-back] == made.shape[-back]:
            axes[-back] = call.axes("self")[-back]
    return [axes]


def _repeat(call: Call) -> list[Axes]:
    given, axes = call.tensor("self"), call.axes("self")
    times = call.values["repeats"]
    axes = [*shaped([1] * (len(times) - given.ndim)), *axes]
    sizes = [1] * (len(times) - given.ndim) + list(given.shape)
    return [[call.ties.free(n) if size == 1 else axis * n for axis, size, n in zip(axes, sizes, times, strict=True)]]


def _cut(call: Call, axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """Return the parts of an axis; units are in one of them."""
    if is_fixed(call.ties.resolved(axis)):
        return [fixed(size) for size in sizes]
    parts = [call.ties.free(size) for size in sizes]
    call.ties.join(sum(parts, ()), axis)
    return [call.ties.resolved(part) for part in parts]


def _split(call: Call) -> list[Axes]:
    axes, dim, made = call.axes("self"), call.values.get("dim", 0), call.results
    dim %= len(axes)
    parts = _cut(call, axes[dim], [tensor.shape[dim] for tensor in made])
    return [[*axes[:dim], part, *axes[dim + 1 :]] for part in parts]


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
    axes, dim = call.axes("self"), call.values.get("dim", 0)
    call.fix(axes[dim])
    del axes[dim]
    return [axes for _ in call.results]


def _cat(call: Call) -> list[Axes]:
    given = [tensor for tensor in call.values["tensors"] if tensor.shape != (0,)]
    dim = call.values.get("dim", 0) % given[0].ndim
    parts, joined = [], list(call.axes_of(given[0]))
    for tensor in given:
        axes = list(call.axes_of(tensor))
        parts.append(axes[dim])
        joined = [call.ties.join(a, b) if k != dim else a for k, (a, b) in enumerate(zip(joined, axes, strict=True))]
    joined[dim] = call.ties.resolved(sum(parts, ()))
    return [joined]


def _stack(call: Call) -> list[Axes]:
    given, made = call.values["tensors"], call.results[0]
    axes = broadcast(call, given, given[0].ndim)
    axes.insert(call.values.get("dim", 0) % made.ndim, fixed(len(given)))
    return [axes]


def _reduce(call: Call) -> list[Axes]:
    """Return what is left: a sum does not depend on the order."""
    axes, dims = call.axes("self"), call.values.get("dim")
    dims = range(len(axes)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    gone = {dim % max(len(axes), 1) for dim in dims}
    if call.name in _POSITIONS and (len(call.results) > 1 or call.name.startswith("arg")):
        for dim in gone:
            call.fix(axes[dim])
    kept = [axis for dim, axis in enumerate(axes) if dim not in gone]
    left = [fixed(1) if dim in gone else axis for dim, axis in enumerate(axes)]
    return [left if tensor.ndim == len(axes) else kept for tensor in call.results]


def _ordered(call: Call) -> list[Axes]:
    """Fix the axes along which positions matter, and keep the others."""
    axes, dims = call.axes("self"), call.values.get("dim", call.values.get("dims", -1))
    for dim in range(len(axes)) if dims in (None, []) else [dims] if isinstance(dims, int) else dims:
        call.fix(axes[dim])
    return [[call.ties.resolved(axis) for axis in axes] for _ in call.results]


def _neighbours(call: Call) -> list[Axes]:
    """Fix the last axes, those of places in images and sequences, whose number is in the operator's name."""
    axes, made = call.axes("self"), call.results[0]
    places = next(int(digit) for digit in "123" if f"{digit}d" in call.name)
    for axis in axes[-places:]:
        call.fix(axis)
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


def _matrix(call: Call) -> list[Axes]:
    """Contract the last axis of one matrix and the last but one of another; add a third."""
    names = ("batch1", "batch2") if "batch1" in call.values else ("mat1", "mat2")
    a, b = (call.tensor(name, other) for name, other in zip(names, ("self", "mat2"), strict=True))
    left, right = call.axes_of(a), call.axes_of(b)
    call.ties.join(left[-1], right[-2])
    call.used(a, a.ndim - 1)
    call.used(b, b.ndim - 2)
    batch = [call.ties.join(x, y) for x, y in zip(left[:-2], right[:-2], strict=True)]
    return _with_bias(call, [*batch, left[-2], right[-1]], added=len(call.tensors) > 2)


def _with_bias(call: Call, axes: Axes, added: bool) -> list[Axes]:
    if added:
        bias, own = call.tensor("self"), call.axes("self")
        for back in range(1, bias.ndim + 1):
            if bias.shape[-back] != 1:
                call.ties.join(axes[-back], own[-back])
    return [[call.ties.resolved(axis) for axis in axes]]


def _vector(call: Call) -> list[Axes]:
    a = call.tensor("mat", "self")
    b = call.tensor("vec", "tensor", "vec2")
    left, right = call.axes_of(a), call.axes_of(b)
    if call.name in ("ger", "outer"):
        return [[left[0], right[0]]]
    call.ties.join(left[-1], right[0])
    call.used(a, a.ndim - 1)
    call.used(b, 0)
    return _with_bias(call, list(left[:-1]), added=len(call.tensors) > 2)


def _linear(call: Call) -> list[Axes]:
    given, weight = call.tensor("input", "self"), call.axes("weight")
    axes = call.axes("input", "self")
    call.ties.join(axes[-1], weight[1])
    call.used(given, given.ndim - 1)
    axes[-1] = weight[0]
    if isinstance(call.values.get("bias"), Tensor):
        axes[-1] = call.ties.join(axes[-1], call.axes("bias")[0])
    return [axes]


def _convolution(call: Call) -> list[Axes]:
    given, weight = call.tensor("input", "self"), call.tensor("weight")
    axes, own = call.axes("input", "self"), call.axes("weight")
    for axis in (*own[2:], *axes[2:]):
        call.ties.fix(axis)
    groups, ties, transposed = call.values.get("groups", 1), call.ties, call.values.get("transposed", False)
    channels = axes[1]
    if transposed:
        ties.join(channels, own[0])
        made = own[1] if groups == 1 else _per_group(call, channels, own[1], groups)
    elif groups > 1 and weight.shape[1] == 1:  # each channel by itself
        ties.join(own[0], tuple(s._replace(inner=s.inner * (weight.shape[0] // groups)) if s.group is not None else
                                fixed(s.count * (weight.shape[0] // groups))[0] for s in channels))  # fmt: skip
        made = own[0]
    elif groups > 1:  # the same order in each group of channels
        ties.join(channels, own[1] * groups)
        made = _pieces(call, own[0], groups)
    else:
        ties.join(channels, own[1])
        made = own[0]
    call.used(given, 1)
    if isinstance(call.values.get("bias"), Tensor):
        made = ties.join(made, call.axes("bias")[0])
    return [[axes[0], ties.resolved(made), *shaped(call.results[0].shape[2:])]]


def _per_group(call: Call, channels: Axis, outputs: Axis, groups: int) -> Axis:
    """Return the outputs of a transposed convolution of several groups, whose units stay in their group."""
    _pieces(call, channels, groups)
    return call.ties.resolved(outputs) * groups


def _pieces(call: Call, axis: Axis, pieces: int) -> Axis:
    """Divide an axis into pieces of equal size, none of whose units leave it."""
    resolved = call.ties.resolved(axis)
    size = sum(segment.size for segment in resolved) // pieces
    return call.ties.join(axis, sum((call.ties.free(size) for _ in range(pieces)), ()))


def _batch_norm(call: Call) -> list[Axes]:
    axes = call.axes("input")
    for name in ("weight", "bias", "running_mean", "running_var"):
        if isinstance(call.values.get(name), Tensor):
            axes[1] = call.ties.join(axes[1], call.axes(name)[0])
    return [axes if tensor.ndim == len(axes) else [axes[1]] for tensor in call.results]


def _layer_norm(call: Call) -> list[Axes]:
    axes = call.axes("input")
    for name in ("weight", "bias"):
        if isinstance(call.values.get(name), Tensor):
            for back, own in enumerate(reversed(call.axes(name)), 1):
                axes[-back] = call.ties.join(axes[-back], own)
    return [axes if k == 0 else shaped(tensor.shape) for k, tensor in enumerate(call.results)]


def _group_norm(call: Call) -> list[Axes]:
    axes, groups = call.axes("input"), call.values["group"]
    if groups > 1:
        axes[1] = _pieces(call, axes[1], groups)
    for name in ("weight", "bias"):
        if isinstance(call.values.get(name), Tensor):
            axes[1] = call.ties.join(axes[1], call.axes(name)[0])
    return [axes if k == 0 else shaped(tensor.shape) for k, tensor in enumerate(call.results)]


def _weight_norm(call: Call) -> list[Axes]:
    axes, dim = call.axes("v"), call.values.get("dim", 0)
    axes[dim] = call.ties.join(axes[dim], call.axes("g")[dim])
    return [axes, *(call.axes_of(call.tensor("g")) for _ in call.results[1:])]


def _attention(call: Call) -> list[Axes]:
    query, key, value = (call.axes(name) for name in ("query", "key", "value"))
    ties = call.ties
    heads = [ties.join(ties.join(q, k), v) for q, k, v in zip(query[:-2], key[:-2], value[:-2], strict=True)]
    ties.join(query[-1], key[-1])
    ties.join(key[-2], value[-2])
    mask = call.values.get("attn_mask", call.values.get("attn_bias"))
    if isinstance(mask, Tensor):
        for axis in call.axes_of(mask):
            ties.fix(axis)
        ties.fix(query[-2])
        ties.fix(key[-2])
        for axis in heads:
            ties.fix(axis)
    if call.values.get("is_causal"):
        ties.fix(query[-2])
        ties.fix(key[-2])
    first = [ties.resolved(axis) for axis in (*heads, query[-2], value[-1])]
    return [first if k == 0 else shaped(tensor.shape) for k, tensor in enumerate(call.results)]


def _embedding(call: Call) -> list[Axes]:
    table = call.axes("weight")
    call.ties.fix(table[0])
    return [[*call.axes("indices"), table[1]]]


_POSITIONS = {"max", "min", "median", "nanmedian", "mode", "argmax", "argmin", "aminmax"}
_TABLE: list[tuple[Rule, str]] = [
    (_pointwise, "copy _prelu_kernel masked_fill dropout where hardtanh leaky_relu elu clamp log_sigmoid_forward"),
    (_like_first, "_softmax _log_softmax _safe_softmax softmax log_softmax contiguous alias detach lift_fresh"),
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
    (_ordered, "cumsum cumprod flip roll sort topk logcumsumexp argsort index_select gather"),
    (_neighbours, "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d "
                  "avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d "
                  "adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
                  "upsample_bilinear2d upsample_bicubic2d upsample_linear1d reflection_pad1d reflection_pad2d "
                  "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"),
    (_pad, "constant_pad_nd"),
    (_matrix, "mm addmm bmm baddbmm"),
    (_vector, "mv addmv dot vdot ger outer"),
    (_linear, "linear mkldnn_linear _mkldnn_linear"),
    (_convolution, "convolution _convolution mkldnn_convolution cudnn_convolution convolution_overrideable"),
    (_batch_norm, "native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
                  "miopen_batch_norm"),
    (_layer_norm, "native_layer_norm _fused_rms_norm"),
    (_group_norm, "native_group_norm"),
    (_weight_norm, "_weight_norm_interface"),
    (_attention, "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
                 "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"),
    (_embedding, "embedding"),
]  # fmt: skip
RULES: Mapping[str, Rule] = {name: rule for rule, names in _TABLE for name in names.split()}


def rule_of(call: Call) -> Rule | None:
    """Return the rule of an operator, None if there is none."""
    for name in (call.name, call.name.removesuffix("_"), call.name.removesuffix("_copy")):
        if name in RULES:
            return RULES[name]
    return _pointwise if call.pointwise else None


def moving(call: Call) -> Iterator[Axis]:
    """Yield the axes of the arguments that are not in fixed order."""
    for tensor in call.tensors:
        for axis in call.axes_of(tensor):
            if not is_fixed(resolved := call.ties.resolved(axis)):
                yield resolved


def pointwise(func: Any) -> bool:
    """Return whether PyTorch says that an operator works element by element."""
    return torch.Tag.pointwise in func.tags

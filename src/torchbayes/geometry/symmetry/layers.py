"""What layers with weights do to the axes of units: products of matrices, convolutions, norms and attention."""

from __future__ import annotations

from torch import Tensor

from torchbayes.geometry.symmetry.units import Axes, Axis, Call, shaped, widened


def matrix(call: Call) -> list[Axes]:
    """Join the axes that a product of matrices sums over; return those of the result, to which a bias may be added."""
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
        bias, bias_axes = call.tensor("self"), call.axes("self")
        for back in range(1, bias.ndim + 1):
            if bias.shape[-back] != 1:
                call.ties.join(axes[-back], bias_axes[-back])
    return [[call.ties.resolved(axis) for axis in axes]]


def vector(call: Call) -> list[Axes]:
    """Return the axes of a product with a vector, which is joined with the last axis of the other factor."""
    a = call.tensor("mat", "self")
    b = call.tensor("vec", "tensor", "vec2")
    left, right = call.axes_of(a), call.axes_of(b)
    if call.name in ("ger", "outer"):
        return [[left[0], right[0]]]
    call.ties.join(left[-1], right[0])
    call.used(a, a.ndim - 1)
    call.used(b, 0)
    return _with_bias(call, list(left[:-1]), added=len(call.tensors) > 2)


def linear(call: Call) -> list[Axes]:
    """Return the axes of a linear layer's outputs; inputs are joined with the second axis of the weights."""
    inputs, weight = call.tensor("input", "self"), call.axes("weight")
    axes = call.axes("input", "self")
    call.ties.join(axes[-1], weight[1])
    call.used(inputs, inputs.ndim - 1)
    axes[-1] = _joined(call, weight[0], "bias")
    return [axes]


def _joined(call: Call, axis: Axis, *names: str) -> Axis:
    """Return an axis joined with the first one of each of these arguments, if given."""
    for name in names:
        if isinstance(call.values.get(name), Tensor):
            axis = call.ties.join(axis, call.axes(name)[0])
    return axis


def _only_first(call: Call, axes: Axes) -> list[Axes]:
    """Return the axes of the first result; those of the others are in fixed order."""
    return [axes, *(shaped(tensor.shape) for tensor in call.results[1:])]


def convolution(call: Call) -> list[Axes]:
    """Return the axes of a convolution's outputs; places and kernels stay in order."""
    inputs, weight = call.tensor("input", "self"), call.tensor("weight")
    axes, weight_axes = call.axes("input", "self"), call.axes("weight")
    call.ties.fix(*weight_axes[2:], *axes[2:])
    groups, ties, transposed = call.values.get("groups", 1), call.ties, call.values.get("transposed", False)
    channels = axes[1]
    if transposed:
        ties.join(channels, weight_axes[0])
        if groups > 1:
            _pieces(call, channels, groups)
        outputs = ties.resolved(weight_axes[1]) * groups
    elif groups > 1 and weight.shape[1] == 1:  # each channel by itself
        ties.join(weight_axes[0], widened(channels, weight.shape[0] // groups))
        outputs = weight_axes[0]
    elif groups > 1:  # the same order in each group of channels
        ties.join(channels, weight_axes[1] * groups)
        outputs = _pieces(call, weight_axes[0], groups)
    else:
        ties.join(channels, weight_axes[1])
        outputs = weight_axes[0]
    call.used(inputs, 1)
    outputs = _joined(call, outputs, "bias")
    return [[axes[0], ties.resolved(outputs), *shaped(call.results[0].shape[2:])]]


def _pieces(call: Call, axis: Axis, pieces: int) -> Axis:
    """Return an axis in pieces of equal size; no unit leaves its piece."""
    resolved = call.ties.resolved(axis)
    size = sum(segment.size for segment in resolved) // pieces
    return call.ties.join(axis, sum((call.ties.free(size) for _ in range(pieces)), ()))


def batch_norm(call: Call) -> list[Axes]:
    """Return the axes, the channels joined to those of parameters and statistics."""
    axes = call.axes("input")
    axes[1] = _joined(call, axes[1], "weight", "bias", "running_mean", "running_var")
    channels = call.results[0].shape[1:2]
    others = [[axes[1]] if tensor.shape == channels else shaped(tensor.shape) for tensor in call.results[1:]]
    return [axes, *others]


def layer_norm(call: Call) -> list[Axes]:
    """Return the axes, the last ones joined to those of the parameters."""
    axes = call.axes("input")
    for name in ("weight", "bias"):
        if isinstance(call.values.get(name), Tensor):
            for back, axis in enumerate(reversed(call.axes(name)), 1):
                axes[-back] = call.ties.join(axes[-back], axis)
    return _only_first(call, axes)


def group_norm(call: Call) -> list[Axes]:
    """Return the axes; channels stay in their group, and are joined to the parameters."""
    axes, groups = call.axes("input"), call.values["group"]
    if groups > 1:
        axes[1] = _pieces(call, axes[1], groups)
    axes[1] = _joined(call, axes[1], "weight", "bias")
    return _only_first(call, axes)


def weight_norm(call: Call) -> list[Axes]:
    """Return the axes of the weights made of lengths and directions."""
    axes, dim = call.axes("v"), call.values.get("dim", 0)
    axes[dim] = call.ties.join(axes[dim], call.axes("g")[dim])
    return [axes, *(call.axes_of(call.tensor("g")) for _ in call.results[1:])]


def attention(call: Call) -> list[Axes]:
    """Return the axes of the mean values; heads are joined, queries with keys, and places of keys and values."""
    query, key, value = (call.axes(name) for name in ("query", "key", "value"))
    ties = call.ties
    heads = [ties.join(ties.join(q, k), v) for q, k, v in zip(query[:-2], key[:-2], value[:-2], strict=True)]
    ties.join(query[-1], key[-1])
    ties.join(key[-2], value[-2])
    mask = call.values.get("attn_mask", call.values.get("attn_bias"))
    masked = [*call.axes_of(mask), *heads] if isinstance(mask, Tensor) else []
    places = [query[-2], key[-2]] if masked or call.values.get("is_causal") else []
    ties.fix(*masked, *places)
    return _only_first(call, [ties.resolved(axis) for axis in (*heads, query[-2], value[-1])])


def embedding(call: Call) -> list[Axes]:
    """Return the axes of the vectors of words; the order of the words stays."""
    table = call.axes("weight")
    call.ties.fix(table[0])
    return [[*call.axes("indices"), table[1]]]

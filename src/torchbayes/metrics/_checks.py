"""Checks shared by the metrics: each reads its tensor once and, on valid input, synchronises with the device once.

A wrong call ends in a message that says what is wrong, the value seen and what to do.
"""

import math

import torch
from torch import Tensor

from torchbayes.checks import check_counts, check_memory, check_tensor

SUM_TOLERANCE = 1e-3
_BIN = 32  # bytes: an edge, a count and two means


def check_float(name: str, values: Tensor, ndim: int | None = None, *, finite: bool = True) -> None:
    """Require a non-empty float32 or float64 tensor without NaN (nor infinities, if ``finite``).

    Args:
        name: Name of the argument, for the message.
        values: The tensor to check.
        ndim: Number of axes required; None allows any.
        finite: Whether infinite values are refused as well as NaN.

    Raises:
        TypeError: If ``values`` is not a tensor or has another dtype.
        ValueError: If it has the wrong number of axes, is empty or holds refused values.
    """
    _check_layout(name, values, ndim)
    bad = ~torch.isfinite(values) if finite else torch.isnan(values)
    if bad.any():
        what = "NaN or infinite values" if finite else "NaN"
        raise ValueError(
            f"`{name}` holds {what}: {int(bad.sum())} of {values.numel()}. Find the inputs or weights that made them."
        )


def check_probs(name: str, probs: Tensor, ndim: int | None = None) -> None:
    """Require probabilities over the last axis: not below zero, summing to one within 1e-3.

    Args:
        name: Name of the argument, for the message.
        probs: The tensor to check.
        ndim: Number of axes required; None allows any number above zero.

    Raises:
        TypeError: If ``probs`` is not a tensor or has another dtype than float32 or float64.
        ValueError: If it has the wrong number of axes, is empty, or its last axis is not a distribution.
    """
    _check_layout(name, probs, ndim)
    if probs.ndim == 0:
        raise ValueError(f"`{name}` must have classes on its last axis; got a single number. Pass shape (..., K).")
    sums = probs.sum(-1)
    # NaN passes through min and max and fails both comparisons, so one read of the device covers every case.
    lowest, furthest = torch.stack([probs.min(), (sums - 1).abs().max()]).tolist()
    if lowest >= 0 and furthest <= SUM_TOLERANCE:
        return
    if not bool(torch.isfinite(probs).all()):
        raise ValueError(f"`{name}` holds NaN or infinite values. Find the inputs or weights that made them.")
    if lowest < 0:
        raise ValueError(
            f"`{name}` must not be negative; got {lowest:.4g}. Apply softmax, or exp to log-probabilities."
        )
    seen = sums.flatten()[(sums - 1).abs().argmax()].item()
    raise ValueError(
        f"`{name}` must sum to one over the last axis; got a sum of {seen:.6g}. "
        "Apply softmax; for a Bernoulli probability p stack (1 - p, p) on the last axis."
    )


def check_targets(targets_B: Tensor, scores_BK: Tensor) -> Tensor:
    """Require integer classes in 0..K-1, one for each row, and return them as int64.

    Args:
        targets_B: Classes, shape (B,).
        scores_BK: The checked probabilities or outputs they belong to, shape (B, K).

    Returns:
        The classes as int64, shape (B,), so that uint8 labels never act as a mask.

    Raises:
        TypeError: If ``targets_B`` is not a tensor of integers.
        ValueError: If its shape, device or range does not fit ``scores_BK``.
    """
    num_rows, num_classes = scores_BK.shape
    if not isinstance(targets_B, Tensor):
        raise TypeError(f"`targets_B` must be a torch tensor; got {type(targets_B).__name__}. Use torch.as_tensor.")
    if targets_B.is_floating_point() or targets_B.is_complex() or targets_B.dtype == torch.bool:
        raise TypeError(f"`targets_B` must hold integer classes; got {targets_B.dtype}. Convert with .long().")
    if targets_B.shape != (num_rows,):
        raise ValueError(
            f"`targets_B` must have one class for each of the {num_rows} rows, shape ({num_rows},); "
            f"got shape {tuple(targets_B.shape)}."
        )
    check_device("targets_B", targets_B, scores_BK)
    classes_B = targets_B.long()
    lowest, highest = torch.stack(torch.aminmax(classes_B)).tolist()
    if lowest < 0 or highest >= num_classes:
        seen = lowest if lowest < 0 else highest
        raise ValueError(f"`targets_B` must lie in 0..{num_classes - 1}; got {seen}. Renumber or drop such rows.")
    return classes_B


def check_labels(targets_B: Tensor, probs_BK: Tensor) -> Tensor:
    """Require integer classes, or soft labels: a distribution over the classes for each row.

    Args:
        targets_B: Classes, shape (B,), or probabilities of them, shape (B, K).
        probs_BK: The checked probabilities they are compared with.

    Returns:
        The classes as int64 (B,), or the soft labels (B, K).

    Raises:
        TypeError: If they are neither integers nor of the shape of ``probs_BK``.
        ValueError: If shape, device or range does not fit ``probs_BK``.
    """
    soft = isinstance(targets_B, Tensor) and targets_B.is_floating_point() and targets_B.shape == probs_BK.shape
    if not soft:
        return check_targets(targets_B, probs_BK)
    check_probs("targets_B", targets_B, 2)
    check_device("targets_B", targets_B, probs_BK)
    return targets_B


def weighted_mean(values_B: Tensor, weights_B: Tensor | None) -> Tensor:
    r"""Return $\sum_b w_b v_b / \sum_b w_b$ in float64, the plain mean if None; weight 0 has no effect.

    Args:
        values_B: Values, any shape.
        weights_B: How often each counts, the same shape, or None.

    Raises:
        TypeError: If values or weights are not tensors.
        ValueError: If their shapes differ, a weight is negative or not finite, or all are zero.
    """
    check_tensor(values_B=values_B)
    if weights_B is None:
        return values_B.double().mean()
    weights_B = check_weights(weights_B, values_B)
    return torch.where(weights_B == 0, 0.0, weights_B * values_B.double()).sum() / weights_B.sum()


def check_weights(weights_B: Tensor, values_B: Tensor, name: str = "weights_B") -> Tensor:
    """Require weights of points, and return them in float64.

    Args:
        weights_B: How often each point counts.
        values_B: The points, of the same shape.
        name: Of the weights.

    Returns:
        The weights, float64.

    Raises:
        TypeError: If they are not a tensor.
        ValueError: If their shape differs, one is negative or not finite, or all are zero.
    """
    if not isinstance(weights_B, Tensor):
        raise TypeError(f"`{name}` must be a torch tensor; got {type(weights_B).__name__}. Use torch.as_tensor.")
    check_same_shape(name, weights_B, "values", values_B)
    weights_B = weights_B.double()
    lowest, total = torch.stack([weights_B.min(), weights_B.sum()]).tolist()
    if not (lowest >= 0 and 0 < total < math.inf):
        raise ValueError(
            f"`{name}` must be finite, at least 0 and not all 0; got a smallest of {lowest:.4g} and a sum of "
            f"{total:.4g}. Leave out rows that do not count."
        )
    return weights_B


def check_same_shape(name: str, values: Tensor, other_name: str, other: Tensor) -> None:
    """Require two tensors of one shape on one device, so that nothing broadcasts by accident.

    Args:
        name: Name of the first argument.
        values: The first tensor.
        other_name: Name of the second argument.
        other: The second tensor.

    Raises:
        TypeError: If one is not a tensor.
        ValueError: If shapes or devices differ.
    """
    for argument, tensor in ((name, values), (other_name, other)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"`{argument}` must be a torch tensor; got {type(tensor).__name__}. Use torch.as_tensor.")
    if values.shape != other.shape:
        raise ValueError(
            f"`{name}` and `{other_name}` must have the same shape; "
            f"got {tuple(values.shape)} and {tuple(other.shape)}. Reshape or index one of them."
        )
    check_device(name, values, other)


def check_device(name: str, values: Tensor, other: Tensor) -> None:
    """Require two tensors on one device.

    Args:
        name: Name of the first argument.
        values: The first tensor.
        other: The tensor whose device is right.

    Raises:
        ValueError: If the devices differ.
    """
    if values.device != other.device:
        raise ValueError(
            f"`{name}` is on {values.device}, the rest on {other.device}. Move it with .to('{other.device}')."
        )


def check_bins(bins: int) -> None:
    """Require a positive whole number of bins.

    Args:
        bins: Number of bins.

    Raises:
        ValueError: If ``bins`` is not a positive whole number, or so many do not fit in memory.
    """
    check_counts(bins=bins)
    check_memory(_BIN * bins, "the bins", bins=bins)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Require one of a few words.

    Args:
        name: Name of the argument.
        value: The word given.
        choices: The words allowed.

    Raises:
        ValueError: If ``value`` is not one of ``choices``.
    """
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def _check_layout(name: str, values: Tensor, ndim: int | None) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(f"`{name}` must be a torch tensor; got {type(values).__name__}. Use torch.as_tensor.")
    if values.dtype not in {torch.float32, torch.float64}:
        raise TypeError(f"`{name}` must be float32 or float64; got {values.dtype}. Convert with .float().")
    if ndim is not None and values.ndim != ndim:
        axes = "axis" if ndim == 1 else "axes"
        raise ValueError(f"`{name}` must have {ndim} {axes}; got shape {tuple(values.shape)}. Reshape or index it.")
    if values.numel() == 0:
        raise ValueError(f"`{name}` is empty: shape {tuple(values.shape)}. Pass at least one value.")

"""Checks shared by the metrics: each reads its tensor once and, on valid input, synchronises with the device once.

Messages say what is wrong, the value seen and what to do.
"""

import math

import torch
from torch import Tensor

from torchbayes.checks import check_counts, check_memory, check_tensor

SUM_TOLERANCE = 1e-3
_BIN = 32  # bytes: an edge, a count and two means


def check_float(name: str, values: Tensor, ndim: int | None = None, *, finite: bool = True) -> None:
    """Require a non-empty float32 or float64 tensor of ``ndim`` axes without NaN (nor infinities, if ``finite``)."""
    _check_layout(name, values, ndim)
    bad = ~torch.isfinite(values) if finite else torch.isnan(values)
    if bad.any():
        fault = "NaN or infinite values" if finite else "NaN"
        raise ValueError(
            f"`{name}` holds {fault}: {int(bad.sum())} of {values.numel()}. Find the inputs or weights that made them."
        )


def check_probs(name: str, probs: Tensor, ndim: int | None = None) -> None:
    """Require probabilities over the last axis, of ``ndim`` axes: not below zero, summing to one within 1e-3."""
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
    """Require integer classes in 0..K-1, one for each row, and return them as int64: uint8 would act as a mask."""
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
    """Check and return classes as int64 (B,), or soft labels (B, K): a distribution over classes for each row."""
    soft = isinstance(targets_B, Tensor) and targets_B.is_floating_point() and targets_B.shape == probs_BK.shape
    if not soft:
        return check_targets(targets_B, probs_BK)
    check_probs("targets_B", targets_B, 2)
    check_device("targets_B", targets_B, probs_BK)
    return targets_B


def weighted_mean(values_B: Tensor, weights_B: Tensor | None) -> Tensor:
    r"""Return $\sum_b w_b v_b / \sum_b w_b$ in float64, the plain mean without weights; weight 0 has no effect.

    Args:
        values_B: values, any shape.
        weights_B: how often each counts, the same shape, or None.

    Raises:
        TypeError: if values or weights are not tensors.
        ValueError: if their shapes differ, a weight is negative or not finite, or all are zero.
    """
    check_tensor(values_B=values_B)
    if weights_B is None:
        return values_B.double().mean()
    weights_B = check_weights(weights_B, values_B)
    return torch.where(weights_B == 0, 0.0, weights_B * values_B.double()).sum() / weights_B.sum()


def check_weights(weights_B: Tensor, values_B: Tensor, name: str = "weights_B") -> Tensor:
    """Require weights of points, of their shape, finite, at least 0 and not all 0, and return them in float64."""
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
    """Require two tensors of one shape on one device, so that nothing broadcasts by accident."""
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
    """Require two tensors on one device."""
    if values.device != other.device:
        raise ValueError(
            f"`{name}` is on {values.device}, the rest on {other.device}. Move it with .to('{other.device}')."
        )


def check_bins(bins: int) -> None:
    """Require a positive whole number of bins that fit in memory."""
    check_counts(bins=bins)
    check_memory(_BIN * bins, "the bins", bins=bins)


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

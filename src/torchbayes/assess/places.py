"""The places of a classification: one averaged distribution over classes each, with its label and its weight.

A row has one place, or several: tokens of a sequence, pixels of an image, or several binary labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributions

from torchbayes.model.likelihoods.protocol import Counted
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import class_probs

NO_ROW = "no row counts: all are ignored, or have weight 0."


def is_binary(predictive: Predictive) -> bool:
    """Return whether there is one probability per place: that of a 1."""
    return isinstance(predictive.distribution, distributions.Bernoulli)


def class_places(predictive: Predictive, judged: Counted | None) -> tuple[Tensor, Tensor]:
    """Return averaged probabilities (P, K) of all places of all rows, and how often each counts (P,)."""
    probs = class_probs(predictive.distribution)
    rows, probs = len(probs), probs.flatten(0, -2)
    weights = judged.weights if judged else None
    if weights is None:
        weights = probs.new_ones(rows)
    return probs, weights.flatten() if weights.ndim > 1 else weights.repeat_interleave(len(probs) // rows)


def class_labels(targets: Any, probs: Tensor, kept: Tensor, *, binary: bool) -> Tensor | None:
    """Return labels (P,) of P places with probabilities (P, K), or soft ones (P, K); None if targets are neither."""
    if not isinstance(targets, Tensor):
        return None
    if binary and targets.is_floating_point() and targets.numel() == len(probs):
        targets = torch.stack([1 - targets.flatten(), targets.flatten()], dim=-1)
    if targets.is_floating_point():
        return targets.reshape(probs.shape).to(probs) if targets.numel() == probs.numel() else None
    flat = targets.flatten()
    inside = len(flat) == len(probs) and ((flat >= 0) & (flat < probs.shape[-1]) | ~kept).all()
    return flat.long() if inside else None

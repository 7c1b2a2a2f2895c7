"""Held-out rows of a classification: averaged log probabilities, what happened, and how often each row counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchbayes.assess.places import NO_ROW, class_labels, class_places, is_binary
from torchbayes.checks import check_kind, seen
from torchbayes.model.batches.batch import tensors_of
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.predictive.average import Predictive

LEAST = math.log(torch.finfo(torch.float32).tiny)
"""Smallest log probability that calibrators distinguish, that of the smallest normal float32."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that count, on the CPU in float64.

    Attributes:
        log_probs_BK: averaged log probabilities, at least `LEAST` for what happened; −∞ where another class has
            probability 0.
        shares_BK: the share of each class in what happened: one-hot, or a soft label.
        weights_B: how often each row counts, above 0.
    """

    log_probs_BK: Tensor
    shares_BK: Tensor
    weights_B: Tensor

    @property
    def classes(self) -> int:
        """K."""
        return self.log_probs_BK.shape[1]

    @cached_property
    def count(self) -> float:
        """The number of rows, each counted as often as its weight says."""
        return float(self.weights_B.sum())

    @property
    def is_soft(self) -> bool:
        """Whether a row has a share in more than one class."""
        return bool((self.shares_BK.amax(1) < 1).any())

    @property
    def labels_B(self) -> Tensor:
        """The class with the largest share."""
        return self.shares_BK.argmax(1)

    def loss(self, log_probs_BK: Tensor) -> float:
        """Return the mean of −Σ_k q_k log p_k over rows, in nats."""
        loss_B = -torch.where(self.shares_BK == 0, 0.0, self.shares_BK * log_probs_BK).sum(1)
        return float(self.weights_B @ loss_B) / self.count

    def accuracy(self, log_probs_BK: Tensor) -> float:
        """Return the weighted share of rows whose most probable class is what happened."""
        return self.share(log_probs_BK.argmax(1) == self.labels_B)

    def share(self, chosen_B: Tensor) -> float:
        """Return the weighted share of some rows."""
        return float(self.weights_B @ chosen_B.double()) / self.count


def rows_of(predictive: Predictive, targets: Any) -> Rows:
    """Return the rows that count of a predictive and its targets, as `evaluate` takes them.

    A TypeError if the predictive or targets are not over classes; a ValueError if targets do not fit the likelihood.
    """
    check_kind(Predictive, "a Predictive", predictive=predictive)
    if not tensors_of(targets):
        raise TypeError(f"`targets` must be a tensor, as the likelihood takes it; got {seen(targets)}.")
    judged = scored(predictive.likelihood, predictive.outputs_SBK[0], targets)
    judged.likelihood.check(predictive.outputs_SBK[0], judged.targets)
    probs, weights = class_places(predictive, judged)
    counting = weights > 0
    classes = class_labels(judged.targets, probs, counting, binary=is_binary(predictive))
    if classes is None:
        raise TypeError(f"`targets` must be class labels, or soft ones; got {seen(targets)}. Use a Categorical.")
    probs, classes = probs[counting], classes[counting]
    shares = classes if classes.is_floating_point() else functional.one_hot(classes, probs.shape[-1])
    probs, shares, weights = (t.detach().double().cpu() for t in (probs, shares, weights[counting]))
    # A target of probability 0 may be an underflow. Any other class of probability 0 keeps it.
    logs = probs.log()
    return Rows(torch.where(shares > 0, logs.clamp_min(LEAST), logs), shares, weights)


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts; a ValueError if there is none."""
    if not parts:
        raise ValueError("the data are empty: there are no rows to calibrate on.")
    names = ("log_probs_BK", "shares_BK", "weights_B")
    rows = Rows(*(torch.cat([getattr(each, name) for each in parts]) for name in names))
    if not len(rows.weights_B):
        raise ValueError(NO_ROW)
    return rows

"""Categorical: class labels, with class weights, ignored labels, soft labels and label smoothing.

With counts c_k of the classes at one place, log p = Σ_k c_k log softmax(f)_k. A label y has c_k = w_k [k = y], and soft
labels q have c_k = w_k q_k. Smoothing puts (1 − ε) q + ε / K in the place of q, and an ignored place has c = 0, as in
`torch.nn.functional.cross_entropy` with the same settings. The curvature is Σ_k c_k (diag(p) − p pᵀ).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.checks import check_each, check_not_negative, check_share, is_whole, plain, seen
from torchbayes.model.likelihoods.protocol import NONE, Counted, Likelihood, Listed, Parameters, counted, log_mean_exp
from torchbayes.model.likelihoods.shapes import check_tensor, per_datum

_SUM = 1e-3  # how far from one the sum of soft labels may be: half precision is that coarse


@dataclass(frozen=True)
class Categorical(Likelihood):
    """y ~ Categorical(softmax(f)): classification, targets int64 in 0..K−1, outputs are logits (..., B, K).

    Targets of the outputs' shape in floating point are soft labels: a distribution over the classes for each row.

    Attributes:
        weights: how often an observation of each class counts in the fit, K numbers >= 0; once if None. Metrics ignore
            them; for weights of rows see `Weighted`.
        ignore_index: label of places that fits and metrics ignore; every label is a class if None.
        label_smoothing: ε in [0, 1), share of each label that is spread over all classes in the fit.
        class_axis: axis of the classes in the network's result: -1, or 1 if it returns (B, K, H, W), as
            `torch.nn.functional.cross_entropy` takes it. The model moves it to the end; outputs everywhere else have it
            last.
    """

    listed: ClassVar = Listed(
        "categorical",
        "one of K classes, whose log odds are the outputs (weights, label_smoothing, ignore_index)",
        "classification",
        lambda data: data.num_classes,
    )

    weights: tuple[float, ...] | None = None
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    class_axis: int = field(default=-1, repr=False)

    def __post_init__(self) -> None:
        plain(self)
        if self.weights is not None:
            check_each(check_not_negative, weights=self.weights)
            if not any(self.weights):
                raise ValueError(f"`weights` must be above 0 for a class at least; got {self.weights}.")
        if self.ignore_index is not None and not is_whole(self.ignore_index):
            raise ValueError(f"`ignore_index` must be a whole number, such as -100; got {seen(self.ignore_index)}.")
        check_share(label_smoothing=self.label_smoothing)
        if not is_whole(self.class_axis) or self.class_axis not in {1, -1}:
            raise ValueError(f"`class_axis` must be -1, the last axis, or 1; got {self.class_axis!r}.")

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return Categorical(logits=f)."""
        return distributions.Categorical(logits=outputs, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return Σ_k c_k (f_k − log Σ_j e^{f_j}), summed over further target axes."""
        log_p = outputs.log_softmax(-1)
        if targets.is_floating_point() or self.label_smoothing:
            counts, event = _counts(self, outputs, targets), int(targets.is_floating_point())
            return per_datum(torch.where(counts == 0, 0.0, counts * log_p).sum(-1), targets, event=event)
        index = _labels(self, targets).expand(outputs.shape[:-1]).unsqueeze(-1)
        values = log_p.gather(-1, index).squeeze(-1)
        if not _plain(self):
            weights = _weights(self, outputs, targets)
            values = torch.where(weights == 0, 0.0, weights * values)
        return per_datum(values, targets)

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Check shape, dtype and range of class labels, or of soft labels, and the number of weights."""
        classes = outputs.shape[-1]
        if classes < 2:
            raise ValueError(
                f"Categorical needs one output per class, at least 2; the network gives {classes}. "
                f"For two classes with one output use likelihoods.Bernoulli()."
            )
        if self.weights is not None and len(self.weights) != classes:
            raise ValueError(f"`weights` must have one number per class, {classes}; got {len(self.weights)}.")
        check_tensor(targets)
        if targets.is_floating_point() and targets.shape == outputs.shape:
            _check_soft(targets)
        else:
            _check_labels(targets, outputs.shape[:-1], classes, ignored=self.ignore_index)

    def counted(self, outputs: Tensor, targets: Tensor) -> Counted:
        """Return labels weighted by class, or soft labels proportional to c, weighted by its sum."""
        soft = targets.is_floating_point()
        if not soft and not self.label_smoothing:
            return Counted(_PLAIN, _labels(self, targets), None if _plain(self) else _weights(self, outputs, targets))
        counts = _counts(self, outputs, targets)
        total = counts.sum(-1)
        labels = torch.where(total == 0, 1.0, counts.movedim(-1, 0)) / torch.where(total == 0, counts.shape[-1], total)
        return Counted(_PLAIN, labels.movedim(0, -1), total)

    def scored(self, outputs: Tensor, targets: Tensor) -> Counted:
        """Return the labels, with weight 0 where they are ignored."""
        judge = Categorical(ignore_index=self.ignore_index)
        if self.ignore_index is None or targets.is_floating_point():
            return Counted(judge, targets)
        return Counted(judge, targets, (targets != self.ignore_index).to(outputs.dtype))

    def average_log_prob(self, outputs_SBK: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return the log probability under the average; for soft labels of rows with one place, Σ_k q_k log p̄_k."""
        if targets.is_floating_point() and targets.ndim == 2:
            outputs_SBK = log_mean_exp(outputs_SBK.log_softmax(-1)).unsqueeze(0)
        return log_mean_exp(self.log_prob(outputs_SBK, targets, parameters))

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of diag(p) − p pᵀ of every place, (R, B, ..., K)."""
        return _places_apart(outputs)

    def score_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return q − p, and for soft labels columns of the covariance of labels drawn from q, diag(q) − q qᵀ."""
        if targets.is_floating_point():
            mean = targets - outputs.softmax(-1)
            return torch.cat([mean.unsqueeze(0), _places_apart(targets.log())])
        label = torch.zeros_like(outputs).scatter_(-1, targets.unsqueeze(-1), 1.0)
        return (label - outputs.softmax(-1)).unsqueeze(0)


_PLAIN = Categorical()


def _plain(likelihood: Categorical) -> bool:
    """Return whether every label counts once."""
    return likelihood.weights is None and likelihood.ignore_index is None and not likelihood.label_smoothing


def _labels(likelihood: Categorical, targets: Tensor) -> Tensor:
    """Return labels with ignored ones replaced by class 0."""
    return targets if likelihood.ignore_index is None else targets.masked_fill(targets == likelihood.ignore_index, 0)


def _weights(likelihood: Categorical, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return how often each label counts, of the targets' shape."""
    class_weights = likelihood.weights
    weights = outputs.new_ones(outputs.shape[-1]) if class_weights is None else outputs.new_tensor(class_weights)
    label_weights = weights[_labels(likelihood, targets)]
    ignored = likelihood.ignore_index
    return label_weights if ignored is None else label_weights.masked_fill(targets == ignored, 0.0)


def _counts(likelihood: Categorical, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return c, (B, ..., K)."""
    classes, soft, counts = outputs.shape[-1], targets.is_floating_point(), targets
    if not soft:
        counts = (targets.unsqueeze(-1) == torch.arange(classes, device=targets.device)).to(outputs.dtype)
    if likelihood.label_smoothing:
        counts = (1 - likelihood.label_smoothing) * counts + likelihood.label_smoothing / classes
    if likelihood.weights is not None:
        counts = counts * outputs.new_tensor(likelihood.weights)
    if likelihood.ignore_index is not None and not soft:
        counts = counts.masked_fill((targets == likelihood.ignore_index).unsqueeze(-1), 0.0)
    return counts


def _check_labels(targets: Tensor, shape: Sequence[int], classes: int, *, ignored: int | None) -> None:
    """Raise ValueError if the shape does not match or a label is not in 0..K−1, TypeError if labels are not int64."""
    if targets.dtype != torch.int64:
        raise TypeError(
            f"class labels must be int64; got {targets.dtype}. Use targets.long(), or soft labels of the shape of the "
            f"outputs, {(*shape, classes)}."
        )
    if targets.shape != shape:
        outputs = (*shape, classes)
        do = ""
        if targets.shape == (*shape[:1], *outputs[2:]):
            do = ": for classes on axis 1 use Categorical(class_axis=1)"
        elif targets.shape == outputs:
            do = ": of one-hot labels use targets.argmax(-1)"
        elif targets.shape == (*shape, 1):
            do = ": use targets.squeeze(-1)"
        raise ValueError(
            f"class labels must have shape {tuple(shape)}; got {tuple(targets.shape)}. The last axis of the outputs, "
            f"{outputs}, is that of the classes{do}."
        )
    counted_labels = targets if ignored is None else targets[targets != ignored]
    low, high = (int(counted_labels.min()), int(counted_labels.max())) if counted_labels.numel() else (0, 0)
    if low < 0 or high >= classes:
        bad = low if low < 0 else high
        raise ValueError(
            f"class labels must lie in 0..{classes - 1}, as the network has {classes} outputs; got {bad}. Relabel the "
            f"targets or widen the last layer; to leave such places out, use Categorical(ignore_index={bad})."
        )


def _check_soft(targets: Tensor) -> None:
    """Raise ValueError if a soft label is negative or not finite, or a row does not sum to one."""
    sums = targets.sum(-1)
    if not (targets >= 0).all() or not ((sums - 1).abs() <= _SUM).all():
        far = sums.flatten()[(sums - 1).abs().nan_to_num(nan=torch.inf).argmax()]
        raise ValueError(
            f"soft labels must be at least 0 and sum to 1 over the classes; got a smallest of {float(targets.min()):g} "
            f"and a sum of {float(far):g}. Divide by the sums; weights of rows are likelihoods.Weighted."
        )


def _places_apart(logits: Tensor) -> Tensor:
    """Return columns of diag(p) − p pᵀ of every place of a row, each zero at the other places."""
    if logits.ndim == 2:
        return categorical_root(logits)
    columns = categorical_root(logits.flatten(0, -2)).unflatten(1, logits.shape[:-1])  # (K−1, B, ..., K)
    places = columns.flatten(2, -2)  # (K−1, B, T, K)
    apart = torch.diag_embed(places.movedim(2, -1)).permute(4, 0, 1, 3, 2)
    return apart.flatten(0, 1).reshape(-1, *logits.shape)


def check_possible(likelihood: Likelihood, outputs: Tensor, targets: Any) -> None:
    """Raise ValueError if a label that counts is a masked class, whose logit is −∞ whatever the weights.

    Likelihoods other than Categorical are not checked.
    """
    plain, labels, weights = counted(likelihood, outputs, targets)
    if type(plain) is not Categorical or not bool((lost := outputs.isneginf()).any()):
        return
    if labels.is_floating_point():
        impossible = (lost & (labels > 0)).any(-1)
    else:
        impossible = lost.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if weights is not None:
        impossible = impossible & (weights.view(*weights.shape, *[1] * (impossible.ndim - weights.ndim)) > 0)
    if impossible.any():
        row = int(impossible.reshape(len(impossible), -1).any(1).nonzero()[0])
        raise ValueError(
            f"the label of row {row} is a class whose logit is -inf there, so that no weights make it likely; so are "
            f"{int(impossible.sum())} of {impossible.numel()} labels. Leave out such rows or the mask; label smoothing "
            f"gives every class a share, so it does not go with masked ones."
        )


def categorical_root(outputs_BK: Tensor) -> Tensor:
    """Return K − 1 columns, (K − 1, B, K), whose outer products sum to diag(p) − p pᵀ: its Cholesky factor.

    With p = softmax(f) and tails q_j = Σ_{k > j} p_k, column j is (Tanabe and Sagae 1992)

        √(p_j q_j / q_{j−1}) at j,    −p_i √(p_j / (q_j q_{j−1})) below
    """
    log_p = outputs_BK.log_softmax(-1)
    # tails in log space: one minus a sum of probabilities would lose all digits of a confident prediction
    tails = torch.logcumsumexp(log_p.flip(-1), dim=-1).flip(-1)  # log q_{j−1}, with q_{−1} = 1
    log_pj, log_before, log_after = log_p[:, :-1], tails[:, :-1], tails[:, 1:]
    nothing = log_p.new_tensor(-torch.inf)  # a class whose logit is −∞ has no curvature
    diagonal = torch.where(log_before.isfinite(), 0.5 * (log_pj + log_after - log_before), nothing).exp()
    factor = torch.where(log_after.isfinite(), 0.5 * (log_pj - log_after - log_before), nothing)
    below = -(log_p.unsqueeze(1) + factor.unsqueeze(-1)).exp()  # (B, K−1, K)
    return (below.triu(1) + F.pad(torch.diag_embed(diagonal), (0, 1))).transpose(0, 1)

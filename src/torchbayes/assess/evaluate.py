"""evaluate: one pass over data, every metric that applies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributions
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from torchbayes import metrics
from torchbayes.assess.evaluation import Evaluation, Scores
from torchbayes.assess.numbers import number_metrics, number_terms, scored_columns
from torchbayes.assess.places import NO_ROW, class_labels, class_places, is_binary
from torchbayes.calls import explained
from torchbayes.checks import check_counts, check_kind, check_positive, seen
from torchbayes.metrics._checks import check_probs, check_same_shape
from torchbayes.metrics.scoring import hits
from torchbayes.model.batches.batch import Batch, check_alike, padded
from torchbayes.model.likelihoods.protocol import Counted, scored
from torchbayes.model.likelihoods.quantiles import is_discrete
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Source, as_source, predict, stream

_ROWS = 1024


@dataclass
class _Columns:
    """Per-row results, gathered batch by batch."""

    parts: dict[str, list[Any]] = field(default_factory=dict)  # name -> results of each batch
    padding: int | None = None  # label that pads targets to equal length
    is_density: bool = True  # whether log probabilities are densities, whose value depends on the units of the targets
    rows: int = 0  # number of rows, including those that are left out

    def add(self, kept: Tensor | None = None, **columns: Any) -> None:
        for name, column in columns.items():
            if column is None:
                continue
            values = pytree.tree_map(lambda t: (t if kept is None else t[kept]).cpu(), column)
            self.parts.setdefault(name, []).append(values)
            if name != "targets" or self.padding is None:
                check_alike(self.parts[name][0], values, name)

    def joined(self) -> dict[str, Any]:
        if self.padding is not None:
            self.parts["targets"] = padded(self.parts["targets"], self.padding)
        return {
            name: pytree.tree_map(lambda *tensors: torch.cat(tensors), *parts) for name, parts in self.parts.items()
        }


@undisturbed
@explained()
def evaluate(
    posterior: Posterior | Functions | Source | Predictive,
    data: Any,
    *,
    draws: int | None = None,
    seed: int = 0,
    target_scale: float = 1.0,
    chunk_size: int = _ROWS,
) -> Evaluation:
    """Score a Bayesian model average on data with targets.

    Args:
        posterior: a posterior, functions drawn from one, a `Linearised` one, or a `Predictive` already made.
        data: (inputs, targets), a Dataset, a DataLoader or an iterable of batches; the targets alone for a
            Predictive, aligned with the outputs: those of a causal language model moved as `Predictive.log_prob`
            says.
        draws: S, a multiple of the members; the posterior's default if None, and for a Laplace posterior the closed
            form of `Linearised`.
        seed: seed of the draws.
        target_scale: units of the targets per unit that the model sees: the standard deviation, if a regression was
            fitted on standardised targets. RMSE is multiplied by it, and log densities are per original unit.
        chunk_size: rows that go through a network at once.

    Returns:
        The evaluation; memory grows with N · K, not with S · N · K. Targets of batches of different lengths are
        padded with the label that the likelihood ignores.

    Raises:
        ValueError: if there are no rows, targets do not fit the likelihood, or rows differ in shape from batch to
            batch and the likelihood ignores no label.
    """
    check_positive(target_scale=target_scale)
    columns = _Columns()
    for predictive, targets in predictives(posterior, data, draws=draws, seed=seed, chunk_size=chunk_size):
        _add_rows(columns, predictive, targets)
    if not columns.parts:
        raise ValueError("the data are empty: there are no rows to evaluate.")
    rows = columns.joined()
    if not len(rows["log_prob"]):
        raise ValueError(NO_ROW)
    weights = _unequal(rows["weights"])
    scores_by_name = {"nll": float(metrics.nll(rows["log_prob"], weights_B=weights))}
    terms = {"nll": -rows["log_prob"].double()}
    if "mean" in rows and columns.is_density:
        scores_by_name["nll"] += (log_scale := math.log(target_scale) * rows["mean"][0].numel())
        terms["nll"] += log_scale
    labels: dict[str, Tensor | None] = {}
    # Labels of all batches or none: what is not a label in one batch is not one in the others.
    if "labels" in rows and len(rows["labels"]) == len(rows["probs"]):
        scores_by_name |= _class_metrics(rows)
        labels = {"labels": rows["labels"], "label_weights": _unequal(rows["label_weights"])}
        labels["label_rows"] = torch.searchsorted(rows["row"], rows["label_row"])
    if "numbers" in rows and len(rows["numbers"]) == len(rows["mean"]) and rows["mean"].isfinite().all():
        numbers = number_terms(rows, target_scale)
        scores_by_name |= number_metrics(numbers, weights=weights)
        terms |= numbers
        labels["pit"] = rows.get("pit")
    scores = Scores(*(rows[n] for n in Scores.__annotations__)) if "entropy" in rows else None
    parts = (rows.get("probs"), scores, rows.get("mean"), rows.get("scale"), weights)
    return Evaluation(scores_by_name, rows["log_prob"], rows["targets"], *parts, **labels, terms=terms)


def _add_rows(columns: _Columns, predictive: Predictive, targets: Any) -> None:
    """Add the results of a batch: of the rows, and the places of rows, that count."""
    judged = scored(predictive.likelihood, predictive.outputs_SBK[0], targets)
    judged.likelihood.check(predictive.outputs_SBK[0], judged.targets)
    log_prob = predictive.log_prob(targets)
    weights = torch.ones_like(log_prob) if judged.row_weights is None else judged.row_weights.to(log_prob)
    counting = weights > 0
    columns.padding = getattr(judged.likelihood, "ignore_index", None)
    columns.rows += len(counting)
    row = torch.arange(columns.rows - len(counting), columns.rows, device=counting.device)
    columns.add(counting, targets=judged.targets, log_prob=log_prob, weights=weights, row=row)
    kind = predictive.distribution
    if isinstance(kind, distributions.Categorical | distributions.Bernoulli):
        _add_scores(columns, predictive, judged, row)
    elif not kind.event_shape:
        columns.is_density = not is_discrete(kind)
        with suppress(NotImplementedError):  # the distribution has no mean or cannot be sampled
            columns.add(counting, **scored_columns(predictive, judged.targets))


@undisturbed
@explained()
def uncertainty(
    posterior: Posterior | Functions | Source,
    inputs: Any,
    *,
    draws: int | None = None,
    seed: int = 0,
    chunk_size: int = _ROWS,
) -> Scores:
    """Return how uncertain a classifier's model average is at inputs without targets.

    Args:
        posterior: a posterior, functions drawn from one, or a `Linearised` one.
        inputs: tensor (N, ...), or a tuple or mapping of such.
        draws: S, a multiple of the members; the posterior's default if None.
        seed: seed of the draws.
        chunk_size: rows that go through a network at once.

    Returns:
        The scores, each (N,).
    """
    columns = _Columns()
    _add_scores(columns, predict(posterior, inputs, draws=draws, seed=seed, chunk_size=chunk_size))
    return Scores(*(columns.joined()[n] for n in Scores.__annotations__))


def detection(inside: Scores, outside: Scores) -> dict[str, float]:
    """Return how well uncertainty detects out-of-distribution inputs.

    Args:
        inside: scores on data like the training data.
        outside: scores on other data.

    Returns:
        `auroc_SCORE`, `aupr_SCORE` (outside is positive, "AUPR-Out") and `fpr95_SCORE` (inside is positive: the
        share of the outside accepted where 95 % of the inside are, as in Liang et al. 2018) for the scores entropy,
        mutual_information and confidence (negated). Mutual information of a single function is constant and left
        out.
    """
    check_kind(Scores, "scores, as `uncertainty` gives them", inside=inside, outside=outside)
    scores = {}
    for name in Scores.__annotations__:
        sign = -1.0 if name == "confidence" else 1.0
        a, b = sign * getattr(inside, name), sign * getattr(outside, name)
        if a.max() == a.min() == b.max() == b.min():
            continue
        for metric in (metrics.auroc, metrics.aupr, metrics.fpr95):
            scores[f"{metric.__name__}_{name}"] = float(metric(a, b))
    return scores


def fidelity(probs_NK: Tensor, reference_NK: Tensor) -> dict[str, float]:
    """Return agreement and total variation of two model averages on the same rows (Wilson et al. 2022).

    Args:
        probs_NK: class probabilities of one.
        reference_NK: class probabilities of the reference, such as HMC.

    Returns:
        `agreement` (share of equal argmax) and `total_variation` (mean of half the absolute differences).
    """
    check_probs("probs_NK", probs_NK, 2)
    check_probs("reference_NK", reference_NK, 2)
    check_same_shape("probs_NK", probs_NK, "reference_NK", reference_NK)
    return {
        "agreement": float(metrics.agreement(probs_NK, reference_NK)),
        "total_variation": float(metrics.total_variation(probs_NK, reference_NK)),
    }


def predictives(
    posterior: Posterior | Functions | Source | Predictive,
    data: Any,
    *,
    draws: int | None = None,
    seed: int = 0,
    chunk_size: int = _ROWS,
) -> Iterator[tuple[Predictive, Any]]:
    """Yield the predictive and the targets of each batch of data, or a Predictive that is given with its targets."""
    check_counts(chunk_size=chunk_size)
    if isinstance(posterior, Predictive):
        yield posterior, data
        return
    source = as_source(posterior, draws, seed)
    for predictive, targets in stream(source, batches(source.model, data), chunk_size=chunk_size):
        if targets is None:
            raise TypeError("the data have no targets to score by: give (inputs, targets), or use `predict`.")
        yield predictive, targets


def batches(model: Model, data: Any) -> Iterable[Any]:
    """Return batches of (inputs, targets), a mapping, a Dataset, a DataLoader or an iterable; rows are in order."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | Mapping):
        rows = model.unpack(data)
        size = max(rows.size, 1) if model.coupled else _ROWS
        return (rows.map(lambda t, s=s: t[s : s + size]) for s in range(0, rows.size, size))
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=_ROWS)
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise TypeError(
            f"`data` must be a tuple (inputs, targets), a Dataset, a DataLoader or an iterable of batches; got "
            f"{seen(data)}."
        )
    return data


def unpacked(model: Model, data: Any) -> Iterator[Batch]:
    """Yield what `batches` gives as batches of the model."""
    return (item if isinstance(item, Batch) else model.unpack(item) for item in batches(model, data))


def _add_scores(
    columns: _Columns, predictive: Predictive, judged: Counted | None = None, row: Tensor | None = None
) -> None:
    """Add class probabilities and uncertainties of every place; with targets, only of places that count."""
    probs, weights = class_places(predictive, judged)
    counting = weights > 0
    if judged and row is not None:
        classes = class_labels(judged.targets, probs, counting, binary=is_binary(predictive))
        label_row = row.repeat_interleave(len(probs) // len(row))
        columns.add(counting, label_weights=weights, label_row=label_row, labels=classes)
    columns.add(
        counting,
        probs=probs,
        confidence=probs.amax(-1),
        entropy=predictive.entropy.flatten(),
        mutual_information=predictive.mutual_information.flatten(),
    )


def _unequal(weights: Tensor) -> Tensor | None:
    """Return weights; None if each counts once."""
    return None if (weights == 1).all() else weights


def _class_metrics(rows: dict[str, Any]) -> dict[str, float]:
    probs, labels, weights = rows["probs"], rows["labels"], _unequal(rows["label_weights"])
    scores = (metrics.accuracy, metrics.brier, metrics.ece, metrics.ece_mass)
    values = {score.__name__: float(score(probs, labels, weights_B=weights)) for score in scores}
    means = ("entropy", "mutual_information")
    values |= {name: float(metrics.weighted_mean(rows[name], weights)) for name in means}
    loss = 1 - hits(probs, labels)
    return values | {"aurc": float(metrics.risk_coverage(loss, -rows["confidence"].double(), weights_B=weights).aurc)}

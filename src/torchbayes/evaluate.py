"""evaluate: one pass over data, every metric that applies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributions
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from torchbayes import metrics
from torchbayes.metrics.temperature import fit_temperature
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.model import Model
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive import Predictive, Source, as_source, predict, stream

_ROWS = 1024


@dataclass(frozen=True)
class Scores:
    """How uncertain a classifier is at N inputs; the larger the further out, so `confidence` enters negated.

    Attributes:
        entropy: total predictive entropy (N,), in nats.
        mutual_information: what the draws disagree about (N,), in nats.
        confidence: largest averaged probability (N,).
    """

    entropy: Tensor
    mutual_information: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a predictive on data with targets, and what they were computed from.

    Attributes:
        metrics: name -> value. Classification: accuracy, nll, brier, ece (15 equal-width bins), ece_mass (20
            equal-mass bins), entropy, mutual_information. Regression: nll (of the mixture), nll_gaussian (of the
            Gaussian with its first two moments), rmse, coverage (of the central 95 % interval). Others: nll.
        log_prob: log probability of each target under the average (N,), in nats.
        targets: (N, ...).
        probs: averaged class probabilities (N, K), or None.
        scores: how uncertain each input is, or None.
        mean: predictive mean (N, K') of a regression, or None.
        scale: predictive standard deviation (N, K') of a regression, or None.
    """

    metrics: dict[str, float]
    log_prob: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    probs: Tensor | None = field(default=None, repr=False)
    scores: Scores | None = field(default=None, repr=False)
    mean: Tensor | None = field(default=None, repr=False)
    scale: Tensor | None = field(default=None, repr=False)


@dataclass
class _Columns:
    """Per-row results, gathered batch by batch."""

    parts: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, **columns: Tensor) -> None:
        for name, column in columns.items():
            self.parts.setdefault(name, []).append(column.cpu())

    def joined(self) -> dict[str, Tensor]:
        return {name: torch.cat(parts) for name, parts in self.parts.items()}


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
        data: (inputs, targets), a Dataset, a DataLoader or an iterable of batches; the targets alone for a Predictive.
        draws: S, a multiple of the members; the posterior's default if None.
        seed: seed of the draws.
        target_scale: units of the targets per unit the model sees: when a regression was fitted on standardised
            targets, their standard deviation. RMSE is multiplied by it and log densities are per original unit.
        chunk_size: rows that go through a network at once.

    Returns:
        The evaluation; memory grows with N · K, not with S · N · K.

    Raises:
        ValueError: if there are no rows, or targets do not fit the likelihood.
    """
    columns = _Columns()
    for predictive, targets in _predictives(posterior, data, draws, seed, chunk_size):
        predictive.likelihood.check(predictive.outputs_SBK[0], targets)
        columns.add(targets=targets, log_prob=predictive.log_prob(targets))
        kind = predictive.distribution
        if isinstance(kind, distributions.Categorical | distributions.Bernoulli):
            _add_scores(columns, predictive)
        elif isinstance(kind, distributions.Normal | distributions.StudentT):
            low, high = _interval(predictive)
            columns.add(mean=predictive.mean, scale=predictive.variance.sqrt(), low=low, high=high)
    if not columns.parts:
        raise ValueError("the data are empty: there are no rows to evaluate.")
    rows = columns.joined()
    found = {"nll": float(metrics.nll(rows["log_prob"])) + _log_scale(rows, target_scale)}
    if "probs" in rows:
        found |= _class_metrics(rows)
    if "mean" in rows:
        found |= _real_metrics(rows, target_scale)
    scores = Scores(*(rows[n] for n in Scores.__annotations__)) if "entropy" in rows else None
    return Evaluation(
        found, rows["log_prob"], rows["targets"], rows.get("probs"), scores, rows.get("mean"), rows.get("scale")
    )


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
    """Return how well uncertainty tells inputs from elsewhere.

    Args:
        inside: scores on data like the training data.
        outside: scores on other data.

    Returns:
        `auroc_SCORE`, `aupr_SCORE` (outside is positive, "AUPR-Out") and `fpr95_SCORE` (inside is positive: the share
        of the outside taken for inside where 95 % of the inside are, as in Liang et al. 2018) for the scores entropy,
        mutual_information and confidence (negated); mutual information of a single function is constant and left out.
    """
    found = {}
    for name in Scores.__annotations__:
        sign = -1.0 if name == "confidence" else 1.0
        a, b = sign * getattr(inside, name), sign * getattr(outside, name)
        if a.max() == a.min() == b.max() == b.min():
            continue
        for metric in (metrics.auroc, metrics.aupr, metrics.fpr95):
            found[f"{metric.__name__}_{name}"] = float(metric(a, b))
    return found


def fidelity(probs_NK: Tensor, reference_NK: Tensor) -> dict[str, float]:
    """Return agreement and total variation of two model averages on the same rows (Wilson et al. 2022).

    Args:
        probs_NK: class probabilities of one.
        reference_NK: class probabilities of the reference, such as HMC.

    Returns:
        `agreement` (share of equal argmax) and `total_variation` (mean of half the absolute differences).
    """
    return {
        "agreement": float(metrics.agreement(probs_NK, reference_NK)),
        "total_variation": float(metrics.total_variation(probs_NK, reference_NK)),
    }


@dataclass(frozen=True)
class TemperatureScaling:
    """Post-hoc calibration of a model average: p ∝ p̄^{1/T} (Guo et al. 2017), averaged first, then scaled.

    Averaging first is the order that keeps an ensemble calibrated (Rahaman and Thiery 2021).

    Attributes:
        temperature: T; above 1 makes predictions less confident.
    """

    temperature: float

    @classmethod
    def fit(cls, predictive: Predictive, targets: Tensor) -> TemperatureScaling:
        """Choose T by the likelihood of held-out targets.

        Args:
            predictive: of a classification, on rows that were not used for fitting.
            targets: class labels (B,).

        Returns:
            The calibrator.
        """
        tiny = torch.finfo(predictive.probs.dtype).tiny
        return cls(fit_temperature(predictive.probs.clamp_min(tiny).log(), targets))

    def __call__(self, predictive: Predictive) -> Predictive:
        """Return the calibrated predictive: one averaged distribution per input, S = 1."""
        return Predictive((predictive.probs.log() / self.temperature).unsqueeze(0), Categorical())


def _predictives(
    posterior: Posterior | Functions | Source | Predictive, data: Any, draws: int | None, seed: int, chunk_size: int
) -> Iterator[tuple[Predictive, Tensor]]:
    if isinstance(posterior, Predictive):
        yield posterior, data
        return
    source = as_source(posterior, draws, seed)
    yield from stream(source, batches(source.model, data), chunk_size=chunk_size)


def batches(model: Model, data: Any) -> Iterable[Any]:
    """Return batches in a fixed order of whatever the user has.

    Args:
        model: its hook reads tuples and mappings.
        data: (inputs, targets), a mapping, a Dataset, a DataLoader or an iterable of batches.

    Returns:
        An iterable of batches.
    """
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | Mapping):
        rows = model.unpack(data)
        starts = range(0, rows.size, _ROWS)
        return (rows.map(lambda t, s=s: t[s : s + _ROWS]) for s in starts)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=_ROWS)
    return data


def _add_scores(columns: _Columns, predictive: Predictive) -> None:
    probs = predictive.probs
    if isinstance(predictive.distribution, distributions.Bernoulli):
        probs = torch.stack([1 - probs, probs], dim=-1).flatten(0, -2)
    columns.add(
        probs=probs.flatten(0, -2),
        confidence=probs.amax(-1).flatten(),
        entropy=predictive.entropy.flatten(),
        mutual_information=predictive.mutual_information.flatten(),
    )


def _class_metrics(rows: dict[str, Tensor]) -> dict[str, float]:
    probs, targets = rows["probs"], rows["targets"].flatten().long()
    return {
        "accuracy": float(metrics.accuracy(probs, targets)),
        "brier": float(metrics.brier(probs, targets)),
        "ece": float(metrics.ece(probs, targets)),
        "ece_mass": float(metrics.ece_mass(probs, targets)),
        "entropy": float(rows["entropy"].mean()),
        "mutual_information": float(rows["mutual_information"].mean()),
    }


def _real_metrics(rows: dict[str, Tensor], target_scale: float) -> dict[str, float]:
    targets = rows["targets"].reshape(rows["mean"].shape)
    gaussian = distributions.Normal(rows["mean"], rows["scale"]).log_prob(targets).flatten(1).sum(-1)
    return {
        "nll_gaussian": float(metrics.nll(gaussian)) + _log_scale(rows, target_scale),
        "rmse": float(metrics.rmse(rows["mean"].flatten(), targets.flatten())) * target_scale,
        "coverage": float(metrics.interval_coverage(rows["low"].flatten(), rows["high"].flatten(), targets.flatten())),
    }


def _log_scale(rows: dict[str, Tensor], target_scale: float) -> float:
    """Return the change of a negative log density when the targets' unit changes, one term per target dimension."""
    return math.log(target_scale) * rows["targets"][0].numel() if "mean" in rows else 0.0


def _interval(predictive: Predictive) -> tuple[Tensor, Tensor]:
    """Return the bounds of the central 95 % interval, exact where the distribution can be inverted."""
    levels = predictive.outputs_SBK.new_tensor([0.025, 0.975])
    try:
        low, high = predictive.quantile(levels)
    except NotImplementedError:
        low, high = predictive.sample(-(-2000 // predictive.draws) * predictive.draws).quantile(levels, dim=0)
    return low, high

"""fit: the calibrator of a posterior's averaged predictions, chosen and fitted on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import distributions

from torchbayes.assess.evaluate import predictives
from torchbayes.calibration.binary import LogOddsScaling, SeparableError, affine_of, beta_of, quadratic_of
from torchbayes.calibration.calibrator import KIND, Calibrator, ClassCalibrator
from torchbayes.calibration.noise import NoiseScaling, mean_loss, noise_of
from torchbayes.calibration.rows import Rows, joined, rows_of
from torchbayes.calibration.scaling import LogLinear, cross_validated, dirichlet_of, matrix_of, vector_of
from torchbayes.calibration.temperature import TemperatureScaling, mixed_temperature_of, temperature_of
from torchbayes.calibration.venn_abers import VennAbers, binary_of, pairs_of
from torchbayes.calls import explained
from torchbayes.checks import check_choice, check_kind
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.files import read_tensors
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Source, as_source

METHODS: Mapping[str, Callable[[Rows], ClassCalibrator]] = {
    "ts": temperature_of,
    "ts-mix": mixed_temperature_of,
    "svs": vector_of,
    "sms": matrix_of,
    "dirichlet": dirichlet_of,
    "affine": affine_of,
    "quadratic": quadratic_of,
    "beta": beta_of,
    "venn-abers": binary_of,
    "venn-abers-pairs": pairs_of,
}
"""Calibrators of classifications by name."""
FEW = 50
"""Rows below which "auto" fits nothing but a temperature: in simulations all else was worse there."""
ENOUGH = 500
"""Rows of two classes from which on "auto" tries curves without a penalty: with fewer, a penalised one was better."""
MANY_CLASSES = 100
"""Classes above which "auto" does not cross-validate, and fits no matrix of K² numbers."""
_KINDS = (TemperatureScaling, LogLinear, LogOddsScaling, VennAbers, NoiseScaling)


@dataclass(frozen=True)
class Calibrated:
    """A posterior with its calibrator: `predict`, `stream`, `evaluate` and `uncertainty` take it in its place.

    Attributes:
        source: the functions that were drawn, or the closed form, whose averaged predictions are calibrated.
        calibrator: a function of predictives.
        held_out: what it did to the rows it was fitted on: `rows`, `nll` and `calibrated_nll` in nats per row; and of
            classes `accuracy`, `calibrated_accuracy`, and `changed`, the share of rows whose most probable class is
            another. The numbers of calibrated predictions are optimistic, as of any fit.
    """

    source: Source
    calibrator: Calibrator
    held_out: Mapping[str, float]

    @property
    def model(self) -> Model:
        """The model."""
        return self.source.model

    def predictive(self, inputs: Any, *, chunk_size: int = 1024) -> Predictive:
        """Return the calibrated predictive at inputs: one averaged distribution per input where targets are classes."""
        return self.calibrator(self.source.predictive(inputs, chunk_size=chunk_size))

    def __str__(self) -> str:
        numbers = self.held_out
        text = f"{type(self.calibrator).__name__} fitted on {numbers['rows']:g} rows: NLL {numbers['nll']:.4f} → "
        text += f"{numbers['calibrated_nll']:.4f}"
        if "changed" not in numbers:
            return text + "."
        if not numbers["changed"]:
            return text + "; no row has another most probable class."
        return text + (
            f"; {100 * numbers['changed']:.1f} % of the rows have another most probable class, accuracy "
            f"{numbers['accuracy']:.4f} → {numbers['calibrated_accuracy']:.4f}."
        )


@undisturbed
@explained()
def fit(
    posterior: Posterior | Functions | Source,
    data: Any,
    *,
    method: str = "auto",
    draws: int | None = None,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Calibrated:
    """Fit a calibrator of a posterior's averaged predictions on rows that were held out.

    What is calibrated is the average over draws, not each draw: the average of calibrated members is underconfident.

    Args:
        posterior: a posterior, functions drawn from one, or a `Linearised` one.
        data: held-out (inputs, targets), a Dataset, a DataLoader or an iterable of batches, as `evaluate` takes them;
            targets may be ignored, weighted or soft. Rows that were fitted make every calibrator overconfident.
        method: see `fit_calibrator`.
        draws: S, a multiple of the members; the posterior's default if None.
        seed: seed of the draws.
        chunk_size: rows that go through a network at once.

    Returns:
        The posterior, of these draws, with its calibrator.

    Raises:
        TypeError: if the data have no targets, or the method does not fit them.
        ValueError: if there are no rows, no row counts, or the method does not fit the number of classes.
    """
    _check_method(method)
    source = as_source(posterior, draws, seed)
    calibrator, held_out = _fitted(predictives(source, data, chunk_size=chunk_size), method)
    return Calibrated(source, calibrator, held_out)


@undisturbed
def fit_calibrator(predictive: Predictive, targets: Any, *, method: str = "auto") -> Calibrator:
    """Fit a calibrator on a predictive of held-out rows; called with any other predictive, it returns that calibrated.

    Args:
        predictive: predictive of rows that were not used for fitting.
        targets: (B, ...), as `evaluate` takes them.
        method: for classes "ts" (temperature), "ts-mix" (temperature, and a little of the uniform distribution),
            "svs" and "sms" (structured vector and matrix scaling), "dirichlet", "venn-abers" (each class against the
            others) or "venn-abers-pairs"; for two classes also "affine", "quadratic" or "beta"; for numbers "noise".
            "auto" is "noise" for numbers. For classes it is whichever of no change, "ts-mix", "svs" and "sms" has the
            least log loss in five-fold cross-validation; for two classes, "beta" in the place of "sms", from 500 rows
            on. Below 50 rows it is a temperature or no change, above 100 classes "svs".

    Returns:
        The calibrator.

    Raises:
        TypeError: if the predictive is none, or targets are not what the method is for.
        ValueError: if targets do not fit the likelihood, none counts, rows are separable and the method has no
            optimum there, or there is no such method.
    """
    check_kind(Predictive, "a Predictive", predictive=predictive)
    _check_method(method)
    return _fitted([(predictive, targets)], method)[0]


def load(path: str | Path) -> Calibrator:
    """Read a calibrator that its `save` wrote.

    Args:
        path: the file.

    Returns:
        The calibrator.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or holds no calibrator.
    """
    tensors, header = read_tensors(path)
    kind = next((k for k in _KINDS if k.__name__ == header.get("calibrator")), None)
    if header.get("kind") != KIND or kind is None:
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a calibrator. Read it by `tb.load`.")
    settings: dict[str, Any] = dict(header["numbers"])
    for name, tensor in sorted(tensors.items()):
        field, _, number = name.partition(".")
        settings[field] = (*settings.get(field, ()), tensor) if number else tensor
    return kind(**settings)


def _check_method(method: Any) -> None:
    check_choice(("auto", *METHODS, "noise"), method=method)


def _fitted(pairs: Any, method: str) -> tuple[Calibrator, dict[str, float]]:
    """Return a calibrator and what it did to these rows, of successive (predictive, targets)."""
    parts: list[Rows] = []
    numbers: list[tuple[Predictive, Any]] = []
    for predictive, targets in pairs:
        if method != "noise" and (method != "auto" or _is_over_classes(predictive)):
            parts.append(rows_of(predictive, targets))
        else:
            numbers.append((predictive, targets))
    return _fitted_to_numbers(numbers) if numbers else _fitted_to_classes(joined(parts), method)


def _fitted_to_classes(rows: Rows, method: str) -> tuple[ClassCalibrator, dict[str, float]]:
    calibrator = _automatic(rows) if method == "auto" else METHODS[method](rows)
    after_BK = calibrator.transform(rows.log_probs_BK)
    changed_B = after_BK.argmax(1) != rows.log_probs_BK.argmax(1)
    return calibrator, {
        "rows": rows.count,
        "nll": rows.loss(rows.log_probs_BK),
        "calibrated_nll": rows.loss(after_BK),
        "accuracy": rows.accuracy(rows.log_probs_BK),
        "calibrated_accuracy": rows.accuracy(after_BK),
        "changed": rows.share(changed_B),
    }


def _automatic(rows: Rows) -> ClassCalibrator:
    """Return the calibrator whose cross-validated loss is least, of none and those that won on published tables."""
    if rows.classes > MANY_CLASSES:
        return vector_of(rows)
    candidates = [_unchanged, mixed_temperature_of]
    if min(rows.count, len(rows.weights_B)) >= FEW:
        candidates.append(vector_of)
        if rows.classes > 2:
            candidates.append(matrix_of)
        elif rows.count >= ENOUGH:
            candidates.append(beta_of)
    return min(candidates, key=lambda method: _outside(rows, method))(rows)


def _unchanged(rows: Rows) -> ClassCalibrator:
    return TemperatureScaling(1.0)


def _outside(rows: Rows, method: Callable[[Rows], ClassCalibrator]) -> float:
    """Return the cross-validated loss of a method; ∞ if the rows, or those of a fold, are separable."""
    try:
        method(rows)
        return cross_validated(rows, method)
    except SeparableError:
        return math.inf


def _fitted_to_numbers(pairs: Sequence[tuple[Predictive, Any]]) -> tuple[NoiseScaling, dict[str, float]]:
    calibrator = noise_of(pairs)
    rows = float(sum(predictive.outputs_SBK.shape[1] for predictive, _ in pairs))
    return calibrator, {"rows": rows, "nll": mean_loss(pairs), "calibrated_nll": mean_loss(pairs, calibrator)}


def _is_over_classes(predictive: Predictive) -> bool:
    return isinstance(predictive.distribution, distributions.Categorical | distributions.Bernoulli)

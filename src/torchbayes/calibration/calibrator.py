"""What a calibrator is: a frozen map of predictions, fitted on rows that were held out."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.places import is_binary
from torchbayes.checks import check_kind
from torchbayes.metrics._checks import check_float
from torchbayes.model.likelihoods import Bernoulli, Categorical, Likelihood, Weighted
from torchbayes.posteriors.files import write_tensors
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import class_probs

KIND = "calibrator"
"""The kind of file that holds a calibrator."""


class Calibrator(ABC):
    """A map of predictions. Subclasses are frozen dataclasses of numbers and tensors."""

    @abstractmethod
    def __call__(self, predictive: Predictive) -> Predictive:
        """Return the calibrated predictive, for the same targets."""

    def save(self, path: str | Path) -> Path:
        """Write the calibrator to a safetensors file, completely or not at all; `torchbayes.calibration.load` reads it.

        Args:
            path: where to write, such as `run/calibrator.safetensors`.

        Returns:
            The path.
        """
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                tensors[field.name] = value
            elif isinstance(value, tuple):
                tensors |= {f"{field.name}.{number:06d}": tensor for number, tensor in enumerate(value)}
            else:
                numbers[field.name] = value
        return write_tensors(path, tensors, {"kind": KIND, "calibrator": type(self).__name__, "numbers": numbers})


class ClassCalibrator(Calibrator):
    """A map of averaged probabilities over K classes."""

    @abstractmethod
    def _mapped(self, log_probs_BK: Tensor) -> Tensor:
        """Return calibrated log probabilities of float64 ones."""

    @property
    def num_classes(self) -> int | None:
        """The K that it maps; None for any."""
        return None

    @property
    def keeps_argmax(self) -> bool:
        """Whether the most probable class of every row stays what it was, and with it accuracy."""
        return False

    def transform(self, log_probs_BK: Tensor) -> Tensor:
        """Return calibrated log probabilities.

        Args:
            log_probs_BK: log probabilities of B rows, each defined up to a constant per row; −∞ for probability 0.

        Returns:
            Tensor (B, K) of the same dtype and device, normalised.

        Raises:
            TypeError: if they are no float32 or float64 tensor.
            ValueError: if the shape does not fit, one is NaN or +∞, or a row has no class of probability above 0.
        """
        check_float("log_probs_BK", log_probs_BK, 2, finite=False)
        if not log_probs_BK.amax(1).isfinite().all():
            raise ValueError("`log_probs_BK` holds +inf, or a row in which every class has probability 0.")
        self._check_classes(log_probs_BK.shape[1])
        return self._mapped(torch.log_softmax(log_probs_BK.double(), -1)).to(log_probs_BK)

    def __call__(self, predictive: Predictive) -> Predictive:
        """Return the calibrated predictive: one averaged distribution per input, S = 1, for the same targets.

        Args:
            predictive: predictive of a classification.

        Raises:
            TypeError: if it is none.
            ValueError: if its classes are not as many as those of the rows that the calibrator was fitted on.
        """
        check_kind(Predictive, "a Predictive", predictive=predictive)
        probs = class_probs(predictive.distribution)
        self._check_classes(probs.shape[-1])
        log_probs = self._mapped(probs.double().log().flatten(0, -2)).view(probs.shape)
        if is_binary(predictive):
            negative, positive = log_probs.clamp_min(math.log(torch.finfo(probs.dtype).tiny)).unbind(-1)
            log_probs = positive - negative
            log_probs = log_probs.unsqueeze(-1) if log_probs.ndim == 1 else log_probs
        outputs_1BK = log_probs.to(predictive.outputs_SBK.dtype).unsqueeze(0)
        return Predictive(outputs_1BK, _averaged(predictive.likelihood, predictive))

    def _check_classes(self, classes: int) -> None:
        if self.num_classes not in {None, classes}:
            raise ValueError(
                f"this calibrator was fitted on {self.num_classes} classes; got predictions over {classes}."
            )


def _averaged(likelihood: Likelihood, predictive: Predictive) -> Likelihood:
    """Return a likelihood of logits that takes the same targets as the classification's."""
    if isinstance(likelihood, Weighted):
        return Weighted(_averaged(likelihood.base, predictive))
    if is_binary(predictive):
        return Bernoulli(soft=isinstance(likelihood, Bernoulli) and likelihood.soft)
    return Categorical(ignore_index=likelihood.ignore_index if isinstance(likelihood, Categorical) else None)

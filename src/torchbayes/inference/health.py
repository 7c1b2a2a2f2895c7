r"""What a fit by descent is worth: whether its result explains the very rows it was trained on.

All numbers are mean log likelihoods of rows, in nats, on at most 512 training rows spread over the data.

    c    of the best constant, max_f (1/n) Σ log p(y_i | f): outputs and noise that are the same for all rows
    ℓ    at the weights where the trajectory ended
    a    at the average of SWA and SWAG, or of draws of SWAG

A result is no better than nothing where ℓ < c − ½. An average is broken where it loses more than half a nat of ℓ, and
more than half of what ℓ gains over a constant: a draw of an exact posterior lies γ/2 ≤ n/2 nats below the mode, half a
nat per row, γ being the number of directions that the data determine (MacKay 1992).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from torchbayes.inference.batches import Source
from torchbayes.inference.descent import Trajectory
from torchbayes.inference.interpolation import noise_problems
from torchbayes.model.batch import Batch
from torchbayes.model.model import Model
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior

_ROWS, _DRAWS = 512, 8
_FAR = 0.5  # nats per row
_CONSTANTS = 10_000  # outputs of a row, beyond which the best constant is not looked for
_EXPLODED = 100.0  # prior standard deviations


@runtime_checkable
class Descending(Protocol):
    """The state of a method that descends: it has a trajectory."""

    @property
    def trajectory(self) -> Trajectory:
        """The running weights."""
        ...


def problems_of(posterior: Posterior, state: Any, source: Source) -> list[str]:
    """Return what is wrong with the result of a fit, one clause each: nothing for methods that do not descend.

    Nothing here depends on how the run was interrupted, resumed or spread over processes.

    Args:
        posterior: the result.
        state: the method's last state, of all members.
        source: the training data.
    """
    found = not_finite(posterior)
    if found or not isinstance(state, Descending) or not isinstance(posterior, Point | Gaussian):
        return found
    batches = source.some(_ROWS)
    posterior = posterior.calibrated(lambda: (batch.inputs for batch in batches))
    model, end = posterior.model, state.trajectory
    last = posterior
    if end.weights_MD is not state or not isinstance(state, Trajectory):
        last = Point(model, end.weights_MD, buffers_M=end.buffers or None, calibration=posterior.calibration)
    last_M = log_likelihood(last, batches)
    constant = constant_log_likelihood(model, batches)
    found = _worse_than_constant(last_M, constant)
    if not isinstance(state, Trajectory):
        found += _broken(posterior, batches, last_M=last_M, constant=constant)
    return found + _exploded(posterior) + noise_problems(posterior, source)


def not_finite(posterior: Posterior) -> list[str]:
    """Return a problem if a posterior of any kind holds numbers that are not finite."""
    for name, tensor in posterior.tensors().items():
        if tensor.is_floating_point() and not all(bool(torch.isfinite(part).all()) for part in tensor):
            return [f"it holds weights that are not finite (in `{name}`): fit again at smaller steps"]
    return []

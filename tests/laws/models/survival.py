"""A likelihood as a user writes one: times until an event, some of them censored, as a dict of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributions

from tests.oracles import normal
from torchbayes.model.likelihoods import Learned
from torchbayes.model.priors.univariate import Normal


class Survival:
    """Weibull: log S(t) = −(t e^{−f})^k; targets {"time": (B,), "event": (B,)}, event 0 where t is when it ended.

    `shape` is k, or None for one that is learned.
    """

    def __init__(self, shape: float | None = 1.5) -> None:
        self.shape = shape

    def parameters(self) -> Mapping[str, Learned]:
        return {"log_shape": Learned((1,), 0.1, Normal(scale=0.5))} if self.shape is None else {}

    def _log_shape(self, parameters: Mapping[str, Tensor]) -> Any:
        return parameters["log_shape"][..., 0] if self.shape is None else math.log(self.shape)

    def distribution(
        self,
        outputs: Tensor,
        parameters: Mapping[str, Tensor] = {},
    ) -> distributions.Distribution:
        shape = torch.as_tensor(self._log_shape(parameters), dtype=outputs.dtype).exp()
        return distributions.Weibull(outputs.squeeze(-1).exp(), shape, validate_args=False)

    def log_prob(
        self,
        outputs: Tensor,
        targets: Any,
        parameters: Mapping[str, Tensor] = {},
    ) -> Tensor:
        log_shape = torch.as_tensor(self._log_shape(parameters), dtype=outputs.dtype)
        scaled = targets["time"].log() - outputs.squeeze(-1)
        log_hazard = log_shape + log_shape.exp() * scaled - targets["time"].log()
        return targets["event"] * log_hazard - (log_shape.exp() * scaled).exp()

    def check(self, outputs: Tensor, targets: Any) -> None:
        if set(targets) != {"time", "event"} or not (targets["time"] > 0).all():
            raise ValueError("targets must be positive times and events.")


def times(rows: int, seed: int = 10) -> dict[str, Tensor]:
    """Return times and events."""
    return {"time": normal(rows, seed=seed).exp(), "event": (normal(rows, seed=seed + 1) > -0.4).double()}

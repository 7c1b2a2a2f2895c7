"""Rows from series: the last values before an origin as inputs, the next values as targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import check_counts
from torchbayes.display import Overview, shown
from torchbayes.forecasting.series import Series, as_series
from torchbayes.native.process import undisturbed


@shown(
    lambda rows: Overview(
        "Windows", {"rows": len(rows), "inputs": rows.inputs.shape[1], "horizon": rows.targets.shape[1]}
    )
)
@dataclass(frozen=True, eq=False)
class Windows:
    """Rows from a series, for `fit`.

    Attributes:
        inputs: (N, context · C + horizon · K), float32: the values of the last `context` times, time by time, then the
            covariates of the next `horizon` times.
        targets: (N, horizon), float32: the next values of the first channel.
        origins_N: how many values lie before each row's targets, int64: targets are series[origin : origin + horizon].
    """

    inputs: Tensor
    targets: Tensor
    origins_N: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@undisturbed
@explained()
def windows(series: Any, context: int, horizon: int, *, stride: int = 1) -> Windows:
    """Cut a series into rows that any posterior of the library fits.

    The inputs of a row are values before its origin, and covariates, which must be known in advance: no value at or
    after the origin is among them.

    Args:
        series: values in order of time, (T,) or (T, C); the first channel is to be forecast. A Series or DataFrame of
            pandas may have dates as index, which must then be evenly spaced. `Series.of` adds covariates.
        context: how many values a row looks back.
        horizon: how many values ahead are its targets.
        stride: steps from one origin to the next; with `horizon` no two rows share a target.

    Returns:
        The rows, in order of time.

    Raises:
        TypeError: if values are no numbers.
        ValueError: if one is missing or infinite, times are not evenly spaced, or the series has fewer than
            context + horizon values.
    """
    check_counts(context=context, horizon=horizon, stride=stride)
    data = as_series(series)
    check_length(data, context, horizon)
    origins_N = np.arange(context, len(data) - horizon + 1, stride)
    contexts_NLC, known_NHK = cut(data, origins_N, context, horizon=horizon)
    inputs = np.concatenate([array.reshape(len(origins_N), -1) for array in (contexts_NLC, known_NHK)], axis=1)
    targets = data.values_TC[origins_N[:, None] + np.arange(horizon), 0]
    rows, ahead = (torch.from_numpy(each).float() for each in (inputs, targets))
    return Windows(rows, ahead, torch.from_numpy(origins_N))


def cut(data: Series, origins_N: np.ndarray, context: int, *, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values before each origin, (N, L, C), and the covariates from it on, (N, H, K)."""
    contexts_NLC = data.values_TC[origins_N[:, None] + np.arange(-context, 0)]
    if data.covariates_UK is None:
        return contexts_NLC, np.zeros((len(origins_N), horizon, 0))
    last = int(origins_N.max()) + horizon
    if last > len(data.covariates_UK):
        raise ValueError(
            f"`covariates` must be known {horizon} times ahead, for {last:,} times in all; got "
            f"{len(data.covariates_UK):,} rows."
        )
    return contexts_NLC, data.covariates_UK[origins_N[:, None] + np.arange(horizon)]


def check_length(data: Series, context: int, horizon: int) -> None:
    """Raise a ValueError unless a series makes a row."""
    if len(data) < context + horizon:
        raise ValueError(
            f"`series` must have at least {context + horizon} values, {context} of them to look back; it has "
            f"{len(data):,}. Lower `context`, `season` or `horizon`."
        )

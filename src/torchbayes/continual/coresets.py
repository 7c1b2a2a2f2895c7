"""Coresets: rows of each task that are set aside, and seen again before predicting (Nguyen et al. 2018).

A coreset of task t is not part of what the posterior q_t is fitted on. The posterior that predicts is that of the
union of all coresets under the prior q_t. It is not carried on, because coresets would then count twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchbayes.randomness.seeds import Purpose, generator
from torchbayes.settings import check_settings


class Coreset(Protocol):
    """A way to choose rows."""

    @property
    def size(self) -> int:
        """Rows of each task."""
        ...

    def choose(self, num_data: int, inputs: Callable[[], Tensor], *, seed: int) -> Tensor:
        """Return numbers of rows, int64 (size,), of `num_data`; `inputs` gives those of all rows as vectors (N, F)."""
        ...


@dataclass(frozen=True)
class Random:
    """Rows at random.

    Attributes:
        size: rows of each task.
    """

    size: int

    def __post_init__(self) -> None:
        check_settings(self)

    def choose(self, num_data: int, inputs: Callable[[], Tensor], *, seed: int) -> Tensor:
        """Return numbers of rows, int64 (size,)."""
        del inputs
        return torch.randperm(num_data, generator=generator(Purpose.CORESET, seed))[: self.size]


@dataclass(frozen=True)
class KCentre:
    """Rows that leave no row far away: each is the one that is farthest from those before it (Gonzalez 1985).

        c_{k+1} = argmax_n min_{j ≤ k} ‖x_n − x_{c_j}‖

    The largest distance of a row from the coreset is at most twice the smallest that is possible. Of rows that are
    equally far the first is taken.

    Attributes:
        size: rows of each task.
        first: number of the first centre.
    """

    size: int
    first: int = 0

    def __post_init__(self) -> None:
        check_settings(self)

    def choose(self, num_data: int, inputs: Callable[[], Tensor], *, seed: int) -> Tensor:
        """Return numbers of rows, int64 (size,). Raises ValueError if there is no row `first`."""
        del seed
        if self.first >= num_data:
            raise ValueError(f"`first` must be one of the {num_data} rows of a task; got {self.first}.")
        inputs_NF = inputs()
        inputs_NF = inputs_NF - inputs_NF.mean(0)  # centred, so that squares of distances do not cancel
        norms_N = inputs_NF.square().sum(1)
        squares_N = torch.full_like(norms_N, torch.inf)
        chosen = [self.first]
        while True:
            from_last_N = norms_N - 2 * (inputs_NF @ inputs_NF[chosen[-1]]) + norms_N[chosen[-1]]
            squares_N = torch.minimum(squares_N, from_last_N.clamp_min_(0.0))
            squares_N[chosen[-1]] = -1.0  # a row equal to another may be chosen, but no row twice
            if len(chosen) == self.size:
                return torch.tensor(chosen)
            chosen.append(int((squares_N == squares_N.max()).nonzero()[0]))

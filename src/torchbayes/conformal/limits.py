"""Thresholds by group and by weight: how large the score of a new row may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import seen
from torchbayes.conformal.ranks import Threshold, threshold, weighted_thresholds
from torchbayes.conformal.rows import codes_of, group_names, weights_like
from torchbayes.posteriors.problems import warn_of

ALL = "all rows"
"""The only group where there are no groups."""


@dataclass(frozen=True)
class Calibrated:
    """Scores of calibration rows, in groups.

    Attributes:
        scores_N: float64.
        codes_N: position of the group of each row in `names`, int64.
        names: names of the groups.
        weights_N: float64; None where each row counts once.
        by_class: whether the groups are the classes.
    """

    scores_N: Tensor
    codes_N: Tensor
    names: tuple[Any, ...] = (ALL,)
    weights_N: Tensor | None = None
    by_class: bool = False

    @property
    def in_groups(self) -> bool:
        """Whether new rows must name a group."""
        return not self.by_class and self.names != (ALL,)

    def threshold(self, code: int, coverage: float, confidence: float | None) -> Threshold:
        """Return the threshold of a group, with weights that of a new row of weight 1."""
        scores_n = self.scores_N[self.codes_N == code]
        if self.weights_N is None:
            return threshold(scores_n, coverage, confidence)
        value = float(self._weighted(code, scores_n.new_ones(1), coverage))
        return Threshold(value, int((scores_n <= value).sum()), len(scores_n), weighted=True)

    def limits(self, values_G: Tensor, groups: Any, weights: Any, *, coverage: float, rows: int) -> Tensor:
        """Return the threshold of each new row, (B,), or of each class of each row, (B, K) where groups are classes.

        `values_G` are the thresholds of the groups without weights.
        """
        codes_B = self._codes(groups, rows)
        weights_B = self._row_weights(weights, rows)
        if weights_B is None:
            infinite = torch.cat([values_G, values_G.new_tensor([torch.inf])])
            return infinite[codes_B]
        columns = [self._weighted(code, weights_B, coverage) for code in range(len(self.names))]
        table_BG = torch.stack([*columns, torch.full_like(columns[0], torch.inf)], dim=1)
        return table_BG.gather(1, codes_B % table_BG.shape[1]) if self.by_class else table_BG[range(rows), codes_B]

    def _weighted(self, code: int, weights_B: Tensor, coverage: float) -> Tensor:
        chosen_N = self.codes_N == code
        assert self.weights_N is not None
        return weighted_thresholds(self.scores_N[chosen_N], self.weights_N[chosen_N], weights_B, coverage=coverage)

    def _codes(self, groups: Any, rows: int) -> Tensor:
        """Return the position of the group of each new row, −1 for groups without calibration rows."""
        if not self.in_groups:
            if groups is not None:
                holder = "classes" if self.by_class else "all rows together"
                raise ValueError(f"the calibration is of {holder}; got `groups` {seen(groups)}. Leave them out.")
            codes = torch.arange(len(self.names)) if self.by_class else torch.zeros(1, dtype=torch.int64)
            return codes.expand(rows, -1) if self.by_class else codes.expand(rows)
        if groups is None:
            raise ValueError(f"the calibration has {len(self.names)} groups. Give `groups`, that of each row.")
        names = group_names(groups, rows)
        codes_B = codes_of(names, self.names)
        unknown = sorted({str(name) for name, code in zip(names, codes_B.tolist(), strict=True) if code < 0})
        if unknown:
            which = ", ".join(unknown[:3]) + (" and others" if len(unknown) > 3 else "")
            warn_of([f"no calibration row is of group {which}, so that its sets hold every target"], "this calibration")
        return codes_B

    def _row_weights(self, weights: Any, rows: int) -> Tensor | None:
        if self.weights_N is None:
            if weights is not None:
                raise ValueError(
                    f"calibration rows have no weights; got `weights` {seen(weights)}. Give `calibrate` theirs."
                )
            return None
        if weights is None:
            raise ValueError("calibration rows have weights. Give `weights` of these rows too, 1 for what counts once.")
        return weights_like(weights, rows)


def in_groups_of(names: Sequence[Any]) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the position of each row's group among the sorted names, int64, and these."""
    known = tuple(sorted(set(names)))
    return codes_of(names, known), known

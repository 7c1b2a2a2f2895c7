r"""Venn–Abers calibration: isotonic regressions in which the new row has either label (Vovk and Petej 2014).

Two classes: at a new row's log odds t, isotonic regression of the held-out labels with (t, 0) added gives p₀ there,
and with (t, 1) added p₁ ≥ p₀. The probability is p₁ / (1 − p₀ + p₁), which minimises the larger regret in log loss.
The pair depends on t only through which held-out log odds are below it, so n rows have at most 2n + 1 pairs.

More classes: each against the others, normalised; or each pair of classes (i, j) on the rows of these two, r_ij, and
p_i ∝ 1 / (Σ_{j≠i} 1/r_ij − (K − 2)) (Price et al. 1995; Manokhin 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from torchbayes.calibration.calibrator import ClassCalibrator
from torchbayes.calibration.rows import LEAST, Rows
from torchbayes.checks import check_choice, check_kind

_DECIMALS = 10  # of log odds: equal probabilities may differ by rounding, and are ties


@dataclass(frozen=True, eq=False)
class VennAbers(ClassCalibrator):
    """Venn–Abers calibration of K classes.

    Attributes:
        tables: of each binary problem (2n + 1, 3), float64: log odds of held-out rows, increasing, in the odd rows; p₀
            and p₁ at these log odds, and in the even rows between them.
        kind: "binary", one table; "rest", a table of each class against the others; "pairs", one of each pair of
            classes, in the order (0, 1), (0, 2), …, (1, 2), …
        classes: K.
    """

    tables: tuple[Tensor, ...]
    kind: Literal["binary", "rest", "pairs"]
    classes: int

    def __post_init__(self) -> None:
        check_choice(("binary", "rest", "pairs"), kind=self.kind)
        wanted = {"binary": 1, "rest": self.classes, "pairs": self.classes * (self.classes - 1) // 2}[self.kind]
        check_kind(tuple, "a tuple of tensors", tables=self.tables)
        if len(self.tables) != wanted:
            raise ValueError(f"`tables` must be {wanted}; got {len(self.tables)}.")

    @property
    def num_classes(self) -> int:
        return self.classes

    def _mapped(self, log_probs_BK: Tensor) -> Tensor:
        logs_BK = log_probs_BK.clamp_min(LEAST)
        if self.kind == "binary":
            second_B = _merged(self.tables[0], logs_BK[:, 1] - logs_BK[:, 0])
            return torch.stack([1 - second_B, second_B], -1).log()
        if self.kind == "rest":
            probs_BK = torch.stack([_merged(t, o) for t, o in zip(self.tables, _against(logs_BK), strict=True)], -1)
        else:
            probs_BK = self._coupled(logs_BK)
        return (probs_BK / probs_BK.sum(1, keepdim=True)).log()

    def _coupled(self, logs_BK: Tensor) -> Tensor:
        """Return probabilities, not normalised, of those within pairs."""
        inverse_BK = torch.full_like(logs_BK, -(self.classes - 2.0))
        for table, (i, j) in zip(self.tables, combinations(range(self.classes), 2), strict=True):
            second_B = _merged(table, logs_BK[:, j] - logs_BK[:, i])
            inverse_BK[:, i] += 1 / (1 - second_B)
            inverse_BK[:, j] += 1 / second_B
        return 1 / inverse_BK


def binary_of(rows: Rows) -> VennAbers:
    """Return Venn–Abers calibration: of two classes, or of each class against the others."""
    _check_hard(rows)
    logs_BK = rows.log_probs_BK.clamp_min(LEAST)
    if rows.classes == 2:
        return VennAbers((_table(logs_BK[:, 1] - logs_BK[:, 0], rows.shares_BK[:, 1], rows.weights_B),), "binary", 2)
    odds = zip(_against(logs_BK), rows.shares_BK.unbind(1), strict=True)
    return VennAbers(tuple(_table(o, y, rows.weights_B) for o, y in odds), "rest", rows.classes)


def pairs_of(rows: Rows) -> VennAbers:
    """Return Venn–Abers calibration of each pair of classes."""
    _check_hard(rows)
    logs_BK, tables = rows.log_probs_BK.clamp_min(LEAST), []
    for i, j in combinations(range(rows.classes), 2):
        inside_B = rows.shares_BK[:, [i, j]].sum(1) > 0
        odds_B = (logs_BK[:, j] - logs_BK[:, i])[inside_B]
        tables.append(_table(odds_B, rows.shares_BK[inside_B, j], rows.weights_B[inside_B]))
    return VennAbers(tuple(tables), "pairs", rows.classes)


def _check_hard(rows: Rows) -> None:
    if rows.is_soft:
        raise ValueError("Venn–Abers calibration needs one class for each row; got soft labels. Use 'sms' or 'beta'.")


def _against(logs_BK: Tensor) -> list[Tensor]:
    """Return the log odds of each class against all others."""
    classes = range(logs_BK.shape[1])
    return [logs_BK[:, k] - logs_BK[:, [j for j in classes if j != k]].logsumexp(1) for k in classes]


def _merged(table: Tensor, odds_B: Tensor) -> Tensor:
    """Return p₁ / (1 − p₀ + p₁) at log odds."""
    table, odds_B = table.to(odds_B.device), odds_B.round(decimals=_DECIMALS)
    known_N = table[1::2, 0].contiguous()
    below_B, up_to_B = (torch.searchsorted(known_N, odds_B.contiguous(), right=right) for right in (False, True))
    _, zero_B, one_B = table[below_B + up_to_B].unbind(-1)
    return one_B / (1 - zero_B + one_B)


def _table(odds_B: Tensor, labels_B: Tensor, weights_B: Tensor) -> Tensor:
    """Return the table of a binary problem: where there are no rows, p₀ = 0 and p₁ = 1."""
    known_N, which_B = odds_B.round(decimals=_DECIMALS).unique(return_inverse=True)
    zeros_N = torch.zeros(len(known_N) + 1, dtype=torch.float64)
    weight_N = zeros_N.index_add(0, which_B + 1, weights_B).cumsum(0)
    ones_N = zeros_N.index_add(0, which_B + 1, weights_B * labels_B).cumsum(0)
    table = torch.zeros(2 * len(known_N) + 1, 3, dtype=torch.float64)
    table[1::2, 0] = known_N
    for label in (0, 1):
        table[:, 1 + label] = _at_added(weight_N, ones_N, label)
    return table


def _at_added(weight_N: Tensor, ones_N: Tensor, label: int) -> Tensor:
    """Return isotonic regression at a row of this label that is added at, and between, N log odds, (2N + 1,).

    `weight_N` and `ones_N` are sums up to each, from 0 on. The block of the added row grows over the blocks of the
    rows before and after it for as long as their means are out of order, of all added rows at once.
    """
    count = len(weight_N) - 1
    starts, ends = _blocks(weight_N, ones_N)
    spot = torch.arange(2 * count + 1)
    low, high = spot // 2, (spot + 1) // 2  # the block holds the log odds low … high − 1

    def mean(low: Tensor, high: Tensor, extra: float = 0.0) -> Tensor:
        weight = weight_N[high] - weight_N[low] + extra
        return (ones_N[high] - ones_N[low] + extra * label) / weight.clamp_min(torch.finfo(torch.float64).tiny)

    while True:
        here = mean(low, high, 1.0)
        after = ends[high.clamp_max(count - 1)] if count else high
        up = (high < count) & (mean(high, torch.where(high < count, after, high)) <= here)
        before = starts[low.clamp_min(1) - 1] if count else low
        down = (low > 0) & (mean(torch.where(low > 0, before, low), low) >= here) & ~up
        if not (up | down).any():
            return here
        low, high = torch.where(down, before, low), torch.where(up, after, high)


def _blocks(weight_N: Tensor, ones_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the last block of isotonic regression of rows 0 … i begins, and the first of rows i … ends."""
    weights, ones, count = weight_N.tolist(), ones_N.tolist(), len(weight_N) - 1

    def mean(low: int, high: int) -> float:
        return (ones[high] - ones[low]) / (weights[high] - weights[low])

    starts, ends = list(range(count)), list(range(1, count + 1))
    for i in range(count):
        while starts[i] > 0 and mean(starts[starts[i] - 1], starts[i]) >= mean(starts[i], i + 1):
            starts[i] = starts[starts[i] - 1]
    for i in reversed(range(count)):
        while ends[i] < count and mean(ends[i], ends[ends[i]]) <= mean(i, ends[i]):
            ends[i] = ends[ends[i]]
    return torch.tensor(starts, dtype=torch.int64), torch.tensor(ends, dtype=torch.int64)

r"""Scores of rows whose targets are classes, from the probabilities $p_s = p(y \mid x, w_s)$ of S functions.

BALD (Houlsby et al. 2011) is the mutual information of label and function,

    I(y; w | x) = H(p̄) − (1/S) Σ_s H(p_s),

which S draws estimate too low by I/S to first order; the factor S/(S − 1) makes up for that. EPIG (Bickford Smith et
al. 2023) is the mutual information of the label at x and the one at x*, in the mean over inputs x* where predictions
matter; draws estimate it too high by χ²(x) χ²(x*) / (2S), χ² = Σ_c Var(p_c) / p̄_c, which is subtracted. Of a batch
(BatchBALD, Kirsch et al. 2019), with ω_m the probability of the labels m of its rows so far and W_ms that of draw s
given them, a further row adds

    I(y; w | x, batch) = Σ_m ω_m H(Σ_s W_ms p_s) − (1/S) Σ_s H(p_s).

The sum runs over all labels while these are few, and then over labels drawn from the average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from torchbayes.metrics.uncertainty import divergence, rows_at_once
from torchbayes.randomness.seeds import Purpose, generator

_ALL, _DRAWN = 4096, 2048  # labels of a batch: all of them up to the first number, else so many that are drawn
_NEAR = 0.8  # share of log S from which draws hardly tell further rows apart
_AT_ONCE = 2**23  # numbers of a temporary tensor


@dataclass(frozen=True)
class ClassRows:
    """Probabilities of the classes of B rows with P labels each, under S functions."""

    probs_SBPC: Tensor  # float64
    drawn: bool = True  # whether functions are draws; else nodes of each row

    @property
    def rows(self) -> int:
        """B."""
        return self.probs_SBPC.shape[1]

    @property
    def draws(self) -> int:
        """S."""
        return len(self.probs_SBPC)

    @property
    def size(self) -> int:
        """How many numbers a row has."""
        return self.probs_SBPC[:, 0].numel()

    @property
    def single(self) -> bool:
        """Whether each row has one label."""
        return self.probs_SBPC.shape[2] == 1

    def some(self, rows: Tensor | slice) -> Self:
        """Return some of the rows."""
        return replace(self, probs_SBPC=self.probs_SBPC[:, rows])

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return rows one after the other."""
        return replace(parts[0], probs_SBPC=torch.cat([chunk.probs_SBPC for chunk in parts], dim=1))

    def information(self) -> Tensor:
        """Return the mutual information of labels and function under these draws, summed over labels, (B,), nats."""
        parts = self.probs_SBPC.split(rows_at_once(self.probs_SBPC), dim=1)
        return torch.cat([divergence(chunk) for chunk in parts]).sum(-1)

    def score(self, name: str) -> Callable[..., Tensor]:
        """Return the function of these rows, and of aims where the score has such, that a name stands for."""
        return {"bald": bald, "entropy": entropy, "margin": margin, "epig": epig, "variance": variance}[name]

    def batch(self, *, seed: int) -> ClassBatch:
        """Return a batch without rows, of rows like these."""
        single(self, "batchbald")
        return ClassBatch(self.draws, seed)


def bald(rows: ClassRows) -> Tensor:
    """Return the mutual information of labels and function, without the bias of the draws, (B,), nats."""
    return rows.information() * (rows.draws / (rows.draws - 1) if rows.drawn else 1)


def entropy(rows: ClassRows) -> Tensor:
    """Return the entropy of the average, summed over labels, (B,), nats."""
    return torch.special.entr(rows.probs_SBPC.mean(0)).sum((-1, -2))


def margin(rows: ClassRows) -> Tensor:
    """Return minus the probability of the first class over that of the second, summed over labels, (B,)."""
    if rows.probs_SBPC.shape[-1] < 2:
        raise ValueError("`score` 'margin' is a difference of two classes, and the model has one.")
    first_two = rows.probs_SBPC.mean(0).topk(2, dim=-1).values
    return (first_two[..., 1] - first_two[..., 0]).sum(-1)


def epig(rows: ClassRows, aims: ClassRows) -> Tensor:
    """Return the mutual information of a row's label and that of each aim, in the mean over aims, (B,), nats."""
    probs_SBC, aims_STC = single(rows, "epig"), single(aims, "epig")
    flat_SN, aim_T = aims_STC.flatten(1), torch.special.entr(aims_STC.mean(0)).sum(-1)
    size = max(1, _AT_ONCE // (probs_SBC.shape[-1] * flat_SN.shape[1]))
    information = []
    for part_SBC in probs_SBC.split(size, dim=1):
        joint_BCN = torch.einsum("sbc,sn->bcn", part_SBC, flat_SN) / rows.draws
        together_B = torch.special.entr(joint_BCN).sum((1, 2)) / len(aim_T)
        information.append(torch.special.entr(part_SBC.mean(0)).sum(-1) + aim_T.mean() - together_B)
    return torch.cat(information) - _chi_squared(probs_SBC) * _chi_squared(aims_STC).mean() / (2 * rows.draws)


def variance(rows: ClassRows, aims: ClassRows) -> Tensor:
    """Raise a TypeError."""
    raise TypeError("`score` 'variance' is for numbers; these targets are classes. Use 'epig' or 'bald'.")


def single(rows: ClassRows, score: str) -> Tensor:
    """Return the probabilities (S, B, C) of rows with one label; a TypeError if they have several."""
    if not rows.single:
        raise TypeError(
            f"`score` {score!r} is for one label in each row; here each has {rows.probs_SBPC.shape[2]}. Use 'bald', "
            f"'entropy' or 'margin', which are summed over the labels of a row, or a function of your own."
        )
    return rows.probs_SBPC[:, :, 0]


def _chi_squared(probs_SBC: Tensor) -> Tensor:
    """Return Σ_c Var(p_c) / p̄_c, (B,)."""
    mean_BC = probs_SBC.mean(0)
    return (probs_SBC.var(0) / mean_BC.clamp_min(torch.finfo(torch.float64).tiny)).sum(-1)


@dataclass
class ClassBatch:
    """What the labels of a batch would say of the draws."""

    draws: int
    seed: int
    information: float = 0.0  # of all labels of the batch together and the function, nats
    rows: list[Tensor] = field(default_factory=list)  # probabilities (S, C) of the rows

    def __post_init__(self) -> None:
        self.log_weights_MS = torch.zeros(1, self.draws, dtype=torch.float64)  # log probability of labels, less a term
        self.omega_M = torch.ones(1, dtype=torch.float64)
        self.drawn_M: Tensor | None = None  # the draw from which labels are drawn; None while they are enumerated

    @property
    def limit(self) -> str:
        """Why the last rows may not be told apart; empty if they are."""
        if (most := math.log(self.draws)) * _NEAR >= self.information:
            return ""
        return (
            f"its information, {self.information:.2f} nats, comes near log S = {most:.2f}, the most that {self.draws} "
            f"draws can tell"
        )

    def gains(self, rows: ClassRows) -> Tensor:
        """Return what each row would add to the information, (B,), nats."""
        probs_SBC = rows.probs_SBPC[:, :, 0].cpu()
        weights_MS, gains = self.log_weights_MS.softmax(-1), []
        size = max(1, _AT_ONCE // (len(self.omega_M) * probs_SBC.shape[-1]))
        for part_SBC in probs_SBC.split(size, dim=1):
            given_MBC = (weights_MS @ part_SBC.flatten(1)).unflatten(1, part_SBC.shape[1:])
            entropy_B = self.omega_M @ torch.special.entr(given_MBC).sum(-1)
            gains.append(entropy_B - torch.special.entr(part_SBC).sum(-1).mean(0))
        return torch.cat(gains)

    def add(self, row: ClassRows) -> None:
        """Add a row."""
        self.information += float(self.gains(row)[0])
        probs_SC = row.probs_SBPC[:, 0, 0].cpu()
        self.rows.append(probs_SC)
        if self.drawn_M is not None:
            self._draw(len(self.rows) - 1)
            return
        if len(self.omega_M) * probs_SC.shape[-1] > _ALL:
            self._begin_drawing()
            return
        given_MC = self.log_weights_MS.softmax(-1) @ probs_SC
        omega_N = (self.omega_M.unsqueeze(-1) * given_MC).flatten()
        possible = omega_N > 0
        self.log_weights_MS = (self.log_weights_MS.unsqueeze(1) + probs_SC.T.log()).flatten(0, 1)[possible]
        self.omega_M = omega_N[possible]

    def _begin_drawing(self) -> None:
        """Draw labels of all rows: as many under each draw."""
        each = -(-_DRAWN // self.draws)
        self.drawn_M = torch.arange(self.draws).repeat_interleave(each)
        self.log_weights_MS = torch.zeros(len(self.drawn_M), self.draws, dtype=torch.float64)
        self.omega_M = torch.full((len(self.drawn_M),), 1 / len(self.drawn_M), dtype=torch.float64)
        for number in range(len(self.rows)):
            self._draw(number)

    def _draw(self, number: int) -> None:
        """Draw labels of one of the rows, each under its draw."""
        probs_SC, source = self.rows[number], generator(Purpose.LABELS, self.seed, number)
        labels_M = torch.multinomial(probs_SC[self.drawn_M], 1, generator=source)[:, 0]
        self.log_weights_MS = self.log_weights_MS + probs_SC.T[labels_M].log()

r"""Scores of rows whose targets are numbers, by two moments: as though function and noise were normal.

With σ_f² the variance of the mean over draws, σ² the mean variance of the noise, and c = Cov(f, f*),

    BALD        ½ log(1 + σ_f²/σ²), of a batch ½ log det(I + K/σ²)
    EPIG        −½ log(1 − ρ²), ρ the correlation of y and y*
    variance    c² / (σ_f² + σ²): by how much a label is expected to lower the variance of f* (Cohn et al. 1996)

the last two in the mean over inputs x* where predictions matter. c² has its unbiased estimate of S draws,
((S − 1)² ĉ² − (S − 1) σ_f² σ_*²) / ((S + 1)(S − 2)); the plain one favours rows of large variance, related or not. Of
several outputs BALD is ½ log det(I + R^-½ K R^-½), R the noise, and the last two are summed over the outputs. For a
Gaussian posterior of functions and normal noise of known scale this is exact; for noise that varies, Student t and
counts it is a match of moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class NumberRows:
    """Means of B rows with K targets each under S functions, and the variance of their noise."""

    mean_SBK: Tensor  # float64
    noise_BK: Tensor  # mean variance over the draws
    closed_BK: Tensor | None = None  # variance of the function within a draw, where that is a Gaussian over functions
    drawn: bool = True  # whether functions are draws; else nodes of each row

    @property
    def rows(self) -> int:
        """B."""
        return self.mean_SBK.shape[1]

    @property
    def draws(self) -> int:
        """S."""
        return len(self.mean_SBK)

    @property
    def size(self) -> int:
        """How many numbers a row has."""
        return self.mean_SBK[:, 0].numel()

    @property
    def single(self) -> bool:
        """True: the targets of a row are scored together."""
        return True

    def some(self, rows: Tensor | slice) -> Self:
        """Return some of the rows."""
        closed = None if self.closed_BK is None else self.closed_BK[rows]
        return replace(self, mean_SBK=self.mean_SBK[:, rows], noise_BK=self.noise_BK[rows], closed_BK=closed)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return rows one after the other, of draws that are functions."""
        means, noises = zip(*((chunk.mean_SBK, chunk.noise_BK) for chunk in parts), strict=True)
        return cls(torch.cat(means, dim=1), torch.cat(noises))

    @property
    def apart_SBK(self) -> Tensor:
        """Means less their mean, over √(S − 1), of nodes √S, so that products summed over draws are covariances."""
        return (self.mean_SBK - self.mean_SBK.mean(0)) / max(self.draws - self.drawn, 1) ** 0.5

    def information(self) -> Tensor:
        """Return the mutual information of targets and function, (B,), nats."""
        scaled_SBK = self.apart_SBK / self.noise_BK.sqrt()
        covariance_BKK = torch.einsum("sbk,sbl->bkl", scaled_SBK, scaled_SBK)
        if self.closed_BK is not None:
            covariance_BKK = covariance_BKK + torch.diag_embed(self.closed_BK / self.noise_BK)
        return _half_log_det(covariance_BKK)

    def score(self, name: str) -> Callable[..., Tensor]:
        """Return the function of these rows, and of aims where the score has such, that a name stands for."""
        return {"bald": bald, "entropy": entropy, "margin": margin, "epig": epig, "variance": variance}[name]

    def batch(self, *, seed: int) -> NumberBatch:
        """Return a batch without rows, of rows like these."""
        del seed
        return NumberBatch(self.draws)

    @property
    def variance_BK(self) -> Tensor:
        """Variance of the targets under the average."""
        spread_BK = self.apart_SBK.square().sum(0)
        return self.noise_BK + (spread_BK if self.closed_BK is None else spread_BK + self.closed_BK)


def bald(rows: NumberRows) -> Tensor:
    """Return the mutual information of targets and function, (B,), nats."""
    return rows.information()


def entropy(rows: NumberRows) -> Tensor:
    """Return the entropy of a normal distribution with the variances of the average, summed over outputs, (B,)."""
    return 0.5 * (2 * torch.pi * torch.e * rows.variance_BK).log().sum(-1)


def margin(rows: NumberRows) -> Tensor:
    """Raise a TypeError."""
    raise TypeError("`score` 'margin' is for classes; these targets are numbers. Use 'entropy' or 'bald'.")


def epig(rows: NumberRows, aims: NumberRows) -> Tensor:
    """Return the mutual information of a row's targets and those of each aim, in the mean over aims, (B,), nats."""
    squared_BTK = squared_covariances(rows, aims) / (rows.variance_BK.unsqueeze(1) * aims.variance_BK)
    return -0.5 * torch.log1p(-squared_BTK).mean(1).sum(-1)


def variance(rows: NumberRows, aims: NumberRows) -> Tensor:
    """Return by how much targets lower the variance of the function at aims, in the mean over aims, (B,)."""
    return (squared_covariances(rows, aims).mean(1) / rows.variance_BK).sum(-1)


def squared_covariances(rows: NumberRows, aims: NumberRows) -> Tensor:
    """Return unbiased squares of the covariances of rows with aims, (B, T, K)."""
    if (n := rows.draws - 1) < 2:
        raise ValueError(
            f"`score` 'epig' and 'variance' need at least 3 draws for squared covariances; got {rows.draws}. Raise "
            f"`draws`, or fit more members."
        )
    ours_SBK, theirs_STK = rows.apart_SBK, aims.apart_SBK
    covariance_BTK = torch.einsum("sbk,stk->btk", ours_SBK, theirs_STK)
    product_BTK = ours_SBK.square().sum(0).unsqueeze(1) * theirs_STK.square().sum(0)
    return n * (n * covariance_BTK.square() - product_BTK) / ((n + 2) * (n - 1))


@dataclass
class NumberBatch:
    """What the targets of a batch would say of the function, in the space of the draws."""

    draws: int
    information: float = 0.0  # of all targets of the batch together and the function, nats

    def __post_init__(self) -> None:
        self.known_SN = torch.zeros(self.draws, 0, dtype=torch.float64)  # I − V Vᵀ is what is left of the covariance

    @property
    def limit(self) -> str:
        """Why the last rows may not be told apart; empty if they are."""
        if (targets := self.known_SN.shape[1]) < self.draws - 1:
            return ""
        return f"its {targets} targets are as many as {self.draws} draws have directions"

    def gains(self, rows: NumberRows) -> Tensor:
        """Return what each row would add to the information, (B,), nats."""
        return _half_log_det(self._left(rows)[1])

    def add(self, row: NumberRows) -> None:
        """Add a row."""
        moved_SBK, left_BKK = self._left(row)
        self.information += float(_half_log_det(left_BKK)[0])
        within_KK = torch.eye(len(left_BKK[0]), dtype=torch.float64, device=left_BKK.device) + left_BKK[0]
        root_KK = torch.linalg.cholesky(within_KK)
        new_SK = torch.linalg.solve_triangular(root_KK, moved_SBK[:, 0].T, upper=False).T
        self.known_SN = torch.cat([self.known_SN, new_SK], dim=1)

    def _left(self, rows: NumberRows) -> tuple[Tensor, Tensor]:
        """Return the covariances that are left, in units of the noise: of draws and rows, and within rows."""
        scaled_SBK = rows.apart_SBK / rows.noise_BK.sqrt()
        self.known_SN = self.known_SN.to(scaled_SBK.device)
        along_NB = self.known_SN.T @ scaled_SBK.flatten(1)
        moved_SBK = scaled_SBK - (self.known_SN @ along_NB).view_as(scaled_SBK)
        return moved_SBK, torch.einsum("sbk,sbl->bkl", scaled_SBK, moved_SBK)


def _half_log_det(covariance_BKK: Tensor) -> Tensor:
    """Return ½ log det(I + K) of each matrix, (B,)."""
    if covariance_BKK.shape[-1] == 1:
        return 0.5 * torch.log1p(covariance_BKK[:, 0, 0])
    identity = torch.eye(covariance_BKK.shape[-1], dtype=torch.float64, device=covariance_BKK.device)
    return 0.5 * torch.linalg.slogdet(identity + covariance_BKK).logabsdet

r"""Scores of classes: of each class of a row, how untypical it would be; the larger, the less typical.

    lac      1 − p_k                                         {k: p_k ≥ 1 − q}: smallest sets; may be empty
    aps      Σ_{j: p_j > p_k} p_j + U p_k                    classes from the most probable on (Romano et al. 2020)
    raps     the same + λ (rank of k − free)₊                fewer improbable classes (Angelopoulos et al. 2021)

U is uniform on (0, 1), one for each row; coverage is then that of the rank, and sets may be empty. With U = 0, the
default, nothing is random, and a set is never empty: it holds the most probable class, and every other as long as the
classes before it have at most the probability q together. Coverage is more than asked for where the most probable
class alone has more. Sadinle et al. (2019) give `lac`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from torchbayes.checks import check_counts, check_flags, check_not_negative, plain


@runtime_checkable
class ClassScore(Protocol):
    """A score of classes; a user's own has this method."""

    def class_scores(self, probs_BK: Tensor, uniform_B: Tensor) -> Tensor:
        """Return the score of each class, (B, K), from probabilities and one uniform number for each row."""
        ...


@dataclass(frozen=True)
class LAC:
    """1 − p_k: the smallest sets on average, by one bound on the probability."""

    name: ClassVar = "lac"

    def class_scores(self, probs_BK: Tensor, uniform_B: Tensor) -> Tensor:
        """Return 1 − p_k."""
        return 1 - probs_BK


@dataclass(frozen=True)
class APS:
    """Σ_{j: p_j > p_k} p_j + U p_k: sets that are larger where the prediction is less certain.

    Attributes:
        randomised: whether U is random; else it is 0, and sets hold at least the most probable class.
    """

    name: ClassVar = "aps"
    randomised: bool = False

    def __post_init__(self) -> None:
        check_flags(randomised=self.randomised)

    def class_scores(self, probs_BK: Tensor, uniform_B: Tensor) -> Tensor:
        """Return the probability of all classes that are more probable, and the share U of its own."""
        share_B1 = uniform_B.unsqueeze(1) if self.randomised else 0.0
        return _above(probs_BK)[0] + share_B1 * probs_BK


@dataclass(frozen=True)
class RAPS:
    """Σ_{j: p_j > p_k} p_j + U p_k + λ (rank − free)₊: with many classes, sets without the long tail.

    Attributes:
        penalty: λ, of each class beyond the free ones.
        free: number of most probable classes without a penalty.
        randomised: whether U is random; else it is 0, and sets hold at least the most probable class.
    """

    name: ClassVar = "raps"
    penalty: float = 0.01
    free: int = 1
    randomised: bool = False

    def __post_init__(self) -> None:
        plain(self)
        check_not_negative(penalty=self.penalty)
        check_counts(free=self.free, least=0)
        check_flags(randomised=self.randomised)

    def class_scores(self, probs_BK: Tensor, uniform_B: Tensor) -> Tensor:
        """Return the score of APS and the penalty; classes of equal probability have equal ranks, the first of them."""
        share_B1 = uniform_B.unsqueeze(1) if self.randomised else 0.0
        above_BK, rank_BK = _above(probs_BK)
        return above_BK + share_B1 * probs_BK + self.penalty * (rank_BK - self.free).clamp_min(0)


CLASS_SCORES: dict[str, Any] = {kind.name: kind for kind in (LAC, APS, RAPS)}


def _above(probs_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of the classes that are more probable than each, and its rank from 1 on, (B, K)."""
    sorted_BK, order_BK = probs_BK.sort(-1, descending=True)
    before_BK = sorted_BK.cumsum(-1) - sorted_BK
    first_BK = torch.searchsorted(-sorted_BK, -sorted_BK)  # the first of those of equal probability
    above_BK = torch.empty_like(probs_BK).scatter(-1, order_BK, before_BK.gather(-1, first_BK))
    return above_BK, torch.empty_like(probs_BK).scatter(-1, order_BK, (first_BK + 1).to(probs_BK))

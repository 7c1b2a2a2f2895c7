"""Student-t noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution
from torch.distributions.utils import broadcast_all

from torchbayes.model.likelihoods.protocol import NONE, Listed, Parameters, target_columns
from torchbayes.model.likelihoods.shapes import Regression, columns_of
from torchbayes.settings import Checked


@dataclass(frozen=True)
class StudentT(Checked, Regression):
    """y ~ f + scale · t(df): regression that tolerates outliers.

    Attributes:
        df: degrees of freedom; above 2 the variance exists.
        scale: scale of the t distribution, in units of the targets.
    """

    listed: ClassVar = Listed(
        "student_t",
        "targets with outliers: Student's t around the output (df, scale)",
        "regression",
        target_columns,
    )

    df: float = 4.0
    scale: float = 1.0

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return StudentT(df, f, scale)."""
        del parameters
        return _Unchecked(self.df, outputs, self.scale)

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of the Fisher information of the location, (df + 1) / ((df + 3) scale²)."""
        del targets, parameters
        return columns_of(torch.full_like(outputs, math.sqrt((self.df + 1) / (self.df + 3)) / self.scale))


class _Unchecked(distributions.StudentT):
    """torch's distribution without the check of the degrees of freedom, which a traced network cannot make."""

    def __init__(self, df: Tensor | float, loc: Tensor, scale: Tensor | float) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = distributions.Chi2(self.df, validate_args=False)
        Distribution.__init__(self, self.df.size(), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> _Unchecked:
        """Return the distribution in a larger batch shape."""
        del _instance
        return _Unchecked(*(t.expand(batch_shape) for t in (self.df, self.loc, self.scale)))

"""Regression: normal noise of a fixed or learned scale, or of one that the network gives; Student-t noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution
from torch.distributions.utils import broadcast_all

from torchbayes.checks import check_counts, check_each, check_scale, optional, plain
from torchbayes.model.likelihoods.protocol import NONE, Learned, Listed, Parameters, target_columns
from torchbayes.model.likelihoods.shapes import Regression, columns_of, spread
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.univariate import Prior, check_prior
from torchbayes.settings import NOT_NEGATIVE, Checked

_START = 0.5  # a learned scale starts at this share of the targets' standard deviation
_BELIEF = {"df": 2.0, "scale": 0.1}  # docs/decisions/0021-a-noise-scale-that-stays-above-zero.md


@dataclass(frozen=True)
class Gaussian(Regression):
    """y ~ N(f, scale²): regression with fixed, per-output or learned noise.

    A learned scale is a weight like the others. Under the usual prior its mode is at

        scale² = (S + 2 (spread/10)²)/(N + 2)

    for N residuals with the sum of squares S: above zero even if the network interpolates the training rows, but far
    below the noise of new rows. `fit` reports this where rows are few (`Posterior.problems`). Where held-out rows
    choose the length of MAP, SWA or SWAG, the noise of the posterior is not that mode: S and N are then those of the
    residuals of rows that trial runs left out.

    Attributes:
        scale: noise standard deviation in units of the targets: one number, one per output, or `"learned"` (inferred as
            `likelihood.log_scale` in the flat vector).
        outputs: number of outputs with a noise of their own when learned; 1 shares one scale.
        initial: starting value of a learned scale. None for half the spread, or, in a fit that starts from a trained
            module, the most probable value at its residuals; in both cases at least the most probable value at the
            residuals of held-out rows, if such rows choose the length of a fit.
        prior: prior of the learned log scale; None for `priors.LogInverseChi(df=2, scale=spread / 10)`, which is worth
            two residuals of a tenth of the spread.
        spread: standard deviation of the targets: one number, or one per output, if each has a noise of its own. If it
            is None and needed, `fit` measures it on its training rows, and gives the posterior a model that has it; in
            other uses of a model, None stands for 1.
    """

    listed: ClassVar = Listed(
        "gaussian",
        "targets with normal noise around the output, its scale learned or fixed (scale, initial)",
        "regression",
        target_columns,
        {"scale": "learned"},
    )

    scale: float | tuple[float, ...] | str = 1.0
    outputs: int = 1
    initial: float | None = None
    prior: Prior | None = None
    spread: float | tuple[float, ...] | None = field(default=None, repr=False)  # of the data, not of the model

    def __post_init__(self) -> None:
        plain(self)
        if isinstance(self.scale, str):
            if self.scale != "learned":
                raise ValueError(f"`scale` must be a number, a tuple of numbers or 'learned'; got {self.scale!r}.")
        elif isinstance(self.scale, tuple):
            check_each(check_scale, scale=self.scale)
        else:
            check_scale(scale=self.scale)
        check_counts(outputs=self.outputs)
        optional(check_scale, initial=self.initial)
        optional(check_prior, prior=self.prior)
        if self.spread is not None:
            check_each(check_scale, spread=as_tuple(self.spread))
        if len(as_tuple(self.spread)) not in {0, 1, self.outputs}:
            raise ValueError(
                f"`spread` must be one number, or one for each of {self.outputs} `outputs`; got {self.spread}."
            )

    @property
    def scales(self) -> tuple[float, ...]:
        """The fixed scales: one, or one per output; none when learned."""
        if isinstance(self.scale, str):
            return ()
        return self.scale if isinstance(self.scale, tuple) else (float(self.scale),)

    def having_scales(self, scales: tuple[float, ...]) -> Gaussian:
        """Return the likelihood with other fixed scales, as many as it has."""
        return replace(self, scale=scales if isinstance(self.scale, tuple) else scales[0])

    def parameters(self) -> Mapping[str, Learned]:
        """Return the log scale when it is learned."""
        if self.scale != "learned":
            return {}
        spreads = as_tuple(self.spread) or (1.0,)
        given_start = None if self.initial is None else math.log(self.initial)
        initial = tuple(math.log(_START * spread) if given_start is None else given_start for spread in spreads)
        usual = LogInverseChi(_BELIEF["df"], as_setting(tuple(_BELIEF["scale"] * spread for spread in spreads)))
        prior = usual if self.prior is None else self.prior
        return {"log_scale": Learned((self.outputs,), as_setting(initial), prior, estimate=given_start is None)}

    def asks(self) -> bool:
        """Return whether a learned scale depends on a spread that is not known."""
        return self.scale == "learned" and self.spread is None and (self.initial is None or self.prior is None)

    def informed(self, targets: Tensor, weights_N: Tensor | None = None) -> Gaussian:
        """Return the likelihood with the spread of targets (N, ...), without values that are not finite.

        `weights_N` say how often each row counts; once if None.
        """
        return replace(self, spread=as_setting(spread(targets, weights_N, columns=self.outputs)))

    def noise(self, outputs: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return the noise scale, broadcasting against outputs (..., B, K)."""
        if self.scale == "learned":
            return parameters["log_scale"].exp()
        return torch.as_tensor(self.scale, dtype=outputs.dtype, device=outputs.device)

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return Normal(f, scale)."""
        return distributions.Normal(outputs, self.noise(outputs, parameters), validate_args=False)

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Check shape, dtype and finiteness of real targets, and the number of noise scales."""
        super().check(outputs, targets)
        scales = len(self.scales) or self.outputs
        if scales not in {1, outputs.shape[-1]}:
            raise ValueError(f"Gaussian has {scales} noise scales but the network gives {outputs.shape[-1]} outputs.")

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of diag(1 / scale²), (K, B, ...)."""
        return columns_of((1 / self.noise(outputs, parameters)).expand_as(outputs))

    def parameter_information(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> dict[str, Tensor]:
        """Return the Fisher information of the log scale at each row, 2 for every value of its targets."""
        return {
            n: p.new_full((len(outputs), *p.shape), 2 * outputs[0].numel() / p.numel()) for n, p in parameters.items()
        }


def as_tuple(spread: float | tuple[float, ...] | None) -> tuple[float, ...]:
    """Return a setting as a tuple: one number, or one per output; empty if it is None."""
    return () if spread is None else spread if isinstance(spread, tuple) else (spread,)


def as_setting(values: tuple[float, ...]) -> float | tuple[float, ...]:
    """Return the one number of a tuple, or the tuple."""
    first, *others = values
    return values if others else first


@dataclass(frozen=True)
class HeteroscedasticGaussian(Checked, Regression):
    """y ~ N(m, s²) with f = [m, r], s² = softplus(r) + floor (Lakshminarayanan et al. 2017).

    Attributes:
        floor: smallest noise variance, in squared units of the targets.
    """

    listed: ClassVar = Listed(
        "heteroscedastic",
        "targets with normal noise whose variance is a second output (floor)",
        "regression",
        lambda data: 2 * target_columns(data),
    )

    floor: float = field(default=1e-6, metadata=NOT_NEGATIVE)

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return Normal(m, s): the first half of the last axis is the mean, the second half gives the variance."""
        mean, raw = outputs.chunk(2, dim=-1)
        return distributions.Normal(mean, (F.softplus(raw) + self.floor).sqrt(), validate_args=False)

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Check that the outputs come in pairs and the targets are real and finite."""
        width = outputs.shape[-1]
        if width % 2:
            raise ValueError(f"HeteroscedasticGaussian needs two outputs per target (mean, raw variance); got {width}.")
        super().check(outputs[..., : width // 2], targets)

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of the Fisher information of (m, r): 1/s² and ½ (ds²/dr)²/s⁴, uncorrelated."""
        raw = outputs.chunk(2, dim=-1)[1]
        variance = F.softplus(raw) + self.floor
        return columns_of(torch.cat([variance.rsqrt(), math.sqrt(0.5) * raw.sigmoid() / variance], dim=-1))


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
        return _Unchecked(self.df, outputs, self.scale)

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
        """Return columns of the Fisher information of the location, (df + 1) / ((df + 3) scale²)."""
        return columns_of(torch.full_like(outputs, math.sqrt((self.df + 1) / (self.df + 3)) / self.scale))


class _Unchecked(distributions.StudentT):
    """torch's distribution without the check of the degrees of freedom, which a traced network cannot make."""

    def __init__(self, df: Tensor | float, loc: Tensor, scale: Tensor | float) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = distributions.Chi2(self.df, validate_args=False)
        Distribution.__init__(self, self.df.size(), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> _Unchecked:
        """Return the distribution in a larger batch shape."""
        return _Unchecked(*(t.expand(batch_shape) for t in (self.df, self.loc, self.scale)))

"""What is believed of the targets, and how further observations change it: weighted functions, or a normal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from torchbayes.botorch.draws import DrawnPosterior
from torchbayes.botorch.values import Fixed, Moments, Source, Values
from torchbayes.posteriors.problems import warn_of

_FEW = 5.0  # effective draws below which a conditioned model says little

Noise = Tensor | bool


@dataclass(frozen=True, eq=False)
class Weighted:
    """Functions with weights, p_s ∝ Π_i N(y_i; f_s(x_i), σ_s²) after observations.

    Attributes:
        source: the functions.
        targets: the numbers of the targets that are asked for; all if None.
        log_weights_S: log p_s, (..., S); equal if None.
    """

    source: Any
    targets: tuple[int, ...] | None = None
    log_weights_S: Tensor | None = None

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the sets of observations; empty without such."""
        return torch.Size() if self.log_weights_S is None else self.log_weights_S.shape[:-1]

    @property
    def effective_draws(self) -> Tensor:
        """1/Σ_s p_s², (batch_shape)."""
        if self.log_weights_S is None:
            return torch.tensor(float(self.source.draws))
        return 1 / self.log_weights_S.detach().exp().square().sum(-1)

    def posterior(self, X: Tensor, noise: Noise, units: Any) -> DrawnPosterior:
        """Return the values at points (..., q, d) in the units of an outcome transform, if there is one."""
        mean, variance = self._values(X)
        added = None if noise is False else variance if noise is True else torch.as_tensor(noise).unsqueeze(-3)
        added = None if added is None else added.to(mean).expand_as(mean)
        if units is not None:
            mean, added = units.untransform(mean, added, X=X)
        return DrawnPosterior(mean, None if self.log_weights_S is None else self.log_weights_S.exp().to(mean), added)

    def of(self, targets: Sequence[int]) -> Weighted:
        """Return what is believed of some of the targets."""
        return replace(self, targets=_some(self.targets, targets))

    def given(self, X: Tensor, Y: Tensor, noise: Tensor | None) -> Weighted:
        """Return what is believed after observations Y (sets, ..., n, m) at X (..., n, d)."""
        mean, variance = self._values(X)
        variance = variance if noise is None else noise.unsqueeze(-3).to(mean).expand_as(mean)
        normal = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False)
        log_prob = normal.log_prob(Y.unsqueeze(-3)).sum((-1, -2))
        before = 0.0 if self.log_weights_S is None else self.log_weights_S
        made = replace(self, log_weights_S=(log_prob + before).log_softmax(-1))
        if not made.batch_shape and float(made.effective_draws) < min(_FEW, self.source.draws):
            left = f"the observations leave {float(made.effective_draws):.1f} effective draws (add them by `refit`)"
            warn_of([left], "this conditioned model")
        return made

    def fixed(self, seed: int) -> Fixed | None:
        """Return one function; None if there are several sets of weights."""
        if self.batch_shape:
            return None
        return self.source.fixed(seed, None if self.log_weights_S is None else self.log_weights_S.exp())

    def _values(self, X: Tensor) -> Values:
        values = self.source.values(X)
        return values if self.targets is None else Values(*(each[..., self.targets] for each in values))


@dataclass(frozen=True, eq=False)
class Conditioned:
    """Normal outputs, given observations: Cov(f, f') − C(f, y) (C(y, y) + σ²)⁻¹ C(y, f').

    Attributes:
        source: the normal before them; conditioned itself where some of its targets are asked for.
        targets: the numbers of the targets that are asked for; all if None.
        X: points of the observations, (..., n, d), as the network takes them.
        Y: the observations, (sets, ..., n, m).
        noise: their variances; those of the likelihood if None.
    """

    source: Source | Conditioned
    targets: tuple[int, ...] | None = None
    X: Tensor | None = None
    Y: Tensor | None = None
    noise: Tensor | None = None

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the sets of observations; empty without such."""
        if self.Y is None:
            return self.source.batch_shape if isinstance(self.source, Conditioned) else torch.Size()
        return self.Y.shape[:-2]

    def posterior(self, X: Tensor, noise: Noise, units: Any) -> Any:
        """Return the normal at points (..., q, d) in the units of an outcome transform, if there is one."""
        mean, covariance, own_noise = self.moments(X)
        if noise is not False:
            added = own_noise if noise is True else torch.as_tensor(noise).to(mean)
            covariance = covariance + torch.diag_embed(added.expand_as(mean).flatten(-2))
        covariance = _steadied(covariance)
        single = mean.shape[-1] == 1
        normal = (
            MultivariateNormal(mean[..., 0], covariance) if single else MultitaskMultivariateNormal(mean, covariance)
        )
        result = GPyTorchPosterior(normal)
        return result if units is None else units.untransform_posterior(result, X=X)

    def of(self, targets: Sequence[int]) -> Conditioned:
        """Return what is believed of some of the targets; observations of the others tell of these too."""
        if self.Y is None:
            return replace(self, targets=_some(self.targets, targets))
        return Conditioned(self, tuple(targets))

    def given(self, X: Tensor, Y: Tensor, noise: Tensor | None) -> Conditioned:
        """Return what is believed after observations Y (sets, ..., n, m) at X (..., n, d) too."""
        if self.X is None or self.Y is None:
            return replace(self, X=X, Y=Y, noise=noise)
        if (noise is None) != (self.noise is None):
            raise ValueError("observations with given noise and without do not mix. Give `noise` for all or none.")
        batch = torch.broadcast_shapes(X.shape[:-2], self.X.shape[:-2])
        sets = torch.broadcast_shapes(Y.shape[:-2], self.Y.shape[:-2], batch)
        joined = None
        if noise is not None and self.noise is not None:
            joined = _after(self.noise.expand_as(self.Y), noise.expand_as(Y), sets)
        return replace(self, X=_after(self.X, X, batch), Y=_after(self.Y, Y, sets), noise=joined)

    def fixed(self, seed: int) -> Fixed | None:
        """Return one function; None after observations."""
        if self.Y is not None or isinstance(self.source, Conditioned):
            return None
        return self.source.fixed(seed, None)

    def moments(self, X: Tensor) -> Moments:
        """Return mean, covariance and noise of all values at points (..., q, d)."""
        if self.X is None or self.Y is None:
            return self._before(X)
        batch, rows = torch.broadcast_shapes(self.X.shape[:-2], self.Y.shape[:-2], X.shape[:-2]), self.X.shape[-2]
        mean, covariance, noise = self._before(_after(self.X, X, batch))
        known = rows * self.Y.shape[-1]
        added = (noise[..., :rows, :] if self.noise is None else self.noise.to(mean)).expand(*batch, *self.Y.shape[-2:])
        matrix = covariance[..., :known, :known] + torch.diag_embed(added.flatten(-2))
        factor = psd_safe_cholesky(_steadied(matrix))
        residual = (self.Y - mean[..., :rows, :]).flatten(-2).unsqueeze(-1)
        whitened = torch.linalg.solve_triangular(factor, covariance[..., :known, known:], upper=False)
        moved = whitened.mT @ torch.linalg.solve_triangular(factor, residual, upper=False)
        rest = mean[..., rows:, :]
        left = covariance[..., known:, known:] - whitened.mT @ whitened
        return Moments(rest + moved.reshape(rest.shape), left, noise[..., rows:, :])

    def _before(self, X: Tensor) -> Moments:
        """Return the moments without the observations."""
        mean, covariance, noise = self.source.moments(X)
        if self.targets is None:
            return Moments(mean, covariance, noise)
        places = torch.arange(mean.shape[-2:].numel()).view(mean.shape[-2:])
        kept = places[:, self.targets].flatten()
        return Moments(mean[..., self.targets], covariance[..., kept, :][..., kept], noise[..., self.targets])


def _some(before: tuple[int, ...] | None, targets: Sequence[int]) -> tuple[int, ...]:
    return tuple(targets) if before is None else tuple(before[number] for number in targets)


def _after(before: Tensor, now: Tensor, batch: torch.Size) -> Tensor:
    """Return rows (..., n, k) after others, expanded to a batch."""
    return torch.cat([each.expand(*batch, *each.shape[-2:]) for each in (before, now)], dim=-2)


def _steadied(covariance: Tensor) -> Tensor:
    """Return a covariance whose Cholesky factor exists in spite of rounding."""
    share = 1e-8 if covariance.dtype == torch.float64 else 1e-5
    added = share * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(share)
    return covariance + added[..., None, None] * torch.eye(covariance.shape[-1]).to(covariance)

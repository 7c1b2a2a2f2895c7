r"""A posterior of BoTorch over finitely many functions, which may have weights and noise.

With functions f_s of weight p_s, Σ_s p_s = 1, and noise variances v_s,

    E f = Σ_s p_s f_s,    Var f = Σ_s p_s (f_s − E f)² / (1 − Σ_s p_s²) + Σ_s p_s v_s

where the divisor is that of BoTorch's `EnsemblePosterior`, 1 − 1/S for equal weights.

A sample is one function at all q points, outputs and places of the batch, plus noise: f_s + √v_s ε. It is made from
normal base samples, z of which chooses the function by s = F⁻¹(Φ(z)), F the cumulative weights. Quasi-random samples
are therefore spread evenly over the functions, and every sampler of BoTorch for normal posteriors can be used.
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, NormalMCSampler, SobolQMCNormalSampler
from torch import Tensor
from torch.quasirandom import SobolEngine

_NORMAL = {"mvn", "distribution", "covariance_matrix"}


class DrawnPosterior(EnsemblePosterior):
    """The values of S functions at q points.

    Attributes:
        values: m values of each function at each point, (..., S, q, m).
    """

    def __init__(self, values: Tensor, weights: Tensor | None = None, noise: Tensor | None = None) -> None:
        """Put values, weights and noise together.

        Args:
            values: (..., S, q, m).
            weights: of the functions, (..., S), not negative; equal if None.
            noise: variances of the noise, which broadcast against the values; no noise if None.
        """
        shape = values.shape if weights is None else torch.broadcast_shapes(values.shape, (*weights.shape, 1, 1))
        values = values.expand(shape)
        self._weights_S = values.new_ones(values.shape[-3]) if weights is None else weights.to(values)
        self._weights_S = self._weights_S / self._weights_S.sum(-1, keepdim=True)
        self._noise = None if noise is None else noise.expand_as(values)
        super().__init__(values)

    def _compute_normalized_weights(self) -> Tensor:
        return self._weights_S

    def _compute_normalized_mixture_weights(self) -> Tensor:
        spread = self._weights_S.expand(self.values.shape[:-2])
        return spread / spread.sum()

    @property
    def variance(self) -> Tensor:
        """Σ_s p_s (f_s − E f)² / (1 − Σ_s p_s²), and the noise, (..., q, m); without noise 0 if S is 1."""
        weights = self.weights[..., None, None]
        squares = (weights * (self.values - self.mean.unsqueeze(-3)).square()).sum(-3)
        rest = 1 - weights.square().sum(-3)
        spread = squares / rest.clamp_min(torch.finfo(self.dtype).eps)
        return spread if self._noise is None else spread + (weights * self._noise).sum(-3)

    def __getattr__(self, name: str) -> Any:
        if name in _NORMAL:
            raise AttributeError(
                f"functions that were drawn have no `{name}`, which this acquisition function takes of a normal "
                f"posterior. Make the surrogate by PosteriorModel(posterior, form='normal')."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def base_sample_shape(self) -> torch.Size:
        """(..., 1), the function, or (..., 1 + q m) with noise."""
        noise = 0 if self._noise is None else self.values.shape[-2:].numel()
        return self.batch_shape + torch.Size([1 + noise])

    @property
    def batch_range(self) -> tuple[int, int]:
        """The axes of base samples over which samples are the same."""
        return (0, -1)

    def weighed(self, weights: Tensor, offset: float | Tensor = 0.0) -> DrawnPosterior:
        """Return the posterior of one target, Σ_m w_m y_m + offset.

        Args:
            weights: (m,).
            offset: a number.
        """
        weights = weights.to(self.values)
        noise = None if self._noise is None else (self._noise @ weights.square()).unsqueeze(-1)
        return DrawnPosterior((self.values @ weights + offset).unsqueeze(-1), self._weights_S, noise)

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """Return samples (sample_shape, ..., q, m), independent over the batch; random as PyTorch's global state says.

        Args:
            sample_shape: of the samples; one if None.
        """
        sample_shape = sample_shape if sample_shape else torch.Size([1])
        shape = sample_shape + self.base_sample_shape
        # PyTorch's own generator, as BoTorch's posteriors do: its samplers, which have seeds, give base samples instead
        base = torch.randn(shape, generator=None, dtype=self.dtype, device=self.device)
        return self.rsample_from_base_samples(sample_shape, base)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Return samples (sample_shape, ..., q, m).

        Args:
            sample_shape: of the samples.
            base_samples: standard normals (sample_shape, *base_sample_shape), or the numbers of functions
                (sample_shape, ...), as an `IndexSampler` gives them.

        Raises:
            ValueError: if the base samples have another shape, or are numbers of functions where there is noise.
        """
        indexed = not base_samples.is_floating_point()
        wanted = sample_shape + (self.batch_shape if indexed else self.base_sample_shape)
        if base_samples.shape != wanted:
            raise ValueError(f"`base_samples` must have shape {tuple(wanted)}; got {tuple(base_samples.shape)}.")
        if indexed and self._noise is not None:
            raise ValueError(
                "`base_samples` are numbers of functions, from which no noise can be made. Use the sampler that "
                "botorch.sampling.get_sampler returns."
            )
        functions = base_samples if indexed else self._functions(base_samples[..., 0])
        samples = _chosen(self.values, functions)
        if self._noise is None:
            return samples
        return samples + _chosen(self._noise, functions).sqrt() * base_samples[..., 1:].reshape(samples.shape)

    def _functions(self, normals: Tensor) -> Tensor:
        """Return the numbers of the functions that standard normals (sample_shape, ...) choose."""
        edges = self.weights.detach().cumsum(-1)[..., :-1].contiguous()  # without the last, which rounding may move
        levels = torch.special.ndtr(normals)
        if edges.ndim == 1:
            return torch.searchsorted(edges, levels.contiguous(), right=True)
        batch = self.batch_shape
        flat = levels.reshape(normals.shape[: normals.ndim - len(batch)].numel(), batch.numel()).T.contiguous()
        places = torch.searchsorted(edges.expand(*batch, -1).reshape(batch.numel(), -1).contiguous(), flat, right=True)
        return places.T.reshape(normals.shape)


def _chosen(values: Tensor, functions: Tensor) -> Tensor:
    """Return the values (..., S, q, m) of the functions with these numbers (sample_shape, ...)."""
    batch, rest = values.shape[:-3], values.shape[-2:]
    samples = functions.shape[: functions.ndim - len(batch)]
    flat = values.reshape(batch.numel(), *values.shape[-3:])
    places = torch.arange(batch.numel(), device=values.device)
    return flat[places, functions.reshape(samples.numel(), batch.numel())].reshape(*samples, *batch, *rest)


@GetSampler.register(DrawnPosterior)
def _sampler_of(posterior: Posterior, sample_shape: torch.Size, *, seed: int | None = None) -> NormalMCSampler:
    """Return the sampler of a posterior over functions: quasi-random, or random where there are too many numbers."""
    few = posterior.base_sample_shape[-1] <= SobolEngine.MAXDIM
    return (SobolQMCNormalSampler if few else IIDNormalSampler)(sample_shape=sample_shape, seed=seed)

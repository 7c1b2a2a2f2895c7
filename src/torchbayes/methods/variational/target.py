"""What a Gaussian with independent weights approximates: a normal prior, known exactly, and a loss taken at draws.

IVON and bSAM move mean and precision of such a Gaussian by natural gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.linalg import Diagonal
from torchbayes.methods.choices import Choice, PriorScale
from torchbayes.methods.defaults import Defaults, OnMinibatches
from torchbayes.methods.finite import FOR_STEPS, WORKSPACE, Seen, clone
from torchbayes.methods.keepers import Kept
from torchbayes.methods.protocol import Needs, Shelf
from torchbayes.methods.variational.passes import Penalty
from torchbayes.model.network import Buffers
from torchbayes.model.priors.bound import Segment
from torchbayes.model.priors.joint import Joint
from torchbayes.model.priors.univariate import Flat, Normal
from torchbayes.posteriors.gaussian import Gaussian


class Target(NamedTuple):
    """The tempered posterior, as a normal prior and a loss."""

    ess: float  # λ = N/T
    penalty: Penalty  # mean, and precision over λ, of the normal part of the prior
    others: tuple[Segment, ...]  # parts of the prior that are not normal; they belong to the loss
    scale: float  # factor on log p(w) in the log joint density
    factors: Tensor  # of Σ log (h + δ) and of Σ δ ((m − μ)² + 1/(λ(h + δ))) in the divergence; (2,), float64
    constant: float  # the other terms of the divergence, in nats
    log_norm: float  # −log density of the normal part of the prior at its mean

    @classmethod
    def of(cls, density: LogDensity, like: Tensor) -> Target:
        """Return the target of a density, in the dtype and on the device of `like`."""
        scales = density.model.scales(density.num_data, density.num_data)
        prior, ess = density.model.prior, density.num_data * scales.likelihood
        normal = [s for s in prior.segments if is_normal(s)]
        others = tuple(s for s in prior.segments if not is_normal(s) and not isinstance(s.prior, Flat))
        penalty = _penalty(normal, scales.prior / ess, like=like)
        log_norm = sum(_log_norm(segment) for segment in normal)
        constant = scales.prior * log_norm - 0.5 * like.shape[-1] * (1 + math.log(2 * math.pi / ess))
        factors = torch.tensor([0.5, 0.5 * ess], dtype=torch.float64, device=like.device)
        return cls(ess, penalty, others, scales.prior, factors, constant, log_norm)

    def divergence(self, sums_M2: Tensor, weights_SMD: Tensor) -> Tensor:
        """Return KL(q ‖ p) of each member, float64, from the sums of a draw.

        Priors that are not normal are evaluated at the draws.
        """
        kl_M = torch.mv(sums_M2, self.factors).add_(self.constant)
        for segment in self.others:
            kl_M = kl_M - self.scale * segment.total(weights_SMD).mean(0)
        return kl_M


_TARGETS: WeakKeyDictionary[LogDensity, Target] = WeakKeyDictionary()


def target_of(density: LogDensity, like: Tensor) -> Target:
    """Return the target of a density, made once: its numbers are the same at every step."""
    if density not in _TARGETS:
        _TARGETS[density] = Target.of(density, like)
    return _TARGETS[density]


def narrowed(density: LogDensity, precision_MD: Tensor, scale_MD: Tensor) -> Tensor:
    """Return precisions over λ, (M, D), raised to those of the standard deviations `scale_MD` where these are not 0."""
    start_MD = 1 / (target_of(density, precision_MD).ess * scale_MD.to(precision_MD).square())
    return torch.where(scale_MD > 0, torch.maximum(precision_MD, start_MD), precision_MD)


def is_normal(segment: Segment) -> bool:
    """Return whether the weights of a segment have independent normal priors."""
    prior = segment.prior
    return isinstance(prior, Normal) or (isinstance(prior, Joint) and prior.is_independent)


def _log_norm(segment: Segment) -> float:
    """Return Σ log s√2π of a normal segment with standard deviations s."""
    logs = torch.as_tensor(segment.std, dtype=torch.float64).log() + 0.5 * math.log(2 * math.pi)
    return float(logs.sum()) * ((segment.where.stop - segment.where.start) / logs.numel())


def _penalty(normal: list[Segment], factor: float, *, like: Tensor) -> Penalty:
    """Return means and precisions, times a factor, of normal segments; 0 for all other weights."""
    size = like.shape[-1]
    penalty = Penalty(like.new_zeros(size), like.new_zeros(size))
    for segment in normal:
        loc, std = (torch.as_tensor(number, dtype=torch.float64) for number in (segment.loc, segment.std))
        penalty.loc[segment.where] = loc.to(like)
        penalty.precision[segment.where] = (factor / std**2).to(like)
    same = all(bool((t == t[0]).all()) for t in penalty)  # one number for all weights
    return Penalty(*(t[:1].clone() for t in penalty)) if same else penalty


@dataclass(frozen=True)
class Moving:
    """What the next step of such a method needs."""

    mean_MD: Tensor  # m
    precision_MD: Tensor  # of q over λ, positive
    momentum_MD: Tensor = field(metadata=FOR_STEPS)
    buffers: Buffers
    seeds: tuple[int, ...]
    step: int
    steps_per_epoch: int
    total_steps: int
    # numbers of past steps that are not checked yet
    unseen: tuple[Seen, ...] = field(default=(), metadata=WORKSPACE, repr=False, kw_only=True)

    @property
    def weights_MD(self) -> Tensor:
        """The means."""
        return self.mean_MD

    @property
    def done(self) -> float:
        """Completed share of the run, in [0, 1]."""
        return self.step / self.total_steps


class NaturalGradient(OnMinibatches, Kept, Defaults, ABC):
    """Base of methods that move mean and precision of a Gaussian with independent weights."""

    state = Moving
    carries = "prior"

    @property
    def needs(self) -> Needs:
        return Needs(batch_size=self.batch_size, network="train", spread=True)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (PriorScale(length=0.5),)

    @abstractmethod
    def precision(self, density: LogDensity, mean_MD: Tensor) -> Tensor:
        """Return the first precision over λ, (M, D)."""

    @abstractmethod
    def scratch(self, mean_MD: Tensor) -> Sequence[Tensor]:
        """Return memory for the steps, the other fields of a state."""

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Any:
        mean_MD = weights_MD.detach().clone(memory_format=torch.contiguous_format)
        return self.state(
            mean_MD,
            self.precision(density, mean_MD),
            torch.zeros_like(mean_MD),
            clone(buffers),
            tuple(seeds),
            0,
            steps_per_epoch,
            self.length(steps_per_epoch),
            *self.scratch(mean_MD),
        )

    def posterior(self, density: LogDensity, state: Any, shelf: Shelf | None = None) -> Gaussian:
        """Return the mixture of the members' Gaussians."""
        variance_MD = 1 / (state.precision_MD * target_of(density, state.mean_MD).ess)
        return Gaussian(density.model, state.mean_MD.clone(), Diagonal(variance_MD), buffers_M=state.buffers or None)

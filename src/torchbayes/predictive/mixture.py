"""An equal mixture of predictive distributions: its average, moments, quantiles and samples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.checks import (
    as_numbers,
    as_seed,
    check_counts,
    check_memory,
    check_object,
    check_tensor,
    optional,
)
from torchbayes.model.likelihoods import Categorical, Likelihood, Parameters
from torchbayes.model.likelihoods.quantiles import average_quantile
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.native.process import undisturbed_methods
from torchbayes.predictive.classes import average_entropies, check_ordered, moment, over_classes
from torchbayes.randomness.seeds import Purpose, seeded

_Mixture = TypeVar("_Mixture", bound="Mixture")


@undisturbed_methods
@dataclass(frozen=True)
class Mixture:
    """An equal mixture of S predictive distributions at B inputs; `Predictive` describes the fields."""

    outputs_SBK: Tensor
    likelihood: Likelihood
    parameters: Parameters = field(default_factory=dict)
    function_variance: Tensor | None = None

    def __post_init__(self) -> None:
        _check_parts(self)

    @property
    def draws(self) -> int:
        """S."""
        return len(self.outputs_SBK)

    @property
    def distribution(self) -> Distribution:
        """The S distributions p(y | f_s), batch shape (S, B, ...)."""
        noise = self._noise
        if self.function_variance is None:
            return noise
        return distributions.Normal(noise.mean, (noise.variance + self.function_variance).sqrt(), validate_args=False)

    @property
    def _noise(self) -> Distribution:
        """The likelihood's distribution at the outputs."""
        return self.likelihood.distribution(self.outputs_SBK, self.parameters)

    @property
    def probs(self) -> Tensor:
        """Averaged class probabilities: (B, K) for classes; for Bernoulli the probability of 1, shape of the targets.

        A TypeError if the likelihood is not over classes.
        """
        return torch.as_tensor(over_classes(self.distribution).probs).mean(0)

    @property
    def mean(self) -> Tensor:
        """Mean of the targets, (B, K'); it and the variances raise a TypeError where targets are classes."""
        return moment(self.distribution, "mean").mean(0)

    @property
    def epistemic(self) -> Tensor:
        """Variance of the mean over draws, Var_s E[y | f_s]: what more data would remove; (B, K')."""
        between = moment(self.distribution, "mean").var(0, correction=0)
        return between if self.function_variance is None else between + self.function_variance.mean(0)

    @property
    def aleatoric(self) -> Tensor:
        """Mean over draws of the variance, E_s Var[y | f_s]: the noise in the data; (B, K')."""
        return moment(self._noise, "variance").mean(0)

    @property
    def variance(self) -> Tensor:
        """Variance of the targets under the average: epistemic + aleatoric; (B, K')."""
        return self.epistemic + self.aleatoric

    @property
    def entropy(self) -> Tensor:
        """Total entropy of the averaged class probabilities, (B, ...), in nats."""
        return self._entropies[0]

    @property
    def expected_entropy(self) -> Tensor:
        """Mean over draws of the entropy: the part that more data would not remove; (B, ...), in nats."""
        return self._entropies[1]

    @property
    def mutual_information(self) -> Tensor:
        """Entropy of the mean minus mean entropy: the disagreement of the draws; (B, ...), at least 0, in nats.

        Computed as the mean divergence from the mean, which stays accurate where the draws nearly agree.
        """
        return self._entropies[2]

    @cached_property
    def _entropies(self) -> tuple[Tensor, Tensor, Tensor]:
        """Total and expected entropy and mutual information."""
        total, expected, mutual = average_entropies(self.distribution)
        return total.to(self.outputs_SBK), expected.to(self.outputs_SBK), mutual.to(self.outputs_SBK)

    def quantile(self, levels: Tensor | float) -> Tensor:
        """Return quantiles of the average of univariate distributions, exact to rounding; of counts these are counts.

        Args:
            levels: tensor (Q,) or one number, in (0, 1).

        Returns:
            Tensor (Q, B, K'), or (B, K') for one number.

        Raises:
            ValueError: if there is no level, or one is not in (0, 1).
            TypeError: if levels are not numbers, or the likelihood is over classes.
            NotImplementedError: if the likelihood's Distribution has no `cdf`.
        """
        numbers = as_numbers("levels", levels).to(self.outputs_SBK)
        single, levels_Q = numbers.ndim == 0, numbers.reshape(-1)
        if not levels_Q.numel() or not ((levels_Q > 0) & (levels_Q < 1)).all():
            raise ValueError(f"`levels` must lie in (0, 1); got {numbers.tolist()}.")
        check_ordered(self.distribution)
        quantiles_Q = average_quantile(self.distribution, levels_Q)
        return quantiles_Q[0] if single else quantiles_Q

    def sample(self, count: int, *, seed: int = 0) -> Tensor:
        """Return targets drawn from the average, (count, B, ...): draw s mod S, then its distribution.

        Args:
            count: number of samples per input.
            seed: seed of the noise.

        Raises:
            ValueError: if `count` is not positive, or the samples do not fit in memory.
        """
        check_counts(count=count)
        rounds = -(-count // self.draws)
        needed = rounds * self.draws * self.distribution.batch_shape[1:].numel() * self.outputs_SBK.itemsize
        check_memory(needed, "samples", self.outputs_SBK.device, count=count)
        with seeded(Purpose.TARGETS, as_seed(seed), device=self.outputs_SBK.device):
            samples = self.distribution.sample((rounds,))
        return samples.flatten(0, 1)[:count]


def some_rows(mixture: _Mixture, rows: slice | Tensor) -> _Mixture:
    """Return the mixture at some of its inputs, a range of them or those of these numbers."""
    spread = mixture.function_variance
    spread = None if spread is None else spread[:, rows]
    return replace(mixture, outputs_SBK=mixture.outputs_SBK[:, rows], function_variance=spread)


def _check_parts(mixture: Mixture) -> None:
    """Raise a ValueError if the shapes of a mixture's parts do not fit."""
    outputs_SBK, spread = mixture.outputs_SBK, mixture.function_variance
    check_tensor(outputs_SBK=outputs_SBK)
    optional(check_tensor, function_variance=spread)
    check_object(("distribution", "log_prob"), "Categorical()", likelihood=mixture.likelihood)
    check_object(("items",), "{}", parameters=mixture.parameters)
    shape = tuple(outputs_SBK.shape)
    if len(shape) < 2 or not outputs_SBK.numel():
        raise ValueError(f"`outputs_SBK` must have shape (S, B, K); got {shape}.")
    if spread is not None and spread.shape != (means := _shape_of_means(mixture)):
        raise ValueError(f"`function_variance` must have the shape of the means, {means}; got {tuple(spread.shape)}.")
    check_outputs(mixture.likelihood, outputs_SBK)


def _shape_of_means(mixture: Mixture) -> tuple[int, ...]:
    """Return the shape of the means of numbers, which may be some of the outputs; that of the outputs for classes."""
    shape, each = tuple(mixture.outputs_SBK.shape), tuple(mixture._noise.batch_shape)
    return each if len(each) == len(shape) else shape


def check_outputs(likelihood: Likelihood, outputs_SBK: Tensor) -> None:
    """Raise a ValueError if an output is NaN or +∞, or all classes of a row are masked by logits of −∞."""
    if not outputs_SBK.is_floating_point() or bool(outputs_SBK.sum().isfinite()):
        return  # so all are finite
    wrong = outputs_SBK.isnan() | outputs_SBK.isposinf()
    if isinstance(unweighted(likelihood), Categorical):
        wrong = wrong | outputs_SBK.isneginf().all(-1, keepdim=True)
    if wrong.any():
        rows_B = wrong.movedim(1, 0).flatten(1).any(1)
        count, first = int(rows_B.sum()), int(rows_B.nonzero()[0])
        raise ValueError(
            f"the outputs at {count} of {len(rows_B)} inputs, the first of them {first}, are NaN or infinite, and say "
            f"nothing of the targets. Look for extreme values in these inputs, and in the network for what divides by "
            f"0 or masks every class."
        )

"""The Bayesian model average: p(y|x, D) ≈ (1/S) Σ_s p(y | f_s(x)), with functions f_s drawn from a posterior.

Probabilities are averaged, never outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.checks import as_numbers, as_seed, check_counts, check_memory, check_object, check_tensor, given
from torchbayes.display import shown
from torchbayes.metrics._checks import check_probs
from torchbayes.model.likelihoods import Categorical, Custom, Likelihood, Parameters
from torchbayes.model.likelihoods.protocol import average_log_prob, scored
from torchbayes.model.likelihoods.quantiles import average_quantile
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.native.seeds import Purpose, seeded
from torchbayes.predictive.classes import (
    Decision,
    average_entropies,
    check_ordered,
    class_probs,
    decided,
    moment,
    over_classes,
)
from torchbayes.predictive.columns import frame_of, overview_of
from torchbayes.predictive.intervals import checked_interval


@shown(overview_of)
@dataclass(frozen=True)
class Predictive:
    """An equal mixture of S predictive distributions at B inputs.

    Attributes:
        outputs_SBK: outputs of the drawn functions, before the likelihood.
        likelihood: turns outputs into a distribution of targets.
        parameters: learned likelihood parameters of each draw, broadcasting against the outputs.
        function_variance: variance of each draw's outputs in closed form, (S, B, K), where a draw is a Gaussian over
            functions and the likelihood a normal one; None where draws are functions.
    """

    outputs_SBK: Tensor
    likelihood: Likelihood
    parameters: Parameters = field(default_factory=dict)
    function_variance: Tensor | None = None

    def __post_init__(self) -> None:
        _check_parts(self)

    @classmethod
    def from_probs(cls, probs: Tensor) -> Predictive:
        """Make the predictive of published class probabilities.

        Args:
            probs: tensor (B, K), or (S, B, K) with one set per draw; rows sum to 1.

        Returns:
            The predictive.

        Raises:
            ValueError: if the shape is wrong or rows do not sum to 1 within 1e-3.
        """
        check_probs("probs", probs)
        if probs.ndim not in {2, 3}:
            raise ValueError(f"`probs` must have shape (B, K) or (S, B, K); got {tuple(probs.shape)}.")
        return cls((probs if probs.ndim == 3 else probs.unsqueeze(0)).log(), Categorical())

    @property
    def draws(self) -> int:
        """S."""
        return len(self.outputs_SBK)

    @property
    def distribution(self) -> Distribution:
        """The S distributions p(y | f_s), batch shape (S, B, ...)."""
        own = self._noise
        if self.function_variance is None:
            return own
        return distributions.Normal(own.mean, (own.variance + self.function_variance).sqrt(), validate_args=False)

    @property
    def _noise(self) -> Distribution:
        """The likelihood's distribution at the outputs."""
        return self.likelihood.distribution(self.outputs_SBK, self.parameters)

    @property
    def probs(self) -> Tensor:
        """Averaged class probabilities: (B, K) for classes; for Bernoulli the probability of 1, shape of the targets.

        Raises:
            TypeError: if the likelihood is not over classes.
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

    def log_prob(self, targets: Any) -> Tensor:
        """Return log p(y_b | x_b, D) = logsumexp_s log p(y_b | f_s(x_b)) − log S.

        Weights of rows and classes do not enter, and ignored places contribute nothing. A soft label gives Σ_k q_k log
        p(k).

        Args:
            targets: (B, ...) or a tree of such, aligned with the outputs: labels of a causal language model as
                `model.unpack` moves them, one place earlier than in `labels=input_ids`.

        Returns:
            Tensor (B,), in nats.
        """
        judged = scored(self.likelihood, self.outputs_SBK[0], targets)
        likelihood = judged.likelihood if self.function_variance is None else Custom(lambda _: self.distribution)
        return average_log_prob(likelihood, self.outputs_SBK, judged.targets, parameters=self.parameters)

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
        total, expected, mutual = (part.to(self.outputs_SBK) for part in average_entropies(self.distribution))
        return total, expected, mutual

    def decide(self, loss_AK: Any) -> Decision:
        """Return the action of least expected loss at each input, argmin_a Σ_k loss(a, k) p(k | x, D).

        Args:
            loss_AK: loss of action a when class k is true, (A, K) finite numbers in any units; a gain is a negative
                loss. For Bernoulli (A, 2): the columns are 0 and 1.

        Returns:
            The actions (B, ...), of tied ones the first, and their expected losses (B, ...).

        Raises:
            TypeError: if the likelihood is not over classes, or losses are not numbers.
            ValueError: if their shape does not fit, or one is not finite.
        """
        return decided(class_probs(self.distribution), loss_AK)

    def quantile(self, levels: Tensor | float) -> Tensor:
        """Return quantiles of the average of univariate distributions; of counts these are counts.

        Args:
            levels: tensor (Q,) or one number, in (0, 1).

        Returns:
            Tensor (Q, B, K'), or (B, K') for one number; exact to rounding.

        Raises:
            ValueError: if there is no level, or one is not in (0, 1).
            TypeError: if levels are not numbers, or the likelihood is over classes.
            NotImplementedError: if the likelihood's Distribution has no `cdf`.
        """
        asked = as_numbers("levels", levels).to(self.outputs_SBK)
        single, levels_Q = asked.ndim == 0, asked.reshape(-1)
        if not levels_Q.numel() or not ((levels_Q > 0) & (levels_Q < 1)).all():
            raise ValueError(f"`levels` must lie in (0, 1); got {asked.tolist()}.")
        check_ordered(self.distribution)
        found = average_quantile(self.distribution, levels_Q)
        return found[0] if single else found

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval of each number: the quantiles at (1 ∓ level) / 2.

        Args:
            level: probability inside, in (0, 1); half of the rest lies on either side.

        Returns:
            Low and high ends, (B, K') each; from samples where the likelihood's Distribution has no `cdf`.
        """
        return checked_interval(self, level)

    def frame(self, **units: Any) -> Any:
        """Return the predictions as a pandas DataFrame: see `torchbayes.predictive.columns.frame_of`."""
        return frame_of(self, **units)

    def sample(self, count: int, *, seed: int = 0) -> Tensor:
        """Return targets drawn from the average: draw s mod S, then its distribution.

        Args:
            count: number of samples per input.
            seed: seed of the noise.

        Returns:
            Tensor (count, B, ...).

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


def _check_parts(predictive: Predictive) -> None:
    """Check the parts of a predictive.

    Raises:
        ValueError: if shapes do not fit.
    """
    outputs_SBK, spread = predictive.outputs_SBK, predictive.function_variance
    check_tensor(outputs_SBK=outputs_SBK, **given(function_variance=spread))
    check_object(("distribution", "log_prob"), "Categorical()", likelihood=predictive.likelihood)
    check_object(("items",), "{}", parameters=predictive.parameters)
    shape = tuple(outputs_SBK.shape)
    if len(shape) < 2 or not outputs_SBK.numel():
        raise ValueError(f"`outputs_SBK` must have shape (S, B, K); got {shape}.")
    if spread is not None and spread.shape != outputs_SBK.shape:
        raise ValueError(f"`function_variance` must have the shape of outputs, {shape}; got {tuple(spread.shape)}.")
    check_outputs(predictive.likelihood, outputs_SBK)


def check_outputs(likelihood: Likelihood, outputs_SBK: Tensor) -> None:
    """Check that outputs say something: a logit of −∞ is that of a masked class, but not all of a row can be.

    Raises:
        ValueError: if one is NaN or +∞, or no class is left.
    """
    if not outputs_SBK.is_floating_point() or bool(outputs_SBK.sum().isfinite()):
        return  # so all are
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

"""The Bayesian model average: p(y|x, D) ≈ (1/S) Σ_s p(y | f_s(x)), with functions f_s drawn from a posterior.

Probabilities are averaged, never outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchbayes.display import shown
from torchbayes.metrics._checks import check_probs
from torchbayes.model.likelihoods import Categorical, Custom
from torchbayes.model.likelihoods.protocol import average_log_prob, scored
from torchbayes.model.likelihoods.quantiles import check_level
from torchbayes.native.process import undisturbed_methods
from torchbayes.predictive.classes import check_ordered
from torchbayes.predictive.columns import frame_of, overview_of
from torchbayes.predictive.intervals import central_interval
from torchbayes.predictive.mixture import Mixture


@undisturbed_methods
@shown(overview_of)
@dataclass(frozen=True)
class Predictive(Mixture):
    """The model average at B inputs: an equal mixture of the predictive distributions of S functions.

    Attributes:
        outputs_SBK: outputs of the drawn functions, before the likelihood.
        likelihood: turns outputs into a distribution of targets.
        parameters: learned likelihood parameters of each draw, broadcasting against the outputs.
        function_variance: variance of each draw's outputs in closed form, (S, B, K), where a draw is a Gaussian
            over functions and the likelihood is normal; None where draws are functions.
    """

    @classmethod
    def from_probs(cls, probs: Tensor) -> Predictive:
        """Return the predictive of published class probabilities.

        Args:
            probs: tensor (B, K), or (S, B, K) with one set per draw; rows sum to 1.

        Raises:
            ValueError: if the shape is wrong or rows do not sum to 1 within 1e-3.
        """
        check_probs("probs", probs)
        if probs.ndim not in {2, 3}:
            raise ValueError(f"`probs` must have shape (B, K) or (S, B, K); got {tuple(probs.shape)}.")
        return cls((probs if probs.ndim == 3 else probs.unsqueeze(0)).log(), Categorical())

    def log_prob(self, targets: Any) -> Tensor:
        """Return log p(y_b | x_b, D) = logsumexp_s log p(y_b | f_s(x_b)) − log S, (B,), in nats.

        Weights of rows and classes are not used, and ignored places contribute nothing. A soft label gives Σ_k q_k
        log p(k).

        Args:
            targets: (B, ...) or a tree of such, aligned with the outputs: labels of a causal language model as
                `model.unpack` moves them, one place earlier than in `labels=input_ids`.

        Raises:
            TypeError: if targets are not of the kind that the likelihood takes.
            ValueError: if they do not have the shape of the outputs, or are not finite.
        """
        judged = scored(self.likelihood, self.outputs_SBK[0], targets)
        judged.likelihood.check(self.outputs_SBK[0], judged.targets)
        likelihood = judged.likelihood if self.function_variance is None else Custom(lambda _: self.distribution)
        return average_log_prob(likelihood, self.outputs_SBK, judged.targets, parameters=self.parameters)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval of each number: the quantiles at (1 ∓ level) / 2.

        Args:
            level: probability inside, in (0, 1).

        Returns:
            Low and high ends, (B, K') each; from samples where the likelihood's Distribution has no `cdf`.
        """
        check_ordered(self.distribution)
        check_level(level)
        return central_interval(self, 1 - level)

    def frame(self, **units: Any) -> Any:
        """Return the predictions as a pandas DataFrame: see `torchbayes.predictive.columns.frame_of`."""
        return frame_of(self, **units)

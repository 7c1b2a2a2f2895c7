"""Simple Monte Carlo: p(D) is the mean of the likelihood over the prior.

    log p(D) ≈ log (1/S) Σ_s p(D|w_s),     w_s ~ p(w)

Unbiased on the natural scale. The number of draws it needs grows exponentially with the information in the data,
KL(posterior ‖ prior) (Chatterjee and Diaconis 2018), so it is a check for tiny problems.
"""

from __future__ import annotations

from typing import Any

import torch

from torchbayes.checks import as_seed, check_counts
from torchbayes.evidence.estimate import Evidence, log_mean, warn_of_few
from torchbayes.evidence.path import Target, as_target
from torchbayes.model.model import Model
from torchbayes.randomness.seeds import Purpose, mix

_BLOCK = 1000  # draws held at a time


def prior_monte_carlo(model: Model | Target, data: Any = None, *, draws: int = 100_000, seed: int = 0) -> Evidence:
    """Estimate the log evidence by draws from the prior.

    Args:
        model: a model with proper priors and temperature 1, or a `FunctionTarget`.
        data: as for `fit`; None with a `FunctionTarget`.
        draws: S, draws from the prior.
        seed: seed of the draws.

    Returns:
        The estimate, with the error of the jackknife. Details: `ess`, effective number of draws.

    Raises:
        TypeError: if `model` is neither.
        ValueError: if a prior is improper, the temperature is not 1, the data do not fit, or no draw explains them.
    """
    check_counts(draws=draws)
    seed = as_seed(seed)
    target = as_target(model, data)
    blocks = []
    for number, start in enumerate(range(0, draws, _BLOCK)):
        weights_MD = target.draw(min(_BLOCK, draws - start), mix(Purpose.MONTE_CARLO, seed, number))
        blocks.append(target.parts(weights_MD).log_likelihood.cpu())
    mean = log_mean(torch.cat(blocks))
    warn_of_few(mean.ess, "draws", "Use annealed importance sampling, or many more draws.")
    return Evidence(mean.value, mean.error, "prior Monte Carlo", {"ess": mean.ess, "draws": draws})

"""Is a posterior with a density, such as a Gaussian, close to the posterior it stands for? By importance weights.

    r_s = log p(D | w_s) + log p(w_s) − log q(w_s),    w_s ~ q

over all rows, with the temperature of the model. k̂, the shape of the tail of e^{r_s}
(`torchbayes.diagnostics.psis`), judges a variational posterior (Yao, Vehtari, Simpson and Gelman 2018, "Yes, but
did it work?"). It costs a forward pass of all rows for each of S draws: at S = 400 as much as some hundred epochs
of training.

It asks whether q is the posterior over weights, not whether its predictions are good. The more weights there are,
the further every q is from the posterior in this sense: from some dozens on, k̂ > 0.7 even for good ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import seen
from torchbayes.diagnostics.importance import psis
from torchbayes.display import Overview, shown
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.priors.sparse import LogUniform
from torchbayes.posteriors.flows.posterior import FlowPosterior
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.layers.radial import RadialPosterior
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import warn_of

Approximating = Gaussian | LaplacePosterior | RadialPosterior | FlowPosterior
DRAWS = 400
_GOOD, _USABLE, _LARGE = 0.5, 0.7, 20
_BLOCK = 2**22  # numbers held at once, of weights of drawn networks or of their outputs


_SHOWN = ("k", "verdict", "draws", "ess", "rows", "weights")


@shown(lambda approximation: Overview("Approximation", {name: getattr(approximation, name) for name in _SHOWN}))
@dataclass(frozen=True)
class Approximation:
    """How close a posterior with a density q is to the posterior p(w | D) of its model.

    Attributes:
        k: k̂ of the importance weights; ∞ where there are too few draws for a tail.
        draws: S, draws from q.
        rows: rows of the data; they must be all to which the posterior was fitted.
        weights: D.
        ess: effective number of draws under the smoothed weights, 1/Σ w_s².
        log_ratios_S: r, float64 (S,), in nats.
    """

    k: float
    draws: int
    rows: int
    weights: int
    ess: float
    log_ratios_S: Tensor

    @property
    def verdict(self) -> str:
        """What k̂ says: "good", "usable" or "not to be trusted"."""
        return "good" if self.k < _GOOD else "usable" if self.k < _USABLE else "not to be trusted"

    @property
    def words(self) -> str:
        """The result and its meaning, as sentences."""
        basis = f"{self.draws:,} draws and {self.rows:,} rows"
        summary = f"k-hat is {self.k:.2f} over {basis}: as a posterior over weights it is "
        if self.k < _GOOD:
            return f"{summary}good, below {_GOOD}. Averages over its draws are close to those over the posterior."
        if self.k < _USABLE:
            return (
                f"{summary}usable, below {_USABLE}: averages over its draws are best corrected by importance weights, "
                f"`torchbayes.diagnostics.psis(found.log_ratios_S)`."
            )
        remedy = (
            f" With {self.weights:,} weights that is to be expected of every approximation, and does not say that "
            f"predictions are bad: judge these by rows that were held out, `evaluate`."
            if self.weights >= _LARGE
            else " With as few weights, sample the posterior instead, with HMC or NUTS."
        )
        return f"{summary}not to be trusted, above {_USABLE}: no number of draws corrects it.{remedy}"


def of_density(
    posterior: Approximating, inputs: Any, targets: Any, *, draws: int = DRAWS, chunk_size: int | None = None
) -> Approximation:
    """Return how close a posterior with a density q is to the posterior of its model.

    `inputs` and `targets` are of all rows to which it was fitted. S is raised to a multiple of the members. A
    ValueError if there are no rows or targets, or p or q has no density.
    """
    model = posterior.model
    _check_densities(posterior)
    warn_of(posterior.problems)
    inputs, rows = model.place(inputs), 0 if inputs is None else batch_size(inputs)
    targets = None if targets is None else model.place(targets, "targets")
    if targets is None or rows == 0 or batch_size(targets) != rows:
        raise ValueError(
            f"`inputs` and `targets` must be all rows that the posterior was fitted to; got {rows} rows and "
            f"{'no' if targets is None else batch_size(targets)} targets. Give both."
        )
    draws = -(-draws // posterior.members) * posterior.members
    functions = posterior.functions(draws, seed=0)
    block = max(1, _BLOCK // model.layout.size)
    ratios = []
    for start in range(0, draws, block):
        some = functions.some(slice(start, start + block))
        fit_S = _log_likelihood(some, inputs, targets, chunk_size=chunk_size)
        scales = model.scales(rows, rows)
        prior_S = scales.prior * model.log_prior(some.weights_SD).cpu()
        ratios.append(scales.likelihood * fit_S + prior_S - posterior.log_prob(some.weights_SD).cpu())
    ratios_S = torch.cat(ratios)
    smoothed = psis(ratios_S)
    ess = float((-torch.logsumexp(2 * smoothed.log_weights, 0)).exp())
    return Approximation(float(smoothed.k), draws, rows, model.layout.size, ess, ratios_S)


def _log_likelihood(functions: Any, inputs: Any, targets: Any, *, chunk_size: int | None) -> Tensor:
    """Return the log likelihood of all rows under each function, float64 (S,) on the CPU."""
    likelihood, rows = functions.model.likelihood, batch_size(inputs)
    total_S = torch.zeros(functions.draws, dtype=torch.float64)
    first = functions.some(slice(0, 1))(rows_of(inputs, slice(0, 1)))
    size = chunk_size or max(1, _BLOCK // (functions.draws * max(1, first.numel())))
    for start in range(0, rows, size):
        where = slice(start, start + size)
        outputs_SBK, some = functions(rows_of(inputs, where)), rows_of(targets, where)
        likelihood.check(outputs_SBK[0], some)
        for s, outputs in enumerate(outputs_SBK):
            parameters = {name: values[s] for name, values in functions.parameters.items()}
            total_S[s] += float(likelihood.log_prob(outputs, some, parameters).sum(dtype=torch.float64))
    return total_S


def _check_densities(posterior: Posterior) -> None:
    """Raise a ValueError unless a posterior, and that of its model, have densities."""
    if any(isinstance(segment.prior, LogUniform) for segment in posterior.model.prior.segments):
        raise ValueError(
            "under priors.LogUniform() the posterior is improper, so that nothing can be close to it. Judge "
            "predictions by rows that were held out, `evaluate`."
        )
    covariance = getattr(posterior, "covariance", None)
    if covariance is not None and not bool((covariance.diagonal() > 0).all()):
        raise ValueError(
            f"the posterior has weights that do not vary, as those of features in a network whose last layer alone is "
            f"Bayesian, so that it has no density; got {seen(posterior)}. Judge predictions by rows that were held "
            f"out, `evaluate`."
        )

"""Checks of a Laplace posterior: its weights are a mode, and its draws explain the training rows like those near it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.health.constant import num_targets
from torchbayes.health.ending import Case, first, named
from torchbayes.linalg import Scaled
from torchbayes.linalg.dropped import rest_diagonal
from torchbayes.model.batches.batch import Batch, rows_of
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.links import MANY
from torchbayes.predictive.predict import predict

AWAY = "is not at a mode of this model"
"""The problem reported where the gradient of the log joint density is too large for a mode."""

TOO_CAUTIOUS = "so its probabilities are too cautious"
"""What is said of a posterior that predicts its training rows far worse than its modes do."""

_ROWS = 128  # looked at: a closed form costs the Jacobian of each
# nats per target that the average may lose in any case: what the quadratic form allows a model with one output of a
# row, whose γ is at most n
_LOSS = 0.5


def off_mode(posterior: LaplacePosterior, gradient_MD: Tensor) -> list[str]:
    """Return a problem if the weights are further below a mode than draws of the posterior are.

    With the gradient g and precision P a step of Newton's method would raise the log joint density by ½ gᵀ P⁻¹ g.
    Draws of the posterior lie γ/2 below the mode in the directions that the data determine, γ = tr H P⁻¹ of them
    (MacKay 1992). Where the step would gain more than that, the weights are not a mode in any useful sense. The part
    of P that a low rank leaves out enters the step by its diagonal; without it, the step would be as long as the prior
    is wide. `gradient_MD` is that of the log likelihood, under the noise scale of the fit.
    """
    model, mean_MD = posterior.model, posterior.mean_MD
    scales = model.scales(1, 1)
    gradient_MD = scales.likelihood * posterior.noise_scale**-2 * gradient_MD
    model.prior.add_gradient_(gradient_MD, mean_MD, scales.prior)
    covariance, outside_MD = posterior.gaussian.covariance, rest_diagonal(posterior.curvature)
    if outside_MD.any():
        inner = posterior.curvature.covariance(posterior.strength_D + outside_MD)
        covariance = Scaled(posterior.reference_MD.rsqrt(), inner)
    gain_M = 0.5 * (gradient_MD * covariance.matvec(gradient_MD)).sum(-1, dtype=torch.float64)
    determined_M = posterior.effective_parameters().clamp_min(0)  # below 0 only by rounding
    norm_M = torch.linalg.vector_norm(gradient_MD, dim=-1)
    away_M = gain_M > (determined_M / 2).clamp_min(1.0)
    return [
        f"{named(away_M)} {AWAY}: the gradient of the log joint density has norm "
        f"{float(norm_M[m]):.3g}, and a Newton step would raise it by {float(gain_M[m]):.3g} nats, where draws of "
        f"the posterior lie about {float(determined_M[m]) / 2:.3g} below a mode (train to convergence under this "
        f"likelihood and prior: longer, or at a larger learning rate)"
        for m in first(away_M)
    ]


def too_wide(case: Case, *, remedy: str) -> list[str]:
    """Return a problem if a Laplace posterior predicts the training rows far worse than its modes do, with a remedy.

    Where the log joint density is quadratic, draws lose γ/2 nats on all n targets together, and their average no more
    than that (MacKay 1992). It loses more where the curvature at the mode says little of the density around it.
    Weights trained without the prior grow until every row is certain: the curvature there nearly vanishes, and the
    posterior is as wide as the prior. The predictions are those that users get, such as the closed form of the
    linearised network. Rows of more than a hundred outputs are not looked at: their predictions would take more memory
    than the fit, and many times its passes.
    """
    posterior: LaplacePosterior = case.posterior
    if posterior.problems:  # weights that are no mode explain it
        return []
    batches = case.source.some(_ROWS)
    modes = Point(posterior.model, posterior.mean_MD, buffers_M=posterior.buffers_M, statistics_known=True)
    outputs = predict(modes, rows_of(batches[0].inputs, slice(0, 1))).outputs_SBK[0, 0].numel()
    if outputs > MANY:
        return []
    log_likelihoods = (_log_likelihood(p, batches, outputs) for p in (posterior, modes))
    average, best = (each / num_targets(posterior.model, batches) for each in log_likelihoods)
    allowed = float(posterior.effective_parameters().max()) / 2 / posterior.num_targets
    if best - average <= max(allowed, _LOSS):
        return []
    return [
        f"it predicts the training rows far worse than its mode does ({average:.3g} against {best:.3g} nats a target, "
        f"where the quadratic form allows a loss of {allowed:.2g}), {TOO_CAUTIOUS}: the curvature that was kept says "
        f"little of the density around the mode ({remedy}, or take SWAG or IVON)"
    ]


def _log_likelihood(posterior: Posterior, batches: Sequence[Batch], outputs: int) -> float:
    """Return Σ log p(y|x) of the rows under the predictions of a posterior, weighted as the rows are, in nats.

    The Jacobian has a row for each of the `outputs`, so that so many times fewer rows of a batch go through at once.
    """
    total = 0.0
    for batch in batches:
        predictive = predict(posterior, batch.inputs, chunk_size=math.ceil(batch.size / outputs))
        log_prob_B = predictive.log_prob(batch.targets).double()
        weights_B = scored(predictive.likelihood, predictive.outputs_SBK[0], batch.targets).row_weights
        total += float((log_prob_B if weights_B is None else log_prob_B * weights_B).sum())
    return total

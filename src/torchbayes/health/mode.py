"""Check that the weights of a Laplace posterior are a mode."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbayes.health.ending import first, named
from torchbayes.linalg import Scaled
from torchbayes.linalg.dropped import rest_diagonal
from torchbayes.posteriors.laplace import LaplacePosterior

AWAY = "is not at a mode of this model"
"""The problem reported where the gradient of the log joint density is too large for a mode."""


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

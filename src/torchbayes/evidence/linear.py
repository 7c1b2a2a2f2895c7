"""The exact evidence of linear models with Gaussian noise and normal priors, for testing estimators.

With f_w = f_0 + Φ w, w ~ N(μ_0, S_0) and y ~ N(f_w, Σ), where S_0 and Σ are diagonal,

    log p(D) = log N(y; f_0 + Φ μ_0, Φ S_0 Φᵀ + Σ)

(Bishop 2006, section 3.5). With A = Σ^{−½} Φ S_0^{½} and r = Σ^{−½} (y − f_0 − Φ μ_0) the covariance is I + A Aᵀ in
units of the noise, N × N. If there are fewer weights than that, the smaller I + AᵀA, D × D, has the same
determinant, and with u = (I + AᵀA)^{−1} Aᵀ r the quadratic form is |r − A u|² + |u|², a sum without cancellation.
Everything is in float64.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchbayes.evidence.estimate import Evidence
from torchbayes.evidence.path import check_model
from torchbayes.model.likelihoods.protocol import counted
from torchbayes.model.likelihoods.weighted import fixed_noise
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Network, module_at
from torchbayes.model.priors.univariate import Normal
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed
from torchbayes.randomness.seeds import Purpose, generator

_TRIALS = 4  # random weights at which linearity is checked
_TOLERANCE = 1e-8  # relative to the outputs; a linear network in float64 is about 1e-14 off


@undisturbed
def linear_gaussian_evidence(model: Model, data: Any) -> Evidence:
    """Return the exact log evidence of a network that is linear in its random weights, with Gaussian noise.

    Last-layer models (`random="head.*"`) are of this kind too. Memory: 8 bytes times rows, outputs and weights.

    Args:
        model: a network linear in its weights, likelihood `Gaussian` with fixed scale, priors `Normal`, temperature
            1.
        data: as for `fit`.

    Returns:
        The evidence, with error 0. Details: `form`, "weights" for D × D or "rows" for N × N.

    Raises:
        TypeError: if `model` is not a model.
        ValueError: if likelihood or priors are of another kind, the network is not linear, or the data do not fit.
    """
    check_model(model)
    if not fixed_noise(model.likelihood):
        raise ValueError(f"the likelihood must be Gaussian with a fixed scale; got {model.likelihood!r}.")
    loc_D, scale_D = _normal_prior(model)
    source = as_source(model, data, 1024)
    source.check()
    rows = source.rows().map(lambda t: t.double() if t.is_floating_point() else t)
    original = model.network
    network = Network(
        module_at(original, loc_D).double(), original.random if original.mask.indices else original.layout.names
    )
    centre_NK, features_NKD = _linear(network, rows, loc_D, scale_D)
    plain: Any
    plain, targets, weights_N = counted(model.likelihood, centre_NK, rows.targets)
    noise_NK = plain.noise(centre_NK).expand_as(centre_NK)
    weights_N1 = centre_NK.new_ones(len(centre_NK), 1) if weights_N is None else weights_N.unsqueeze(1)
    residual_NK = weights_N1.sqrt() * (targets.reshape(centre_NK.shape) - centre_NK) / noise_NK
    scaled = (features_NKD * scale_D * (weights_N1.sqrt() / noise_NK).unsqueeze(-1)).flatten(0, 1)
    value, form = _standard(residual_NK.flatten(), scaled)
    # A row of weight w has w times the constant of the density.
    value -= float((weights_N1 * noise_NK.log() + 0.5 * (weights_N1 - 1) * math.log(2 * math.pi)).sum())
    return Evidence(value, 0.0, "exact, linear-Gaussian", {"form": form})


def _standard(residual_N: Tensor, scaled_ND: Tensor) -> tuple[float, str]:
    """Return log N(r; 0, I + A Aᵀ) by the smaller of two matrices, and which it was."""
    rows, weights = scaled_ND.shape
    by_weights = weights <= rows
    gram = scaled_ND.T @ scaled_ND if by_weights else scaled_ND @ scaled_ND.T
    factor = torch.linalg.cholesky(gram + torch.eye(len(gram)).to(gram))
    log_determinant = 2 * factor.diagonal().log().sum()
    if by_weights:
        u_D = torch.cholesky_solve((scaled_ND.T @ residual_N).unsqueeze(1), factor)[:, 0]
        square = (residual_N - scaled_ND @ u_D).square().sum() + u_D.square().sum()
    else:
        square = torch.linalg.solve_triangular(factor, residual_N.unsqueeze(1), upper=False).square().sum()
    value = -0.5 * float(square + log_determinant) - 0.5 * rows * math.log(2 * math.pi)
    return value, "weights" if by_weights else "rows"


def _normal_prior(model: Model) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of every weight, float64 (D,); a ValueError if a prior is not normal."""
    loc_D = torch.zeros(model.layout.size, dtype=torch.float64, device=model.network.device)
    scale_D = torch.ones_like(loc_D)
    for segment in model.prior.segments:
        if not isinstance(segment.prior, Normal):
            raise ValueError(
                f"every prior must be Normal, lest the evidence has no closed form; got {segment.prior!r}."
            )
        loc_D[segment.where], scale_D[segment.where] = segment.prior.loc, segment.prior.scale
    return loc_D, scale_D


def _linear(network: Network, rows: Batch, loc_D: Tensor, scale_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs at the prior's mean, (N, K), and slopes, (N, K, D); a ValueError for a nonlinear network."""
    with torch.no_grad():
        centre_NK = network(loc_D, rows.inputs)
        slopes = []
        for weight, scale in enumerate(scale_D.tolist()):
            moved_D = loc_D.clone()
            moved_D[weight] += scale
            slopes.append((network(moved_D, rows.inputs) - centre_NK) / scale)
        features_NKD = torch.stack(slopes, dim=-1)
        random = generator(Purpose.LINEARITY)
        for _ in range(_TRIALS):
            step_D = 3 * scale_D * torch.randn(len(scale_D), generator=random, dtype=torch.float64).to(scale_D)
            outputs_NK = network(loc_D + step_D, rows.inputs)
            expected_NK = centre_NK + features_NKD @ step_D
            size = float(outputs_NK.abs().max() + centre_NK.abs().max() + (features_NKD.abs() @ step_D.abs()).max())
            gap = float((outputs_NK - expected_NK).abs().max())
            if not gap <= _TOLERANCE * max(size, 1e-300):
                raise ValueError(
                    f"the network must be linear in its random weights; at random ones its outputs are {gap:.2g} off a "
                    f"linear function. Estimate the evidence, for example by annealed_importance_sampling."
                )
    return centre_NK, features_NKD

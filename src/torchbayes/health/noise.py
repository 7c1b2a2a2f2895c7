"""Whether a learned noise fits new rows, or is too small because the network interpolates, or too large.

The mode of weights and noise together has σ² ≈ Σ r²/N, whatever the network's flexibility: one that interpolates
the rows drives the noise to zero. Linearised at the weights w*, with prior covariance S and mean w₀, the network is
a Gaussian process with K = J S Jᵀ, whose prediction of every row from all others has a closed form (Rasmussen and
Williams 2006, section 5.4.2; T is 1 unless the likelihood alone is tempered):

    y_i − μ_{−i} = [A ỹ]_i / A_ii,    A = (K + T σ² I)⁻¹,    ỹ = y − f(w*) + J (w* − w₀)

A learned σ far below the root mean square of these residuals, or far above, is not the noise of new rows. One that
is above them and above the residuals of the draws themselves costs log r − ½ + 1/(2 r²) nats a value, r the ratio.
At a total of 8 nats neither chance nor a prior explains it.

The mean may be worse because the noise was learned before it: rows that a large variance explains no longer pull at
it, most of all where every row has its own (Seitzer et al. 2022). Noise is independent between rows, but what a
mean misses is not. With r' the residual of the nearest other row, inputs standardised, c = Σ r r' / Σ r² estimates
the share of the residuals' variance that a mean could explain. If there is none, Σ r r' / √Σ (r r')² is about
standard normal, whatever the variances of the rows.

If there are many rows, only some are judged. A row is predicted no better from fewer others, so a σ far above these
residuals is still too large. A σ that is too small cannot be detected there, nor is it likely.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.curvature.parts import Part
from torchbayes.curvature.tangent import Tangent
from torchbayes.linalg import Diagonal
from torchbayes.model.batches.batch import Batch, concatenate
from torchbayes.model.likelihoods import Gaussian as GaussianLikelihood
from torchbayes.model.likelihoods import HeteroscedasticGaussian
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.priors.bound import correlated
from torchbayes.model.sources.sources import Source
from torchbayes.posteriors.posterior import Posterior

_RATIO = 3.0  # on tables, scales below a third of the residuals cost more than 2 nats per row on held-out data
_WIDE = 2.5  # times the residuals; a larger scale costs more than log 2.5 − ½ + 1/(2 · 2.5²) = 0.5 nats a value
_ABOVE, _NATS = 1.2, 8.0  # times all residuals, and the total cost
_LARGEST, _NUMBERS = 2048, 2**24  # values of all targets, and numbers of the Jacobian in factors
_SOME = 512  # rows that are judged if there are more than `_LARGEST`, or many for each weight
_WEIGHTS = 10**6  # most weights of a network that is judged on some rows
_CHUNK = 2**24
_DRAWS = 8
_SHARE, _DEVIATIONS = 0.5, 4.0  # of the residuals' variance, and standard deviations from chance


def noise_problems(posterior: Posterior, weights_MD: Tensor, source: Source) -> list[str]:
    """Return a problem, as one clause, if the learned noise of member 0 around `weights_MD` is not that of new rows.

    Members do not differ in this respect, so one is checked. A noise that is too small is reported only for small
    data, of at most 2,048 values, and a network with at least half as many weights: fewer cannot make residuals a
    third of what they should be. A network with dropout is judged with all units.
    """
    model, likelihood = posterior.model, posterior.model.likelihood
    one_scale = type(likelihood) is GaussianLikelihood and likelihood.scale == "learned"
    if not one_scale and type(likelihood) is not HeteroscedasticGaussian:
        return []
    if model.network.batch_norms and not posterior.statistics_known:
        return []
    all_ = source.num_data <= min(_LARGEST, 2 * model.layout.size)
    rows = _rows(source, all_=all_) if all_ or model.layout.size <= _WEIGHTS else None
    if rows is None:
        return []
    buffers = {n: b[0] for n, b in (posterior.buffers_M or {}).items()} or None
    linear = linearised(model, weights_MD[0], rows, buffers=buffers) if one_scale else None
    if linear and (clauses := _of_one(linear, model, weights_MD[0], _residuals(posterior, rows), all_=all_)):
        return clauses
    with torch.no_grad():
        outputs_NL = model.network(model.split(weights_MD[0])[0], rows.inputs, buffers)
    residuals_NK = _apart(rows, outputs_NL)
    return _of_mean(rows.inputs, residuals_NK, instead="" if one_scale else " or likelihoods.Gaussian('learned')")


def _of_one(linear: Linearised, model: Model, weights_D: Tensor, own_NK: Tensor, *, all_: bool) -> list[str]:
    """Return the problem of a noise scale that is equal in all rows."""
    scale_K = model.split(weights_D)[1]["log_scale"].double().exp()
    residuals_NK = linear.left_out(noise_variance(model, weights_D))
    if residuals_NK is None:
        return []
    suggested_K, own_K = (_root_mean_square(each_NK, len(scale_K)) for each_NK in (residuals_NK, own_NK))
    small, wide = int((suggested_K / scale_K).argmax()), int((scale_K / suggested_K).argmax())
    ratio_K, count = scale_K / torch.maximum(suggested_K, own_K), residuals_NK.numel() / len(scale_K)
    if model.network.held.draws(training=True):  # noise learned under dropout is that of the residuals under dropout
        ratio_K = torch.ones_like(ratio_K)
    cost_K = count * (ratio_K.log() - 0.5 + 0.5 / ratio_K.square())
    above = int(ratio_K.argmax())
    if all_ and scale_K[small] * _RATIO < suggested_K[small]:
        reason = (
            "as the network interpolates its training rows (fix a noise scale near that, or train for fewer epochs)"
        )
        index = small
    elif scale_K[wide] > _WIDE * suggested_K[wide] or (ratio_K[above] > _ABOVE and cost_K[above] > _NATS):
        index = above if ratio_K[above] > _ABOVE and cost_K[above] > _NATS else wide
        reason = "so it is still on its way down (train for more epochs, or raise the learning rate)"
    else:
        return []
    return [
        f"the learned noise scale of member 0 is {float(scale_K[index]):.3g}, but its residuals would be about "
        f"{float(suggested_K[index]):.2g} on rows left out, {reason}"
    ]


def _of_mean(inputs: Any, residuals_NK: Tensor, *, instead: str) -> list[str]:
    """Return the problem of a mean that misses what neighbouring rows have in common."""
    if not isinstance(inputs, Tensor) or inputs.dim() != 2 or len(inputs) < 3:
        return []
    spread_NF = inputs.double() / inputs.double().std(0)
    spread_NF = spread_NF[:, torch.isfinite(spread_NF).all(0)]  # without constant columns
    nearest_N = torch.cdist(spread_NF, spread_NF).fill_diagonal_(math.inf).argmin(1)
    common_NK = residuals_NK * residuals_NK[nearest_N]
    share = float(common_NK.sum() / residuals_NK.square().sum())
    deviations = float(common_NK.sum() / common_NK.square().sum().sqrt())
    if not (share > _SHARE and deviations > _DEVIATIONS):
        return []
    return [
        f"{100 * share:.0f} % of the variance of the residuals of member 0 is common to rows near each other: the "
        f"noise explains what the mean could (train for more epochs or at a higher learning rate, or take a larger "
        f"network{instead})"
    ]


def noise_variance(model: Model, weights_D: Tensor) -> Tensor:
    """Return the variance of a learned noise, float64 (K,), under the model's temperature.

    Tempering the likelihood alone multiplies it by T; a joint T cancels.
    """
    factor = model.temperature if model.tempering == "likelihood" else 1.0
    return factor * model.split(weights_D)[1]["log_scale"].double().exp().square()


def _residuals(posterior: Posterior, rows: Batch) -> Tensor:
    """Return y − m of the first member on the rows, as root mean square over draws, float64 (N, K)."""
    drawn = posterior.functions(posterior.members * (1 if posterior.centre is posterior else _DRAWS))
    outputs_SNK = drawn(rows.inputs, chunk_size=rows.size)[:: posterior.members].double()
    return torch.stack([_apart(rows, outputs_NK) for outputs_NK in outputs_SNK]).square().mean(0).sqrt()


def _apart(rows: Batch, outputs_NL: Tensor) -> Tensor:
    """Return y − m, float64 (N, K), where the means are all outputs or the first half of them."""
    means = rows.targets.numel() * outputs_NL.shape[-1] // outputs_NL.numel()
    outputs_NK = outputs_NL[..., :means].double()
    return rows.targets.double().view_as(outputs_NK) - outputs_NK


def _root_mean_square(values_NK: Tensor, scales: int) -> Tensor:
    squares = values_NK.square()
    return (squares.flatten(0, -2).mean(0) if scales > 1 else squares.mean().unsqueeze(0)).sqrt()


def _rows(source: Source, *, all_: bool) -> Batch | None:
    """Return all rows, or some; None for batches that cannot be concatenated, such as texts padded by batch."""
    try:
        return source.rows() if all_ else concatenate(source.some(_SOME))
    except (ValueError, RuntimeError):
        return None


class Linearised(NamedTuple):
    """A network linearised at weights, as a Gaussian process over the means of some rows."""

    kernel_PP: Tensor  # K, of all P = N K values, float64
    targets_NK: Tensor  # ỹ, float64

    def left_out(self, variance_K: Tensor) -> Tensor | None:
        """Return the leave-one-out residuals y − μ, float64 (N, K), under a noise variance; None if it is singular."""
        noise_P = variance_K.double().expand_as(self.targets_NK).flatten()
        cholesky, failed = torch.linalg.cholesky_ex(self.kernel_PP + noise_P.diag())
        if int(failed):
            return None
        inverse = torch.cholesky_inverse(cholesky)
        return ((inverse @ self.targets_NK.flatten()) / inverse.diagonal()).view_as(self.targets_NK)


def linearised(model: Model, weights_D: Tensor, rows: Batch, *, buffers: Buffers | None = None) -> Linearised | None:
    """Return a network linearised at w* as a Gaussian process; None where it cannot be, or would take too much memory.

    The model has a prior of known standard deviations, and is of a regression; `weights_D` include the learned
    parameters of the likelihood.
    """
    stds_D = model.prior.stds()
    if not torch.isfinite(stds_D).all() or correlated(model.prior):
        return None
    prior = Diagonal(stds_D.square().to(weights_D).unsqueeze(0))
    try:
        tangent = Tangent.at(model, weights_D, rows.inputs, buffers=buffers, structure=prior, chunk=_CHUNK)
        if tangent.row_numbers * rows.size > _NUMBERS:
            return None
        outputs_NL, parts = tangent.linear(rows.inputs)
    except (ValueError, RuntimeError):  # this network has no Jacobian, and a check must not end a fit
        return None
    if outputs_NL.numel() > _LARGEST:
        return None
    kernel = sum(_kernel(layer_part, prior.variance_MD[0]) for layer_part in parts)
    assert isinstance(kernel, Tensor)
    centred_D = weights_D - model.prior.locs().to(weights_D)
    moved = _moved(model, weights_D, centred_D, rows.inputs, buffers)
    return Linearised(kernel, _apart(rows, outputs_NL) + moved)


def _kernel(part: Part, variance_D: Tensor) -> Tensor:
    """Return J S Jᵀ of a layer, float64 (N K, N K): (g gᵀ) ∘ (a S aᵀ) where all units have the same variances."""
    variance_GOI = variance_D[part.layer.index]
    if part.is_plain and part.columns is not None and bool((variance_GOI == variance_GOI[:, :1]).all()):
        inputs_GNI = part.plain_given().transpose(0, 1)
        gram_GNN = (inputs_GNI * variance_GOI[:, 0].unsqueeze(1)) @ inputs_GNI.mT
        gradients = part.plain_gradients()
        assert gradients is not None
        units = gradients.flatten(0, 1).transpose(0, 1)  # (G, N K, O)
        outputs = gradients.shape[1]
        by_output = gram_GNN.repeat_interleave(outputs, 1).repeat_interleave(outputs, 2)
        return ((units @ units.mT) * by_output).sum(0).double()
    jacobian = part.jacobian().flatten(0, 1).flatten(1)
    return ((jacobian * variance_GOI.flatten()) @ jacobian.mT).double()


def _moved(model: Model, weights_D: Tensor, along_D: Tensor, inputs: Any, buffers: Buffers | None) -> Tensor:
    """Return J v by central differences, which work for every network: float64 (N, K)."""
    step = 1e-2
    with torch.no_grad():
        ahead, behind = (
            model.network(model.split(weights_D + sign * step * along_D)[0], inputs, buffers) for sign in (1, -1)
        )
    return (ahead.double() - behind.double()) / (2 * step)

r"""Curvature of the likelihood in a network's outputs, as columns r with Σ_r r rᵀ = Λ for each datum.

    ggn        Λ = E_{y ~ p(·|f)} [ −∇²_f log p(y|f) ], the Fisher information of the outputs: where the outputs are
               natural parameters (Categorical, Bernoulli, Poisson, Gaussian) −∇²_f log p(y|f) itself
    fisher     the same by sampling: r_s = ∇_f log p(y_s|f) / √S with y_s ~ p(·|f)
    empirical  r = ∇_f log p(y|f) at the observed y (not an estimate of the Fisher information; Kunstner et al. 2019)

Closed forms are given for the likelihoods of this library. Any other goes by autograd: expected over y where the
distribution can be enumerated, else at the observed y, negative eigenvalues set to zero. Outputs may have any shape
(B, ...) behind the batch axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jacrev, vmap

from torchbayes.model.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Parameters,
    Poisson,
    StudentT,
)


def categorical_root(outputs_BK: Tensor) -> Tensor:
    """Return K − 1 columns whose outer products add up to diag(p) − p pᵀ: its Cholesky factor, in closed form.

    With p = softmax(f) and tails q_j = Σ_{k > j} p_k, column j has √(p_j q_j / q_{j−1}) at j and
    −p_i √(p_j / (q_j q_{j−1})) below (Tanabe and Sagae 1992).

    Args:
        outputs_BK: logits.

    Returns:
        Tensor (K − 1, B, K).
    """
    log_p = outputs_BK.log_softmax(-1)
    # tails in log space: one minus a sum of probabilities would lose all digits of a confident prediction
    tails = torch.logcumsumexp(log_p.flip(-1), dim=-1).flip(-1)  # log q_{j−1}, with q_{−1} = 1
    log_pj, log_before, log_after = log_p[:, :-1], tails[:, :-1], tails[:, 1:]
    nothing = log_p.new_tensor(-torch.inf)  # a class whose logit is −∞ has no curvature
    diagonal = torch.where(log_before.isfinite(), 0.5 * (log_pj + log_after - log_before), nothing).exp()
    factor = torch.where(log_after.isfinite(), 0.5 * (log_pj - log_after - log_before), nothing)
    below = -(log_p.unsqueeze(1) + factor.unsqueeze(-1)).exp()  # (B, K−1, K)
    return (below.triu(1) + F.pad(torch.diag_embed(diagonal), (0, 1))).transpose(0, 1)


def _axes(scale: Tensor) -> Tensor:
    """Return one column per output, with this scale at its place: (B, ...) -> (K, B, ...), K all outputs of a row."""
    rows = scale.flatten(1)
    return torch.diag_embed(rows).transpose(0, 1).unflatten(-1, scale.shape[1:])


def _heteroscedastic(likelihood: HeteroscedasticGaussian, outputs: Tensor) -> Tensor:
    """Return the root of the Fisher information of (m, r): 1/s² and ½ (ds²/dr)²/s⁴, with nothing between them."""
    raw = outputs.chunk(2, dim=-1)[1]
    variance = F.softplus(raw) + likelihood.floor
    return torch.cat([variance.rsqrt(), math.sqrt(0.5) * raw.sigmoid() / variance], dim=-1)


def _scale(likelihood: Likelihood, outputs: Tensor, parameters: Parameters) -> Tensor | None:
    """Return the square root of a diagonal Λ, elementwise, where the likelihood has one."""
    if isinstance(likelihood, Gaussian):
        return (1 / likelihood.noise(outputs, parameters)).expand_as(outputs)
    if isinstance(likelihood, Bernoulli):
        return (0.5 * (F.logsigmoid(outputs) + F.logsigmoid(-outputs))).exp()
    if isinstance(likelihood, Poisson):
        return (0.5 * outputs).exp()
    if isinstance(likelihood, StudentT):
        information = (likelihood.df + 1) / ((likelihood.df + 3) * likelihood.scale**2)
        return torch.full_like(outputs, math.sqrt(information))
    if isinstance(likelihood, HeteroscedasticGaussian):
        return _heteroscedastic(likelihood, outputs)
    return None


def exact_root(likelihood: Likelihood, outputs: Tensor, targets: Tensor, *, parameters: Parameters) -> Tensor:
    """Return the columns of the generalised Gauss-Newton matrix.

    Args:
        likelihood: p(y|f).
        outputs: (B, ...).
        targets: (B, ...), used where the distribution cannot be enumerated.
        parameters: learned likelihood parameters.

    Returns:
        Tensor (R, B, ...), R the number of columns.

    Raises:
        ValueError: if log p(y|f) has no second derivative in f.
    """
    scale = _scale(likelihood, outputs, parameters)
    if scale is not None:
        return _axes(scale)
    if isinstance(likelihood, Categorical):
        if outputs.ndim == 2:
            return categorical_root(outputs)
        columns = categorical_root(outputs.flatten(0, -2)).unflatten(1, outputs.shape[:-1])  # (K−1, B, ..., K)
        places = columns.flatten(2, -2)  # (K−1, B, T, K): a column of one place is zero at the others
        apart = torch.diag_embed(places.movedim(2, -1)).permute(4, 0, 1, 3, 2)
        return apart.flatten(0, 1).reshape(-1, *outputs.shape)
    return _autograd_root(likelihood, outputs, targets, parameters)


def _autograd_root(likelihood: Likelihood, outputs: Tensor, targets: Tensor, parameters: Parameters) -> Tensor:
    shape = outputs.shape[1:]

    def loss(flat: Tensor, target: Tensor) -> Tensor:
        row = flat.unflatten(0, shape).unsqueeze(0)
        return -likelihood.log_prob(row, target.unsqueeze(0), parameters)[0]

    with torch.enable_grad():
        second = vmap(jacrev(jacrev(loss)), chunk_size=256)
        flat = outputs.detach().flatten(1)
        matrices = _expected(likelihood, outputs, parameters, lambda y: second(flat, y))
        matrices = second(flat, targets) if matrices is None else matrices
    if not torch.isfinite(matrices).all():
        raise ValueError(
            f"the second derivative of log p(y|f) of {type(likelihood).__name__} is not finite, so it has no "
            f"Gauss-Newton matrix. Use curvature='empirical', or a smooth likelihood."
        )
    values, vectors = torch.linalg.eigh(matrices)
    if not (values > 0).any():
        raise ValueError(
            f"log p(y|f) of {type(likelihood).__name__} has no curvature in f (its second derivative is zero or "
            f"negative everywhere), so it has no Gauss-Newton matrix. Use curvature='fisher' or 'empirical'."
        )
    columns = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)  # (B, K, R)
    return columns.permute(2, 0, 1).unflatten(-1, shape)


def _expected(
    likelihood: Likelihood, outputs: Tensor, parameters: Parameters, second: Callable[[Tensor], Tensor]
) -> Tensor | None:
    """Return E_y of second derivatives where y has a few values, one per row."""
    distribution: Any = likelihood.distribution(outputs, parameters)
    if not getattr(distribution, "has_enumerate_support", False) or len(distribution.batch_shape) != 1:
        return None
    support = distribution.enumerate_support()
    weights = distribution.log_prob(support).exp()
    return torch.stack([w.view(-1, 1, 1) * second(y) for w, y in zip(weights, support, strict=True)]).sum(0)


def score_root(likelihood: Likelihood, outputs: Tensor, targets_S: Tensor, *, parameters: Parameters) -> Tensor:
    """Return ∇_f log p(y_s|f) / √S: the columns of a Fisher matrix over given targets.

    Args:
        likelihood: p(y|f).
        outputs: (B, ...).
        targets_S: S targets for each row, (S, B, ...).
        parameters: learned likelihood parameters.

    Returns:
        Tensor (S, B, ...).
    """
    columns = []
    for targets in targets_S:
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(likelihood.log_prob(leaf, targets, parameters).sum(), leaf)
        columns.append(gradient)
    return torch.stack(columns) / math.sqrt(len(targets_S))


def root(
    kind: str, likelihood: Likelihood, outputs: Tensor, *, targets: Tensor, parameters: Parameters, samples: int = 1
) -> Tensor:
    """Return the columns of Λ of one kind; "fisher" draws from the global generator, which the caller seeds.

    Args:
        kind: "ggn", "fisher" or "empirical".
        likelihood: p(y|f).
        outputs: (B, ...).
        targets: (B, ...).
        parameters: learned likelihood parameters.
        samples: S, targets drawn for each row by "fisher".

    Returns:
        Tensor (R, B, ...).
    """
    outputs = outputs.detach()
    if kind == "ggn":
        return exact_root(likelihood, outputs, targets, parameters=parameters)
    if kind == "empirical":
        return score_root(likelihood, outputs, targets.unsqueeze(0), parameters=parameters)
    drawn = likelihood.distribution(outputs, parameters).sample((samples,))
    return score_root(likelihood, outputs, drawn, parameters=parameters)


def parameter_information(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor, *, parameters: Parameters
) -> dict[str, Tensor]:
    """Return the diagonal information of learned likelihood parameters, summed over rows; none with the outputs.

    For the log scale of a normal it is 2 for every value of the targets, the Fisher information; other parameters have
    −∂² log p / ∂θ² at the observed targets, and 0 where that is negative.

    Args:
        likelihood: p(y|f).
        outputs: (B, ...).
        targets: (B, ...).
        parameters: learned likelihood parameters.

    Returns:
        name -> tensor of the parameter's shape.
    """
    if isinstance(likelihood, Gaussian):
        return {n: torch.full_like(p, 2 * outputs.numel() / p.numel()) for n, p in parameters.items()}
    found = {}
    for name, parameter in parameters.items():

        def loss(flat: Tensor, name: str = name, shape: torch.Size = parameter.shape) -> Tensor:
            return -likelihood.log_prob(outputs, targets, {**parameters, name: flat.view(shape)}).sum()

        matrix = torch.autograd.functional.hessian(loss, parameter.detach().flatten())
        found[name] = torch.as_tensor(matrix).diagonal().clamp_min(0).view(parameter.shape)
    return found

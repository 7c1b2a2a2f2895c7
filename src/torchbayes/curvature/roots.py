"""Curvature of the likelihood in a network's outputs, as columns r with Σ_r r rᵀ = Λ for each datum.

    ggn        Λ = E_{y ~ p(·|f)} [ −∇²_f log p(y|f) ], the Fisher information of the outputs: where the outputs are
               natural parameters (Categorical, Bernoulli, Poisson, Gaussian) −∇²_f log p(y|f) itself
    fisher     the same by sampling: r_s = ∇_f log p(y_s|f) / √S with y_s ~ p(·|f)
    empirical  r = ∇_f log p(y|f) at the observed y (not an estimate of the Fisher information; Kunstner et al. 2019)

A likelihood with weights is reduced to a plain one and the weights (`counted`): Λ is c times that of the plain one, for
every kind, so that a weight of two is the same as a repeated row. Closed forms are used where a likelihood has them.
Any other is differentiated by autograd. A row's Λ is the Fisher information, Σ_y p(y|f) s_y s_yᵀ with s_y = ∇_f log
p(y|f), if its target is one of a few values and `log_prob` is the distribution's log probability of them. Else it is
the Hessian at the observed y, with negative eigenvalues set to zero. Each row is decided separately, so that it does
not depend on the other rows. Outputs may have any shape (B, ...) after the batch axis.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchbayes.checks import holds
from torchbayes.model.likelihoods import Custom, Likelihood, Parameters
from torchbayes.model.likelihoods.protocol import counted
from torchbayes.model.likelihoods.shapes import aligned
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.native.process import differentiable


def root(
    kind: str, likelihood: Likelihood, outputs: Tensor, *, targets: Any, parameters: Parameters, samples: int = 1
) -> Tensor:
    """Return the columns (R, B, ...) of Λ of one kind, "ggn", "fisher" or "empirical"; ValueError if it has none.

    "fisher" draws `samples` targets for each row from the global generator, which the caller seeds.
    """
    outputs = outputs.detach()
    plain, targets, weights = counted(likelihood, outputs, targets)
    if kind == "ggn":
        columns = _information_root(plain, outputs, targets, parameters)
    elif kind == "empirical":
        columns = _score_root(plain, outputs, targets, parameters)
    else:
        columns = _sampled_root(plain, outputs, targets, parameters=parameters, samples=samples)
    if weights is None:
        return columns
    return columns * weights.to(columns).sqrt().view(*weights.shape, *[1] * (outputs.ndim - weights.ndim))


def _information_root(plain: Any, outputs: Tensor, targets: Any, parameters: Parameters) -> Tensor:
    """Return the columns of each row's Fisher information, or of its Hessian at the target, (R, B, ...).

    It raises ValueError if log p(y|f) has derivatives in f that are not finite.
    """
    if holds(plain, "curvature_root"):
        return plain.curvature_root(outputs, targets, parameters)
    columns, expected_B = _expected_root(plain, outputs, targets, parameters)
    if not expected_B.all():
        rest_B = ~expected_B
        rest_targets = pytree.tree_map(lambda t: t[rest_B], targets)
        observed = _observed_root(plain, outputs[rest_B], rest_targets, parameters)
        together = outputs.new_zeros(max(len(columns), len(observed)), *outputs.shape)
        together[: len(columns)] = columns
        together[:, rest_B] = 0
        together[: len(observed), rest_B] = observed
        columns = together
    if not torch.isfinite(columns).all():
        raise ValueError(
            f"log p(y|f) of {type(plain).__name__} has derivatives that are not finite, so it has no Gauss-Newton "
            f"matrix. Use curvature='empirical', or a smooth likelihood."
        )
    return columns


def _observed_root(plain: Likelihood, outputs: Tensor, targets: Any, parameters: Parameters) -> Tensor:
    """Return columns of −∇²_f log p(y|f) at the targets, (K, B, ...); NaN where it is not finite."""
    matrices = _second(plain, outputs, targets, parameters)
    if not torch.isfinite(matrices).all():
        return outputs.new_full((1, *outputs.shape), torch.nan)
    values, vectors = torch.linalg.eigh(matrices)
    columns = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)  # (B, K, R)
    return columns.permute(2, 0, 1).unflatten(-1, outputs.shape[1:])


def _second(plain: Likelihood, outputs: Tensor, targets: Any, parameters: Parameters) -> Tensor:
    """Return −∇²_f log p(y|f) of every row, (B, K, K): a backward pass for each output, of all rows together."""
    with differentiable():
        leaf = outputs.detach().requires_grad_()
        loss = -plain.log_prob(leaf, targets, parameters).sum()
        if not loss.requires_grad:
            return outputs.new_zeros(len(outputs), *[outputs[0].numel()] * 2)
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        rows = [_derivative(slope, leaf) for slope in first.flatten(1).unbind(1)]
    matrices = torch.stack(rows, dim=1)
    return (matrices + matrices.mT) / 2


def _derivative(each_B: Tensor, leaf: Tensor) -> Tensor:
    """Return the gradient of one number per row in the row's outputs, (B, K)."""
    if not each_B.requires_grad:
        return torch.zeros_like(leaf).flatten(1)
    (gradient,) = torch.autograd.grad(each_B.sum(), leaf, retain_graph=True, materialize_grads=True)
    return gradient.flatten(1)


def _expected_root(plain: Likelihood, outputs: Tensor, targets: Any, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Return columns √p(y|f) ∇_f log p(y|f) of every value y, (R, B, ...), and for which rows they are valid, (B,).

    These are rows with a single target that is a value of the distribution, and whose `log_prob` is its log
    probability.
    """
    distribution: Any = plain.distribution(outputs, parameters)
    right_B = _inside(distribution, outputs, targets)
    few = getattr(distribution, "has_enumerate_support", False) and distribution.batch_shape[1:].numel() == 1
    if not few or not right_B.any():
        return outputs.new_zeros(0, *outputs.shape), torch.zeros_like(right_B)
    columns = []
    for value in distribution.enumerate_support():
        value_targets = value.reshape(targets.shape)
        right_B &= _is_log_prob(plain, outputs, value_targets, parameters)
        p_B = distribution.log_prob(value).detach().exp().reshape(-1, *[1] * (outputs.ndim - 1))
        columns.append(p_B.sqrt() * _score_root(plain, outputs, value_targets, parameters)[0])
    root = torch.stack(columns)
    return torch.where(right_B.view(-1, *[1] * (outputs.ndim - 1)), root, 0.0), right_B


def _is_log_prob(plain: Likelihood, outputs: Tensor, targets: Any, parameters: Parameters) -> Tensor:
    """Return for which rows `log_prob` is that of the likelihood's own distribution at the targets, (B,)."""
    distribution = plain.distribution(outputs, parameters)
    distribution_log_prob = Custom(lambda _: distribution).log_prob(outputs, targets)
    own_log_prob = plain.log_prob(outputs, targets, parameters)
    tolerance = math.sqrt(torch.finfo(own_log_prob.dtype).eps)
    if own_log_prob.shape != distribution_log_prob.shape:
        return torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
    return torch.isclose(own_log_prob, distribution_log_prob.to(own_log_prob.dtype), rtol=tolerance, atol=tolerance)


def _inside(distribution: Any, outputs: Tensor, targets: Any) -> Tensor:
    """Return which targets are in the support of a distribution, (B,)."""
    none_B = torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
    if not isinstance(targets, Tensor):
        return none_B
    values = aligned(targets, distribution, outputs.ndim)
    if values.shape != distribution.batch_shape + distribution.event_shape:
        return none_B
    try:
        inside = distribution.support.check(values)
    except NotImplementedError:  # a distribution need not declare its support
        return ~none_B
    return inside.reshape(len(outputs), -1).all(1)


def _score_root(plain: Any, outputs: Tensor, targets: Any, parameters: Parameters) -> Tensor:
    """Return ∇_f log p(y|f) at the targets, (1, B, ...), or the columns that the likelihood defines instead."""
    if holds(plain, "score_root"):
        return plain.score_root(outputs, targets, parameters)
    with differentiable():
        leaf = outputs.detach().requires_grad_()
        total = plain.log_prob(leaf, targets, parameters).sum()
        if not total.requires_grad:
            return torch.zeros_like(outputs).unsqueeze(0)
        (gradient,) = torch.autograd.grad(total, leaf)
    return gradient.unsqueeze(0)


def _sampled_root(plain: Likelihood, outputs: Tensor, targets: Any, *, parameters: Parameters, samples: int) -> Tensor:
    """Return ∇_f log p(y_s|f) / √S at S targets drawn from the model, (S, B, ...).

    It raises ValueError if `log_prob` is not the log probability of the distribution that is drawn from.
    """
    distribution = plain.distribution(outputs, parameters)
    drawn_S = distribution.sample((samples,))
    if not holds(plain, "curvature_root") and not (
        _inside(distribution, outputs, targets).all()
        and all(_is_log_prob(plain, outputs, y, parameters).all() for y in (targets, *drawn_S))
    ):
        raise ValueError(
            f"log_prob of {type(plain).__name__} is not the log probability of its distribution, so targets drawn from "
            f"that say nothing of it. Use curvature='ggn' or 'empirical', which take the observed targets."
        )
    return torch.cat([_score_root(plain, outputs, y, parameters) for y in drawn_S]) / math.sqrt(samples)


def check_curved(
    likelihood: Likelihood, size: float, *, advice: str = "Use curvature='fisher' or 'empirical'."
) -> None:
    """Raise ValueError if the curvature of the whole data is zero, unless the likelihood always has curvature.

    `size` is any measure of that curvature that is 0 if there is none.
    """
    if size == 0 and not holds(unweighted(likelihood), "curvature_root"):
        raise ValueError(
            f"log p(y|f) of {type(unweighted(likelihood)).__name__} has no curvature in f (its second derivative is "
            f"zero or negative everywhere), so it has no Gauss-Newton matrix. {advice}"
        )


def parameter_information(
    likelihood: Likelihood, outputs: Tensor, targets: Any, *, parameters: Parameters
) -> dict[str, Tensor]:
    """Return the diagonal information of learned likelihood parameters by name, summed over rows.

    It leaves out their correlation with the outputs. For the log scale of a normal it is 2 per target value, the Fisher
    information; for other parameters it is −∂² log p / ∂θ² at the observed targets, and 0 where that is negative.
    """
    plain, values, weights = counted(likelihood, outputs, targets)
    if holds(plain, "parameter_information") and (weights is None or weights.ndim == 1):
        by_row: dict[str, Tensor] = plain.parameter_information(outputs, values, parameters)
        weights_B = outputs.new_ones(len(outputs)) if weights is None else weights
        return {name: torch.tensordot(weights_B, per_row, 1) for name, per_row in by_row.items()}
    information = {}
    for name, parameter in parameters.items():

        def loss(flat: Tensor, name: str = name, shape: torch.Size = parameter.shape) -> Tensor:
            return -likelihood.log_prob(outputs, targets, {**parameters, name: flat.view(shape)}).sum()

        matrix = torch.autograd.functional.hessian(loss, parameter.detach().flatten())
        information[name] = torch.as_tensor(matrix).diagonal().clamp_min(0).view(parameter.shape)
    return information

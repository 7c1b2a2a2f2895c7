r"""Curvature of the likelihood in a network's outputs, as columns r with Σ_r r rᵀ = Λ for each datum.

    ggn        Λ = E_{y ~ p(·|f)} [ −∇²_f log p(y|f) ], the Fisher information of the outputs: where the outputs are
               natural parameters (Categorical, Bernoulli, Poisson, Gaussian) −∇²_f log p(y|f) itself
    fisher     the same by sampling: r_s = ∇_f log p(y_s|f) / √S with y_s ~ p(·|f)
    empirical  r = ∇_f log p(y|f) at the observed y (not an estimate of the Fisher information; Kunstner et al. 2019)

A likelihood that weighs its observations is asked for plain ones and how often they count (`counted`): Λ is c times
that of the plain one, for every kind, so that a weight of two is a row that is there twice. Likelihoods with closed
forms are asked for them. Any other goes by autograd: expected over y where the distribution can be enumerated and
`log_prob` is its log probability, else at the observed y, negative eigenvalues set to zero. Outputs may have any shape
(B, ...) behind the batch axis.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchbayes.model.likelihoods import Custom, Likelihood, Parameters
from torchbayes.model.likelihoods.protocol import counted, own
from torchbayes.model.likelihoods.shapes import aligned
from torchbayes.model.likelihoods.weighted import unweighted


def root(
    kind: str, likelihood: Likelihood, outputs: Tensor, *, targets: Any, parameters: Parameters, samples: int = 1
) -> Tensor:
    """Return the columns of Λ of one kind; "fisher" draws from the global generator, which the caller seeds.

    Args:
        kind: "ggn", "fisher" or "empirical".
        likelihood: p(y|f).
        outputs: (B, ...).
        targets: (B, ...), or a tree of such.
        parameters: learned likelihood parameters.
        samples: S, targets drawn for each row by "fisher".

    Returns:
        Tensor (R, B, ...).

    Raises:
        ValueError: if the likelihood has no curvature of this kind.
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
    """Return the columns of the Fisher information, or of the Hessian at the targets, (R, B, ...).

    Raises:
        ValueError: if log p(y|f) has no second derivative in f.
    """
    if own(plain, "curvature_root"):
        return plain.curvature_root(outputs, targets, parameters)
    matrices = _expected(plain, outputs, targets, parameters)
    matrices = _second(plain, outputs, targets, parameters) if matrices is None else matrices
    if not torch.isfinite(matrices).all():
        raise ValueError(
            f"the second derivative of log p(y|f) of {type(plain).__name__} is not finite, so it has no "
            f"Gauss-Newton matrix. Use curvature='empirical', or a smooth likelihood."
        )
    values, vectors = torch.linalg.eigh(matrices)
    columns = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)  # (B, K, R)
    return columns.permute(2, 0, 1).unflatten(-1, outputs.shape[1:])


def _second(plain: Likelihood, outputs: Tensor, targets: Any, parameters: Parameters) -> Tensor:
    """Return −∇²_f log p(y|f) of every row, (B, K, K): a backward pass for each output, of all rows together."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        loss = -plain.log_prob(leaf, targets, parameters).sum()
        if not loss.requires_grad:
            return outputs.new_zeros(len(outputs), *[outputs[0].numel()] * 2)
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        rows = [_derivative(each, leaf) for each in first.flatten(1).unbind(1)]
    found = torch.stack(rows, dim=1)
    return (found + found.mT) / 2


def _derivative(each_B: Tensor, leaf: Tensor) -> Tensor:
    """Return the gradient of one number a row in the outputs of the row, (B, K)."""
    if not each_B.requires_grad:
        return torch.zeros_like(leaf).flatten(1)
    (found,) = torch.autograd.grad(each_B.sum(), leaf, retain_graph=True, materialize_grads=True)
    return found.flatten(1)


def _expected(plain: Likelihood, outputs: Tensor, targets: Any, parameters: Parameters) -> Tensor | None:
    """Return E_y of second derivatives where y has a few values, one per row, and log_prob is their log probability."""
    distribution: Any = plain.distribution(outputs, parameters)
    if not getattr(distribution, "has_enumerate_support", False) or len(distribution.batch_shape) != 1:
        return None
    support = distribution.enumerate_support()
    if not all(_is_log_prob(plain, outputs, y, parameters) for y in (targets, *support)):
        return None
    weights = distribution.log_prob(support).exp()
    each = [w.view(-1, 1, 1) * _second(plain, outputs, y, parameters) for w, y in zip(weights, support, strict=True)]
    return torch.stack(each).sum(0)


def _is_log_prob(plain: Likelihood, outputs: Tensor, targets: Any, parameters: Parameters) -> bool:
    """Return whether log_prob is the log probability of the likelihood's own distribution at these targets."""
    distribution = plain.distribution(outputs, parameters)
    if not isinstance(targets, Tensor):
        return False
    values = aligned(targets, distribution, outputs.ndim)
    if values.shape != distribution.batch_shape + distribution.event_shape or not _in_support(distribution, values):
        return False
    named = Custom(lambda _: distribution).log_prob(outputs, targets)
    found = plain.log_prob(outputs, targets, parameters)
    near = math.sqrt(torch.finfo(found.dtype).eps)
    return found.shape == named.shape and torch.allclose(found, named.to(found.dtype), rtol=near, atol=near)


def _in_support(distribution: Any, values: Tensor) -> bool:
    try:
        return bool(distribution.support.check(values).all())
    except NotImplementedError:  # a distribution need not say what it is over
        return True


def _score_root(plain: Any, outputs: Tensor, targets: Any, parameters: Parameters) -> Tensor:
    """Return ∇_f log p(y|f) at the targets, (1, B, ...), or the columns that the likelihood has in its place."""
    if own(plain, "score_root"):
        return plain.score_root(outputs, targets, parameters)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        total = plain.log_prob(leaf, targets, parameters).sum()
        if not total.requires_grad:
            return torch.zeros_like(outputs).unsqueeze(0)
        (gradient,) = torch.autograd.grad(total, leaf)
    return gradient.unsqueeze(0)


def _sampled_root(plain: Likelihood, outputs: Tensor, targets: Any, *, parameters: Parameters, samples: int) -> Tensor:
    """Return ∇_f log p(y_s|f) / √S at S targets drawn from the model, (S, B, ...).

    Raises:
        ValueError: if the model cannot draw what `log_prob` takes.
    """
    drawn_S = plain.distribution(outputs, parameters).sample((samples,))
    known = own(plain, "curvature_root")
    if not known and not all(_is_log_prob(plain, outputs, y, parameters) for y in (targets, *drawn_S)):
        raise ValueError(
            f"log_prob of {type(plain).__name__} is not the log probability of its distribution, so targets drawn from "
            f"that say nothing of it. Use curvature='ggn' or 'empirical', which take the observed targets."
        )
    return torch.cat([_score_root(plain, outputs, y, parameters) for y in drawn_S]) / math.sqrt(samples)


def check_curved(likelihood: Likelihood, size: float) -> None:
    """Check that a likelihood has given all the data together some curvature.

    Args:
        likelihood: p(y|f).
        size: any measure of the whole curvature that is 0 where nothing has any.

    Raises:
        ValueError: if there is none, and the likelihood is not one that always has some.
    """
    if size == 0 and not own(unweighted(likelihood), "curvature_root"):
        raise ValueError(
            f"log p(y|f) of {type(unweighted(likelihood)).__name__} has no curvature in f (its second derivative is "
            f"zero or negative everywhere), so it has no Gauss-Newton matrix. Use curvature='fisher' or 'empirical'."
        )


def parameter_information(
    likelihood: Likelihood, outputs: Tensor, targets: Any, *, parameters: Parameters
) -> dict[str, Tensor]:
    """Return the diagonal information of learned likelihood parameters, summed over rows; none with the outputs.

    For the log scale of a normal it is 2 for every value of the targets, the Fisher information; other parameters have
    −∂² log p / ∂θ² at the observed targets, and 0 where that is negative.

    Args:
        likelihood: p(y|f).
        outputs: (B, ...).
        targets: (B, ...), or a tree of such.
        parameters: learned likelihood parameters.

    Returns:
        name -> tensor of the parameter's shape.
    """
    plain, values, weights = counted(likelihood, outputs, targets)
    if own(plain, "parameter_information") and (weights is None or weights.ndim == 1):
        each: dict[str, Tensor] = plain.parameter_information(outputs, values, parameters)  # type: ignore[attr-defined]
        weights_B = outputs.new_ones(len(outputs)) if weights is None else weights
        return {name: torch.tensordot(weights_B, per_row, 1) for name, per_row in each.items()}
    found = {}
    for name, parameter in parameters.items():

        def loss(flat: Tensor, name: str = name, shape: torch.Size = parameter.shape) -> Tensor:
            return -likelihood.log_prob(outputs, targets, {**parameters, name: flat.view(shape)}).sum()

        matrix = torch.autograd.functional.hessian(loss, parameter.detach().flatten())
        found[name] = torch.as_tensor(matrix).diagonal().clamp_min(0).view(parameter.shape)
    return found

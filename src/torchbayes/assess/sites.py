r"""Leave-one-out densities of a Gaussian posterior of linear outputs, in closed form.

A row n enters the posterior by a Gaussian site in its outputs f. With f ~ N(f̂, V) under all rows, the gradient γ =
∇_f log p(y_n | f̂) and the curvature Λ = r rᵀ of its site, the outputs without the row are

    f₋ ~ N(f̂ − V₋ γ, V₋),    V₋ = V + V r (I − H)⁻¹ rᵀ V,    H = rᵀ V r,    p(y_n | other rows) = E p(y_n | f₋)

where H holds the leverage of the row, below 1. For a linear model with normal noise this is exact; for others, as
exact as the Laplace approximation of the linearised network.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchbayes.curvature.roots import root
from torchbayes.model.layout import broadcasting
from torchbayes.model.likelihoods.protocol import average_log_prob, scored
from torchbayes.model.model import Batch, Model
from torchbayes.native.process import outside_inference
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.linearised import Functions, Linearised
from torchbayes.predictive.links import link_of

_POINTS = 1024  # of a Sobol sequence, over which densities other than a normal one are averaged
_MOST = 1 - 1e-6  # leverage that is computed with


class Left(NamedTuple):
    """Densities of B rows under each of M members, float64."""

    without_BM: Tensor  # log p(y_b | other rows), in nats
    with_BM: Tensor  # log p(y_b | all rows)
    leverage_BM: Tensor  # largest eigenvalue of H


def left_out(linearised: Linearised, batch: Batch, *, num_data: int) -> Left:
    """Return the densities of the rows of a batch, each without itself and with all rows.

    A ValueError if a row has several places.
    """
    model, means_MD = linearised.model, linearised.posterior.gaussian.mean_MD
    gaussian = linearised.functions(batch.inputs)
    if gaussian.mean_MBK.ndim != 3:
        raise ValueError(
            f"`data` must have one place in each row for closed forms; the outputs of a row have shape "
            f"{tuple(gaussian.mean_MBK.shape[2:])}."
        )
    members = []
    for m in range(len(means_MD)):
        member = Functions(gaussian.mean_MBK[m : m + 1].double(), gaussian.covariance_MBKK[m : m + 1].double())
        learned = {name: value.double() for name, value in model.split(means_MD[m : m + 1])[1].items()}
        members.append(_of_member(model, member, batch.targets, learned=learned, num_data=num_data))
    return Left(*(torch.stack(column, 1).cpu() for column in zip(*members, strict=True)))


def _of_member(model: Model, gaussian: Functions, targets: Any, *, learned: Any, num_data: int) -> tuple[Tensor, ...]:
    mean_BK, covariance_BKK = gaussian.mean_MBK[0], gaussian.covariance_MBKK[0]
    targets = pytree.tree_map(lambda t: t.double() if t.is_floating_point() else t, targets)
    factor = model.scales(num_data, num_data).likelihood
    parameters = {name: value[0] for name, value in learned.items()}
    with outside_inference(), torch.enable_grad():
        leaf_BK = mean_BK.clone().requires_grad_()
        total = model.likelihood.log_prob(leaf_BK, targets, parameters).sum()
        (gradient_BK,) = torch.autograd.grad(factor * total, leaf_BK)
    columns_RBK = root("ggn", model.likelihood, mean_BK, targets=targets, parameters=parameters)
    root_BKR = columns_RBK.permute(1, 2, 0) * math.sqrt(factor)
    spread_BKR = covariance_BKK @ root_BKR
    values_BR, vectors_BRR = torch.linalg.eigh(root_BKR.mT @ spread_BKR)
    towards_BKR = spread_BKR @ vectors_BRR
    without_BKK = covariance_BKK + (towards_BKR / (1 - values_BR.clamp(max=_MOST)).unsqueeze(1)) @ towards_BKR.mT
    moved_BK = mean_BK - (without_BKK @ gradient_BK.unsqueeze(-1)).squeeze(-1)
    without = Functions(moved_BK.unsqueeze(0), without_BKK.unsqueeze(0))
    each = (_averaged(model, functions, targets, learned) for functions in (without, gaussian))
    return (*each, values_BR.amax(-1))


def _averaged(model: Model, gaussian: Functions, targets: Any, learned: Any) -> Tensor:
    """Return log E p(y | f) of every row for Gaussian outputs of one member, (B,), float64."""
    mean_MBK, covariance_MBKK = gaussian
    if link_of("auto", model.likelihood) == "gaussian":
        parameters = broadcasting(learned, mean_MBK)
        variance_MBK = covariance_MBKK.diagonal(dim1=-2, dim2=-1)
        predictive = Predictive(mean_MBK, model.likelihood, parameters, function_variance=variance_MBK)
        return predictive.log_prob(targets).double()
    size = mean_MBK.shape[-1]
    uniform_SK = torch.quasirandom.SobolEngine(size, scramble=True, seed=0).draw(_POINTS, dtype=torch.float64)
    limits = torch.finfo(torch.float64)
    normal_SK = torch.special.ndtri(uniform_SK.clamp(limits.tiny, 1 - limits.eps)).to(mean_MBK)
    values_BK, vectors_BKK = torch.linalg.eigh(covariance_MBKK[0])
    root_BKK = vectors_BKK * values_BK.clamp_min(0).sqrt().unsqueeze(-2)
    outputs_SBK = mean_MBK + torch.einsum("bkl,sl->sbk", root_BKK, normal_SK)
    judged = scored(model.likelihood, outputs_SBK[0], targets)
    parameters = broadcasting(learned, outputs_SBK)
    return average_log_prob(judged.likelihood, outputs_SBK, judged.targets, parameters=parameters)

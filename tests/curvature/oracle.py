"""Curvatures by brute force: a Jacobian row by row, output Hessians from their formulas, nothing from the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchbayes as tb
from tests.curvature.networks import NETS, Net
from tests.oracles import classes, normal

ROWS, MEMBERS = 5, 2


@cache
def masks(name: str) -> dict[str, Tensor]:
    """Return the random parameters of a network, and which of their elements are."""
    net = NETS[name]
    named = {n: p for n, p in net.module().named_parameters() if p.requires_grad}
    if isinstance(net.random, dict):
        return {n: net.random[n] for n in named if n in net.random}
    globs = [net.random] if isinstance(net.random, str) else net.random
    return {n: torch.ones_like(p, dtype=torch.bool) for n, p in named.items() if any(fnmatchcase(n, g) for g in globs)}


def forward(net: Net, weights_D: Tensor, inputs: Any, buffers: dict[str, Tensor] | None = None) -> Tensor:
    """Return the outputs at flat weights, (B, ...)."""
    module, chosen = net.module().requires_grad_(False), masks(name_of(net))
    held, parts = dict(module.named_parameters()), weights_D.split([int(mask.sum()) for mask in chosen.values()])
    named = {n: held[n].masked_scatter(mask, part) for (n, mask), part in zip(chosen.items(), parts, strict=True)}
    args, kwargs = (
        ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    with sdpa_kernel(SDPBackend.MATH):  # the only form that can be differentiated twice
        actual = functional_call(module, {**named, **(buffers or {})}, args, kwargs)
    actual = actual if isinstance(actual, Tensor) else actual.logits
    return actual.unsqueeze(-1) if actual.ndim == 1 else actual


def name_of(net: Net) -> str:
    """Return the name of a network."""
    return next(name for name, other in NETS.items() if other is net)


def jacobian(net: Net, weights_D: Tensor, inputs: Any, buffers: dict[str, Tensor] | None = None) -> Tensor:
    """Return df_bk/dw_d, (B, K, D), all outputs of a row on one axis."""
    actual = torch.autograd.functional.jacobian(lambda w: forward(net, w, inputs, buffers).flatten(1), weights_D)
    return torch.as_tensor(actual)


def weights_of(net: Net, members: int = MEMBERS) -> Tensor:
    """Return weights (M, D), those of the first member the module's own: what holds for one need not for the next."""
    named = dict(net.module().named_parameters())
    own = torch.cat([named[name].detach()[mask] for name, mask in masks(name_of(net)).items()])
    return torch.stack([own, *(0.3 + 0.6 * normal(members - 1, len(own), seed=11))])


def buffers_of(net: Net, members: int = MEMBERS) -> dict[str, Tensor]:
    """Return buffers (M, ...), those of the first member the module's own."""
    held = {n: b for n, b in net.module().named_buffers() if b.is_floating_point()}
    return {n: torch.stack([b, *(b + normal(members - 1, *b.shape, seed=12).abs())]) for n, b in held.items()}


def targets_of(outputs: Tensor) -> Tensor:
    """Return classes for outputs (B, ..., K), or real numbers for K = 1."""
    if outputs.shape[-1] == 1:
        return normal(*outputs.shape, seed=13)
    return classes(outputs[..., 0].numel(), outputs.shape[-1], seed=13).view(outputs.shape[:-1])


def nll(outputs_K: Tensor, target: Tensor) -> Tensor:
    """Return −log p(y|f) of one row, as a function of all its outputs: softmax, or a normal of scale ½ for K = 1."""
    if outputs_K.shape[-1] == 1:
        return 2 * ((target - outputs_K) ** 2).sum()
    log_p = outputs_K - outputs_K.exp().sum(-1, keepdim=True).log()
    return -log_p.reshape(-1, outputs_K.shape[-1])[torch.arange(target.numel()), target.flatten()].sum()


def output_hessians(outputs: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = nll) -> Tensor:
    """Return the Hessian of every row's loss in its outputs, (B, K, K), by autograd."""
    actual = []
    for row, target in zip(outputs.detach(), targets, strict=True):
        own = torch.autograd.functional.hessian(lambda f, y=target: loss(f, y), row)
        actual.append(torch.as_tensor(own).reshape(row.numel(), row.numel()))
    return torch.stack(actual)


def scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return d log p(y|f) / df, (B, K)."""
    rows = [
        torch.as_tensor(torch.autograd.functional.jacobian(lambda f, y=y: -nll(f, y), f)).flatten()
        for f, y in zip(outputs.detach(), targets, strict=True)
    ]
    return torch.stack(rows)


def curvature(
    kind: str, net: Net, weights_D: Tensor, inputs: Any, targets: Tensor, buffers: dict[str, Tensor] | None = None
) -> Tensor:
    """Return Σ_b J_bᵀ Λ_b J_b for "ggn" and "empirical", and the Hessian of Σ −log p for "hessian", (D, D)."""
    if kind == "hessian":

        def loss(weights: Tensor) -> Tensor:
            outputs = forward(net, weights, inputs, buffers)
            return torch.stack([nll(f, y) for f, y in zip(outputs, targets, strict=True)]).sum()

        return torch.as_tensor(torch.autograd.functional.hessian(loss, weights_D))
    jacobian_BKD = jacobian(net, weights_D, inputs, buffers)
    outputs = forward(net, weights_D, inputs, buffers)
    if kind == "empirical":
        gradient_BD = torch.einsum("bk,bkd->bd", scores(outputs, targets), jacobian_BKD)
        return gradient_BD.T @ gradient_BD
    return torch.einsum("bkd,bkl,ble->de", jacobian_BKD, output_hessians(outputs, targets), jacobian_BKD)


@cache
def problem(name: str) -> tuple[Any, Tensor, Tensor, dict[str, Tensor]]:
    """Return inputs, targets, weights (M, D) and buffers (M, ...) of a network."""
    net = NETS[name]
    inputs, weights_MD, buffers_M = net.inputs(ROWS), weights_of(net), buffers_of(net)
    return inputs, targets_of(forward(net, weights_MD[0], inputs, member(buffers_M, 0))), weights_MD, buffers_M


@cache
def truth(name: str, kind: str) -> Tensor:
    """Return the curvature of a network's problem, (M, D, D)."""
    inputs, targets, weights_MD, buffers_M = problem(name)
    each = enumerate(weights_MD)
    return torch.stack([curvature(kind, NETS[name], w, inputs, targets, member(buffers_M, m)) for m, w in each])


@cache
def outputs_of(name: str, rows: int) -> tuple[Tensor, Tensor]:
    """Return outputs (M, B, K) of a network at other inputs, and their Jacobians (M, B, K, D)."""
    net, (_, _, weights_MD, buffers_M) = NETS[name], problem(name)
    own = [(net, w, net.inputs(rows), member(buffers_M, m)) for m, w in enumerate(weights_MD)]
    return torch.stack([forward(*each) for each in own]), torch.stack([jacobian(*each) for each in own])


def model_of(net: Net, targets: Tensor, prior: Any = None) -> tb.Model:
    """Return the model whose loss is `nll`."""
    likelihood = tb.likelihoods.Gaussian(0.5) if targets.is_floating_point() else tb.likelihoods.Categorical()
    return tb.Model(net.module(), likelihood, prior or tb.priors.Normal(scale=0.7), random=net.random)


def fitted(
    method: tb.Laplace,
    model: tb.Model,
    weights_MD: Tensor,
    data: tuple[Any, Tensor],
    *,
    sizes: Sequence[int] | None = None,
    buffers_M: dict[str, Tensor] | None = None,
) -> tb.LaplacePosterior:
    """Return what the method makes of the data, in batches of these sizes (one batch if None), at these modes."""
    inputs, targets = data
    members, rows = len(weights_MD), len(targets)
    density = tb.LogDensity(model, rows)
    bounds = torch.tensor([0, *(sizes or [rows])]).cumsum(0).tolist()
    batches = [
        tb.Batch(inputs, targets).map(lambda t, a=a, b=b: t[a:b].expand(members, *t[a:b].shape))
        for a, b in pairwise(bounds)
    ]
    state = method.init(
        density, weights_MD, dict(buffers_M or {}), seeds=list(range(members)), steps_per_epoch=len(batches)
    )
    for _ in range(method.epochs):
        for batch in batches:
            state, _ = method.step(density, state, batch)
    return method.posterior(density, state)


def data_part(posterior: tb.LaplacePosterior) -> Tensor:
    """Return what the data add to the precision, (M, D, D): the curvature, out of units of the prior."""
    root_MD = posterior.reference_MD.sqrt()
    return root_MD.unsqueeze(-1) * posterior.curvature.dense() * root_MD.unsqueeze(-2)


def member(buffers_M: dict[str, Tensor], m: int) -> dict[str, Tensor]:
    """Return the buffers of one member."""
    return {name: tensor[m] for name, tensor in buffers_M.items()}

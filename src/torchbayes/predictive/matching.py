"""A prior whose functions are like those of a Gaussian process: scales of normal priors, found by matching moments.

Weights of parameter l are w = s_l ε, ε ~ N(0, I). The functions of a network at B inputs have second moments M =
E[f fᵀ], (B, B) for each output; those of a Gaussian process of mean 0 have its covariance C. The scales minimise

    ‖M − C‖²_F / ‖C‖²_F,    ‖M‖²_F ≈ (1/(S(S−1))) Σ_{s≠t} (f_sᵀ f_t)²,    tr(M C) ≈ (1/S) Σ_s f_sᵀ C f_s

the squared maximum mean discrepancy under the kernel (fᵀg)². The estimate is unbiased, so no error shrinks the
scales, however few draws a step takes. Gradients go through the draws to log s (Flam-Shepherd, Requeima and
Duvenaud 2017; Tran, Rossi, Milios and Filippone 2022, who take the Wasserstein distance).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_counts, check_kind, check_memory, seen
from torchbayes.density.vmap import StackedLayers
from torchbayes.display import Overview, shortened, shown
from torchbayes.linalg.matrices import eigh
from torchbayes.model.batches.batch import batch_size
from torchbayes.model.model import Model, check_finite
from torchbayes.model.network import Network, taking
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.process import differentiable, quiet_vmap, undisturbed
from torchbayes.posteriors.problems import warn_of
from torchbayes.randomness.seeds import Purpose, generator
from torchbayes.settings import check_settings

Kernel = Callable[[Any], Tensor]
"""Inputs -> covariance (B, B) of a Gaussian process of mean 0 at them."""

_EXACT = "donot_use_mm_for_euclid_dist"
_STEP = 0.1  # learning rate of Adam on log s; it falls to zero
_BETAS = (0.9, 0.95)
_CLOSE = 0.1  # below this distance a prior is near enough, even if no closer than the start
_JUDGED = 1000  # draws from which the distances are computed


@dataclass(frozen=True)
class RBFKernel:
    """k(x, x′) = scale² exp(−|x − x′|² / (2 lengthscale²)).

    Attributes:
        lengthscale: distance over which functions change, in units of the inputs.
        scale: standard deviation of a function at an input, in units of the outputs.
    """

    lengthscale: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the covariance (B, B), float64, at inputs (B, ...), each flattened to a vector."""
        flat = inputs.double().flatten(1)
        return self.scale**2 * torch.exp(
            -0.5 * torch.cdist(flat, flat, compute_mode=_EXACT).square() / self.lengthscale**2
        )


@dataclass(frozen=True)
class LinearKernel:
    """k(x, x′) = scale² xᵀx′ + bias_scale²: functions of a linear model with normal weights.

    Attributes:
        scale: standard deviation of the weights.
        bias_scale: standard deviation of the bias.
    """

    scale: float = 1.0
    bias_scale: float = 1.0

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the covariance (B, B), float64, at inputs (B, ...), each flattened to a vector."""
        flat = inputs.double().flatten(1)
        return self.scale**2 * flat @ flat.T + self.bias_scale**2


def _overview(matched: MatchedPrior) -> Overview:
    facts = {"before": matched.before, "after": matched.after, "steps": len(matched.loss)}
    rows = [(name, shortened(repr(prior))) for name, prior in matched.priors.items()]
    return Overview("MatchedPrior", facts, header=("parameter", "prior"), rows=rows, problems=matched.problems)


@shown(_overview)
@dataclass(frozen=True)
class MatchedPrior:
    """Normal priors that were matched to a Gaussian process.

    Attributes:
        priors: parameter -> Normal, the `prior` of a Model.
        before: distance from the process of the prior at the start of the search, as `after`.
        after: 2-Wasserstein distance between normals with the moments of the functions, from about 1,000 draws, and
            of the process, over the square root of the trace of the process's covariance: 0, up to the error of the
            draws, where they are equal; 1 where all functions are 0.
        loss: the loss of every step.
        problems: known problems, one clause each.
    """

    priors: dict[str, Normal]
    before: float
    after: float
    loss: tuple[float, ...]
    problems: tuple[str, ...] = ()


class _Target(NamedTuple):
    """Inputs as the model places them, the covariance there, and the number of draws per step."""

    inputs: Any
    covariance_BB: Tensor
    draws: int


@undisturbed
@explained()
def match_prior(
    model: Model, inputs: Any, kernel: Kernel | Tensor, *, steps: int = 400, draws: int = 64, seed: int = 0
) -> MatchedPrior:
    """Return normal priors of mean 0, one scale per parameter, whose functions are like those of a Gaussian process.

    Every output is taken for a draw from the same process. The search starts at the standard deviations of the
    model's prior. Where several scales give the same functions, as in neighbouring layers around a ReLU, it finds
    one of them. Learned parameters of the likelihood keep their priors. `after` says how close the network comes:
    few hidden units, or activations of another smoothness, cannot have the functions of every kernel.

    Args:
        model: its prior must have a standard deviation for every weight.
        inputs: tensor (B, ...), or a tuple or mapping of such, at which functions are compared; some dozens are
            enough.
        kernel: inputs -> covariance (B, B), such as `RBFKernel()`, or the matrix itself.
        steps: steps of Adam on the logarithms of the scales.
        draws: functions drawn in a step.
        seed: seed of the draws.

    Returns:
        The priors, and how close they come. A warning if they are neither closer than the start nor close.

    Raises:
        TypeError: if the model is not a Model, or the kernel neither a function nor a matrix.
        ValueError: if the covariance does not fit the inputs, the network has batch norm, or the prior of a weight
            has no finite standard deviation.
    """
    check_kind(Model, "a Model", model=model)
    check_counts(steps=steps)
    check_counts(draws=draws, least=2)
    seed, names = as_seed(seed), model.network.layout.names
    norms = (*model.network.batch_norms, *model.network.by_batch)
    if norms:
        raise ValueError(
            f"the functions of a network with the batch norm `{norms[0]}` depend on the other inputs, so there is "
            f"no prior to match. Use group norm or layer norm."
        )
    check_finite(placed := model.place(inputs))
    if batch_size(placed) == 0:
        raise ValueError("`inputs` has no rows; there is nothing to match.")
    with torch.no_grad(), taking(placed):
        model.network(model.network.initial, placed)
    target = _Target(placed, _covariance(kernel, placed), draws)
    size = model.network.layout.size
    check_memory(2 * draws * size * model.network.dtype.itemsize, "the weights", model.network.device, draws=draws)
    first_P = _start(model)
    matched_P, losses = _search(model.network, target, first_P, steps=steps, seed=seed)
    before, after = (_distance(model.network, target, each, seed=seed) for each in (first_P, matched_P))
    problem = f"its distance from the process is {after:.3g}, no less than {before:.3g} at the start"
    problems = () if after < max(before, _CLOSE) else (problem,)
    warn_of(problems, "this prior")
    priors = {name: Normal(float(scale)) for name, scale in zip(names, matched_P.exp(), strict=True)}
    return MatchedPrior(priors, before, after, tuple(losses), problems)


def _covariance(kernel: Any, inputs: Any) -> Tensor:
    """Return the covariance of the process at inputs, float64 (B, B).

    A ValueError unless it is (B, B), finite, symmetric, positive semi-definite and not zero.
    """
    function: Any = kernel if callable(kernel) and not isinstance(kernel, Tensor | type) else None
    value = kernel if function is None else function(inputs)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`kernel` must be a matrix (B, B), or a function of inputs such as RBFKernel(); got {seen(kernel)}."
        )
    rows = batch_size(inputs)
    if value.shape != (rows, rows):
        raise ValueError(f"`kernel` must give a matrix ({rows}, {rows}) at {rows} inputs; got {tuple(value.shape)}.")
    matrix = value.detach().double()
    top = float(matrix.abs().max())
    if not 0 < top < math.inf or float((matrix - matrix.T).abs().max()) > 1e-6 * top:
        raise ValueError(
            f"`kernel` must give a finite, symmetric matrix that is not 0; got {seen(value)}, largest {top:g}."
        )
    lowest = float(eigh(matrix)[0].min())
    if lowest < -1e-6 * top * rows:
        raise ValueError(f"`kernel` must give a covariance; got {seen(value)} with the eigenvalue {lowest:.3g}.")
    return (matrix + matrix.T) / 2


def _start(model: Model) -> Tensor:
    """Return log s of every parameter of the network under the model's prior, (P,), float64.

    A ValueError if the prior of a weight has no finite standard deviation.
    """
    stds_D, layout = model.prior.stds(), model.network.layout
    squares = torch.stack([stds_D[layout.slices[name]].square().mean() for name in layout.names])
    if not squares.isfinite().all():
        name = layout.names[int((~squares.isfinite()).nonzero()[0])]
        raise ValueError(
            f"the search starts at the standard deviations of the model's prior, and that of `{name}` is not finite. "
            f"Give the model a Normal prior."
        )
    return 0.5 * squares.log().to(model.network.device)


def _search(network: Network, target: _Target, first_P: Tensor, *, steps: int, seed: int) -> tuple[Tensor, list[float]]:
    """Return log s of every parameter, the mean over the last quarter of the steps of Adam, and the losses.

    A ValueError if functions are not finite.
    """
    log_P = first_P.clone().requires_grad_()
    optimizer = torch.optim.Adam([log_P], lr=_STEP, betas=_BETAS)
    total, size, losses, late = float(target.covariance_BB.square().sum()), 0.0, [], []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.5 * _STEP * (1 + math.cos(math.pi * step / steps))
        with differentiable():
            square, cross = _moments(_functions(network, log_P, target, draws=target.draws, seed=(seed, step)), target)
            # After the first step, the size of the step before, whose draws are independent.
            size = size or float(square.detach().clamp_min(0)) + total
            loss = (square - 2 * cross + total) / size  # bounded, so that Adam forgets a wild start
            (log_P.grad,) = torch.autograd.grad(loss, log_P)
        losses.append(float((square - 2 * cross).detach()) / total + 1)
        if not math.isfinite(losses[-1]) or not bool(log_P.grad.isfinite().all()):
            low, high = (float(end) for end in log_P.detach().exp().aminmax())
            raise ValueError(
                f"the functions of the prior are not finite at step {step} of the search; its scales there are from "
                f"{low:.3g} to {high:.3g}. Start from a smaller prior."
            )
        size = float(square.detach().clamp_min(0)) + total
        optimizer.step()
        if step >= 3 * steps // 4:
            late.append(log_P.detach().clone())
    return torch.stack(late).mean(0), losses


def _functions(network: Network, log_P: Tensor, target: _Target, *, draws: int, seed: tuple[int, int]) -> Tensor:
    """Return functions drawn with scales, (S, B, K), float64, differentiable in the scales."""
    layout = network.layout
    source = generator(Purpose.PRIOR_MATCHING, *seed, device=network.device)
    noise = torch.randn(draws, layout.size, generator=source, dtype=network.dtype, device=network.device)
    sizes = torch.tensor(layout.sizes, device=network.device)
    weights_SD = noise * log_P.exp().to(noise).repeat_interleave(sizes)

    def outputs_of_draw(weights_D: Tensor) -> Tensor:
        return network(weights_D, target.inputs)

    try:
        with StackedLayers(), quiet_vmap():
            outputs_SBK = vmap(outputs_of_draw)(weights_SD)
    except RuntimeError:  # an operation has no batching rule
        outputs_SBK = torch.stack([outputs_of_draw(weights_D) for weights_D in weights_SD])
    return outputs_SBK.double().flatten(2)


def _moments(outputs_SBK: Tensor, target: _Target) -> tuple[Tensor, Tensor]:
    """Return unbiased estimates of ‖M‖²_F and tr(M C), averaged over the outputs."""
    draws, _, outputs = outputs_SBK.shape
    gram_KSS = torch.einsum("sbk,tbk->kst", outputs_SBK, outputs_SBK).square()
    diagonal = gram_KSS.diagonal(dim1=1, dim2=2).sum()
    square = (gram_KSS.sum() - diagonal) / (draws * (draws - 1) * outputs)
    cross = torch.einsum("sbk,bc,sck->", outputs_SBK, target.covariance_BB, outputs_SBK) / (draws * outputs)
    return square, cross


@torch.no_grad()
def _distance(network: Network, target: _Target, log_P: Tensor, *, seed: int) -> float:
    """Return the distance of functions from the process, as `MatchedPrior.after` defines it.

    W² = |m|² + tr C + tr Ĉ − 2 tr(C^½ Ĉ C^½)^½; the last trace is the nuclear norm of the centred functions / √S
    times C^½.
    """
    blocks = -(-_JUDGED // target.draws)
    drawn = [_functions(network, log_P, target, draws=target.draws, seed=(seed, -1 - n)) for n in range(blocks)]
    outputs_KSB = torch.cat(drawn).permute(2, 0, 1)
    mean_KB = outputs_KSB.mean(1)
    values, vectors = eigh(target.covariance_BB)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    centred = (outputs_KSB - mean_KB.unsqueeze(1)) / math.sqrt(outputs_KSB.shape[1])
    norm = torch.linalg.svdvals(centred @ root).sum(-1)
    total = target.covariance_BB.trace()
    squares = mean_KB.square().sum(1) + total + centred.square().sum((1, 2)) - 2 * norm
    return math.sqrt(max(0.0, float(squares.mean() / total)))

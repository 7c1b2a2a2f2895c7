"""Checks of a fit by gradient descent: whether its result explains the rows on which it was trained.

All numbers are mean log likelihoods of a target, in nats, over about 512 training rows spread over the data, in
whole batches, since a network may couple the rows of a batch.

    c    of the best constant, max_f (1/n) Σ log p(y_i | f): outputs and learned noise are equal for all rows
    ℓ    at the weights where the trajectory ended
    a    at the average of SWA and SWAG, or its mean over S draws of SWAG
    t    of the average prediction of these draws, (1/n) Σ log (1/S) Σ_s p(y_i | w_s)

A trajectory is worthless where ℓ < c − 1. An average is broken where it loses more than half a nat of ℓ, and more
than half of what ℓ gains over a constant: draws of an exact posterior lie γ/2 ≤ n/2 nats below the mode, at most
half a nat per target, as the data determine γ ≤ n directions (MacKay 1992). Draws are broken only where t has lost
as much, or a nat: where noise is learned, single overconfident draws may be far off although their average is not.
Where t does not exceed c, nothing was learned of how targets depend on inputs (`torchbayes.health.constant`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from torchbayes.health.constant import best_constant, learned_nothing, num_targets, outputs_of
from torchbayes.health.ending import Case, Ending, first, named
from torchbayes.health.noise import noise_problems
from torchbayes.health.residuals import unexplained
from torchbayes.model.batches.batch import Batch
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import Model, having_learned
from torchbayes.model.network import Buffers
from torchbayes.model.priors.bound import BoundPrior
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import not_finite

_ROWS, _DRAWS = 512, 8
_WORTHLESS, _BROKEN = 1.0, 0.5  # nats per target
_EXPLODED = 100.0  # prior standard deviations
_LARGE = 1000.0  # root mean square of inputs
_MOVED = "these still moved too far (lower `averaging_lr`, or train longer before averaging)"
_BLOCK = 1 << 16  # weights at a time; float64 copies of all of them would be the memory peak of a small fit


@dataclass(frozen=True, kw_only=True)
class Descended(Ending):
    """A run of gradient descent."""

    weights_MD: Tensor  # where the trajectory of each member ended
    buffers: Buffers  # the network's buffers there
    result: Posterior | None = None  # the posterior to judge; None for the run's own
    averaged: bool = False  # whether the result is an average over a trajectory, or lies around one, instead of its end
    why: str = _MOVED  # why draws, or an average, may be worse than the end of a trajectory, with what to do
    # whether draws are judged together, so that an end of the trajectory that is far worse is no problem
    together: bool = False
    noise: bool = True  # whether a learned noise is compared with the residuals of rows left out, as needed for a mode

    def with_learned(self, learned: Sequence[float]) -> Descended:
        return replace(self, weights_MD=having_learned(self.weights_MD, learned))

    def look(self, case: Case) -> list[str]:
        posterior, source = case.posterior if self.result is None else self.result, case.source
        problems = not_finite(posterior.tensors())
        if problems:
            return problems
        batches = source.some(_ROWS)
        posterior = posterior.calibrated(lambda: (batch.inputs for batch in batches))
        last = Point(
            posterior.model,
            self.weights_MD,
            buffers_M=self.buffers or None,
            calibration=posterior.calibration,
            statistics_known=not self.averaged,
        )
        seen_MB = log_likelihoods(last, batches)[0]
        if not seen_MB.any() and not _counts(last, batches):
            return [
                "none of the training rows that were looked at counts: all are ignored, or have weight 0, so that the "
                "prior alone was fitted (look at the targets and their weights)"
            ]
        model, weights_D, count = last.model, self.weights_MD[0], num_targets(last.model, batches)
        last_M, best = seen_MB.sum(-1) / count, best_constant(model, batches, weights_D)
        constant, centre = -math.inf if best is None else best.value, posterior.centre
        seen = cache(lambda: log_likelihoods(posterior, batches, draws=1 if centre is posterior else _DRAWS))
        problems += _worthless(last_M.maximum(together(seen(), count)) if self.together else last_M, constant)
        problems += _exploded(model, self.weights_MD) + _unscaled(model, batches, weights_D)
        if self.averaged or (centre is not None and centre is not posterior):
            problems += _broken(posterior, batches, last_M=last_M, constant=constant, why=self.why, seen=seen)
        noise_MD: Tensor = self.weights_MD if centre is None else centre.weights_MD
        problems = problems or (noise_problems(posterior, noise_MD, source) if self.noise else [])
        return problems or unexplained(posterior, source) or learned_nothing(best, seen, count)


def together(seen_SMB: Tensor, count: float) -> Tensor:
    """Return t, the mean log likelihood of a target under the average of the draws of each member."""
    return (seen_SMB.logsumexp(0) - math.log(len(seen_SMB))).sum(-1) / count


def log_likelihoods(posterior: Posterior, batches: Sequence[Batch], *, draws: int = 1) -> Tensor:
    """Return the log likelihood of every row under S draws of every member, seeds 0 to S − 1.

    Float64 (S, M, B), in nats; −∞ where it is not finite. The posterior has training inputs for recalibration, if
    its network needs them.
    """
    seen = []
    for seed in range(draws):
        drawn = posterior.functions(posterior.members, seed=seed)
        seen.append(torch.stack([_log_likelihoods(drawn, m, batches) for m in range(posterior.members)]))
    return torch.stack(seen)


def _log_likelihoods(drawn: Functions, m: int, batches: Sequence[Batch]) -> Tensor:
    """Return the log likelihood of every row under one function, float64 (B,); −∞ where it is not finite."""
    likelihood = drawn.model.likelihood
    function = drawn.some(slice(m, m + 1))
    learned = {n: p[0] for n, p in function.parameters.items()}
    # A batch is not split, because the network may couple its rows.
    outputs = (function(b.inputs, chunk_size=b.size)[0] for b in batches)
    by_batch = [likelihood.log_prob(f, b.targets, learned).double() for f, b in zip(outputs, batches, strict=True)]
    return torch.cat(by_batch).nan_to_num(nan=-math.inf, neginf=-math.inf, posinf=-math.inf)


def _counts(posterior: Posterior, batches: Sequence[Batch]) -> bool:
    """Return whether any row counts: it is not ignored and has a weight above 0."""
    drawn = posterior.functions(posterior.members)
    for batch in batches:
        outputs = drawn(batch.inputs, chunk_size=batch.size)[0]
        weights_B = scored(posterior.model.likelihood, outputs, batch.targets).row_weights
        if weights_B is None or weights_B.any():
            return True
    return False


def _worthless(last_M: Tensor, constant: float) -> list[str]:
    bad_M = last_M < constant - _WORTHLESS
    return [
        f"the training rows are less likely under {named(bad_M)} than under a constant ({float(last_M[m]):.4g} "
        f"against {constant:.4g} nats a target), so it was trained too little or has diverged (standardise inputs and "
        f"targets, train longer, or lower the learning rate)"
        for m in first(bad_M)
    ]


def _broken(
    posterior: Posterior,
    batches: Sequence[Batch],
    *,
    last_M: Tensor,
    constant: float,
    why: str,
    seen: Callable[[], Tensor],
) -> list[str]:
    """Return the problems of the mean of the snapshots, and of draws around it."""
    count = num_targets(posterior.model, batches)
    gain_M = (last_M - constant).nan_to_num(posinf=0.0).clamp_min(0.0) if math.isfinite(constant) else 0 * last_M
    allowed_M = (gain_M / 2).clamp_min(_BROKEN)
    mean = posterior.centre or posterior
    mean_M = log_likelihoods(mean, batches)[0].sum(-1) / count
    problem = _lost("the average", mean_M, last_M, mean_M < last_M - allowed_M, why=why)
    if problem or mean is posterior:
        return problem
    single_M, together_M = seen().sum(-1).mean(0) / count, together(seen(), count)
    broken_M = (single_M < last_M - allowed_M) & (together_M < last_M - allowed_M.clamp_max(_WORTHLESS))
    return _lost("draws", single_M, last_M, broken_M, why=why)


def _lost(name: str, seen_M: Tensor, last_M: Tensor, broken_M: Tensor, *, why: str) -> list[str]:
    """Return the problem if an average, or draws around it, have lost what the trajectory had learned."""
    return [
        f"the training rows are far less likely under {name} of {named(broken_M)} than at the last weights of its "
        f"trajectory ({float(seen_M[m]):.4g} against {float(last_M[m]):.4g} nats a target), as {why}"
        for m in first(broken_M)
    ]


def _exploded(model: Model, weights_MD: Tensor) -> list[str]:
    size_M = _distances(model.prior, weights_MD)
    bad_M = size_M >= _EXPLODED
    return [
        f"the weights of {named(bad_M)} have exploded: they are {float(size_M[m]):.3g} prior standard deviations "
        f"from the prior's mean (lower the learning rate)"
        for m in first(bad_M)
    ]


def _distances(prior: BoundPrior, weights_MD: Tensor) -> Tensor:
    """Return the root mean square of (w − mean)/std of each member, float64 (M,), in blocks to bound memory."""
    total_M = torch.zeros(len(weights_MD), dtype=torch.float64)
    for segment in prior.segments:
        loc_D, std_D = (segment.each(value).cpu().split(_BLOCK) for value in (segment.loc, segment.std))
        for m, weights_D in enumerate(weights_MD[:, segment.where]):
            for block_D, loc, std in zip(weights_D.split(_BLOCK), loc_D, std_D, strict=True):
                total_M[m] += ((block_D.double().cpu() - loc) / std).square().sum()
    return (total_M / weights_MD.shape[-1]).sqrt()


def _unscaled(model: Model, batches: Sequence[Batch], weights_D: Tensor) -> list[str]:
    """Return the problem of large inputs to a network without normalisation layers."""
    if any("Norm" in type(module).__name__ for module in model.network.module.modules()):
        return []
    size = _size_at_first_layer(model, batches[0], weights_D)
    if size < _LARGE:
        return []
    return [
        f"the inputs are of size {size:.3g} where the first layer with random weights takes them, so functions under "
        f"the prior are as large (standardise the inputs)"
    ]


def _size_at_first_layer(model: Model, batch: Batch, weights_D: Tensor) -> float:
    """Return the root mean square of the inputs to the first layer with random weights; 0 where it is unknown.

    The network's inputs do not count: it may scale them first, add them as a mask or look them up in a table. Only
    layers of torch are considered; what others do with their inputs is unknown.
    """
    seen: list[Tensor | None] = []

    def see(layer: nn.Module, given: tuple[Any, ...]) -> None:
        del layer
        if not seen:  # becomes a number later, because that would break the graph of a compiled network
            first = next((x for x in given if isinstance(x, Tensor)), None)
            seen.append(first if first is None else first.detach().clone())

    modules = dict(model.network.module.named_modules(remove_duplicate=False))
    owners = {id(m): m for n in model.network.layout.names if (m := modules.get(n.rpartition(".")[0])) is not None}
    layers = [m for m in owners.values() if type(m).__module__.startswith("torch.nn.") and not any(m.children())]
    hooks = [layer.register_forward_pre_hook(see) for layer in layers]
    try:
        outputs_of(model, batch, weights_D)
    finally:
        for hook in hooks:
            hook.remove()
    tensor = seen[0] if seen else None
    while tensor is not None and is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)  # the network may call torch.func itself
    if tensor is None or not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    return float(tensor.double().square().mean()) ** 0.5

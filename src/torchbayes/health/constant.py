"""The best constant: the explanation of rows that does not look at their inputs, and results that do no better.

    c = max_f (1/n) Σ_i log p(y_i | f)

where the outputs f, and learned parameters of the likelihood, are equal for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.health.ending import first
from torchbayes.model.batches.batch import Batch, in_chunks, tensors_of
from torchbayes.model.likelihoods.weighted import num_values, observed
from torchbayes.model.model import Model
from torchbayes.model.network import taking
from torchbayes.native.process import differentiable

_CONSTANTS = 10_000  # outputs of a row; beyond, the best constant is not computed
_RISING = 0.01  # nats; a search that still gained as much in its last step has not converged
_NOTHING = 0.005  # nats per target, and at least one nat in all
_FEWEST = 100  # rows; the best constant itself overfits fewer


class Constant(NamedTuple):
    """The constant that explains rows best."""

    value: float  # c, its mean log likelihood of a target, in nats
    rows_B: Tensor  # its log likelihood of each row, float64


def constant_log_likelihood(model: Model, batches: Sequence[Batch], weights_D: Tensor) -> float:
    """Return c, in nats; −∞ where the rows do not determine it: see `best_constant`."""
    constant = best_constant(model, batches, weights_D)
    return -math.inf if constant is None else constant.value


def best_constant(model: Model, batches: Sequence[Batch], weights_D: Tensor) -> Constant | None:
    """Return the best constant outputs and learned likelihood parameters for the targets.

    `weights_D` are any weights; they only give the shape of outputs. None where the rows do not determine the
    constant: there are too few of them or too many outputs, output shapes differ, a target is equal in all rows, or
    the likelihood is unbounded.
    """
    shape, *other_shapes = {tuple(outputs_of(model, batch, weights_D).shape[1:]) for batch in batches}
    size = sum(batch.size for batch in batches)
    parameters = model.likelihood.parameters()
    free = math.prod(shape) + sum(math.prod(p.shape) for p in parameters.values())
    if other_shapes or size <= free + 1 or free > _CONSTANTS or _still(model, batches):
        return None
    constant = torch.zeros(shape, dtype=torch.float64, device=model.network.device).requires_grad_()
    learned = {n: p.start().to(constant).requires_grad_() for n, p in parameters.items()}
    rows, count = partial(_rows, model, batches, constant, learned), num_targets(model, batches)
    value = highest(lambda: rows().sum() / count, [constant, *learned.values()])
    return Constant(value, rows().detach()) if math.isfinite(value) else None


def _rows(model: Model, batches: Sequence[Batch], constant: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
    """Return the log likelihood of each row under the same outputs, (B,)."""
    everywhere = ((constant.expand(b.size, *constant.shape), b.targets) for b in batches)
    return torch.cat([model.likelihood.log_prob(f, targets, learned) for f, targets in everywhere])


def learned_nothing(constant: Constant | None, seen: Callable[[], Tensor], count: float) -> list[str]:
    """Return the problem of members whose draws together explain rows no better than a constant.

    A member is named if the mean of log (1/S) Σ_s p(y_i | w_s) − log p(y_i | constant), plus two of its standard
    errors over the rows, is below 0.005 nats, or below one nat in all, twice what a superfluous parameter gains.
    Fewer than 100 rows name nobody, nor do a few rows that decide, whose error is large. `seen` returns the log
    likelihood of each row under each draw of each member, (S, M, B), `count` is the number of targets.
    """
    if constant is None or len(constant.rows_B) < _FEWEST:
        return []
    seen_SMB = seen()
    together_MB = seen_SMB.logsumexp(0) - math.log(len(seen_SMB))
    gain_MB = together_MB - constant.rows_B.to(together_MB.device)
    gain_M = gain_MB.sum(-1) / count
    error_M = gain_MB.std(-1) * math.sqrt(gain_MB.shape[-1]) / count
    return [
        f"member {m} explains the training rows no better than a constant does ("
        f"{constant.value + float(gain_M[m]):.4g} against {constant.value:.4g} nats a target), so nothing was "
        f"learned of how targets depend on inputs (train longer or at a lower learning rate, or give the data more "
        f"weight than the prior; or the inputs tell nothing)"
        for m in first(gain_M + 2 * error_M < max(_NOTHING, 1 / count))
    ]


def outputs_of(model: Model, batch: Batch, weights_D: Tensor) -> Tensor:
    """Return the outputs of rows."""
    views, _ = model.split(weights_D)
    with torch.no_grad(), taking(batch.inputs):
        return torch.cat([model.network(views, rows.inputs) for rows in in_chunks(batch, model.chunk_size)])


def _still(model: Model, batches: Sequence[Batch]) -> bool:
    """Return whether a real-valued target, or every target, is equal in all rows.

    A constant then fits it exactly, which means nothing where other rows differ, as with targets that are rarely
    nonzero. A label or flag may be constant alongside targets that vary.
    """
    rows = [tensors_of(observed(model.likelihood, batch.targets)) for batch in batches]
    if any(len({t.shape[1:] for t in column}) > 1 for column in zip(*rows, strict=True)):
        return False
    leaves = [torch.cat(column) for column in zip(*rows, strict=True)]
    varies = [(t != t[:1]).any(0) for t in leaves]
    real = [v for v, t in zip(varies, leaves, strict=True) if t.is_floating_point()]
    return not all(bool(v.all()) for v in real) or not any(bool(v.any()) for v in varies)


def num_targets(model: Model, batches: Sequence[Batch]) -> float:
    """Return the weighted number of targets; 1 if none counts."""
    return sum(num_values(model.likelihood, batch.targets) for batch in batches) or 1.0


def highest(value: Callable[[], Tensor], free: Sequence[Tensor], *, fine: float = 1e-3) -> float:
    """Return the highest value of a function of the `free` tensors, which are changed; −∞ if none is found.

    Steps use the signs of the gradient, so that targets may have any scale: they grow while a sign persists and
    shrink when it flips (Riedmiller and Braun 1993), down to `fine` relative to 1 + |tensor|. The optimisers of
    torch.optim take seconds to import. Where there is no maximum, or it is not reached, the last steps still gain
    much.
    """
    steps, before = [torch.full_like(t, 0.1) for t in free], [torch.zeros_like(t) for t in free]
    best, second = -math.inf, -math.inf
    for _ in range(100):
        try:
            with differentiable():
                current = value()
                gradients = torch.autograd.grad(current, free)
        except (ValueError, RuntimeError):  # a likelihood may reject outputs that no network gives
            break
        second, best = sorted((second, best, float(current.detach().nan_to_num(nan=-math.inf, posinf=-math.inf))))[1:]
        for tensor, step, old, new in zip(free, steps, before, gradients, strict=True):
            turned = old * new
            step.mul_(torch.where(turned > 0, 1.5, torch.where(turned < 0, 0.4, 1.0)))
            old.copy_(new.nan_to_num(0.0))
            tensor.data.addcmul_(step, old.sign())
        if all(bool((step <= fine * (1 + tensor.abs())).all()) for step, tensor in zip(steps, free, strict=True)):
            return best
    return best if best - second < _RISING else -math.inf

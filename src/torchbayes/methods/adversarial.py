"""Adversarial training: every row also where a small step makes it least likely (Goodfellow, Shlens and Szegedy 2015).

    x′ = x + ε (high − low) sign(∂ℓ/∂x),    loss ½ (ℓ(x, y) + ℓ(x′, y)),    ℓ = −log p(y | f_w(x))

by the fast gradient sign method. ε is a share of the range of each number of the inputs over the training rows, as for
deep ensembles in Lakshminarayanan, Pritzel and Blundell (2017), where it is 0.01. The loss is the mean of both, not
their sum, so that N rows still count as N against the prior. Ranges are those of the rows that a member has seen in
its first pass. They are in its state, so a resumed run has the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchbayes.density.density import LogDensity
from torchbayes.model.batches.batch import in_chunks, rows_of
from torchbayes.model.model import Batch
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, seeded

Ranges = dict[str, Tensor]
"""Lowest and highest values of the inputs, such as "low 0" and "high 0" of their first tensor, (M, ...)."""


_State = TypeVar("_State", bound=Any)


def attacked(density: LogDensity, now: _State, batch: Batch, *, share: float) -> tuple[_State, Batch]:
    """Return a state with the ranges of the rows seen, and the rows of a step followed by the same rows moved.

    `share` is ε. The batch grows from (M, B, ...) to (M, 2B, ...). Raises TypeError if inputs are not real numbers,
    and ValueError if rows differ in shape, or outputs do not depend on their inputs by a derivative.
    """
    leaves, tree = pytree.tree_flatten(batch.inputs)
    positions = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    _check_real([leaves[at] for at in positions])
    now = _measured(now, [leaves[at] for at in positions])
    slopes = _slopes(density, now, batch, places=positions)
    for number, (at, slope) in enumerate(zip(positions, slopes, strict=True)):
        low, high = (now.ranges[f"{end} {number}"].unsqueeze(1) for end in ("low", "high"))
        leaves[at] = torch.cat([leaves[at], leaves[at] + share * (high - low) * slope.sign()], dim=1)
    targets = pytree.tree_map_only(Tensor, lambda t: torch.cat([t, t], dim=1), batch.targets)
    return now, Batch(pytree.tree_unflatten(leaves, tree), targets)


def _check_real(rows: list[Tensor]) -> None:
    """Raise TypeError unless inputs are real numbers."""
    dtype = next((t.dtype for t in rows if not t.is_floating_point()), None)
    if dtype is not None:
        raise TypeError(
            f"`adversarial` moves inputs by small steps, so that they must be real numbers; got {dtype}, such as "
            f"tokens or flags. Leave `adversarial` out, or give embeddings as inputs."
        )


def _measured(now: _State, rows: list[Tensor]) -> _State:
    """Return the state with the ranges of the rows seen so far, in the first pass.

    Raises ValueError if rows differ in shape from those before.
    """
    ranges: Ranges = dict(now.ranges)
    for number, leaf in enumerate(rows):
        low, high = leaf.amin(1), leaf.amax(1)
        before = ranges.get(f"low {number}")
        if before is not None and before.shape != low.shape:
            raise ValueError(
                f"`adversarial` needs rows of one shape, each number of which has a range; got "
                f"{tuple(low.shape[1:])} after {tuple(before.shape[1:])}. Pad them, or leave `adversarial` out."
            )
        if before is None:
            ranges |= {f"low {number}": low, f"high {number}": high}
        elif now.step < now.steps_per_epoch:
            ranges[f"low {number}"] = torch.minimum(before, low)
            ranges[f"high {number}"] = torch.maximum(ranges[f"high {number}"], high)
    return replace(now, ranges=ranges)


def _slopes(density: LogDensity, now: Any, batch: Batch, *, places: list[int]) -> list[Tensor]:
    """Return ∂ℓ/∂x of every row, for each tensor of the inputs, in training mode and with masks of its own.

    Raises ValueError if the outputs do not depend on an input by a derivative.
    """
    model, by_member = density.model, []
    for m, seed in enumerate(now.seeds):
        rows_m, by_chunk = Batch(rows_of(batch.inputs, m), rows_of(batch.targets, m)), []
        for number, chunk in enumerate(in_chunks(rows_m, model.chunk_size)):
            leaves, tree = pytree.tree_flatten(chunk.inputs)
            # copies, because this pass must not change the statistics of batch norm
            copies = {name: buffer[m].clone() for name, buffer in now.buffers.items()}
            with differentiable():
                for at in places:
                    leaves[at] = leaves[at].detach().requires_grad_()
                rows = chunk._replace(inputs=pytree.tree_unflatten(leaves, tree))
                keys = (seed, now.step, number) if number else (seed, now.step)
                with model.network.training(), seeded(Purpose.ATTACK, *keys, device=now.weights_MD.device):
                    fit = model.log_likelihood(now.weights_MD[m].detach(), rows, copies).sum()
                by_chunk.append(torch.autograd.grad(-fit, [leaves[at] for at in places], allow_unused=True))
        if any(slope is None for slopes in by_chunk for slope in slopes):
            raise ValueError(
                "`adversarial` needs outputs that depend on every input by a derivative; one is cut off from them. "
                "Leave `adversarial` out."
            )
        by_member.append([torch.cat(slopes) for slopes in zip(*by_chunk, strict=True)])
    return [torch.stack(slopes_of_leaf) for slopes_of_leaf in zip(*by_member, strict=True)]

"""Checks that the steps of a run were finite, without waiting for a GPU at each of them.

Work on a GPU is queued, and a program that reads a number waits until the queue is empty. So on a GPU the numbers of a
step stay in the state, and are checked together, every 50 steps and at the end of an epoch or run. A run that diverges
is then stopped up to 49 steps late, and the error names the step at which it happened. No checkpoint of a state that
is not finite is written. On a CPU, where the check costs nothing, every step is checked before it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchbayes.methods.protocol import DivergedError
from torchbayes.model.batches.batch import Batch, tensors_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# marks a field of a state that steps need and the posterior does not: it is freed after the last step
FOR_STEPS: dict[str, Any] = {"for_steps": True}
# marks one that is also scratch space: it is kept neither between runs nor in checkpoints
WORKSPACE: dict[str, Any] = {**FOR_STEPS, "workspace": True}
LAG = {"cpu": 1}  # steps between checks, by device
_LATE = 50

_State = TypeVar("_State", bound="DataclassInstance")


class Seen(NamedTuple):
    """The numbers of a step, to be checked later."""

    step: int
    rate: float  # learning rate or step size
    value_M: Tensor  # loss or log density
    health_M: Tensor  # finite where `value_M` and its gradient are

    @classmethod
    def of(cls, step: int, rate: float, *, value_M: Tensor, gradient_MD: Tensor) -> Seen:
        """Return the numbers of a step, from one pass over the gradient."""
        # a sum of squares is finite exactly if its terms are, except for overflow
        return cls(step, rate, value_M, value_M + torch.linalg.vector_norm(gradient_MD, dim=-1))


class Unsound(NamedTuple):
    """The first step that was not finite, its rate, and the first member that failed, with its value."""

    step: int
    rate: float
    member: int
    value: float


def due(unseen: Sequence[Seen], *, last: bool) -> bool:
    """Return whether steps are to be checked now; always if `last`."""
    return last or len(unseen) >= lag_of(unseen[0].value_M)


def lag_of(tensor: Tensor) -> int:
    """Return how many steps are taken on the device of a tensor before their numbers are checked."""
    return LAG.get(tensor.device.type, _LATE)


def first_unsound(unseen: Sequence[Seen]) -> Unsound | None:
    """Return the first step that was not finite; None if all were."""
    health_M = [seen.health_M for seen in unseen]
    rows = torch.stack(health_M).tolist() if len(unseen) > 1 else [health_M[0].tolist()]
    for seen, row in zip(unseen, rows, strict=True):
        finite = [isfinite(number) for number in row]
        if not all(finite):
            member = finite.index(False)
            return Unsound(seen.step, seen.rate, member, seen.value_M[member].item())
    return None


def clone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of named tensors."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def writable(state: _State, *, donate: bool) -> _State:
    """Return a state that a step may overwrite: itself with copied buffers if donated, else a copy.

    Buffers are few and small. They are always copied, so that a diverging batch does not change batch-norm statistics.
    """
    names = {"buffers"} if donate else {f.name for f in fields(state)}
    parts = {f.name: _copy(f, getattr(state, f.name)) for f in fields(state) if f.name in names}
    return replace(state, **parts)


def _copy(field: Field[Any], value: Any) -> Any:
    """Return a copy of what a field of a state holds; a copy of scratch space has no content."""
    if isinstance(value, Tensor):
        return torch.empty_like(value) if field.metadata.get("workspace") else value.clone()
    return clone(value) if isinstance(value, Mapping) else value


def largest(batch: Batch | None) -> float:
    """Return the largest absolute value in a batch, for messages."""
    values = [t.abs().max() for t in tensors_of(tuple(batch or ())) if t.is_floating_point() and t.numel()]
    return max((float(value) for value in values), default=0.0)


def looked_at(
    now: Any, batch: Batch | None, seen: Seen, *, advice: str = "or lower the learning rate, or the `rho` of SAM"
) -> tuple[Seen, ...]:
    """Return the steps that remain to be checked, this one included, after checking those that are due.

    Raises DivergedError if a step was not finite; its message ends with `advice`. `batch` is None where another
    program has computed the gradient.
    """
    unseen = (*now.unseen, seen)
    if not due(unseen, last=(now.step + 1) % now.steps_per_epoch == 0):
        return unseen
    if (bad := first_unsound(unseen)) is not None:
        values = "Standardise" if batch is None else f"The batch holds values up to {largest(batch):.3g}: standardise"
        raise DivergedError(
            f"the fit diverged at step {bad.step} of {now.total_steps}: the loss of member {bad.member} is "
            f"{bad.value:g} or its gradient is not finite, at learning rate {bad.rate:g}. {values} inputs and targets "
            f"if they are large, {advice}."
        )
    return ()

"""Whether the steps of a run were finite, without waiting for a GPU at each of them.

Work on a GPU is queued, and a program that looks at a number waits until the queue is empty. So a step there keeps its
numbers in its state, and they are looked at together, every 50 steps and at the end of an epoch or run. A run that
diverges is then stopped up to 49 steps late, with the step named at which it happened; no checkpoint of a state that is
not finite is ever written. On a CPU, where looking costs nothing, every step is looked at before it is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

# marks a field of a state that steps need and the posterior does not: it is freed once the last step is taken
FOR_STEPS: dict[str, Any] = {"for_steps": True}
# marks one whose content is scratch space besides, kept neither between runs nor in checkpoints
WORKSPACE: dict[str, Any] = {**FOR_STEPS, "workspace": True}
LAG = {"cpu": 1}  # steps after which their numbers are looked at, by device
_LATE = 50


class Seen(NamedTuple):
    """The numbers of a step that nobody has looked at.

    Attributes:
        step: its number.
        rate: its learning rate or step size.
        value_M: loss or log density of each member.
        health_M: finite where `value_M` and its gradient are.
    """

    step: int
    rate: float
    value_M: Tensor
    health_M: Tensor

    @classmethod
    def of(cls, step: int, rate: float, *, value_M: Tensor, gradient_MD: Tensor) -> Seen:
        """Return the numbers of a step; one pass over the gradient."""
        # a sum of squares is finite exactly when its terms are, short of overflow
        return cls(step, rate, value_M, value_M + torch.linalg.vector_norm(gradient_MD, dim=-1))


class Unsound(NamedTuple):
    """The first step that was not finite, its rate, and the first member that it went wrong for, with its value."""

    step: int
    rate: float
    member: int
    value: float


def due(unseen: Sequence[Seen], *, last: bool) -> bool:
    """Return whether steps are to be looked at now: `last` asks for it whatever their number."""
    return last or len(unseen) >= lag_of(unseen[0].value_M)


def lag_of(tensor: Tensor) -> int:
    """Return how many steps are taken on the device of a tensor before their numbers are looked at."""
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

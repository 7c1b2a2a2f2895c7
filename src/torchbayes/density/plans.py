"""The table of backends, and the plan that chooses one of them for a stack of members."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.checks import check_choice
from torchbayes.density.backend import Backend, Evaluation, Functions
from torchbayes.density.compiled import Compiled
from torchbayes.density.loop import Loop
from torchbayes.density.native import Native
from torchbayes.density.vmap import Vmap
from torchbayes.model.batches.batch import batch_size
from torchbayes.model.dropout import Mask
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.precision import lowered
from torchbayes.native.process import quiet_vmap

# Every backend, in the order in which "auto" tries them, and their names in the setting `plan`.
BACKENDS: tuple[type[Backend], ...] = (Native, Loop, Vmap, Compiled)
BackendName = Literal["native", "loop", "vmap", "compiled"]
BACKEND_NAMES: tuple[str, ...] = tuple(backend.name for backend in BACKENDS)
# Stacked members must beat the loop by this factor to replace it, so that timing noise rarely changes the choice.
_MARGIN = 1.15
_LONG = 0.25  # seconds after which a run is not repeated, as what disturbs it is small beside it


@dataclass(frozen=True)
class Plan:
    """How a stack of members is run, and why.

    Attributes:
        backend: its name: "native", "loop", "vmap" or "compiled".
        reason: one sentence.
        seconds: backend -> measured seconds of one evaluation, for the backends that were tried.
    """

    backend: str
    reason: str
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(BACKEND_NAMES, backend=self.backend)


def as_plan(plan: Plan | str) -> Plan | None:
    """Return the plan of this name; None for "auto", a ValueError for an unknown one."""
    if isinstance(plan, Plan):
        return plan
    check_choice(("auto", *BACKEND_NAMES), plan=plan)
    return None if plan == "auto" else Plan(plan, "set by the caller")


def bound(model: Model, *, training: bool, chunk_size: int) -> dict[str, Backend]:
    """Return every backend, bound to a model, by name."""
    return {backend.name: backend(model, training=training, chunk_size=chunk_size) for backend in BACKENDS}


def choose(backends: Mapping[str, Backend], evaluation: Evaluation) -> Plan:
    """Return the plan of "auto": a backend that is preferred wherever it runs, else the fastest on these rows.

    The first of those that are measured is kept unless another is clearly faster. Buffers of the evaluation are not
    changed.
    """
    for backend in backends.values():
        if backend.automatic == "wherever it runs" and backend.refuses(evaluation) is None:
            return Plan(backend.name, f"{backend.words} runs this network")
    best, *others = (backend for backend in backends.values() if backend.automatic == "if faster")
    if len(evaluation.weights_MD) == 1:
        return Plan(best.name, "there is one member")
    reasons, seconds = [], {}
    for other in others:
        if (refusal := other.refuses(evaluation)) is not None:
            reasons.append(refusal)
            continue
        if not seconds:
            seconds[best.name] = _seconds(best, evaluation)
        try:
            with quiet_vmap():
                seconds[other.name] = _seconds(other, evaluation)
        except RuntimeError as error:  # an operation without a batching rule
            reasons.append(f"{other.name} cannot run this network: {error}")
            continue
        ratio = seconds[best.name] / seconds[other.name]
        only = "" if ratio > _MARGIN else "only "
        reasons.append(f"{other.words} ran {only}{ratio:.2f} times faster than {best.words}")
        best = best if only else other
    return Plan(best.name, "; ".join(reasons), seconds)


def outputs(
    model: Model,
    weights_SD: Tensor,
    inputs: Any,
    *,
    buffers_S: Buffers | None = None,
    chunk_size: int,
    masks_S: Sequence[Mask] | None = None,
) -> Tensor:
    """Return the outputs (S, B, K) of S networks on the same rows, from the first backend that offers them.

    Arguments are the fields of `Functions`, and inputs are placed by the model. The loop offers them for every network.
    """
    most = batch_size(inputs) if model.coupled else min(chunk_size, model.chunk_size or chunk_size)
    functions = Functions(weights_SD, inputs, buffers_S, most, masks_S)
    with lowered() if model.autocast else nullcontext():
        for backend in (*(each for each in BACKENDS if each is not Loop), Loop):
            results = backend(model).outputs(functions)
            if results is not None:
                return results
    raise LookupError("no backend gives the outputs of this network.")


def _seconds(backend: Backend, evaluation: Evaluation) -> float:
    """Return the seconds that an evaluation takes: the minimum of three runs after a warm-up, or of fewer long ones."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < 4 and sum(times) < _LONG):
        own_buffers = {n: b.clone() for n, b in evaluation.buffers.items()} if evaluation.buffers else None
        _wait(evaluation.weights_MD.device)
        start = time.perf_counter()
        backend.evaluate(evaluation._replace(buffers=own_buffers))
        _wait(evaluation.weights_MD.device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _wait(device: torch.device) -> None:
    """Wait for a GPU, whose work is only queued when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

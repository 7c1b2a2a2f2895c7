"""Ways to run a stack of members by autograd, and the plan that chooses one.

One after the other ("loop"), together under `vmap`, or together and compiled ("compiled"); "native" is the library's
own kernel (dense.py). All are one function up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.func import vmap

from torchbayes.checks import check_choice
from torchbayes.density.native import kernel_of
from torchbayes.density.precision import full_precision
from torchbayes.density.stacked import StackedLayers, quiet
from torchbayes.model.layout import Layout
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.rows.batch import row_axes
from torchbayes.native.build import UnavailableError
from torchbayes.native.seeds import Purpose, seeded

Way = Literal["native", "loop", "vmap", "compiled"]
WAYS: tuple[str, ...] = get_args(Way)
# vmap must beat the loop by this much to replace it, so that noise in the timing seldom changes the choice
_MARGIN = 1.15


@dataclass(frozen=True)
class Plan:
    """How a stack of members is run, and why.

    Attributes:
        way: "native", "loop", "vmap" or "compiled".
        reason: one sentence.
        seconds: way -> measured seconds of one evaluation, for the ways that were tried.
    """

    way: Way
    reason: str
    seconds: dict[str, float] = field(default_factory=dict)


def as_plan(plan: Way | Plan | str) -> Plan | None:
    """Return the plan that was asked for; None for "auto".

    Raises:
        ValueError: if there is no such way.
    """
    if isinstance(plan, Plan):
        return plan
    check_choice(("auto", *WAYS), plan=plan)
    return None if plan == "auto" else Plan(plan, "set by the caller")  # type: ignore[arg-type]


class Into(NamedTuple):
    """Where a gradient goes: written over what is there, or added to it."""

    gradient_MD: Tensor
    add: bool

    def write(self, layout: Layout, members: int | slice, *, total: Tensor, leaves: dict[str, Tensor]) -> None:
        """Differentiate `total` into the rows of `members`: each part goes to its place, without a joined copy."""
        parts = torch.autograd.grad(total, tuple(leaves.values()), materialize_grads=True)
        for view, part in zip(layout.split(self.gradient_MD[members]).values(), parts, strict=True):
            view.add_(part) if self.add else view.copy_(part)


class Call(NamedTuple):
    """One evaluation: `shared` says that all members see the same rows, else tensors of the batch are (M, B, ...)."""

    weights_MD: Tensor
    batch: Batch
    shared: bool
    buffers: Buffers | None
    seeds: Sequence[int] | None
    scale: float
    into: Into


class Ways:
    """Σ_b log p(y_b|f_b) of M members and its gradient, by autograd.

    Attributes:
        model: the model.
        training: whether the network runs in training mode.
    """

    def __init__(self, model: Model, *, training: bool) -> None:
        """Bind a model."""
        self.model, self.training = model, training
        self._compiled: Callable[..., Tensor] | None = None

    def run(self, way: str, call: Call) -> Tensor:
        """Return Σ_b log p(y_b|f_b) of each member (M,), and write `scale` times its gradient."""
        mode = self.model.network.training() if self.training else nullcontext()
        # calls on all the data are those of Metropolis tests
        precision = full_precision(call.weights_MD.device) if call.shared else nullcontext()
        with torch.enable_grad(), mode, precision:
            return self._loop(call) if way == "loop" else self._stacked(way, call)

    def _stacked(self, way: str, call: Call) -> Tensor:
        stack = _stack(self.model, call.shared)
        if way == "compiled":
            # compiled once per density: the shapes of a method's batches hardly change, so neither do the guards
            self._compiled = self._compiled or torch.compile(stack)
            stack = self._compiled
        leaves = _leaves(self.model.layout, call.weights_MD)
        with StackedLayers() if way == "vmap" else nullcontext():
            total_M = stack(leaves, call.batch, call.buffers or {})
        call.into.write(self.model.layout, slice(None), total=total_M.sum() * call.scale, leaves=leaves)
        return total_M.detach()

    def _loop(self, call: Call) -> Tensor:
        totals = []
        for m, weights_D in enumerate(call.weights_MD):
            leaves = _leaves(self.model.layout, weights_D)
            rows = call.batch if call.shared else call.batch.map(lambda t, m=m: t[m])
            rows = rows._replace(inputs=self.model.network.arrange(rows.inputs))
            own = {n: b[m] for n, b in call.buffers.items()} if call.buffers else None
            with seeded(Purpose.DROPOUT, call.seeds[m], device=weights_D.device) if call.seeds else nullcontext():
                total = self.model.log_likelihood(leaves, rows, own).sum(dtype=torch.float64)
            call.into.write(self.model.layout, m, total=total * call.scale, leaves=leaves)
            totals.append(total.detach())
        return torch.stack(totals)

    def plan(self, call: Call) -> Plan:
        """Return a plan: the kernel if it can run this, else loop or vmap, measured on these rows.

        The loop is kept unless vmap is clearly faster.
        """
        kernel = kernel_of(self.model)
        if not isinstance(kernel, UnavailableError) and kernel.takes(call.weights_MD, *call.batch, shared=call.shared):
            return Plan("native", "the library has its own kernel for this network on a CPU")
        if len(call.weights_MD) == 1:
            return Plan("loop", "there is one member")
        if self.training and _stochastic(self.model, call):
            return Plan("loop", "the network draws random numbers in training mode, so each member needs its own seed")

        def measure(way: str) -> float:
            times = []
            for _ in range(4):
                own = {n: b.clone() for n, b in call.buffers.items()} if call.buffers else None
                _wait(call.weights_MD.device)
                start = time.perf_counter()
                self.run(way, call._replace(buffers=own))
                _wait(call.weights_MD.device)
                times.append(time.perf_counter() - start)
            return min(times[1:])

        seconds = {"loop": measure("loop")}
        try:
            with quiet():
                seconds["vmap"] = measure("vmap")
        except RuntimeError as error:  # an operation without a batching rule
            return Plan("loop", f"vmap cannot run this network: {error}", seconds)
        faster = seconds["loop"] / seconds["vmap"]
        if faster > _MARGIN:
            return Plan("vmap", f"stacked members ran {faster:.2f} times faster than a loop", seconds)
        return Plan("loop", f"stacked members ran only {faster:.2f} times faster than a loop", seconds)


def _leaves(layout: Layout, weights: Tensor) -> dict[str, Tensor]:
    """Return named views of `weights` (..., D) to differentiate with respect to."""
    return {name: view.detach().requires_grad_() for name, view in layout.split(weights).items()}


def _wait(device: torch.device) -> None:
    """Wait for a GPU, whose work is only queued when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _stochastic(model: Model, call: Call) -> bool:
    """Return whether two seeds give two values on the same rows."""
    rows = call.batch if call.shared else call.batch.map(lambda t: t[0])
    values = []
    with model.network.training(), torch.no_grad():
        for seed in (1, 2):
            own = {n: b[0].clone() for n, b in call.buffers.items()} if call.buffers else None
            with seeded(Purpose.TRIAL, seed, device=call.weights_MD.device):
                values.append(model.log_likelihood(call.weights_MD[0], rows, own))
    return not torch.equal(*values)


def _stack(model: Model, shared: bool) -> Callable[[dict[str, Tensor], Batch, Buffers], Tensor]:
    """Return a function (named weights, batch, buffers) -> Σ_b log p(y_b|f_b), shape (M,), vectorised over members."""

    def one(weights_D: dict[str, Tensor], inputs: Any, targets: Any, buffers: Buffers) -> Tensor:
        rows = model.log_likelihood(weights_D, Batch(inputs, targets), buffers or None)
        return rows.sum(dtype=torch.float64)  # samplers need differences that are small beside the sum

    def run(weights_MD: dict[str, Tensor], batch: Batch, buffers: Buffers) -> Tensor:
        axis = None if shared else 0
        axes = row_axes(batch.inputs, axis), row_axes(batch.targets, axis)
        return vmap(one, in_dims=(0, *axes, 0))(weights_MD, batch.inputs, batch.targets, buffers)

    return run

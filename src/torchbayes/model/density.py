"""LogDensity: the hot function `weights_MD -> (log_density_M, gradient_MD)`.

Everything that moves weights calls it and does vector algebra around it. It alone decides how a stack of M members
is run: by the library's own kernel ("native": fully connected networks on a CPU), one after the other ("loop"),
together ("vmap"), or together and compiled ("compiled"). The choice is a `Plan`, made on the first batch unless it is
set: the kernel where it can run, which is the fastest there, else loop or vmap by measuring. `density.plan` says which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from torchbayes.model.layout import Layout
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.seeds import seeded
from torchbayes.model.stacked import StackedLayers
from torchbayes.native.build import UnavailableError

Way = Literal["native", "loop", "vmap", "compiled"]
WAYS: tuple[str, ...] = get_args(Way)
# vmap must beat the loop by this much to replace it, so that noise in the timing seldom changes the choice
_MARGIN = 1.15


class Value(NamedTuple):
    """What a density returns.

    Attributes:
        log_density: tensor (M,), in nats, on the full-data scale, tempered.
        gradient: tensor (M, D), d log_density / d weights.
        log_likelihood: tensor (M,), Σ log p(y|f) on the full-data scale, untempered and without the prior, in nats.
    """

    log_density: Tensor
    gradient: Tensor
    log_likelihood: Tensor


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


class LogDensity:
    """The tempered log joint density of a model and its gradient, for M members at once.

    Attributes:
        model: the model.
        num_data: N.
        data: all rows, for the full-data form; None when every call brings a minibatch.
        training: whether the network runs in training mode (dropout on, batch-norm statistics of the batch).
        chunk_size: rows per evaluation in the full-data form: the bound on memory.
        plan: the plan in use; None before the first call when it is chosen by measuring.
    """

    def __init__(
        self,
        model: Model,
        num_data: int,
        data: Batch | None = None,
        *,
        plan: Way | Plan | Literal["auto"] = "auto",
        chunk_size: int = 1024,
        training: bool = False,
    ) -> None:
        """Bind a model to its data size.

        Args:
            model: the model.
            num_data: N, at least 1.
            data: all N rows, for calls without a batch.
            plan: how to run a stack of members; "auto" takes the kernel, or measures loop and vmap on the first batch.
            chunk_size: rows per evaluation in the full-data form.
            training: whether the network runs in training mode.

        Raises:
            ValueError: if `plan` is unknown, a size is not positive, or the data do not have N rows.
        """
        if num_data < 1 or chunk_size < 1:
            raise ValueError(f"`num_data` and `chunk_size` must be at least 1; got {num_data} and {chunk_size}.")
        if isinstance(plan, str) and plan not in {*WAYS, "auto"}:
            raise ValueError(f"`plan` must be one of auto, {', '.join(WAYS)}; got {plan!r}.")
        if data is not None and data.size != num_data:
            raise ValueError(f"`data` must hold all {num_data} rows; got {data.size}.")
        self.model, self.num_data = model, num_data
        self.data = data and data.map(Tensor.contiguous)
        self.training, self.chunk_size = training, chunk_size
        if isinstance(plan, Plan):
            self.plan: Plan | None = plan
        else:
            self.plan = None if plan == "auto" else Plan(plan, "set by the caller")  # type: ignore[arg-type]
        self._compiled: Callable[..., Tensor] | None = None

    def __call__(
        self,
        weights_MD: Tensor,
        batch: Batch | None = None,
        *,
        buffers: Buffers | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Value:
        """Return log density and gradient of each member.

        Args:
            weights_MD: tensor (M, D).
            batch: one minibatch per member, every tensor (M, B, ...); None means all of `data`, shared by the members.
            buffers: the network's buffers, each (M, ...), changed in place in training mode; if None its own,
                of which copies take the change.
            seeds: M seeds for a network that draws random numbers in training mode (dropout).

        Returns:
            `Value(log_density_M, gradient_MD, log_likelihood_M)`; the gradient is a new tensor.

        Raises:
            ValueError: if there is neither a batch nor data.
        """
        return self._scaled(1.0, weights_MD, batch, buffers, seeds, torch.empty_like(weights_MD))

    def loss(
        self,
        weights_MD: Tensor,
        batch: Batch | None = None,
        *,
        buffers: Buffers | None = None,
        seeds: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Value:
        """Return the objective of optimisers: the negative log joint density per observation, T removed.

        loss = −(T/N) log p_T(w, D) for a tempered joint density: the mode does not depend on T, and a learning rate
        keeps its usual meaning. With likelihood-only tempering the loss is −log p_T(w, D)/N.

        Args:
            weights_MD: tensor (M, D).
            batch: as in a call.
            buffers: as in a call.
            seeds: as in a call.
            out: tensor (M, D) that receives the gradient, so that its memory is used again; a new one if None.

        Returns:
            `Value(loss_M, gradient_MD, log_likelihood_M)`, the first two per observation.
        """
        temperature = self.model.temperature if self.model.tempering == "joint" else 1.0
        out = torch.empty_like(weights_MD) if out is None else out
        return self._scaled(-temperature / self.num_data, weights_MD, batch, buffers, seeds, out)

    def _scaled(
        self,
        factor: float,
        weights_MD: Tensor,
        batch: Batch | None,
        buffers: Buffers | None,
        seeds: Sequence[int] | None,
        gradient_MD: Tensor,
    ) -> Value:
        """Return `factor` times the log density and its gradient, which is written into `gradient_MD`.

        The factor enters each part before it is differentiated, so that no pass over (M, D) is spent on scaling.

        Raises:
            ValueError: if there is neither a batch nor data, or a batch has no rows.
        """
        if batch is None and self.data is None:
            raise ValueError("a batch is needed: this density was made without `data`.")
        weights_MD = weights_MD.detach()
        if buffers is None and self.training:  # else the network's own would move
            buffers = self.model.network.stacked_buffers(len(weights_MD))
        rows = self.num_data if batch is None else batch.targets.shape[1]
        if rows == 0:
            raise ValueError("the batch has no rows.")
        scale = self.model.scales(self.num_data, rows)
        scales = (factor * scale.likelihood, factor * scale.prior)
        call = _Call(
            weights_MD,
            batch or self.data,  # type: ignore[arg-type]
            batch is None,
            buffers,
            seeds,
            scales[0],
            _Gradient(gradient_MD, False),
        )
        if self.plan is None:
            self.plan = _plan(self, call._replace(batch=next(self._parts(batch))))
        if self.plan.way == "native":
            value_M, log_prior_M = _native(self, call, scales)
        else:
            value_M = torch.zeros(len(weights_MD), dtype=torch.float64, device=weights_MD.device)
            for number, part in enumerate(self._parts(batch)):
                value_M += self.run(self.plan.way, call._replace(batch=part, into=_Gradient(gradient_MD, number > 0)))
            self.model.prior.add_gradient_(gradient_MD, weights_MD, scales[1])
            with torch.no_grad():
                log_prior_M = self.model.log_prior(weights_MD)
        return Value(scales[0] * value_M + scales[1] * log_prior_M, gradient_MD, value_M * (self.num_data / rows))

    def _parts(self, batch: Batch | None) -> Iterator[Batch]:
        """Yield the minibatch, or the full data in chunks."""
        if batch is not None:
            yield batch
            return
        for start in range(0, self.num_data, self.chunk_size):
            where = slice(start, start + self.chunk_size)
            yield self.data.map(lambda t, where=where: t[where])  # type: ignore[union-attr]

    def run(self, way: str, call: _Call) -> Tensor:
        """Return Σ_b log p(y_b|f_b) of each member (M,), and write `scale` times its gradient."""
        with torch.enable_grad(), self.model.network.training() if self.training else nullcontext():
            return self._loop(call) if way == "loop" else self._stacked(way, call)

    def _stacked(self, way: str, call: _Call) -> Tensor:
        stack = _stack(self.model, call.shared)
        if way == "compiled":
            # compiled once per density: the shapes of a method's batches hardly change, so neither do the guards
            self._compiled = self._compiled or torch.compile(stack)
            stack = self._compiled
        leaves = _leaves(self.model.layout, call.weights_MD)
        with StackedLayers() if way == "vmap" else nullcontext():
            total_M = stack(leaves, call.batch, call.buffers or {})
        call.into.write(self.model.layout, slice(None), total_M.sum() * call.scale, leaves)
        return total_M.detach()

    def _loop(self, call: _Call) -> Tensor:
        totals = []
        for m, weights_D in enumerate(call.weights_MD):
            leaves = _leaves(self.model.layout, weights_D)
            rows = call.batch if call.shared else call.batch.map(lambda t, m=m: t[m])
            rows = rows._replace(inputs=self.model.network.arrange(rows.inputs))
            own = {n: b[m] for n, b in call.buffers.items()} if call.buffers else None
            with seeded(call.seeds[m], weights_D.device) if call.seeds else nullcontext():
                total = self.model.log_likelihood(leaves, rows, own).sum(dtype=torch.float64)
            call.into.write(self.model.layout, m, total * call.scale, leaves)
            totals.append(total.detach())
        return torch.stack(totals)


class _Gradient(NamedTuple):
    """Where a gradient goes: written over what is there, or added to it."""

    gradient_MD: Tensor
    add: bool

    def write(self, layout: Layout, members: int | slice, total: Tensor, leaves: dict[str, Tensor]) -> None:
        """Differentiate `total` into the rows of `members`: each part goes to its place, without a joined copy."""
        parts = torch.autograd.grad(total, tuple(leaves.values()), materialize_grads=True)
        for view, part in zip(layout.split(self.gradient_MD[members]).values(), parts, strict=True):
            view.add_(part) if self.add else view.copy_(part)


class _Call(NamedTuple):
    """One evaluation: `shared` says that all members see the same rows, else tensors of the batch are (M, B, ...)."""

    weights_MD: Tensor
    batch: Batch
    shared: bool
    buffers: Buffers | None
    seeds: Sequence[int] | None
    scale: float
    into: _Gradient


def _leaves(layout: Layout, weights: Tensor) -> dict[str, Tensor]:
    """Return named views of `weights` (..., D) to differentiate with respect to."""
    return {name: view.detach().requires_grad_() for name, view in layout.split(weights).items()}


def _native(density: LogDensity, call: _Call, scales: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return log likelihood and log prior of each member, (M,), and write the gradient of both.

    Raises:
        ValueError: if the kernel cannot run this model.
    """
    kernel = density.model.kernel
    if isinstance(kernel, UnavailableError):
        raise ValueError(f"plan 'native' cannot run this model: {kernel}. Set another plan, or leave it to 'auto'.")
    return kernel.evaluate(
        call.weights_MD,
        *call.batch,
        shared=call.shared,
        scales=scales,
        gradient_MD=call.into.gradient_MD,
        chunk_size=density.chunk_size,
    )


def _plan(density: LogDensity, call: _Call) -> Plan:
    """Return a plan: the kernel if it can run this, else loop or vmap, measured on these rows.

    The loop is kept unless vmap is clearly faster.
    """
    kernel = density.model.kernel
    if not isinstance(kernel, UnavailableError) and kernel.takes(call.weights_MD, *call.batch, shared=call.shared):
        return Plan("native", "the network is fully connected and on a CPU, where the library has its own kernel")
    if len(call.weights_MD) == 1:
        return Plan("loop", "there is one member")
    if density.training and _stochastic(density.model, call):
        return Plan("loop", "the network draws random numbers in training mode, so each member needs its own seed")

    def measure(way: str) -> float:
        times = []
        for _ in range(4):
            own = {n: b.clone() for n, b in call.buffers.items()} if call.buffers else None
            _wait(call.weights_MD.device)
            start = time.perf_counter()
            density.run(way, call._replace(buffers=own))
            _wait(call.weights_MD.device)
            times.append(time.perf_counter() - start)
        return min(times[1:])

    seconds = {"loop": measure("loop")}
    try:
        seconds["vmap"] = measure("vmap")
    except RuntimeError as error:  # an operation without a batching rule
        return Plan("loop", f"vmap cannot run this network: {error}", seconds)
    faster = seconds["loop"] / seconds["vmap"]
    if faster > _MARGIN:
        return Plan("vmap", f"stacked members ran {faster:.2f} times faster than a loop", seconds)
    return Plan("loop", f"stacked members ran only {faster:.2f} times faster than a loop", seconds)


def _wait(device: torch.device) -> None:
    """Wait for a GPU, whose work is only queued when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _stochastic(model: Model, call: _Call) -> bool:
    """Return whether two seeds give two values on the same rows."""
    rows = call.batch if call.shared else call.batch.map(lambda t: t[0])
    values = []
    with model.network.training(), torch.no_grad():
        for seed in (1, 2):
            own = {n: b[0].clone() for n, b in call.buffers.items()} if call.buffers else None
            with seeded(seed, call.weights_MD.device):
                values.append(model.log_likelihood(call.weights_MD[0], rows, own))
    return not torch.equal(*values)


def _stack(model: Model, shared: bool) -> Callable[[dict[str, Tensor], Batch, Buffers], Tensor]:
    """Return a function (named weights, batch, buffers) -> Σ_b log p(y_b|f_b), shape (M,), vectorised over members."""

    def one(weights_D: dict[str, Tensor], inputs: Any, targets: Tensor, buffers: Buffers) -> Tensor:
        rows = model.log_likelihood(weights_D, Batch(inputs, targets), buffers or None)
        return rows.sum(dtype=torch.float64)  # samplers need differences that are small beside the sum

    def run(weights_MD: dict[str, Tensor], batch: Batch, buffers: Buffers) -> Tensor:
        axis = None if shared else 0
        axes = pytree.tree_map(lambda _: axis, batch.inputs)
        return vmap(one, in_dims=(0, axes, axis, 0))(weights_MD, batch.inputs, batch.targets, buffers)

    return run


class FunctionDensity:
    """Any differentiable log density in the place of a `LogDensity`: for tests and for sampling other targets."""

    def __init__(self, log_density: Callable[[Tensor], Tensor]) -> None:
        """Wrap a function.

        Args:
            log_density: weights (M, D) -> log density (M,), row by row.
        """
        self._function = log_density

    def __call__(self, weights_MD: Tensor, batch: Batch | None = None, **_: Any) -> Value:
        """Return value and gradient at each row; a batch is ignored."""
        del batch
        leaf = weights_MD.detach().requires_grad_()
        value_M = self._function(leaf)
        (gradient_MD,) = torch.autograd.grad(value_M.sum(), leaf)
        return Value(value_M.detach(), gradient_MD, value_M.detach())

"""LogDensity: the hot function `weights_MD -> (log_density_M, gradient_MD)`.

Everything that moves weights calls it and does vector algebra around it. It alone decides how a stack of M members
is run: by the library's own kernel ("native": stacks of linear layers, with convolutions in front or not, on a CPU),
one after the other ("loop"), together ("vmap"), or together and compiled ("compiled"). The choice is a `Plan`, made on
the first batch unless it is set: the kernel where it can run, which is the fastest there, else loop or vmap by
measuring. `density.plan` says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from torchbayes.checks import SettingError, check_counts, check_flags, check_kind, given
from torchbayes.density.compiled import Unrolled
from torchbayes.density.dynamics import Phase, Value, leapfrog
from torchbayes.density.native import DenseModel, kernel_of
from torchbayes.density.plans import Call, Into, Plan, Way, Ways, as_plan
from torchbayes.density.ranks import Ranks
from torchbayes.model.model import Batch, Model, ready
from torchbayes.model.network import Buffers
from torchbayes.model.rows.batch import batch_size
from torchbayes.native.build import UnavailableError
from torchbayes.native.seeds import Purpose, mix


class LogDensity:
    """The tempered log joint density of a model and its gradient, for M members at once.

    Attributes:
        model: the model.
        num_data: N.
        data: all rows, for the full-data form, or this rank's share; None when every call brings a minibatch.
        training: whether the network runs in training mode (dropout on, batch-norm statistics of the batch).
        chunk_size: rows per evaluation in the full-data form: the bound on memory.
        plan: the plan in use; None before the first call when it is chosen by measuring.
        ranks: the processes among which rows are split.
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
        ranks: Ranks | None = None,
    ) -> None:
        """Bind a model to its data size.

        Args:
            model: the model.
            num_data: N, at least 1.
            data: all N rows, for calls without a batch.
            plan: how to run a stack of members; "auto" takes the kernel, or measures loop and vmap on the first batch.
            chunk_size: rows per evaluation in the full-data form.
            training: whether the network runs in training mode.
            ranks: processes that split the rows among them; each is given all, and keeps its share.

        Raises:
            ValueError: if `plan` is unknown, a size is not positive, the data do not have N rows, or ranks would have
                none of them.
        """
        check_kind(Model, "a Model", model=model)
        check_counts(num_data=num_data, chunk_size=chunk_size)
        check_flags(training=training)
        check_kind(Batch, "a Batch", **given(data=data))
        check_kind(Ranks, "the processes, as `Ranks.grid` gives them", **given(ranks=ranks))
        if data is not None and (data := ready(model, data)).size != num_data:
            raise ValueError(f"`data` must hold all {num_data} rows; got {data.size}.")
        self.plan: Plan | None = as_plan(plan)
        self.model, self.num_data, self.ranks = model, num_data, ranks or Ranks()
        own = self.ranks.rows(num_data)
        self.data = data and data.map(lambda t: t[own].contiguous())
        self.training, self.chunk_size = training, chunk_size
        self._ways = Ways(model, training=training)
        self._unrolled: Unrolled | None = None
        self._checked = False

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
            `Value(log_density, gradient, log_likelihood)` of shapes (M,), (M, D), (M,); the gradient is a new tensor.

        Raises:
            SettingError: if there is neither a batch nor data.
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
            `Value` with the loss (M,) and its gradient (M, D), per observation, and the log likelihood (M,).
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
            SettingError: if there is neither a batch nor data, or a batch has no rows.
        """
        if batch is None and self.data is None:
            raise SettingError("a batch is needed: this density was made without `data`.")
        weights_MD = weights_MD.detach()
        batch = batch and _taken(self, batch)
        if buffers is None and self.training:  # else the network's own would move
            buffers = self.model.network.stacked_buffers(len(weights_MD))
        rows = self.num_data if batch is None else batch_size(batch.inputs, 1)
        if rows == 0:
            raise SettingError("the batch has no rows.")
        scale = self.model.scales(self.num_data, rows)
        scales = (factor * scale.likelihood, factor * scale.prior)
        if batch is not None and self.ranks.data > 1:
            own = self.ranks.rows(rows)
            batch = batch.map(lambda t: t[:, own])
        if seeds is not None and self.ranks.data_rank:  # each share of the rows needs masks of its own
            seeds = [mix(Purpose.SHARE, seed, self.ranks.data_rank) for seed in seeds]
        call = Call(
            weights_MD,
            batch or self.data,  # type: ignore[arg-type]
            batch is None,
            buffers,
            seeds,
            scales[0],
            Into(gradient_MD, False),
        )
        if self.plan is None:
            self.plan = self._ways.plan(call._replace(batch=next(_parts(batch, self.data, self.chunk_size))))
        if self.plan.way == "native":
            # the sum over the ranks shall have the prior once
            value_M, log_prior_M = _native(self, call, (scales[0], 0.0 if self.ranks.data_rank else scales[1]))
            self.ranks.sum_(gradient_MD, value_M)
        else:
            value_M = torch.zeros(len(weights_MD), dtype=torch.float64, device=weights_MD.device)
            for number, part in enumerate(_parts(batch, self.data, self.chunk_size)):
                value_M += self._ways.run(self.plan.way, call._replace(batch=part, into=Into(gradient_MD, number > 0)))
            self.ranks.sum_(gradient_MD, value_M)
            self.model.prior.add_gradient_(gradient_MD, weights_MD, scales[1])
            with torch.no_grad():
                log_prior_M = self.model.log_prior(weights_MD)
        return Value(scales[0] * value_M + scales[1] * log_prior_M, gradient_MD, value_M * (self.num_data / rows))

    def leapfrog(
        self,
        weights_MD: Tensor,
        momentum_MD: Tensor,
        *,
        gradient_MD: Tensor,
        step_size_M: Tensor,
        steps_M: Tensor,
        inverse_mass_MD: Tensor | None = None,
    ) -> Phase:
        """Return where leapfrog steps on all the data lead: `dynamics.leapfrog`, as one call where there is a way."""
        options = {"step_size_M": step_size_M, "steps_M": steps_M, "inverse_mass_MD": inverse_mass_MD}
        kernel, scales = kernel_of(self.model), self.model.scales(self.num_data, self.num_data)
        # where ranks share the data, every step needs the others
        way = self.plan.way if self.plan is not None and self.data is not None and self.ranks.data == 1 else None
        if way == "compiled" and self.num_data <= self.chunk_size:
            self._unrolled = self._unrolled or Unrolled(self.model, self.data, scales)  # type: ignore[arg-type]
            return self._unrolled(weights_MD, momentum_MD, gradient_MD=gradient_MD, **options)
        if way != "native" or not isinstance(kernel, DenseModel) or not kernel.normal:
            return leapfrog(self, weights_MD, momentum_MD, gradient_MD=gradient_MD, **options)
        weights_MD, momentum_MD, gradient_MD, log_likelihood_M, log_prior_M = kernel.leapfrog(
            weights_MD,
            momentum_MD,
            gradient_MD=gradient_MD,
            rows=self.data,  # type: ignore[arg-type]
            scales=scales,
            chunk_size=self.chunk_size,
            **options,
        )
        log_density_M = scales.likelihood * log_likelihood_M + scales.prior * log_prior_M
        return Phase(weights_MD, momentum_MD, Value(log_density_M, gradient_MD, log_likelihood_M))

    def prior_stds(self) -> Tensor:
        """Return the standard deviation of the tempered prior of every weight, float64 (D,); infinite if improper."""
        return self.model.prior.stds() * self.model.scales(1, 1).prior ** -0.5


def _taken(density: LogDensity, batch: Batch) -> Batch:
    """Return a minibatch with what all rows share wrapped; the first one is checked."""
    if density.model.shared or not density._checked:
        batch, density._checked = ready(density.model, batch, members=True), True
    return batch


def _parts(batch: Batch | None, data: Batch | None, chunk_size: int) -> Iterator[Batch]:
    """Yield the minibatch, or the full data in chunks."""
    if batch is not None:
        yield batch
        return
    assert data is not None
    for start in range(0, data.size, chunk_size):
        where = slice(start, start + chunk_size)
        yield data.map(lambda t, where=where: t[where])


def _native(density: LogDensity, call: Call, scales: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return log likelihood and log prior of each member, (M,), and write the gradient of both.

    Raises:
        SettingError: if the kernel cannot run this model.
    """
    kernel = kernel_of(density.model)
    if isinstance(kernel, UnavailableError):
        raise SettingError(f"plan 'native' cannot run this model: {kernel}. Set another plan, or leave it to 'auto'.")
    return kernel.evaluate(
        call.weights_MD,
        *call.batch,
        shared=call.shared,
        scales=scales,
        gradient_MD=call.into.gradient_MD,
        chunk_size=density.chunk_size,
    )

"""LogDensity: the hot function `weights_MD -> (log_density_M, gradient_MD)`.

Everything that moves weights calls it and does vector algebra around it. A `Plan` says how a stack of M members is
run: by the library's own kernel ("native": stacks of linear layers, with or without convolutions before them, on a
CPU), one after the other ("loop"), together ("vmap"), or together and compiled ("compiled"). Each is a `Backend`;
nothing here depends on which one it is. Unless it is set, the plan is made on the first batch: the kernel where it
can run, because it is the fastest there, otherwise the faster of loop and vmap, by measurement. `density.plan` says
which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.checks import SettingError, check_counts, check_flags, check_kind, optional
from torchbayes.density.autograd import first_chunk
from torchbayes.density.backend import Backend, Evaluation, Mixing, Trajectory, refuse
from torchbayes.density.body.record import Bodies
from torchbayes.density.dynamics import Phase, Value, ValueOnly, leapfrog
from torchbayes.density.kernels import OnData
from torchbayes.density.plans import BackendName, Plan, as_plan, bound, choose
from torchbayes.density.ranks import Ranks, chunk_of
from torchbayes.model.batches.batch import batch_size
from torchbayes.model.model import Batch, Model, Scales, ready
from torchbayes.model.network import Buffers
from torchbayes.model.probes.functions import refuse_faults
from torchbayes.native.process import undisturbed_methods, widen
from torchbayes.randomness.seeds import Purpose, mix


@undisturbed_methods
class LogDensity:
    """The tempered log joint density of a model and its gradient, for M members at once.

    Attributes:
        model: the model.
        num_data: N.
        data: all rows, for the full-data form, or this rank's share; None when every call brings a minibatch.
        training: whether the network runs in training mode (dropout on, batch-norm statistics of the batch).
        chunk_size: rows per evaluation in the full-data form, which bounds memory.
        plan: the plan in use; None before the first call when it is chosen by measuring.
        ranks: the processes among which rows are split.
    """

    def __init__(
        self,
        model: Model,
        num_data: int,
        data: Batch | None = None,
        *,
        plan: BackendName | Plan | Literal["auto"] = "auto",
        chunk_size: int = 1024,
        training: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        """Bind a model to its data size.

        Args:
            model: the model.
            num_data: N, at least 1.
            data: all N rows, for calls without a batch.
            plan: how to run a stack of members; "auto" takes the kernel, or measures loop and vmap on the first
                batch.
            chunk_size: rows per evaluation in the full-data form.
            training: whether the network runs in training mode.
            ranks: processes that split the rows; each is given all rows, and keeps its share.

        Raises:
            ValueError: if `plan` is unknown, a size is not positive, the data do not have N rows, a rank would
                have no rows, coupled rows would be split among ranks, or rows that batch norm or the like couples
                go through in chunks.
        """
        widen()
        check_kind(Model, "a Model", model=model)
        check_counts(num_data=num_data, chunk_size=chunk_size)
        check_flags(training=training)
        optional(check_kind, Batch, "a Batch", data=data)
        optional(check_kind, Ranks, "the processes, as `Ranks.grid` gives them", ranks=ranks)
        if data is not None and (data := ready(model, data)).size != num_data:
            raise ValueError(f"`data` must hold all {num_data} rows; got {data.size}.")
        chunk_size = _at_once(model, chunk_size, training=training)
        self.plan: Plan | None = as_plan(plan)
        self.model, self.num_data, self.ranks = model, num_data, ranks or Ranks()
        if data is not None and num_data > chunk_size and not model.coupled:
            refuse_faults(model, data, training=training)
        share = self.ranks.rows(num_data)
        self.data = data and data.map(lambda t: t[share].contiguous())
        _check_shares(model, self.ranks)
        chunk_size = chunk_of(self.ranks, num_data, max(chunk_size, num_data) if model.coupled else chunk_size)
        self.training, self.chunk_size = training, chunk_size
        self._backends = bound(model, training=training, chunk_size=chunk_size)
        self._checked, self._admitted, self._bodies = False, False, Bodies(model) if data else None

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
            batch: one minibatch per member, every tensor (M, B, ...); None means all of `data`, shared by the
                members.
            buffers: the network's buffers, each (M, ...), changed in place in training mode; copies of its own if
                None.
            seeds: M seeds for a network that draws random numbers in training mode (dropout).

        Returns:
            `Value(log_density, gradient, log_likelihood)` of shapes (M,), (M, D), (M,); the gradient is a new
            tensor.

        Raises:
            SettingError: if there is neither a batch nor data.
        """
        gradient_MD = torch.empty_like(weights_MD)
        value_M, log_likelihood_M = _scaled(self, _ONES, weights_MD, batch, buffers, seeds, gradient_MD)
        return Value(value_M, gradient_MD, log_likelihood_M)

    def value(self, weights_MD: Tensor, batch: Batch | None = None, *, buffers: Buffers | None = None) -> ValueOnly:
        """Return the log density of each member, the same number as a call gives, without the backward pass.

        Args:
            weights_MD: tensor (M, D).
            batch: as in a call.
            buffers: as in a call.

        Returns:
            `ValueOnly(log_density, log_likelihood)`, each (M,).
        """
        return ValueOnly(*_scaled(self, _ONES, weights_MD, batch, buffers))

    def loss(
        self,
        weights_MD: Tensor,
        batch: Batch | None = None,
        *,
        buffers: Buffers | None = None,
        seeds: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Value:
        """Return the objective of optimisers: the negative log joint density per observation, with T removed.

        loss = −(T/N) log p_T(w, D) for a tempered joint density, so the mode does not depend on T, and a learning
        rate keeps its usual meaning. With likelihood-only tempering the loss is −log p_T(w, D)/N.

        Args:
            weights_MD: tensor (M, D).
            batch: as in a call.
            buffers: as in a call.
            seeds: as in a call.
            out: tensor (M, D) that receives the gradient, to reuse its memory; a new one if None.

        Returns:
            `Value` with the loss (M,) and its gradient (M, D), per observation, and the log likelihood (M,).
        """
        temperature = self.model.temperature if self.model.tempering == "joint" else 1.0
        out = torch.empty_like(weights_MD) if out is None else out
        factors = Scales(-temperature / self.num_data, -temperature / self.num_data)
        value_M, log_likelihood_M = _scaled(self, factors, weights_MD, batch, buffers, seeds, out)
        return Value(value_M, out, log_likelihood_M)

    def nll(
        self,
        weights_MD: Tensor,
        batch: Batch | None = None,
        *,
        buffers: Buffers | None = None,
        seeds: Sequence[int] | None = None,
        out: Tensor | None = None,
        mixing: Mixing | None = None,
    ) -> Value:
        """Return the mean negative log likelihood per observation, without prior and temperature.

        It is −(1/N) log p(D|w), on a minibatch −(1/B) Σ_b log p(y_b|f_w(x_b)). Variational methods take its
        expectation, because they know the prior's term in closed form.

        Args:
            weights_MD: tensor (M, D).
            batch: as in a call.
            buffers: as in a call.
            seeds: as in a call.
            out: as for `loss`.
            mixing: how the draws of a member are combined row by row; the mean, its gradient and the log
                likelihood are then those of `Evaluation`.

        Returns:
            `Value` with that mean (M,), in nats, its gradient (M, D), and the log likelihood (M,).
        """
        out = torch.empty_like(weights_MD) if out is None else out
        # both kinds of tempering divide the likelihood by T
        factors = Scales(-self.model.temperature / self.num_data, -0.0)
        value_M, log_likelihood_M = _scaled(self, factors, weights_MD, batch, buffers, seeds, out, mixing)
        return Value(value_M, out, log_likelihood_M)

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
        """Return the end of leapfrog steps on all the data: `dynamics.leapfrog`, in one call where the backend can."""
        phase = _in_one_call(self, weights_MD, momentum_MD, gradient_MD, step_size_M, steps_M, inverse_mass_MD)
        return phase or leapfrog(
            self,
            weights_MD,
            momentum_MD,
            gradient_MD=gradient_MD,
            step_size_M=step_size_M,
            steps_M=steps_M,
            inverse_mass_MD=inverse_mass_MD,
        )

    def kernel(self) -> OnData | None:
        """Return the library's own kernel if it runs this density and has all the data; else None."""
        backend, data = _whole(self), self.data
        if backend is None or data is None or (kernel := backend.kernel()) is None:
            return None
        return OnData(kernel, data, self.model.scales(self.num_data, self.num_data), self.chunk_size)

    def prior_stds(self) -> Tensor:
        """Return the standard deviation of the tempered prior of every weight, float64 (D,); infinite if improper."""
        return self.model.prior.stds() * self.model.scales(1, 1).prior ** -0.5


def _whole(density: LogDensity) -> Backend | None:
    """Return the backend if it has all the data; None where ranks share them, as every evaluation needs the others."""
    if density.plan is None or density.data is None or density.ranks.data > 1:
        return None
    return density._backends[density.plan.backend]


def _in_one_call(
    density: LogDensity,
    weights_MD: Tensor,
    momentum_MD: Tensor,
    gradient_MD: Tensor,
    step_size_M: Tensor,
    steps_M: Tensor,
    inverse_mass_MD: Tensor | None,
) -> Phase | None:
    """Return the end of leapfrog steps by the backend; None where it cannot, as with a dense mass."""
    diagonal = inverse_mass_MD is None or inverse_mass_MD.ndim == 2
    if not diagonal or density.data is None or (backend := _whole(density)) is None:
        return None
    scales = density.model.scales(density.num_data, density.num_data)
    trajectory = Trajectory(
        weights_MD, momentum_MD, gradient_MD, step_size_M, steps_M, inverse_mass_MD, density.data, scales
    )
    return backend.leapfrog(trajectory)


_ONES = Scales(1.0, 1.0)


def _scaled(
    density: LogDensity,
    factors: Scales,
    weights_MD: Tensor,
    batch: Batch | None,
    buffers: Buffers | None = None,
    seeds: Sequence[int] | None = None,
    gradient_MD: Tensor | None = None,
    mixing: Mixing | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the log density with factors on its parts, and the log likelihood; write the gradient of the former.

    A factor enters its part before it is differentiated, so no pass over (M, D) is spent on scaling. The prior is left
    out where its factor is 0.
    """
    if batch is None and density.data is None:
        raise SettingError("a batch is needed: this density was made without `data`.")
    weights_MD = weights_MD.detach()
    batch = batch and _taken(density, batch)
    if buffers is None and density.training:  # copies, so that the network's own do not change
        buffers = density.model.network.stacked_buffers(len(weights_MD))
    rows = density.num_data if batch is None else batch_size(batch.inputs, 1)
    if rows == 0:
        raise SettingError("the batch has no rows.")
    if density.model.coupled:
        check_whole(rows, density.num_data, mixing)
    unscaled = density.model.scales(density.num_data, rows)
    scales = Scales(factors.likelihood * unscaled.likelihood, factors.prior * unscaled.prior)
    if batch is not None and density.ranks.data > 1:
        share = density.ranks.rows(rows)
        batch = batch.map(lambda t: t[:, share])
    seeds = None if seeds is None else seeds_here(density.ranks, seeds)
    rows_here: Any = batch or density.data
    prior, shared = factors.prior != 0, batch is None
    below = density._bodies.instead if density._bodies and shared and buffers is None else None
    evaluation = Evaluation(weights_MD, rows_here, shared, buffers, seeds, scales, gradient_MD, prior, mixing, below)
    value_M, log_prior_M = _summed(density, evaluation)
    return scales.likelihood * value_M + scales.prior * log_prior_M, value_M * (density.num_data / rows)


def _check_shares(model: Model, ranks: Ranks) -> None:
    """Raise a SettingError if ranks share rows that are coupled, or would not call a network that is split alike."""
    if ranks.data == 1:
        return
    if model.coupled:
        raise SettingError(
            f"the rows of this model are coupled (`Model(coupled=True)`), so {ranks.data} ranks cannot split them. Let "
            f"them share the members (`Ranks.grid(data=1)`)."
        )
    if model.network.sharded and (model.chunk_size is not None or model.network.precision.is_half):
        cause = "`chunk_size`" if model.chunk_size is not None else "float16, whose gradients may be taken twice,"
        raise SettingError(
            f"the network is split over processes, which must call it equally often, and {cause} does not let those "
            f"that share rows do so. Leave `ranks` out, so that each takes all rows."
        )


def _at_once(model: Model, chunk_size: int, *, training: bool) -> int:
    """Return how many rows of all the data go through the network at once.

    It raises a SettingError if minibatches are to be cut whose statistics a batch norm takes.
    """
    norms = (*model.network.batch_norms, *model.network.by_batch)
    if norms and training and model.chunk_size is not None:
        raise SettingError(
            f"`{norms[0]}` is a batch norm, which takes statistics over the rows of a minibatch, so that it cannot go "
            f"through the network {model.chunk_size} rows at a time (`Model(chunk_size=...)`). Leave `chunk_size` out, "
            f"freeze the norm by `random=`, or use a norm within a row, such as nn.GroupNorm."
        )
    return min(chunk_size, model.chunk_size or chunk_size)


def check_whole(rows: int, num_data: int, mixing: Mixing | None = None) -> None:
    """Raise a SettingError if a batch has only some of the coupled rows, or draws are to be combined row by row."""
    if rows != num_data:
        raise SettingError(
            f"the rows of this model are coupled (`Model(coupled=True)`), so all {num_data:,} must go through at once; "
            f"got {rows:,}. Set `batch_size` to {num_data}, or take a method on all the data, such as HMC()."
        )
    if mixing is not None:
        raise SettingError(
            "the rows of this model are coupled (`Model(coupled=True)`), so draws cannot be combined row by row. Set "
            "`alpha` to 0."
        )


def seeds_here(ranks: Ranks, seeds: Sequence[int]) -> Sequence[int]:
    """Return seeds for the random numbers of networks on this process's share of the rows, which has its own masks."""
    return [mix(Purpose.SHARE, seed, ranks.data_rank) for seed in seeds] if ranks.data_rank else seeds


def _taken(density: LogDensity, batch: Batch) -> Batch:
    """Return a minibatch with its shared inputs wrapped; the first minibatch is checked."""
    if density.model.shared or not density._checked:
        check_kind(Batch, "a Batch(inputs, targets) of rows (M, B, ...)", batch=batch)
        batch, density._checked = ready(density.model, batch, members=True), True
    return batch


def _summed(density: LogDensity, evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """Return log likelihood and log prior of each member over the rows of all ranks; write the gradient of both.

    The ranks' gradients are summed, and the sum must contain the prior once. The first rank adds it where the backend
    computes it in its own pass; otherwise it is added to the sum.
    """
    ranks, model, scales = density.ranks, density.model, evaluation.scales
    weights_MD, gradient_MD = evaluation.weights_MD, evaluation.gradient_MD
    if ranks.data_rank:
        evaluation = evaluation._replace(scales=scales._replace(prior=0.0))
    value_M, log_prior_M = _backend(density, evaluation).evaluate(evaluation)
    ranks.sum_(value_M) if gradient_MD is None else ranks.sum_(gradient_MD, value_M)
    if not scales.prior:  # saves its passes over the weights
        return value_M, torch.zeros_like(value_M)
    if log_prior_M is None:
        if gradient_MD is not None:
            model.prior.add_gradient_(gradient_MD, weights_MD, scales.prior)
        with torch.no_grad():
            log_prior_M = model.log_prior(weights_MD)
    return value_M, log_prior_M


def _backend(density: LogDensity, evaluation: Evaluation) -> Backend:
    """Return the backend that runs the members; without a plan it is chosen on the first rows."""
    if density.plan is None:
        gradient_MD = evaluation.gradient_MD  # overwritten anyway once the plan is made
        gradient_MD = torch.empty_like(evaluation.weights_MD) if gradient_MD is None else gradient_MD
        first = first_chunk(next(iter(density._backends.values())), evaluation)._replace(gradient_MD=gradient_MD)
        density.plan, density._admitted = choose(density._backends, first), True
    backend = density._backends[density.plan.backend]
    if not density._admitted:
        refuse(density.plan.backend, backend.refuses(evaluation))
        density._admitted = True
    return backend

"""All members together under `torch.func.vmap`, by autograd.

A linear layer x Wᵀ with a weight per member would become a batched product with a transposed weight gradient, and
copying it back costs a tenth of a training step. (W xᵀ)ᵀ is the same number, and its gradient with respect to W is
contiguous. Attention runs member by member under vmap; torch's warning about it is silenced.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from torchbayes.density.autograd import Into, differentiated, first_chunk, leaves_of, log_prob, mixed
from torchbayes.density.backend import Backend, Evaluation, Functions, Mixing
from torchbayes.density.body.draws import check_fits, first_pass, in_chunks
from torchbayes.density.body.record import reach_of
from torchbayes.model.batches.batch import batch_size, row_axes
from torchbayes.model.likelihoods.weighted import apart
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers, InputsError
from torchbayes.native.process import quiet_vmap
from torchbayes.randomness.seeds import Purpose, seeded

_ATTENTION = {F.scaled_dot_product_attention, F.multi_head_attention_forward}

Stack = Callable[[dict[str, Tensor], Batch, Buffers], Tensor]
"""Named weights, batch, buffers -> the log likelihood of each member, (M,)."""


class Vmap(Backend):
    """All members together."""

    name, words, automatic = "vmap", "stacked members", "if faster"

    def refuses(self, evaluation: Evaluation) -> str | None:
        return refuses_stacked(self, evaluation)

    def evaluate(self, evaluation: Evaluation) -> tuple[Tensor, None]:
        function = stack(self.model, evaluation.shared, evaluation.mixing)
        return evaluate_stack(self, evaluation, function, under=StackedLayers), None

    def outputs(self, functions: Functions) -> Tensor | None:
        """Return the outputs (S, B, K) of S networks, as many of them at once as `chunk_size` rows allow.

        Products with constants are then computed for all draws in one call, and those with random weights for each.
        This pays where a pass takes mostly the time of reading the constants; else, and where an operation cannot be
        vectorised, the result is None.
        """
        network, (weights_SD, inputs, buffers_S, chunk_size, masks_S) = self.model.network, functions
        rows, draws = min(batch_size(inputs), chunk_size), len(weights_SD)
        if (
            not network.constants
            or network.sharded
            or masks_S is not None
            or min(draws, at_once := chunk_size // rows) < 2
        ):
            return None
        if not reach_of(first_pass(self.model, functions)).together(rows):
            return None

        def run(chunk: Any, start: int) -> Tensor:
            def drawn(weights_D: Tensor, buffers: Buffers) -> Tensor:
                return network(self.model.split(weights_D)[0], chunk, buffers or None)

            parts = list[Tensor]()
            for first in range(0, draws, at_once):
                where = slice(first, first + at_once)
                buffers = {name: buffer_S[where] for name, buffer_S in (buffers_S or {}).items()}
                parts.append(vmap(drawn)(weights_SD[where], buffers))
                if not first and not start:
                    check_fits(parts[0][0], functions)
            return torch.cat(parts)

        try:
            with quiet_vmap():
                return in_chunks(self.model, functions, run, passes=-(-draws // at_once))
        except (RuntimeError, InputsError):  # no rule, or too little memory; the loop raises what is wrong with inputs
            return None


def stack(model: Model, shared: bool, mixing: Mixing | None = None) -> Stack:
    """Return the log likelihood as a function vectorised over members, on shared rows or on rows of each."""

    def member_log_likelihood(weights_D: dict[str, Tensor], inputs: Any, targets: Any, buffers: Buffers) -> Tensor:
        if mixing is not None:
            return log_prob(model, weights_D, Batch(inputs, targets), buffers=buffers or None)
        rows = model.log_likelihood(weights_D, Batch(inputs, targets), buffers or None)
        return rows.sum(dtype=torch.float64)  # samplers use differences that are small compared with the sum

    def run(weights_MD: dict[str, Tensor], batch: Batch, buffers: Buffers) -> Tensor:
        axis = None if shared else 0
        axes = row_axes(batch.inputs, axis), row_axes(batch.targets, axis)
        values_M = vmap(member_log_likelihood, in_dims=(0, *axes, 0))(weights_MD, batch.inputs, batch.targets, buffers)
        if mixing is None:
            return values_M
        counts = apart(model.likelihood, batch.targets)[2]
        counts = counts if counts is None or shared else counts[:: mixing.draws]
        return mixed(values_M.unflatten(0, (-1, mixing.draws)), mixing, counts_MB=counts)

    return run


def evaluate_stack(
    backend: Backend, evaluation: Evaluation, function: Stack, *, under: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    """Return the log likelihood of each member, (M,), by the function of `stack`, and write its gradient.

    `under` is the context in which the function is called.
    """
    layout, weights_MD = backend.model.layout, evaluation.weights_MD
    factor = evaluation.scales.likelihood * (evaluation.mixing.draws if evaluation.mixing else 1)

    def run(chunk: Evaluation, into: Into) -> Tensor:
        leaves = leaves_of(layout, weights_MD)
        with under():
            total_M = function(leaves, chunk.batch, chunk.buffers or {})
        into.write(layout, slice(None), total=total_M.sum() * factor, leaves=leaves)
        return total_M.detach()

    return differentiated(backend, evaluation, run)


def refuses_stacked(backend: Backend, evaluation: Evaluation) -> str | None:
    """Return a refusal if a network is split, recomputes activations or draws random numbers; else None.

    A transform would keep the activations, whose memory is to be saved. It does not provide random numbers of each
    member's own: two seeds then give different values.
    """
    network, evaluation = backend.model.network, first_chunk(backend, evaluation)
    if network.sharded:
        return "the network is split over processes, and a transform would keep all of it until the backward pass"
    values = _under_two_seeds(backend, evaluation) if backend.training else []
    if not backend.training:
        views, _ = backend.model.split(evaluation.weights_MD[0])
        rows = evaluation.batch
        network.ask(views, rows.inputs if evaluation.shared else rows.map(lambda t: t[0]).inputs)
    if network.held.recomputes(training=backend.training):
        return (
            "the network recomputes activations in the backward pass (torch.utils.checkpoint), and a transform of "
            "torch.func would keep them"
        )
    if not values or torch.equal(*values):
        return None
    return "the network draws random numbers in training mode, so each member needs its own seed"


def _under_two_seeds(backend: Backend, evaluation: Evaluation) -> list[Tensor]:
    """Return what the network of the first member gives in training mode under two seeds."""
    model, buffers = backend.model, evaluation.buffers
    rows = evaluation.batch if evaluation.shared else evaluation.batch.map(lambda t: t[0])
    values = []
    with model.network.training(), torch.no_grad():
        for seed in (1, 2):
            own_buffers = {n: b[0].clone() for n, b in buffers.items()} if buffers else None
            with seeded(Purpose.TRIAL, seed, device=evaluation.weights_MD.device):
                values.append(model.log_likelihood(evaluation.weights_MD[0], rows, own_buffers))
    return values


class StackedLayers(TorchFunctionMode):
    """While active, linear layers are computed as (W xᵀ)ᵀ + b."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ATTENTION:
            with quiet_vmap():
                return func(*args, **(kwargs or {}))
        return (_linear if func is F.linear else func)(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = input.reshape(-1, input.shape[-1])
    outputs = (weight @ rows.mT).mT.reshape(*input.shape[:-1], weight.shape[0])
    return outputs if bias is None else outputs + bias.to(outputs.dtype)  # under autocast they are lower than the bias

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

from torchbayes.density.autograd import Into, chunks, differentiated, leaves_of, log_prob, mixed
from torchbayes.density.backend import Backend, Evaluation, Mixing
from torchbayes.model.batches.batch import row_axes
from torchbayes.model.likelihoods.weighted import apart
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
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


def stack(model: Model, shared: bool, mixing: Mixing | None = None) -> Stack:
    """Return the log likelihood as a function vectorised over members, on shared rows or on rows of each."""

    def one(weights_D: dict[str, Tensor], inputs: Any, targets: Any, buffers: Buffers) -> Tensor:
        if mixing is not None:
            return log_prob(model, weights_D, Batch(inputs, targets), buffers=buffers or None)
        rows = model.log_likelihood(weights_D, Batch(inputs, targets), buffers or None)
        return rows.sum(dtype=torch.float64)  # samplers use differences that are small compared with the sum

    def run(weights_MD: dict[str, Tensor], batch: Batch, buffers: Buffers) -> Tensor:
        axis = None if shared else 0
        axes = row_axes(batch.inputs, axis), row_axes(batch.targets, axis)
        values_M = vmap(one, in_dims=(0, *axes, 0))(weights_MD, batch.inputs, batch.targets, buffers)
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

    def run(batch: Batch, into: Into) -> Tensor:
        leaves = leaves_of(layout, weights_MD)
        with under():
            total_M = function(leaves, batch, evaluation.buffers or {})
        into.write(layout, slice(None), total=total_M.sum() * factor, leaves=leaves)
        return total_M.detach()

    return differentiated(backend, evaluation, run)


def refuses_stacked(backend: Backend, evaluation: Evaluation) -> str | None:
    """Return a refusal if a network is split, recomputes activations or draws random numbers; else None.

    A transform would keep the activations, whose memory is to be saved. It does not provide random numbers of each
    member's own: two seeds then give different values.
    """
    network = backend.model.network
    if network.sharded:
        return "the network is split over processes, and a transform would keep all of it until the backward pass"
    values = _under_two_seeds(backend, evaluation) if backend.training else []
    if not backend.training:
        views, _ = backend.model.split(evaluation.weights_MD[0])
        rows = next(chunks(evaluation, backend.chunk_size))
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
    return outputs if bias is None else outputs + bias

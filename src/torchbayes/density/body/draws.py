"""Drawn functions at inputs, chunk by chunk; the body of a network is computed once for all draws."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import check_memory
from torchbayes.density.backend import Functions
from torchbayes.density.body.record import Pass, reach_of, record
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, taking


def in_chunks(model: Model, functions: Functions, run: Callable[[Any, int], Tensor], *, passes: int) -> Tensor:
    """Return the outputs (S, B, K) of S networks, chunk by chunk.

    `run` maps a chunk, and the number of its first row, to the outputs of all networks, in some `passes`.
    """
    inputs, size = model.network.arrange(functions.inputs), functions.chunk_size
    rows, at, parts = batch_size(inputs), first_pass(model, functions), list[Tensor]()
    for start in range(0, rows, size):
        chunk = inputs if rows <= size else rows_of(inputs, slice(start, start + size))
        with taking(chunk), _instead(at._replace(inputs=chunk), passes):
            parts.append(run(chunk, start))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _instead(at: Pass, passes: int) -> AbstractContextManager[None]:
    """Return a context in which passes over the rows of `at` do not run the body of the network."""
    network = at.model.network
    if passes < 2 or not network.constants or network.sharded or not reach_of(at).pays(passes, batch_size(at.inputs)):
        return nullcontext()
    body = record(at)
    return body.instead(network) if body else nullcontext()


def first_pass(model: Model, functions: Functions) -> Pass:
    """Return the pass of the first draw over all rows."""
    views = {name: view[0] for name, view in model.split(functions.weights_SD)[0].items()}
    network, buffers_S = model.network, functions.buffers_S or {}
    differing = _differing(network.buffers, buffers_S) if network.constants else frozenset()
    buffers = {name: buffer_S[0] for name, buffer_S in buffers_S.items()} if differing else None
    return Pass(model, views, functions.inputs, buffers, differing)


def _differing(network: Buffers, buffers_S: Buffers) -> frozenset[str]:
    """Return the names of buffers that draws have others of than the network."""
    return frozenset(name for name, buffer_S in buffers_S.items() if (buffer_S != network[name]).any())


def check_fits(outputs_BK: Tensor, functions: Functions) -> None:
    """Raise ValueError if the outputs of all draws do not fit in memory, as seen from those of a draw on some rows."""
    draws, rows = len(functions.weights_SD), batch_size(functions.inputs)
    needed = draws * rows * outputs_BK.nbytes // max(len(outputs_BK), 1)
    check_memory(needed, "outputs of the drawn functions", outputs_BK.device, draws=draws)

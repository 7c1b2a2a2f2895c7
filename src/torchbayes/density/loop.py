"""The loop: one network after the other, by autograd. It runs every model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.autograd import Into, differentiated, leaves_of, log_prob, mixed
from torchbayes.density.backend import Backend, Evaluation, Functions
from torchbayes.density.body.draws import check_fits, in_chunks
from torchbayes.model.dropout import dropping, masked
from torchbayes.model.likelihoods.weighted import apart
from torchbayes.model.model import Batch
from torchbayes.model.network import Network
from torchbayes.randomness.generators import network_under
from torchbayes.randomness.seeds import Purpose, mix


def drawing(network: Network, seed: int) -> AbstractContextManager[None]:
    """Return a context in which a network in training mode draws its random numbers from the seed of its member."""
    if not network.held.draws(training=True):
        return nullcontext()
    return network_under(mix(Purpose.DROPOUT, seed), network.device)


class Loop(Backend):
    """One network after the other."""

    name, words, automatic = "loop", "a loop", "if faster"

    def evaluate(self, evaluation: Evaluation) -> tuple[Tensor, None]:
        """Return the log likelihood of each member, and write its gradient; draws that are mixed share one graph."""
        weights_MD, _, shared, _, _, scales, _, _, mixing, _ = evaluation
        model, draws = self.model, mixing.draws if mixing else 1

        def member_fit(weights: dict[str, Tensor], rows: Batch, m: int, *, chunk: Evaluation) -> Tensor:
            own_buffers = {n: b[m] for n, b in chunk.buffers.items()} if chunk.buffers else None
            with drawing(model.network, chunk.seeds[m]) if chunk.seeds else nullcontext():
                if mixing is None:
                    return model.log_likelihood(weights, rows, own_buffers)
                return log_prob(model, weights, rows, buffers=own_buffers)

        def run(chunk: Evaluation, into: Into) -> Tensor:
            totals, batch = [], chunk.batch
            for first in range(0, len(weights_MD), draws):
                members = first if mixing is None else slice(first, first + draws)
                leaves = leaves_of(model.layout, weights_MD[members])
                rows = batch if shared else batch.map(lambda t, m=first: t[m])
                rows = rows._replace(inputs=model.network.arrange(rows.inputs))
                if mixing is None:
                    total = member_fit(leaves, rows, first, chunk=chunk).sum(dtype=torch.float64)
                else:
                    draw_views = zip(*(leaf.unbind() for leaf in leaves.values()), strict=True)
                    draw_leaves = (dict(zip(leaves, views, strict=True)) for views in draw_views)
                    numbered = enumerate(draw_leaves, start=first)
                    values = [member_fit(weights, rows, m, chunk=chunk) for m, weights in numbered]
                    counts_B = apart(model.likelihood, rows.targets)[2]
                    total = mixed(torch.stack(values).unsqueeze(0), mixing, counts_MB=counts_B).squeeze(0)
                into.write(model.layout, members, total=total * (scales.likelihood * draws), leaves=leaves)
                totals.append(total.detach())
            return torch.stack(totals)

        return differentiated(self, evaluation, run), None

    def outputs(self, functions: Functions) -> Tensor:
        """Return the outputs (S, B, K) of S networks, one after the other.

        On every network measured whose weights are all random (benchmarks/prediction.py), this is at least as fast as
        `vmap`, whose batched products are slower than S plain ones, and it needs S times less memory.
        """
        network, (weights_SD, _, buffers_S, _, masks_S) = self.model.network, functions
        views, _ = self.model.split(weights_SD)

        def drawn(chunk: Any, s: int) -> Tensor:
            own_views = {n: v[s] for n, v in views.items()}
            buffers = {n: b[s] for n, b in buffers_S.items()} if buffers_S else None
            run = partial(masked, network, mask=masks_S[s]) if masks_S else network
            return run(own_views, chunk, buffers=buffers)

        def run(chunk: Any, start: int) -> Tensor:
            first = drawn(chunk, 0)
            if not start:
                check_fits(first, functions)
            return torch.stack([first, *(drawn(chunk, s) for s in range(1, len(weights_SD)))])

        with dropping(network) if masks_S else nullcontext():
            return in_chunks(self.model, functions, run, passes=1 if masks_S else len(weights_SD))

"""The loop: one network after the other, by autograd. It runs every model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from torchbayes.checks import check_memory
from torchbayes.density.autograd import Into, differentiated, leaves_of, log_prob, mixed
from torchbayes.density.backend import Backend, Evaluation, Functions
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.dropout import dropping, masked
from torchbayes.model.likelihoods.weighted import apart
from torchbayes.model.model import Batch
from torchbayes.model.network import Network, taking
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
        weights_MD, _, shared, _, _, scales, _, _, mixing = evaluation
        model, draws = self.model, mixing.draws if mixing else 1

        def one(weights: dict[str, Tensor], rows: Batch, m: int, *, part: Evaluation) -> Tensor:
            own_buffers = {n: b[m] for n, b in part.buffers.items()} if part.buffers else None
            with drawing(model.network, part.seeds[m]) if part.seeds else nullcontext():
                if mixing is None:
                    return model.log_likelihood(weights, rows, own_buffers)
                return log_prob(model, weights, rows, buffers=own_buffers)

        def run(part: Evaluation, into: Into) -> Tensor:
            totals, batch = [], part.batch
            for first in range(0, len(weights_MD), draws):
                members = first if mixing is None else slice(first, first + draws)
                leaves = leaves_of(model.layout, weights_MD[members])
                rows = batch if shared else batch.map(lambda t, m=first: t[m])
                rows = rows._replace(inputs=model.network.arrange(rows.inputs))
                if mixing is None:
                    total = one(leaves, rows, first, part=part).sum(dtype=torch.float64)
                else:
                    draw_views = zip(*(leaf.unbind() for leaf in leaves.values()), strict=True)
                    draw_leaves = (dict(zip(leaves, views, strict=True)) for views in draw_views)
                    values = [one(weights, rows, m, part=part) for m, weights in enumerate(draw_leaves, start=first)]
                    counts_B = apart(model.likelihood, rows.targets)[2]
                    total = mixed(torch.stack(values).unsqueeze(0), mixing, counts_MB=counts_B).squeeze(0)
                into.write(model.layout, members, total=total * (scales.likelihood * draws), leaves=leaves)
                totals.append(total.detach())
            return torch.stack(totals)

        return differentiated(self, evaluation, run), None

    def outputs(self, functions: Functions) -> Tensor:
        """Return the outputs (S, B, K) of S networks, one after the other.

        On every network measured (benchmarks/prediction.py) this is at least as fast as `vmap`, whose batched
        products are slower than S plain ones, and it needs S times less memory.
        """
        weights_SD, inputs, buffers_S, chunk_size, masks_S = functions
        network, rows, draws = self.model.network, batch_size(inputs), len(weights_SD)
        views, _ = self.model.split(weights_SD)
        inputs, results = network.arrange(inputs), []
        with dropping(network) if masks_S else nullcontext():
            for s in range(draws):
                own_views = {n: v[s] for n, v in views.items()}
                buffers = {n: b[s] for n, b in buffers_S.items()} if buffers_S else None
                run = partial(masked, network, mask=masks_S[s]) if masks_S else network
                parts = []
                for start in range(0, rows, chunk_size):
                    where = slice(start, start + chunk_size)
                    chunk = inputs if rows <= chunk_size else rows_of(inputs, where)
                    with taking(chunk):
                        parts.append(run(own_views, chunk, buffers=buffers))
                    if s == start == 0:
                        needed = draws * rows * parts[0].nbytes // max(len(parts[0]), 1)
                        check_memory(needed, "outputs of the drawn functions", parts[0].device, draws=draws)
                results.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        return torch.stack(results)

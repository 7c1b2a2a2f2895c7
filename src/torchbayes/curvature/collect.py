"""The pass over the data: batches of all members, in pieces that fit the memory, on all ranks.

Members are taken one by one whatever the plan of the density, because each piece needs the graph of its forward pass
(capture.py), and the sums of one structure may take more memory than the weights of all members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.curvature.discovery import NetworkLayers
from torchbayes.curvature.exact import exact_curvature
from torchbayes.curvature.roots import parameter_information
from torchbayes.curvature.sums import Piece, Sum, Sums
from torchbayes.density.ranks import Ranks, chunk_of
from torchbayes.linalg import Curvature, DenseCurvature
from torchbayes.linalg.blocks import with_independent
from torchbayes.model.batches.batch import batch_size
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.priors.bound import correlated
from torchbayes.randomness.seeds import Purpose, mix

NOISE = "likelihood"
ROWS = "rows that count"


class Units(NamedTuple):
    """The prior's precision as the unit of curvature."""

    reference_MD: Tensor  # r, the precision of the tempered prior at the weights; 1 where it is flat or correlated
    strength_D: Tensor  # 1, and 0 where it is flat or correlated

    @property
    def scale_MD(self) -> Tensor:
        """r^−½, the factor on a Jacobian."""
        return self.reference_MD.rsqrt()


def units(model: Model, weights_MD: Tensor) -> Units:
    """Return the units of a model's prior at some weights.

    Raises:
        ValueError: if a prior that is not flat has no precision there, or correlates weights beside others that are not
            normal.
    """
    if correlated(model.prior):
        if model.prior.joint is None:
            raise ValueError(
                "the prior correlates some weights, and others are not normal, so the whole has no precision. Use "
                "priors.Normal for the others and a fixed noise scale, or sample the posterior with HMC."
            )
        return Units(torch.ones_like(weights_MD), torch.zeros_like(weights_MD[0]))
    precision_MD = model.prior.precision(weights_MD) * model.scales(1, 1).prior
    flat_D = model.prior.flat.to(weights_MD.device)
    strength_D = torch.where(flat_D, 0.0, 1.0).to(weights_MD)
    return Units(torch.where(flat_D, 1.0, precision_MD), strength_D)


class Members(NamedTuple):
    """Members and their weights.

    Attributes:
        weights_MD: the weights.
        buffers: the network's buffers, each (M, ...).
        seeds: one seed per member.
    """

    weights_MD: Tensor
    buffers: Buffers
    seeds: Sequence[int]


@dataclass(frozen=True)
class Collector:
    """Adds up the curvature of M members.

    Attributes:
        network: the layers of the network.
        sums: the sums of one structure.
        kind: kind of curvature: "ggn", "fisher", "empirical" or "hessian".
        samples: targets drawn for each row by "fisher".
        rows: rows in a piece of a batch.
    """

    network: NetworkLayers
    sums: Sums
    kind: str
    samples: int
    rows: int

    @property
    def model(self) -> Model:
        """The model."""
        return self.network.model

    def empty(self, members: Members) -> Sum:
        """Return the sums over no data, each (M, ...)."""
        size = self.model.network.layout.size
        by_member = [
            self.sums.empty(self.network, w[:size], seed)
            for w, seed in zip(members.weights_MD, members.seeds, strict=True)
        ]
        total = {name: torch.stack([sums[name] for sums in by_member]) for name in by_member[0]}
        total[ROWS] = torch.zeros(len(by_member), 1, dtype=torch.float64, device=members.weights_MD.device)
        if size < members.weights_MD.shape[1]:
            total[NOISE] = torch.zeros_like(members.weights_MD[:, size:])
        return total

    def add_(
        self,
        totals_M: Sum,
        members: Members,
        batch: Batch,
        *,
        gradient_MD: Tensor | None,
        ranks: Ranks,
        position: tuple[int, int],
    ) -> Tensor:
        """Add a batch to the sums of all members, in place.

        Args:
            totals_M: the sums.
            members: the members.
            batch: one batch per member, (M, B, ...).
            gradient_MD: receives the gradient of Σ log p(y|f) in the weights, unless it is None.
            ranks: processes that split the rows.
            position: number of the pass, and of the batch within it.

        Returns:
            Σ log p(y|f) of the batch, float64 (M,).
        """
        count = batch_size(batch.inputs, 1)
        rank_rows, piece_size, log_likelihoods = ranks.rows(count), chunk_of(ranks, count, self.rows), []
        scale_MD = units(self.model, members.weights_MD).scale_MD
        for m in range(len(members.weights_MD)):
            total, into_D = {n: t[m] for n, t in totals_M.items()}, None if gradient_MD is None else gradient_MD[m]
            rows = batch.map(lambda t, m=m: t[m, rank_rows])
            share, part_D = total, into_D
            if ranks.data > 1:  # ranks sum only the change, because the state kept between passes is added only once
                share = {n: t.clone() for n, t in total.items()}
                part_D = None if into_D is None else torch.zeros_like(into_D)
            pieces = _pieces(rows, piece_size)
            log_likelihoods.append(
                self._add(share, members, pieces, member=m, scale_D=scale_MD[m], gradient_D=part_D, position=position)
            )
            if ranks.data > 1:
                change = [share[n] - total[n] for n in total]
                ranks.sum_(log_likelihoods[-1], *change, *([] if part_D is None else [part_D]))
                for name, delta in zip(total, change, strict=True):
                    total[name] += delta
                if into_D is not None and part_D is not None:
                    into_D += part_D
        return torch.stack(log_likelihoods)

    def _add(
        self,
        total: Sum,
        members: Members,
        pieces: Iterable[Batch],
        *,
        member: int,
        scale_D: Tensor,
        gradient_D: Tensor | None,
        position: tuple[int, int],
    ) -> Tensor:
        """Add the rows of one member, in pieces, and return their log likelihood."""
        weights_D = members.weights_MD[member]
        views, parameters = self.model.split(weights_D)
        log_likelihood = torch.zeros((), dtype=torch.float64, device=weights_D.device)
        for number, some_rows in enumerate(pieces):
            piece = Piece(
                self.network,
                views,
                parameters,
                some_rows,
                buffers={n: b[member] for n, b in members.buffers.items()} or None,
                scale_D=scale_D[: self.model.network.layout.size],
                kind=self.kind,
                samples=self.samples,
                seed=mix(Purpose.PIECE, members.seeds[member], position[1], number),
            )
            first = position[0] == 0
            log_likelihood += piece.log_likelihood(gradient_D if first else None)
            if first:
                total[ROWS] += some_rows.size if piece.row_weights is None else (piece.row_weights > 0).sum()
            if first and parameters:
                noise = parameter_information(
                    self.model.likelihood, piece.seen.outputs.detach(), some_rows.targets, parameters=parameters
                )
                total[NOISE] += torch.cat([information.flatten() for information in noise.values()])
            self.sums.add_(total, piece, position[0])
        return log_likelihood

    def turn_(self, totals_M: Sum, members: Members, number: int) -> None:
        """Finish pass number `number`, in place."""
        scale_MD = units(self.model, members.weights_MD).scale_MD
        size = self.model.network.layout.size
        for m in range(len(members.weights_MD)):
            total = {n: t[m] for n, t in totals_M.items()}
            self.sums.turn_(total, self.network, scale_MD[m, :size], number=number)

    def curvature(self, totals_M: Mapping[str, Tensor], reference_MD: Tensor) -> Curvature:
        """Return H in units of the prior, over all weights of the model; learned likelihood parameters are independent.

        Args:
            totals_M: the sums over all passes.
            reference_MD: r, the unit.
        """
        size = self.model.network.layout.size
        scale_MD = reference_MD.rsqrt()
        curvature = self.sums.curvature(self.network, dict(totals_M), scale_MD[:, :size])
        if NOISE not in totals_M:
            return curvature
        return with_independent(curvature, totals_M[NOISE] * scale_MD[:, size:] ** 2)

    def exact(self, totals_M: Mapping[str, Tensor], reference_MD: Tensor) -> DenseCurvature | None:
        """Return the exact H that was added up alongside a structured one, or None."""
        return exact_curvature(self.network, dict(totals_M), reference_MD.rsqrt())


def _pieces(rows: Batch, size: int) -> Iterator[Batch]:
    """Yield rows in pieces of about the same size, at most `size`."""
    count = -(-rows.size // size)
    bounds = [rows.size * number // count for number in range(count + 1)]
    for start, stop in pairwise(bounds):
        yield rows.map(lambda t, a=start, b=stop: t[a:b])

"""Which permutation of hidden units brings one network close to another: by weights, or by activations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from torchbayes.geometry.single import weighted_rows
from torchbayes.geometry.symmetry.permutations import (
    PermutationGroup,
    PermutationGroups,
    Place,
    held_by,
    moved,
    state_of,
)
from torchbayes.geometry.symmetry.tracing import Watch, run
from torchbayes.geometry.symmetry.units import Axes
from torchbayes.model.batches.batch import Batch, rows_of
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.randomness.seeds import Purpose, generator

_LEAST_GAIN = 1e-12  # of the squared norm of the weights: below it is rounding
_SWEEPS = 1000


@dataclass
class Matched:
    """Permutations that bring a network close to a reference."""

    permutations: list[Tensor]  # of each group; unit i of the result is unit permutations[g][i]
    objective: list[float] = field(default_factory=list)  # Σ ⟨A, P(B)⟩ before and after each step; not for activations
    sweeps: int = 0  # over all groups


def assigned(scores_NN: Tensor) -> tuple[Tensor, float]:
    """Return the permutation p that maximises Σ_i C[i, p_i], and how much that is above Σ_i C[i, i]."""
    scores = scores_NN.double().cpu()
    _, columns = linear_sum_assignment(scores.numpy(), maximize=True)
    order = torch.as_tensor(columns, dtype=torch.int64)
    gain = scores[torch.arange(len(order)), order].sum() - scores.diagonal().sum()
    return order, float(gain)


def check_linear(groups: Iterable[PermutationGroup]) -> None:
    """Raise a ValueError if a weight has the same units along two axes."""
    for group in groups:
        axes: dict[str, int] = {}
        for name, axis, *_ in group.places:
            if axes.setdefault(name, axis) != axis:
                raise ValueError(
                    f"`{name}` has the same {group.size} units along two of its axes, as recurrent and tied weights "
                    f"do, so that matching them by weights is a quadratic assignment, which is not solved here. Keep "
                    f"their order by keep='{name}', or use method=\"activations\"."
                )


def by_weights(
    groups: PermutationGroups, reference: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, seed: int, member: int
) -> Matched:
    """Match a network B to a reference A by weights: coordinate descent over the groups, each step a linear assignment.

    The order of the groups in each sweep depends on the seed and on `member`, the number of the network.
    """
    parameters = [
        PermutationGroup(group.size, tuple(place for place in group.places if place.name in weights))
        for group in groups.groups
    ]
    names = {place.name for group in parameters for place in group.places}
    target = {name: reference[name].double() for name in names}
    current = {name: weights[name].double() for name in names}
    matched = Matched([torch.arange(group.size) for group in parameters], [_inner(target, current)])
    least = _LEAST_GAIN * max(_inner(target, target), _inner(current, current))
    source = generator(Purpose.MATCHING, seed, member)
    while matched.sweeps < _SWEEPS:
        total_gain = 0.0
        matched.sweeps += 1
        for number in torch.randperm(len(parameters), generator=source).tolist():
            order, gain = assigned(_similarity(parameters[number], target, current))
            if gain > least:
                current = moved(current, parameters[number], order)
                matched.permutations[number] = matched.permutations[number][order]
                matched.objective.append(_inner(target, current))
                total_gain += gain
        if not total_gain:
            break
    return matched


def _inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return float(sum((tensor * b[name]).sum() for name, tensor in a.items()))


def _similarity(group: PermutationGroup, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Return C[i, j], the inner product of the weights of unit i in A and unit j in B."""
    example = a[group.places[0].name]
    inner_NN = torch.zeros(group.size, group.size, dtype=torch.float64, device=example.device)
    for place in group.places:
        ours, theirs = (place.rows(weights[place.name], group.size).double() for weights in (a, b))
        inner_NN += ours @ theirs.T
    return inner_NN


class _Moments:
    """Sums over samples of the activations of two networks' units."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._count = 0.0
        self._sums_2N, self._squares_2N = torch.zeros(2, 2, size, dtype=torch.float64, device=device)
        self._products_NN = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, *activations: Tensor, weight: float) -> None:
        """Add samples of both networks, (units, samples) each, all with the same weight."""
        self._sums_2N += weight * torch.stack([samples.sum(1) for samples in activations])
        self._squares_2N += weight * torch.stack([samples.square().sum(1) for samples in activations])
        self._products_NN += weight * (activations[0] @ activations[1].T)
        self._count += weight * activations[0].shape[1]

    def correlation(self) -> Tensor:
        """Return the correlations, 0 where a unit is constant."""
        count = self._count or 1.0
        covariance_NN = self._products_NN / count - torch.outer(*self._sums_2N) / count**2
        variance_2N = self._squares_2N / count - (self._sums_2N / count).square()
        moves_2N = variance_2N > 1e-12 * self._squares_2N / count
        return covariance_NN / torch.outer(*torch.where(moves_2N, variance_2N, torch.inf)).sqrt()


def _activations(groups: PermutationGroups, weights_D: Tensor, buffers: Buffers, inputs: Any) -> dict[int, Tensor]:
    """Return the activations of the units of each group, (units, samples), where a network sums over them."""
    network, found = groups.model.network, groups.found
    numbers = {group: number for number, group in enumerate(found.numbers)}
    activations: dict[int, list[Tensor]] = {}

    def used(tensor: Tensor, axes: Axes, axis: int) -> None:
        start = 0
        for segment in axes[axis]:
            if segment.group in numbers:
                rows = Place("", axis, start, segment.inner).rows(tensor, segment.units)
                activations.setdefault(numbers[segment.group], []).append(rows.double())
            start += segment.size

    watch = Watch(found.ties, used)
    state = state_of(network, weights_D[: network.layout.size], buffers)
    watch.name_all(held_by(network, state), found.axes, inputs)
    with watch:
        run(network.module, state, inputs)
    return {number: torch.cat(parts, dim=1) for number, parts in activations.items()}


def by_activations(
    groups: PermutationGroups,
    networks: Sequence[tuple[Tensor, Buffers]],
    batches: Iterable[Batch],
    *,
    chunk_size: int,
) -> list[Matched]:
    """Match networks by the correlations of their units over data, each group by itself.

    `networks` are weights and buffers, the reference first. Returns the permutations of each network after the first.
    Rows count as often as the likelihood says. Raises a ValueError if activations are not finite.
    """
    device = groups.model.network.device
    moments = [[_Moments(group.size, device) for group in groups.groups] for _ in networks[1:]]
    for rows, weight in _alike(groups.model, networks[0], batches, chunk_size):
        target = _activations(groups, *networks[0], rows)
        for sums, network in zip(moments, networks[1:], strict=True):
            for number, samples in _activations(groups, *network, rows).items():
                sums[number].add(target[number], samples, weight=weight)
    return [Matched([_matched(each) for each in sums]) for sums in moments]


def _alike(
    model: Model, network: tuple[Tensor, Buffers], batches: Iterable[Batch], chunk_size: int
) -> Iterator[tuple[Any, float]]:
    """Yield inputs of rows of equal weight, and that weight, because the axis of rows may move inside a network."""
    for batch in batches:
        for rows, weights_B in weighted_rows(model, network, batch, chunk_size=chunk_size):
            if weights_B is None:
                yield rows.inputs, 1.0
                continue
            for weight in weights_B.unique().tolist():
                if weight:
                    yield rows_of(rows.inputs, (weights_B == weight).nonzero()[:, 0]), weight


def _matched(moments: _Moments) -> Tensor:
    """Return the permutation by correlations; the given order where no other is better."""
    correlation = moments.correlation()
    if not correlation.isfinite().all():
        raise ValueError("activations are not finite: a member gives NaN or infinity on `data`. Leave it out.")
    order, gain = assigned(correlation)
    return order if gain > _LEAST_GAIN * len(order) else torch.arange(len(order))

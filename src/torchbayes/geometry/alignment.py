"""Aligning networks: the hidden units of each in the order of those of a reference, by weights or by activations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from torchbayes.checks import as_seed, check_choice, check_counts
from torchbayes.geometry.networks import Networks, members_of, networks_of, one_of, weighted_rows
from torchbayes.geometry.symmetry.permutations import (
    PermutationGroup,
    PermutationGroups,
    Place,
    held_by,
    moved,
    permutation_groups,
    state_of,
)
from torchbayes.geometry.symmetry.tracing import Watch, run
from torchbayes.geometry.symmetry.units import Axes
from torchbayes.model.batches.batch import Batch, rows_of
from torchbayes.model.layout import Globs
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.problems import note
from torchbayes.randomness.seeds import Purpose, generator

_NAMED = 3
_LEAST_GAIN = 1e-12  # of the squared norm of the weights: below it is rounding
_SWEEPS = 1000


@undisturbed
def align(
    model: Model,
    weights: Networks,
    *,
    reference: Networks | None = None,
    method: Literal["weights", "activations"] = "weights",
    data: Any = None,
    keep: Globs = (),
    seed: int = 0,
    chunk_size: int = 256,
) -> Point:
    r"""Permute hidden units of networks, so that their weights are close to those of a reference.

    By weights, the permutations maximise $\sum_l \langle A_l, P_l B_l P_{l-1}^\top \rangle$, which minimises the
    distance $\lVert A - P(B) \rVert$. Each step moves one group by a linear assignment, in random order, until a
    sweep over all groups gains nothing. With one hidden layer this is the optimum; with more it is a local one. By
    activations, units are paired by their correlation over data, $\max_P \sum_i \mathrm{corr}(z^A_i, z^B_{P(i)})$,
    each group by itself. The activations are those that the next layer receives, and a row of weight w counts as w
    rows.

    The functions do not change. Their density does under a prior that differs between units, such as one with
    means. Source: Ainsworth, Hayase and Srinivasa (2022), "Git re-basin", sections 3.1 and 3.2.

    Args:
        model: the model of all networks.
        weights: M networks: a posterior (its default draws unless it is a point), a module, a list of modules,
            or weights (D,) or (M, D).
        reference: one network, in the same forms; the first of the M if None.
        method: what is matched.
        data: as for `fit`; needed for activations, otherwise only where `permutation_groups` needs inputs.
        keep: glob or globs of parameters that keep their order.
        seed: seed of the order of the groups, and of draws of the posterior.
        chunk_size: rows that go through a network at once.

    Returns:
        The M networks aligned, with their batch-norm statistics. Units that cannot move are unchanged.

    Raises:
        ValueError: if networks do not belong to the model or are not finite, data are missing, units cannot be
            followed through a layer, or weights hold the same units along two axes; the message says what to
            do.
        TypeError: if an argument is of the wrong type.
    """
    check_choice(("weights", "activations"), method=method)
    check_counts(chunk_size=chunk_size)
    seed = as_seed(seed)
    point = members_of(model, weights, "weights", seed=seed)
    networks = networks_of(point)
    target = networks[0] if reference is None else one_of(model, reference, "reference")
    if method == "activations" and data is None:
        raise ValueError('`data` are needed for method="activations"; got None. Give some training data.')
    groups = permutation_groups(model, data, keep=keep)
    if groups.kept:
        more = f"; and {len(groups.kept) - _NAMED} more" if len(groups.kept) > _NAMED else ""
        note(f"some hidden units are not aligned: {'; '.join(groups.kept[:_NAMED])}{more}.")
    if method == "weights":
        check_linear(groups.groups)
        split = model.layout.split
        matches = [
            by_weights(groups, split(target[0]), split(weights_D), seed=seed, member=member)
            for member, (weights_D, _) in enumerate(networks)
        ]
    else:
        source = as_source(model, data, chunk_size)
        source.check()
        matches = by_activations(groups, [target, *networks], source.batches(), chunk_size=chunk_size)
    weights, buffers = zip(
        *(
            groups.permute(weights_D, matched.permutations, buffers=buffers)
            for (weights_D, buffers), matched in zip(networks, matches, strict=True)
        ),
        strict=True,
    )
    buffers_M = {name: torch.stack([each[name] for each in buffers]) for name in buffers[0]} or None
    return replace(point, weights_MD=torch.stack(weights), buffers_M=buffers_M)


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
    network, trace = groups.model.network, groups.trace
    numbers = {group: number for number, group in enumerate(trace.numbers)}
    activations: dict[int, list[Tensor]] = {}

    def used(tensor: Tensor, axes: Axes, axis: int) -> None:
        start = 0
        for segment in axes[axis]:
            if segment.group in numbers:
                rows = Place("", axis, start, segment.inner).rows(tensor, segment.units)
                activations.setdefault(numbers[segment.group], []).append(rows.double())
            start += segment.size

    watch = Watch(trace.ties, used)
    state = state_of(network, weights_D[: network.layout.size], buffers)
    watch.name_all(held_by(network, state), trace.axes, inputs)
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

"""Permutations of hidden units: which axes of which weights must move together to keep the function the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.checks import as_seed, check_kind, seen
from torchbayes.geometry.symmetry.tracing import Watch, located, run
from torchbayes.geometry.symmetry.units import Axis, Ties, fixed
from torchbayes.model.batches.batch import rows_of, tensors_of
from torchbayes.model.layout import Globs, matches
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, Network, taking
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.functions import check_weights
from torchbayes.randomness.seeds import Purpose, generator

_WATCHED, _MADE_UP, _COMPARED = 2, 8, 64  # rows: in the watched run; of made-up inputs; for comparing outputs
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_LOW_TOLERANCE = 0.1
_SIDES = (32, 28, 8, 16, 64, 96, 128, 224, *range(1, 65))


class Place(NamedTuple):
    """Where the units of a group are."""

    name: str  # of the parameter or buffer
    axis: int  # number of its axis
    start: int  # first position along it
    inner: int  # neighbouring positions of each unit

    def positions(self, units: Tensor) -> Tensor:
        """Return the positions of units with these numbers (n,), (n, inner)."""
        return self.start + units.unsqueeze(1) * self.inner + torch.arange(self.inner, device=units.device)

    def rows(self, tensor: Tensor, count: int) -> Tensor:
        """Return what a tensor holds of each of `count` units, (units, ...)."""
        return tensor.movedim(self.axis, 0)[self.start : self.start + count * self.inner].reshape(count, -1)


@dataclass(frozen=True)
class PermutationGroup:
    """Hidden units that may be in any order, as long as it is the same at all of these places.

    Attributes:
        size: number of units.
        places: axes of random parameters, and of buffers such as those of batch norm.
    """

    size: int
    places: tuple[Place, ...]

    def __str__(self) -> str:
        where = ", ".join(dict.fromkeys(f"{place.name}[{place.axis}]" for place in self.places))
        return f"{self.size} units: {where}"


class NetworkTrace(NamedTuple):
    """What a run of the network has shown."""

    ties: Ties  # the groups of units, including those that cannot move
    axes: Mapping[str, Sequence[Axis]]  # parameter or buffer -> its axes
    numbers: tuple[int, ...]  # of the groups that can move, in their order


@dataclass(frozen=True, eq=False)
class PermutationGroups:
    """All groups of hidden units of a model's network, with what moves them.

    Attributes:
        model: the model.
        groups: those with more than one unit, whose weights are all random.
        kept: why others stay in order, one sentence each.
        inputs: the rows by which the groups were found, and on which outputs are compared.
        trace: what is needed to watch other rows.
    """

    model: Model
    groups: tuple[PermutationGroup, ...]
    kept: tuple[str, ...]
    inputs: Any = field(repr=False)
    trace: NetworkTrace = field(repr=False)

    def __repr__(self) -> str:
        lines = [
            f"{len(self.groups)} {'group' if len(self.groups) == 1 else 'groups'} of hidden units",
            *map(str, self.groups),
            *self.kept,
        ]
        return "\n  ".join(lines)

    def random(self, *, seed: int = 0) -> tuple[Tensor, ...]:
        """Return a random permutation of each group.

        Args:
            seed: seed of the permutations.

        Returns:
            One int64 tensor (size,) for each group.

        Raises:
            ValueError: if the seed is not a whole number.
        """
        source = generator(Purpose.PERMUTED, as_seed(seed))
        return tuple(torch.randperm(group.size, generator=source) for group in self.groups)

    def permute(
        self, weights_D: Tensor, permutations: Sequence[Tensor], *, buffers: Buffers | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return the weights and buffers of the same function with its hidden units in another order.

        Args:
            weights_D: all random weights.
            permutations: for each group int64 (size,); unit i of the result is unit `permutations[g][i]`.
            buffers: buffers of the network, without a leading axis; the network's own if None.

        Returns:
            New weights (D,) and buffers.

        Raises:
            ValueError: if the weights are not those of the model, there is not one permutation for each group, or the
                outputs of the network change on up to 64 rows.
            TypeError: if one is not a tensor.
        """
        check_weights(self.model, weights_D=weights_D)
        orders = self._checked(permutations)
        held = self.model.network.buffers if buffers is None else buffers
        tensors = {**self.model.layout.split(weights_D), **held}
        for order, group in zip(orders, self.groups, strict=True):
            tensors = moved(tensors, group, order.to(weights_D.device))
        moved_D, moved_buffers = self.model.layout.join(tensors), {name: tensors[name].clone() for name in held}
        self._check_same((weights_D, buffers), (moved_D, moved_buffers))
        return moved_D, moved_buffers

    def _check_same(self, *networks: tuple[Tensor, Buffers | None]) -> None:
        """Raise a ValueError if two networks do not give the same outputs."""
        network = self.model.network
        with torch.no_grad():
            before, after = (network(w[: network.layout.size], self.inputs, buffers) for w, buffers in networks)
        gap = distance([after], [before])
        if gap > (_LOW_TOLERANCE if network.precision.casts else _TOLERANCE[network.dtype]):
            raise ValueError(
                f"the network is another function when its hidden units are permuted: outputs change by {gap:.3g} of "
                f"the largest. It depends on their order in a way that its operators do not show; keep it by `keep=`."
            )

    def _checked(self, permutations: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return permutations after checking that there is a valid one for each group."""
        if not isinstance(permutations, Sequence) or isinstance(permutations, str):
            raise TypeError(f"`permutations` must be a list of tensors, one for each group; got {seen(permutations)}.")
        if len(permutations) != len(self.groups):
            raise ValueError(f"`permutations` must be {len(self.groups)}, one for each group; got {len(permutations)}.")
        for order, group in zip(permutations, self.groups, strict=True):
            whole = isinstance(order, Tensor) and order.dtype == torch.int64 and order.shape == (group.size,)
            if not whole or not torch.equal(order.sort().values, torch.arange(group.size, device=order.device)):
                raise ValueError(
                    f"`permutations` must hold each number from 0 to {group.size - 1} once for a group of {group.size} "
                    f"units, as int64; got {seen(order)}."
                )
        return permutations


def moved(tensors: Mapping[str, Tensor], group: PermutationGroup, order: Tensor) -> dict[str, Tensor]:
    """Return tensors with the units of one group in another order; absent tensors are left out."""
    reordered = dict(tensors)
    for place in group.places:
        if place.name in reordered:
            tensor = reordered[place.name]
            index = torch.arange(tensor.shape[place.axis], device=tensor.device)
            positions = place.positions(order.to(index.device)).flatten()
            index[place.start : place.start + len(positions)] = positions
            reordered[place.name] = tensor.index_select(place.axis, index)
    return reordered


@undisturbed
def permutation_groups(model: Model, data: Any = None, *, keep: Globs = ()) -> PermutationGroups:
    """Find which axes of a network's weights hold the same hidden units, by watching it run.

    With permutations P_l of the units of layer l, and P = 1 for inputs and outputs, W_l → P_l W_l P_{l−1}ᵀ and b_l →
    P_l b_l leave the function of a network of elementwise activations unchanged. Many other layers have such
    permutations. Each axis of each weight begins as a group of its own, and each operator that runs joins those that
    it sums over, adds or concatenates. Axes of inputs and outputs, of places in images and of kernels are not
    permuted. A group norm of several groups keeps units in their group. Heads of attention share one order of the
    units in them.
    Source: Ainsworth, Hayase and Srinivasa (2022), "Git re-basin", for the groups; the way to find them is our own.

    Args:
        model: the model.
        data: as for `fit`; a few inputs are used. If None, inputs are made up for a network that begins with a
            linear layer or a convolution.
        keep: glob or globs of parameters that keep their order, such as those of a layer that cannot be followed.

    Returns:
        The groups. Those with a weight that is not random are left out, and `kept` says so.

    Raises:
        ValueError: if units cannot be followed through an operator, or data are needed; the message says which.
        TypeError: if `model` is not a model.
    """
    check_kind(Model, "a Model", model=model)
    globs = [keep] if isinstance(keep, str) else keep
    if not isinstance(globs, Sequence) or not all(isinstance(glob, str) for glob in globs):
        raise TypeError(f"`keep` must be a glob of parameters, such as 'head.*', or a list of such; got {seen(keep)}.")
    network = model.network
    state = state_of(network, network.weights(), network.buffers)
    if data is None:
        inputs = _made_up(network, state)
    else:
        inputs = rows_of(next(iter(as_source(model, data, 1024).inputs())), slice(0, _COMPARED))
    watched = rows_of(inputs, slice(0, _WATCHED))
    with taking(watched):
        run(network.module, state, watched)
    ties, axes = _watched(network, state, watched, globs)
    held = {name: tuple(map(ties.resolved, tensor_axes)) for name, tensor_axes in axes.items()}
    groups, frozen = _groups(network, held)
    kept = tuple(dict.fromkeys([*ties.reasons, *frozen.values()]))
    return PermutationGroups(model, tuple(groups.values()), kept, inputs, NetworkTrace(ties, held, tuple(groups)))


def _watched(
    network: Network, state: Mapping[str, Tensor], inputs: Any, keep: Globs
) -> tuple[Ties, dict[str, list[Axis]]]:
    """Return the groups of units that a run of the network shows, and the axes of all parameters and buffers."""
    ties = Ties()
    watch, held = Watch(ties), held_by(network, state)
    axes = {
        name: [fixed(size) if matches(name, keep) else ties.free(size) for size in tensor.shape]
        for name, tensor in held.items()
    }
    watch.name_all(held, axes, inputs)
    with located(network.module, watch), watch:
        outputs = run(network.module, state, inputs)
    for leaf in tensors_of(outputs):
        ties.fix(*watch.axes_of(leaf))
    for name, tensor in held.items():
        if not watch.was_read(tensor):
            ties.fix(*axes[name])
    return ties, axes


def state_of(network: Network, weights_D: Tensor, buffers: Buffers) -> dict[str, Tensor]:
    """Return what the module holds in a call: parameters filled with random elements, and buffers, as new tensors."""
    filled = network.precision.cast(network.mask.fill(network.layout.split(weights_D)))
    return {name: tensor.detach().clone() for name, tensor in {**filled, **buffers}.items()}


def held_by(network: Network, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return all parameters and buffers by name, as they are in a call."""
    module = network.module
    return {**dict(module.named_parameters()), **dict(module.named_buffers()), **state}


def _groups(
    network: Network, axes: Mapping[str, tuple[Axis, ...]]
) -> tuple[dict[int, PermutationGroup], dict[int, str]]:
    """Return the groups that can move, by their numbers among the ties, and messages of those that cannot."""
    random = {*network.layout.names, *network.buffers} - network.mask.indices.keys()
    places: dict[int, list[Place]] = {}
    counts: dict[int, int] = {}
    frozen: dict[int, str] = {}
    for name, tensor_axes in axes.items():
        for dim, axis in enumerate(tensor_axes):
            start = 0
            for segment in axis:
                if segment.group is not None:
                    counts[segment.group] = segment.units
                    places.setdefault(segment.group, []).append(Place(name, dim, start, segment.inner))
                    if name not in random:
                        frozen.setdefault(segment.group, f"`{name}` is not random, so its units stay in order")
                start += segment.size
    moving = {
        number: PermutationGroup(counts[number], tuple(places[number])) for number in places if number not in frozen
    }
    return moving, frozen


def _made_up(network: Network, state: Mapping[str, Tensor]) -> Tensor:
    """Return random inputs that a network takes; a ValueError if no shape that is tried fits."""
    first = next((layer for layer in network.module.modules() if [*layer.parameters(recurse=False)]), None)
    source = generator(Purpose.TRACED)
    for shape in _shapes(first):
        inputs = torch.randn(_MADE_UP, *shape, generator=source, dtype=torch.float32)
        inputs = inputs.to(network.device, network.precision.inputs)
        try:
            run(network.module, state, inputs[:_WATCHED])
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue
        return inputs
    raise ValueError(
        f"the inputs of the network are not known: it begins with a {type(first).__name__} and takes none of those "
        f"that were tried. Give `data`, of which a few rows are looked at."
    )


def _shapes(first: nn.Module | None) -> Iterator[tuple[int, ...]]:
    """Yield shapes of one row that a network with this first layer may take."""
    if isinstance(first, nn.Linear):
        yield (first.in_features,)
    if isinstance(first, nn.modules.conv._ConvNd):
        places = len(first.kernel_size)
        yield from ((first.in_channels, *[side] * places) for side in _SIDES)


def distance(made: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference between outputs, relative to the largest expected number.

    It is infinite where shapes differ, or only one of two numbers is finite.
    """
    if [t.shape for t in made] != [t.shape for t in expected]:
        return float("inf")
    return max((_relative(a.detach(), b.detach()) for a, b in zip(made, expected, strict=True) if b.numel()), default=0)


def _relative(made: Tensor, expected: Tensor) -> float:
    a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (made, expected))
    alike = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(alike, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf).max()
    largest = float(torch.where(b.isfinite(), b.abs(), 0.0).max())
    return float(gap) / (largest or 1.0)

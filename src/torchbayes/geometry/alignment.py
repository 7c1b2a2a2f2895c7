"""Aligning networks: the hidden units of each in the order of those of a reference."""

from __future__ import annotations

from typing import Any, Literal

import torch

from torchbayes.checks import as_seed, check_choice, check_counts, check_kind
from torchbayes.geometry.members import Networks, at, buffers_at, members_of, one_of
from torchbayes.geometry.symmetry.matching import Matched, by_activations, by_weights, check_linear
from torchbayes.geometry.symmetry.permutations import PermutationGroups, permutation_groups
from torchbayes.model.layout import Globs
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import as_source
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.problems import note

_NAMED = 3


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
    check_kind(Model, "a Model", model=model)
    check_choice(("weights", "activations"), method=method)
    check_counts(chunk_size=chunk_size)
    seed = as_seed(seed)
    point = members_of(model, weights, "weights", seed=seed)
    target = at(point, point.weights_MD[:1], [buffers_at(point, 0)]) if reference is None else (
        one_of(model, reference, "reference"))  # fmt: skip
    if method == "activations" and data is None:
        raise ValueError('`data` are needed for method="activations"; got None. Give some training data.')
    groups = permutation_groups(model, data, keep=keep)
    _say(groups.kept)
    if method == "weights":
        check_linear(groups.groups)
        matches = _by_weights(groups, target, point, seed)
    else:
        source = as_source(model, data, chunk_size)
        source.check()
        networks = [(target.weights_MD[0], buffers_at(target, 0))]
        networks += [(point.weights_MD[m], buffers_at(point, m)) for m in range(point.members)]
        matches = by_activations(groups, networks, source.batches(), chunk_size=chunk_size)
    return _moved(groups, point, matches)


def _by_weights(groups: PermutationGroups, target: Point, point: Point, seed: int) -> list[Matched]:
    split = groups.model.layout.split
    reference = split(target.weights_MD[0])
    rows = enumerate(point.weights_MD)
    return [by_weights(groups, reference, split(weights_D), seed=seed, member=m) for m, weights_D in rows]


def _moved(groups: PermutationGroups, point: Point, found: list[Matched]) -> Point:
    weights, buffers = [], []
    for m, matched in enumerate(found):
        weights_D, own_buffers = groups.permute(point.weights_MD[m], matched.permutations, buffers=buffers_at(point, m))
        weights.append(weights_D)
        buffers.append(own_buffers)
    return at(point, torch.stack(weights), buffers)


def _say(kept: tuple[str, ...]) -> None:
    """Warn of units that stay in order although they need not."""
    if kept:
        more = f"; and {len(kept) - _NAMED} more" if len(kept) > _NAMED else ""
        note(f"some hidden units are not aligned: {'; '.join(kept[:_NAMED])}{more}.")

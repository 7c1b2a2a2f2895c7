"""Aligning networks: the hidden units of each in the order of those of a reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from torchbayes.checks import as_seed, check_choice, check_counts
from torchbayes.geometry.members import Networks, members_of, networks_of, one_of
from torchbayes.geometry.symmetry.matching import by_activations, by_weights, check_linear
from torchbayes.geometry.symmetry.permutations import permutation_groups
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

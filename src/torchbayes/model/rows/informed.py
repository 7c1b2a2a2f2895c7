"""What a model takes from its data before it is fitted: the scale of the targets, where the likelihood asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils import _pytree as pytree

from torchbayes.model.likelihoods.weighted import asks, having_spread, informed
from torchbayes.model.model import Model, having
from torchbayes.model.rows.sources import Source

_ROWS = 2048  # their standard deviation is known to 2 %


def informed_by(model: Model, source: Source) -> Model:
    """Return the model with what its likelihood takes from the targets; itself if that is nothing, or is known already.

    Args:
        model: the model.
        source: the training data, of which about 2,000 rows are used.
    """
    if not asks(model.likelihood):
        return model
    targets = [batch.targets for batch in source.some(_ROWS)]
    if len({tuple(leaf.shape[1:] for leaf in pytree.tree_leaves(each)) for each in targets}) > 1:
        return model  # texts padded batch by batch
    return having(model, likelihood=informed(model.likelihood, pytree.tree_map(lambda *t: torch.cat(t), *targets)))


def informed_with(model: Model, spread: Sequence[float] | None) -> Model:
    """Return the model with the standard deviations of targets that a file or a run records; itself if there are none.

    Args:
        model: the model; what it has already stays.
        spread: as `spread_of` its likelihood gave them.
    """
    if not spread or not asks(model.likelihood):
        return model
    return having(model, likelihood=having_spread(model.likelihood, tuple(spread)))

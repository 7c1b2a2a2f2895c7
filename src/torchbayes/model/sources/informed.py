"""What a model takes from its data before it is fitted: the scale of the targets, where the likelihood asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchbayes.model.likelihoods.weighted import asks, having_spread, informed
from torchbayes.model.model import Model, having, having_scale
from torchbayes.model.sources.sources import Source

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


def as_recorded(model: Model, about: Mapping[str, Any]) -> Model:
    """Return the model with what the data gave to one that a file or a run describes.

    Args:
        model: the model; what it has already stays.
        about: as `describe_model` gave it: its `spread` are the standard deviations of the targets, its `open_scale` is
            the scale of a prior that was left open.
    """
    scale, spread = about.get("open_scale", 1.0), about.get("spread")  # that of a model as it was made is not recorded
    if scale is not None and model.open_scale is not None:
        model = having_scale(model, scale)
    if not spread or not asks(model.likelihood):
        return model
    return having(model, likelihood=having_spread(model.likelihood, tuple(spread)))

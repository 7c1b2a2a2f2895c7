"""What a model takes from its data before a fit: the scale of the targets, if the likelihood needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchbayes.model.likelihoods.weighted import asks, having_spread, informed
from torchbayes.model.model import Model, having, having_scale
from torchbayes.model.sources.sources import Source

_ROWS = 2048  # enough to know the standard deviation to 2 %


def informed_by(model: Model, source: Source) -> Model:
    """Return the model with what its likelihood takes from the targets; itself if it needs nothing more.

    About 2,000 rows of the training data are used.
    """
    if not asks(model.likelihood):
        return model
    targets = [batch.targets for batch in source.some(_ROWS)]
    if len({tuple(leaf.shape[1:] for leaf in pytree.tree_leaves(each)) for each in targets}) > 1:
        return model  # such as texts padded batch by batch
    return having(model, likelihood=informed(model.likelihood, pytree.tree_map(lambda *t: torch.cat(t), *targets)))


def as_recorded(model: Model, recorded: Mapping[str, Any]) -> Model:
    """Return the model with the `spread` of the targets and the `open_scale` that `describe_model` recorded.

    Values that the model already has stay.
    """
    scale = recorded.get("open_scale", 1.0)  # a scale that was never changed is not recorded
    spread = recorded.get("spread")
    if scale is not None and model.open_scale is not None:
        model = having_scale(model, scale)
    if not spread or not asks(model.likelihood):
        return model
    return having(model, likelihood=having_spread(model.likelihood, tuple(spread)))

"""Labels of which a share is shuffled."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbayes_experiments.streams import Purpose, generator


def shuffled(targets: Tensor, share: float, *, seed: int) -> Tensor:
    """Return targets with a share of the rows, chosen at random, shuffled among themselves.

    Every step of the shuffle (Fisher and Yates, inside out) adds one row and changes at most one other, so with the
    same seed the rows shuffled at a smaller share are among those shuffled at a larger one. Classes keep their sizes.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"`share` must be between 0 and 1; got {share}.")
    random = generator(Purpose.SHUFFLE, seed)
    order = torch.randperm(len(targets), generator=random).tolist()
    places = torch.rand(len(targets), generator=random, dtype=torch.float64).tolist()
    labels = targets.clone()
    for step in range(round(share * len(targets))):
        other = order[int(places[step] * (step + 1))]
        labels[order[step]], labels[other] = labels[other].clone(), labels[order[step]].clone()
    return labels

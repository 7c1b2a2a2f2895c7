"""Inputs at which a student asks its teacher: those given, and mixtures of them that lie between and beside them.

A student knows the teacher only where it asked. Where inputs are single tensors of real numbers, further rows take each
of their numbers from one row or another, in shares that are drawn for each row. Every second of them is moved beyond
the range of the data, by normal noise of up to twice the standard deviation of each number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from torchbayes.model.batches.batch import Batch, batch_size, concatenate
from torchbayes.model.batches.loaders import in_order
from torchbayes.model.model import Model, check_finite, place_inputs, unpack_inputs
from torchbayes.randomness.seeds import Purpose, generator

_FARTHEST = 2.0  # standard deviations


def inputs_of(model: Model, given: Any) -> Any:
    """Return inputs of all rows, as `predict` takes them or from a Dataset, as one tree on the model's device.

    A ValueError if there are none, or they are not finite.
    """
    if isinstance(given, Dataset):
        given = DataLoader(given, batch_size=1024)
    if isinstance(given, DataLoader):
        parts = [unpack_inputs(model, item).inputs for item in in_order(given)]
        given = concatenate([Batch(rows, torch.zeros(batch_size(rows))) for rows in parts]).inputs if parts else ()
    placed = place_inputs(model, given)
    check_finite(placed)
    if batch_size(placed) < 2:
        raise ValueError(f"`inputs` must have at least 2 rows to learn from; got {batch_size(placed)}.")
    return placed


def with_mixtures(inputs: Any, copies: int, seed: int) -> Any:
    """Return inputs and, for each row, `copies` mixtures with other rows; only of single real tensors (N, ...)."""
    rows = batch_size(inputs)
    if not copies:
        return inputs
    source, made = generator(Purpose.TRANSFER, seed), [inputs]
    one_each, spread = (rows, *[1] * (inputs.ndim - 1)), inputs.std(0)
    for number in range(copies):
        others = torch.randperm(rows, generator=source).to(inputs.device)
        places = torch.rand(inputs.shape, generator=source, dtype=torch.float32)
        keep = places < torch.rand(one_each, generator=source, dtype=torch.float32)
        mixed = torch.where(keep.to(inputs.device), inputs, inputs[others])
        if number % 2:
            scale = _FARTHEST * torch.rand(one_each, generator=source, dtype=torch.float32)
            noise = scale * torch.randn(inputs.shape, generator=source, dtype=torch.float32)
            mixed = mixed + spread * noise.to(inputs)
        made.append(mixed)
    return torch.cat(made)


def can_mix(inputs: Any) -> bool:
    """Return whether inputs are a single tensor of real numbers."""
    return isinstance(inputs, Tensor) and inputs.is_floating_point()

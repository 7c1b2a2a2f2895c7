"""Full float32 precision whatever PyTorch's settings, and no lower precision where energies are compared.

A Metropolis test depends on differences of energies: a few nats between sums of thousands. TF32 keeps 10 bits of a
factor and bfloat16 7; either puts an error of many nats into the sum, so good proposals are rejected. Izmailov et al.
(2021) turn both off for the same reason. By default PyTorch lets convolutions on a GPU use TF32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torchbayes.model.batches.batch import rows_of
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import taking
from torchbayes.model.precision import LOW
from torchbayes.model.probes.slopes import refuse_other_slopes
from torchbayes.native.process import differentiable, full_float32, outside_autocast


class _Watch(TorchFunctionMode):
    """While active, notes in `low` the dtype of what depends on the weights, if it is below float32."""

    low: torch.dtype | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(results):
            if isinstance(leaf, Tensor) and leaf.dtype in LOW and leaf.requires_grad:
                self.low = leaf.dtype
        return results


def refuse_rounding(model: Model, rows: Batch) -> None:
    """Raise an error if anything between weights and outputs is computed in less than float32, or is rounded unseen.

    It is a TypeError, under autocast too, or a SettingError where the gradient is not that of the outputs. Energies
    could not be compared. Frozen parts below the random weights may be low, because their result is the same for all
    weights.
    """
    if (low := model.network.precision.autocast) is not None:
        raise TypeError(
            f"the model computes its network under autocast in {low}: {_lost(low)} Make a Model without `autocast`, or "
            f"sample by minibatches (SGLD, SGHMC)."
        )
    views = {name: view.detach().requires_grad_() for name, view in model.network.initial.items()}
    inputs = model.network.arrange(rows_of(rows.inputs, slice(0, 2)))
    with differentiable(), full_precision(model.network.device), taking(inputs), _Watch() as watch:
        model.network(views, inputs)
    if watch.low is not None:
        raise TypeError(
            f"the network computes in {watch.low} what depends on its random weights: {_lost(watch.low)} Convert it "
            f"with .float(), or sample by minibatches (SGLD, SGHMC); frozen parts below the random weights may stay as "
            f"they are."
        )
    with full_precision(model.network.device):
        refuse_other_slopes(model.network, inputs)


def _lost(low: torch.dtype) -> str:
    """Return in words why energies cannot be compared."""
    bits = 1 - round(math.log2(torch.finfo(low).eps))
    return (
        f"with {bits} bits, energies are off by more than the differences of a few nats by which proposals are "
        f"accepted."
    )


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute products of float32 numbers in float32, and without autocast, while the `with` lasts."""
    if device.type not in full_float32:
        yield
        return
    with full_float32[device.type](), outside_autocast():
        yield

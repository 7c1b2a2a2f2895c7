"""Functions: S networks drawn from a posterior, fixed, to be applied to any number of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchbayes.checks import check_counts, check_kind, check_memory, check_tensor
from torchbayes.density.plans import outputs
from torchbayes.display import shown_by
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.dropout import Mask
from torchbayes.model.likelihoods import Parameters
from torchbayes.model.model import Model, check_finite
from torchbayes.model.network import Buffers
from torchbayes.model.sources.sources import even_bounds
from torchbayes.native.process import undisturbed_methods
from torchbayes.posteriors.modules.module import ModelAverage
from torchbayes.posteriors.problems import is_finite, warn_of

Calibration = Callable[[], Iterable[Any]]
"""Makes a fresh pass over training inputs, batch by batch, for the batch-norm statistics of a draw."""
_CHUNK = 1024  # rows of a batch of such a pass


@undisturbed_methods
@shown_by("draws", "model")
@dataclass(frozen=True)
class Functions:
    """S drawn functions f_s(x).

    Attributes:
        model: the model.
        weights_SD: the drawn weights.
        buffers_S: the buffers of each draw, (S, ...); the network's own if None.
        masks_S: the dropout masks of each draw; None where dropout is off or is part of the weights.
    """

    model: Model
    weights_SD: Tensor
    buffers_S: Buffers | None = None
    masks_S: tuple[Mask, ...] | None = None

    def __post_init__(self) -> None:
        check_weights(self.model, "S", weights_SD=self.weights_SD)
        if not is_finite(self.weights_SD):
            warn_of(["weights that were drawn are not finite"])

    @property
    def draws(self) -> int:
        """S."""
        return len(self.weights_SD)

    @property
    def parameters(self) -> Parameters:
        """Learned likelihood parameters of each draw by name, each (S, ...)."""
        return self.model.split(self.weights_SD)[1]

    @torch.no_grad()
    def __call__(self, inputs: Any, *, chunk_size: int = 1024) -> Tensor:
        """Return the outputs of every drawn function, (S, B, K), in float32 where the weights have lower precision.

        Args:
            inputs: tensor (B, ...), or a tuple or mapping of such tensors.
            chunk_size: rows that go through a network at once; bounds the memory used besides the result.

        Raises:
            ValueError: if there are no rows, or `chunk_size` is not positive.
        """
        check_counts(chunk_size=chunk_size)
        inputs = self.model.place(inputs)
        if batch_size(inputs) == 0:
            raise ValueError("`inputs` has no rows; there is nothing to predict.")
        return outputs(
            self.model, self.weights_SD, inputs, chunk_size=chunk_size, buffers_S=self.buffers_S, masks_S=self.masks_S
        )

    def some(self, where: slice | Tensor) -> Functions:
        """Return some of the functions, chosen by a slice, a tensor of indices or a tensor of bool."""
        where = where if isinstance(where, slice) else where.to(self.weights_SD.device)
        buffers_S = {n: b[where] for n, b in self.buffers_S.items()} if self.buffers_S else None
        places = torch.arange(self.draws)[where if isinstance(where, slice) else where.cpu()].tolist()
        masks_S = tuple(self.masks_S[s] for s in places) if self.masks_S else None
        return Functions(self.model, self.weights_SD[where], buffers_S, masks_S)

    def module(self, *, level: float | None = 0.95) -> ModelAverage:
        """Return the average of these functions as a plain module, with copies of their weights; see `ModelAverage`.

        Args:
            level: of the central intervals of numbers; no intervals if None.

        Raises:
            ValueError: if the level is not between 0 and 1, or the weights do not fit in memory.
        """
        check_memory(self.weights_SD.nbytes, "the weights of the module", self.weights_SD.device, draws=self.draws)
        return ModelAverage.of(self.model, self.weights_SD, self.buffers_S, level=level, masks_S=self.masks_S)


def passes(model: Model, inputs: Any, *, chunk_size: int = _CHUNK) -> Calibration:
    """Return what makes a fresh pass over inputs in any form that `predict` takes, or that already does so.

    A ValueError if there are none or they are not finite; those of a DataLoader are checked at the pass.
    """
    if callable(inputs):
        return cast(Calibration, inputs)
    if isinstance(inputs, DataLoader):
        return lambda: (_checked(model.unpack(item).inputs) for item in inputs)
    placed = _checked(model.place(inputs))
    if batch_size(placed) == 0:
        raise ValueError("`calibration` has no rows, from which batch norm could take its statistics.")
    bounds = even_bounds(batch_size(placed), chunk_size)  # a last batch of one row would have no variance
    return lambda: (rows_of(placed, slice(start, stop)) for start, stop in pairwise(bounds))


def _checked(inputs: Any) -> Any:
    check_finite(inputs)
    return inputs


def recalibrate_(model: Model, weights_SD: Tensor, buffers_S: Buffers, *, calibration: Calibration) -> None:
    """Give the buffers of each draw, (S, ...), in place, the batch-norm statistics of the inputs under its weights."""
    views, _ = model.split(weights_SD)
    for s in range(len(weights_SD)):
        weights, buffers = {n: v[s] for n, v in views.items()}, {n: b[s] for n, b in buffers_S.items()}
        for name, buffer in model.network.recalibrate(weights, calibration(), buffers).items():
            buffers_S[name][s] = buffer


def in_turn(weights_MD: Tensor, draws: int) -> Tensor:
    """Return weights (S, D), row s of member s mod M; a ValueError if they do not fit in memory."""
    check_memory(draws * weights_MD[0].nbytes, "the drawn weights", weights_MD.device, draws=draws)
    return weights_MD[torch.arange(draws) % len(weights_MD)]


def check_weights(model: Model, *axes: str, **weights: Tensor) -> None:
    """Check that real floating-point tensors hold weights of a model, with last axis D.

    `axes` are the letters of the axes before D; the first must not be empty. Weights of members must be finite.
    Draws (axis S) need not be, because a chain may have diverged; whoever uses them is warned.
    """
    check_kind(Model, "a Model", model=model)
    check_tensor(*axes, "D", **weights)
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            raise TypeError(f"`{name}` must be real numbers in floating point; got {tensor.dtype}. Use .double().")
        if "S" not in axes and not is_finite(tensor):
            bad = int((~tensor.isfinite()).sum())
            raise ValueError(f"`{name}` must be finite; {bad:,} of its {tensor.numel():,} numbers are NaN or infinite.")
        if tensor.shape[-1] != model.layout.size or not len(tensor):
            raise ValueError(
                f"`{name}` must hold the {model.layout.size} weights of the model in each row, at least one; got shape "
                f"{tuple(tensor.shape)}."
            )

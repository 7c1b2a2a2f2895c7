"""The evidence of a network: train, approximate by Laplace, choose the prior by the evidence, train again under it.

Laplace needs a mode of the model whose evidence it estimates. A prior that was chosen at a mode moves the mode, so
training and choosing take turns, the fixed point of MacKay (1992) with networks in the place of its linear models. The
weights shrink and grow with the prior, so plain turns come near the fixed point slowly. Each therefore goes further
than the evidence at the present weights says: with x the log precision that the weights were trained under and y(x) the
one that the evidence then chooses, the next is x + (y − x)/(1 − ρ), ρ the slope of y between rounds (Wegstein 1958).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.driver import fit
from torchbayes.driver.progress import Callback
from torchbayes.experiments.experiment import as_json
from torchbayes.experiments.shared.modes import judged
from torchbayes.methods import MAP, Laplace
from torchbayes.methods.laplace.tuning import Groups, tune
from torchbayes.model import Model
from torchbayes.native.seeds import Purpose, generator
from torchbayes.posteriors import LaplacePosterior, Point
from torchbayes.posteriors.files import read_json, write_whole

_STRIDE, _LONGEST = 1.5, 4.0  # 1/(1 − ρ) as long as there is no slope, and at most
_WIDEST = 16.0  # factor on a precision that one turn may apply: weights that the data leave free would go anywhere


@dataclass(frozen=True)
class Round:
    """A trained network with its Laplace approximations.

    Attributes:
        mode: the weights.
        fitted: Laplace under the prior that they were trained under.
        tuned: the same under the prior that maximises the evidence at these weights; the mode moves under it.
        at_mode: whether the gradient says that the weights are a mode.
    """

    mode: Point
    fitted: LaplacePosterior
    tuned: LaplacePosterior
    at_mode: bool


def rounds(
    model: Model,
    data: Any,
    first: MAP,
    *,
    laplace: Laplace,
    groups: Groups = "scalar",
    again: Sequence[MAP] = (),
    seed: int = 0,
    callbacks: Sequence[Callback] | None = (),
) -> list[Round]:
    """Train, choose the prior by the evidence, and train again under it, from the weights that were found.

    Args:
        model: network, likelihood and the prior to begin with.
        data: what `fit` takes.
        first: how the network is trained.
        laplace: how the posterior at its weights is approximated; its own `prior` should be "model".
        groups: which factors on the prior's precision are free, as `tune` takes them.
        again: how it is trained again, once for every further round.
        seed: of initialisation and data orders.
        callbacks: as `fit` takes them, for the training.

    Returns:
        One round for every training.
    """
    found: list[Round] = []
    for method in (first, *again):
        known = _next(found) if found else model
        start = found[-1].mode if found else None
        mode = fit(known, data, method, start=start, seed=seed, callbacks=callbacks)
        assert isinstance(mode, Point)
        fitted, at_mode = judged(known, data, laplace, start=mode)
        found.append(Round(mode, fitted, tune(fitted, prior=groups), at_mode))
    return found


def _next(found: Sequence[Round]) -> Model:
    """Return the model to train under in the next round."""
    last = found[-1].fitted
    gap_D = found[-1].tuned.strength_D.log()
    if (gap_D == 0).all():
        return last.model
    stride_D = torch.full_like(gap_D, _STRIDE)
    if len(found) > 1:
        # y − x changes by (ρ − 1) times what x does; where x has not changed there is no slope
        moved_D = (last.reference_MD[0] / found[-2].fitted.reference_MD[0]).log()
        closed_D = found[-2].tuned.strength_D.log() - gap_D
        stride_D = torch.where(moved_D.abs() > 1e-4, moved_D / closed_D, stride_D).nan_to_num(nan=_STRIDE)
        stride_D = torch.where(stride_D > 0, stride_D, _LONGEST).clamp(1.0, _LONGEST)
    return last.with_strength((gap_D * stride_D).exp().clamp(1 / _WIDEST, _WIDEST)).model


def best(found: Sequence[Round]) -> Round:
    """Return the round of the largest evidence, each under the prior that it was trained under."""
    return max(found, key=lambda one: float(one.fitted.log_evidence()))


def shuffled(targets: Tensor, share: float, *, seed: int) -> Tensor:
    """Return targets of which a share has been shuffled among its rows.

    Every step of the shuffle (Fisher and Yates, from the inside out) takes in one more row, so with the same seed a
    larger share changes what a smaller one has left, and little else. Classes keep their sizes.

    Args:
        targets: (N,).
        share: of the rows, chosen at random, between 0 and 1.
        seed: of the choice and of the shuffle.

    Returns:
        A new tensor (N,).

    Raises:
        ValueError: if the share is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"`share` must be between 0 and 1; got {share}.")
    random = generator(Purpose.SHUFFLE, seed)
    order = torch.randperm(len(targets), generator=random).tolist()
    places = torch.rand(len(targets), generator=random, dtype=torch.float64).tolist()
    found = targets.clone()
    for step in range(round(share * len(targets))):
        other = order[int(places[step] * (step + 1))]
        found[order[step]], found[other] = found[other].clone(), found[order[step]].clone()
    return found


def kept(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what is in a file, computed and written there if there is none.

    Args:
        path: of a JSON file.
        compute: gives the numbers.

    Returns:
        The numbers, as JSON holds them.
    """
    if not path.exists():
        write_whole(path, as_json(compute()))
    return read_json(path)

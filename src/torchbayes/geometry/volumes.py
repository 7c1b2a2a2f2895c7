"""The volume of a basin: how far one can go from a minimum in every direction (Huang et al. 2020).

The basin {w : L(w) ≤ L(w*) + t} is taken to be star-shaped about w*. With the radius r(φ) at which it ends in
direction φ, and any invertible matrix M, φ = Mu/|Mu|, u uniform on the sphere,

    V = V_D |det M| E_u[(r(φ)/|Mu|)^D],     V_D = π^{D/2}/Γ(D/2 + 1)

M = I is plain sampling. With M near H^{−½} all terms are similar (Scherlis and Belrose 2025): on a quadratic they are
equal, and log V = log V_D + (D/2) log 2t − ½ log det H.

In more than some ten dimensions the largest of a few radii dominates, and log V is too low by an amount that its
error does not show; the effective number of directions shows it. In thousands of dimensions only differences between
two log volumes along the same directions (one seed, one M) are meaningful.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_counts, check_kind, check_memory, check_positive, optional, seen
from torchbayes.density.density import LogDensity
from torchbayes.geometry.networks import Place, Weights, check_loss, num_observations, place_of
from torchbayes.model.model import Model
from torchbayes.model.priors.axes import axes_of
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.problems import is_finite, warn_of
from torchbayes.randomness.seeds import Purpose, generator

_TOLERANCE = 1e-3  # relative, of a radius
_FEWEST = 10.0  # effective directions
_STACK = 2**28  # bytes of weights that are evaluated together
_FAR = 1e4  # radius at which a direction is given up, in units of the weights' norm


@dataclass(frozen=True)
class Basin:
    """How far a basin reaches.

    Attributes:
        radii_K: r, in the units of the weights, float64; at most `limit`.
        log_volume: log V, in nats; NaN for filter-normalised directions, which give no volume.
        error: its standard error by the delta method, of chance alone; NaN likewise.
        ess: effective number of directions, (Σ e)²/Σ e² of the terms e of V.
        capped: directions in which the loss does not rise by the threshold before `limit`.
        loss: L(w*), mean negative log likelihood, in nats per observation.
        threshold: t, the rise that ends the basin, in nats per observation.
        limit: the radius at which a direction is given up.
        size: D.
        problems: reasons not to trust it; empty if none is known.
    """

    radii_K: Tensor
    log_volume: float
    error: float
    ess: float
    capped: int
    loss: float
    threshold: float
    limit: float
    size: int
    problems: tuple[str, ...]


class _Directions(NamedTuple):
    """Unit directions, and the logarithms of |Mu|; log |det M| is NaN where there is no volume."""

    unit_KD: Tensor
    log_length_K: Tensor
    log_det: float


@undisturbed
def basin(
    model: Model,
    data: Any,
    weights: Weights,
    *,
    threshold: float = 0.1,
    directions: int = 64,
    shape: Tensor | Literal["sphere", "filters"] = "sphere",
    limit: float | None = None,
    seed: int = 0,
) -> Basin:
    """Return the radii of a basin along random directions, and its volume.

    Along each direction the radius is doubled or halved until it brackets the threshold of the rise of the mean loss,
    and is then bisected to a thousandth. An earlier crossing between two such radii, with the loss below the
    threshold at both, is missed. A loss that is not finite counts as above the threshold. All directions go through
    the density as one stack. Networks run in evaluation mode. The prior does not enter.
    In high dimension only differences of log volumes along the same directions are meaningful: same seed, same
    `shape`.

    Args:
        model: the model.
        data: as for `fit`.
        weights: w*: a point posterior of one member, a module, or a tensor (D,).
        threshold: t, rise of the mean negative log likelihood above that of w*, in nats per observation.
        directions: K, at least 2.
        shape: M: a tensor (D,) for a diagonal matrix, such as the Hessian's diagonal to the power −1/2, or (D,
            D); "sphere" for the identity; "filters" for directions of which each filter, or row of a weight
            matrix, has the norm of that of the network, and biases are fixed (Li et al. 2018): their radii, in
            units of such a direction, do not depend on the scale of layers, but give no volume.
        limit: radius at which a direction is given up; None for 10,000 times the norm of the weights.
        seed: seed of the directions.

    Returns:
        The basin; with a warning if fewer than ten directions dominate, or some were given up.

    Raises:
        TypeError: if an argument is of another kind, or the network computes in less than float32.
        ValueError: if data, weights or matrix do not fit, the loss is not finite at w*, or settings are out of
            range.
    """
    check_positive(threshold=threshold)
    optional(check_positive, limit=limit)
    check_counts(least=2, directions=directions)
    check_kind((Tensor, str), "a tensor, 'sphere' or 'filters'", shape=shape)
    seed, place = as_seed(seed), place_of(model, data, weights)
    sampled = _directions(place, directions, shape, seed=seed)
    rise = _Rise(place, sampled.unit_KD)
    limit = float(limit or _FAR * max(float(place.weights_D.double().norm()), 1.0))
    radii_K = _radii(rise, threshold, limit=limit, first=1e-3 * max(float(place.weights_D.norm()), 1.0))
    size, capped = place.weights_D.numel(), int((radii_K >= limit).sum())
    log_volume, error, ess = _volume(radii_K, sampled, size)
    problems = tuple(_problems(ess, capped, directions, limit=limit, volume=not math.isnan(log_volume)))
    warn_of(problems, "this basin")
    return Basin(radii_K, log_volume, error, ess, capped, rise.loss, float(threshold), limit, size, problems)


class _Rise:
    """How much the mean loss rises along `count` directions, above the `loss` at the weights themselves."""

    def __init__(self, place: Place, unit_KD: Tensor) -> None:
        self._place, self._unit_KD, self.count = place, unit_KD, len(unit_KD)
        self._density = LogDensity(place.model, place.rows.size, place.rows)
        self._num_data = num_observations(place)
        self.loss = float(self._losses(place.weights_D.unsqueeze(0))[0])
        check_loss(self.loss)

    def __call__(self, radii_K: Tensor, which: Tensor) -> Tensor:
        """Return the rise at radii along the directions with these numbers, float64."""
        rises = []
        for some in which.split(max(_STACK // self._unit_KD[0].nbytes, 1)):
            steps_KD = radii_K[some].to(self._unit_KD).unsqueeze(1) * self._unit_KD[some]
            rises.append(self._losses(self._place.weights_D + steps_KD) - self.loss)
        return torch.cat(rises)

    def _losses(self, weights_MD: Tensor) -> Tensor:
        buffers = self._place.stacked(len(weights_MD))
        if buffers is None:
            total_M = self._density.value(weights_MD).log_likelihood
        else:  # only a call with a gradient takes buffers
            total_M = self._density.nll(weights_MD, buffers=buffers).log_likelihood
        return -total_M.double().cpu() / self._num_data


def _radii(rise: _Rise, threshold: float, *, limit: float, first: float) -> Tensor:
    """Return the radii at which the rise reaches the threshold, float64 (K,); `limit` where it does not."""
    low_K, high_K = torch.zeros(2, rise.count, dtype=torch.float64)
    at_K = torch.full((rise.count,), min(first, limit), dtype=torch.float64)
    open_K = torch.arange(rise.count)

    def narrow() -> None:
        within = rise(at_K, open_K) <= threshold  # False where it is NaN
        low_K[open_K[within]] = at_K[open_K[within]]
        high_K[open_K[~within]] = at_K[open_K[~within]]

    while len(open_K):
        narrow()
        bracketed = (low_K > 0) & (high_K > 0)
        far, near = (high_K == 0) & (low_K >= limit), (low_K == 0) & (high_K < 1e-12 * first)
        open_K = (~(bracketed | far | near)).nonzero()[:, 0]
        at_K = torch.where(high_K > 0, high_K / 2, (2 * low_K).clamp_max(limit))
    open_K = ((low_K > 0) & (high_K > 0)).nonzero()[:, 0]
    while len(open_K):
        at_K = (low_K + high_K) / 2
        narrow()
        open_K = open_K[(high_K - low_K > _TOLERANCE * low_K)[open_K]]
    return torch.where(high_K > 0, (low_K + high_K) / 2, low_K)


def _directions(place: Place, count: int, shape: Tensor | str, *, seed: int) -> _Directions:
    """Return random directions, after checking that a matrix fits, is finite and invertible."""
    size = place.weights_D.numel()
    normal_KD = normal(place, count, seed=seed)
    if isinstance(shape, str):
        if shape == "filters":
            moved_KD = filtered(place.model, place.weights_D, normal_KD)
            return _Directions(moved_KD.to(place.weights_D), torch.full((count,), math.nan), math.nan)
        if shape != "sphere":
            raise ValueError(f"`shape` must be a tensor, 'sphere' or 'filters'; got {seen(shape)}.")
        shape = torch.ones(size, dtype=torch.float64)
    shape = shape.detach().double().cpu()
    if shape.shape not in {(size,), (size, size)} or not is_finite(shape):
        raise ValueError(
            f"`shape` must be finite, a diagonal ({size},) or a matrix ({size}, {size}); got shape "
            f"{tuple(shape.shape)}{'' if is_finite(shape) else ' with NaN or infinite values'}."
        )
    log_det = float(shape.abs().log().sum() if shape.ndim == 1 else torch.linalg.slogdet(shape).logabsdet)
    if not math.isfinite(log_det):
        raise ValueError(f"`shape` must be invertible; its determinant is 0, shape {tuple(shape.shape)}. Add a little.")
    sphere_KD = normal_KD / normal_KD.norm(dim=1, keepdim=True)
    moved_KD = sphere_KD * shape if shape.ndim == 1 else sphere_KD @ shape.T
    length_K1 = moved_KD.norm(dim=1, keepdim=True)
    return _Directions((moved_KD / length_K1).to(place.weights_D), length_K1[:, 0].log(), log_det)


def _volume(radii_K: Tensor, directions: _Directions, size: int) -> tuple[float, float, float]:
    """Return log V, its standard error, and the effective number of directions."""
    volume = not math.isnan(directions.log_det)
    terms_K = size * (radii_K.log() - (directions.log_length_K if volume else 0.0))
    total, count = float(terms_K.logsumexp(0)), len(terms_K)
    ess = math.exp(2 * total - float((2 * terms_K).logsumexp(0))) if math.isfinite(total) else 0.0
    if not volume:
        return math.nan, math.nan, ess
    ball = size / 2 * math.log(math.pi) - math.lgamma(size / 2 + 1)
    error = math.sqrt(max(count / ess - 1, 0.0) / (count - 1)) if ess else math.inf
    return ball + directions.log_det + total - math.log(count), error, ess


def _problems(ess: float, capped: int, count: int, *, limit: float, volume: bool) -> Iterator[str]:
    if capped:
        yield (
            f"in {capped} of {count} directions the loss does not rise by the threshold up to the radius {limit:.3g}, "
            f"at which they end"
        )
    if volume and ess < min(_FEWEST, 0.99 * count):
        yield (
            f"its volume rests on {ess:.1f} effective directions of {count}, so it is probably too low (give `shape`, "
            f"such as the Hessian's diagonal to the power -1/2, or compare volumes along the same directions only)"
        )


def normal(place: Place, count: int, *, seed: int) -> Tensor:
    """Return standard normal numbers, float64 (K, D), that depend only on K, D and the seed; checks that they fit."""
    check_memory(3 * count * place.weights_D.nbytes, "directions", place.weights_D.device, directions=count)
    return torch.randn(count, len(place.weights_D), generator=generator(Purpose.BASIN, seed), dtype=torch.float64)


def scaled(model: Model, weights_D: Tensor, normal_KD: Tensor, *, shape: Literal["filters", "sphere"]) -> Tensor:
    """Return directions as `filtered` does, or of length 1."""
    if shape == "filters":
        return filtered(model, weights_D, normal_KD)
    return normal_KD / normal_KD.norm(dim=1, keepdim=True)


def filtered(model: Model, weights_D: Tensor, normal_KD: Tensor) -> Tensor:
    """Return float64 directions (K, D) whose filters have the norms of those of the network (Li et al. 2018).

        d_j ← d_j |w_j| / |d_j|    for the weights of every output unit or channel j

    In an unknown module, filters lie along the first axis. Biases, parameters of norms and learned parameters of
    the likelihood do not move. The surface of a network of ReLU units without biases then does not change when one
    layer is scaled up and the next one down. `normal_KD` is float64, on the CPU. Raises a ValueError if no weight
    matrix is random and not zero.
    """
    layout, axes = model.layout, axes_of(model.network.module, model.network.layout.names)
    weights, directions_KD = layout.split(weights_D.detach().double().cpu()), normal_KD.clone()
    for name, part_K in layout.split(directions_KD).items():
        known, shape = axes.get(name), tuple(weights[name].shape)
        if known is None or known.shape != shape or (known.outputs is None and not known.unknown):
            part_K.zero_()  # it has no filters, or is random only in part
            continue
        grid = known.grid(known.outputs or 0)
        drawn_K, norms = part_K.view(-1, *grid), weights[name].view(grid).square().sum((-3, -1), keepdim=True).sqrt()
        drawn_K *= norms / drawn_K.square().sum((-3, -1), keepdim=True).sqrt().clamp_min(1e-300)
    if not directions_KD.any():
        raise ValueError("filters need a random weight matrix that is not zero; got none. Use shape='sphere'.")
    return directions_KD

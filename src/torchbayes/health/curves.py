"""Checks of curves and simplexes: whether their networks explain the training rows as well as those they join.

With ℓ(p) the mean log likelihood of a target at point p, over about 512 training rows, and c that of the best
constant, there is a barrier where

    r(p) − ℓ(p) > ¼ (ℓ̄ − c),   at least a tenth of a nat and at most half a nat,

with ℓ̄ the mean of the networks that are joined: such networks have lost a quarter of what these have learned, or a
likelihood ratio of √e for every target. r is (1 − t) ℓ(0) + t ℓ(1) along a curve, and in a simplex ℓ of its mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.health.constant import constant_log_likelihood, num_targets
from torchbayes.health.descent import log_likelihoods
from torchbayes.health.ending import Case, first
from torchbayes.health.kept import SAME, changes
from torchbayes.model.batches.batch import Batch
from torchbayes.model.sources.sources import Source
from torchbayes.posteriors.curves.simplex import SimplexPosterior, barycentric, in_complex, spread_evenly
from torchbayes.posteriors.curves.volumes import altitudes, grams
from torchbayes.posteriors.point import Point

_ROWS, _POSITIONS = 512, 9
_LEAST, _MOST = 0.1, 0.5  # nats per target
_SAME = 1e-6  # distance of the ends, relative to their size
_FLAT = 1e-3  # altitude of a vertex, relative to the size of the weights; it starts at ten times as much
_WHY = "the curve was trained too little (train longer, at a higher learning rate, or with more `bends`)"
_WHY_WIDE = (
    "the simplex is too large or was trained too little (lower `volume_weight`, train longer, or at another learning "
    "rate)"
)


class _Fall(NamedTuple):
    """The point where training rows are least likely, relative to what is expected there."""

    member: int
    place: int  # index of the point
    seen_TM: Tensor  # ℓ at all points


def same_ends(case: Case) -> list[str]:
    """Return the problem of curves that lead nowhere, because both ends are one network, as one clause."""
    return [
        f"both ends of curve {m} are the same network, so that it joins nothing (give `start` two networks "
        f"that were trained from different seeds for each curve)"
        for m, _, _ in _alike(case.posterior.points_MPD[:, [0, -1]])[:1]
    ]


def same_modes(case: Case) -> list[str]:
    """Return the problem of simplexes that connect nothing, because two modes are one network, as one clause."""
    return [
        f"modes {i} and {j} of complex {m} are the same network, so that it connects nothing (give `start` "
        f"networks that were trained from different seeds)"
        for m, i, j in _alike(case.posterior.vertices_MPD[:, : case.posterior.modes])[:1]
    ]


def collapsed(posterior: SimplexPosterior) -> list[str]:
    """Return the problem of a simplex without volume, a vertex in the plane of the others, as one clause."""
    modes_MKD, shared_MRD = posterior.vertices_MPD.tensor_split([posterior.modes], dim=1)
    size_MK = modes_MKD.double().norm(dim=-1)
    least_MK = altitudes(grams(modes_MKD, shared_MRD)).amin(-1)
    return [
        f"simplex {k} of member {m} has collapsed: one of its vertices is only "
        f"{float(least_MK[m, k] / size_MK[m, k]):.1g} of the size of the weights "
        f"away from the plane of the others, so that its networks are almost one (raise `volume_weight`, or take fewer "
        f"`vertices`)"
        for m, k in (least_MK <= _FLAT * size_MK).nonzero()[:1].tolist()
    ]


def inside(case: Case) -> list[str]:
    """Return the problems of the networks inside simplexes, one clause each."""
    posterior, source = case.posterior, case.source
    return [*(collapsed(posterior) or one_function(posterior, source)), *worse_inside(posterior, source)]


def one_function(posterior: SimplexPosterior, source: Source) -> list[str]:
    """Return the problem of simplexes whose volume lies in weights that do not matter, as one clause.

    The outputs at all vertices are compared with those at the first mode, on about 512 training rows.
    """
    vertices_PP = torch.eye(posterior.vertices_MPD.shape[1], dtype=torch.float64)
    mode, others = vertices_PP[:1].expand_as(vertices_PP[1:]), vertices_PP[1:]
    share = changes(posterior.at(mode), posterior.at(others), source.some(_ROWS))
    largest_M = None if share is None else share.unflatten(0, (len(others), -1)).amax(0)
    if largest_M is None:
        return []
    return [
        f"the networks of complex {m} are one function: from one vertex to the others the outputs change by at "
        f"most {float(largest_M[m]):.1g} standard deviations, so that their average is a single network (raise "
        f"`volume_weight`, or make random only weights on which the outputs depend)"
        for m in first(largest_M <= SAME)
    ]


def barriers(case: Case) -> list[str]:
    """Return the problem of curves with a barrier along them, as one clause."""
    posterior, source = case.posterior, case.source
    batches = source.some(_ROWS)
    t_T = torch.linspace(0, 1, _POSITIONS, dtype=torch.float64)
    points = posterior.calibrated(lambda: (batch.inputs for batch in batches)).at(t_T)
    fall = _fall(points, batches, ends_TP=torch.stack([1 - t_T, t_T], 1), joined=[0, _POSITIONS - 1])
    if fall is None:
        return []
    m, low, seen_TM = fall
    return [
        f"there is a barrier along curve {m}: the training rows are less likely at t = {float(t_T[low]):g} than at its "
        f"ends ({float(seen_TM[low, m]):.4g} against {float(seen_TM[0, m]):.4g} and {float(seen_TM[-1, m]):.4g} nats a "
        f"target), as {_WHY}"
    ]


def worse_inside(posterior: SimplexPosterior, source: Source) -> list[str]:
    """Return the problem of simplexes whose networks are worse than their modes, as one clause.

    The points are all vertices, and points spread evenly inside, the centre first. The posterior has training
    inputs for recalibration, if the network needs them.
    """
    batches, modes = source.some(_ROWS), posterior.modes
    coordinates_TP = _places(modes, posterior.vertices_MPD.shape[1] - modes)
    points = posterior.calibrated(lambda: (batch.inputs for batch in batches)).at(coordinates_TP)
    modes_TP = coordinates_TP[:, :modes]
    ends_TP = (modes_TP > 0).double() + (modes_TP.sum(1, keepdim=True) == 0) / modes  # a shared vertex belongs to all
    fall = _fall(points, batches, ends_TP=ends_TP, joined=range(modes))
    if fall is None:
        return []
    m, low, seen_TM = fall
    coordinates = ", ".join(f"{float(share):.2g}" for share in coordinates_TP[low])
    return [
        f"the networks of complex {m} are worse than what they surround: the training rows are less likely at the "
        f"coordinates ({coordinates}) than at its modes ({float(seen_TM[low, m]):.4g} against "
        f"{float(ends_TP[low] @ seen_TM[:modes, m]):.4g} nats a target), as {_WHY_WIDE}"
    ]


def _places(modes: int, shared: int) -> Tensor:
    """Return coordinates of all vertices, and of points in every simplex, (T, K + R)."""
    middle_R = spread_evenly(max(_POSITIONS // modes, 3), torch.full((shared,), 0.5, dtype=torch.float64))
    inside_IR = torch.cat([torch.full((1, shared + 1), 1 / (shared + 1)).double(), barycentric(middle_R)])
    coordinates = [in_complex(inside_IR, torch.full((len(inside_IR),), k), modes) for k in range(modes)]
    return torch.cat([torch.eye(modes + shared, dtype=torch.float64), *coordinates])


def _alike(networks_MPD: Tensor) -> list[tuple[int, int, int]]:
    """Return (member, i, j) for networks i and j of a member that are equal."""
    wide_MPD = networks_MPD.double()
    size_MP = wide_MPD.norm(dim=-1)
    count = wide_MPD.shape[1]
    pairs = [(first, second) for first in range(count) for second in range(first + 1, count)]
    same = {(i, j): (wide_MPD[:, i] - wide_MPD[:, j]).norm(dim=-1) <= _SAME * size_MP[:, i] for i, j in pairs}
    return [(m, i, j) for m in range(len(wide_MPD)) for i, j in pairs if same[i, j][m]]


def _fall(points: Point, batches: Sequence[Batch], *, ends_TP: Tensor, joined: Sequence[int]) -> _Fall | None:
    """Return where training rows are far less likely than at the joined networks; None where nowhere.

    `points` are networks at T points of M members, `joined` the indices of the joined ones, with
    r = Σ_p ends_TP ℓ_p.
    """
    places = len(ends_TP)
    total_TM = log_likelihoods(points, batches)[0].sum(-1).unflatten(0, (places, -1))
    seen_TM = total_TM / num_targets(points.model, batches)
    ends_PM = seen_TM[list(joined)]
    constant = constant_log_likelihood(points.model, batches, points.weights_MD[0])
    mean_M = ends_PM.mean(0)
    gain_M = mean_M - constant if math.isfinite(constant) else torch.full_like(mean_M, math.inf)
    lost_TM = (ends_TP @ ends_PM - seen_TM).nan_to_num(nan=math.inf)
    broken_M = lost_TM.amax(0) > (gain_M / 4).clamp(_LEAST, _MOST)
    if not broken_M.any():
        return None
    m = int(lost_TM.amax(0).where(broken_M, -math.inf).argmax())
    return _Fall(m, int(lost_TM[:, m].argmax()), seen_TM)

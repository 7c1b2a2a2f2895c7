r"""Checks of curves: whether the networks along them explain the training rows as well as their ends do.

With ℓ(t) the mean log likelihood of a target at position t, over about 512 training rows, and c that of the best
constant, a curve has a barrier where

    (1 − t) ℓ(0) + t ℓ(1) − ℓ(t) > ¼ (ℓ̄ − c),   at least a tenth of a nat and at most half a nat,

with ℓ̄ the mean of both ends: such networks have lost a quarter of what the ends have learned, or a likelihood ratio of
√e for every target.
"""

from __future__ import annotations

import math

import torch

from torchbayes.methods.constant import constant_log_likelihood, num_targets
from torchbayes.methods.optimise.health import log_likelihoods
from torchbayes.model.rows.sources import Source
from torchbayes.posteriors.curves.curve import CurvePosterior

_ROWS, _POSITIONS = 512, 9
_LEAST, _MOST = 0.1, 0.5  # nats a target
_SAME = 1e-6  # distance of the ends, relative to their size
_WHY = "the curve was trained too little (train longer, at a higher learning rate, or with more `bends`)"


def same_ends(posterior: CurvePosterior) -> list[str]:
    """Return the problem of curves that lead nowhere, as one clause: their ends are one network."""
    first_MD, last_MD = posterior.points_MPD[:, 0].double(), posterior.points_MPD[:, -1].double()
    same_M = (last_MD - first_MD).norm(dim=1) <= _SAME * first_MD.norm(dim=1)
    if not same_M.any():
        return []
    which = int(same_M.nonzero()[0])
    return [
        f"both ends of curve {which} are the same network, so that it joins nothing (give `start` two networks that "
        f"were trained from different seeds for each curve)"
    ]


def barriers(posterior: CurvePosterior, source: Source) -> list[str]:
    """Return the problem of curves with a barrier along them, as one clause.

    Args:
        posterior: the curves, with training inputs for recalibration, if the network needs them.
        source: the training data.
    """
    batches = source.some(_ROWS)
    posterior = posterior.calibrated(lambda: (batch.inputs for batch in batches))
    t_T = torch.linspace(0, 1, _POSITIONS, dtype=torch.float64)
    points = posterior.at(t_T)
    total_TM = log_likelihoods(points, batches)[0].sum(-1).unflatten(0, (_POSITIONS, -1))
    seen_TM = total_TM / num_targets(posterior.model, batches)
    ends_M = 0.5 * (seen_TM[0] + seen_TM[-1])
    constant = constant_log_likelihood(posterior.model, batches, points.weights_MD[0])
    gain_M = ends_M - constant if math.isfinite(constant) else torch.full_like(ends_M, math.inf)
    line_TM = torch.lerp(seen_TM[0], seen_TM[-1], t_T.unsqueeze(1))
    lost_TM = (line_TM - seen_TM).nan_to_num(nan=math.inf)
    broken_M = lost_TM.amax(0) > (gain_M / 4).clamp(_LEAST, _MOST)
    if not broken_M.any():
        return []
    m = int(lost_TM.amax(0).where(broken_M, -math.inf).argmax())
    at = int(lost_TM[:, m].argmax())
    return [
        f"there is a barrier along curve {m}: the training rows are less likely at t = {float(t_T[at]):g} than at its "
        f"ends ({float(seen_TM[at, m]):.4g} against {float(seen_TM[0, m]):.4g} and {float(seen_TM[-1, m]):.4g} nats a "
        f"target), as {_WHY}"
    ]

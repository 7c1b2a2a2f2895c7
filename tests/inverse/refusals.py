"""Nonsense for inverse problems: what must be refused, argument by argument."""

from __future__ import annotations

import torch
from torch import distributions, nn

import torchbayes as tb
from tests.refusals.nonsense import COUNT, FUNCTION, INF, MAPPING, NAN, OBJECT, Case, but, tensors
from torchbayes import inverse

_POINTS = torch.linspace(0, 1, 3).unsqueeze(-1)


def _u(points):
    return points.sin()


def _problem() -> dict[str, object]:
    return {
        "network": nn.Linear(1, 1),
        "quantities": {"u": lambda u, x, k: u(x)},
        "coefficients": {"k": tb.priors.Normal()},
        "noise": {"u": 0.1},
    }


def _derivatives() -> dict[str, object]:
    return {"function": _u, "points": _POINTS}


_REAL_POINTS = (*tensors((3,), (3, 0), (2, 2, 1)), torch.zeros(3, 1, dtype=torch.int64))

INVERSE = {
    "inverse.derivatives": Case(
        inverse.derivatives,
        _derivatives,
        {"function": FUNCTION, "points": _REAL_POINTS, "order": COUNT, "axis": (*but(COUNT, -1, 0), -2, 1)},
    ),
    "inverse.gradient": Case(inverse.gradient, _derivatives, {"function": FUNCTION, "points": _REAL_POINTS}),
    "inverse.laplacian": Case(inverse.laplacian, _derivatives, {"function": FUNCTION, "points": _REAL_POINTS}),
    "inverse.Problem": Case(
        inverse.Problem,
        _problem,
        {
            "network": OBJECT,
            "quantities": (*MAPPING, {}, {"u": 3}, {"u-1": _u}, {"type": _u}),
            "coefficients": (*but(MAPPING, None), {"k": 0.7}, {"k": "text"}, {"k": distributions.Poisson(3.0)}),
            "noise": (*MAPPING, {"u": 0.0}, {"u": NAN}, {"u": INF}, {"u": None}, {"v": 0.1}),
            "prior": ("text", 3, tb.priors.Normal, {"nothing.*": tb.priors.Normal()}),
        },
    ),
}

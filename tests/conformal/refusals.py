"""Nonsense for calibrations and the jackknife: what must be refused, argument by argument."""

from __future__ import annotations

from functools import cache

import torch

import torchbayes as tb
from tests.conformal.cases import forecast
from tests.refusals import things
from tests.refusals.nonsense import (
    FLAG,
    INF,
    NAN,
    NOT_NEGATIVE,
    OBJECT,
    OPEN_SHARE,
    SEED,
    WHOLE,
    WORD,
    Case,
    maybe,
)
from torchbayes import conformal

FORECAST, TARGETS = forecast(12)
_ROWS = (12, "text", torch.zeros(11), torch.full((12,), NAN))
_WEIGHTS = (*_ROWS, -torch.ones(12), torch.zeros(12), INF)
_GROUPS = (3, NAN, "text", torch.zeros(12), [1.5] * 12, [0] * 11, [None] * 12, [["a"]] * 12)
_ONES = torch.ones(12)


@cache
def laplace() -> tb.LaplacePosterior:
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    start = torch.zeros(things.regression().layout.size)
    return tb.fit(things.regression(), (things.INPUTS, TARGETS.float().unsqueeze(1)), method, start=start, callbacks=())


def _calibrate() -> dict[str, object]:
    return {"posterior": FORECAST, "data": TARGETS}


def _arrays() -> dict[str, object]:
    scales = {"scales_N": _ONES, "scales_NB": torch.ones(12, 2)}
    return {"means_N": _ONES, "targets_N": 0 * _ONES, "means_NB": torch.zeros(12, 2), **scales}


CONFORMAL = {
    "conformal.calibrate": Case(
        conformal.calibrate,
        _calibrate,
        {
            "posterior": (*OBJECT, tb.Point, conformal.Forecast, torch.zeros(12)),
            "data": (
                None,
                "text",
                3,
                NAN,
                torch.zeros(11),
                torch.full((12,), NAN),
                torch.zeros(0),
                torch.zeros(12, 12),
            ),
            "coverage": OPEN_SHARE,
            "score": (*WORD, conformal.Absolute, "aps", "pit", "density"),
            "groups": _GROUPS,
            "weights": _WEIGHTS,
            "confidence": maybe(OPEN_SHARE),
            "seed": SEED,
        },
        named={
            "posterior": ("`posterior`", "prediction"),
            "data": ("targets",),
            "score": ("score", "`prediction`"),
            "weights": ("weight",),
        },
    ),
    "conformal.jackknife": Case(
        conformal.jackknife,
        lambda: {"posterior": laplace(), "data": (things.INPUTS, TARGETS.float().unsqueeze(1))},
        {
            "posterior": (*OBJECT, things.point(), things.laplace()),
            "data": (None, "text", 3, things.DATA, (things.INPUTS[:5], TARGETS[:5].float().unsqueeze(1))),
            "coverage": OPEN_SHARE,
            "score": (*WORD, "pit", "auto"),
            "kind": (*WORD, "jackknife"),
        },
        named={"posterior": ("`posterior`", "regression"), "data": ("data", "inputs", "targets", "batch")},
    ),
    "conformal.jackknife_intervals": Case(
        conformal.jackknife_intervals,
        _arrays,
        {
            "means_N": (None, "text", 3, torch.zeros(0), torch.full((12,), NAN), torch.zeros(2, 2, 2), torch.zeros(11)),
            "targets_N": (None, "text", 3, torch.zeros(11), torch.full((12,), NAN)),
            "means_NB": (None, "text", 3, torch.zeros(12), torch.zeros(11, 2), torch.full((12, 2), NAN)),
            "coverage": OPEN_SHARE,
            "scales_N": (None, "text", 3, torch.zeros(12), -_ONES, torch.ones(11)),
            "scales_NB": (None, "text", 3, torch.zeros(12, 2), torch.ones(12, 3)),
            "kind": WORD,
        },
        named={"means_N": ("`means_N`", "`targets_N`")},
    ),
    "conformal.Forecast": Case(
        conformal.Forecast,
        lambda: {"mean": _ONES, "scale": _ONES, "low": 0 * _ONES, "high": _ONES},
        {
            "mean": ("text", 3, torch.zeros(0), torch.full((12,), NAN), torch.zeros(2, 2, 2)),
            "scale": ("text", 3, torch.zeros(12), -_ONES, torch.ones(11), NAN * _ONES),
            "low": (None, "text", 3, 2 * _ONES, torch.ones(12, 1), -INF * _ONES),
            "high": (None, "text", 3, -_ONES, torch.ones(12, 1), INF * _ONES),
        },
        named={"low": ("`low`",), "high": ("`high`",)},
    ),
    "conformal.CQR": Case(conformal.CQR, wrong={"level": OPEN_SHARE}),
    "conformal.APS": Case(conformal.APS, wrong={"randomised": FLAG}),
    "conformal.RAPS": Case(conformal.RAPS, wrong={"penalty": NOT_NEGATIVE, "free": WHOLE, "randomised": FLAG}),
    **{
        f"conformal.{kind.__name__}": Case(kind)
        for kind in (conformal.Absolute, conformal.Normalised, conformal.PIT, conformal.Density, conformal.LAC)
    },
}

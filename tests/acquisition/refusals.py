"""Nonsense for active learning, argument by argument."""

from __future__ import annotations

import torch

import torchbayes as tb
from tests.refusals import things
from tests.refusals.nonsense import COUNT, FLAG, NAN, OBJECT, PATH, POSITIVE, SEED, WORD, Case, maybe
from torchbayes import acquisition

_SIZES = acquisition.Sizes(4, 3, 1)
_PLAN = acquisition.Plan(_SIZES, ("entropy",), seeds=1)
_METHOD = tb.MAP(members=2, epochs=1)
_ROWS = (None, "text", NAN, torch.zeros(0, 2), torch.full((5, 2), NAN))


def _studied() -> dict[str, object]:
    return {"model": things.model(), "pool": things.DATA, "method": _METHOD, "test": things.DATA, "plan": _PLAN}


ACQUISITION = {
    "acquire": Case(
        tb.acquire,
        lambda: {"posterior": things.chains(), "pool": things.INPUTS, "k": 2, "score": "epig"},
        {
            "posterior": (*OBJECT, tb.Point, torch.zeros(12)),
            "pool": _ROWS,
            "k": (*COUNT, 13),
            "score": (*WORD, "random", tb.Point),
            "target_inputs": ("text", 3, NAN, torch.zeros(0, 2), torch.full((5, 2), NAN)),
            "draws": (*maybe(COUNT), 3),
            "seed": SEED,
            "chunk_size": COUNT,
        },
        named={"pool": ("pool", "inputs", "batch"), "target_inputs": ("inputs", "batch"), "score": ("score",)},
    ),
    "acquisition.Sizes": Case(acquisition.Sizes, dict, dict.fromkeys(("first", "acquire", "rounds"), COUNT)),
    "acquisition.Plan": Case(
        acquisition.Plan,
        dict,
        {
            "sizes": OBJECT,
            "scores": (None, "bald", 3, (), ("random",), (3,)),
            "seeds": COUNT,
            "seed": SEED,
            "warm": FLAG,
            "draws": maybe(COUNT),
            "target_scale": POSITIVE,
            "chunk_size": COUNT,
        },
    ),
    "acquisition.study": Case(
        acquisition.study,
        _studied,
        {
            "model": (*OBJECT, torch.nn.Linear(2, 3)),
            "pool": (None, "text", 3, things.INPUTS, (things.INPUTS[:3], things.LABELS[:3])),
            "method": OBJECT,
            "test": (None, "text", 3),
            "plan": (3, "text", acquisition.Plan),
            "directory": maybe(PATH),
            "resume": FLAG,
            "callbacks": (3, (3,)),
        },
        named={"pool": ("pool",), "test": ("data", "targets"), "callbacks": ("callback",)},
    ),
}
ACQUISITION["acquisition.acquire"] = ACQUISITION["acquire"]

"""Nonsense for runs of adapters, argument by argument. None of it needs Hugging Face."""

from __future__ import annotations

from tests.refusals.nonsense import (
    COUNT,
    FLAG,
    NAN,
    POSITIVE,
    SEED,
    SHARE,
    WORD,
    Case,
    maybe,
)
from torchbayes import lora

_TEXT = (None, "", 3, NAN, ["x"], str)

LORA = {
    "lora.Settings": Case(
        lora.Settings,
        lambda: {"base": "base", "data": "data", "adapter": "adapter"},
        {
            **dict.fromkeys(("base", "data"), _TEXT),
            **dict.fromkeys(("test", "other", "adapter"), maybe(_TEXT)),
            "held_out": SHARE,
            **dict.fromkeys(("refine", "load_in_4bit"), FLAG),
            **dict.fromkeys(("rank", "batch_size", "draws"), COUNT),
            **dict.fromkeys(("epochs", "max_length"), maybe(COUNT)),
            **dict.fromkeys(("alpha", "lr"), maybe(POSITIVE)),
            "targets": (None, "q_proj", 3, [3]),
            "prior": POSITIVE,
            "template": (None, 3, NAN, "nonsense", "{question}", "{choices}", str),
            "before": (3, NAN, ["x"], str),
            "dtype": WORD,
            "device": (None, 3, NAN, ["x"], str),
            "members": (*COUNT, 1),
            "seed": SEED,
        },
    ),
    "lora.Sizes": Case(lora.Sizes, dict, dict.fromkeys(("first", "acquire", "rounds"), COUNT)),
}

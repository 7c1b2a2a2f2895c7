"""Nonsense for language models that answer questions, argument by argument. None of it needs Hugging Face."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.refusals.nonsense import (
    COUNT,
    FLAG,
    FUNCTION,
    NAN,
    NOT_NEGATIVE,
    OBJECT,
    SEED,
    WORD,
    Case,
    but,
    maybe,
    tensors,
)
from torchbayes import adapters
from torchbayes.adapters import LastToken, Question

ASKED = Question("what", ("red", "blue"))


class Words(nn.Module):
    """The least that is a causal language model: embeddings and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.head(self.words(input_ids).cumsum(1)))


def tokenizer(text: str, **_: Any) -> dict[str, list[int]]:
    return {"input_ids": [ord(letter) % 9 for letter in text]}


@cache
def network() -> Words:
    return Words()


@cache
def model() -> tb.Model:
    return tb.Model(LastToken(network(), [1, 2]), tb.likelihoods.Categorical(), random="*words*")


_TOKENS = (None, "text", 3, NAN, [1], [1, 1], [1, 9], [-1, 1], [0.5, 1.0], torch.zeros(2), torch.zeros(2, 2).long())
_TEXTS = (None, "text", 3, NAN, ["a"], ["a", "a"], ["a", " "], ["a", 3], ["a"] * 27)

_ROWS = (None, "text", 3, [[1, 2]], {}, torch.zeros(2), torch.ones(2).long(), torch.zeros(0, 2).long())

ADAPTERS = {
    "adapters.LastToken": Case(
        LastToken,
        lambda: {"network": network(), "answers": [1, 2]},
        {"network": (*OBJECT, nn.Linear, nn.Linear(2, 3)), "answers": _TOKENS},
    ),
    "adapters.Question": Case(
        Question,
        lambda: {"text": "what", "choices": ["red", "blue"], "answer": 1},
        {"text": (None, "", " ", 3, NAN, ["a"], str), "choices": _TEXTS, "answer": (NAN, "C", 2, -1, 0.0, True, [1])},
        free={"line": "it stands in messages alone"},
        named={"text": ("question",), "choices": ("choice",), "answer": ("answer",)},
    ),
    "adapters.multiple_choice": Case(
        adapters.multiple_choice, lambda: {"question": ASKED}, {"question": (*OBJECT, Question)}
    ),
    "adapters.answer_tokens": Case(
        adapters.answer_tokens,
        lambda: {"tokenizer": tokenizer, "count": 3},
        {"tokenizer": OBJECT, "count": (*COUNT, 1, 27), "before": (None, 3, NAN, ["x"], str)},
    ),
    "adapters.encode": Case(
        adapters.encode,
        lambda: {"questions": [ASKED], "tokenizer": tokenizer},
        {
            "questions": (*but(OBJECT, object), [], ASKED, [ASKED, "text"]),
            "tokenizer": OBJECT,
            "classes": (*maybe(COUNT), 1),
            "template": FUNCTION,
            "max_length": maybe(COUNT),
            "special_tokens": FLAG,
        },
    ),
    "adapters.generate": Case(
        adapters.generate,
        lambda: {
            "posterior": tb.Point(model(), model().given_weights().unsqueeze(0)),
            "network": network(),
            "prompts": torch.tensor([[1, 2]]),
            "max_new_tokens": 1,
        },
        {
            "posterior": (*OBJECT, network(), tb.Point),
            "network": (*OBJECT, nn.Linear(2, 3), LastToken(network(), [1, 2])),
            "prompts": _ROWS,
            "draws": (*maybe(COUNT),),
            "max_new_tokens": COUNT,
            "temperature": NOT_NEGATIVE,
            "average": WORD,
            "seed": SEED,
        },
    ),
    "adapters.score": Case(
        adapters.score,
        lambda: {
            "posterior": tb.Point(model(), model().given_weights().unsqueeze(0)),
            "network": network(),
            "prompts": torch.tensor([[1, 2]]),
            "answers": torch.tensor([[3]]),
        },
        {
            "posterior": (*OBJECT, network(), tb.Point),
            "network": (*OBJECT, nn.Linear(2, 3), LastToken(network(), [1, 2])),
            "prompts": _ROWS,
            "answers": (*_ROWS, torch.ones(2, 1).long()),
            "draws": (*maybe(COUNT),),
            "average": WORD,
            "seed": SEED,
        },
    ),
    "adapters.load_draw": Case(
        adapters.load_draw,
        lambda: {"network": network(), "model": model(), "weights": model().given_weights()},
        {
            "network": (*OBJECT, nn.Linear(2, 3)),
            "model": (*OBJECT, network()),
            "weights": (*tensors((3,), (1, 36)), torch.full((36,), NAN), torch.zeros(36, dtype=torch.int64)),
        },
    ),
}

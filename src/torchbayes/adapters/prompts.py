"""Questions as tokens: what `fit`, `predict` and `evaluate` take, and the tokens that stand for answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_uppercase as LETTERS
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchbayes.adapters.questions import Question, multiple_choice
from torchbayes.checks import (
    check_counts,
    check_flags,
    check_function,
    check_object,
    check_text,
    is_whole,
    optional,
    seen,
)
from torchbayes.native.process import undisturbed

Template = Callable[[Question], str]
"""Writes a question as a prompt, at whose end the answer follows."""

_TOKENIZER = "AutoTokenizer.from_pretrained(…)"
_NO_LIMIT = 10**9  # tokenizers of Hugging Face name a larger number where they know of no limit


@undisturbed
def answer_tokens(tokenizer: Any, count: int, *, before: str = "") -> Tensor:
    """Return the tokens of the letters A, B, C, … that stand for answers.

    Args:
        tokenizer: a tokenizer of Hugging Face.
        count: K, the number of letters, 2 to 26.
        before: what stands before each letter. Many tokenizers have other tokens for `" A"` than for `"A"`; after a
            prompt that ends with "Answer:" a language model expects a blank. An adapter learns either.

    Returns:
        Token ids (K,), int64.

    Raises:
        ValueError: if a letter is not one token of its own; the message names it.
        TypeError: if an argument is of another kind.
    """
    check_text(before=before)
    check_object(("__call__",), _TOKENIZER, tokenizer=tokenizer)
    if not is_whole(count) or not 2 <= count <= len(LETTERS):
        raise ValueError(f"`count` must be a whole number from 2 to {len(LETTERS)}, as letters go; got {seen(count)}.")
    tokens = list[int]()
    for letter in LETTERS[:count]:
        text, ids = before + letter, _ids(tokenizer, before + letter, special=False)
        if len(ids) != 1 or ids[0] == getattr(tokenizer, "unk_token_id", None):
            said = "is unknown to the tokenizer" if len(ids) == 1 else f"takes {len(ids)} tokens"
            raise ValueError(
                f"every answer must be a single token, but {text!r}, the letter {letter}, {said}. Give `before=' '` or "
                f"`before=''`, or use another tokenizer."
            )
        if ids[0] in tokens:
            raise ValueError(f"the letters {LETTERS[tokens.index(ids[0])]} and {letter} are the same token, {ids[0]}.")
        tokens.append(ids[0])
    return torch.tensor(tokens)


@undisturbed
def encode(
    questions: Sequence[Question],
    tokenizer: Any,
    *,
    classes: int | None = None,
    template: Template = multiple_choice,
    max_length: int | None = None,
    special_tokens: bool = True,
) -> dict[str, Tensor]:
    """Return questions as tensors by name, as `fit`, `predict` and `evaluate` take them for a `LastToken`.

    Class k is the answer with letter k, as in `answer_tokens(tokenizer, K)`. Where a question has fewer choices than
    there are classes, `choices` says which it has; the others then have probability 0. That `choices` is in one set of
    rows and not in another does no harm.

    Prompts are padded on the left, to the longest of them, with the tokenizer's token for padding, or else any other:
    no output depends on it. They are never cut off.

    Args:
        questions: N questions, of which all have an answer, or none has.
        tokenizer: a tokenizer of Hugging Face.
        classes: K, at least the choices of each question; as many as the question with most choices has if None.
        template: writes the prompt of a question. A chat template of the tokenizer is applied in here; give
            `special_tokens=False` then.
        max_length: tokens that a prompt may have; what the tokenizer says of its model if None.
        special_tokens: whether the tokenizer puts its own tokens around a prompt.

    Returns:
        `input_ids` and `attention_mask`, both int64 (N, T); `choices`, bool (N, K), if some question has fewer than K;
        and `labels`, int64 (N,), if the answers are known.

    Raises:
        ValueError: if there are no questions, only some have an answer, one has more choices than there are classes,
            or a prompt is empty or longer than the limit. The message has the number of its line.
        TypeError: if the template does not return text, or an argument is of another kind.
    """
    check_object(("__call__",), _TOKENIZER, tokenizer=tokenizer)
    check_function("a function from a question to a prompt", template=template)
    check_flags(special_tokens=special_tokens)
    optional(check_counts, max_length=max_length)
    _check_alike(questions)
    width, most = _classes(questions, classes), _limit(tokenizer, max_length)
    rows = [_row(question, tokenizer, template, most=most, special=special_tokens) for question in questions]
    encoded = _padded(rows, _padding(tokenizer))
    sizes = torch.tensor([len(question.choices) for question in questions])
    if bool((sizes < width).any()):
        encoded["choices"] = torch.arange(width) < sizes.unsqueeze(1)
    answers = [question.answer for question in questions if question.answer is not None]
    return {**encoded, "labels": torch.tensor(answers)} if answers else encoded


def _check_alike(questions: Sequence[Question]) -> None:
    """Raise ValueError if there are no questions, or some have an answer and others have none; TypeError if no list."""
    if not isinstance(questions, list | tuple) or not all(isinstance(each, Question) for each in questions):
        raise TypeError(f"`questions` must be a list of Question, as `read_questions` gives it; got {seen(questions)}.")
    if not questions:
        raise ValueError("`questions` is empty; there is nothing to encode.")
    without = [question for question in questions if question.answer is None]
    if without and len(without) < len(questions):
        raise ValueError(
            f"{without[0].where}: it has no answer, as {len(without)} of {len(questions)} questions. Give an answer to "
            f"each one, or encode those without one apart, to predict them."
        )


def _classes(questions: Sequence[Question], classes: int | None) -> int:
    """Return K."""
    longest = max(questions, key=lambda question: len(question.choices))
    if classes is None:
        return len(longest.choices)
    check_counts(least=2, classes=classes)
    if len(longest.choices) > classes:
        raise ValueError(
            f"{longest.where}: it has {len(longest.choices)} choices, more than the {classes} classes. Fit with as "
            f"many classes as any question has choices."
        )
    return classes


def _limit(tokenizer: Any, max_length: int | None) -> int | None:
    """Return how many tokens a prompt may have; None if nobody says."""
    if max_length is not None:
        return max_length
    known = getattr(tokenizer, "model_max_length", None)
    return known if isinstance(known, int) and known < _NO_LIMIT else None


def _row(question: Question, tokenizer: Any, template: Template, *, most: int | None, special: bool) -> list[int]:
    """Return the tokens of a question's prompt."""
    prompt = template(question)
    if not isinstance(prompt, str):
        raise TypeError(f"`template` must return text; got {seen(prompt)} for {question.where}.")
    ids = _ids(tokenizer, prompt, special=special)
    if not ids:
        raise ValueError(f"{question.where}: its prompt has no tokens.")
    end = getattr(tokenizer, "eos_token_id", None)
    if special and end is not None and ids[-1] == end != [None, *_ids(tokenizer, prompt, special=False)][-1]:
        raise ValueError(
            "the tokenizer puts its end token behind each prompt, where the answer should follow. Give "
            "`special_tokens=False`, or make it without (`add_eos_token=False`)."
        )
    if most is not None and len(ids) > most:
        raise ValueError(
            f"{question.where}: its prompt has {len(ids)} tokens, more than the limit of {most}. Shorten or leave out "
            f"the question, or raise `max_length` if the model takes more."
        )
    return ids


def _ids(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def _padding(tokenizer: Any) -> int:
    """Return the token that fills rows; any one does, because no place of padding is ever looked at."""
    tokens = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
    return next((token for token in tokens if isinstance(token, int)), 0)


def _padded(rows: Sequence[list[int]], padding: int) -> dict[str, Tensor]:
    """Return tokens and mask, (N, T) each, padded on the left."""
    longest = max(map(len, rows))
    tokens = [F.pad(torch.tensor(row), (longest - len(row), 0), value=padding) for row in rows]
    real = torch.tensor([len(row) for row in rows]).unsqueeze(1) >= torch.arange(longest, 0, -1)
    return {"input_ids": torch.stack(tokens), "attention_mask": real.long()}

"""The questions of a run: which are learned from, which give the numbers, and how all of them become tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from string import ascii_uppercase as LETTERS
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.adapters import Question, answer_tokens, encode, multiple_choice, read_questions
from torchbayes.lora.base import Opened
from torchbayes.lora.settings import Settings
from torchbayes.randomness.seeds import Purpose, generator

_FEWEST = 2  # questions with answers on either side
_PLACES = re.compile(r"\{(question|choices)\}")


class Questions(NamedTuple):
    """Questions by what they are for."""

    train: list[Question]
    test: list[Question]
    other: list[Question]

    @property
    def classes(self) -> int:
        """K, as many as any question has choices."""
        return max(len(question.choices) for group in self for question in group)

    @property
    def notes(self) -> list[str]:
        """What must be said of them, in sentences."""
        known = {(question.text, question.choices) for question in self.train}
        again = sum((question.text, question.choices) in known for question in self.test)
        if not again:
            return []
        return [f"{again} of {len(self.test)} test questions are training questions too, so the numbers flatter."]


def read(settings: Settings) -> Questions:
    """Read the questions of a run; without a test file, hold out a share of them.

    Raises ValueError if one has no answer where an answer is needed, or they are too few to be divided.
    """
    train = _answered(settings.data)
    other = [] if settings.other is None else read_questions(settings.other)
    if settings.test is not None:
        return Questions(train, _answered(settings.test), other)
    held = round(settings.held_out * len(train))
    if not _FEWEST <= held <= len(train) - _FEWEST:
        raise ValueError(
            f"{settings.data} has {len(train)} questions, of which a share of {settings.held_out:g} would be held out, "
            f"{held}: at least {_FEWEST} must be, and as many be left. Give more questions, another `held_out`, or a "
            f"file `test`."
        )
    order = torch.randperm(len(train), generator=generator(Purpose.QUESTIONS, settings.seed)).tolist()
    return Questions([train[k] for k in sorted(order[held:])], [train[k] for k in sorted(order[:held])], other)


def _answered(path: str) -> list[Question]:
    questions = read_questions(path)
    without = [question for question in questions if question.answer is None]
    if without:
        raise ValueError(
            f"{path}, {without[0].where}: it has no answer, as {len(without)} of {len(questions)} questions. Training "
            f"and test questions need one; predict those without."
        )
    if len(questions) < _FEWEST:
        raise ValueError(f"{path} must have at least {_FEWEST} questions; got {len(questions)}.")
    return questions


@dataclass(frozen=True)
class Encoding:
    """How questions become tokens.

    Attributes:
        tokenizer: of Hugging Face.
        classes: K.
        template: writes a prompt.
        special_tokens: whether the tokenizer puts its own tokens around a prompt.
        max_length: tokens that a prompt may have.
        answers: the tokens of the letters, (K,).
    """

    tokenizer: Any
    classes: int
    template: Callable[[Question], str]
    special_tokens: bool
    max_length: int | None
    answers: Tensor

    @classmethod
    def of(cls, opened: Opened, settings: Settings, classes: int) -> Encoding:
        """Return the encoding that settings describe.

        Raises ValueError if a letter is not one token, or there is no chat template.
        """
        tokenizer, chat = opened.tokenizer, settings.template == "chat"
        if chat and not getattr(tokenizer, "chat_template", None):
            raise ValueError(f"the tokenizer of {settings.base} has no chat template. Take the template `plain`.")
        template = _chat(tokenizer) if chat else _plain(settings.template)
        answers = _answers(tokenizer, classes, settings.before, first="" if chat else " ")
        return cls(tokenizer, classes, template, not chat, _limit(opened, settings), answers)

    def rows(self, questions: Sequence[Question]) -> dict[str, Tensor]:
        """Return questions as tensors by name, as `encode` does."""
        return encode(
            questions,
            self.tokenizer,
            classes=self.classes,
            template=self.template,
            max_length=self.max_length,
            special_tokens=self.special_tokens,
        )

    def inputs(self, questions: Sequence[Question]) -> dict[str, Tensor]:
        """Return questions as tensors without their answers, of which some may have one."""
        return self.rows([replace(question, answer=None) for question in questions])


def _limit(opened: Opened, settings: Settings) -> int | None:
    """Return how many tokens a prompt may have: what is asked for or the tokenizer says, and no more than positions."""
    positions = getattr(opened.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int):
        return settings.max_length
    said = opened.tokenizer.model_max_length if settings.max_length is None else settings.max_length
    return min(said, positions)


def _answers(tokenizer: Any, classes: int, before: str | None, *, first: str) -> Tensor:
    """Return the tokens of the letters; where nothing stands before them for sure, `first` is tried first."""
    if before is not None:
        return answer_tokens(tokenizer, classes, before=before)
    if first:
        try:
            return answer_tokens(tokenizer, classes, before=first)
        except ValueError:
            pass
    return answer_tokens(tokenizer, classes)


def _chat(tokenizer: Any) -> Callable[[Question], str]:
    def chat(question: Question) -> str:
        turn = {"role": "user", "content": multiple_choice(question)}
        # thinking would come before the letter; templates that know nothing of it take no notice
        return tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True, enable_thinking=False)

    return chat


def _plain(template: str) -> Callable[[Question], str]:
    if template == "plain":
        return multiple_choice

    def written(question: Question) -> str:
        choices = "\n".join(f"{letter}) {text}" for letter, text in zip(LETTERS, question.choices, strict=False))
        given = {"question": question.text, "choices": choices}
        return _PLACES.sub(lambda place: given[place[1]], template)  # in one pass: texts may hold such places too

    return written


@dataclass(frozen=True)
class Asked:
    """The questions of a run as tensors.

    Attributes:
        settings: where they are read.
        encoding: how they become tokens.
    """

    settings: Settings
    encoding: Encoding

    @cached_property
    def questions(self) -> Questions:
        """The questions by what they are for."""
        return read(self.settings)

    @cached_property
    def train(self) -> dict[str, Tensor]:
        """The training questions."""
        with _of(self.settings.data):
            return self.encoding.rows(self.questions.train)

    @cached_property
    def test(self) -> dict[str, Tensor]:
        """The test questions."""
        with _of(self.settings.test or self.settings.data):
            return self.encoding.rows(self.questions.test)

    @cached_property
    def other(self) -> dict[str, Tensor] | None:
        """The questions of another kind, without answers; None if there are none."""
        if self.settings.other is None:
            return None
        with _of(self.settings.other):
            return self.encoding.inputs(self.questions.other)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt of all; ValueError names a question whose prompt is too long."""
        return max(rows["input_ids"].shape[1] for rows in (self.train, self.test, self.other) if rows is not None)


@contextmanager
def _of(path: str) -> Iterator[None]:
    """Say in which file a question stands that cannot be used."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from error

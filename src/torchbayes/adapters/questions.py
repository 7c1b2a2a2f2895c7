"""Multiple-choice questions: read from lines of JSON, and written as prompts.

A line is an object such as

    {"question": "Which of these is a mammal?", "choices": ["Salmon", "Whale"], "answer": "B"}

with the text in `question` or `prompt`, two to 26 different choices, and the right one in `answer` or `label`: its
letter, its text, or its number counted from 0. A line without an answer, or whose answer is null, is a question to
predict. Other entries are left out, and so are empty lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any

from torchbayes.checks import as_file, check_kind, is_whole, seen

_TEXTS, _ANSWERS = ("question", "prompt"), ("answer", "label")


@dataclass(frozen=True)
class Question:
    """A question with choices; ValueError says what is wrong with its text, choices or answer.

    Attributes:
        text: what is asked.
        choices: the possible answers, two to 26 different texts.
        answer: the number of the right one, from 0; None if it is not known.
        line: where it stood in its file, from 1, for messages; None if in no file.
    """

    text: str
    choices: tuple[str, ...]
    answer: int | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise ValueError(f"{self.where}: the question must be text that is not empty; got {seen(self.text)}.")
        object.__setattr__(self, "choices", _checked(self.choices, self.where))
        if self.answer is not None:
            object.__setattr__(self, "answer", _number(self.answer, self.choices, self.where))

    @property
    def where(self) -> str:
        """Where the question stood, for the begin of a message."""
        return _where(self.line)


def read_questions(path: str | Path) -> list[Question]:
    """Read questions from a file with one JSON object a line, in UTF-8; the format is described above.

    Args:
        path: the file.

    Returns:
        The questions, in the order of the file.

    Raises:
        FileNotFoundError: if there is no such file; IsADirectoryError if it is a folder.
        ValueError: if it holds no question, or a line is no JSON object, lacks an entry, or has an answer that is none
            of its choices, choices that are empty or equal, or fewer than two. The message has the number of the line.
    """
    path = as_file(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # `splitlines` would split inside of texts as well
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8: {error}. Save it in that encoding.") from error
    try:
        questions = [*_questions(lines)]
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from error
    if not questions:
        raise ValueError(f"{path} holds no questions. Write one JSON object a line, with a question and its choices.")
    return questions


def multiple_choice(question: Question) -> str:
    r"""Return the prompt of a question: an instruction, the question, its choices with letters, and "Answer:".

        Answer this multiple-choice question with the letter of one choice.

        Which of these is a mammal?

        Choices:
        A) Salmon
        B) Whale

        Answer:

    Args:
        question: the question.

    Returns:
        The prompt, without a line break or blank at its end.

    Raises:
        TypeError: if it is not a `Question`.
    """
    check_kind(Question, "a Question", question=question)
    choices = "\n".join(f"{letter}) {text}" for letter, text in zip(LETTERS, question.choices, strict=False))
    instruction = "Answer this multiple-choice question with the letter of one choice."
    return f"{instruction}\n\n{question.text}\n\nChoices:\n{choices}\n\nAnswer:"


def _where(line: int | None) -> str:
    return "a question" if line is None else f"line {line}"


def _questions(lines: list[str]) -> Iterator[Question]:
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield _question(_object(text, number), number)


def _object(text: str, line: int) -> Mapping[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        said = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"line {line}: it is no JSON: {said}. Write one whole object on each line.") from error
    if not isinstance(record, dict):
        raise ValueError(f"line {line}: it must be a JSON object, in braces; got {seen(record)}.")
    return record


def _question(entries: Mapping[str, Any], line: int) -> Question:
    where, texts = _where(line), [name for name in _TEXTS if entries.get(name) is not None]
    if len(texts) != 1:
        had = "both" if texts else f"{', '.join(map(repr, entries)) or 'nothing'}"
        raise ValueError(f"{where}: it must have a 'question' or a 'prompt', one of them; it has {had}.")
    if "choices" not in entries:
        raise ValueError(f"{where}: 'choices' are missing; it has {', '.join(map(repr, entries))}.")
    question = Question(entries[texts[0]], entries["choices"], None, line)
    given = {name: entries[name] for name in _ANSWERS if entries.get(name) is not None}
    numbers = {name: _number(value, question.choices, where) for name, value in given.items()}
    if len({*numbers.values()}) > 1:
        raise ValueError(
            f"{where}: 'answer' and 'label' are different choices: {given['answer']!r}, {given['label']!r}."
        )
    return Question(question.text, question.choices, next(iter(numbers.values()), None), line)


def _checked(choices: Any, where: str) -> tuple[str, ...]:
    """Return choices as a tuple of texts, or raise ValueError."""
    if not isinstance(choices, list | tuple) or not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f"{where}: the choices must be a list of texts; got {seen(choices)}. Put numbers in quotes.")
    if not 2 <= len(choices) <= len(LETTERS):
        raise ValueError(f"{where}: there must be 2 to {len(LETTERS)} choices; got {len(choices)}.")
    plain = [choice.strip() for choice in choices]
    for number, choice in enumerate(plain):
        if not choice:
            raise ValueError(f"{where}: choice {LETTERS[number]} is empty.")
        if choice in plain[:number]:
            first = LETTERS[plain.index(choice)]
            raise ValueError(f"{where}: choices {first} and {LETTERS[number]} are the same: {seen(choice)}.")
    return tuple(choices)


def _number(answer: Any, choices: tuple[str, ...], where: str) -> int:
    """Return the number of the choice that an answer is: a number from 0, a text or a letter; else raise ValueError."""
    last = LETTERS[len(choices) - 1]
    if is_whole(answer):
        if 0 <= answer < len(choices):
            return int(answer)
        raise ValueError(
            f"{where}: the answer {answer} is none of the {len(choices)} choices, whose numbers are 0 to "
            f"{len(choices) - 1}. Count from 0, or give the letter, A to {last}."
        )
    plain, text = [choice.strip() for choice in choices], answer.strip() if isinstance(answer, str) else ""
    meant = {plain.index(text)} if text in plain else set[int]()
    if len(text) == 1 and "A" <= text.upper() <= last:
        meant.add(LETTERS.index(text.upper()))
    if len(meant) == 1:
        return meant.pop()
    if meant:
        raise ValueError(
            f"{where}: the answer {text!r} is the text of one choice and the letter of another. Count from 0."
        )
    raise ValueError(
        f"{where}: the answer {seen(answer)} is none of the {len(choices)} choices. Give its letter, A to {last}, its "
        f"text, or its number from 0."
    )

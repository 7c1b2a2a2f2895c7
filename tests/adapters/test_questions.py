"""Questions: what a file may hold, and what is said of one that is wrong."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from torchbayes.adapters import Question, multiple_choice, read_questions

RIGHT = {"question": "what", "choices": ["red", "blue", "green"], "answer": 1}


def written(path: Path, *lines: Any) -> Path:
    """A file of these objects, or of texts as they are."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_every_way_to_write_the_same_question(tmp_path: Path):
    choices = RIGHT["choices"]
    lines = [
        RIGHT,
        {"prompt": "what", "choices": choices, "label": 1},
        {"question": "what", "choices": choices, "answer": "B", "id": 7, "prompt": None},
        {"question": "what", "choices": choices, "answer": " b "},
        "",
        {"question": "what", "choices": choices, "answer": "blue", "label": 1},
    ]
    actual = read_questions(written(tmp_path / "questions.jsonl", *lines, "\n"))
    assert [question.line for question in actual] == [1, 2, 3, 4, 6]
    assert {(question.text, question.choices, question.answer) for question in actual} == {
        ("what", ("red", "blue", "green"), 1)
    }


def test_questions_to_predict_have_no_answer(tmp_path: Path):
    without = {key: value for key, value in RIGHT.items() if key != "answer"}
    actual = read_questions(written(tmp_path / "questions.jsonl", without, {**without, "answer": None}))
    assert [question.answer for question in actual] == [None, None]


def test_a_text_may_hold_any_sign(tmp_path: Path):
    question = {**RIGHT, "question": "what\u2028is \x85 this?\n"}
    path = tmp_path / "questions.jsonl"
    path.write_text("\ufeff" + json.dumps(question, ensure_ascii=False) + "\r\n", encoding="utf-8", newline="")
    assert read_questions(path)[0].text == question["question"]


def test_a_letter_that_is_a_text_as_well(tmp_path: Path):
    """One choice says which; two choices say nothing."""
    same = {**RIGHT, "choices": ["A", "B"], "answer": "B"}
    assert read_questions(written(tmp_path / "same.jsonl", same))[0].answer == 1
    other = {**RIGHT, "choices": ["B", "A"], "answer": "B"}
    with pytest.raises(ValueError, match="line 1: the answer 'B' is the text of one choice and the letter of another"):
        read_questions(written(tmp_path / "other.jsonl", other))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            '{"question": "what", ',
            "line 2: it is no JSON: Expecting .* at column 22. Write one whole object on each line",
        ),
        ("[1, 2]", r"line 2: it must be a JSON object, in braces; got \[1, 2\]"),
        ({"choices": ["a", "b"]}, "line 2: it must have a 'question' or a 'prompt', one of them; it has 'choices'"),
        ({**RIGHT, "prompt": "which"}, "line 2: it must have a 'question' or a 'prompt', one of them; it has both"),
        ({}, "line 2: it must have .* it has nothing"),
        ({**RIGHT, "question": " "}, "line 2: the question must be text that is not empty; got ' '"),
        ({**RIGHT, "question": 3}, "line 2: the question must be text that is not empty; got 3"),
        ({"question": "what"}, "line 2: 'choices' are missing; it has 'question'"),
        ({**RIGHT, "choices": []}, "line 2: there must be 2 to 26 choices; got 0"),
        ({**RIGHT, "choices": ["a"]}, "line 2: there must be 2 to 26 choices; got 1"),
        ({**RIGHT, "choices": [str(n) for n in range(27)]}, "line 2: there must be 2 to 26 choices; got 27"),
        ({**RIGHT, "choices": [1, 2]}, r"line 2: the choices must be a list of texts; got \[1, 2\]. Put numbers in"),
        ({**RIGHT, "choices": {"text": ["a"]}}, "line 2: the choices must be a list of texts"),
        ({**RIGHT, "choices": ["a", " "]}, "line 2: choice B is empty"),
        ({**RIGHT, "choices": ["a", "b", "b "]}, "line 2: choices B and C are the same: 'b'"),
        (
            {**RIGHT, "answer": 3},
            "line 2: the answer 3 is none of the 3 choices, whose numbers are 0 to 2. Count from 0",
        ),
        ({**RIGHT, "answer": -1}, "line 2: the answer -1 is none of the 3 choices"),
        ({**RIGHT, "answer": "D"}, "line 2: the answer 'D' is none of the 3 choices. Give its letter, A to C"),
        ({**RIGHT, "answer": ""}, "line 2: the answer '' is none of the 3 choices"),
        ({**RIGHT, "answer": True}, "line 2: the answer True is none of the 3 choices"),
        ({**RIGHT, "answer": [1]}, r"line 2: the answer \[1\] is none of the 3 choices"),
        ({**RIGHT, "label": 2}, "line 2: 'answer' and 'label' are different choices: 1, 2"),
    ],
)
def test_a_wrong_line_is_said_with_its_number(wrong: Any, message: str, tmp_path: Path):
    path = written(tmp_path / "questions.jsonl", RIGHT, wrong)
    with pytest.raises(ValueError, match=rf"questions.jsonl, {message}"):
        read_questions(path)


def test_files_without_questions(tmp_path: Path):
    with pytest.raises(ValueError, match=r"empty.jsonl holds no questions. Write one JSON object a line"):
        read_questions(written(tmp_path / "empty.jsonl", "\n \n"))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_questions(tmp_path / "none.jsonl")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_questions(tmp_path)
    path = tmp_path / "bytes.jsonl"
    path.write_bytes(b'{"question": "\xff"}')
    with pytest.raises(ValueError, match=r"bytes.jsonl must be text in UTF-8"):
        read_questions(path)


def test_the_prompt_is_that_of_its_docstring():
    question = Question("Which of these is a mammal?", ("Salmon", "Whale"), 1)
    lines = (inspect.getdoc(multiple_choice) or "").split("\n\nArgs:")[0].split("\n")[2:]
    assert multiple_choice(question) == "\n".join(line.removeprefix("    ") for line in lines).strip("\n")


def test_a_question_of_ones_own_is_checked_too():
    with pytest.raises(ValueError, match="a question: choices A and B are the same"):
        Question("what", ("a", "a"))
    with pytest.raises(ValueError, match="a question: the answer 2 is none of the 2 choices"):
        Question("what", ("a", "b"), 2)
    assert Question("what", ["a", "b"]).choices == ("a", "b")  # type: ignore[arg-type]

"""What a posterior says to questions, one JSON object for each, and how a file of them is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any

from torchbayes.adapters import Question, read_questions
from torchbayes.checks import check_kind, optional
from torchbayes.lora.run import Run
from torchbayes.lora.scores import source_of
from torchbayes.posteriors.files import write_whole
from torchbayes.predictive.predict import predict as predict_rows


def predict(
    run: Run, questions: str | PathLike[str] | Sequence[Question], *, method: str | None = None
) -> list[dict[str, Any]]:
    """Answer questions with the model average of a run.

    Args:
        run: of `fit` or `load`.
        questions: a file as `read_questions` reads it, or questions. They need no answers, and these are not looked at.
        method: whose posterior; of the only one if None.

    Returns:
        An object for each question, JSON-serialisable: `question`, `choices`, `answer` (the most probable letter),
        `probabilities` of the choices, `entropy` of these in nats, and `mutual_information`: how much of it is due to
        not knowing the weights.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if there is no such method, no question, or one with more choices than the run has answers.
        TypeError: if an argument is of another kind.
    """
    check_kind(Run, "a run, as `fit` gives it", run=run)
    optional(check_kind, str, "a name", method=method)
    check_kind((str, PathLike, list, tuple), "a file or a list of Question", questions=questions)
    asked = read_questions(Path(questions)) if isinstance(questions, str | PathLike) else [*questions]
    settings = run.setup.settings
    source = source_of(run.posterior(method), settings.draws, seed=settings.seed)
    average = predict_rows(source, run.setup.asked.encoding.inputs(asked), chunk_size=settings.chunk_size)
    columns = (average.probs, average.entropy, average.mutual_information)
    return [_object(*row) for row in zip(asked, *(column.tolist() for column in columns), strict=True)]


def _object(question: Question, probs: list[float], entropy: float, disagreement: float) -> dict[str, Any]:
    probs = probs[: len(question.choices)]
    return {
        "question": question.text,
        "choices": list(question.choices),
        "answer": LETTERS[probs.index(max(probs))],
        "probabilities": probs,
        "entropy": entropy,
        "mutual_information": disagreement,
    }


def write(path: str | Path, answers: Sequence[Mapping[str, Any]]) -> Path:
    """Write answers as lines of JSON, completely or not at all, and return the path."""
    return write_whole(path, "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in answers).encode())

"""The page of a run: numbers, pictures and the questions that the average is least sure about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from string import ascii_uppercase as LETTERS

from torchbayes import metrics
from torchbayes.adapters.questions import Question
from torchbayes.lora.acquire import Study
from torchbayes.lora.methods import METHODS
from torchbayes.lora.run import Run
from torchbayes.lora.scores import BASE, Score, interval_table, right_of, table
from torchbayes.lora.setup import Setup, words
from torchbayes.report import Picture, Table, acquisition, figures, write_report
from torchbayes.report.evaluation import class_rows
from torchbayes.report.html import save_pictures
from torchbayes.report.live import Judged, texts
from torchbayes.report.style import one_page

PAGE = "report.html"
_DOUBTFUL, _LETTERS = 12, 160  # questions of the table, and letters of a text in it


@one_page()
def write(run: Run, scores: Mapping[str, Score]) -> Path:
    """Write the page into the directory of a run and return its path."""
    if run.directory is None:
        raise ValueError("the run has no directory for its page. Fit it with `directory`.")
    methods = [METHODS[name] for name in run.posteriors]
    lines = ". ".join(f"{entry.label}: {entry.line}" for entry in methods)
    return write_report(
        run.directory / PAGE,
        title=f"Adapters of {Path(run.setup.base.name).name}: which answers are sure?",
        lead=f"{words(run.setup)}\n\n{lines}.",
        tables=[table(scores)],
        figures=save_pictures(run.directory, _pictures(run, scores)),
        folded=[interval_table(scores), doubtful(run, scores)],
        settings=_settings(run.setup),
    )


def _pictures(run: Run, scores: Mapping[str, Score]) -> dict[str, Picture]:
    fitted = {each.label: each for name, each in scores.items() if name != BASE}
    count = len(next(iter(fitted.values())).evaluation.log_prob)
    bins = {
        label: metrics.reliability(each.evaluation.probs, each.evaluation.labels)  # type: ignore[arg-type]
        for label, each in fitted.items()
    }
    kept = {
        label: metrics.selective_accuracy(right_of(each.evaluation), each.evaluation.scores.entropy.double())  # type: ignore[union-attr]
        for label, each in fitted.items()
    }
    drawn = _question_by_question(run, fitted) | {
        "reliability": Picture(
            "Reliability on the test questions",
            figures.reliability_diagram(bins, counts=len(bins) == 1),
            f"{count:,} test questions in 15 bins of equal width: where the average says 80 %, is it right in 80 % of "
            f"the cases? Vertical lines are intervals of about 95 %.",
        ),
        "referral": Picture(
            "Accuracy when the least certain are referred",
            figures.referral_curves({label: (each.kept, each.accuracy) for label, each in kept.items()}),
            f"{count:,} test questions. Somebody else answers those of the highest entropy; this is the accuracy on "
            f"the rest. The sooner a curve rises to the left, the better the doubt tells right from wrong.",
        ),
    }
    if all(each.other is not None for each in fitted.values()):
        drawn["other"] = Picture(
            "Doubt about questions of another kind",
            figures.entropy_histograms(
                {
                    label: (each.evaluation.scores.entropy, {"other questions": each.other.entropy})  # type: ignore[union-attr]
                    for label, each in fitted.items()
                },
                run.setup.asked.encoding.classes,
                known="test questions",
            ),
            f"Entropy of the average at {count:,} test questions and at those of {run.setup.settings.other}. They "
            f"should be to the right.",
        )
    return drawn


def _question_by_question(run: Run, fitted: Mapping[str, Score]) -> dict[str, Picture]:
    asked = run.setup.asked
    content = texts(lambda row: _whole(asked.questions.test[row]), "test question")
    judged = {label: Judged(each.evaluation) for label, each in fitted.items()}
    return class_rows(judged, list(LETTERS[: asked.encoding.classes]), None, content=content)


def doubtful(run: Run, scores: Mapping[str, Score]) -> Table:
    """Return the test questions that the first method of a run whose draws differ is least sure about."""
    drawn = [name for name in run.posteriors if METHODS[name].drawn]
    score = scores[drawn[0] if drawn else next(iter(scores))]
    known, probs, labels = score.evaluation.scores, score.evaluation.probs, score.evaluation.labels
    assert known is not None
    assert probs is not None
    assert labels is not None
    rows = known.entropy.argsort(descending=True, stable=True)[:_DOUBTFUL].tolist()
    lines = []
    for row in rows:
        question, best = run.setup.asked.questions.test[row], int(probs[row].argmax())
        told = _choices(question)
        right = int(labels[row])
        numbers = (float(probs[row, best]), float(probs[row, right]))
        spread = (float(known.entropy[row]), float(known.mutual_information[row]))
        lines.append([_short(question.text), _short(told[best]), numbers[0], _short(told[right]), numbers[1], *spread])
    heads = ["question", "most probable", "its probability", "right", "probability of that", "entropy (nats)"]
    return Table(
        [*heads, "of which disagreement"],
        lines,
        f"The test questions that {score.label} is least sure about. Answers to more questions like these would remove "
        f"the disagreement of the drawn adapters, and not the rest.",
        formats={heads[2]: ".1%", heads[4]: ".1%"},
        title="Which questions are uncertain",
    )


def _whole(question: Question) -> str:
    return "\n".join([question.text, *_choices(question)])


def _choices(question: Question) -> list[str]:
    return [f"{letter}) {text}" for letter, text in zip(LETTERS, question.choices, strict=False)]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"


def write_rounds(study: Study) -> Path:
    """Write the page of a study in active learning into its directory and return its path."""
    if study.directory is None:
        raise ValueError("the study has no directory for its page. Run it with `directory`.")
    return acquisition.write_rounds(
        study.directory,
        study.rounds,
        title=f"Active learning with {Path(study.setup.base.name).name}",
        lead=words(study.setup),
        row_label="questions",
        caption=f"{METHODS[study.method].label}. One seed: small differences may be chance.",
        settings=_settings(study.setup),
    )


def _settings(setup: Setup) -> dict[str, object]:
    return {**asdict(setup.settings), "targets": list(setup.settings.targets)}

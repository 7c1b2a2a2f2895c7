"""What posteriors over adapters are worth: metrics of each method on the test questions, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import torchbayes.metrics as measures
from torchbayes.assess.evaluate import Evaluation, Scores, detection, evaluate, uncertainty
from torchbayes.checks import check_kind
from torchbayes.comparison.certainty import Certainty, Further, certainties, resampled_detection
from torchbayes.lora.learned import source_of
from torchbayes.lora.methods import METHODS
from torchbayes.lora.run import MODE, Run
from torchbayes.metrics.scoring import hits
from torchbayes.posteriors import Posterior
from torchbayes.posteriors.files import write_described
from torchbayes.posteriors.problems import naming
from torchbayes.report import Table

BASE = "base"
FILE = "scores.json"
KEPT = 0.8  # share of questions on which selective accuracy is told
_COLUMNS = {
    "accuracy": ("accuracy", ".1%", "high"),
    "nll": ("NLL", ".3f", "low"),
    "ece": ("ECE", ".3f", "low"),
    "brier": ("Brier", ".3f", "low"),
    "selective_accuracy": (f"accuracy, surest {KEPT:.0%}".replace("%", " %"), ".1%", "high"),
    "auroc": ("AUROC", ".3f", "high"),
}


@dataclass(frozen=True)
class Score:
    """How good a method is on the test questions of a run.

    Attributes:
        label: the method in tables.
        evaluation: on the test questions.
        other: uncertainty at the questions of another kind; None without such.
        certainty: intervals, and differences from the best method on the same questions.
    """

    label: str
    evaluation: Evaluation
    other: Scores | None
    certainty: Certainty

    @property
    def metrics(self) -> dict[str, float]:
        """All numbers by name, those on the other questions included."""
        return _values(self.evaluation, self.other)


def score(run: Run) -> dict[str, Score]:
    """Evaluate every method of a run, and the base without an adapter, on its test questions.

    The trained adapter at which methods began is among them, so that one sees what a method adds.

    Where there are questions of another kind, AUROC says how well the entropy tells them from the test questions.

    Args:
        run: of `fit`, or of `load` if the files of questions are where they were.

    Returns:
        The scores by name of method, that of the base last, as `base`.

    Raises:
        TypeError: if it is no run.
    """
    check_kind(Run, "a run, as `fit` gives it", run=run)
    began = {} if run.start is None else {MODE: run.start}
    sources = {**began, **run.posteriors, BASE: run.setup.without_adapter()}
    pairs = dict[str, tuple[Evaluation, Scores | None]]()
    for name, posterior in sources.items():
        with naming(label_of(name)):
            pairs[name] = _judged(run, posterior)
    seed = run.setup.settings.seed
    further = {name: _further(*pair, seed=seed) for name, pair in pairs.items()}
    fitted = {name: pair[0] for name, pair in pairs.items() if name != BASE}
    sure = certainties(fitted, seed=seed, further={name: further[name] for name in fitted})
    alone = certainties({BASE: pairs[BASE][0]}, seed=seed, further={BASE: further[BASE]})
    sure |= {BASE: Certainty(alone[BASE].intervals)}  # it is no method, and takes part in no contest
    return {name: Score(label_of(name), *pair, sure[name]) for name, pair in pairs.items()}


def label_of(name: str) -> str:
    """Return the name of a method in tables."""
    return "base alone" if name == BASE else METHODS[name].label


def _judged(run: Run, posterior: Posterior) -> tuple[Evaluation, Scores | None]:
    settings = run.setup.settings
    source = source_of(posterior, settings.draws, seed=settings.seed)
    evaluation = evaluate(source, run.setup.asked.test, chunk_size=settings.chunk_size)
    other = run.setup.asked.other
    return evaluation, None if other is None else uncertainty(source, other, chunk_size=settings.chunk_size)


def _values(evaluation: Evaluation, other: Scores | None) -> dict[str, float]:
    values = {name: value for name, value in evaluation.metrics.items() if name != "ece_mass"}
    assert evaluation.scores is not None
    selection = measures.selective_accuracy(right_of(evaluation), evaluation.scores.entropy.double())
    values["selective_accuracy"] = float(selection.accuracy[int((selection.kept >= KEPT - 1e-9).nonzero()[0])])
    if other is not None:
        areas = detection(evaluation.scores, other)
        values |= {"auroc": areas["auroc_entropy"]} if "auroc_entropy" in areas else {}
    return values


def _further(evaluation: Evaluation, other: Scores | None, *, seed: int) -> Further:
    """Return the numbers on the other questions with their resamples."""
    values = {name: value for name, value in _values(evaluation, other).items() if name == "auroc"}
    if not values or other is None or min(len(other.entropy), len(evaluation.log_prob)) < 2:
        return Further({}, {})
    assert evaluation.scores is not None
    drawn = resampled_detection(evaluation.scores.entropy, {"other": other.entropy}, seed=seed)
    return Further(values, {"auroc": drawn})


def right_of(evaluation: Evaluation) -> Tensor:
    """Return 1 for questions that are answered right and 0 for others, (N,), float64."""
    assert evaluation.probs is not None
    assert evaluation.labels is not None
    return hits(evaluation.probs, evaluation.labels).double()


def table(scores: Mapping[str, Score]) -> Table:
    """Return the numbers of all methods, the best of each column marked, and those that may be as good."""
    shown = {name: column for name, column in _COLUMNS.items() if any(name in s.metrics for s in scores.values())}
    rows = [[each.label, *(each.metrics.get(name) for name in shown)] for each in scores.values()]
    fitted = [each for name, each in scores.items() if name != BASE]
    return Table(
        ["method", *(head for head, _, _ in shown.values())],
        rows,
        _caption(scores),
        better={head: better for head, _, better in shown.values()},  # type: ignore[misc]
        formats={head: form for head, form, _ in shown.values()},
        ties={
            head: [row for row, each in enumerate(fitted) if each.certainty.is_best(name)]
            for name, (head, _, _) in shown.items()
        },
        beside=int(BASE in scores),
    )


def interval_table(scores: Mapping[str, Score]) -> Table:
    """Return the 95 % intervals of the numbers of all methods."""
    known = [name for name in _COLUMNS if all(name in each.certainty.intervals for each in scores.values())]

    def cell(each: Score, name: str) -> str:
        form, (low, high) = _COLUMNS[name][1], each.certainty.intervals[name]
        return f"{low:{form}} to {high:{form}}".replace("%", " %")

    return Table(
        ["method", *(_COLUMNS[name][0] for name in known)],
        [[each.label, *(cell(each, name) for name in known)] for each in scores.values()],
        "95 % intervals over 1,000 resamples of the questions, by the Bayesian bootstrap. They say nothing of what "
        "another seed of the training would give.",
        title="How sure the numbers are",
    )


def write(scores: Mapping[str, Score], run: Run) -> None:
    """Write the numbers into the directory of a run."""
    if run.directory is not None:
        write_described(run.directory / FILE, {"scores": numbers(scores)})


def numbers(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return every number, JSON-serialisable."""
    return {name: {**each.metrics, **each.certainty.numbers()} for name, each in scores.items()}


def _caption(scores: Mapping[str, Score]) -> str:
    first = next(iter(scores.values()))
    count, aside = len(first.evaluation.log_prob), first.other
    text = (
        f"{count:,} test questions. NLL: nats per question. ECE: 15 bins of equal width. Accuracy of the surest: when "
        f"the questions of the highest entropy are left to somebody else."
    )
    if aside is not None:
        text += f" AUROC: how well the entropy tells {len(aside.entropy):,} other questions from these."
    return f"{text} Base alone: the base answers without an adapter."

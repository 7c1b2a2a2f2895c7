"""Pictures and tables of the test rows of a classifier or a regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes import metrics
from torchbayes.assess.columns.doubt import most_uncertain, reasons
from torchbayes.assess.columns.table import TablePredictor
from torchbayes.assess.evaluate import Evaluation
from torchbayes.assess.intervals import Numbers
from torchbayes.data import Data
from torchbayes.data.base import Standardise
from torchbayes.metrics.scoring import hits
from torchbayes.report import figures, live
from torchbayes.report.columns import WHY
from torchbayes.report.html import Picture
from torchbayes.report.live import Content, Judged
from torchbayes.report.style import told
from torchbayes.report.tables import Table

CLASSES = 20  # most classes for a drawn confusion matrix
CONFUSIONS = 15  # rows of the table that replaces it
IMAGES = 12  # how many of those with the highest entropy are shown
_SAME = 1.02  # standard deviations count as equal below this ratio
_RESIDUALS = (
    "Where the mean of a group is far from 0, the fit has missed a shape; the grey band, two predicted standard "
    "deviations, should widen where the points scatter more."
)


class Section(NamedTuple):
    """A part of a page."""

    tables: list[Table]
    pictures: dict[str, Picture]  # file name without ending -> picture
    remarks: list[str]  # sentences, such as why a picture is missing


def classification(label: str, data: Data, evaluation: Evaluation, *, table: TablePredictor | None = None) -> Section:
    """Return the section on how good a classifier's probabilities are, and where it errs.

    `table` says why rows are uncertain, where these are the test rows of one.
    """
    probs, labels, scores = evaluation.probs, _hard(evaluation.labels), evaluation.scores
    if probs is None or labels is None or scores is None:
        return Section([], {}, ["The targets are no class labels, so there are no pictures of how often it is right."])
    correct = hits(probs, labels)
    drawn = {"reliability": _reliability(label, evaluation, probs, labels)}
    if not labels.is_floating_point():
        drawn["entropy"] = _entropy(label, scores.entropy, correct, probs.shape[-1])
    kept = metrics.selective_accuracy(correct, scores.entropy.double(), weights_B=evaluation.label_weights)
    drawn["referral"] = Picture(
        "Accuracy when the least certain are referred",
        figures.referral_curves({label: (kept.kept, kept.accuracy)}),
        f"{label} on {len(probs):,} test rows. Somebody else decides on the rows of the highest entropy; this is the "
        "accuracy on the rest. The sooner the curve rises to the left, the better its doubt tells right from wrong.",
        alt=f"Accuracy of {label} against the share of rows kept, from {told(float(kept.accuracy[-1]), 'accuracy')} on "
        f"all rows.",
    )
    if labels.is_floating_point():
        return Section([], drawn, ["The labels are soft, so there is no table of confusions."])
    tables, more = _errors(label, data, evaluation, table=table, probs=probs, labels=labels)
    return Section(tables, drawn | more, [])


def class_rows(
    methods: Mapping[str, Judged], names: Sequence[str], inputs: Tensor | None, *, content: Content
) -> dict[str, Picture]:
    """Return the picture of classified rows, by file name; empty where probabilities are not of rows of the inputs.

    Arguments are those of `live.class_rows`.
    """
    drawn = live.class_rows(methods, names, inputs, content=content)
    if drawn is None:
        return {}
    columns = {label: live.class_columns(each.evaluation, inputs) for label, each in methods.items()}
    split = live.disagree(methods.values())
    text = (
        "To the right: noise, the mean entropy of the drawn functions, which more data would leave. Upwards: their "
        "disagreement (mutual information), which more data would remove. Together they are the entropy of the average."
        if split
        else "To the right: the probability of the predicted class. Upwards: that of the true class, which is the same "
        "where the prediction is right."
    )
    return {
        "rows": Picture(
            "Row by row: noise and disagreement" if split else "Row by row: confidence and truth",
            _scatter(columns, drawn),
            f"{len(next(iter(methods.values())).evaluation.log_prob):,} {content.row}s. {text}",
            alt=f"A point for each row. {_counted(columns, 'predictions are wrong')}",
            live=drawn,
        )
    }


def number_rows(methods: Mapping[str, Judged], data: Data, inputs: Tensor, *, content: Content) -> dict[str, Picture]:
    """Return the picture of rows of one number, by file name; empty where there are several targets, or no means."""
    drawn = live.number_rows(methods, data, inputs, content=content)
    if drawn is None:
        return {}
    columns = {label: live.number_columns(each.numbers, data) for label, each in methods.items()}
    return {
        "rows": Picture(
            "Row by row: predicted and observed",
            _scatter(columns, drawn),
            f"{len(inputs):,} {content.row}s, with central 95 % intervals around the predictive means: one in twenty "
            f"should lie outside its own. In {data.target_unit}.",
            alt=f"A point for each row. {_counted(columns, 'targets lie outside their intervals')}",
            live=drawn,
        )
    }


def _counted(columns: Mapping[str, Any], rows: str) -> str:
    """Return sentences on how many rows are marked under each method."""
    counts = {label: f"{int(each['marked'].sum()):,} of {len(each['marked']):,}" for label, each in columns.items()}
    return " ".join(f"{label}: {count} {rows}." for label, count in counts.items())


def _scatter(columns: Mapping[str, Any], drawn: live.Live) -> Any:
    """Return a figure of the first view of what a script draws."""
    (view, *_), measures = drawn["views"], drawn["measures"]
    x, y = view["x"], view["y"]
    return figures.row_scatter(
        {label: (each[x], each[y], each["marked"]) for label, each in columns.items()},
        x=measures[x]["label"], y=measures[y]["label"], marks=tuple(drawn["signs"]), level=view.get("level", False),
    )  # fmt: skip


def class_names(data: Data, probs: Tensor) -> list[str]:
    """Return the names of the classes of probabilities (N, K), which are numbers where the data name none."""
    classes = probs.shape[-1]
    return list(data.classes) if len(data.classes) == classes else [str(k) for k in range(classes)]


def _hard(labels: Tensor | None) -> Tensor | None:
    """Return soft labels that are all one-hot, such as 0.0 and 1.0 of two classes, as classes; others unchanged."""
    if labels is None or not labels.is_floating_point() or not (labels.amax(-1) == 1).all():
        return labels
    return labels.argmax(-1)


def _reliability(label: str, evaluation: Evaluation, probs: Tensor, labels: Tensor) -> Picture:
    bins = metrics.reliability(probs, labels, weights_B=evaluation.label_weights)
    return Picture(
        "Reliability on the test set",
        figures.reliability_diagram({label: bins}, counts=True),
        f"{label} on {len(probs):,} test rows in 15 bins of equal width: where it says 80 %, is it right in 80 % of "
        f"the cases? Vertical lines are intervals of about 95 %. Below: how many rows each bin holds.",
        alt=f"Accuracy of {label} against its confidence; expected calibration error {float(bins.ece):.3f}.",
    )


def _entropy(label: str, entropy: Tensor, correct: Tensor, classes: int) -> Picture:
    right, wrong = entropy[correct > 0], entropy[correct == 0]
    known, foreign = ("right predictions", {"wrong predictions": wrong}) if len(right) else ("wrong predictions", {})
    image = figures.entropy_histograms(
        {label: (right if len(right) else wrong, foreign if len(wrong) else {})}, classes, known=known
    )
    text = f"{len(right):,} right and {len(wrong):,} wrong predictions, each group as shares of its own."
    return Picture(
        "Doubt about right and wrong predictions",
        image,
        f"{text} Drawn is the predictive entropy of {label}. Wrong predictions should be met with doubt: to the right, "
        f"where right ones are rare.",
        alt=f"Histograms of the predictive entropy of {label} on {text}",
    )


def _errors(
    label: str, data: Data, evaluation: Evaluation, *, table: TablePredictor | None, probs: Tensor, labels: Tensor
) -> tuple[list[Table], dict[str, Picture]]:
    """Return which classes are confused, and which inputs are the least certain."""
    tables, drawn = [], {}
    classes, names = probs.shape[-1], class_names(data, probs)
    counts = metrics.confusion(probs, labels, weights_B=evaluation.label_weights)
    if classes <= CLASSES:
        drawn["confusion"] = Picture(
            "Which classes are confused",
            figures.confusion_matrix(counts, names),
            f"{len(probs):,} test rows by true class and by the class that {label} finds most probable. Off the "
            f"diagonal are the errors.",
            alt=f"Matrix of counts, true class by predicted class: {float(counts.diagonal().sum()):,.0f} of "
            f"{float(counts.sum()):,.0f} on the diagonal.",
        )
    elif (confused := confusions_table(counts, names)) is not None:
        tables.append(confused)
    if evaluation.scores is None or len(probs) != len(data.test.inputs):
        return tables, drawn  # rows are not those of the test set: places of a sequence, or some are left out
    scores = evaluation.scores
    doubtful = scores.entropy.argsort(descending=True, stable=True)
    if not data.is_image:
        disagreement = scores.mutual_information.double()
        rows = most_uncertain(scores.entropy.double() - disagreement, disagreement)
        why = None if table is None else reasons(table, rows)
        return [*tables, doubtful_table(rows, probs, labels, names=names, disagreement=disagreement, why=why)], drawn
    shown = doubtful[:IMAGES]
    images = data.standardise.inverse(data.test.inputs[shown].cpu()).clamp(0, 1)
    drawn["uncertain_images"] = Picture(
        "The test images it is least sure about",
        figures.uncertain_images(images, {label: probs[shown]}, names, targets=labels[shown], count=IMAGES),
        f"Of the {len(probs):,} test images those at which the entropy of the average of {label} is highest, the "
        f"highest first, each with the predictive probabilities beside it. Rows of the test set, from 0: "
        f"{', '.join(map(str, shown.tolist()))}.",
        alt=f"{len(shown)} images with bars of class probabilities by {label}; the true class is bold.",
    )
    return tables, drawn


def confusions_table(counts: Tensor, names: list[str]) -> Table | None:
    """Return the most frequent confusions of counts (K, K), true by predicted class; None if there are none."""
    wrong, size = counts.clone().fill_diagonal_(0), counts.sum(1)
    order = wrong.flatten().argsort(descending=True, stable=True)[:CONFUSIONS].tolist()
    pairs = [divmod(index, len(names)) for index in order if wrong.flatten()[index] > 0]
    if not pairs:
        return None
    rows = [[names[t], names[p], float(wrong[t, p]), float(wrong[t, p] / size[t])] for t, p in pairs]
    return Table(
        ["true class", "predicted", "rows", "share of the true class"],
        rows,
        f"The most frequent confusions among {len(names)} classes.",
        formats={"rows": ",.0f", "share of the true class": ".1%"},
    )


def doubtful_table(
    rows: Tensor, probs: Tensor, labels: Tensor, *, names: list[str], disagreement: Tensor, why: list[str] | None = None
) -> Table:
    """Return a table of the given test rows, from what is known of all test rows.

    These are probabilities (N, K), true classes (N,), and the disagreement of the draws (N,) in nats. `why` says of
    each of the given rows which columns make it uncertain.
    """
    entropy = metrics.entropy(probs)
    predicted = probs.argmax(-1)
    lines = [
        [
            str(row), names[int(labels[row])], names[int(predicted[row])], float(probs[row, predicted[row]]),
            float(probs[row, labels[row]]), float(entropy[row]), float(disagreement[row]),
        ]
        for row in rows.tolist()
    ]  # fmt: skip
    heads = ["test row", "true class", "predicted class", "its probability", "that of the true class", "entropy (nats)"]
    heads += ["of which disagreement"]
    caption = (
        "The test rows that the average is least sure about, by their entropy, and those about which the drawn "
        "networks disagree most; numbered from 0. More rows like these would remove the disagreement, and not the rest."
    )
    if why is not None:
        heads, lines = (
            [*heads, "columns that make it so"],
            [[*line, each] for line, each in zip(lines, why, strict=True)],
        )
        caption += " " + WHY.format(quantity="the entropy")
    formats = {heads[3]: ".1%", heads[4]: ".1%"}
    return Table(heads, lines, caption, formats=formats, title="Which rows are uncertain, and why" if why else "")


def regression(label: str, data: Data, numbers: Numbers) -> Section:
    """Return the section on how good predicted numbers and their intervals are, in raw units."""
    units = data.target_standardise or Standardise.identity()
    observed, mean, low, high = (
        units.inverse(values).flatten() for values in (numbers.targets, numbers.mean, numbers.low, numbers.high)
    )
    scale = (numbers.scale * units.scale).flatten()
    drawn, remarks = {}, []
    if mean.isfinite().all():
        drawn["predicted"] = Picture(
            "Predicted against observed",
            figures.predicted_observed(label, observed, mean, low=low, high=high, target_label=data.target_label),
            f"{label} on {len(observed):,} test rows, with central 95 % intervals around the predictive means: one "
            f"in twenty should lie outside its own. In {data.target_unit}.",
            alt=f"Observed targets against predictions by {label}, with a line where they are equal.",
        )
    else:
        remarks.append("Under this likelihood targets have no mean, so predictions are not drawn against targets.")
    drawn["coverage"] = _coverage(label, numbers)
    if numbers.is_finite:
        drawn["residuals"] = Picture(
            "Residuals against predictions",
            figures.residuals(label, observed, mean, low=low, high=high, scale=scale, units=data.target_unit),
            f"{label} on {len(observed):,} test targets. {_RESIDUALS}",
        )
    spread = scale.max() / scale.min()
    if not numbers.is_finite or scale.min() <= 0:
        remarks.append("Some predictive variances are 0 or not finite, so errors are not drawn against them.")
    elif spread < _SAME:
        remarks.append(
            f"The predictive standard deviation is the same for all test rows, {float(scale.median()):.4g} (in "
            f"{data.target_unit}), so it does not tell which predictions are the better ones."
        )
    else:
        drawn["errors"] = Picture(
            "Errors against predicted standard deviations",
            figures.errors_by_scale(label, observed - mean, scale, units=data.target_unit),
            f"{label} on {len(observed):,} test targets. If the stated spread is right, errors grow with it: the root "
            "mean square errors of rows of similar spread lie on the line of one standard deviation.",
            alt=f"Errors of {label} against the standard deviations it predicts, with lines of one and two of them.",
        )
    return Section([], drawn, remarks)


def transforms(label: str, evaluation: Evaluation) -> dict[str, Picture]:
    """Return a picture of the probability integral transforms, by file name; empty if there are none."""
    if evaluation.pit is None:
        return {}
    weights = None if evaluation.weights is None else evaluation.weights.view(-1, *[1] * (evaluation.pit.ndim - 1))
    counted = None if weights is None else weights.expand_as(evaluation.pit).flatten()
    picture = Picture(
        "Where targets fall in their predicted distributions",
        figures.pit_histogram(label, evaluation.pit.flatten(), weights=counted),
        f"{label} on {evaluation.pit.numel():,} test targets: F(y), the probability that was predicted for values up "
        "to the target. Uniform if predicted distributions are right as a whole, and not only in their means.",
        alt=f"Histogram of probability integral transforms under {label}, with the level of a uniform one.",
    )
    return {"pit": picture}


def coverage(numbers: Numbers) -> tuple[Tensor, Tensor]:
    """Return levels 0, 0.01, ..., 1 and the share of targets in central intervals of each, float64 (101,) each."""
    levels = torch.linspace(0, 1, 101, dtype=torch.float64)
    reached, weights = numbers.levels.double(), numbers.weights[:, None].expand_as(numbers.levels)
    shares = [metrics.weighted_mean(reached <= level, weights) for level in levels]
    return levels, torch.stack(shares)


def _coverage(label: str, numbers: Numbers) -> Picture:
    are_counts = bool((numbers.targets == numbers.targets.round()).all())
    counts = " Targets are whole numbers, of which intervals hold more than their level says." if are_counts else ""
    return Picture(
        "Coverage of central intervals",
        figures.coverage_curves({label: coverage(numbers)}, numbers.levels.numel()),
        f"{label} on {numbers.levels.numel():,} test targets: how many lie in the central 50 % interval, in the 90 % "
        f"interval? Calibrated ones follow the diagonal.{counts}",
        alt=f"Share of targets in central intervals of {label} against the level of the intervals.",
    )

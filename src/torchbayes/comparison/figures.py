"""The pictures of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes import metrics
from torchbayes.assess.columns.table import predictor_of
from torchbayes.assess.intervals import predicted_numbers
from torchbayes.catalogue.methods import label_of
from torchbayes.catalogue.problem import Setup
from torchbayes.comparison.certainty import LEVEL, at_severity
from torchbayes.comparison.scores import SEVERITIES, Outcome
from torchbayes.comparison.settings import REFERENCE, Comparison
from torchbayes.data import Data
from torchbayes.report import Picture, figures, live
from torchbayes.report.evaluation import class_names, class_rows, number_rows
from torchbayes.report.figures.curves import Steps
from torchbayes.report.live import Judged, content_of
from torchbayes.report.style import told
from torchbayes.report.surfaces import band_over, surface_over
from torchbayes.report.words import listed

_INTERVAL = (
    f"{100 * LEVEL:g} % intervals by the Bayesian bootstrap over rows, which say nothing of what another seed would "
    f"give."
)
_WORST = SEVERITIES[-1]


class _Question(NamedTuple):
    """One panel of the glance: title, axis label, name of the metric, and which way is better."""

    title: str
    measure: str
    metric: str
    better: figures.Better = "low"


_QUESTIONS = (
    _Question("test set", "NLL (nats)", "nll"),
    _Question("calibration", "ECE", "ece"),
    _Question("errors", "RMSE ({unit})", "rmse"),
    _Question("corrupted images", f"NLL at severity {_WORST} (nats)", at_severity("nll", 5)),
    _Question("foreign images", "AUROC (entropy)", "auroc", "high"),
    _Question("closeness", "TV to {to}", "total_variation"),
    _Question("closeness", "W1 to {to}", "wasserstein1"),
)
_MORE = (  # on a page, by choice
    _Question("test set", "accuracy", "accuracy", "high"),
    _Question("test set", "Brier score", "brier"),
    _Question("errors", "MAE ({unit})", "mae"),
    _Question("errors", "CRPS ({unit})", "crps"),
    _Question("closeness", "agreement with {to}", "agreement", "high"),
)


def pictures(setup: Setup, comparison: Comparison, outcomes: Mapping[str, Outcome]) -> dict[str, Picture]:
    """Draw everything that applies, file name without ending -> picture; the glance at all methods is first."""
    data, named = setup.data, {label_of(name): outcome for name, outcome in outcomes.items()}
    functions = {label: outcome.functions for label, outcome in named.items()}
    reference = None if comparison.compared_with is None else label_of(comparison.compared_with)
    drawn: dict[str, Picture] = {}
    if len(outcomes) > 1:
        drawn["glance"] = _glance(data, named, reference)
    drawn |= _rows_of(data, named)
    if data.task == "regression" and data.input_shape == (1,):
        drawn["band"] = band_over(data, functions)
    if data.task == "classification" and data.input_shape == (2,) and data.num_classes == 2:
        drawn["surface"] = surface_over(data, functions)
    shifted = data.is_image and bool(comparison.corruptions)
    if shifted:
        drawn |= _severities(data, named, reference)
    if data.task == "classification":
        drawn["reliability"] = _reliability(data, named)
    if shifted:
        drawn["reliability_corrupted"] = _reliability_corrupted(data, named)
    if data.is_image:
        drawn["entropy"] = _entropy(data, named)
    if reference is not None and len(outcomes) > 1:
        drawn |= _fidelity(data, named, reference)
    if data.is_image:
        drawn["uncertain_images"] = _uncertain(data, named)
    return drawn


def _rows_of(data: Data, named: Mapping[str, Outcome]) -> dict[str, Picture]:
    """Return the picture of the test rows under each method, by file name; empty where they have none."""
    inputs, first = data.test.inputs, next(iter(named.values()))
    table = predictor_of(first.functions, data)
    content = content_of(data, table if table is not None and len(table.rows) == len(inputs) else None)
    if first.clean.probs is not None:
        judged = {label: Judged(o.clean, None, o.functions) for label, o in named.items()}
        return class_rows(judged, class_names(data, first.clean.probs), inputs, content=content)
    judged = {
        label: Judged(o.clean, predicted_numbers(o.functions, tuple(data.test)), o.functions)
        for label, o in named.items()
    }
    return number_rows(judged, data, inputs, content=content)


def glance(
    named: Mapping[str, Outcome],
    reference: str | None = None,
    *,
    unit: str = "units of the target",
    questions: Sequence[_Question] = _QUESTIONS,
) -> list[figures.Dots]:
    """Return the questions that tell methods apart and have numbers, with intervals, for labelled outcomes.

    The reference's own closeness is the floor. `unit` is of the target.
    """
    panels = []
    for question in questions:
        close = question.title == "closeness"
        who = {label: o for label, o in named.items() if not (close and label == reference)}
        numbers = {label: o.number(question.metric) for label, o in who.items()}
        values = {
            label: (float(number), *who[label].certainty.intervals.get(question.metric, (math.nan, math.nan)))
            for label, number in numbers.items()
            if number is not None
        }
        if not values:
            continue
        halves = named[reference].fidelity.halves if close and reference is not None else []
        panels.append(
            figures.Dots(
                question.title,
                question.measure.format(to=_whose(reference), unit=unit),
                values,
                question.better,
                best=[label for label in values if who[label].certainty.is_best(question.metric)],
                floors=[half[question.metric] for half in halves],
            )
        )
    return panels


def _whose(reference: str | None) -> str:
    return "the reference" if reference == REFERENCE else str(reference)


def _glance(data: Data, named: Mapping[str, Outcome], reference: str | None) -> Picture:
    panels = glance(named, reference, unit=data.target_unit)
    meanings = {
        "NLL": "negative log likelihood of the model average",
        "ECE": "expected calibration error in 15 bins, to which resampling adds",
        "AUROC": "how well its entropy tells foreign images from test images",
        "TV": "total variation of class probabilities",
        "W1": f"1-Wasserstein distance of predictive samples, in {data.target_unit}",
    }
    measures = " ".join(panel.measure for panel in panels)
    legend = "; ".join(f"{short}: {text}" for short, text in meanings.items() if short in measures)
    floor = " Line and grey band: another sample of the reference, of as many draws, by its halves."
    first = next(iter(named.values()))
    also = f", {_corruptions(first)}" if first.corrupted else ""
    also += f", and on foreign images ({listed(list(first.foreign))})" if first.foreign else ""
    caption = (
        f"{len(named)} methods on {_rows(data)}{also}. {legend}. Dots: values; lines: {_INTERVAL} Full markers: the "
        f"best of a panel and every method not significantly different from it, by paired differences; hollow: worse."
        f"{floor if any(len(panel.floors) for panel in panels) else ''}"
    )
    extremes = [
        f"{panel.title}, {panel.measure}: {_extremes(panel.numbers, panel.measure, panel.better)}" for panel in panels
    ]
    return Picture(
        "All methods at one glance", figures.ranked_dots(panels, floor="floor of the reference"), caption,
        alt=f"Dots with intervals for each method. {'. '.join(extremes)}.",
        live=live.panels(panels, glance(named, reference, unit=data.target_unit, questions=_MORE)),
    )  # fmt: skip


def _extremes(values: Mapping[str, float], measure: str, better: figures.Better) -> str:
    """Return the best and the worst of some methods by a measure, in words."""
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    if not finite:
        return "no numbers"
    low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    best, worst = (low, high) if better == "low" else (high, low)
    return f"best {best} ({told(finite[best], measure)}), worst {worst} ({told(finite[worst], measure)})"


def _rows(data: Data) -> str:
    return f"the {len(data.test.inputs):,} test rows of {data.name}"


def _corruptions(some: Outcome) -> str:
    """Return a phrase on the corrupted images, to follow the test rows."""
    rows, total = len(next(iter(some.corrupted.values()))[0].log_prob), len(some.clean.log_prob)
    return f"{'each' if rows == total else f'the first {rows:,}'} of them under {len(some.corrupted)} corruptions"


def _panels(data: Data, named: Mapping[str, Outcome], reference: str | None) -> str:
    """Return what is drawn in panels by severity, in words."""
    dashed = f", {reference} dashed" if reference is not None else ""
    return (
        f"Of {_rows(data)}, {_corruptions(next(iter(named.values())))}, mean over these, against their severity from 1 "
        f"to {_WORST}; 0 is not corrupted. Each panel: one method in colour, the others grey{dashed}."
    )


def _severities(data: Data, named: Mapping[str, Outcome], reference: str | None) -> dict[str, Picture]:
    texts = {
        "nll": ("nll", "NLL", "Negative log likelihood under corruption", "The lower a curve stays, the better."),
        "accuracy": ("accuracy", "accuracy", "Accuracy under corruption", "How many images are still recognised."),
        "overconfidence": (
            "confidence",
            "confidence − accuracy",
            "Over-confidence under corruption",
            "Mean confidence (largest probability) less accuracy: above the dotted line a method is surer than it is "
            "right, below it is more cautious than it need be.",
        ),
    }
    drawn = {}
    for metric, (file, label, title, text) in texts.items():
        steps = {name: _steps(metric, o.severity(metric), o) for name, o in named.items()}
        level = 0.0 if metric == "overconfidence" else None
        figure = figures.severity_panels(steps, label, reference=reference, level=level)
        caption = f"{_sentence(label)}. {_panels(data, named, reference)} {text}"
        drawn[f"severity_{file}"] = _by_severity(title, figure, caption, label=label, steps=steps)
    return drawn


def _by_severity(title: str, figure: Any, caption: str, *, label: str, steps: Mapping[str, Steps]) -> Picture:
    """Return a picture of panels by severity."""
    alt = f"{label} by severity, one panel for each method. {_at_worst(steps, label)}"
    return Picture(title, figure, f"{caption} Bands: {_INTERVAL}", alt)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _at_worst(steps: Mapping[str, Steps], label: str) -> str:
    last = {name: float(values[-1]) for name, (values, *_) in steps.items()}
    low, high = min(last, key=last.__getitem__), max(last, key=last.__getitem__)
    return (
        f"At severity {_WORST} it is lowest for {low} ({told(last[low], label)}) and highest for {high} "
        f"({told(last[high], label)})."
    )


def _steps(metric: str, rows: list[list[float]], outcome: Outcome) -> Steps:
    """Return means of rows, at severities 0 to 5, with the ends of their intervals, where these are known."""
    values = [sum(row) / len(row) for row in rows]
    intervals = outcome.certainty.intervals
    names = [at_severity(metric, severity) for severity in range(len(values))]
    known = [intervals.get(name, intervals.get(metric) if not step else None) for step, name in enumerate(names)]
    ends = [end for end in known if end is not None]
    if len(ends) < len(values):
        return values, None, None
    return values, [low for low, _ in ends], [high for _, high in ends]


def _fidelity(data: Data, named: Mapping[str, Outcome], reference: str) -> dict[str, Picture]:
    of_reference, others = named[reference].fidelity, {name: o for name, o in named.items() if name != reference}
    to = _whose(reference)
    measures: dict[str, tuple[str, figures.Better]] = {
        "agreement": (f"agreement with {to}", "high"),
        "total_variation": (f"total variation to {to}", "low"),
        "wasserstein1": (f"Wasserstein-1 distance to {to}\n(units of the target)", "low"),
    }
    known = {
        metric: words for metric, words in measures.items() if metric in next(iter(others.values())).fidelity.clean
    }
    panels = {words: {n: o.fidelity.clean[metric] for n, o in others.items()} for metric, (words, _) in known.items()}
    intervals = {
        words: {n: o.certainty.intervals[metric] for n, o in others.items() if metric in o.certainty.intervals}
        for metric, (words, _) in known.items()
    }
    floors = {
        words: [half[m] for half in of_reference.halves] for m, (words, _) in known.items() if of_reference.halves
    }
    dots = figures.fidelity_dots(panels, floors=floors, better=dict(known.values()), intervals=intervals)
    caption = f"Closeness of the predictions of each method to those of {to}, on {_rows(data)}."
    if any(intervals.values()):
        caption += f" Lines: {_INTERVAL}"
    if floors:
        caption += (
            " Black line and grey band, the floor: how near another sample of the reference, of as many draws, would "
            "come, by the ways to halve its chains, on average and from the smallest to the largest. A method there or "
            "nearer cannot be distinguished from another run of the reference."
        )
    ends = [f"{' '.join(words.split())}: {_extremes(panels[words], words, better)}" for words, better in known.values()]
    pictures = {
        "fidelity": Picture(f"How close each method is to {to}", dots, caption, alt=f"Dots. {'; '.join(ends)}.")
    }
    return pictures | (_fidelity_severities(data, named, reference, known=known) if of_reference.corrupted else {})


def _fidelity_severities(
    data: Data, named: Mapping[str, Outcome], reference: str, *, known: Mapping[str, tuple[str, figures.Better]]
) -> dict[str, Picture]:
    """Return closeness by severity for each metric of `known`, which holds its label and direction."""
    drawn = {}
    for metric, (words, direction) in known.items():
        steps = {name: _steps(metric, o.fidelity.severity(metric), o) for name, o in named.items()}
        figure = figures.severity_panels(steps, words, better=direction, reference=reference)
        caption = (
            f"{_panels(data, named, reference)} At severity 0 all test rows count. What is drawn of {reference} is the "
            f"floor: another sample of it, of as many draws."
        )
        title = f"{_sentence(words)} under corruption"
        drawn[f"fidelity_severity_{metric}"] = _by_severity(title, figure, caption, label=words, steps=steps)
    return drawn


def _reliability(data: Data, named: Mapping[str, Outcome]) -> Picture:
    bins = {label: metrics.reliability(_probs(o), o.clean.targets) for label, o in named.items()}
    return Picture(
        "Reliability on the test set",
        figures.reliability_diagram(bins),
        f"On {_rows(data)}, in 15 bins of equal width: where a method says 80 %, is it right in 80 % of the cases? "
        f"Vertical lines: intervals of about 95 %. Below: the share of rows in each bin.",
        alt=f"Accuracy against confidence, one panel for each method. {_calibrated(bins)}",
    )


def _reliability_corrupted(data: Data, named: Mapping[str, Outcome]) -> Picture:
    bins = {}
    for label, outcome in named.items():
        worst = [steps[-1] for steps in outcome.corrupted.values()]
        probs = torch.cat([e.probs for e in worst if e.probs is not None])
        bins[label] = metrics.reliability(probs, torch.cat([e.targets for e in worst]))
    return Picture(
        f"Reliability at severity {_WORST}",
        figures.reliability_diagram(bins),
        f"Accuracy against confidence in 15 bins of equal width. Of {_rows(data)}, "
        f"{_corruptions(next(iter(named.values())))} at severity {_WORST}, all together. Below the diagonal a method "
        f"is surer than it is right. Vertical lines: intervals of about 95 %, as if the corruptions of one image were "
        f"independent. Below: the share of images in each bin.",
        alt=f"Accuracy against confidence at severity {_WORST}, one panel for each method. {_calibrated(bins)}",
    )


def _calibrated(bins: Mapping[str, metrics.Reliability]) -> str:
    errors = {label: float(reliability.ece) for label, reliability in bins.items()}
    ranked = sorted(errors, key=errors.__getitem__)
    return (
        f"The calibration error is lowest for {ranked[0]} ({errors[ranked[0]]:.3f}) and highest for {ranked[-1]} "
        f"({errors[ranked[-1]]:.3f})."
    )


def _entropy(data: Data, named: Mapping[str, Outcome]) -> Picture:
    entropies = {
        label: (o.clean.scores.entropy, {name: s.entropy for name, s in o.foreign.items()})
        for label, o in named.items()
        if o.clean.scores is not None
    }
    foreign = {name: len(s.entropy) for name, s in next(iter(named.values())).foreign.items()}
    sizes = listed([f"{name} ({count:,})" for name, count in foreign.items()])
    areas = {label: area for label, o in named.items() if (area := o.auroc()) is not None}
    ranked = ", ".join(f"{label} {area:.3f}" for label, area in sorted(areas.items(), key=lambda pair: -pair[1]))
    return Picture(
        "Predictive entropy in and out of distribution",
        figures.entropy_histograms(entropies, data.num_classes, known=f"{data.name} test set"),
        f"Histograms of the entropy of the model average on {_rows(data)} and on foreign images: {sizes}. These should "
        f"be met with doubt, to the right, while the test set stays to the left.",
        alt=f"Histograms of predictive entropy, one panel for each method. AUROC, mean over foreign sets: {ranked}.",
    )


def _uncertain(data: Data, named: Mapping[str, Outcome]) -> Picture:
    images = data.standardise.inverse(data.test.inputs).clamp(0, 1)
    first, last = next(iter(named)), list(named)[-1]
    probs = {label: _probs(o) for label, o in named.items() if label in {first, last}}
    others = f", beside the probabilities of {listed(list(probs))}" if len(probs) > 1 else ", beside its probabilities"
    return Picture(
        f"The test images {last} is least sure about",
        figures.uncertain_images(images, probs, data.classes, targets=data.test.targets),
        f"The images among {_rows(data)} at which the entropy of the average of {last} is highest, the highest first"
        f"{others}. Above each image stands that entropy, of {last} alone; the true class is bold.",
        alt=f"Eight images with bars of class probabilities by {listed(list(probs))}, ranked by the entropy of {last}.",
    )


def _probs(outcome: Outcome) -> Tensor:
    if outcome.clean.probs is None:
        raise TypeError("class probabilities exist for classifications alone.")
    return outcome.clean.probs

"""The pictures of a comparison."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torchbayes import metrics
from torchbayes.catalogue.methods import label_of
from torchbayes.catalogue.problem import Setup
from torchbayes.comparison.scores import SEVERITIES, Outcome
from torchbayes.comparison.settings import REFERENCE, Comparison
from torchbayes.data import Data
from torchbayes.report import Picture, figures
from torchbayes.report.surfaces import band_over, surface_over


def pictures(setup: Setup, comparison: Comparison, outcomes: Mapping[str, Outcome]) -> dict[str, Picture]:
    """Draw everything that applies.

    Args:
        setup: data and model.
        comparison: what was compared.
        outcomes: method -> its outcome.

    Returns:
        file name without ending -> picture.
    """
    data, named = setup.data, {label_of(name): outcome for name, outcome in outcomes.items()}
    functions = {label: outcome.functions for label, outcome in named.items()}
    drawn: dict[str, Picture] = {}
    if comparison.compared_with is not None and len(outcomes) > 1:
        drawn |= _fidelity(named, label_of(comparison.compared_with))
    if data.task == "regression" and data.input_shape == (1,):
        drawn["band"] = band_over(data, functions)
    if data.task == "classification" and data.input_shape == (2,) and data.num_classes == 2:
        drawn["surface"] = surface_over(data, functions)
    if data.is_image and comparison.corruptions:
        drawn |= _severities(named, len(comparison.corruptions))
    if data.task == "classification":
        drawn["reliability"] = _reliability(named)
    if data.is_image and comparison.corruptions:
        drawn["reliability_corrupted"] = _reliability_corrupted(named)
    if data.is_image:
        drawn["entropy"] = _entropy(data, named)
        drawn["uncertain_images"] = _uncertain(data, named)
    return drawn


def _severities(named: Mapping[str, Outcome], count: int) -> dict[str, Picture]:
    texts = {
        "nll": ("Negative log likelihood under corruption", "The lower the curve stays, the better the probabilities."),
        "accuracy": ("Accuracy under corruption", "How many images are still recognised."),
        "ece": ("Calibration under corruption", "A model that knows when it fails keeps this low."),
    }
    labels = {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE"}
    return {
        f"severity_{metric}": Picture(
            title,
            figures.severity_curves({label: _means(o.severity(metric)) for label, o in named.items()}, labels[metric]),
            f"{text} Mean over {count} corruptions.",
        )
        for metric, (title, text) in texts.items()
    }


def _fidelity(named: Mapping[str, Outcome], reference: str) -> dict[str, Picture]:
    own, others = named[reference].fidelity, {name: o for name, o in named.items() if name != reference}
    to = "the reference" if reference == REFERENCE else reference
    measures: dict[str, tuple[str, figures.Better]] = {
        "agreement": (f"agreement with {to}", "high"),
        "total_variation": (f"total variation to {to}", "low"),
        "wasserstein1": (f"Wasserstein-1 distance to {to}\n(units of the target)", "low"),
    }
    known = {
        metric: words for metric, words in measures.items() if metric in next(iter(others.values())).fidelity.clean
    }
    ceilings = {
        words: [chain[metric] for chain in own.by_chain] for metric, (words, _) in known.items() if own.by_chain
    }
    dots = figures.fidelity_dots(
        {words: {n: o.fidelity.clean[metric] for n, o in others.items()} for metric, (words, _) in known.items()},
        ceilings=ceilings,
        better=dict(known.values()),
    )
    told = "On the test set."
    if ceilings:
        told += (
            " A method at the line or beyond is as close to the reference as one of its chains is to the others: "
            "nothing tells it from another chain of that length."
        )
    found = {"fidelity": Picture(f"How close each method is to {to}", dots, told)}
    if not own.corrupted:
        return found
    for metric, (words, direction) in known.items():
        curves = {name: _means(o.fidelity.severity(metric)) for name, o in named.items()}
        found[f"fidelity_severity_{metric}"] = Picture(
            f"{words[0].upper()}{words[1:]} under corruption",
            figures.severity_curves(curves, words, better=direction),
            f"Mean over {len(own.corrupted)} corruptions. The curve of {reference} is the ceiling: one of its chains "
            f"against the others.",
        )
    return found


def _means(rows: list[list[float]]) -> list[list[float]]:
    # corruptions differ far more from each other than methods do: a band over them would hide what is compared
    return [[sum(row) / len(row)] for row in rows]


def _reliability(named: Mapping[str, Outcome]) -> Picture:
    bins = {label: metrics.reliability(_probs(o), o.clean.targets) for label, o in named.items()}
    return Picture(
        "Reliability on the test set",
        figures.reliability_diagram(bins),
        "Where the model says 80 %, is it right in 80 % of the cases? Bars are intervals of about 95 %.",
    )


def _reliability_corrupted(named: Mapping[str, Outcome]) -> Picture:
    bins = {}
    for label, outcome in named.items():
        found = [e for evaluations in outcome.corrupted.values() for e in evaluations]
        probs = torch.cat([e.probs for e in found if e.probs is not None])
        bins[label] = metrics.reliability(probs, torch.cat([e.targets for e in found]))
    return Picture(
        "Reliability on corrupted images",
        figures.reliability_diagram(bins),
        f"All corruptions at severities {SEVERITIES[0]} to {SEVERITIES[-1]} together: where calibration is put to the "
        f"test. Below the diagonal a model is surer than it is right.",
    )


def _entropy(data: Data, named: Mapping[str, Outcome]) -> Picture:
    found = {
        label: (o.clean.scores.entropy, {name: s.entropy for name, s in o.foreign.items()})
        for label, o in named.items()
        if o.clean.scores is not None
    }
    return Picture(
        "Predictive entropy in and out of distribution",
        figures.entropy_histograms(found, data.num_classes, known=f"{data.name} test set"),
        "Images of something else should be met with doubt: to the right, while the test set stays to the left.",
    )


def _uncertain(data: Data, named: Mapping[str, Outcome]) -> Picture:
    images = data.standardise.inverse(data.test.inputs).clamp(0, 1)
    last = list(named)[-1]
    probs = {label: _probs(o) for label, o in named.items() if label in {next(iter(named)), last}}
    return Picture(
        f"The test images {last} is least sure about",
        figures.uncertain_images(images, probs, data.classes, targets=data.test.targets),
        "Each with the predictive probabilities beside it.",
    )


def _probs(outcome: Outcome) -> Tensor:
    if outcome.clean.probs is None:
        raise TypeError("class probabilities exist for classifications alone.")
    return outcome.clean.probs

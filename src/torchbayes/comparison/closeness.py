"""Sentences on how near the methods of a comparison are to its reference, and how near another sample of it is."""

from __future__ import annotations

from collections.abc import Mapping

from torchbayes.assess.diagnose import Diagnosis
from torchbayes.catalogue.methods import label_of
from torchbayes.catalogue.problem import Setup
from torchbayes.comparison.reference import worth
from torchbayes.comparison.scores import Outcome
from torchbayes.comparison.settings import REFERENCE
from torchbayes.metrics.fidelity import CLOSEST
from torchbayes.report.words import listed


def reference_of(outcomes: Mapping[str, Outcome]) -> str | None:
    """Return the method that the others are compared with; None if there is no such comparison."""
    if not any(outcome.fidelity.clean for outcome in outcomes.values()):
        return None
    return next(name for name, outcome in outcomes.items() if outcome.is_reference)


def closeness(setup: Setup, outcomes: Mapping[str, Outcome], diagnosis: Diagnosis | None) -> str:
    """Return how to read the columns that compare with the reference; empty without one."""
    name = reference_of(outcomes)
    if name is None:
        return ""
    reference = outcomes[name]
    label = "the reference" if name == REFERENCE else label_of(name)
    if reference.clean.probs is None:
        text = f" W1: 1-Wasserstein distance of predictive samples to those of {label}, in {setup.data.target_unit}."
    else:
        text = f" Agreement (share of equal top classes) and TV (total variation) are those with {label}."
    if reference.fidelity.halves:
        text += (
            f" In its own row stands the floor: how near another sample of {label}, of as many draws, would come, by "
            f"its halves. {resolved(outcomes)}"
        )
    return f"{text} {worth(diagnosis)}" if diagnosis is not None else text


def resolved(outcomes: Mapping[str, Outcome]) -> str:
    """Return a sentence on which methods the reference can tell from a sample of itself; empty without a floor."""
    name = reference_of(outcomes)
    if name is None or not outcomes[name].fidelity.halves or len(outcomes) < 2:
        return ""
    floor = outcomes[name].fidelity.clean
    measure = next(metric for metric in floor if metric not in CLOSEST)
    within = [label_of(n) for n, o in outcomes.items() if n != name and o.fidelity.clean[measure] <= floor[measure]]
    label = "the reference" if name == REFERENCE else label_of(name)
    short = "TV" if measure == "total_variation" else "W1"
    if not within:
        return f"By {short} every method is farther from {label} than that ({floor[measure]:.2g})."
    verb = "is" if len(within) == 1 else "are"
    return (
        f"By {short} {listed(within)} {verb} no farther from {label} than another sample of it would be "
        f"({floor[measure]:.2g})."
    )

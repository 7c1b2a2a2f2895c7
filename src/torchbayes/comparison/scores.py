"""Scores of a comparison: every method on the same rows, corruptions and foreign images, by the same functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchbayes import metrics
from torchbayes.assess.baselines import constant, r_squared
from torchbayes.assess.evaluate import Evaluation, Scores, detection, evaluate, fidelity, uncertainty
from torchbayes.catalogue.entries import MethodEntry
from torchbayes.catalogue.methods import label_of
from torchbayes.catalogue.problem import Setup
from torchbayes.comparison.certainty import (
    Certainty,
    Further,
    at_severity,
    certainties,
    closeness_terms,
    over_corruptions,
    resampled_detection,
    resampled_means,
    row_terms,
)
from torchbayes.comparison.fidelity import (
    Fidelity,
    averaged,
    chain_probs,
    chain_probs_of,
    floors,
    mean,
    row_distances,
)
from torchbayes.comparison.settings import REFERENCE, Comparison
from torchbayes.data import corrupt_data, out_of_distribution
from torchbayes.posteriors import Functions, Posterior
from torchbayes.posteriors.problems import naming
from torchbayes.predictive.linearised import preferred
from torchbayes.predictive.predict import Source, predict

SEVERITIES = (1, 2, 3, 4, 5)
Track = Callable[[list[Any], str], Iterable[Any]]
"""Iterates over a list, item by item, and shows progress under a description."""


@dataclass(frozen=True)
class Outcome:
    """The results of one method.

    `functions` are drawn from its posterior and used throughout; a Laplace posterior is linearised instead.
    `unshifted` has metrics on the rows to be corrupted, before corruption, with overconfidence: mean confidence −
    accuracy.
    """

    functions: Functions | Source
    clean: Evaluation  # on the test set
    members: list[dict[str, float]] = field(default_factory=list)  # of an ensemble: scores of each one's own point
    unshifted: dict[str, float] = field(default_factory=dict)
    corrupted: dict[str, list[Evaluation]] = field(default_factory=dict)  # at severities 1 to 5
    foreign: dict[str, Scores] = field(default_factory=dict)
    fidelity: Fidelity = field(default_factory=Fidelity)  # of the reference: how close another sample is
    is_reference: bool = False  # whether the others are compared with it
    certainty: Certainty = field(default_factory=Certainty)
    problems: tuple[str, ...] = ()  # why its posterior should not be trusted

    def severity(self, metric: str) -> list[list[float]]:
        """Return a metric at severity 0 (not corrupted) to 5, one row each, one column per corruption."""
        start = [self.unshifted[metric]] * len(self.corrupted)
        return [start, *([_shifted(e[s - 1], metric) for e in self.corrupted.values()] for s in SEVERITIES)]

    def at(self, severity: int, metric: str) -> float | None:
        """Return the mean of a metric over the corruptions at a severity, None where there are none."""
        values = self.severity(metric)[severity] if self.corrupted else []
        return sum(values) / len(values) if values else None

    def number(self, metric: str) -> float | None:
        """Return a metric by name, of the test set, foreign sets, closeness, or `at_severity`; None if it has none."""
        name, _, severity = metric.partition("_severity_")
        if severity:
            return (self.fidelity if name in self.fidelity.clean else self).at(int(severity), name)
        if name in {"auroc", "r_squared"}:
            return self.auroc() if name == "auroc" else r_squared(self.clean)
        return {**self.clean.metrics, **self.fidelity.clean}.get(name)

    def detected(self) -> dict[str, dict[str, float]]:
        """Return how well uncertainty separates each foreign set from the test set."""
        if not self.foreign:
            return {}
        assert self.clean.scores is not None
        return {name: detection(self.clean.scores, scores) for name, scores in self.foreign.items()}

    def auroc(self) -> float | None:
        """Return the mean AUROC of the predictive entropy over the foreign sets, None where there are none."""
        values = [numbers["auroc_entropy"] for numbers in self.detected().values() if "auroc_entropy" in numbers]
        return sum(values) / len(values) if values else None

    def numbers(self) -> dict[str, Any]:
        """Return every number, JSON-serialisable."""
        numbers: dict[str, Any] = {"clean": self.clean.metrics, **self.certainty.numbers()}
        if self.problems:
            numbers["problems"] = list(self.problems)
        if isinstance(self.functions, Functions):
            numbers["draws"] = self.functions.draws
        if self.members:
            numbers["members"] = self.members
        if self.corrupted:
            numbers["severity"] = {s: {m: self.at(s, m) for m in self.unshifted} for s in (0, *SEVERITIES)}
            numbers["corrupted"] = {
                name: {s: e.metrics for s, e in zip(SEVERITIES, evaluations, strict=True)}
                for name, evaluations in self.corrupted.items()
            }
        if self.foreign:
            numbers["out_of_distribution"] = self.detected()
            numbers["auroc"] = self.auroc()
        if self.fidelity.clean:
            numbers["fidelity"] = self.fidelity.numbers()
        return numbers


def member(posterior: Any, index: int) -> Any:
    """Return the posterior of one member of a point or Gaussian posterior, of the same kind."""
    where = slice(index, index + 1)
    tensors = {name: tensor[where] for name, tensor in posterior.tensors().items()}
    single = type(posterior).restore(posterior.model, tensors, posterior.settings())
    buffers = {n: b[where] for n, b in posterior.buffers_M.items()} if posterior.buffers_M else None
    return dataclasses.replace(
        single, buffers_M=buffers, statistics_known=posterior.statistics_known, calibration=posterior.calibration
    )


def score(
    setup: Setup, posteriors: Mapping[str, Posterior], comparison: Comparison, *, track: Track
) -> dict[str, Outcome]:
    """Evaluate every method: clean, corrupted, on foreign images, and against the reference."""
    data = setup.data
    outcomes = {}
    for name in track(list(posteriors), "test set"):
        posterior, entry = posteriors[name], comparison.entry(name) if name != REFERENCE else None
        with naming("the reference" if name == REFERENCE else label_of(name)):
            outcomes[name] = _clean(setup, posterior, entry, comparison, is_reference=name == comparison.compared_with)
    reference = comparison.compared_with
    chains = posteriors[reference].members if reference is not None else 0
    by_chain: dict[str, list[Tensor]] = {}
    if data.is_image:
        by_chain = _shift(setup, outcomes, comparison, track=track, chains=chains)
    if reference is not None:
        _compare(setup, outcomes, comparison, chains=chains, by_chain=by_chain)
    reference_outcome = None if reference is None else outcomes[reference]
    further = {name: _further(outcome, reference_outcome, comparison) for name, outcome in outcomes.items()}
    sure = certainties({n: o.clean for n, o in outcomes.items()}, seed=comparison.seed, further=further)
    return {name: dataclasses.replace(outcome, certainty=sure[name]) for name, outcome in outcomes.items()}


def _clean(
    setup: Setup, posterior: Posterior, entry: MethodEntry | None, comparison: Comparison, *, is_reference: bool
) -> Outcome:
    """Return the results of a method on the clean test set."""
    test, scale = tuple(setup.data.test), setup.target_scale
    drawn = comparison.draws if entry and entry.predicts == "drawn" else None
    functions, members = preferred(posterior, drawn, seed=comparison.seed), []
    clean = evaluate(functions, test, target_scale=scale)
    if entry and entry.by_member:
        alone = (member(posterior, m) for m in range(posterior.members))
        members = [evaluate(single, test, target_scale=scale).metrics for single in alone]
    return Outcome(functions, clean, members, is_reference=is_reference, problems=posterior.problems)


def constant_outcome(setup: Setup) -> Outcome | None:
    """Return the scores of the constant predictor on the test set, without functions; None where there is none."""
    train, test = setup.data.train.targets, setup.data.test.targets
    evaluation = constant(setup.model, train, test, target_scale=setup.target_scale)
    return None if evaluation is None else Outcome(None, evaluation)  # type: ignore[arg-type]  # nothing is drawn from it


def _further(outcome: Outcome, reference: Outcome | None, comparison: Comparison) -> Further:
    """Return the scores of a method on shifted data and against the reference, with their resamples."""
    seed, rows = comparison.seed, comparison.rows
    values: dict[str, float] = {}
    terms: dict[str, Tensor] = {}
    if outcome.corrupted:
        values[at_severity("nll", 5)] = sum(outcome.severity("nll")[5]) / len(outcome.corrupted)
        terms |= {at_severity(m, 0): terms_N for m, terms_N in row_terms(outcome.clean, rows).items()}
        terms |= over_corruptions([[row_terms(e, rows) for e in steps] for steps in outcome.corrupted.values()])
    close = outcome.fidelity.terms
    if reference is not None and close:
        values |= outcome.fidelity.clean
        pairs = [zip(s, reference.corrupted[name], strict=True) for name, s in outcome.corrupted.items()]
        terms |= over_corruptions([
            [closeness_terms(_needed(first.probs), _needed(second.probs)) for first, second in each] for each in pairs
        ])
    drawn = resampled_means(terms, seed=seed) | resampled_means(close, seed=seed)
    area = outcome.auroc()
    if area is not None and outcome.clean.scores is not None:
        values["auroc"] = area
        foreign = {name: scores.entropy for name, scores in outcome.foreign.items()}
        drawn["auroc"] = resampled_detection(outcome.clean.scores.entropy, foreign, seed=seed)
    return Further(values, drawn)


def _shifted(evaluation: Evaluation, metric: str) -> float:
    """Return a metric of corrupted images."""
    if metric != "overconfidence":
        return evaluation.metrics[metric]
    return _confidence(_needed(evaluation.probs)) - evaluation.metrics["accuracy"]


def _confidence(probs: Tensor) -> float:
    return float(probs.amax(-1).double().mean())


def _shift(
    setup: Setup, outcomes: dict[str, Outcome], comparison: Comparison, *, track: Track, chains: int
) -> dict[str, list[Tensor]]:
    """Fill in the results on corrupted and foreign images.

    Returns, by corruption, the class probabilities of each chain of the reference, (M, B, K), at each severity.
    """
    data, rows, model = setup.data, comparison.rows, setup.model
    by_chain: dict[str, list[Tensor]] = {}
    for outcome in outcomes.values():
        outcome.unshifted.update(_first(outcome.clean, rows))
    shifts = [(name, severity) for name in comparison.corruptions for severity in SEVERITIES]
    for name, severity in track(shifts, "corrupted images"):
        pair = corrupt_data(data, name, severity, seed=comparison.seed, limit=rows)
        for method, outcome in outcomes.items():
            predictive = predict(outcome.functions, pair.inputs)
            outcome.corrupted.setdefault(name, []).append(evaluate(predictive, model.place(pair.targets, "targets")))
            if method == comparison.compared_with:
                by_chain.setdefault(name, []).append(chain_probs(predictive, chains))
    foreign = out_of_distribution(data, limit=rows, seed=comparison.seed)
    for name, inputs in track(list(foreign.items()), "foreign images"):
        for outcome in outcomes.values():
            outcome.foreign[name] = uncertainty(outcome.functions, inputs.to(setup.model.network.device))
    return by_chain


def _compare(
    setup: Setup,
    outcomes: dict[str, Outcome],
    comparison: Comparison,
    *,
    chains: int,
    by_chain: Mapping[str, Sequence[Tensor]],
) -> None:
    """Fill in how close every method is to the reference, and how close another sample of the reference would be."""
    reference, inputs = comparison.compared_with, setup.data.test.inputs
    assert reference is not None
    reference_outcome = outcomes[reference]
    if setup.data.task == "regression":
        functions = {name: outcome.functions for name, outcome in outcomes.items()}
        scale, seed = setup.target_scale, comparison.seed
        rows = row_distances(functions, reference, inputs, chains=chains, scale=scale, seed=seed)
        distances = averaged(rows, reference, chains)
        for name, outcome in outcomes.items():
            outcome.fidelity.terms.update(rows[name][0] if name != reference else {})
    else:
        probs = {name: _needed(outcome.clean.probs) for name, outcome in outcomes.items()}
        distances = {name: [fidelity(p, probs[reference])] for name, p in probs.items() if name != reference}
        draws = reference_outcome.functions
        distances[reference] = floors(chain_probs_of(draws, inputs, chains)) if isinstance(draws, Functions) else []
        for name, outcome in outcomes.items():
            if name != reference:
                outcome.fidelity.terms.update(closeness_terms(probs[name], probs[reference]))
                for corruption, steps in outcome.corrupted.items():
                    pairs = zip(steps, reference_outcome.corrupted[corruption], strict=True)
                    outcome.fidelity.corrupted[corruption] = [
                        fidelity(_needed(first.probs), _needed(second.probs)) for first, second in pairs
                    ]
        if chains > 1:
            for corruption, steps in by_chain.items():
                reference_outcome.fidelity.corrupted[corruption] = [mean(floors(probs_MBK)) for probs_MBK in steps]
    for name, outcome in outcomes.items():
        outcome.fidelity.clean.update(mean(distances[name]))
    reference_outcome.fidelity.halves.extend(distances[reference])


def _first(evaluation: Evaluation, rows: int) -> dict[str, float]:
    """Return the metrics of the first rows of an evaluation."""
    probs, targets = _needed(evaluation.probs)[:rows], evaluation.targets[:rows]
    accuracy = float(metrics.accuracy(probs, targets))
    return {
        "accuracy": accuracy,
        "nll": float(metrics.nll(evaluation.log_prob[:rows])),
        "brier": float(metrics.brier(probs, targets)),
        "ece": float(metrics.ece(probs, targets)),
        "overconfidence": _confidence(probs) - accuracy,
    }


def _needed(probs: Tensor | None) -> Tensor:
    assert probs is not None
    return probs

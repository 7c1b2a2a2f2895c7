r"""Fidelity of every method to the reference of a comparison, and what its own Monte Carlo error can resolve.

Classes: agreement and total variation of the averaged probabilities. Regressions: the 1-Wasserstein distance between
samples of the predictive distributions at each test row, equally many for every method. The reference is
compared with itself by halves, so that both sides have equally many draws: one half of its chains against the other,
for every way to halve the circle of them. Two samples of the reference's whole size would be nearer to each other, by
what `metrics.fidelity.floor` says: that is the floor. A method no farther from the reference cannot be distinguished
from another run of the reference, and no distance below it means anything. Short or few chains raise it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.classification import is_binary
from torchbayes.assess.evaluate import fidelity
from torchbayes.metrics.fidelity import floor, wasserstein1_rows
from torchbayes.posteriors import Functions
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Source, predict
from torchbayes.randomness.seeds import Purpose, mix

SAMPLES = 2000  # of each predictive distribution
_ROWS = 1024

Numbers = dict[str, float]


@dataclass(frozen=True)
class Fidelity:
    """How close the predictions of one method are to those of the reference; empty where there is no reference.

    Attributes:
        clean: on the test set: agreement and total_variation, or wasserstein1 in the target's own units.
        corrupted: corruption -> agreement and total_variation at severities 1 to 5.
        halves: for the reference, the floor by each way to halve its chains; the rest is then their mean.
        terms: for other methods, what each row of the test set contributes to `clean`, (N,) each, float64.
    """

    clean: Numbers = field(default_factory=dict)
    corrupted: dict[str, list[Numbers]] = field(default_factory=dict)
    halves: list[Numbers] = field(default_factory=list)
    terms: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def severity(self, metric: str) -> list[list[float]]:
        """Return a metric at severity 0, the whole test set, to 5, one row each, one column per corruption."""
        start = [self.clean[metric]] * len(self.corrupted)
        return [start, *([step[metric] for step in row] for row in zip(*self.corrupted.values(), strict=True))]

    def at(self, severity: int, metric: str) -> float | None:
        """Return the mean of a metric over the corruptions at a severity, None where there are none."""
        if not self.corrupted or metric not in self.clean:
            return None
        values = self.severity(metric)[severity]
        return sum(values) / len(values)

    def numbers(self) -> dict[str, Any]:
        """Return every number, JSON-serialisable."""
        found: dict[str, Any] = dict(self.clean)
        if self.halves:
            found["halves"] = self.halves
        if self.corrupted:
            found["severity"] = {s: {m: self.at(s, m) for m in self.clean} for s in range(1, 6)}
        return found


def mean(found: Sequence[Numbers]) -> Numbers:
    """Return the mean of each number.

    Args:
        found: the same names in each.

    Returns:
        name -> mean; empty if there are none.
    """
    return {name: sum(numbers[name] for numbers in found) / len(found) for name in (found[0] if found else ())}


def chain_probs(predictive: Predictive, chains: int) -> Tensor:
    """Return the class probabilities averaged over the draws of each chain.

    Args:
        predictive: of S draws, draw s from chain s mod M.
        chains: M.

    Returns:
        Float64 tensor (M, B, K).
    """
    probs: Any = predictive.distribution.probs  # type: ignore[attr-defined]
    probs_SBK = probs.double()
    if is_binary(predictive):
        probs_SBK = torch.cat([1 - probs_SBK, probs_SBK], dim=-1)
    return probs_SBK.unflatten(0, (-1, chains)).mean(0).cpu()


def chain_probs_of(functions: Functions, inputs: Tensor, chains: int) -> Tensor:
    """Return `chain_probs` at any number of inputs, with bounded memory.

    Args:
        functions: S functions, function s from chain s mod M.
        inputs: (B, ...).
        chains: M.

    Returns:
        Float64 tensor (M, B, K).
    """
    return torch.cat([chain_probs(predict(functions, part), chains) for part in inputs.split(_ROWS)], dim=1)


def halved(chains: int) -> list[tuple[list[int], list[int]]]:
    """Return the ways to halve a circle of chains, the smaller half first; none for a single chain.

    Args:
        chains: M.
    """
    half, everyone = chains // 2, range(chains)
    starts = range((chains if chains % 2 else half) if half else 0)
    halves = [sorted((start + m) % chains for m in range(half)) for start in starts]
    return [(one, [m for m in everyone if m not in one]) for one in halves]


def floors(probs_MBK: Tensor) -> list[Numbers]:
    """Return how far another sample of the chains would be, by each way to halve them.

    Args:
        probs_MBK: class probabilities of M chains of equal length.

    Returns:
        One mapping for each of `halved`, as `evaluate.fidelity` gives it.
    """
    splits = halved(len(probs_MBK))
    apart = [fidelity(probs_MBK[one].mean(0), probs_MBK[other].mean(0)) for one, other in splits]
    return [floor(found, (len(one), len(other))) for found, (one, other) in zip(apart, splits, strict=True)]


def row_distances(
    functions: Mapping[str, Functions | Source],
    reference: str,
    inputs: Tensor,
    *,
    chains: int,
    scale: float,
    seed: int,
) -> dict[str, list[dict[str, Tensor]]]:
    """Return how far the predictive distributions of a regression are from the reference's, row by row.

    Args:
        functions: method -> functions drawn from it, or its linearised posterior.
        reference: the method that the others are compared with.
        inputs: test rows (B, ...).
        chains: M of the reference; its function s is from chain s mod M.
        scale: units of the raw targets per unit that the model sees.
        seed: seed of the samples; method and reference never share one.

    Returns:
        method -> one mapping with wasserstein1, in the target's own units, for each row (B,); for the reference one
        for each of `halved`, and a last one of itself by other samples; none if there is a single chain.
    """
    pairs: dict[str, list[tuple[Functions | Source, Functions | Source]]]
    pairs = {name: [(some, functions[reference])] for name, some in functions.items() if name != reference}
    own = functions[reference]
    pairs[reference] = _splits(own, chains) if isinstance(own, Functions) else []
    found: dict[str, list[list[Tensor]]] = {name: [[] for _ in of_method] for name, of_method in pairs.items()}
    for part in inputs.split(_ROWS):
        for name, of_method in pairs.items():
            for place, pair in enumerate(of_method):
                first, second = (_samples(s, part, mix(Purpose.DISTANCE, seed, who)) for who, s in enumerate(pair))
                found[name][place].append(wasserstein1_rows(first, second) * scale)
    return {name: [{"wasserstein1": torch.cat(parts)} for parts in each] for name, each in found.items()}


def averaged(
    rows: Mapping[str, Sequence[Mapping[str, Tensor]]], reference: str, chains: int
) -> dict[str, list[Numbers]]:
    """Return means over rows of what `row_distances` gives, of the reference its floors.

    Args:
        rows: as `row_distances` returns them.
        reference: the method that the others are compared with.
        chains: M of the reference.
    """
    found = {
        name: [{metric: float(v.mean()) for metric, v in each.items()} for each in some] for name, some in rows.items()
    }
    if found[reference]:
        *apart, same = found[reference]
        sizes = [(len(one), len(other)) for one, other in halved(chains)]
        found[reference] = [floor(each, size, same=same) for each, size in zip(apart, sizes, strict=True)]
    return found


def _splits(functions: Functions, chains: int) -> list[tuple[Functions | Source, Functions | Source]]:
    """Return the functions of both halves of the chains, in every way, and all of them twice."""
    chain_S, splits = torch.arange(functions.draws) % chains, halved(chains)
    parts = [tuple(functions.some(torch.isin(chain_S, torch.tensor(half))) for half in split) for split in splits]
    return [*parts, (functions, functions)] if parts else []  # type: ignore[list-item]


def _samples(functions: Functions | Source, inputs: Tensor, seed: int) -> Tensor:
    """Return samples of the targets (SAMPLES, B), on the model's scale; from the draws in turn, equally often."""
    return predict(functions, inputs).sample(SAMPLES, seed=seed).flatten(1).cpu()

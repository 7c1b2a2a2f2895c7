"""Fidelity of every method to the reference of a comparison, and the smallest distance that the reference resolves.

Classes: agreement and total variation of the averaged probabilities. Regressions: the 1-Wasserstein distance between
samples of the predictive distributions at each test row, equally many for every method. The reference is compared with
itself by halves, so that both sides have equally many draws: one half of its chains against the other, for every way
to halve the circle of them. Two samples of the reference's whole size would be nearer to each other;
`metrics.fidelity.floor` says by how much. That distance is the floor. A method no farther from the reference cannot be
distinguished from another run of the reference, and no smaller distance means anything. Short or few chains raise the
floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributions

from torchbayes.assess.evaluate import fidelity
from torchbayes.metrics.fidelity import floor, wasserstein1_rows
from torchbayes.posteriors import Functions
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Source, predict
from torchbayes.randomness.seeds import Purpose, mix

SAMPLES = 2000  # samples of each predictive distribution
_ROWS = 1024

Numbers = dict[str, float]


@dataclass(frozen=True)
class Fidelity:
    """How close the predictions of one method are to those of the reference; empty where there is no reference.

    `clean` is on the test set: agreement and total_variation, or wasserstein1 in the target's own units. `corrupted`
    has agreement and total_variation by corruption, at severities 1 to 5. For the reference, `halves` has the floor by
    each way to halve its chains, and the other fields their mean. For other methods, `terms` has what each row of the
    test set contributes to `clean`, float64 (N,) each.
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
        numbers: dict[str, Any] = dict(self.clean)
        if self.halves:
            numbers["halves"] = self.halves
        if self.corrupted:
            numbers["severity"] = {s: {m: self.at(s, m) for m in self.clean} for s in range(1, 6)}
        return numbers


def mean(distances: Sequence[Numbers]) -> Numbers:
    """Return the mean of each number over mappings with the same names; empty if there are none."""
    return {
        name: sum(numbers[name] for numbers in distances) / len(distances)
        for name in (distances[0] if distances else ())
    }


def chain_probs(predictive: Predictive, chains: int) -> Tensor:
    """Return class probabilities averaged over the draws of each chain, float64 (M, B, K); draw s is of chain s % M."""
    distribution: Any = predictive.distribution
    probs_SBK = distribution.probs.double()
    if isinstance(predictive.distribution, distributions.Bernoulli):
        probs_SBK = torch.cat([1 - probs_SBK, probs_SBK], dim=-1)
    return probs_SBK.unflatten(0, (-1, chains)).mean(0).cpu()


def chain_probs_of(functions: Functions, inputs: Tensor, chains: int) -> Tensor:
    """Return `chain_probs` at any number of inputs, with bounded memory."""
    return torch.cat([chain_probs(predict(functions, piece), chains) for piece in inputs.split(_ROWS)], dim=1)


def halved(chains: int) -> list[tuple[list[int], list[int]]]:
    """Return the ways to halve a circle of M chains, the smaller half first; none for a single chain."""
    half, everyone = chains // 2, range(chains)
    starts = range((chains if chains % 2 else half) if half else 0)
    halves = [sorted((start + m) % chains for m in range(half)) for start in starts]
    return [(smaller, [m for m in everyone if m not in smaller]) for smaller in halves]


def floors(probs_MBK: Tensor) -> list[Numbers]:
    """Return how far another sample of M chains of equal length would be, one mapping for each of `halved`."""
    splits = halved(len(probs_MBK))
    apart = [fidelity(probs_MBK[half].mean(0), probs_MBK[rest].mean(0)) for half, rest in splits]
    return [floor(distance, (len(half), len(rest))) for distance, (half, rest) in zip(apart, splits, strict=True)]


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

    Each method has one mapping with wasserstein1 (B,), in the target's own units; `scale` is these per unit that the
    model sees. The reference has one mapping for each of `halved`, and a last one against other samples of itself;
    none if there is a single chain. Function s of the reference is of chain s mod M. A method and the reference never
    share the seed of their samples.
    """
    pairs: dict[str, list[tuple[Functions | Source, Functions | Source]]]
    pairs = {name: [(some, functions[reference])] for name, some in functions.items() if name != reference}
    reference_functions = functions[reference]
    pairs[reference] = _splits(reference_functions, chains) if isinstance(reference_functions, Functions) else []
    distances: dict[str, list[list[Tensor]]] = {name: [[] for _ in of_method] for name, of_method in pairs.items()}
    for piece in inputs.split(_ROWS):
        for name, of_method in pairs.items():
            for index, pair in enumerate(of_method):
                first, second = (_samples(s, piece, mix(Purpose.DISTANCE, seed, who)) for who, s in enumerate(pair))
                distances[name][index].append(wasserstein1_rows(first, second) * scale)
    return {name: [{"wasserstein1": torch.cat(parts)} for parts in by_split] for name, by_split in distances.items()}


def averaged(
    rows: Mapping[str, Sequence[Mapping[str, Tensor]]], reference: str, chains: int
) -> dict[str, list[Numbers]]:
    """Return means over rows of what `row_distances` gives, and for the reference its floors."""
    means = {
        name: [{metric: float(v.mean()) for metric, v in by_metric.items()} for by_metric in parts]
        for name, parts in rows.items()
    }
    if means[reference]:
        *apart, same = means[reference]
        sizes = [(len(half), len(rest)) for half, rest in halved(chains)]
        means[reference] = [floor(by_metric, size, same=same) for by_metric, size in zip(apart, sizes, strict=True)]
    return means


def _splits(functions: Functions, chains: int) -> list[tuple[Functions | Source, Functions | Source]]:
    """Return the functions of both halves of the chains, in every way, and last all of them twice."""
    chain_S, splits = torch.arange(functions.draws) % chains, halved(chains)
    parts = [tuple(functions.some(torch.isin(chain_S, torch.tensor(half))) for half in split) for split in splits]
    return [*parts, (functions, functions)] if parts else []  # type: ignore[list-item]


def _samples(functions: Functions | Source, inputs: Tensor, seed: int) -> Tensor:
    """Return samples of the targets (SAMPLES, B) on the model's scale, equally many from each draw."""
    return predict(functions, inputs).sample(SAMPLES, seed=seed).flatten(1).cpu()

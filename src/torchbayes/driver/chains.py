"""Chains, the result of `sample`: by name, as a table and for arviz."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.diagnostics import Summary, summary
from torchbayes.diagnostics.export import in_arviz
from torchbayes.methods.protocol import Method
from torchbayes.model.parameters import Parameters

LEAST = 4  # draws per chain for R-hat: two for each half
LEAST_ESS = 10  # draws per chain for effective sizes, because fewer give no estimate of autocorrelations
_QUANTILES = {"q5": 0.05, "q50": 0.5, "q95": 0.95}
_HEADS = {"q5": "5 %", "q50": "50 %", "q95": "95 %", "ess_bulk": "bulk ESS", "ess_tail": "tail ESS", "rhat": "R-hat"}
_FORMATS = {"ess_bulk": ".0f", "ess_tail": ".0f", "rhat": ".3f"}
_SHOWN = 20  # quantities that are printed


@dataclass(frozen=True, repr=False)
class Chains:
    """The result of `sample`. `chains["tau"]` are the draws of a parameter, `print(chains)` is a table of all.

    Attributes:
        weights_MSD: retained draws of each chain; with named parameters, of the unconstrained vector.
        numbers: name -> float64 (M, steps), what every step reported, burn-in included.
        state: the last state.
        fault: the first exception that the density raised after burn-in; empty if there was none.
        problems: known problems of the chains, one clause each.
        parameters: names and constraints. A vector without names is called "w"; the weights of a network have the
            names of its parameters.
        steps_S: the step after which each draw was retained, int64; the first is 1.
        burn_in: steps before draws were retained.
        method: the sampler; without a prior it may differ from the one that was given.
    """

    weights_MSD: Tensor
    numbers: dict[str, Tensor]
    state: Any
    fault: str = ""
    problems: tuple[str, ...] = ()
    parameters: Parameters = field(kw_only=True)
    steps_S: Tensor = field(kw_only=True)
    burn_in: int = field(kw_only=True)
    method: Method = field(kw_only=True)

    def lost(self) -> list[list[int]]:
        """Return the steps at which each chain reported a divergence."""
        divergent = self.numbers.get("divergent")
        return [] if divergent is None else [steps.nonzero()[:, 0].tolist() for steps in divergent]

    def continued(self, later: Chains) -> Chains:
        """Return these chains and the steps that followed them, as if all had been taken in one call.

        Args:
            later: the chains of only those steps.
        """
        numbers = {name: torch.cat([seen, later.numbers[name]], 1) for name, seen in self.numbers.items()}
        return replace(
            later,
            weights_MSD=torch.cat([self.weights_MSD, later.weights_MSD], 1),
            numbers=numbers,
            fault=self.fault or later.fault,
            steps_S=torch.cat([self.steps_S, later.steps_S]),
        )

    def __getitem__(self, name: str) -> Tensor:
        """Return the draws of a parameter on its own scale, (M, S, *shape).

        Raises:
            KeyError: if there is no such parameter.
        """
        if name not in self.parameters.names:
            raise KeyError(f"there is no parameter {name!r}; there are {', '.join(self.parameters.names)}")
        return self.draws()[name]

    def draws(self) -> dict[str, Tensor]:
        """Return the draws of all parameters on their own scales, name -> (M, S, *shape)."""
        return self.parameters.constrained(self.weights_MSD)

    def shaped(self) -> dict[str, Tensor]:
        """Return the draws of all parameters with their axes flattened into one, name -> (M, S, P)."""
        return {name: values.unsqueeze(-1).flatten(2) for name, values in self.draws().items()}

    def sample_stats(self) -> dict[str, Tensor]:
        """Return what the step before each draw reported, by the names of arviz, each (M, S)."""
        return in_arviz({name: values[:, self.steps_S - 1] for name, values in self.numbers.items()})

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the numbers of the table for every quantity.

        Returns:
            quantity, such as "tau" or "theta[3]" -> mean, sd, q5, q50, q95 (quantiles of all draws), ess_bulk,
            ess_tail and rhat, as in `torchbayes.diagnostics`. R-hat is NaN with fewer than 4 draws of each chain,
            effective sizes with fewer than 10, and all but the quantiles where a draw is not finite.
        """
        return dict(self._rows())

    def quantities(self) -> list[str]:
        """Return the names of all numbers of a draw, such as "tau" and "theta[3]", in the order of `draws()`."""
        return [
            f"{name}[{', '.join(map(str, entry))}]" if entry else name
            for name, shape in self.parameters.shapes.items()
            for entry in itertools.product(*map(range, shape))
        ]

    def _rows(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the name and the numbers of each quantity."""
        columns = (column for values in self.shaped().values() for column in values.unbind(-1))
        for name, values_MS in zip(self.quantities(), columns, strict=True):
            yield name, _numbers(values_MS)

    def __repr__(self) -> str:
        chains, draws, _ = self.weights_MSD.shape
        shown, count = list(itertools.islice(self._rows(), _SHOWN)), len(self.quantities())
        lines = _aligned([
            ["", *(_HEADS.get(name, name) for name in shown[0][1])],
            *([label, *(_written(name, value) for name, value in row.items())] for label, row in shown),
        ])
        more = [f"... ({count - _SHOWN:,} more)"] if count > _SHOWN else []
        length = next(iter(self.numbers.values())).shape[1]
        totals = f"{chains} chains of {draws:,} draws each, of {length:,} steps, the first {self.burn_in:,} burn-in."
        return "\n".join([*lines, *more, totals, *(f"Problem: {problem}." for problem in self.problems)])


class Interrupted(KeyboardInterrupt):
    """Ctrl-C before the first draw; `chains` are the chains so far, which `sample` can resume."""

    def __init__(self, chains: Chains, total: int) -> None:
        """Keep the chains of an interrupted run of `total` steps."""
        super().__init__(
            f"after {chains.state.step:,} of {total:,} steps, before the first draw; `resume` its `chains`"
        )
        self.chains = chains


def judged(values: Tensor) -> Summary:
    """Return the diagnostics of draws (M, S, ...) on the CPU; effective sizes are NaN if there are too few draws."""
    diagnostics = Summary(*(statistic.cpu() for statistic in summary(values)))
    if values.shape[1] >= LEAST_ESS:
        return diagnostics
    unknown = torch.full_like(diagnostics.rhat, math.nan)
    return diagnostics._replace(ess_bulk=unknown, ess_tail=unknown, mcse=unknown)


def _numbers(values_MS: Tensor) -> dict[str, float]:
    """Return the numbers of one quantity."""
    values_MS = values_MS.detach().double()
    if not values_MS.numel():
        return dict.fromkeys(("mean", "sd", *_QUANTILES, "ess_bulk", "ess_tail", "rhat"), math.nan)
    numbers = {"mean": float(values_MS.mean()), "sd": float(values_MS.std()) if values_MS.numel() > 1 else math.nan}
    quantiles = np.quantile(values_MS.cpu().numpy(), list(_QUANTILES.values()))
    numbers |= dict(zip(_QUANTILES, map(float, quantiles), strict=True))
    named = ("ess_bulk", "ess_tail", "rhat")
    if values_MS.shape[1] < LEAST or not torch.isfinite(values_MS).all():
        return numbers | dict.fromkeys(named, math.nan)
    of_chains = judged(values_MS)
    return numbers | {name: float(getattr(of_chains, name)) for name in named}


def _written(name: str, value: float) -> str:
    return format(value, _FORMATS.get(name, ".4g"))


def _aligned(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table; the first column is aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ])
        for row in rows
    ]

"""The contents of a diagnosis of chains: spaces, traces, and numbers of the log; and that of the chains of `sample`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import seen
from torchbayes.diagnostics import Summary
from torchbayes.diagnostics.convergence import ENOUGH
from torchbayes.display import Overview, shown
from torchbayes.driver.chains import LEAST, Chains, judged
from torchbayes.health.chains import momentum_ebfmi
from torchbayes.posteriors.problems import warn_of


@dataclass(frozen=True)
class Trace:
    """One quantity along the chains."""

    name: str
    values_MS: Tensor  # draw after draw or record after record, float64 on the CPU
    over: str  # what the second axis counts: "draw" or "iteration"
    at_S: Tensor  # index of each draw or iteration


@dataclass(frozen=True)
class Record:
    """What a sampler logged after burn-in, per chain; None for what it does not log. All on the CPU."""

    # log density at each of R records, in nats; for minibatches the mean of an epoch's estimates
    log_density_MR: Tensor
    step_R: Tensor  # the iteration after which each record was written
    exact: bool  # whether a record is one iteration on all the data
    ebfmi_M: Tensor | None  # E-BFMI; None for samplers without momentum, for which it is meaningless
    acceptance_M: Tensor | None  # mean probability of acceptance
    divergences_M: Tensor | None  # number of divergent iterations
    step_size_M: Tensor | None  # mean
    gradients_M: Tensor  # after burn-in, in passes over the data: one of a minibatch counts as its share of a pass
    burn_in_gradients_M: Tensor  # the same in burn-in
    burn_in: int  # iterations of burn-in
    saturated_M: Tensor | None = None  # share of the iterations of NUTS whose trajectory `max_doublings` cut short


def _overview(diagnosis: Diagnosis) -> Overview:
    facts = {"chains": diagnosis.chains, "draws": diagnosis.draws, "verdict": diagnosis.verdict}
    header = ("space", "quantities", "largest R-hat", "R-hat ≤ 1.01", "least bulk ESS")
    rows = [_row(name, space) for name, space in diagnosis.spaces.items()]
    return Overview("Diagnosis", facts, header=header, rows=rows)


@shown(_overview)
@dataclass(frozen=True)
class Diagnosis:
    """How well the chains of a run have mixed, in weight and function space.

    Attributes:
        chains: M. A single chain is judged by its halves, which reveals a drift, but not a missed mode.
        draws: S, draws per chain.
        spaces: name -> mean, spread, Monte Carlo error, effective sizes and R̂ of all quantities of a space, on the
            CPU: "weights", (D,); "probabilities" or "means", (B, K); with targets "log likelihoods", (B,); with the
            log of a sampler on all the data "log density", (), of every iteration after burn-in. Those of `sample`
            have "weights", without constraints, and "parameters", (P,), the same on their own scales. NaN where
            nothing moves; effective sizes and Monte Carlo errors are NaN also if a chain has fewer than 10 draws.
        traces: the log density, or else the log likelihood of the rows; the weight with the largest R̂; and the
            prediction with the largest Monte Carlo error.
        record: numbers from the log; None without a log, or before its first line after burn-in.
    """

    chains: int
    draws: int
    spaces: Mapping[str, Summary]
    traces: tuple[Trace, ...]
    record: Record | None

    @property
    def functions(self) -> str:
        """The name of what is judged beside the weights: "probabilities", "means" or "parameters"."""
        return next(name for name in self.spaces if name in {"probabilities", "means", "parameters"})

    @property
    def verdict(self) -> str:
        """What R-hat and effective sizes of the functions say: "converged", "nearly converged", or "not converged".

        Converged: all R-hats are at most 1.01 and all bulk effective sizes at least 100 for each chain (Vehtari et
        al. 2021). Nearly: 95 % of the R-hats are at most 1.05. Functions that never move count as not converged.
        """
        space = self.spaces[self.functions]
        rhat = torch.where(space.rhat.isnan(), math.inf, space.rhat)
        if bool((rhat <= 1.01).all()) and bool((space.ess_bulk >= ENOUGH * self.chains).all()):
            return "converged"
        return "nearly converged" if (rhat <= 1.05).double().mean() >= 0.95 else "not converged"

    @property
    def gradients(self) -> float:
        """Gradients of all chains after burn-in, in passes over the data; NaN without a log."""
        return float(self.record.gradients_M.sum()) if self.record and self.record.gradients_M.sum() > 0 else math.nan

    def per_gradient(self, space: str) -> Tensor:
        """Return bulk effective samples per gradient after burn-in, in the shape of the space.

        Samplers are compared by it.
        """
        return self.spaces[space].ess_bulk / self.gradients


def _row(name: str, space: Summary) -> tuple[str, int, float, str, float]:
    """Return a row of the table of spaces."""
    rhat, bulk = space.rhat[~space.rhat.isnan()], space.ess_bulk[~space.ess_bulk.isnan()]
    share = f"{(rhat <= 1.01).double().mean():.1%}" if len(rhat) else "nan"
    highest, least = (float(rhat.max()) if len(rhat) else math.nan, float(bulk.min()) if len(bulk) else math.nan)
    return name, space.rhat.numel(), highest, share, least


def record_of(
    columns: Mapping[str, Tensor], step_R: Tensor, *, exact: bool, gradients: tuple[Tensor, Tensor], burn_in: int
) -> Record:
    """Return the numbers of a log from its columns after burn-in, each float64 (M, R).

    `gradients` are those of each chain, (M,), after burn-in and in it.
    """
    return Record(
        columns["log_density"],
        step_R,
        exact,
        momentum_ebfmi(columns),
        columns["acceptance"].mean(-1) if "acceptance" in columns else None,
        columns["divergent"].sum(-1).round().long() if "divergent" in columns else None,
        columns["step_size"].mean(-1) if "step_size" in columns else None,
        *gradients,
        burn_in,
        columns["saturated"].mean(-1) if "saturated" in columns else None,
    )


def draw_trace(name: str, values_MS: Tensor) -> Trace:
    """Return the trace of a quantity over the draws, (M, S)."""
    values_MS = values_MS.detach().double().cpu()
    return Trace(name, values_MS, "draw", torch.arange(1, values_MS.shape[1] + 1))


def largest(numbers: Tensor) -> tuple[int, ...] | None:
    """Return the index of the largest number, or None if all are NaN."""
    if numbers.isnan().all():
        return None
    position = torch.where(numbers.isnan(), -math.inf, numbers).argmax()
    return tuple(int(index) for index in torch.unravel_index(position, numbers.shape))


def of_chains(chains: Chains) -> Diagnosis:
    """Return the diagnosis of the chains of `sample`; a ValueError if draws are too few or not finite."""
    count, draws, _ = chains.weights_MSD.shape
    check_enough(draws)
    warn_of(chains.problems, "these chains")
    values_MSP = torch.cat(list(chains.shaped().values()), -1)
    spaces, record, traces = {"weights": judged(chains.weights_MSD), "parameters": judged(values_MSP)}, None, []
    if "gradients" in chains.numbers:
        after = {name: column[:, chains.burn_in :].cpu() for name, column in chains.numbers.items()}
        before_M = chains.numbers["gradients"][:, : chains.burn_in].cpu().sum(-1)
        steps_R = torch.arange(chains.burn_in + 1, chains.burn_in + 1 + after["log_density"].shape[1])
        gradients = after["gradients"].sum(-1), before_M
        record = record_of(after, steps_R, exact=True, gradients=gradients, burn_in=chains.burn_in)
        traces.append(Trace("log density", record.log_density_MR, "iteration", steps_R))
        if len(steps_R) >= LEAST:
            spaces["log density"] = judged(record.log_density_MR)
    rhat_P = spaces["parameters"].rhat
    if worst := largest(rhat_P):
        name = f"{chains.quantities()[worst[0]]} (R-hat {float(rhat_P[worst]):.2f})"
        traces.append(draw_trace(name, values_MSP[:, :, worst[0]]))
    return Diagnosis(count, draws, spaces, tuple(traces), record)


def check_unused(error: type[Exception], whose: str, got: str, **settings: Any) -> None:
    """Raise an error if an argument is given that is only for `whose` results."""
    for name, value in settings.items():
        if value is not None:
            raise error(f"`{name}` is for {whose}; got {seen(value)} for {got}. Leave it out.")


def check_enough(draws: int) -> None:
    """Raise a ValueError if each chain has too few draws for R-hat."""
    if draws < LEAST:
        raise ValueError(f"R-hat needs at least {LEAST} draws of each chain; there are {draws}. Sample longer.")

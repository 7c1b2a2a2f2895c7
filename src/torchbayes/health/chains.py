"""Known problems of chains, judged by what their steps reported after burn-in and by their draws.

Only what makes chains worthless counts, not what makes them short; `diagnose` assesses the others.

- A chain whose weights are not finite, that never moved, or that accepted fewer than 1 % of its proposals: any
  useful sampler accepts far more, the slowest of them 23 % (Roberts and Rosenthal 2001).
- Divergences in more than one iteration in five of a chain, or in more than one in 200 of all chains, where Stan
  complains of any. Chains do not enter parts of a target that are too steep for their steps: on a curved one, E[x²]
  was 1.4 to 2.4 instead of 4 with 0.8 to 1.3 % of divergences, and R-hat at most 1.04. Trajectories that leave the
  support do not count as divergences: they are rejected, and the chain is correct.
- E-BFMI below 0.2, the bound of Betancourt (2016, "Diagnosing suboptimal cotangent disintegrations"): momenta
  hardly change the energy, and tails are not reached.
- R-hat above 1.5 of the log density or the log likelihood: chains that agree have 1, those that have not converged
  1.1 and more (Gelman et al. 2013, section 11.4), and at 1.5 the chains differ by as much as each of them varies.
  Weights of a network may differ because hidden units can be exchanged, but log densities may not. If the density
  is not that of a network, weights are judged too, all of them or 1,000 spread over them: R-hat of one weight in
  twenty must not be above 1.5, nor that of a single weight's raw values above 3, as in chains in separate modes.

The last two need 100 iterations or more, the others 20, weights that are not finite any number. A sampler is judged
by those of these numbers that it reports: one without momentum has no energies, so neither divergences nor E-BFMI.
Samplers on minibatches see noisy densities and accept every step, so only their weights are judged. Their chains are
left out where they are stuck: where the means of both the log density and the log likelihood are below the highest of
all chains by

    10 √(D/2 + e²),    e the standard error of a mean over epochs

because the log density of D normal weights has a standard deviation of √(D/2), and the rows are less likely by a nat
each. The density alone does not count: chains at wider weights may fit as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbayes.diagnostics import ebfmi, rhat
from torchbayes.health.ending import Case, Ending, History
from torchbayes.health.residuals import unexplained
from torchbayes.model.layout import Layout, weight_name

ACCEPTED, DIVERGED, SELDOM, INFORMED, AGREED, APART, STUCK = 0.01, 0.2, 0.005, 0.2, 1.5, 3.0, 10.0
SOME, MANY = 20, 100  # iterations needed to judge acceptance, divergences and stillness; and mixing
FEW = 4  # epochs needed to judge whether a chain on minibatches is stuck
_COLUMNS = ("acceptance", "divergent", "outside", "failed", "energy", "log_density", "log_likelihood")
_LOOKED_AT = 1000  # weights whose R-hat is computed
_BLOCK = 1 << 22  # weights read at once
STUCK_SAID = "dropped: the log density is far below that of another chain"


@dataclass(frozen=True, kw_only=True)
class Sampled(Ending):
    """A run of Markov chains."""

    burn_in: int  # iterations that do not count
    lost: Sequence[Sequence[int]] = ()  # the steps at which each chain was seen to have diverged, on minibatches
    most: int = 0  # times that a chain may diverge before it ends
    noisy: bool = False  # whether steps have seen minibatches

    def dropped(self, case: Case) -> Tensor | None:
        columns = case.history.columns(after=self.burn_in) if self.noisy else {}
        if not columns or next(iter(columns.values())).shape[1] < FEW:
            return None
        return stuck(columns, case.posterior.weights_MSD.shape[-1], case.source.num_data)

    def look(self, case: Case) -> list[str]:
        problems = problems_of(case.posterior.weights_MSD, case.history, burn_in=self.burn_in)
        return [*diverged(self.lost, self.most), *(problems or unexplained(case.posterior, case.source))]


def problems_of(weights_MSD: Tensor, history: History, *, burn_in: int) -> tuple[str, ...]:
    """Return the problems of chains, from their draws and their log; `burn_in` iterations do not count.

    The log has a line for every iteration of a sampler on all the data. For one on minibatches only the weights are
    judged.
    """
    reported = history.columns(after=burn_in)
    # This sampler does not report a column that holds only NaN.
    columns = {name: reported[name] for name in _COLUMNS if name in reported and not reported[name].isnan().all()}
    exact = "acceptance" in columns
    return problems(weights_MSD, columns if exact else {}, fault=history.first("fault", after=burn_in))


def problems(
    weights_MSD: Tensor,
    columns: Mapping[str, Tensor],
    *,
    fault: str = "",
    identified: bool = False,
    layout: Layout | None = None,
) -> tuple[str, ...]:
    """Return the problems of chains, one clause each; a chain with one problem is not judged by the next criteria.

    `weights_MSD` are read in blocks. `columns` are the reports of every iteration after burn-in, by name, each (M,
    R): empty for samplers on minibatches, else with `acceptance` and whatever the sampler reports. `fault` is the
    first exception of the density. `identified` says whether weights are identified across chains, unlike those of
    a network. `layout` names them.
    """
    clauses = []
    finite_M, still_M = _weights(weights_MSD)
    if not finite_M.all():
        clauses.append(f"{named(~finite_M)} left weights that are not finite")
    sound_M = finite_M.clone()
    if columns and columns["acceptance"].shape[1] >= SOME:
        stuck_M = sound_M & (columns["acceptance"].mean(1).cpu() < ACCEPTED)
        if stuck_M.any():
            failed = float(columns["failed"].cpu()[stuck_M].mean()) if "failed" in columns else 0.0
            reason = f"; the density raised an exception at {failed:.0%} of them, first {fault or 'unknown'}"
            clauses.append(f"{named(stuck_M)} accepted fewer than 1 % of the proposals{reason if failed else ''}")
        sound_M &= ~stuck_M
    if weights_MSD.shape[1] >= SOME:
        if (sound_M & still_M).any():
            clauses.append(f"{named(sound_M & still_M)} never moved")
        sound_M &= ~still_M
    if columns:
        clauses += _mixing({name: column.cpu() for name, column in columns.items()}, sound_M)
    if identified and not clauses and weights_MSD.shape[1] >= MANY:
        clauses += _weights_agree(weights_MSD, layout)
    return tuple(clauses)


def stuck(columns: Mapping[str, Tensor], size: int, num_data: int) -> Tensor:
    """Return which chains are far less likely than the most likely one, bool (M,).

    `columns` are the reports of steps or epochs, each (M, R), among them `log_density` and `log_likelihood`; `size` is
    D, and `num_data` N. No chain is stuck if a number is not finite, or a report is missing.
    """
    stuck_M = torch.ones(len(next(iter(columns.values()))), dtype=torch.bool)
    if not {"log_density", "log_likelihood"} <= columns.keys():
        return ~stuck_M
    for name, least in (("log_density", 0), ("log_likelihood", num_data)):
        column_MR = columns[name]
        error_M = column_MR.std(1, correction=0) / math.sqrt(column_MR.shape[1])
        mean_M = column_MR.mean(1)
        below_M = mean_M < mean_M.max() - (STUCK * (size / 2 + error_M.square()).sqrt()).clamp_min(least)
        stuck_M &= below_M & column_MR.isfinite().all()
    return stuck_M


def were(which_M: Tensor) -> str:
    """Return the verb for some chains."""
    return "was" if which_M.sum() == 1 else "were"


def momentum_ebfmi(columns: Mapping[str, Tensor]) -> Tensor | None:
    """Return E-BFMI of each chain, float64 (M,), from reports of iterations, each (M, R).

    None for samplers without momentum, which have no energies, and where energies are not finite, or fewer than 2.
    """
    energy_MR = columns.get("energy")
    if energy_MR is None or energy_MR.shape[1] < 2 or not torch.isfinite(energy_MR).all():
        return None
    return ebfmi(energy_MR)


def named(which_M: Tensor) -> str:
    """Return the names of some chains."""
    chains = which_M.nonzero().flatten().tolist()
    if len(chains) > 3:
        return f"{len(chains)} of {len(which_M)} chains"
    *most, last = map(str, chains)
    return f"chains {', '.join(most)} and {last}" if most else f"chain {last}"


def _weights(weights_MSD: Tensor) -> tuple[Tensor, Tensor]:
    """Return which chains have only finite draws, and which have constant ones."""
    chains, draws, size = weights_MSD.shape
    finite_M, still_M = torch.ones(2, chains, dtype=torch.bool)
    for block in weights_MSD.split(max(1, _BLOCK // max(1, chains * size)), dim=1) if draws else ():
        finite_M &= torch.isfinite(block).flatten(1).all(1).cpu()
        still_M &= (block == weights_MSD[:, :1]).flatten(1).all(1).cpu()
    return finite_M, still_M


def _weights_agree(weights_MSD: Tensor, layout: Layout | None) -> list[str]:
    """Return the problem of chains whose weights disagree."""
    size = weights_MSD.shape[2]
    index_P = torch.arange(min(size, _LOOKED_AT)) * size // min(size, _LOOKED_AT)
    values_MSP = weights_MSD[:, :, index_P].cpu()
    ranked_P, raw_P = (rhat(values_MSP, method=way).nan_to_num(nan=1.0) for way in ("rank", "split"))
    if ranked_P.quantile(0.95, interpolation="higher") <= AGREED and raw_P.max() <= APART:
        return []
    everyone_M, worst = torch.ones(len(weights_MSD), dtype=torch.bool), int(raw_P.argmax())
    number = int(index_P[worst])
    name = weight_name(layout, number) if layout else f"weight {number}"
    return [f"{_who(everyone_M)} on {name} (R-hat {float(raw_P[worst]):.2f})"]


def _who(chains_M: Tensor) -> str:
    """Return in words which chains disagree, if only some are judged."""
    return "chains disagree" if chains_M.sum() > 1 else f"the halves of {named(chains_M)} disagree"


def _mixing(columns: Mapping[str, Tensor], sound_M: Tensor) -> list[str]:
    """Return the problems of the mixing of moving chains."""
    clauses, iterations = [], columns["acceptance"].shape[1]
    ebfmi_M = momentum_ebfmi(columns)
    if ebfmi_M is not None and iterations >= SOME and {"divergent", "outside"} <= columns.keys():
        share_M = (columns["divergent"] - columns["outside"]).mean(1)
        bad_M = sound_M & (share_M > DIVERGED)
        if bad_M.any():
            clauses.append(f"up to {float(share_M[bad_M].max()):.0%} of the iterations of {named(bad_M)} diverged")
            sound_M = sound_M & ~bad_M
        elif iterations >= MANY and sound_M.any() and (share := float(share_M[sound_M].mean())) > SELDOM:
            clauses.append(
                f"{share:.1%} of the iterations diverged, so where the density is steepest it was not sampled (take "
                f"smaller steps, or other coordinates)"
            )
    if iterations < MANY or not sound_M.any():
        return clauses
    if ebfmi_M is not None and (bad_M := sound_M & (ebfmi_M < INFORMED)).any():
        clauses.append(f"E-BFMI of {named(bad_M)} is {float(ebfmi_M[bad_M].min()):.3f}, below {INFORMED}")
    for name in [name for name in ("log_density", "log_likelihood") if name in columns]:
        values_MR = columns[name][sound_M]
        largest = float(rhat(values_MR)) if torch.isfinite(values_MR).all() else 1.0
        if largest > AGREED:
            clauses.append(f"{_who(sound_M)} on the {name.replace('_', ' ')} (R-hat {largest:.2f})")
            break
    return clauses


def diverged(lost: Sequence[Sequence[int]], most: int) -> list[str]:
    """Return the problem of chains that have diverged, one clause each, from the steps at which each was seen to have.

    A chain may diverge `most` times before it ends.
    """
    clauses = []
    for m, steps in enumerate(lost):
        if len(steps) == most:
            clauses.append(f"chain {m} diverged {most} times and ended at step {steps[-1]:,} (take smaller steps)")
        elif steps:
            times = f"{len(steps)} times, first" if len(steps) > 1 else "once,"
            share = f"1/{2 ** len(steps)} of" if len(steps) > 1 else "half"
            clauses.append(
                f"chain {m} diverged {times} at step {steps[0]:,}, and went on from where it was sound with {share} "
                f"the step size (take smaller steps)"
            )
    return clauses

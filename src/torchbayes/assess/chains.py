"""The diagnosis of the chains of `sample`, from their parameters and from what their steps reported."""

from __future__ import annotations

from typing import Any

import torch

from torchbayes.assess.diagnosis import Diagnosis, Trace, draw_trace, largest, record_of
from torchbayes.checks import given, seen
from torchbayes.driver.chains import LEAST, Chains, judged
from torchbayes.posteriors.problems import warn_of


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


def check_alone(**others: Any) -> None:
    """Raise a TypeError if an argument is given that only the posterior of a network needs."""
    for name, value in given(**others).items():
        raise TypeError(
            f"`{name}` is for the draws of a network; got {seen(value)} for chains of `sample`, which need no more. "
            f"Leave it out."
        )


def check_enough(draws: int) -> None:
    """Raise a ValueError if each chain has too few draws for R-hat."""
    if draws < LEAST:
        raise ValueError(f"R-hat needs at least {LEAST} draws of each chain; there are {draws}. Sample longer.")

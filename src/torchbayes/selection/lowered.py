"""Settings that are lowered, step by step, while held-out rows become more likely.

They begin at the values of Bayes' rule, a weight β = 1 of the KL divergence and a prior N(0, σ²) with σ = 1. Then

    β* = β_k,    β_k = 10^{−k/2},        σ* = σ_k,    σ_k = 2^−k,        k the first with v_{k+1} > v_k − 0.02

where v_k is the mean negative log likelihood of the held-out rows under the average prediction, in nats per row.

A normal distribution of independent weights is far from the posterior of a network. With few rows, its bound gains
more from coming closer to the prior than from explaining the data, so that at β = 1 it underfits. The common remedy
is less weight on the divergence (Wenzel et al. 2020 list examples); held-out rows say how much. A standard normal
prior suits most tables. With few rows and much noise, a network drawn from it varies too much, and even its exact
posterior predicts worse than a network whose training was stopped early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchbayes.methods.choices import SCALES, Lowered, PriorScale
from torchbayes.methods.protocol import name_of_members
from torchbayes.model.model import having_scale
from torchbayes.selection.trials import Chosen, Search, having, mean_nll, nll_under

_FOLDS, _EQUAL = 3, 0.02  # folds for a prior's scale, enough to tell its values apart; nats that count as no gain


def choose_setting(choice: Lowered, search: Search) -> Chosen:
    """Return the value of a setting; the first one if the runs diverged."""
    search = replace(search, begin=search.begin.some(slice(1)))
    settings = {name_of_members(search.method): 1, **choice.trial}

    def nll(value: float) -> float:
        method = having(search.method, {**settings, choice.setting: value})
        return nll_under(search, method, search.folds[: choice.folds], score=mean_nll)

    value, nlls = _lowest(choice.values, nll, search)
    tried = [{choice.setting: value, "nll": nll} for value, nll in nlls.items()]
    return Chosen({choice.setting: value}, {"tried": tried})


def choose_scale(choice: PriorScale, search: Search) -> Chosen:
    """Return the scale of the prior; 1 if the runs diverged."""
    begin = search.begin.some(slice(min(choice.members, search.method.members)))
    search, settings = replace(search, begin=begin), {name_of_members(search.method): len(begin.seeds)}
    if choice.length is not None:
        per_epoch = search.folds[0].rows.steps_per_epoch
        settings["epochs"] = math.ceil(choice.length * search.method.length(per_epoch) / per_epoch)
    method = having(search.method, settings)

    def nll(scale: float) -> float:
        return nll_under(search, method, search.folds[:_FOLDS], score=mean_nll, model=having_scale(search.model, scale))

    scale, nlls = _lowest(SCALES, nll, search)
    return Chosen({}, {"tried": [{"prior_scale": scale, "nll": nll} for scale, nll in nlls.items()]}, scale)


def _lowest(values: Sequence[float], nll: Callable[[float], float], search: Search) -> tuple[float, dict[float, float]]:
    """Return the first of falling values after which the next gains less than 0.02 nats, and the score of each."""
    nlls: dict[float, float] = {}
    chosen = values[0]
    for value in values:
        nlls[value] = nll(value)
        search.told(len(nlls), len(values), nlls[value])
        if value != chosen and not nlls[value] < nlls[chosen] - _EQUAL:
            break
        chosen = value
    return chosen, nlls

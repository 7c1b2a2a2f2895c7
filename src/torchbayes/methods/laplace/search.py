"""Where Laplace begins if nobody says: at weights of a training run, under a prior that held-out rows choose.

A run whose length held-out rows chose ends before its mode, with weights that predict well as they are. The evidence
takes them for a mode, and a Gaussian under the prior that it chooses is then too wide: on eight of fifteen tables its
linearised predictive was worse than the network alone, by up to 0.5 nats. So the same held-out rows choose the factor d
on the precision of the prior: of those whose mean negative log likelihood, in nats a row, is within 0.005 of the least,
the smallest, which leaves the posterior as wide as these rows allow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.learned import at_least
from torchbayes.methods.optimise.length import choose_epochs
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.trials import mean_nll, trial
from torchbayes.methods.protocol import Chosen, Fold
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.predictive.linearised import Linearised

SEEKER = MAP()
"""The training whose weights a Gaussian is put around."""

FACTORS = tuple(10.0 ** (power / 2) for power in range(-2, 11))  # 0.1 to 100,000
_EQUAL = 0.005  # nats a row


def search(
    method: Any,
    model: Model,
    folds: Sequence[Fold],
    *,
    weights_MD: Tensor,
    buffers: Buffers,
    seeds: Sequence[int],
    told: Callable[[int, int, float], object] = lambda *_: None,
) -> Chosen:
    """Return what held-out rows choose: how long to train, and the prior.

    Args:
        method: settings of `Laplace`; its prior is chosen if that is to be one factor.
        model: the model.
        folds: rows to train on with those held out, a run for each.
        weights_MD: where training begins, (1, D).
        buffers: the network's buffers there.
        seeds: of the member, one.
        told: as `choose_epochs` takes it.

    Returns:
        `prior`, the factor d; and a record of the search, in which `mode` holds settings of the training.
    """
    refuse_coupled(model)
    begin = {"weights_MD": weights_MD, "buffers": buffers, "seeds": seeds}
    num_data = folds[0].rows.num_data
    training = LogDensity(model, num_data, None, plan="auto", training=True)
    found = choose_epochs(SEEKER, training, folds, told=told, **begin)
    record = {**found.record, "mode": found.settings}
    by_evidence = method.noise or method.prior in {"layer", "weight"}  # which needs a mode
    if not record["mode"] or by_evidence:
        return found._replace(settings={}, record=record)
    known = {"check_mode": False}  # that these weights are no mode is known, and allowed for
    found = found._replace(settings=known, record=record)
    if method.prior != "scalar":
        return found
    begin["weights_MD"] = at_least(weights_MD, found.learned)
    seeker, around = replace(SEEKER, **record["mode"]), replace(method, prior="model", check_mode=False)
    density = LogDensity(model, num_data, None, plan=method.plan)
    posteriors = []
    for fold in folds:
        point: Any = trial(seeker, training, fold, **begin)
        there = {"weights_MD": point.weights_MD, "buffers": point.buffers_M or {}, "seeds": seeds}
        posteriors.append(trial(around, density, fold, **there))
    if (nlls := _by_factor(posteriors, folds)) is None:
        return found
    tried = [{"prior": factor, "nll": nll} for factor, nll in nlls.items()]
    return found._replace(settings={"prior": _widest(nlls), **known}, record={**record, "tried": tried})


def search_online(
    method: Any,
    density: LogDensity,
    folds: Sequence[Fold],
    *,
    weights_MD: Tensor,
    buffers: Buffers,
    seeds: Sequence[int],
    told: Callable[[int, int, float], object] = lambda *_: None,
) -> Chosen:
    """Return what held-out rows choose for `OnlineLaplace`: how long to train, and a factor beside the evidence.

    The epochs that suit training under the model's own prior, and the usual number, are both tried: under a prior that
    the evidence chooses, longer training may be better.

    Args:
        method: settings of `OnlineLaplace`.
        density: the target of the rows that are not held out, in training mode.
        folds: rows to train on with those held out, a run for each.
        weights_MD: where training begins, (1, D).
        buffers: the network's buffers there.
        seeds: of the member, one.
        told: as `choose_epochs` takes it.

    Returns:
        `epochs_of_descent` and `factor`, and a record of the search.
    """
    begin: dict[str, Any] = {"weights_MD": weights_MD, "buffers": buffers, "seeds": seeds}
    descent = replace(SEEKER, optimizer=method.optimizer, epochs=method.epochs_of_descent, batch_size=method.batch_size)
    found = choose_epochs(descent, density, folds, told=told, **begin)
    if not found.settings:
        return found
    lengths = (found.settings["epochs"], method.epochs_of_descent)
    candidates = {epochs: replace(method, epochs_of_descent=epochs, check_mode=False) for epochs in lengths}
    tried, done, per_epoch = [], itertools.count(1), folds[0].rows.steps_per_epoch
    most = len(folds) * sum(len(having.order(per_epoch)) for having in candidates.values())
    begin["after_epoch"] = lambda: told(next(done), most, found.record["nll"])
    for epochs, having in candidates.items():
        nlls = _by_factor([trial(having, density, fold, **begin) for fold in folds], folds)
        tried += [] if nlls is None else [(nlls[_widest(nlls)], epochs, _widest(nlls))]
    if not tried:
        return Chosen({"epochs_of_descent": found.settings["epochs"], "check_mode": False}, found.record)
    _, epochs, factor = min(tried, key=lambda one: one[0])
    record = [{"epochs_of_descent": epochs, "factor": factor, "nll": nll} for nll, epochs, factor in tried]
    settings = {"epochs_of_descent": epochs, "factor": factor, "check_mode": False}
    return Chosen(settings, {**found.record, "tried": record})


def _by_factor(posteriors: Sequence[Any], folds: Sequence[Fold]) -> dict[float, float] | None:
    """Return the negative log likelihood of held-out rows under each factor; None where a prior is flat."""
    if any(bool((posterior.strength_D == 0).any()) for posterior in posteriors):  # there is nothing to multiply
        return None
    return {f: mean_nll([Linearised(_under(p, f)) for p in posteriors], folds) for f in FACTORS}


def _widest(nlls: Mapping[float, float]) -> float:
    """Return the smallest factor that is as good as the best."""
    return next(factor for factor, nll in nlls.items() if nll <= min(nlls.values()) + _EQUAL)


def _under(posterior: LaplacePosterior, factor: float) -> LaplacePosterior:
    return posterior.with_strength(posterior.strength_D * factor)

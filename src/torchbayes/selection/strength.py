"""The factor on the precision of the prior of a Gaussian around weights of a training run.

A run whose length held-out rows chose ends before its mode, with weights that predict well. The evidence takes them
for a mode, and a Gaussian under the prior that it chooses is then too wide: on eight of fifteen tables its
linearised predictive was worse than the network alone, by up to 0.5 nats. So the same held-out rows choose the
factor d on the precision of the prior. Of the factors whose mean negative log likelihood, in nats per row, is
within 0.005 of the least, the smallest is taken, which leaves the posterior as wide as these rows allow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchbayes.methods.choices import FACTORS, Strength
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.predictive.linearised import Linearised
from torchbayes.selection.trials import Chosen, Fold, Search, having, mean_nll, trial

_EQUAL = 0.005  # nats per row


def choose_strength(choice: Strength, search: Search, mode: Mapping[str, Any]) -> Chosen:
    """Return the factor, with the settings beside it that go best with it; nothing if the prior is flat.

    `mode` holds settings of the training that finds where the method begins.
    """
    search = replace(search, begin=search.begin.some(slice(1)))
    names = {name for settings in choice.beside for name in settings}
    chosen = {name: getattr(search.method, name) for name in names}
    candidates = [chosen, *choice.beside]
    methods = [having(search.method, {**choice.trial, **settings}) for settings in candidates]
    report, best, tried = _report(methods, search), dict[str, Any](), list[dict[str, Any]]()
    for settings, method in zip(candidates, methods, strict=True):
        nlls = _by_factor([_around(method, fold, search, mode, report) for fold in search.folds], search.folds)
        if not nlls:
            continue
        tried += [{**settings, choice.setting: factor, "nll": nll} for factor, nll in nlls.items()]
        widest = next(factor for factor, nll in nlls.items() if nll <= min(nlls.values()) + _EQUAL)
        if not best or nlls[widest] < best["nll"]:
            best = {**settings, choice.setting: widest, "nll": nlls[widest]}
    best.pop("nll", None)
    return Chosen(best, {"tried": tried} if tried else {})


def _around(method: Any, fold: Fold, search: Search, mode: Mapping[str, Any], report: Callable[[], object]) -> Any:
    """Return the posterior of a trial run, which begins at the mode of another run if the method needs one."""
    begin, seeker = search.begin, method.needs.start
    if seeker is not None:
        seeker = having(seeker, {"members": 1, **mode})
        point = trial(seeker, search.density(seeker), fold, begin=begin)
        begin = replace(begin, weights_MD=point.weights_MD, buffers=point.buffers_M or {})
    return trial(method, search.density(method), fold, begin=begin, after_epoch=report)


def _report(methods: Sequence[Any], search: Search) -> Callable[[], object]:
    """Return the callback after each epoch of a trial run."""
    per_epoch, done = search.folds[0].rows.steps_per_epoch, itertools.count(1)
    most = len(search.folds) * sum(method.length(per_epoch) // per_epoch for method in methods)
    return lambda: search.told(next(done), most, None)


def _by_factor(posteriors: Sequence[LaplacePosterior], folds: Sequence[Fold]) -> dict[float, float]:
    """Return the negative log likelihood of held-out rows under each factor; none if a prior is flat."""
    if any(
        bool((posterior.strength_D == 0).any()) for posterior in posteriors
    ):  # a flat prior has no precision to multiply
        return {}

    def under(factor: float) -> list[Linearised]:
        return [Linearised(posterior.with_strength(posterior.strength_D * factor)) for posterior in posteriors]

    return {factor: mean_nll(under(factor), folds) for factor in FACTORS}

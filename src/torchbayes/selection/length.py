"""How long to train: chosen by first runs of one member, without the held-out rows that judge them.

A network that is trained too long interpolates the training rows: its noise scale goes to zero, its probabilities
to zero and one. The first run has a constant learning rate. After an epoch e the held-out rows have the mean
negative log likelihood v_e, in nats per target, and

    e* = min { e : v_e ≤ min_e' v_e' + 0.02 },    epochs = max(4, 2 e*)

are those of the run itself, which has all rows and a learning rate that falls: at half the rate on average, 2 e*
epochs cover the same distance. The first run ends if v has not fallen for 0.3 e epochs, 10 epochs and 300 steps, or
after 50 epochs or 8,000 steps, whichever is more. If few rows are held out there are several such runs, each
without rows of its own, and v is their mean. A network with ten rows or more for each weight cannot interpolate
them, and trains for at least the usual length.

Held-out rows also give the noise of new rows, at the weights that predict them best. A learned scale moves by at
most the learning rate per step. It falls as the network learns, and if training stops after a few steps it does not
get from half the spread of the targets up to a larger noise. So a fit whose length held-out rows choose begins no
lower than at their estimate (docs/decisions/0033-a-noise-that-does-not-begin-too-low.md).

For MAP, SWA and SWAG mean and noise are judged apart (docs/decisions/0045-noise-and-mean-are-judged-apart.md): v_e is
that under the noise which makes the held-out rows likeliest, for normal noise log RMSE_e + ½ log 2πe, and 0.005 stands
for 0.02. Trial runs, as long as the run itself, then leave out the same rows, and the noise of the posterior is the
most probable one at the residuals of these, whatever it was in training.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from torchbayes.driver.loop import Reader, steps
from torchbayes.health.constant import num_targets
from torchbayes.health.descent import log_likelihoods
from torchbayes.methods.choices import Epochs
from torchbayes.methods.optimise.learned import is_open, likeliest, most_probable
from torchbayes.methods.optimise.seeker import seeker
from torchbayes.methods.protocol import DivergedError, Info, Method
from torchbayes.methods.schedules import USUAL_EPOCHS, Constant, epochs_of
from torchbayes.posteriors.point import Point
from torchbayes.selection.trials import Chosen, Fold, Search, having, nll_of_draws, nll_under

FACTOR, _SHORTEST = 2, 4
_ROWS = 10  # for each weight; so few weights interpolate nothing, and a shorter run would only miss the mode
# nats; an earlier epoch that is as good to within this is preferred, the second where the noise is judged apart
_EQUAL, _EQUAL_APART = 0.02, 0.005
_LONGEST = 8000  # steps of the first run
_NEXT = 1.05  # ratio of the epochs after which held-out rows are evaluated: each of the first twenty, then fewer
_PATIENCE = {"epochs": 10, "steps": 300, "share": 0.3}


def choose_epochs(choice: Epochs, search: Search) -> Chosen:
    """Return the number of epochs that held-out rows choose, and what is chosen with it.

    The record has the epochs of the first runs, the best one, and the mean negative log likelihood of the held-out
    rows there, in nats per target. If the runs diverged at once, nothing is chosen.
    """
    outcome = _of_first_runs(choice, search)
    if outcome is None:
        return Chosen({}, {})
    epochs, record, learned = outcome
    epochs = max(choice.fewest(search.folds[0].rows.steps_per_epoch), epochs)
    lengths = dict.fromkeys(choice.settings, epochs)
    settings, mode = {**lengths, **choice.known}, {"epochs": epochs} if choice.mode else {}
    outcome = Chosen(settings, record, learned=learned, mode=mode)
    noise = choice.noise and is_open(search.model)
    then = choice.then or ([{}] if noise else [])
    return _with_best(then, outcome, search.having(outcome), noise=noise) if then else outcome


def _with_best(then: Sequence[Mapping[str, Any]], chosen: Chosen, search: Search, *, noise: bool) -> Chosen:
    """Return what was found, with those settings under which held-out rows are most likely, the first of equals.

    A trial run of each trains one member on each fold. With `noise` it is judged under the noise that the held-out rows
    ask for after it, which is that of the run itself.
    """
    search = replace(search, begin=search.begin.some(slice(1)))
    nlls, noises = list[float](), list[list[float] | None]()

    def score(posteriors: Sequence[Any], folds: Sequence[Fold]) -> float:
        learned_P = _learned([each.centre for each in posteriors], folds) if noise else None
        if learned_P is not None:
            noises[-1] = learned_P.tolist()
            posteriors = [each.with_learned(learned_P) for each in posteriors]
        return nll_of_draws(posteriors, folds)

    for settings in then:
        noises.append(None)
        nlls.append(nll_under(search, having(search.method, settings), search.folds, score=score))
    best = nlls.index(min(nlls))
    tried = [{**settings, "nll": nll} for settings, nll in zip(then, nlls, strict=True)]
    return chosen._replace(
        settings={**chosen.settings, **then[best]}, record={**chosen.record, "tried": tried}, noise=noises[best]
    )


def _of_first_runs(choice: Epochs, search: Search) -> tuple[int, dict[str, Any], list[float] | None] | None:
    """Return the epochs, a record, and the learned parameters to begin with; None if all runs diverged at once."""
    descent, folds, per_epoch = choice.descent, search.folds, search.folds[0].rows.steps_per_epoch
    most = descent.epochs or max(USUAL_EPOCHS, -(-_LONGEST // per_epoch))
    method = seeker(epochs=most, optimizer=descent.optimizer, schedule=Constant(), plan=descent.plan)
    density = search.density(method)
    apart = choice.noise and is_open(density.model)
    runs = [*_runs(method, search)]
    epoch, nll_by_epoch, best = 0, dict[int, float](), list[Point]()
    try:
        while epoch < most and not _out_of_patience(nll_by_epoch, per_epoch):
            states = [_last(islice(run, per_epoch)) for run in runs]
            epoch += 1
            if epoch >= max(nll_by_epoch, default=0) * _NEXT + 1 or epoch == most:
                points = [method.posterior(density, state) for state in states]
                nll_by_epoch[epoch] = _nll(points, folds, apart=apart)
                best = points if nll_by_epoch[epoch] == min(nll_by_epoch.values()) else best
            search.told(epoch, most, nll_by_epoch[max(nll_by_epoch)])
    except DivergedError:  # earlier results count; if the run itself diverges, it reports that
        pass
    if not nll_by_epoch or not math.isfinite(least := min(nll_by_epoch.values())):
        return None
    early = next(epoch for epoch, nll in nll_by_epoch.items() if nll <= least + (_EQUAL_APART if apart else _EQUAL))
    record = {"first_run": epoch, "best_epoch": early, "nll": nll_by_epoch[early]}
    few = density.model.layout.size * _ROWS <= folds[0].rows.num_data
    shortest = epochs_of(None, per_epoch) if few else _SHORTEST
    learned_P = _learned(best, folds)
    return min(most, max(shortest, FACTOR * early)), record, None if learned_P is None else learned_P.tolist()


def _runs(method: Method, search: Search) -> Iterator[Iterator[tuple[Any, Info]]]:
    """Yield a run on each fold. They take turns at one gradient, with their own weights and slots."""
    density, begin, gradient_MD = search.density(method), search.begin.some(slice(1)), None
    for fold in search.folds:
        state = begin.state(method, density, fold.rows.steps_per_epoch)
        state = state if gradient_MD is None else replace(state, gradient_MD=gradient_MD)
        gradient_MD = state.gradient_MD
        yield steps(method, density, state, reader=Reader(fold.rows, begin.seeds), donate=True)


def _last(run: Iterator[tuple[Any, Info]]) -> Any:
    """Return the state after the last of some steps."""
    ((state, _),) = deque(run, maxlen=1)
    return state


def _out_of_patience(seen: Mapping[int, float], steps_per_epoch: int) -> bool:
    """Return whether the first run has not improved for long."""
    if not seen:
        return False
    best = min(seen, key=seen.__getitem__)
    waits = (_PATIENCE["epochs"], _PATIENCE["steps"] / steps_per_epoch, _PATIENCE["share"] * best)
    return max(seen) - best >= max(waits)


def _nll(points: Sequence[Point], folds: Sequence[Fold], *, apart: bool) -> float:
    """Return the mean negative log likelihood of all held-out rows, in nats per target; ∞ if it is not finite.

    Under the points' own learned parameters of the likelihood or, `apart`, under those that are best for these rows.
    """
    if apart:
        return -likeliest(points, [fold.held_out for fold in folds])
    total = sum(float(log_likelihoods(p, fold.held_out).sum()) for p, fold in zip(points, folds, strict=True))
    return -total / sum(num_targets(points[0].model, fold.held_out) for fold in folds)


def _learned(points: Sequence[Point], folds: Sequence[Fold]) -> Tensor | None:
    """Return the learned parameters that held-out rows ask for, (P,): the mean over folds of the most probable ones.

    None if there are none, the likelihood says where they start, or there is no maximum.
    """
    maximisers = [most_probable(point, fold.held_out, fold.size) for point, fold in zip(points, folds, strict=True)]
    maxima = [value_P for value_P in maximisers if value_P is not None]
    return torch.stack(maxima).mean(0) if len(maxima) == len(maximisers) else None

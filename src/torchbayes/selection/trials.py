"""Rows that are held out to choose settings, trial runs of a method without them, and how well they are predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from torchbayes.density.density import LogDensity
from torchbayes.driver.loop import Begin, Reader, steps
from torchbayes.driver.reader import density_of
from torchbayes.driver.run import MemoryShelf, Shard
from torchbayes.health.constant import num_targets
from torchbayes.health.descent import log_likelihoods
from torchbayes.methods.protocol import DivergedError, Method
from torchbayes.model.batches.batch import Batch
from torchbayes.model.likelihoods.custom import Custom
from torchbayes.model.likelihoods.gaussian import HeteroscedasticGaussian
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.posteriors.posterior import Posterior, on_trial
from torchbayes.predictive.predict import predict
from torchbayes.randomness.seeds import Purpose, generator

# With fewer rows, none are held out unless asked for. Where noise depends on the row, as it may in a distribution of
# the user's, nothing but held-out rows keeps a network that fits each row from predicting noise of next to 0.
FEWEST, _FEWEST_WITH_NOISE_OF_ROWS = 20, 2
# Held-out rows by default; rows that all folds together should have; most folds.
_HELD_OUT, _ENOUGH, _FOLDS = 50, 500, 5
_DRAWS = 16  # most draws of a posterior
_ROWS = 500  # rows of each fold that are predicted, in whole batches


class Fold(NamedTuple):
    """Training rows, and rows that are held out of them."""

    rows: Source  # to train on
    held_out: Sequence[Batch]  # the others, in batches

    @property
    def size(self) -> int:
        """Number of rows that are held out."""
        return sum(batch.size for batch in self.held_out)


def too_few(model: Model, rows: int) -> bool:
    """Return whether there are too few rows to hold some out without being asked to."""
    noise_of_rows = isinstance(unweighted(model.likelihood), HeteroscedasticGaussian | Custom)
    return rows < (_FEWEST_WITH_NOISE_OF_ROWS if noise_of_rows else FEWEST)


def folds_of(model: Model, source: Source, validation: float | Any, *, seed: int) -> list[Fold]:
    """Return training rows with those that are held out; none if rows cannot be told apart.

    A ValueError if a share was asked for of rows that cannot be told apart, or it leaves none.
    """
    if validation is not None and not isinstance(validation, float):
        own_rows = given_rows(model, validation)
        own_rows.check(training=True)
        return [Fold(source, own_rows.some(own_rows.num_data))]
    count = source.num_data
    size = round(count * validation) if validation else min(max(count // 10, _HELD_OUT), max(count // 5, 1))
    if not 0 < size < count:
        raise ValueError(f"`validation` {validation} of {count} rows holds out {size} of them. Give another share.")
    order = torch.randperm(count, generator=generator(Purpose.HELD_OUT, seed))
    folds = []
    for number in range(min(_FOLDS, count // size, -(-_ENOUGH // size))):
        out = torch.zeros(count, dtype=torch.bool)
        out[order[number * size : (number + 1) * size]] = True
        training, held_out = (source.kept(where.nonzero()[:, 0]) for where in (~out, out))
        if training is None or held_out is None:
            if validation is None:
                return []
            raise ValueError("a share of ready-made batches cannot be held out. Give `validation` data of its own.")
        folds.append(Fold(training, held_out.some(size)))
    return folds


def given_rows(model: Model, validation: Any) -> Source:
    """Return the rows of data that are given to choose settings."""
    return as_source(model, validation, _HELD_OUT)


class Chosen(NamedTuple):
    """The choices of held-out rows."""

    settings: Mapping[str, Any]  # of the method, by name
    record: Mapping[str, Any]  # results of the choice by name, for the description of the run
    prior_scale: float | None = None  # σ of the model's prior N(0, σ²), if that is open; None leaves it
    # least initial values of the learned parameters of the likelihood; None leaves them
    learned: Sequence[float] | None = None
    noise: Sequence[float] | None = None  # final values of these parameters; None leaves them as they are trained
    mode: Mapping[str, Any] = {}  # settings, by name, of the training that finds where the method begins


@dataclass(frozen=True)
class Search:
    """The means by which a choice is made.

    `told` is called during the search with the trials or epochs done, the most there can be, and the negative log
    likelihood of the held-out rows, if it is known.
    """

    model: Model
    method: Method  # with earlier choices
    folds: Sequence[Fold]  # rows to train on, with those held out
    begin: Begin  # where the members start
    told: Callable[[int, int, float | None], object] = lambda *_: None
    _densities: dict[Any, LogDensity] = field(default_factory=dict, compare=False, repr=False)

    def having(self, chosen: Chosen) -> Search:
        """Return the search with these choices made."""
        return replace(self, method=having(self.method, chosen.settings), begin=self.begin.with_learned(chosen.learned))

    def density(self, method: Method, model: Model | None = None) -> LogDensity:
        """Return the target of rows that are not held out.

        Methods of one kind share one, which measures its plan once.
        """
        kind = method.needs.network, method.plan, id(model)
        if kind not in self._densities:
            self._densities[kind] = density_of(model or self.model, self.folds[0].rows, method)
        return self._densities[kind]


def having(method: Any, settings: Mapping[str, Any]) -> Any:
    """Return a method with other settings, by name."""
    return replace(method, **settings)


def trial(
    method: Method, density: LogDensity, fold: Fold, *, begin: Begin, after_epoch: Callable[[], object] = lambda: None
) -> Any:
    """Return the posterior after a run on the rows of a fold that are not held out."""
    per_epoch = fold.rows.steps_per_epoch
    shelf, reader = MemoryShelf(Shard(len(begin.seeds))), Reader(fold.rows, begin.seeds)
    state = first = begin.state(method, density, per_epoch)
    for state, _ in steps(method, density, first, reader=reader, donate=True):
        shelf.add(method.draw(state))
        if state.step % per_epoch == 0:
            after_epoch()
    return on_trial(method.posterior(density, state, shelf).calibrated(fold.rows.inputs))


def nll_under(
    search: Search, method: Method, folds: Sequence[Fold], *, score: Callable[..., float], model: Model | None = None
) -> float:
    """Return `score`, a negative log likelihood, of trial runs on all folds; infinite if one diverged.

    `model` is in the place of that of the search.
    """
    try:
        density = search.density(method, model)
        return score([trial(method, density, fold, begin=search.begin) for fold in folds], folds)
    except DivergedError:
        return math.inf


def nll_of_draws(posteriors: Sequence[Posterior], folds: Sequence[Fold]) -> float:
    """Return the mean over folds of the negative log likelihood of held-out rows, in nats per target.

    It is that of the average prediction of at most 16 draws.
    """
    total = 0.0
    for posterior, fold in zip(posteriors, folds, strict=True):
        draws = min(posterior.default_draws, _DRAWS)
        seen_SB = log_likelihoods(posterior, fold.held_out, draws=draws)[:, 0]
        likely = float((seen_SB.logsumexp(0) - math.log(draws)).sum())
        total -= likely / num_targets(posterior.model, fold.held_out)
    return total / len(folds)


def mean_nll(posteriors: Sequence[Any], folds: Sequence[Fold]) -> float:
    """Return the mean negative log likelihood of held-out rows under predictive distributions, in nats per row.

    `posteriors` are what `predict` takes, one for each fold; at most about 500 held-out rows of each are predicted.
    Infinite if no row counts, because all are ignored or have weight 0.
    """
    total = weight = 0.0
    for posterior, fold in zip(posteriors, folds, strict=True):
        for batch in _some(fold.held_out):
            predictive = predict(posterior, batch.inputs)
            weights_B = scored(predictive.likelihood, predictive.outputs_SBK[0], batch.targets).row_weights
            log_prob_B = predictive.log_prob(batch.targets).double()
            weights_B = log_prob_B.new_ones(len(log_prob_B)) if weights_B is None else weights_B.double()
            total -= float((weights_B * log_prob_B).sum())
            weight += float(weights_B.sum())
    return total / weight if weight else math.inf


def _some(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield the first batches, with about as many rows as are needed."""
    rows = 0
    for batch in batches:
        if rows >= _ROWS:
            return
        rows += batch.size
        yield batch

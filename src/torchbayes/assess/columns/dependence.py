r"""Which columns matter, and how the mean depends on one of them.

A column matters as much as the score falls where its values are shuffled among the held-out rows (Breiman 2001):

    I_c = mean_n [ log p(y_n | x_n) − log p(y_n | x_n with column c of another row) ]      nats for each row

The partial dependence on a column (Friedman 2001) is a function for each draw, the mean over rows x_n of the training

    g_s(v) = (1/N) Σ_n E[y | f_s(x_n with column c = v)]

whose spread over the draws s is what the posterior leaves open of it. It averages over the draws to the partial
dependence of the model average. Rows in which the column does not go with the others count as well, as always there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions

from torchbayes.assess.columns.table import TablePredictor, in_table, spread_rows
from torchbayes.data.user.columns import Column
from torchbayes.data.user.dates import Dates
from torchbayes.data.user.table import missing, texts_of
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import moment
from torchbayes.randomness.seeds import Purpose, generator

ROWS = 200  # over which a partial dependence averages
SCORED = 10_000  # rows whose prediction is scored, of all columns together
_MOST = 1000  # rows that are scored
_ROUNDS = 5  # most shuffles of a column
_POINTS = 12  # most values of a category, most different numbers that are all taken; others: twice as many at most
_NAMED = 6  # numbers of at most so many different values are drawn as names, such as 0 and 1
_TAIL = 0.01  # share of the training values on either side that is left out of the range


@dataclass(frozen=True, eq=False)
class Dependence:
    """The partial dependence on a column at G values.

    Attributes:
        column: its name.
        at: the values (G,): numbers, dates (datetime64) or texts.
        functions_SGK: for each draw the means of the targets, or the probabilities of the classes.
        missing_SK: the same where the value is missing; None if it never is in a column of numbers or dates. Of
            others it is one of the values.
        marks: deciles of the training values (9,) for numbers and dates; for texts the share of rows of each.
    """

    column: str
    at: np.ndarray
    functions_SGK: Tensor
    missing_SK: Tensor | None
    marks: np.ndarray


def importance(table: TablePredictor, targets: Tensor) -> dict[str, float]:
    """Return by how much the mean log probability of held-out targets falls where a column is shuffled, in nats.

    Of many rows and columns an evenly spread part of the rows is taken: at most 1,000, and so few that 10,000
    predictions suffice, but at least 20. Of few rows a column is shuffled up to five times.

    Args:
        table: the fit and its held-out rows.
        targets: theirs, as the likelihood takes them, (N, ...).

    Returns:
        Column -> importance, the largest first.
    """
    names = [column.name for column in table.columns.columns]
    rows = torch.from_numpy(spread_rows(len(targets), int(np.clip(SCORED // len(names), 20, _MOST))))
    values_BF, targets = table.values[rows], targets[rows].to(table.source.model.network.device)
    rounds = min(_ROUNDS, _MOST // len(rows), max(SCORED // (len(names) * len(rows)), 1)) if len(rows) > 1 else 0
    drops = dict.fromkeys(names, 0.0)
    score = table.predictive(values_BF).log_prob(targets).double().mean()
    stream = generator(Purpose.SHUFFLED_COLUMN, 0)
    for _ in range(rounds):
        shift = int(torch.randint(1, len(rows), (), generator=stream))  # so that no row keeps its value
        order = torch.randperm(len(rows), generator=stream)
        others = torch.empty_like(order)
        others[order] = order.roll(shift)
        for name in names:
            shuffled, block = values_BF.clone(), table.block(name)
            shuffled[:, block] = values_BF[others, block]
            drops[name] += float(score - table.predictive(shuffled).log_prob(targets).double().mean()) / rounds
    return dict(sorted(drops.items(), key=lambda item: -item[1]))


def partial_dependence(table: TablePredictor, name: str, rows: np.ndarray | None = None) -> Dependence:
    """Return the partial dependence on a column, by rows · G · S passes through a network, G of at most 25.

    Args:
        table: the fit.
        name: of the column.
        rows: numbers of the training rows over which it averages; 200 that are evenly spread if None.
    """
    rows = spread_rows(len(table.known), ROWS) if rows is None else rows
    column, known = table.column(name), table.known.columns[name]
    gone = missing(known)
    numbers = table.known_values[:, table.block(name).start].numpy()[~gone]
    at, held = _points(column, known[~gone], numbers, len(rows))
    if gone.any():
        held = [*held, np.array([None], dtype=object) if known.dtype.kind == "O" else np.array([np.nan])]
    values_BF = table.known_values[rows]
    functions_SGK = torch.stack([_means(table.predictive(table.replaced(values_BF, name, v))) for v in held], dim=1)
    if at.dtype.kind == "O":
        at = np.array([*at, "missing"], dtype=object) if gone.any() else at
        texts = np.array(["missing" if g else "" for g in gone], dtype=object)
        texts[~gone] = texts_of(known[~gone])
        return Dependence(name, at, functions_SGK, None, np.array([(texts == each).mean() for each in at]))
    lacking = functions_SGK[:, -1] if gone.any() else None
    marks = np.quantile(numbers, np.linspace(0.1, 0.9, 9))
    return Dependence(name, at, functions_SGK[:, : len(at)], lacking, _shown(column, marks))


def _points(column: Column | Dates, known: np.ndarray, numbers: np.ndarray, rows: int) -> tuple[np.ndarray, list[Any]]:
    """Return the values of a column at which it is looked at, and each as a table holds it, (1,) or (rows,).

    `known` are training values, and `numbers` the same ones as numbers.
    """
    if column.values is not None or (isinstance(column, Column) and len(np.unique(numbers)) <= _NAMED):
        texts, counts = np.unique(texts_of(known), return_counts=True)
        chosen = np.sort(np.argsort(-counts, kind="stable")[:_POINTS])
        first = [np.flatnonzero(np.array(texts_of(known), dtype=object) == text)[0] for text in texts[chosen]]
        return texts[chosen].astype(object), [known[[row]] for row in first]
    at, around = np.unique(numbers), np.zeros(1)
    if len(at) > _POINTS and isinstance(column, Dates):
        # a date has a day of the week and a time as well, which would be those of one day: those around it take turns
        edges = np.linspace(at[0], at[-1], 2 * _POINTS + 1)
        turns = np.arange(rows) * (5**0.5 - 1) / 2 % 1
        at, around = (edges[1:] + edges[:-1]) / 2, (turns - turns.mean()) * (edges[1] - edges[0])
    elif len(at) > _POINTS:
        low, high = np.quantile(numbers, [_TAIL, 1 - _TAIL])
        shares = np.linspace(_TAIL, 1 - _TAIL, _POINTS)
        at = np.unique([*np.linspace(low, high, _POINTS), *np.quantile(numbers, shares)])
    return _shown(column, at), [in_table(column, value + around) for value in at]


def _shown(column: Column | Dates, numbers: np.ndarray) -> np.ndarray:
    """Return numbers, or the dates that they stand for, as datetime64."""
    if not isinstance(column, Dates):
        return numbers
    return np.datetime64(column.first, "s") + (numbers * 86_400).astype("timedelta64[s]")


def _means(predictive: Predictive) -> Tensor:
    """Return the mean of the targets of each draw over all rows, or the probabilities of the classes, (S, K)."""
    kind = predictive.distribution
    if isinstance(kind, distributions.Categorical | distributions.Bernoulli):
        means_SBK = torch.as_tensor(kind.probs).flatten(2) if predictive.outputs_SBK.ndim > 2 else kind.probs[..., None]
        if isinstance(kind, distributions.Bernoulli) and means_SBK.shape[-1] == 1:
            means_SBK = torch.cat([1 - means_SBK, means_SBK], dim=-1)
    else:
        means_SBK = moment(kind, "mean")
    return means_SBK.double().reshape(*predictive.outputs_SBK.shape[:2], -1).mean(1).cpu()

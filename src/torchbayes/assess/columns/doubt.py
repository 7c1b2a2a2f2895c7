r"""Which rows are uncertain, and why: noise, or draws that disagree; and the columns that make it so.

The law of total variance splits what is uncertain of numbers, and the entropy splits alike for classes:

    Var[y | x]  =  E_s Var[y | f_s]  +  Var_s E[y | f_s]                  noise + disagreement
    H[p̄]       =  (1/S) Σ_s H[p_s]  +  mutual information                 in nats

A column makes a row uncertain if the uncertainty falls where its value is replaced by the usual one: the median, or the
most frequent value, of the training rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, distributions

from torchbayes.assess.columns.table import TablePredictor
from torchbayes.data.user.table import missing, texts_of
from torchbayes.predictive.average import Predictive

LISTED = 6  # rows of the largest uncertainty, and as many of the largest disagreement
_AT_ONCE = 2048  # rows that are predicted together
_LEAST = 0.05  # share of the uncertainty of which a column is worth naming
_NAMED = 3  # most columns that are named
_RARE = 0.01  # share of the training rows


def uncertainties_of(table: TablePredictor) -> tuple[Tensor, Tensor]:
    """Return noise and disagreement at all held-out rows, (N,) float64 each."""
    blocks = [uncertainties(table.predictive(block)) for block in table.values.split(_AT_ONCE)]
    noise_N, disagreement_N = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return noise_N, disagreement_N


def uncertainties(predictive: Predictive) -> tuple[Tensor, Tensor]:
    """Return noise and disagreement at B inputs, (B,) float64 each; their sum is the uncertainty.

    Entropies in nats for classes; for numbers variances, those of several targets added up.
    """
    if isinstance(predictive.distribution, distributions.Categorical | distributions.Bernoulli):
        parts = predictive.expected_entropy, predictive.mutual_information
    else:
        parts = predictive.aleatoric, predictive.epistemic
    noise, disagreement = (each_B.double().reshape(len(each_B), -1).sum(1).cpu() for each_B in parts)
    return noise, disagreement


def most_uncertain(noise_N: Tensor, disagreement_N: Tensor) -> Tensor:
    """Return the numbers of the rows that are listed: the most uncertain ones, and those of most disagreement."""
    total_N = noise_N + disagreement_N
    ranked = [values_N.argsort(descending=True, stable=True)[:LISTED] for values_N in (total_N, disagreement_N)]
    rows = torch.cat(ranked if bool((disagreement_N > 0).any()) else ranked[:1]).unique()
    return rows[total_N[rows].argsort(descending=True, stable=True)]


def falls(table: TablePredictor, rows: Tensor) -> Tensor:
    """Return by which share the uncertainty of some rows falls where a column has its usual value, (B, C).

    It costs B · C · S passes through a network.
    """
    values_BF = table.values[rows]
    noise, disagreement = uncertainties(table.predictive(values_BF))
    total_B = noise + disagreement
    names, columns = [column.name for column in table.columns.columns], []
    size = max(_AT_ONCE // len(rows), 1)
    for start in range(0, len(names), size):
        replaced = [table.replaced(values_BF, name, table.usual(name)) for name in names[start : start + size]]
        noise, disagreement = uncertainties(table.predictive(torch.cat(replaced)))
        columns.append((noise + disagreement).view(len(replaced), -1))
    return 1 - torch.cat(columns).T / total_B.clamp_min(1e-300)[:, None]


def reasons(table: TablePredictor, rows: Tensor) -> list[str]:
    """Return for each of some held-out rows the columns that make it uncertain, in words.

    Named are the column by whose usual value the uncertainty falls most, and further ones in which the row is unusual
    and by which it falls too: at most three, each with its value, what is unusual about that, and the fall.
    """
    names, sentences = [column.name for column in table.columns.columns], []
    for row, falls_C in zip(rows.tolist(), falls(table, rows).tolist(), strict=True):
        named: list[str] = []
        for c in np.argsort(np.negative(falls_C), kind="stable"):
            if falls_C[c] < _LEAST or len(named) == _NAMED:
                break
            unusual = _unusual(table, names[c], row)
            if unusual or not named:
                value = _value(table.rows.columns[names[c]], row)
                reason = f"{names[c]} {value}{f' ({unusual})' if unusual else ''}"
                named.append(f"{reason}: −{falls_C[c]:.0%}".replace("%", " %"))
        sentences.append("; ".join(named) or "no single column")
    return sentences


def _value(held: np.ndarray, row: int) -> str:
    if missing(held[[row]])[0]:
        return "missing"
    return f"{held[row]:.6g}" if held.dtype.kind == "f" else texts_of(held[[row]])[0].removesuffix(" 00:00:00")


def _unusual(table: TablePredictor, name: str, row: int) -> str:
    """Return in words what is unusual about the value of a column in a row; nothing if it is not."""
    column, held, known = table.column(name), table.rows.columns[name][[row]], table.known.columns[name]
    if missing(held)[0]:
        return _rare(int(missing(known).sum()), len(known))
    if column.values is not None:
        (text,) = texts_of(held)
        if text not in column.values:
            return "in no training row"
        return _rare(texts_of(known[~missing(known)]).count(text), len(known))
    number = table.block(name).start  # of the column's values among the inputs
    value, numbers = float(table.values[row, number]), table.known_values[:, number].numpy()[~missing(known)]
    if not column.low <= value <= column.high:
        return f"{'below' if value < column.low else 'above'} all training rows"
    below, above = float((numbers <= value).mean()), float((numbers >= value).mean())
    if min(below, above) >= _RARE:
        return ""
    return f"{'lower' if below < above else 'higher'} than {max(1 - below, 1 - above):.1%} of training rows"


def _rare(count: int, rows: int) -> str:
    if count >= _RARE * rows:
        return ""
    return f"in {count:,} of {rows:,} training rows" if count else "in no training row"

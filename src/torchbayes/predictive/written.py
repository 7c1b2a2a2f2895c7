"""Predictions of many rows as columns, and columns as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from torchbayes.posteriors.files import write_whole
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.columns import Units, columns
from torchbayes.predictive.predict import predict

_ROWS = 2048  # predicted at once, so that the outputs of all draws need not be held for all rows


def columns_of(
    posterior: Any,
    inputs: Tensor,
    units: Units,
    *,
    also: Callable[[Predictive], Mapping[str, np.ndarray]] | None = None,
) -> dict[str, np.ndarray]:
    """Return predictions at inputs (N, ...) as columns, name -> (N,); `posterior` as for `predict`.

    `also` gives further columns of a predictive, such as decisions.

    A ValueError if there are no rows, a TypeError if predictions are neither classes nor one number for each
    output.
    """
    if not len(inputs):
        raise ValueError("there are no rows to predict.")
    parts: list[dict[str, np.ndarray]] = []
    for chunk in inputs.split(_ROWS):
        predictive = predict(posterior, chunk)
        parts.append({**columns(predictive, units), **({} if also is None else also(predictive))})
    return {name: np.concatenate([chunk[name] for chunk in parts]) for name in parts[0]}


def write_columns(
    path: Path, columns: Mapping[str, np.ndarray], *, names: Sequence[str] | None = None, digits: int = 7
) -> None:
    """Write columns, name -> (N,), to a CSV file, whole or not at all; numbers have so many significant digits.

    Texts that a spreadsheet would run as formulas get a single quote in front. `names` label the rows; by default
    they are numbered from 1.
    """
    lines: list[str] = []
    rows: Any = SimpleNamespace(write=lines.append)
    writer = csv.writer(rows)  # it quotes texts with either character of its line ends
    writer.writerow(["row" if names is None else "name", *map(_shown, columns)])
    count = len(next(iter(columns.values())))
    cells = (names or range(1, count + 1), *(values.tolist() for values in columns.values()))
    writer.writerows(zip(*([_shown(value, digits) for value in values] for values in cells), strict=True))
    write_whole(path, "".join(f"{line[:-2]}\n" for line in lines).encode())


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # first characters of cells that spreadsheets run


def _shown(value: Any, digits: int = 7) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA) and not _is_number(value):
        return f"'{value}"
    return f"{value:.{digits}g}" if isinstance(value, float) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

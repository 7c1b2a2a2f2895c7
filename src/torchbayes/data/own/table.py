"""Tables as files hold them: CSV and the like, with or without names in the first line, and Parquet."""

from __future__ import annotations

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import as_file

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".txt", ".data", ".parquet")
_PACKED = (".gz", ".bz2", ".xz", ".zip")
_SAMPLE = 2**16  # letters by which the separator is recognised
_SEPARATORS = ("\t", ";", ",", "|")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, each of the same number of rows.

    Attributes:
        columns: bools, whole numbers, floating point with NaN where a number is missing, or texts (dtype object) with
            None where one is.
    """

    columns: dict[str, np.ndarray]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, mask: np.ndarray) -> Table:
        """Return the rows at which a mask is true."""
        return Table({name: values[mask] for name, values in self.columns.items()})


def missing(values: np.ndarray) -> np.ndarray:
    """Return where a column has no value, as a mask."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "O":
        return np.array([value is None for value in values], dtype=bool)
    return np.zeros(len(values), dtype=bool)


def texts_of(values: np.ndarray) -> list[str]:
    """Return the values of a column as texts, whole numbers without a point."""
    return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values.tolist()]


def from_frame(frame: pd.DataFrame, name: str) -> Table:
    """Return a data frame as a table.

    Args:
        frame: of pandas.
        name: where it comes from, for messages.

    Returns:
        The table.

    Raises:
        ValueError: if it has no rows, or two columns of one name.
    """
    names = [str(column).strip() for column in frame.columns]
    if len(frame) == 0 or not names:
        raise ValueError(f"{name} has no rows. A table has names of columns in its first line, and rows below.")
    double = [column for i, column in enumerate(names) if column in names[:i]]
    if double:
        raise ValueError(f"{name} has more than one column {double[0]!r}. Rename one.")
    return Table({column: _values(frame.iloc[:, i]) for i, column in enumerate(names)})


def _values(column: Any) -> np.ndarray:
    """Return a column of a data frame, of pandas' many kinds, as one of a table."""
    kind = column.dtype.kind
    if kind in "biuf" and not column.isna().any():
        return column.to_numpy(dtype={"b": np.bool_, "f": np.float64}.get(kind, np.int64))
    if kind in "iuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    absent = column.isna().to_numpy()
    values = np.array([None if gone else str(v).strip() for v, gone in zip(column, absent, strict=True)], dtype=object)
    values[values == ""] = None
    return values


def is_table(path: Path) -> bool:
    """Return whether a path has the name of a table."""
    return _suffix(path) in SUFFIXES


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix.lower() in _PACKED else path).suffix.lower()


def read_table(path: Path) -> Table:
    """Read a table.

    Args:
        path: of a Parquet file, or of text with a separator between values: comma, semicolon, tab, bar or spaces. Where
            the first line holds numbers alone, the columns are called 1, 2, ... Empty cells, NA, nan and ? are missing
            values.

    Returns:
        The table.

    Raises:
        ValueError: if it is no table.
    """
    import pandas as pd

    as_file(path)
    try:
        frame = pd.read_parquet(path) if _suffix(path) == ".parquet" else _read_text(path)
    except ImportError as error:
        raise ValueError(f"{path} needs a package that is not installed. Run: pip install pyarrow.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason}). Save it in UTF-8.") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, OSError, ValueError) as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} cannot be read as a table: {said}. Correct it or save it again.") from error
    return from_frame(frame, str(path))


def _read_text(path: Path) -> pd.DataFrame:
    """Return a table of text.

    Raises:
        ValueError: if it is empty or binary.
    """
    import pandas as pd

    sample = _head(path)
    if "\x00" in sample:
        raise ValueError("it holds binary data")
    separator, first = _separator(sample)
    named = not all(_is_number(cell) for cell in first if cell.strip())
    options: dict[str, Any] = {
        "sep": r"\s+" if separator == " " else separator,
        "header": 0 if named else None,
        "encoding": "utf-8-sig",
        "na_values": ["?"],
        "index_col": False,
        "skipinitialspace": True,
        "low_memory": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # a row of another length is no row
        frame = pd.read_csv(path, **options)
        if separator == ";" and any(_has_decimal_commas(frame[name]) for name in frame.columns):
            frame = pd.read_csv(path, **options, decimal=",")
    return frame if named else frame.rename(columns={name: str(i + 1) for i, name in enumerate(frame.columns)})


def _head(path: Path) -> str:
    """Return the beginning of a text, which may be packed."""
    from pandas.io.common import get_handle

    with get_handle(path, "r", encoding="utf-8-sig", compression="infer") as opened:
        return str(opened.handle.read(_SAMPLE))


def _separator(sample: str) -> tuple[str, list[str]]:
    """Return what separates the values of a text, and the values of its first line.

    Raises:
        ValueError: if there is no line.
    """
    lines = [line for line in sample.splitlines() if line.strip()][:20]
    if not lines:
        raise ValueError("it is empty")
    lines = lines[:-1] if len(sample) == _SAMPLE and len(lines) > 1 else lines  # the last one may be cut
    cells = {mark: [next(csv.reader([line], delimiter=mark)) for line in lines] for mark in _SEPARATORS}
    cells[" "] = [line.split() for line in lines]
    even = [mark for mark, rows in cells.items() if len(rows[0]) > 1 and len({len(row) for row in rows}) == 1]
    # spaces only where nothing else will do: texts have them too
    best = max(even, key=lambda mark: (mark != " ", len(cells[mark][0])), default=",")
    return best, cells[best][0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_decimal_commas(column: Any) -> bool:
    texts = column.dropna()
    return texts.dtype.kind not in "biuf" and bool(texts.astype(str).str.fullmatch(r"-?\d+,\d+").all())

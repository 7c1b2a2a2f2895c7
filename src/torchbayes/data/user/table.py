"""Tables as files hold them: CSV and the like, with or without names in the first line, and Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import as_file, seen
from torchbayes.data.files import check_stream, check_unpacked

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".txt", ".data", ".parquet")
_PACKED = (".gz", ".bz2", ".xz", ".zip")
_SAMPLE = 2**16  # letters by which the separator is recognised
_MOST = 20_000  # columns, each of which takes a millisecond
_LONGEST = 2**24  # letters of a first line
_SEPARATORS = ("\t", ";", ",", "|")
# spellings of missing values; none of them is a usual value of anything else
_ABSENT = ("", "?", "NA", "na", "N/A", "n/a", "N.A.", "n.a.", "n.a", "#NA", "#N/A", "#n/a", "NaN", "nan", "NAN")
_ABSENT += ("NULL", "Null", "null", "None", "<NA>", "<na>")
MARKS = (".", "-", "--", "---")  # missing among numbers only: elsewhere they are values, such as + and -


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, each of the same number of rows.

    A column holds bools, whole numbers, floating point with NaN for missing, or texts (dtype object) with None for
    missing.
    """

    columns: dict[str, np.ndarray]
    name: str = ""  # of the file
    notes: tuple[str, ...] = ()  # oddities, in sentences

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, mask: np.ndarray) -> Table:
        """Return the rows where a mask is true."""
        return replace(self, columns={name: values[mask] for name, values in self.columns.items()})


def missing(values: np.ndarray) -> np.ndarray:
    """Return a mask of missing values."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "O":
        return np.array([value is None for value in values], dtype=bool)
    return np.zeros(len(values), dtype=bool)


def texts_of(values: np.ndarray) -> list[str]:
    """Return the values of a column as texts, whole numbers without a point."""
    return [*map(_text, values.tolist())]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def from_frame(frame: pd.DataFrame, name: str, notes: tuple[str, ...] = ()) -> Table:
    """Return a pandas data frame as a table; `name` is for messages. Raises ValueError for no rows or equal columns."""
    names = [str(column).strip() for column in frame.columns]
    if not names:
        raise ValueError(f"{name} has no columns. Give at least one.")
    if len(frame) == 0:
        raise ValueError(f"{name} has no rows. A table has names of columns in its first line, and rows below.")
    double = next((column for column, count in Counter(names).items() if count > 1), None)
    if double is not None:
        raise ValueError(f"{name} has more than one column {double!r}. Rename one.")
    held = (values for _, values in frame.items())
    return Table({column: _values(values) for column, values in zip(names, held, strict=True)}, Path(name).name, notes)


def _values(column: Any) -> np.ndarray:
    """Return a pandas column of any kind as a column of a table."""
    kind = column.dtype.kind
    if kind == "m":
        return column.dt.total_seconds().to_numpy(dtype=np.float64, na_value=np.nan)
    if kind in "biuf" and not column.isna().any():
        large = kind == "u" and column.max() >= 2**63  # as a signed number it would be negative
        return column.to_numpy(dtype=np.float64 if large else {"b": np.bool_, "f": np.float64}.get(kind, np.int64))
    if kind in "iuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return of_objects(list(column), column.isna().to_numpy(), named=hasattr(column.dtype, "categories"))


def of_objects(values: Sequence[Any], absent: np.ndarray, *, named: bool = False) -> np.ndarray:
    """Return objects as numbers if all that are not absent are, and they are no names of categories; else as texts."""
    present = [value for value, gone in zip(values, absent, strict=True) if not gone]
    if present and not named and all(isinstance(v, Real | Decimal) and not isinstance(v, bool) for v in present):
        return np.array([np.nan if gone else float(v) for v, gone in zip(values, absent, strict=True)])
    texts = np.array([None if gone else _text(v).strip() for v, gone in zip(values, absent, strict=True)], dtype=object)
    texts[texts == ""] = None
    return texts


def is_table(path: Path) -> bool:
    """Return whether a path has the name of a table."""
    return _suffix(path) in SUFFIXES


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix.lower() in _PACKED else path).suffix.lower()


def read_table(path: Path, encoding: str | None = None) -> Table:
    """Read a Parquet file, or text whose values are separated by comma, semicolon, tab, bar or spaces.

    Where the first line holds numbers alone, the columns are called 1, 2, ... Empty cells and usual spellings, such as
    NA, n/a and ?, are missing values; among numbers dashes and points are, too. `encoding` of text is UTF-8, or UTF-16
    with its mark, if None. Raises ValueError if it is no table.
    """
    import pandas as pd

    as_file(path)
    _check_encoding(encoding)
    check_stream(path)
    try:
        if _suffix(path) == ".parquet":
            _check_parquet(path)
            return from_frame(pd.read_parquet(path), str(path))
        frame, notes = _read_text(path, encoding or _marked_encoding(path))
    except ImportError as error:
        raise ValueError(f"{path} needs a package that is not installed. Run: pip install pyarrow.") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text in {encoding or 'UTF-8'}{_undecodable(path, encoding)}. Save it in UTF-8, or say what "
            f"it is in, such as --data_settings.encoding latin-1."
        ) from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, OSError, ValueError) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} cannot be read as a table: {message}. Correct it or save it again.") from error
    return from_frame(frame, str(path), notes)


def read_texts(path: Path) -> pd.DataFrame:
    """Return the cells of a text file as they are written, with points for decimal commas; as for `read_table`.

    The first line has the names of the columns. Raises FileNotFoundError for no such file, ValueError for no table.
    """
    import pandas as pd

    encoding = _marked_encoding(as_file(path))
    try:
        separator, first = separator_of(_head(path, encoding)[0])
        read = partial(pd.read_csv, path, sep=r"\s+" if separator == " " else separator, encoding=encoding, dtype=str)
        read = partial(read, keep_default_na=False, index_col=False, skipinitialspace=True)
        frame = _read_whole(read, len(first))
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError, ValueError) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} cannot be read as CSV: {message}. Save it as CSV in UTF-8.") from error
    for name in frame.columns if separator == ";" else ():
        if _has_decimal_commas(frame[name]):
            frame[name] = frame[name].str.replace(",", ".", regex=False)
    return frame


def _check_parquet(path: Path) -> None:
    """Check that the columns of a Parquet file fit in memory, by its metadata."""
    from pyarrow.parquet import read_metadata

    metadata = read_metadata(path)
    groups = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    check_unpacked(path, max(sum(groups), metadata.num_rows * metadata.num_columns))


def _read_text(path: Path, encoding: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return a table of text, and sentences on its oddities."""
    import pandas as pd

    sample, line = _head(path, encoding)
    if "\x00" in sample:
        raise ValueError("it holds binary data")
    separator, first = separator_of(sample)
    if (count := line.count(separator) + 1) > _MOST:
        raise ValueError(
            f"its first line has {count:,} values, and a table at most {_MOST:,} columns; give so many as an array, in "
            f"an npz file with inputs and targets"
        )
    named = not all(_is_number(cell) for cell in first if cell.strip())
    read = partial(
        pd.read_csv,
        path,
        sep=r"\s+" if separator == " " else separator,
        header=0 if named else None,
        encoding=encoding,
        na_values=list(_ABSENT),
        index_col=False,
        skipinitialspace=True,
        low_memory=False,
    )
    frame = _read_whole(read, len(first))
    commas = separator == ";" and any(_has_decimal_commas(frame[name]) for name in frame.columns)
    if commas:
        frame = read(decimal=",")
    for name in frame.columns[[kind.kind not in "biuf" for kind in frame.dtypes]]:
        frame[name] = _without_marks(frame[name], commas=commas)
    if not named:
        return frame.rename(columns={name: str(i + 1) for i, name in enumerate(frame.columns)}), ()
    double = [cell for cell, count in Counter(cell.lstrip() for cell in first).items() if cell and count > 1]
    return frame, tuple(
        f"Columns of the same name: {name!r}; all but the first are called {name + '.1'!r} and so on."
        for name in double
    )


def _read_whole(read: Callable[[], pd.DataFrame], width: int) -> pd.DataFrame:
    """Return what is read, unless a row has more values than the first line, of which pandas only warns."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return read()
        except pd.errors.ParserWarning as error:
            raise ValueError(
                f"its first line has {width} value{'s' * (width > 1)}, and some other line more; the first one must "
                f"hold the names of the columns"
            ) from error


def _head(path: Path, encoding: str) -> tuple[str, str]:
    """Return the first 65,536 letters of a text, packed or not, and its first line, cut 16 million letters later."""
    from pandas.io.common import get_handle

    with get_handle(path, "r", encoding=encoding, compression="infer") as opened:
        sample = str(opened.handle.read(_SAMPLE))
        more = "" if "\n" in sample else str(opened.handle.readline(_LONGEST))
        return sample, (sample + more).partition("\n")[0]


def _content(path: Path, size: int = -1) -> bytes:
    """Return the first `size` bytes of a file, packed or not; all by default."""
    from pandas.io.common import get_handle

    with get_handle(path, "rb", compression="infer", is_text=False) as opened:
        return bytes(opened.handle.read(size))


def _marked_encoding(path: Path) -> str:
    """Return UTF-16 if the text begins with its mark, else UTF-8."""
    return "utf-16" if _content(path, 2) in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE} else "utf-8-sig"


def _undecodable(path: Path, encoding: str | None) -> str:
    """Name the first line that does not decode, and why."""
    try:
        _content(path).decode(encoding or _marked_encoding(path))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].decode(error.encoding, "ignore").count("\n") + 1
        return f", as line {line:,} shows ({error.reason})"
    return ""


def _check_encoding(encoding: str | None) -> None:
    try:
        "".encode(encoding or "utf-8")
    except (LookupError, TypeError) as error:
        raise ValueError(f"`encoding` must be one that Python knows, such as latin-1; got {seen(encoding)}.") from error


def separator_of(sample: str) -> tuple[str, list[str]]:
    """Return what separates the values of a text, and the values of its first line."""
    if not sample.strip():
        raise ValueError("it is empty")
    # a quoted value may go over several lines
    read = {mark: csv.reader(io.StringIO(sample, newline=""), delimiter=mark) for mark in _SEPARATORS}
    read |= {" ": map(str.split, sample.splitlines())}
    cells = {mark: list(islice((row for row in rows if any(map(str.strip, row))), 21)) for mark, rows in read.items()}
    cut = len(sample) == _SAMPLE  # the last row may be
    cells = {mark: rows[:-1] if len(rows) > (1 if cut else 20) else rows for mark, rows in cells.items()}
    uniform = [mark for mark, rows in cells.items() if len(rows[0]) > 1 and len({len(row) for row in rows}) == 1]
    # spaces come last, because texts contain them too
    best = max(uniform, key=lambda mark: (mark != " ", len(cells[mark][0])), default=",")
    return best, cells[best][0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_decimal_commas(column: Any) -> bool:
    if column.dtype.kind in "biuf":
        return False
    texts = column.dropna().astype(str).str.strip()
    texts = texts[~texts.isin(_ABSENT + MARKS)]
    return len(texts) > 0 and bool(texts.str.fullmatch(r"-?\d+,\d+").all())


def _without_marks(column: Any, *, commas: bool) -> Any:
    """Return a text column without spaces around missing values; marks of missing values are dropped among numbers."""
    import pandas as pd

    cells = zip(column, column.isna(), strict=True)
    texts = [None if gone or (text := str(cell).strip()) in _ABSENT else text for cell, gone in cells]
    present = {i: text for i, text in enumerate(texts) if text is not None and text not in MARKS}
    if len(present) == column.notna().sum():
        return column
    plain = pd.Series(present, dtype=object)
    numbers: Any = pd.to_numeric(plain.str.replace(",", ".") if commas and present else plain, errors="coerce")
    if present and numbers.notna().all():
        return numbers.reindex(range(len(texts))).set_axis(column.index)
    return pd.Series(texts, index=column.index, dtype=object)

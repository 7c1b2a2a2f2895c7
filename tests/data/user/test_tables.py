"""Tables: what becomes of each column, by hand; what is refused, and with what advice; new rows go the same way."""

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchbayes.catalogue.config import Problem
from torchbayes.data import Data
from torchbayes.data.user import read_data, read_new
from torchbayes.data.user.columns import Column, Columns, fit_columns
from torchbayes.data.user.table import Table, from_frame, read_table

ROWS = 40


def written(folder: Path, name: str = "table.csv", **changed) -> Path:
    """A table of every kind of column, in which whole columns can be changed."""
    columns = {
        "number": [f"{i}.5" for i in range(ROWS)],
        "gaps": ["" if i % 4 == 0 else str(i) for i in range(ROWS)],
        "city": [["Bern", "Köln", ""][i % 3] for i in range(ROWS)],
        "row": list(range(ROWS)),
        "same": [7] * ROWS,
        "note": [f"text {i}" for i in range(ROWS)],
        "price": [f"{100 + 3 * i}.25" for i in range(ROWS)],
    } | changed
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def raw(data: Data, targets: torch.Tensor) -> list[float]:
    """Targets in the units of the file."""
    assert data.target_standardise is not None
    return data.target_standardise.inverse(targets).float().flatten().tolist()


def test_columns_become_numbers_as_the_rules_say():
    table = Table({
        "x": np.array([1.0, np.nan, 5.0, 9.0]),
        "whole": np.array([3, 3, 4, 5]),
        "flag": np.array([True, False, True, True]),
        "text": np.array(["b", "a", None, "b"], dtype=object),
        "code": np.array([10, 20, 10, 10]),
        "empty": np.array([np.nan] * 4),
        "same": np.array(["z"] * 4, dtype=object),
    })
    table = Table({name: np.tile(values, 2) for name, values in table.columns.items()})
    encode, notes = fit_columns(table, "mine", left={}, categorical=["code"])
    assert encode.columns == (
        Column("x", None, 5.0, True, 1.0, 9.0),
        Column("whole", None, 3.5, False, 3.0, 5.0),
        Column("flag", None, 1.0, False, 0.0, 1.0),
        Column("text", ("a", "b")),
        Column("code", ("10", "20")),
    )
    expected = [
        [1, 0, 3, 1, 0, 1, 1, 0],
        [5, 1, 3, 0, 1, 0, 0, 1],
        [5, 0, 4, 1, 0, 0, 1, 0],
        [9, 0, 5, 1, 0, 1, 1, 0],
    ]
    assert encode(table).values.tolist() == 2 * expected
    assert encode(table).notes == ()
    assert notes[0] == (
        "Inputs: 3 numbers (x, whole, flag) and 2 categories, each with a column for each value (text (2), code (2)); "
        "8 columns in all, standardised."
    )
    assert notes[1].startswith("Missing in training rows: x (2), text (2).")
    assert notes[2] == "Left out: empty (empty); same (the same in every row, z)."


def test_new_values_are_told():
    encode = Columns((Column("x", None, 2.0, False, 1.0, 3.0), Column("text", ("a", "b"))), "mine")
    new = Table({"x": np.array([np.nan, 9.0, 2.0]), "text": np.array(["c", "a", None], dtype=object)})
    actual = encode(new)
    assert actual.values.tolist() == [[2, 0, 0], [9, 1, 0], [2, 0, 0]]
    assert actual.notes == (
        "Missing values of 'x' that are taken for the median, 2: 1.",
        "Rows with a value of 'text' that no training row has (c), taken as none of its values: 1.",
        "Rows outside the range of the training rows in some column: 1.",
    )
    with pytest.raises(ValueError, match=r"the table has no column 'x', 'text', which mine has\. Its columns are y\."):
        encode(Table({"y": np.array([1.0])}))
    with pytest.raises(ValueError, match=r"'x' must hold finite numbers.*row 2 has 'much'\. Correct it"):
        encode(Table({"x": np.array(["1.5", "much"], dtype=object), "text": np.array(["a", "a"], dtype=object)}))
    texts = Table({"x": np.array(["1.5", None], dtype=object), "text": np.array(["a", "a"], dtype=object)})
    assert encode(texts).values[:, 0].tolist() == [1.5, 2.0]


def test_a_table_is_a_data_set(tmp_path):
    data = read_data(written(tmp_path), {"target": "price"})
    assert (data.name, data.task, data.input_shape) == ("table.csv", "regression", (5,))
    assert (len(data.train.targets), len(data.test.targets)) == (36, 4)
    assert torch.allclose(data.train.inputs.mean(0), torch.zeros(5), atol=1e-6)
    assert torch.allclose(data.train.inputs.square().mean(0), torch.ones(5), atol=1e-6)
    assert set(raw(data, data.train.targets)) <= {100.25 + 3 * i for i in range(ROWS)}
    assert any("Left out: row (row numbers); same (the same in every row, 7)" in note for note in data.notes)
    assert any(note.startswith("Missing in training rows: gaps (") for note in data.notes)
    other = read_data(written(tmp_path), {"target": "price"}, split=1)
    assert not torch.equal(other.test.inputs, data.test.inputs)
    assert len(read_data(written(tmp_path), {"target": "price"}, train_size=20).train.targets) == 20


def test_new_rows_are_read_as_those_of_the_table(tmp_path):
    large = [f"{1.6e9 + i}" for i in range(ROWS)]  # digits beyond single precision
    path = written(tmp_path, number=large)
    data = read_data(path, {"target": "price"})
    new = read_new(data, path)
    assert new.targets is not None
    rows = {row.numpy().tobytes(): target for row, target in zip(new.inputs, new.targets, strict=True)}
    for part in (data.train, data.test):
        for row, target in zip(*part, strict=True):
            assert rows[row.numpy().tobytes()] == pytest.approx(target, abs=1e-6)
    header, *lines = path.read_text("utf-8").splitlines()
    kept = [i for i, name in enumerate(header.split(",")) if name not in {"price", "note"}]
    fewer = tmp_path / "new.csv"
    fewer.write_text("\n".join(",".join(line.split(",")[i] for i in kept) for line in [header, *lines[:3]]), "utf-8")
    some = read_new(data, fewer)
    assert some.targets is None
    assert torch.equal(some.inputs, new.inputs[:3])


@pytest.mark.parametrize(
    ("values", "settings", "classes"),
    [
        (["yes", "no"], {}, ("no", "yes")),
        (["True", "False"], {}, ("False", "True")),
        ([3, 5, 4], {}, ("3", "4", "5")),
        ([3, 5, ""], {}, ("3", "5")),
        ([3, 5, 4], {"task": "regression"}, ()),
        (list(range(0, 80, 2)), {}, ()),
        (["0.5", "1.5"], {}, ()),
        (["0.5", "1.5"], {"task": "classification"}, ("0.5", "1.5")),
    ],
)
def test_targets_are_classes_or_numbers_by_what_they_are(tmp_path, values, settings, classes):
    path = written(tmp_path, price=[values[i % len(values)] for i in range(ROWS)])
    data = read_data(path, {"target": "price", **settings})
    assert data.classes == classes
    dropped = sum(value == "" for value in (values[i % len(values)] for i in range(ROWS)))
    assert len(data.train.targets) + len(data.test.targets) == ROWS - dropped
    assert any("no value in 'price': 13" in note for note in data.notes) == (dropped == 13)
    if classes:
        assert len(torch.cat([data.train.targets, data.test.targets]).unique()) == len(classes)


def test_separators_names_and_packing_are_recognised(tmp_path):
    written(tmp_path)
    plain = read_table(tmp_path / "table.csv")
    text = (tmp_path / "table.csv").read_text("utf-8")
    tabs, semicolons = tmp_path / "t.tsv", tmp_path / "s.csv"
    tabs.write_text(text.replace(",", "\t"), "utf-8")
    semicolons.write_text(text.replace(",", ";").replace(".", ","), "utf-8-sig")
    packed = tmp_path / "p.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (tabs, semicolons, packed):
        actual = read_table(path)
        assert actual.names == plain.names
        for name in plain.names:
            assert (actual.columns[name] == plain.columns[name])[~np.isnan(plain.columns["gaps"])].all()
            assert actual.columns[name].dtype == plain.columns[name].dtype
    bare = tmp_path / "bare.data"
    bare.write_text("1 2.5 -3e-1\n4 5 6\n")
    assert {n: v.tolist() for n, v in read_table(bare).columns.items()} == {"1": [1, 4], "2": [2.5, 5], "3": [-0.3, 6]}


@pytest.mark.parametrize("name", ["", "x" * 5000, "~no_such_user/x.csv", "a\0b", "~"])
def test_odd_names_are_no_accident(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # rather than search whatever lies in that of whoever runs the tests
    with pytest.raises(
        (ValueError, FileNotFoundError), match=r"no data set called|no file or folder|must hold a folder"
    ):
        Problem(data=name).setup()


def test_a_folder_of_two_tables_is_for_training_and_testing(tmp_path):
    written(tmp_path, "train.csv")
    written(tmp_path, "test.csv", price=["1.5"] * ROWS)
    data = read_data(tmp_path, {"target": "price"})
    assert (len(data.train.targets), len(data.test.targets)) == (ROWS, ROWS)
    assert raw(data, data.test.targets) == pytest.approx([1.5] * ROWS, abs=1e-4)
    assert any("Of the test rows: rows with the same inputs as a training row: 40 of 40" in note for note in data.notes)
    with pytest.raises(ValueError, match="as its test rows are given"):
        read_data(tmp_path, {"target": "price"}, split=1)


def test_the_checksum_is_of_all_rows_and_of_nothing_else(tmp_path):
    price = [f"{100 + 3 * i}.25" for i in range(ROWS)]
    number = [f"{i}.5" for i in range(ROWS)]

    def checksum(**changed) -> int:
        actual = read_data(written(tmp_path, **changed), {"target": "price"}).checksum
        assert actual is not None
        return actual

    known = checksum()
    assert checksum(note=["other"] * ROWS) == known
    for column, values in {"price": price, "number": number}.items():
        other = [checksum(**{column: [*values[:i], "0.75", *values[i + 1 :]]}) for i in range(0, ROWS, 3)]
        assert len({known, *other}) == 1 + len(other)  # of any row, whether for training or for testing


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, r"say which column of table\.csv is to be predicted: --target number or gaps or city"),
        ({"target": "pride"}, r"no column of table\.csv called 'pride'\. Did you mean price\?"),
        ({"target": "price", "leave_out": "row"}, r"`leave_out` must be a list of names"),
        (
            {"target": "price", "drop": ["row"]},
            r"table.csv is a table, which has no setting 'drop'\. Its settings are t",
        ),
        ({"target": "price", "task": "counts"}, "`task` must be classification or regression"),
        ({"target": "note", "task": "regression"}, "are texts, which are classes"),
        ({"target": "same"}, r"all \d+ targets of table\.csv are .*: there is nothing to learn"),
        (
            {"target": "price", "leave_out": ["number", "gaps", "city", "note"]},
            r"no column of table\.csv can be an input",
        ),
    ],
)
def test_what_is_no_problem_is_refused(tmp_path, settings, said):
    with pytest.raises(ValueError, match=said):
        read_data(written(tmp_path), settings)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"a,b\n", "has no rows"),
        (b"a,b\n1,2\n3,4,5\n", "cannot be read as a table: .*Correct it or save it again"),
        (b"a,b\n1,\xff2\n", "is not text in UTF-8"),
        (b"# mine\na,b\n1,2\n3,4\n", "its first line has 1 value, and some other line more"),
        (b"\x00\x01\x02,b\n1,2\n", "binary data"),
        (b"a,a \n1,2\n", "more than one column 'a'"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, content, said):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read_table(path)


def test_other_refusals(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*none\.csv"):
        read_data(tmp_path / "none.csv")
    (tmp_path / "x.xlsx").write_bytes(b"1")
    with pytest.raises(ValueError, match=r"must be a table \(\.csv.*my_module:load"):
        read_data(tmp_path / "x.xlsx")
    with pytest.raises(ValueError, match="it has infinite values"):
        read_data(written(tmp_path, number=["inf", *["1.5"] * (ROWS - 1)]), {"target": "price"})
    with pytest.raises(ValueError, match="it has infinite values"):
        read_data(written(tmp_path, price=["inf", *["1.5"] * (ROWS - 1)]), {"target": "price"})
    data = read_data(written(tmp_path, price=["a", "b"] * 20), {"target": "price"})
    with pytest.raises(ValueError, match=r"row 2 of other.csv is of the class 'c'; those of table\.csv are a, b"):
        read_new(data, written(tmp_path, "other.csv", price=["a", "c"] * 20))
    data = read_data(written(tmp_path), {"target": "price"})
    with pytest.raises(
        ValueError, match=r"row 2 of other.csv has the target 'much'; those of table\.csv are finite num"
    ):
        read_new(data, written(tmp_path, "other.csv", price=["1.5", "much"] * 20))
    with pytest.raises(
        ValueError, match=r"a tenth .* of every class its share, is none: its 20 classes have at most 2 "
    ):
        read_data(written(tmp_path, price=[f"k{i // 2}" for i in range(ROWS)]), {"target": "price"})


def test_row_numbers_are_an_input_where_there_is_no_other(tmp_path):
    (tmp_path / "time.csv").write_text("t,y\n" + "".join(f"{i},{i / 2 + 0.25}\n" for i in range(30)))
    assert read_data(tmp_path / "time.csv", {"target": "y"}).input_shape == (1,)
    (tmp_path / "years.csv").write_text(
        "year,x,y\n" + "".join(f"{1900 + i},{i % 7},{i / 2 + 0.25}\n" for i in range(30))
    )
    assert read_data(tmp_path / "years.csv", {"target": "y"}).input_shape == (2,)
    (tmp_path / "huge.csv").write_text("x,y\n" + "".join(f"{i}e200,{i / 2 + 0.25}\n" for i in range(30)))
    with pytest.raises(ValueError, match=r"'x' has numbers up to 2\.9e\+201\. Use another unit"):
        read_data(tmp_path / "huge.csv", {"target": "y"})
    with pytest.raises(IsADirectoryError, match="is a folder where a file should be"):
        read_table(tmp_path)


def test_numbers_of_a_frame_are_numbers_whatever_holds_them():
    """Decimals, objects and texts, of which nearly every row has its own, were left out as if they were notes."""
    plain = np.random.default_rng(0).normal(size=60).round(3)
    with_hole = [None, *plain[1:].tolist()]
    frame = pd.DataFrame({
        "object": pd.Series(plain, dtype=object),
        "decimal": [Decimal(str(v)) for v in plain],
        "text": [str(v) for v in plain],
        "hole": pd.Series(with_hole, dtype=object),
        "span": pd.to_timedelta(plain, "h"),
        "wide": np.array([2**63 + 2048, 1] * 30, dtype=np.uint64),
        "name": pd.Categorical([1, 2] * 30),
    })
    columns, notes = fit_columns(from_frame(frame, "X"), "X", left={}, categorical=())
    actual = columns(from_frame(frame, "X")).values
    assert not any("Left out" in note for note in notes)
    assert actual.shape == (60, 9)
    np.testing.assert_allclose(actual[:, :3], plain[:, None].repeat(3, 1))
    np.testing.assert_allclose(actual[1:, 3], plain[1:])
    assert actual[:, 4].sum() == 1
    np.testing.assert_allclose(actual[:, 5], 3600 * plain, atol=1e-6)
    np.testing.assert_allclose(actual[:, 6], frame["wide"].astype(float))
    assert columns.columns[-1].values == ("1", "2")


def test_names_are_the_same_whatever_holds_them():
    known = pd.DataFrame({"a": pd.Categorical([1.0, 2.0] * 30), "b": [1.0, "x"] * 30})
    columns, _ = fit_columns(from_frame(known, "X"), "X", left={}, categorical=())
    new = pd.DataFrame({"a": [1.0, 2.0], "b": ["1", "x"]})
    np.testing.assert_array_equal(columns(from_frame(new, "X")).values, columns(from_frame(known.head(2), "X")).values)


def test_a_stray_text_among_the_numbers_of_a_frame_is_refused():
    frame = pd.DataFrame({"a": np.arange(60.0), "b": [*map(str, range(59)), "oops"]})
    with pytest.raises(ValueError, match="column 'b' has 59 numbers and 1 text, such as 'oops'"):
        fit_columns(from_frame(frame, "X"), "X", left={}, categorical=())
    with pytest.raises(ValueError, match="X has no columns"):
        from_frame(pd.DataFrame(index=range(3)), "X")


def test_new_numbers_too_far_for_single_precision_are_named(tmp_path):
    data = read_data(written(tmp_path), {"target": "price"})
    new = written(tmp_path, "new.csv", number=["1.5", "1e300", *["2.5"] * (ROWS - 2)])
    with pytest.raises(ValueError, match=r"row 2 of new.csv has 1e\+300, too far from the training rows"):
        read_new(data, new)


@pytest.mark.parametrize("mark", [";", ",", "\t", "|"])
def test_quoted_values_may_hold_separators_and_go_over_several_lines(mark, tmp_path):
    path = tmp_path / "a.csv"
    rows = [f'{i}.5{mark}"note {i % 3}{mark}\n\nand so on; on, on"{mark}{i}' for i in range(ROWS)]
    path.write_text("\n".join([mark.join(["a", "b", '"c\nd"']), *rows]))
    table = read_table(path)
    assert table.names == ["a", "b", "c\nd"]
    assert len(table) == ROWS
    assert len(set(table.columns["b"])) == 3


@pytest.mark.parametrize("size", ["e300", "e-300"])
@pytest.mark.parametrize("column", ["price", "number"])
def test_numbers_whose_squares_are_none_are_refused(size, column, tmp_path):
    cells: Any = [f"{i}.5{size}" for i in range(1, ROWS + 1)]
    with pytest.raises(ValueError, match=rf"the column '{column}' has numbers up to 4.*\. Use another unit"):
        read_data(written(tmp_path, **{column: cells}), {"target": "price"})

"""Tables as people keep them: texts among numbers, units, gaps, row numbers, odd columns, other encodings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchbayes.data import Data
from torchbayes.data.user import read_data, read_new
from torchbayes.data.user.table import read_table

ROWS = 60


def written(folder: Path, name: str = "house.csv", **changed) -> Path:
    """A table of two inputs and a target, in which columns can be changed or added."""
    rng = np.random.default_rng(0)
    numbers = {name: [f"{value:.3f}" for value in rng.normal(50, 10, ROWS)] for name in ("a", "b", "price")}
    columns = numbers | {name: list(map(str, values)) for name, values in changed.items()}
    lines = [";".join(columns), *(";".join(row) for row in zip(*columns.values(), strict=True))]
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def with_cell(text: str, row: int = 50) -> list[str]:
    """A column of numbers with one text."""
    return [text if i == row else f"{i}.25" for i in range(ROWS)]


def read(path: Path, **settings) -> Data:
    return read_data(path, {"target": "price", **settings})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            with_cell("unknown"),
            r"the target 'price' has 59 numbers and 1 text; the first is 'unknown' in row 51 of house\.csv \(names not "
            r"counted\)\. Correct such cells, or empty them: .*--data_settings\.task classification",
        ),
        (with_cell("1,234.56"), r"59 numbers and 1 text; .*'1,234\.56' .* Write them as plain numbers"),
        ([f"${i}.30" for i in range(ROWS)], r"60 different texts in 60 rows, .*'\$0\.30' in row 1 .*Write numbers pl"),
        ([f"{i // 2},{i // 2:03d}.5" for i in range(ROWS)], r"has 30 different texts in 60 rows"),
        ([f"2020-01-{i % 31 + 1:02d}" for i in range(ROWS)], r"has 31 different texts in 60 rows"),
    ],
)
def test_numbers_of_a_target_that_are_texts_are_refused(tmp_path, values, said):
    path = written(tmp_path, price=values)
    with pytest.raises(ValueError, match=said):
        read(path)
    with pytest.raises(ValueError, match=r"its .* classes have at most"):
        read(path, task="classification")


def test_texts_of_a_target_that_repeat_are_classes(tmp_path):
    path = written(tmp_path, price=[f"{i % 5} kg" for i in range(ROWS)])
    assert read(path).classes == ("0 kg", "1 kg", "2 kg", "3 kg", "4 kg")
    with pytest.raises(ValueError, match=r"no regression, such as '0 kg'\. Write them as plain numbers"):
        read(path, task="regression")
    path = written(tmp_path, price=[["1", "2", "many"][i % 3] for i in range(ROWS)])
    assert torch.equal(torch.bincount(read(path).test.targets), torch.tensor([2, 2, 2]))
    with pytest.raises(ValueError, match=r"40 numbers and 20 texts; the first is 'many' in row 3 of house\.csv"):
        read(path, task="regression")


def test_a_text_among_the_numbers_of_an_input_is_refused(tmp_path):
    path = written(tmp_path, a=with_cell("broken"))
    with pytest.raises(ValueError, match=r"the column 'a' has 59 numbers and 1 text; the first is 'broken' in row 51 "):
        read(path)
    assert read(path, leave_out=["a"]).input_shape == (1,)
    assert read(path, categorical=["a"]).train.inputs.shape[1] > ROWS / 2
    cells: Any = with_cell("broken")
    with pytest.raises(ValueError, match=r"leave_out \"\['size \[m\]'\]\"\."):  # as YAML takes it
        read(written(tmp_path, **{"size [m]": cells}))
    few = [["1", "2", "3+"][i % 3] for i in range(ROWS)]
    assert read(written(tmp_path, a=few)).input_shape == (4,)
    (tmp_path / "both").mkdir()
    written(tmp_path / "both", "train.csv")
    written(tmp_path / "both", "test.csv", a=with_cell("broken"))
    with pytest.raises(ValueError, match=r"119 numbers and 1 text; the first is 'broken' in row 51 of test\.csv"):
        read(tmp_path / "both")


@pytest.mark.parametrize("text", ["53.1 kg", "45.5%", "1,234.5", "€ 12", "$12.30", "1 234,5", "3e5 m2"])
def test_numbers_with_units_are_told(tmp_path, text):
    units = [f"{i + 1}{text}" for i in range(ROWS)] if text[0].isdigit() else [f"{text}{i}" for i in range(ROWS)]
    units = [unit.replace("1,234", ",234").replace("1 234", " 234") for unit in units]
    data = read(written(tmp_path, a=units))
    assert data.input_shape == (1,)
    assert any("texts, which look like numbers with units or separators: write them plainly" in n for n in data.notes)
    names = read(written(tmp_path, a=[f"2020-{i // 28 + 1:02d}-{i % 28 + 1:02d}-a" for i in range(ROWS)]))
    assert any("Left out: a (54 different texts)." in note for note in names.notes)


@pytest.mark.parametrize("text", ["n.a.", "N/A", "n/a", "#N/A", "NULL", "null", "<NA>", "-", "--", ".", "NA ", "?"])
@pytest.mark.parametrize("comma", [False, True])
def test_missing_values_have_many_spellings(tmp_path, text, comma):
    values = with_cell(text)
    if comma:
        values = [value.replace(".25", ",25") for value in values]
    actual = read_table(written(tmp_path, a=values)).columns["a"]
    assert np.array_equal(actual, [np.nan if i == 50 else i + 0.25 for i in range(ROWS)], equal_nan=True)


def test_signs_are_values_where_they_are_not_among_numbers(tmp_path):
    signs = ["+-."[i % 3] for i in range(ROWS)]
    data = read(written(tmp_path, a=signs, price=["+-"[i % 2] for i in range(ROWS)]))
    assert data.classes == ("+", "-")
    assert data.input_shape == (4,)
    data = read(written(tmp_path, a=with_cell("-", row=3)))
    (tmp_path / "new.csv").write_text("a;b\n-;2\n")
    (tmp_path / "empty.csv").write_text("a;b\n;2\n")
    new, empty = (read_new(data, tmp_path / name).inputs for name in ("new.csv", "empty.csv"))
    assert torch.equal(new, empty)


def test_row_numbers_may_begin_anywhere(tmp_path):
    for start in (0, 1, 1000, -7, 5_000_000):
        assert read(written(tmp_path, id=range(start, start + ROWS))).input_shape == (2,)
    assert read(written(tmp_path, id=range(1950, 1950 + ROWS))).input_shape == (3,)  # years
    assert read(written(tmp_path, id=range(1000, 1000 + 2 * ROWS, 2))).input_shape == (3,)
    (tmp_path / "both").mkdir()
    written(tmp_path / "both", "train.csv", id=range(ROWS))
    written(tmp_path / "both", "test.csv", id=range(ROWS, 2 * ROWS))
    assert read(tmp_path / "both").input_shape == (2,)


def test_odd_columns_are_told(tmp_path):
    path = written(tmp_path)
    price = read_table(path).columns["price"]
    assert not any("determines" in note or "Far" in note or "same name" in note for note in read(path).notes)
    notes = read(written(tmp_path, cents=[f"{-100 * value:.1f}" for value in price])).notes
    assert (
        "'cents' determines the target 'price' (correlation -1.00000): leave it out if it is not known in" in notes[-1]
    )
    notes = read(written(tmp_path, price=with_cell("1e12"))).notes
    assert any("Far from all others in 'price': 1 number, up to 1e+12 where the median is" in note for note in notes)
    path = written(tmp_path)
    held = [
        row for row in range(ROWS) if any("'a'" in n for n in read(written(tmp_path, a=with_cell("1e9", row))).notes)
    ]
    assert len(held) == len(read(path).train.targets)  # those that standardise
    notes = read(written(tmp_path, price=["1.5"] * ROWS)).notes
    assert "The target 'price' is the same in all training rows" in notes[-1]
    path.write_text(path.read_text("utf-8").replace("a;b;price", "a;price;price"), "utf-8")
    assert "Columns of the same name: 'price'; all but the first are called 'price.1'" in "".join(read(path).notes)


def test_other_encodings_are_named_or_said(tmp_path):
    path = written(tmp_path, place=[["Köln", "Bern"][i % 2] for i in range(ROWS)])
    text, known = path.read_text("utf-8"), read(path)
    for encoding, settings in {"utf-16": {}, "latin-1": {"encoding": "latin-1"}}.items():
        path.write_text(text, encoding)
        actual = read(path, **settings)
        assert torch.equal(actual.train.inputs, known.train.inputs)
        assert torch.equal(read_new(actual, path).inputs, read_new(actual, path).inputs)
    with pytest.raises(ValueError, match=r"not text in UTF-8, as line 2 shows .*--data_settings\.encoding latin-1"):
        read(path)
    with pytest.raises(ValueError, match="`encoding` must be one that Python knows, such as latin-1; got 'latin-100'"):
        read(path, encoding="latin-100")


def test_a_target_of_one_value_has_no_deviation(tmp_path):
    notes = read_data(written(tmp_path, same=["5.0"] * ROWS), {"target": "same", "task": "regression"}).notes
    assert any("Targets: numbers (mean 5, standard deviation 0)" in note for note in notes)


@pytest.mark.parametrize(("same", "told"), [(29, None), (30, "50%"), (45, "75%")])
def test_targets_that_are_mostly_one_value_are_told(tmp_path, same, told):
    price = [0.5] * same + [i + 0.25 for i in range(ROWS - same)]
    notes = [note for note in read(written(tmp_path, price=price)).notes if "of the targets" in note]
    assert [note.split(" of the targets ")[0] for note in notes] == ([told] if told else [])
    assert all("'price' are 0.5." in note for note in notes)

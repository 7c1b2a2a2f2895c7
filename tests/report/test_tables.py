import io
import math

import numpy as np
import pytest
from rich.console import Console

from torchbayes.report import Table


def best(table: Table) -> set[tuple[int, int]]:
    return {(i, j) for i, row in enumerate(table.cells) for j, cell in enumerate(row) if cell.best}


def test_best_value_of_each_column_by_its_direction():
    rows = [["MAP", 0.912, 0.35, 3], ["SWAG", 0.921, 0.31, 2], ["HMC", 0.917, 0.28, 1]]
    table = Table(["method", "accuracy", "NLL", "time"], rows, better={"accuracy": "high", "NLL": "low"})
    assert best(table) == {(1, 1), (2, 2)}
    assert table.headers() == ["method", "accuracy ↑", "NLL ↓", "time"]
    assert table.numeric == [False, True, True, True]


def test_ties_as_written_share_the_mark_and_nan_or_nothing_never_has_it():
    rows = [[0.30012, math.nan], [0.29988, None], [0.31, 2.0], [math.nan, 1.0]]
    table = Table(["NLL", "ECE"], rows, better={"NLL": "low", "ECE": "high"})
    assert best(table) == {(0, 0), (1, 0), (2, 1)}
    assert [cell.text for cell in table.cells[0]] == ["0.300", "NaN"]
    assert table.cells[1][1].text == "–"


def test_nothing_is_marked_where_all_values_agree_or_none_is_known():
    columns = ["a", "b", "c"]
    table = Table(columns, [[1.0, math.nan, 0.5], [1.0, None, math.nan]], better=dict.fromkeys(columns, "low"))
    assert best(table) == set()


def test_errors_are_shown_and_only_the_value_is_compared():
    table = Table(["NLL"], [[(0.5, 0.001)], [(0.4, 0.9)], [(0.4, 0.1)]], better={"NLL": "low"}, formats={"NLL": ".2f"})
    assert [row[0].text for row in table.cells] == ["0.50 ± 0.00", "0.40 ± 0.90", "0.40 ± 0.10"]
    assert best(table) == {(1, 0), (2, 0)}


def test_numbers_of_numpy_percentages_and_signs():
    table = Table(["a", "b"], [[np.float32(-0.25), np.int64(7)], [0.5, -1]], formats={"a": ".1%"})
    assert [[cell.text for cell in row] for row in table.cells] == [["−25.0 %", "7"], ["50.0 %", "−1"]]


def test_markdown_is_aligned_escaped_and_bold():
    table = Table(["name|x", "NLL"], [["<b>*A*", 1.0], ["B", 0.5]], "a < b", better={"NLL": "low"})
    assert table.markdown() == (
        "| name\\|x | NLL ↓ |\n| --- | ---: |\n| &lt;b&gt;\\*A\\* | 1.000 |\n| B | **0.500** |\n\na &lt; b\n"
    )


def test_rich_prints_every_cell_and_no_markup():
    table = Table(["method", "NLL"], [["[red]SWAG[/red]", 0.25], ["HMC", 0.125]], "lower", better={"NLL": "low"})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table.rich())
    text = console.export_text()
    for piece in ("method", "NLL ↓", "[red]SWAG[/red]", "0.250", "HMC", "0.125", "lower"):
        assert piece in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": [["a"]]}, "needs 2 entries, one for each of `columns`; got \\['a'\\]"),
        ({"rows": [], "better": {"nll": "low"}}, "must name columns, method, NLL; got nll"),
        ({"rows": [], "better": {"NLL": "down"}}, "'low' or 'high'; got 'down'"),
    ],
)
def test_mistakes_are_named(settings: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Table(["method", "NLL"], **settings)


def test_ties_share_the_mark_of_the_best():
    rows = [["a", 0.1], ["b", 0.2], ["c", 0.3]]
    assert best(Table(["method", "NLL"], rows, better={"NLL": "low"}, ties={"NLL": [1]})) == {(0, 1), (1, 1)}
    assert best(Table(["method", "NLL"], rows, ties={"NLL": [1]})) == set()


def test_rows_beside_the_others_are_never_marked():
    table = Table(["name", "ECE"], [["a", 0.2], ["b", 0.3], ["constant", 0.1]], better={"ECE": "low"}, beside=1)
    assert [row[1].best for row in table.cells] == [True, False, False]

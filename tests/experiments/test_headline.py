"""Headlines: the lines are cells of the tables, and say what is missing."""

import pytest

from torchbayes.report import Table
from torchbayes_experiments import Headline, get, names
from torchbayes_experiments.headline import Line

ERRORS = Table(["data", "method", "error"], [["a", "MAP", (0.3, 0.01)]], "Errors.")
SCORES = Table(
    ["data", "rows", "method", "NLL", "paper"],
    [
        ["a", 10, "MAP", (0.5, 0.02), 0.6],
        ["a", 10, "SWAG", 0.4, None],
        ["b", 10, "MAP", (0.7, 0.03), (0.8, 0.1)],
        ["b", 20, "SWAG", None, 0.3],
    ],
    "Test scores.",
)


@pytest.mark.parametrize(
    ("headline", "lines"),
    [
        (
            Headline("NLL", ("NLL",), where=("a",), published="paper"),
            [Line("MAP", 0.5, 0.02, 0.6), Line("SWAG", 0.4)],
        ),
        (
            Headline("NLL", ("NLL",), rows=("b, MAP", "a, MAP"), published={"a, MAP": (0.9, 0.1)}),
            [Line("b, MAP", 0.7, 0.03), Line("a, MAP", 0.5, 0.02, 0.9, 0.1)],
        ),
        (Headline("NLL", ("NLL",), where=("SWAG", "10"), index=("data",)), [Line("a", 0.4)]),
        (Headline("error", ("error",), table="Errors"), [Line("a, MAP", 0.3, 0.01)]),
        (
            Headline("both", ("NLL", "paper"), where=("b", "MAP")),
            [Line("NLL", 0.7, 0.03), Line("paper", 0.8, 0.1)],
        ),
    ],
)
def test_lines_are_cells_of_the_first_table_that_has_the_columns(headline: Headline, lines: list[Line]) -> None:
    assert headline.lines([ERRORS, SCORES]) == lines


@pytest.mark.parametrize(
    "headline",
    [
        Headline("NLL", ("nll",)),
        Headline("NLL", ("NLL",), where=("c",)),
        Headline("NLL", ("NLL",), table="Training"),
        Headline("NLL", ("NLL",), published="book"),
        Headline("NLL", ("NLL",), rows=("b, SWAG",)),
    ],
)
def test_a_headline_that_no_table_has_is_refused(headline: Headline) -> None:
    with pytest.raises(ValueError, match=r"no table has NLL|no table has nll"):
        headline.lines([ERRORS, SCORES])


def test_every_experiment_has_a_headline() -> None:
    assert [name for name in names() if get(name).headline is None] == []

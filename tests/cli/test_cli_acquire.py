"""`torchbayes acquire`: a study that goes on, and rows of a pool that are labelled by hand and read back."""

import csv
import json
from pathlib import Path

import pytest

from torchbayes.acquisition import AcquisitionWarning
from torchbayes.cli import main

FIT = ["--method", "MAP", "--method.members", "3", "--method.epochs", "60"]


def rows(count, seed=0):
    return [[f"{((7 * k + seed) % 23) / 23:.3f}", f"{((5 * k + seed) % 17) / 17:.3f}"] for k in range(count)]


def written(path, lines):
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)


def read(path):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def label(row):
    return "yes" if float(row[0]) > float(row[1]) else "no"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written("data.csv", [["a", "b", "out"], *([*row, label(row)] for row in rows(30))])
    pool = rows(20, seed=3)
    written("pool.csv", [["a", "b"], *pool, *pool[:4]])  # four rows twice
    return tmp_path


def fill(path, leave=()):
    lines = read(path)
    for number, line in enumerate(lines[1:]):
        line[-1] = "" if number in leave else label(line[1:3])
    written(path, lines)


def test_rows_of_a_pool_are_asked_for_and_read_back(here, capsys):
    pool = ["--pool", "pool.csv", "--acquire", "5", "--target", "out"]
    assert main(["acquire", "--data", "data.csv", *pool, *FIT, "--directory", "run"]) == 0
    first = read("run/round_0/to_label.csv")
    assert first[0] == ["pool_row", "a", "b", "out"]
    table = read("pool.csv")
    assert all(table[int(line[0])] == line[1:3] and line[3] == "" for line in first[1:])
    assert len({tuple(line[1:3]) for line in first[1:]}) == 5
    assert main(["acquire", "--directory", "run", "--resume"]) == 2
    assert "has no labels yet. Fill in its column 'out'" in capsys.readouterr().err
    fill("run/round_0/to_label.csv", leave={2})
    with pytest.warns(AcquisitionWarning, match="1 of 5 rows of .* have no label"):
        assert main(["acquire", "--directory", "run", "--resume"]) == 0
    second = read("run/round_1/to_label.csv")
    assert not {tuple(line[1:3]) for line in first[1:]} & {tuple(line[1:3]) for line in second[1:]}
    train = read("run/round_1/data/train.csv")
    assert len(train) == 1 + 24 + 4
    assert [*first[1][1:3], label(first[1][1:3])] in train
    assert read("run/round_0/data/test.csv") == read("run/round_1/data/test.csv")
    assert [line[0] for line in read("run/chosen.csv")[1:]] == ["bald"] * 10
    Path("run/round_1/to_label.csv").unlink()  # as though it had been killed before
    with pytest.warns(AcquisitionWarning):
        assert main(["acquire", "--directory", "run", "--resume"]) == 0
    assert read("run/round_1/to_label.csv") == second
    assert main(["acquire", "--data", "data.csv", *pool, *FIT, "--directory", "run"]) == 2
    assert "already holds rounds" in capsys.readouterr().err


def test_files_may_be_those_of_a_spreadsheet_with_decimal_commas(here):
    def saved(path, lines):
        text = "\r\n".join(";".join(cell.replace(".", ",") for cell in line) for line in lines)
        Path(path).write_text(text, encoding="utf-8-sig")

    table = read("data.csv")
    asked = ["--pool", "pool.csv", "--test", "test.csv", "--acquire", "5", "--target", "out", *FIT]
    written("test.csv", table[:9])
    assert main(["acquire", "--data", "data.csv", *asked, "--directory", "commas"]) == 0
    for path, lines in (("data.csv", table), ("pool.csv", read("pool.csv")), ("test.csv", table[:9])):
        saved(path, lines)
    assert main(["acquire", "--data", "data.csv", *asked, "--directory", "run"]) == 0
    first = read("run/round_0/to_label.csv")
    assert first == read("commas/round_0/to_label.csv")
    # what was asked for is known by its place; a spreadsheet may write the inputs otherwise, or lose them
    saved("run/round_0/to_label.csv", [["pool_row", "out"], *([line[0], label(line[1:3])] for line in first[1:])])
    assert main(["acquire", "--directory", "run", "--resume"]) == 0
    train = read("run/round_1/data/train.csv")
    assert train[-5:] == [[*line[1:3], label(line[1:3])] for line in first[1:]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pool.csv": [["a"], ["1"]]}, "pool.csv has no column 'b', which"),
        ({"pool.csv": [["a", "b"]]}, "pool.csv has no rows; there is nothing to choose from"),
        ({"test.csv": [["a", "b"], ["1", "2"]]}, "test.csv has no column 'out', which"),
        ({"run/round_0/to_label.csv": [["a", "b", "out"], ["1", "2", "no"]]}, "has lost its column 'pool_row'"),
        ({"run/round_0/to_label.csv": [["pool_row", "a", "b", "out"], ["99", "1", "2", "no"]]}, "1 to 24; got '99'"),
    ],
)
def test_damaged_files_are_told(here, change, said, capsys):
    for path, lines in change.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        written(path, lines)
    asked = ["--data", "data.csv", "--target", "out", "--pool", "pool.csv", *FIT, "--directory", "run"]
    assert main(["acquire", *asked, *(["--test", "test.csv"] if "test.csv" in change else [])]) == 2
    assert said in capsys.readouterr().err


def test_a_study_writes_a_page_and_goes_on(here, capsys):
    sizes = ["--first", "8", "--acquire", "4", "--rounds", "1", "--seeds", "2", "--scores", "batchbald"]
    assert main(["acquire", "--data", "data.csv", "--target", "out", *FIT, *sizes, "--directory", "run"]) == 0
    table = capsys.readouterr().out
    assert "accuracy, BatchBALD" in table
    assert "difference" in table
    page = Path("run/rounds.html").read_text(encoding="utf-8")
    assert "Active learning on" in page
    assert Path("run/rounds.png").is_file()
    assert main(["acquire", "--directory", "run", "--resume", "--json"]) == 0
    rounds = json.loads(capsys.readouterr().out)
    assert [(each["way"], each["labelled"]) for each in rounds] == 2 * [
        ("batchbald", 8),
        ("batchbald", 12),
        ("random", 8),
        ("random", 12),
    ]
    assert main(["acquire", "--directory", "run", "--resume", "--first", "9"]) == 2
    assert "rounds of another `first`" in capsys.readouterr().err
    assert main(["acquire", "--data", "data.csv", "--target", "out", "--scores", "bold", "--directory", "new"]) == 2
    assert "`scores` must be one of bald" in capsys.readouterr().err

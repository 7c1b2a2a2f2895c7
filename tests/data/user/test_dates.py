"""Columns of dates: every usual form is read as the same days, and what a date becomes is that of the calendar."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from torchbayes.data import Data
from torchbayes.data.user.dates import fit_dates, forms_of
from torchbayes.data.user.tabular import read_tabular

BEGIN = datetime(2011, 12, 20, 6, 30)
DATES = [BEGIN + timedelta(days=7 * i, hours=5 * i) for i in range(60)]


def table(path: Path, cells: list[str], name: str = "when") -> Data:
    rows = [f'"{cell}",{i % 7},{i * 1.5}' for i, cell in enumerate(cells)]
    path.write_text("\n".join([f"{name},x,y", *rows]) + "\n")
    return read_tabular(path, target="y")


def test_months_are_their_first_days() -> None:
    texts = [f"{2020 + k // 12}-{k % 12 + 1:02}" for k in range(30)]
    months, days = fit_dates("when", texts, flag=False), fit_dates("when", [f"{text}-01" for text in texts], flag=False)
    assert months is not None
    assert days is not None
    assert replace(months, form="%Y-%m-%d") == replace(days, form="%Y-%m-%d")
    assert months.texts(np.array([0.0, 31.0])).tolist() == ["2020-01", "2020-02"]


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d %b %Y", "%B %d, %Y", "%d.%m.%y", "%d-%b-%Y"],
)
@pytest.mark.parametrize("time", ["", " %H:%M", " %H:%M:%S", " %I:%M %p"])
def test_days_are_those_of_the_calendar_however_dates_are_written(form: str, time: str) -> None:
    texts = [date.strftime(form + time) for date in DATES]
    actual = fit_dates("when", texts, flag=False)
    assert actual is not None
    block = np.zeros((len(texts), actual.width))
    assert actual.write(np.array(texts, dtype=object), block) == []
    dates = DATES if time else [date.replace(hour=0, minute=0) for date in DATES]
    expected = [(date - dates[0]).total_seconds() / 86400 for date in dates]
    np.testing.assert_allclose(block[:, 0], expected)
    assert block[:, 1].tolist() == [date.year for date in dates]
    angles = np.arctan2(block[:, 2], block[:, 3]) / (2 * np.pi) % 1 * 365.2425
    days = [date.timetuple().tm_yday - 1 + (date.hour * 60 + date.minute) / 1440 for date in dates]
    np.testing.assert_allclose(angles, days, atol=1e-9)
    weekdays = np.arctan2(block[:, 4], block[:, 5]) / (2 * np.pi) % 1 * 7 if actual.width > 5 else []
    for place, date in zip(weekdays, dates, strict=False):
        assert place == pytest.approx(date.weekday() + (date.hour * 60 + date.minute) / 1440, abs=1e-9)
    assert ("weekday" in actual.parts) == (actual.width > 4)
    assert ("time of day" in actual.parts) == bool(time)


def test_zones_are_taken_to_one_time() -> None:
    actual = fit_dates(
        "t", ["2020-01-01T00:00:00Z", "2020-01-01T03:00:00+02:00", "2020-01-01T12:00:00.5+00:00"], flag=False
    )
    assert actual is not None
    block = np.zeros((2, actual.width))
    actual.write(np.array(["2020-01-01T03:00:00+02:00", "2020-01-02T00:00:00+00:00"], dtype=object), block)
    assert block[:, 0] * 24 == pytest.approx([1, 24])


@pytest.mark.parametrize(
    "texts",
    [["a", "b"], ["2020"], ["1.5", "2.5"], ["2020-13-01"], ["12", "20200101"], ["10-20"], ["01.02.2020", "later"]],
)
def test_other_texts_are_no_dates(texts: list[str]) -> None:
    assert forms_of(texts) == []


def test_a_form_that_is_ambiguous_is_told(tmp_path: Path) -> None:
    cells = [f"{1 + i % 12:02}/{1 + i % 9:02}/2020" for i in range(60)]
    notes = " ".join(table(tmp_path / "a.csv", cells).notes)
    assert "read as %m/%d/%Y and not as %d/%m/%Y" in notes
    assert forms_of([*cells, "12/31/2020"]) == ["%m/%d/%Y"]


def test_a_table_with_dates_says_what_became_of_them(tmp_path: Path) -> None:
    cells = [date.strftime("%Y-%m-%d") for date in DATES]
    cells[3] = ""
    data = table(tmp_path / "a.csv", cells)
    told = next(note for note in data.notes if note.startswith("Inputs"))
    assert "1 number (x) and 1 column of dates: when (2011-12-20 to " in told
    assert "as elapsed days, year, month, weekday)" in told
    assert "read as" not in told  # ISO 8601 and %Y-%m-%d are the same dates
    assert data.input_shape == (1 + 1 + 1 + 2 + 2 + any(note.startswith("Missing") for note in data.notes),)
    new = tmp_path / "new.csv"
    new.write_text("when,x\n2031-01-01,1\n,2\n")
    assert data.reader is not None
    read = data.reader(new, data)
    assert any(note.startswith("Rows outside the range of the training rows") for note in read.notes)
    assert read.inputs.isfinite().all()
    new.write_text("when,x\n01.02.2031,1\n")
    with pytest.raises(ValueError, match="must hold dates such as 2011-12-20, as in the training rows; row 1 has"):
        data.reader(new, data)


def test_dates_can_be_categories_or_left_out(tmp_path: Path) -> None:
    cells = [("2020-01-01", "2020-01-02")[i % 2] for i in range(60)]
    table(tmp_path / "a.csv", cells)
    named = read_tabular(tmp_path / "a.csv", target="y", categorical=["when"])
    assert "1 category" in " ".join(named.notes)
    assert read_tabular(tmp_path / "a.csv", target="y", leave_out=["when"]).input_shape == (1,)

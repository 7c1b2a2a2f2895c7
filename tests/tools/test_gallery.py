"""The gallery: every experiment has a card that says what its record says, and a page that shows it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tools.docs import commands

from tools import gallery
from torchbayes_experiments import NAMES
from torchbayes_experiments.headline import Line
from torchbayes_experiments.record import Record
from torchbayes_experiments.verdicts import Part, Verdict

ROOT = Path(__file__).parents[2]
HOLDS, OPEN = Part("A is below B", "holds", "mean 1"), Part("B is below C", "inconclusive", "mean 2")
RECORD = Record(
    experiment="hmc_uci",
    claim="It <works>.",
    source="Nobody 2020",
    date="2026-01-02",
    scale="small",
    seeds=(0, 1),
    verdict=Verdict.of([HOLDS, HOLDS, OPEN]),
    label="test NLL",
    lines=(Line("a", 1.0, 0.1, 3.0, 0.5), Line("b", 2.0)),
    seconds=(100.0, 200.0),
)


def test_every_experiment_has_a_record_and_a_page_that_agree() -> None:
    assert list(gallery.faults()) == []


def test_every_card_has_the_topic_the_verdict_and_the_numbers_of_its_record() -> None:
    page = gallery.gallery()
    cards = re.findall(r'<article class="finding" id="(\w+)" data-topic="([^"]+)" data-verdict="([^"]+)">', page)
    assert {name for name, _, _ in cards} == {folder.name for folder in gallery.RECORDED.iterdir()}
    listed = re.findall(r"<li><code>(\w+)</code>", page)
    assert sorted([*listed, *(name for name, _, _ in cards)]) == sorted(NAMES)
    for record, (name, topic, verdict) in zip(gallery.records(), cards, strict=True):
        assert (record.experiment, record.verdict.outcome) == (name, verdict)
        assert topic == gallery.TOPICS[NAMES[name]]


def test_the_command_of_every_card_goes_through_the_real_parser() -> None:
    for record in gallery.records():
        assert commands.faults_of(record.command, ROOT) == []


def test_numbers_are_drawn_where_they_are() -> None:
    drawn = gallery.picture(RECORD)
    # from 0.8, two standard errors below the first, to 4.0, two above the published one, and a twentieth beyond
    low, high = 0.8 - 0.16, 4.0 + 0.16
    for kind, value in (("m", 1.0), ("p", 3.0), ("m", 2.0)):
        assert f'<i class="{kind}" style="left:{100 * (value - low) / (high - low):.1f}%"></i>' in drawn
    assert f'<i class="p bar" style="left:{100 * (2.0 - low) / (high - low):.1f}%' in drawn
    assert f"width:{100 * 2.0 / (high - low):.1f}%" in drawn
    assert "<td>1.00 ± 0.10</td><td>3.0 ± 0.5</td>" in drawn
    assert gallery.picture(replace(RECORD, lines=())) == ""


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ([(0.0728, 0.0019), (0.0003, 0.0001), (None, None)], ["0.0728 ± 0.0019", "0.0003 ± 0.0001", ""]),
        ([(-1771.0, 364.0), (-9722.2, 1535.0)], ["−1,771 ± 364", "−9,722 ± 1,535"]),
        ([(-0.9407, 0.407), (-0.9056, 0.031)], ["−0.94 ± 0.41", "−0.91 ± 0.03"]),
        ([(2.303, None), (0.302, None)], ["2.303", "0.302"]),
        ([(24.0, None), (16.0, None)], ["24", "16"]),
        ([(0.0, 0.0)], ["0"]),
    ],
)
def test_numbers_have_the_decimals_that_their_errors_bear(numbers: list[tuple[float, float]], texts: list[str]) -> None:
    assert gallery.column(numbers) == texts


def test_a_card_says_how_it_came_about_and_escapes_text() -> None:
    card = gallery.card(RECORD)
    assert "2 seeds, scale small; 5 minutes in all" in card
    assert "<strong>Inconclusive</strong> 2 of 3 parts hold" in card
    decided = replace(RECORD, verdict=Verdict.of([HOLDS, HOLDS]))
    assert "<strong>Holds</strong> all 2 parts (provisional: 2 of 5 seeds)" in gallery.card(decided)
    named = replace(RECORD, lines=(Line("a < b", 1.0),))
    assert "a &lt; b" in gallery.picture(named)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in ("experiments/recorded", "docs/experiments"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("docs/experiments/hmc_uci.md", 'finding("hmc_uci")', 'finding("hmc_mnist")', "does not show the record"),
        ("docs/experiments/flat_regions.md", "\n## ", "\n7 of 14 parts hold.\n", "the record has 13 of 14"),
        ("docs/experiments/misspecification.md", "tables.md", "table.md", "does not show the tables of the run"),
        ("experiments/recorded/hmc_uci/record.json", "higher test", "lower test", "which it does not claim"),
        ("experiments/recorded/hmc_uci/record.json", '"small"', '"large"', "of a scale 'large'"),
        (
            "experiments/recorded/flat_regions/record.json",
            '"outcome": "holds",\n    "ev',
            '"outcome": "wins",\n    "ev',
            "`outcome`",
        ),
    ],
)
def test_a_record_or_page_that_says_otherwise_is_a_fault(
    copy: Path, file: str, old: str, new: str, message: str
) -> None:
    text = (copy / file).read_text("utf-8")
    (copy / file).write_text(text.replace(old, new, 1) if old in text else text + new, "utf-8")
    (said,) = gallery.faults(copy)
    assert message in said


def test_records_that_are_missing_or_of_nothing_are_faults(copy: Path) -> None:
    (copy / "experiments/recorded/hmc_uci").rename(copy / "experiments/recorded/hmc_uic")
    held = json.loads((copy / "experiments/recorded/hmc_uic/record.json").read_text("utf-8"))
    assert held["experiment"] == "hmc_uci"
    first, second = gallery.faults(copy)
    assert "hmc_uci/record.json" in first
    assert second == "there is no experiment 'hmc_uic', and a record of it"

"""Records: what is in a file is read, not computed again; what a run leaves is condensed, and agrees with itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchbayes.report import Table
from torchbayes_experiments import Experiment, Findings, Headline, Verdict, below, reproduce
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.headline import Line
from torchbayes_experiments.record import main, read_record, record


def test_what_a_file_holds_is_not_computed_again(tmp_path):
    path = tmp_path / "a" / "numbers.json"
    path.parent.mkdir()
    assert load_or_compute(path, lambda: {"evidence": -1.5}) == {"evidence": -1.5}

    def again():
        raise AssertionError("computed twice")

    assert load_or_compute(path, again) == {"evidence": -1.5}


def summarise(results: Any) -> Findings:
    values = [each["value"] for each in results]
    table = Table(["method", "NLL", "paper"], [["MAP", (sum(values) / len(values), 0.0123456), 0.25]], "Scores.")
    return Findings(Verdict.of([below("NLL", values, 1.0), below("less", values, 0.1)]), (table,), ())


EXPERIMENT = Experiment(
    name="made_up",
    claim="A is below B.",
    source="Nobody 2020",
    expected="Below.",
    differences="None.",
    recipes={"small": {"epochs": 3}},
    cost={"small": "nothing"},
    run=lambda recipe, seed, directory: {"value": 0.5 + 0.01 * seed},
    summarise=summarise,
    headline=Headline("test NLL", ("NLL",), published="paper", source="published, other data"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reproduce(EXPERIMENT, seeds=3, directory=tmp_path_factory.mktemp("run")).parent


def test_a_run_is_condensed_to_a_record(run: Path, tmp_path: Path) -> None:
    path = record(run, into=tmp_path, experiment=EXPERIMENT)
    assert path == tmp_path / "made_up" / "record.json"
    actual = read_record(path.parent)
    seed = json.loads((run / "seed_2" / "results.json").read_text())
    assert actual.verdict.outcome == "does not hold"
    assert actual.verdict.counts == {"holds": 1, "does not hold": 1, "inconclusive": 0}
    assert [part.evidence.split(",")[0] for part in actual.verdict.parts] == ["mean 0.51", "mean 0.51"]
    assert actual.lines == (Line("MAP", 0.51, 0.012346, 0.25),)
    assert (actual.label, actual.published) == ("test NLL", "published, other data")
    assert (actual.date, actual.versions, actual.seconds[2]) == (seed["date"], seed["versions"], seed["seconds"])
    assert actual.command == "torchbayes reproduce made_up --scale small --seeds 3"
    assert json.loads(path.read_text("utf-8"))["verdict"]["outcome"] == "does not hold"
    assert "| MAP | 0.510 ± 0.012 | 0.250 |" in (path.parent / "tables.md").read_text("utf-8")


def test_seeds_of_an_earlier_version_have_no_date_and_no_versions(run: Path, tmp_path: Path) -> None:
    held = json.loads((run / "results.json").read_text())
    for seed in held["seeds"]:
        del seed["date"], seed["versions"]
    old = tmp_path / "old"
    old.mkdir()
    (old / "results.json").write_text(json.dumps(held))
    actual = read_record(record(old, into=tmp_path, experiment=replace(EXPERIMENT, headline=None)).parent)
    assert (actual.versions, actual.lines, actual.label) == ({}, (), "")
    assert len(actual.date) == len("2026-01-01")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held["verdict"].update(parts=[]), "a verdict needs at least one part"),
        (lambda held: held["verdict"]["parts"][0].update(outcome="perhaps"), "`outcome` must be one of holds, "),
        (lambda held: held.pop("lines"), "is no record of an experiment: 'lines'. Write it again from its run."),
        (lambda held: held.update(colour="red"), "unexpected keyword argument 'colour'"),
    ],
)
def test_what_is_no_record_is_refused(
    run: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = record(run, into=tmp_path, experiment=EXPERIMENT)
    held = json.loads(path.read_text("utf-8"))
    change(held)
    path.write_text(json.dumps(held))
    with pytest.raises(ValueError, match=message):
        read_record(path.parent)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "lacks 'experiment': it is of another version or no experiment"),
        ('{"experiment"', "is damaged"),
        ('{"experiment": "hmc_uci", "scale": "small", "seeds": [{"seed": 0}]}', "lacks 'results'"),
        ('{"experiment": "hmc_uic"}', "Did you mean hmc_uci?"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        record(tmp_path, into=tmp_path / "records")


def test_results_of_other_settings_are_refused(run: Path, tmp_path: Path) -> None:
    other = replace(EXPERIMENT, recipes={"small": {"epochs": 5}})
    with pytest.raises(ValueError, match="holds results of other settings"):
        record(run, into=tmp_path, experiment=other)


def test_a_run_that_has_not_ended_is_not_recorded(run: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="when all seeds have been run"):
        record(tmp_path, into=tmp_path / "records", experiment=EXPERIMENT)
    with pytest.raises(SystemExit, match="does not exist"):
        main([str(tmp_path), "--into", str(tmp_path / "records")])
    with pytest.raises(SystemExit, match="no experiment called 'made_up'"):
        main([str(run), "--into", str(tmp_path / "records")])
    assert not (tmp_path / "records").exists()

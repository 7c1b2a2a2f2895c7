"""Costs and rules of abstention from the command line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.pictures import unpainted

from torchbayes.cli import main
from torchbayes.decisions import Exceeds, Squared, Within, load
from torchbayes.decisions.written import number_cost

COSTS = "action,well,ill\ntreat,3,1\nwait,0,20\n"


def write(name: str, rows: int, seed: int, *, classes: bool = True, targets: bool = True) -> None:
    source = np.random.default_rng(seed)
    x = source.standard_normal((rows, 2)).round(5)
    z = 3 * x[:, 0] + 0.5 * source.standard_normal(rows)
    y = np.where(z + 0.5 * source.standard_normal(rows) > 0, "ill", "well") if classes else (10 + z).round(5)
    with open(name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", *(["y"] if targets else [])])
        writer.writerows([*map(float, row), *([target] if targets else [])] for row, target in zip(x, y, strict=True))


def predictions(run: str) -> list[dict[str, str]]:
    with open(f"{run}/predictions.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with their files."""
    place = tmp_path_factory.mktemp("decisions")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for number, kind in enumerate(("ill", "number")):
            classes = kind == "ill"
            write(f"{kind}.csv", 200, number, classes=classes)
            write(f"{kind}_held.csv", 300, 10 + number, classes=classes)
            write(f"{kind}_new.csv", 6, 20 + number, targets=False)
            options = ["--method", "MAP", "--method.members", "2", "--method.epochs", "40", "--network", "linear"]
            options += ["--method.optimizer", "Adam", "--method.optimizer.lr", "0.05"]
            likelihood = [] if classes else ["--likelihood", "gaussian", "--likelihood_settings.scale", "0.3"]
            data = ["--data", f"{kind}.csv", "--target", "y"]
            assert main(["fit", *data, *options, *likelihood, "--directory", f"{kind}_run"]) == 0
    return place


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    unpainted(monkeypatch)
    for rule in folder.glob("*_run/abstention.safetensors"):
        rule.unlink()


def test_predictions_by_costs_have_decisions():
    Path("costs.csv").write_text(COSTS, "utf-8")
    assert main(["predict", "ill_run", "ill_new.csv", "--cost", "costs.csv"]) == 0
    for row in predictions("ill_run"):
        ill, well = float(row["p(ill)"]), float(row["p(well)"])
        costs = {"treat": 3 * well + ill, "wait": 20 * ill}
        assert row["decision"] == min(costs, key=lambda name: costs[name])
        assert float(row["expected_cost"]) == pytest.approx(min(costs.values()), rel=1e-5)
        assert float(row["expected_cost_sd"]) >= 0


def test_numbers_have_costs_in_files_of_settings():
    Path("order.yaml").write_text("linear: {under: 3, over: 1}", "utf-8")
    assert main(["predict", "number_run", "number_new.csv", "--cost", "order.yaml"]) == 0
    z = 0.6744897501960817
    for row in predictions("number_run"):
        upper, mean = float(row["high_0.95"]), float(row["mean"])
        assert float(row["decision"]) == pytest.approx(mean + (upper - mean) / 1.95996 * z, rel=0.02)


def test_a_rule_is_certified_saved_and_applied(capsys):
    assert main(["abstain", "ill_run", "ill_held.csv", "--risk", "0.15"]) == 0
    said = capsys.readouterr().out
    assert (
        "With probability 0.9 over sets of 300 held-out rows, the error rate of accepted rows is at most 0.15." in said
    )
    rule = load("ill_run/abstention.safetensors")
    assert f"{rule.accepted} of them are accepted" in said
    assert main(["predict", "ill_run", "ill_new.csv"]) == 0
    assert "Rule of abstention in ill_run/abstention.safetensors" in capsys.readouterr().err
    for row in predictions("ill_run"):
        doubt = 1 - max(float(row["p(ill)"]), float(row["p(well)"]))
        assert row["decision"] == (row["prediction"] if doubt < rule.threshold else "abstain")
    assert main(["abstain", "ill_run", "ill_held.csv", "--risk", "0.2"]) == 2
    assert "is there already. Add --overwrite" in capsys.readouterr().err
    assert main(["report", "ill_run"]) == 0
    said = capsys.readouterr().out
    for name in ("least expected cost", "as if the prediction were certain", "always ill", "with the targets known"):
        assert name in said
    page = Path("ill_run/report/report.html").read_text("utf-8")
    assert "Rule of abstention: With probability 0.9" in page
    assert Path("ill_run/report/risk_coverage.png").exists()


def test_a_rule_is_for_its_costs_and_its_functions(capsys):
    Path("costs.csv").write_text(COSTS, "utf-8")
    Path("errors.csv").write_text("action,well,ill\nill,1,0\nwell,0,1\n", "utf-8")
    assert main(["abstain", "ill_run", "ill_held.csv", "--risk", "0.15", "--draws", "4"]) == 0
    predict, report = ["predict", "ill_run", "ill_new.csv"], ["report", "ill_run"]
    for command in (predict, report):
        assert main([*command, "--draws", "4", "--cost", "costs.csv"]) == 0
        assert "is for other costs than --cost, and is left out" in capsys.readouterr().err
        for draws in ([], ["--draws", "6"], ["--draws", "4", "--seed", "1"]):
            assert main([*command, *draws]) == 2
            said = capsys.readouterr().err
            assert "certified for the functions of --draws 4 and --seed 0, and promises nothing of those of" in said
    for cost in ([], ["--cost", "error"], ["--cost", "errors.csv"]):
        assert main([*predict, "--draws", "4", *cost]) == 0
        assert "Rule of abstention in ill_run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("exceeds: {threshold: 1e9, miss: 1, alarm: 4}", Exceeds(1e9, miss=1, alarm=4)),
        ("within: {tolerance: 5}", Within(5.0)),
        ("squared:", Squared()),
        ("linear: {under: 3, 5}", r"'linear' has no setting 5. Its settings are under, over"),
        ("squared: {power: 3}", "'squared' has no setting 'power'. It has none"),
        ("within: {tolerance: wide}", "`tolerance` must be a number above 0; got 'wide'"),
    ],
)
def test_files_of_number_costs_are_read_or_refused(text: str, cost: Any):
    if not isinstance(cost, str):
        assert number_cost(yaml.safe_load(text), "costs.yaml") == cost
        return
    with pytest.raises(ValueError, match=cost):
        number_cost(yaml.safe_load(text), "costs.yaml")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["abstain", "ill_run"], "say which run, and on which rows"),
        (["abstain", "ill_run", "ill_held.csv"], "say which is promised"),
        (["abstain", "ill_run", "ill.csv", "--risk", "0.1"], "rows have the inputs of rows of the fit"),
        (["abstain", "ill_run", "ill_new.csv", "--risk", "0.1"], "ill_new.csv has no target in every row"),
        (["abstain", "ill_run", "ill_held.csv", "--risk", "0.001"], "too few to promise a risk of 0.001"),
        (["abstain", "number_run", "number_held.csv", "--risk", "0.1"], "say by --cost what one is"),
        (
            ["abstain", "number_run", "number_held.csv", "--risk", "0.1", "--cost", "squared"],
            "needs costs with a bound",
        ),
        (["predict", "ill_run", "ill_new.csv", "--cost", "costs.txt"], "a .csv or a .yaml file"),
        (["predict", "ill_run", "ill_new.csv", "--cost", "none.csv"], "there is no file none.csv"),
        (["predict", "ill_run", "ill_new.csv", "--cost", "turned.csv"], "has no class 'ill'"),
        (["predict", "ill_run", "ill_new.csv", "--cost", "code.yaml"], "There is no cost in code.yaml called"),
        (["predict", "number_run", "number_new.csv", "--cost", "wrong.yaml"], "`under` must be"),
        (["predict", "number_run", "number_new.csv", "--cost", "costs.csv"], "`cost` is of classes"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(argv: list[str], says: str, capsys):
    Path("costs.csv").write_text(COSTS, "utf-8")
    Path("turned.csv").write_text("action,treat,wait\nwell,3,0\nill,1,20\n", "utf-8")
    Path("code.yaml").write_text("os.system: {command: ls}", "utf-8")
    Path("wrong.yaml").write_text("linear: {under: -3}", "utf-8")
    assert main(argv) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("torchbayes: ")
    assert says in said

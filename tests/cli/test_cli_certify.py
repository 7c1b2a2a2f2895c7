"""`torchbayes certify`: the checks of a run with its own method, and a page that stays beside it."""

import json
import warnings
from pathlib import Path

import pytest

import torchbayes as tb
from torchbayes.catalogue.config import CONFIG, load_run, read_run
from torchbayes.cli.certify import method_of
from torchbayes.cli.commands import main

RUN = ["--data", "two_moons", "--train_size", "40", "--network_settings.hidden", "[4]", "--directory", "run"]
FEW = ["--simulations", "2", "--rows", "20", "--folds", "2", "--seeds", "1"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    warnings.simplefilter("ignore")


@pytest.mark.parametrize(
    "options",
    [
        ["MAP", "--method.epochs", "3", "--method.optimizer", "SGD", "--method.optimizer.lr", "0.05"],
        ["SWAG", "--method.epochs", "6", "--method.rank", "2"],
        ["NUTS", "--method.steps", "12", "--method.burn_in", "4", "--method.chains", "2"],
    ],
)
def test_the_method_of_a_run_is_that_of_its_settings(options):
    assert main(["fit", *RUN, "--method", *options]) == 0
    method = method_of(read_run(Path("run")), f"run/{CONFIG}", trust=False)
    assert type(method).__name__ == options[0]
    from torchbayes.catalogue.config import describe

    assert describe(method) == read_run(Path("run"))["method"]


def test_a_run_is_certified_as_the_library_does(capsys):
    assert main(["fit", *RUN, "--method", "MAP", "--method.epochs", "3"]) == 0
    checks = ["simulation", "coverage", "k-hat", "seeds"]
    command = ["certify", "run", *FEW, "--checks", *checks]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    setup, posterior = load_run(Path("run"))
    budget = tb.Budget(simulations=2, rows=20, folds=2, seeds=1, checks=tuple(checks))
    expected = tb.certify(
        posterior,
        tuple(setup.data.train),
        tb.MAP(epochs=3, optimizer=method_of(read_run(Path("run")), f"run/{CONFIG}", trust=False).optimizer),
        inputs=setup.data.test.inputs,
        budget=budget,
    )
    assert [each["grade"] for each in actual["checks"]] == [check.grade for check in expected]
    for each, check in zip(actual["checks"], expected, strict=True):
        assert each["numbers"] == pytest.approx(dict(check.numbers), rel=1e-4)
    assert json.loads(Path("run/certificate.json").read_text())["grade"] == actual["grade"]
    assert len(list(Path("run/certificate").rglob("*.json"))) == 2 + 2 + 1 + 1
    assert main(command) == 0  # what is finished is not fitted again
    said = capsys.readouterr().out
    assert f"Certificate: {actual['grade']}" in said
    assert "Page: run/certificate.html" in said


def test_a_certificate_needs_a_run(capsys):
    assert main(["certify"]) == 2
    assert "say what to certify" in capsys.readouterr().err
    assert main(["certify", "none"]) == 2
    assert "there is no file" in capsys.readouterr().err

"""The page about one fit, from the command line."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from tests.pictures import unpainted

from torchbayes.catalogue.config import load_run
from torchbayes.catalogue.problem import Problem
from torchbayes.cli import main
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.report.words import likelihood_of, prior_of

MOONS = ["--data", "two_moons", "--train_size", "40", "--network_settings.hidden", "[8]"]
SINE = ["--data", "toy_sine", "--network", "linear"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Default directories of commands are relative."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _plain(monkeypatch):
    unpainted(monkeypatch)


def fit(*options: str) -> None:
    assert main(["fit", *options]) == 0


def text_of(page: str | Path) -> str:
    """What a reader sees of a page, in one line."""
    body = re.sub("<script.*?</script>", "", Path(page).read_text("utf-8").partition("<body>")[2], flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.mark.usefixtures("_plain", "boosted_trees")
def test_a_classification_has_its_page(capsys):
    fit(*MOONS, "--method", "MAP", "--method.members", "2", "--method.epochs", "4", "--directory", "run")
    capsys.readouterr()
    assert main(["evaluate", "run", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert main(["report", "run"]) == 0
    said = capsys.readouterr().out
    for name, value in actual.items():
        assert re.search(rf"^ *{name} +{value:.4f} ".replace("-", "−"), said, re.MULTILINE), name
    assert said.splitlines()[-1] == "Report: run/report/report.html"
    pictures = {"confusion", "entropy", "referral", "reliability", "rows", "surface", "training"}
    assert {path.stem for path in Path("run/report").glob("*.png")} == pictures
    text = text_of("run/report/report.html")
    assert "Deep ensemble on two_moons" in text
    assert "a classification into 2 classes with 40 training and 1,000 test rows" in text
    assert "Method: deep ensemble, 2 members, 4 epochs, seed 0. Predictions are averages over 2 networks." in text
    assert "diagnose" not in text
    assert Path("run/report/report.html").read_text().count("data:image/png;base64,") == len(pictures)
    assert "should not be trusted" not in text


@pytest.mark.usefixtures("_plain")
def test_the_page_is_replaced_and_goes_where_it_is_wanted(capsys):
    fit(*MOONS, "--method", "SWAG", "--method.epochs", "4", "--directory", "run")
    assert main(["report", "run", "--directory", "a/b", "--draws", "4"]) == 0
    first = text_of("a/b/report.html")
    assert "averages over 4 networks" in first
    assert main(["report", "run", "--directory", "a/b", "--draws", "6", "--seed", "2"]) == 0
    assert "averages over 6 networks" in text_of("a/b/report.html")
    assert not Path("run/report").exists()
    assert main(["report", "run", "--directory", "run"]) == 2
    assert "run holds a run, whose own page would be lost. Choose another --directory." in capsys.readouterr().err


@pytest.mark.usefixtures("_plain")
def test_the_page_is_opened_where_there_is_a_browser(capsys, monkeypatch):
    fit(*MOONS, "--method", "MAP", "--method.epochs", "2", "--directory", "run")
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda place: opened.append(place) or len(opened) < 2)
    monkeypatch.setenv("DISPLAY", ":0")
    page = Path("run/report/report.html").absolute()
    report = ["report", "run", "--open"]
    assert main(report) == 0
    assert opened == [page.as_uri()]
    assert "browser" not in capsys.readouterr().err
    assert main(report) == 0  # none could be started
    assert f"No browser could be started here. Open {page}" in capsys.readouterr().err
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert main(report) == 0  # no display: one of the terminal would take it over
    assert f"Open {page}" in capsys.readouterr().err
    assert len(opened) == 2


def test_laplace_is_linearised_and_says_what_is_wrong_with_it():
    with pytest.warns(ProblemWarning):
        fit(*SINE, "--method", "MAP", "--method.epochs", "2", "--directory", "trained")
    with pytest.warns(ProblemWarning):
        fit("--method", "Laplace", "--start", "trained", "--directory", "run")
    _, posterior = load_run(Path("run"))
    assert len(posterior.problems) == 2  # two epochs are no training, and end at no mode
    with pytest.warns(ProblemWarning):
        assert main(["report", "run"]) == 0
    text = text_of("run/report/report.html")
    assert f"Warning: this posterior should not be trusted: {'; '.join(posterior.problems)}." in text
    assert "Method: Laplace, one mode, started at the fit in trained, seed 0." in text
    assert "Predictions are those of the network linearised at the mode, in closed form." in text
    assert "There is no curve of its training: the fit began at trained" in text
    assert "a regression with 80 training and 200 test rows" in text
    assert {path.stem for path in Path("run/report").glob("*.png")} == {
        "band",
        "coverage",
        "errors",
        "pit",
        "predicted",
        "residuals",
    }


@pytest.mark.usefixtures("_plain")
def test_chains_point_to_their_diagnosis():
    options = ["--method.chains", "2", "--steps", "6", "--method.burn_in", "2", "--method.step_size", "0.01"]
    options += ["--method.trajectory", "0.05"]
    fit(*SINE, "--method", "HMC", *options, "--directory", "a run")
    assert main(["report", "a run"]) == 0
    text = text_of("a run/report/report.html")
    assert "Whether the chains have converged is what torchbayes diagnose 'a run' tells." in text
    assert "Method: HMC, 2 chains, 6 steps, of which 2 are burn-in, seed 0. Predictions are averages over 8" in text
    assert Path("a run/report/training.png").is_file()


MINE = """
import torch
from torch import nn
from torchbayes.data import Data, Pair
from torchbayes.data.base import Standardise
from torchbayes import likelihoods

Poisson = likelihoods.Poisson

X = torch.linspace(-2, 2, 60)[:, None]

def data(kind="counts"):
    targets = {"counts": X.abs().round(), "columns": torch.cat([X, 2 * X], 1), "sequence": (X + X.T > 0).long()}[kind]
    inputs = X if kind != "sequence" else X + X.T
    rows = [Pair(inputs[part::2], targets[part::2]) for part in (0, 1)]
    classes = ("below", "above") if kind == "sequence" else ()
    units = Standardise.fit(targets) if kind == "columns" else None
    task = "classification" if classes else "regression"
    return Data("mine", task, *rows, classes, Standardise.identity(), units, "made up")

class Each(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.inner = nn.Linear(1, outputs)

    def forward(self, inputs):
        return self.inner(inputs[..., None])

def each(shape, outputs):
    return Each(outputs)
"""


@pytest.fixture
def _mine(tmp_path, monkeypatch):
    (tmp_path / "mine_reported.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_mine", "_plain")
@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
def test_counts_sequences_and_several_targets_have_a_page_or_a_message(capsys):
    own = ["--data", "mine_reported:data", "--method", "MAP", "--method.epochs", "2", "--method.plan", "auto"]
    fit(*own, "--likelihood", "mine_reported:Poisson", "--network", "linear", "--directory", "counts")
    assert main(["report", "counts", "--trust"]) == 0
    assert {path.stem for path in Path("counts/report").glob("*.png")} == {
        "band", "coverage", "errors", "predicted", "residuals", "training"
    }  # fmt: skip
    sequence = [*own, "--data_settings.kind", "sequence", "--network", "mine_reported:each"]
    fit(*sequence, "--likelihood", "categorical", "--directory", "sequence")
    assert main(["report", "sequence", "--trust"]) == 0
    assert "test row true class" not in text_of("sequence/report/report.html")
    assert Path("sequence/report/confusion.png").is_file()
    columns = [*own, "--data_settings.kind", "columns", "--network", "linear", "--likelihood", "gaussian"]
    fit(*columns, "--directory", "columns")
    capsys.readouterr()
    assert main(["report", "columns", "--trust"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("must have one scale for all targets; got 2. Divide them by one number, or leave it None.")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("report", "say what to report on: the directory of a fit."),
        ("report nothing", "there is no file nothing/config.yaml"),
        ("report nothing --draw 3", "there is no option --draw. Did you mean --draws"),
        ("report nothing --draws x", "--draws"),
        ("reprt", "there is no command 'reprt'. Did you mean"),
    ],
)
def test_mistakes_are_said_in_one_line(capsys, argv, said):
    assert main(argv.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_draws_are_a_multiple_of_the_members(capsys):
    fit(*MOONS, "--method", "SWAG", "--method.members", "2", "--method.epochs", "4", "--directory", "run")
    capsys.readouterr()
    assert main(["report", "run", "--draws", "3"]) == 2
    assert "must be a multiple of the 2 members; got 3" in capsys.readouterr().err
    assert not Path("run/report").exists()


def test_priors_and_likelihoods_in_words():
    assert prior_of(Problem(prior_scale=0.3)) == "N(0, 0.3²)"
    assert prior_of(Problem(prior="student_t", prior_settings={"df": 3})) == "student_t (scale 1.0, df 3)"
    assert prior_of(Problem(prior="flat")) == "flat"
    rules = {"*.bias": "normal", "*": {"name": "laplace", "scale": 0.5}}
    assert prior_of(Problem(prior=rules)) == "normal (scale 1.0) for *.bias and laplace (scale 0.5) for *"
    assert likelihood_of(Problem()) == "categorical"
    assert likelihood_of(Problem(likelihood="gaussian")) == "gaussian (scale learned)"
    assert likelihood_of(Problem(likelihood="student_t", likelihood_settings={"df": 4})) == "student_t (df 4)"

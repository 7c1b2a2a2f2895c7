"""Data of users in the shell: a table, images, a network of one's own, from fit to predictions."""

import csv
import json
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.pictures import unpainted

import torchbayes as tb
from torchbayes.catalogue.config import load_run, read_config
from torchbayes.cli import main
from torchbayes.data.user import read_new

SHORT = ["--method.epochs", "30"]
MAP = ["--method", "MAP", *SHORT]
NOISE = ["--likelihood_settings.scale", "0.3"]


LAPLACE = [*NOISE, "--target", "price", "--method", "Laplace"]


def searched_soon(patch):
    """Let the search for the epochs end soon: 8,000 steps on rows held out five times take seconds."""
    patch.setattr("torchbayes.selection.length._LONGEST", 150)


@pytest.fixture(scope="module")
def laplace(tmp_path_factory):
    """A folder with a table and a run on it, and what the command printed."""
    home, err = tmp_path_factory.mktemp("laplace"), StringIO()
    table(home / "table.csv")
    with redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        searched_soon(patch)
        assert main(["fit", "--data", str(home / "table.csv"), *LAPLACE, "--directory", str(home / "run")]) == 0
    return home, err.getvalue()


@pytest.fixture(scope="module")
def point(tmp_path_factory):
    """A folder with a table and a run of a plain network on it, which names the table by its full path."""
    home = tmp_path_factory.mktemp("point")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        table()
        assert main(["fit", "--data", "table.csv", "--target", "price", *NOISE, *MAP, "--directory", "run"]) == 0
    return home


@pytest.fixture
def here(point, tmp_path):
    """A copy of the table and of the run."""
    shutil.copytree(point, tmp_path, dirs_exist_ok=True)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Paths in commands are relative."""
    monkeypatch.chdir(tmp_path)
    unpainted(monkeypatch)
    searched_soon(monkeypatch)


def table(name="table.csv", rows=80, shift=0.0):
    """A noisy line in one of two columns."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 2)) + shift
    y = 1000 + 50 * x[:, 0] + rng.normal(size=rows)
    lines = [
        "size,place,price",
        *(f"{a:.6f},{'north' if b > 0 else 'south'},{c:.3f}" for (a, b), c in zip(x, y, strict=True)),
    ]
    Path(name).write_text("\n".join(lines) + "\n")


def read(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("boosted_trees")
def test_a_table_from_fit_to_predictions(capsys, laplace):
    home, said = laplace
    shutil.copytree(home / "run", "run")
    table("new.csv", rows=30, shift=4.0)
    assert "table.csv: 72 rows to train on; 8, a tenth, held out at random" in said
    assert "Inputs: 1 number (size) and 1 category" in said
    config = read_config(Path("run/config.yaml"))
    assert (config["data"], config["target"], config["start"]) == (str(home / "table.csv"), "price", None)

    assert main(["tune", "run"]) == 0
    assert "log evidence (nats)" in capsys.readouterr().out
    setup, posterior = load_run(Path("run"))
    tuned = load_run(Path("run/tuned"))[1]
    assert isinstance(posterior, tb.LaplacePosterior)
    assert isinstance(tuned, tb.LaplacePosterior)
    with setup.problem.threading():
        here = tb.fit(setup.model, tuple(setup.data.train), tb.Laplace(), directory="python", callbacks=())
    assert isinstance(here, tb.LaplacePosterior)
    assert posterior.mean_MD.equal(here.mean_MD)
    assert posterior.strength_D.equal(here.strength_D)
    chosen = [json.loads(Path(name, "config.json").read_text())["chosen"] for name in ("run", "python")]
    assert chosen[0] == chosen[1]
    assert tuned.log_evidence() > posterior.log_evidence()
    assert (tuned.log_evidence() - tb.tune(posterior).log_evidence()).abs() < 1e-6

    assert main(["evaluate", "run/tuned", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    expected = tb.evaluate(tb.Linearised(tuned), tuple(setup.data.test), target_scale=setup.target_scale).metrics
    assert metrics == pytest.approx(expected)
    assert main(["evaluate", "run/tuned", "--data", "new.csv", "--json"]) == 0
    shifted = json.loads(capsys.readouterr().out)
    assert shifted["rmse"] > metrics["rmse"]

    assert main(["predict", "run/tuned", "new.csv", "--output", "out/new.csv", "--level", "0.5"]) == 0
    said = capsys.readouterr()
    assert "Rows outside the range of the training rows" in said.err
    rows = read("out/new.csv")
    assert [row["row"] for row in rows] == [str(i + 1) for i in range(30)]
    assert set(rows[0]) == {"row", "mean", "sd", "sd_of_function", "low_0.5", "high_0.5"}
    errors = [float(row["mean"]) - float(true["price"]) for row, true in zip(rows, read("new.csv"), strict=True)]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(shifted["rmse"], rel=1e-3)
    assert Path("out/new.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_tuned_in_the_ways_of_python_too(capsys, monkeypatch, laplace):
    shutil.copytree(laplace[0] / "run", "run")
    table()
    table("held.csv", rows=30, shift=0.5)
    setup, posterior = load_run(Path("run"))
    assert isinstance(posterior, tb.LaplacePosterior)

    with pytest.warns(tb.ProblemWarning, match="its noise scale was changed"):
        main(["tune", "run", "--prior", "layer", "--noise"])
    expected = tb.tune(posterior, prior="layer", noise=True)
    actual = load_run(Path("run/tuned"))[1]
    assert isinstance(actual, tb.LaplacePosterior)
    assert (actual.log_evidence() - expected.log_evidence()).abs() < 1e-6
    capsys.readouterr()

    new = read_new(setup.data, Path("held.csv"))
    with pytest.warns(tb.ProblemWarning, match="at which the search on held-out data ends"):
        main(["tune", "run", "--on", "held.csv", "--directory", "held"])
    expected = tb.tune(posterior, on=(new.inputs, new.targets))
    assert "log evidence" not in capsys.readouterr().out
    actual = load_run(Path("held"))[1]
    assert isinstance(actual, tb.LaplacePosterior)
    assert torch.allclose(actual.strength_D, expected.strength_D)

    with pytest.warns(tb.ProblemWarning, match="at which the search on held-out data ends"):
        main(["tune", "run", "--on", "table.csv", "--overwrite"])
    assert "Rows with the same inputs as a training row: 72 of 80" in capsys.readouterr().err
    assert main(["tune", "run", "--directory", "run", "--overwrite"]) == 2
    assert "run holds a run of its own, which would be lost" in capsys.readouterr().err
    for fitted, said in ((0.12, "Prefer the posterior as fitted, which has 0.12."), (0.5, "Prefer an ensemble")):
        nlls = iter((0.1, fitted, 0.6))  # of the networks alone, as fitted, tuned
        monkeypatch.setattr(tb, "evaluate", lambda *_, nlls=nlls, **__: SimpleNamespace(metrics={"nll": next(nlls)}))
        assert main(["tune", "run", "--overwrite"]) == 0
        assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("here")
def test_the_users_files_are_not_replaced(capsys):
    Path("mine.png").write_text("mine")
    predict = ["predict", "run", "table.csv", "--output", "mine.csv"]
    assert main(predict) == 2
    assert "mine.png is there already. Add --overwrite" in capsys.readouterr().err
    assert Path("mine.png").read_text() == "mine"
    assert main([*predict, "--overwrite"]) == 0
    for _ in range(2):
        assert main(["predict", "run", "table.csv"]) == 0


def test_a_run_knows_when_its_table_has_changed(capsys):
    table()
    fit = ["fit", "--data", "table.csv", "--target", "price", *NOISE, *MAP, "--directory", "run"]
    assert main(fit) == 0
    table(shift=0.5)
    for command in (["evaluate", "run"], ["fit", "--directory", "run", "--resume"], ["predict", "run", "table.csv"]):
        assert main(command) == 2
        assert "are not those that run was fitted to: they or their settings have changed" in capsys.readouterr().err
    table()
    assert main(["evaluate", "run"]) == 0
    Path("run/data.json").write_text("{}")
    assert main(["evaluate", "run"]) == 2
    assert "data.json is damaged" in capsys.readouterr().err


def test_an_interrupted_search_for_the_modes_is_resumed(capsys, laplace):
    home, _ = laplace
    shutil.copytree(home / "run", "run")
    Path("run/posterior.safetensors").unlink()
    Path("run/checkpoint.safetensors").unlink()
    trained = Path("run/start/log.jsonl").read_bytes()
    assert main(["fit", "--directory", "run", "--resume"]) == 0
    assert Path("run/start/log.jsonl").read_bytes() == trained  # it has not trained again
    (_, first), (_, second) = load_run(home / "run"), load_run(Path("run"))
    assert isinstance(first, tb.LaplacePosterior)
    assert isinstance(second, tb.LaplacePosterior)
    assert second.mean_MD.equal(first.mean_MD)
    assert main(["fit", "--data", str(home / "table.csv"), *LAPLACE, "--directory", "run"]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_a_folder_of_images(capsys):
    rng = np.random.default_rng(0)
    for name, shade in {"dark": 60, "light": 190}.items():
        Path("pictures", name).mkdir(parents=True)
        for i in range(20):
            pixels = np.clip(shade + 30 * rng.normal(size=(8, 8)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(f"pictures/{name}/{i}.png")
    fit = ["fit", "--data", "pictures", "--method", "MAP", "--method.members", "2", *SHORT, "--directory", "run"]
    assert main(fit) == 0
    assert main(["predict", "run", "pictures/dark"]) == 0
    rows = read("run/predictions.csv")
    assert {row["prediction"] for row in rows} == {"dark"}
    assert {row["name"] for row in rows} == {f"{i}.png" for i in range(20)}
    assert all(abs(float(row["p(dark)"]) + float(row["p(light)"]) - 1) < 1e-6 for row in rows)
    capsys.readouterr()
    assert main(["evaluate", "run", "--data", "pictures", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["tune"], "say which run to tune"),
        (
            ["tune", "run"],
            "what is tuned is the prior of Laplace. Fit it around those weights: torchbayes fit --method",
        ),
        (["predict"], "say which run predicts what: torchbayes predict RUN INPUTS"),
        (["predict", "run"], "say which run predicts what"),
        (["predict", "run", "none.csv"], "there is no file or folder none.csv"),
        (["predict", "run", "table.csv", "--output", "x.txt"], "`--output` must be the name of a CSV file"),
        (["predict", "run", "table.csv", "--level", "2"], "`level` must lie between 0 and 1"),
        (["evaluate", "run", "--data", "bare.csv"], "has no target in every row"),
        (
            ["fit", "--data", "table.csv", "--directory", "other"],
            "say which column of table.csv is to be predicted: --target",
        ),
        (["fit", "--data", "digits", "--target", "x", "--directory", "other"], "`digits` has none. Leave them out"),
        (["fit", "--data", "none.csv", "--target", "x", "--directory", "other"], "there is no file or folder"),
        (["compare", "--data", "table.csv", "--target", "prise"], "Did you mean price?"),
        (["fit", "--directory", "nowhere", "--resume"], "there is no run in nowhere to resume. Correct --directory"),
    ],
)
@pytest.mark.usefixtures("here")
def test_refusals_say_what_can_be_done(capsys, command, said):
    Path("bare.csv").write_text("size,place\n1.5,north\n")
    assert main(command) == 2
    assert said in capsys.readouterr().err


def test_a_comparison_on_a_table(capsys):
    table()
    methods = ["--methods", "single", "ensemble", "--ensemble.members", "2", "--ensemble.epochs", "20"]
    assert main(["compare", "--data", "table.csv", "--target", "price", *NOISE, *methods]) == 0
    said = capsys.readouterr()
    assert "72 rows to train on" in said.err
    assert "Report: compare_table/report.html" in said.out


def test_settings_of_what_is_not_compared_are_told(capsys):
    table()
    options = ["--data", "table.csv", "--target", "price", "--methods", "single", "--ensemble.epochs", "9"]
    assert main(["compare", *options, "--hmc.chains", "2", "--print_config"]) == 0
    said = capsys.readouterr().err
    assert "The settings of hmc have no effect: it is not compared." in said
    assert "ensemble" not in said

"""Laplace from the command line: at another fit, linearised by default, in a comparison."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.pictures import undrawn

import torchbayes as tb
from torchbayes.catalogue.config import load_run, read_config
from torchbayes.cli import main
from torchbayes.linalg import DiagonalCurvature

MOONS = ["--data", "two_moons", "--network_settings.hidden", "[8]", "--train_size", "60", "--prior_scale", "0.7"]
MAP = [*MOONS, "--method", "MAP", "--method.epochs", "150", "--method.batch_size", "60"]
LAPLACE = ["fit", "--method", "Laplace", "--start", "map", "--directory", "laplace"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run at whose mode others start."""
    home = tmp_path_factory.mktemp("trained") / "map"
    assert main(["fit", *MAP, "--directory", str(home)]) == 0
    return home


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Default directories of commands are relative."""
    monkeypatch.chdir(tmp_path)
    undrawn(monkeypatch)


def modes(directory):
    posterior = load_run(Path(directory))[1]
    assert isinstance(posterior, tb.Point)
    return posterior.weights_MD


def metrics(capsys, *options):
    capsys.readouterr()
    assert main(["evaluate", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_laplace_starts_at_another_fit_and_takes_its_problem_over(capsys, trained):
    shutil.copytree(trained, "map")
    assert main([*LAPLACE, "--method.structure", "diagonal"]) == 0
    first, then = (read_config(Path(name) / "config.yaml") for name in ("map", "laplace"))
    assert then["start"] == "map"
    assert first["start"] is None
    for name in ("data", "network_settings", "train_size", "prior_scale"):
        assert then[name] == first[name]
    setup, posterior = load_run(Path("laplace"))
    point = modes("map")
    assert isinstance(posterior, tb.LaplacePosterior)
    assert isinstance(posterior.curvature, DiagonalCurvature)
    assert posterior.mean_MD.equal(point)
    data = tuple(setup.data.test)
    expected = tb.evaluate(tb.Linearised(posterior), data).metrics
    assert expected.pop("mutual_information") == pytest.approx(0, abs=1e-15)  # of a closed form, and not told
    assert metrics(capsys, "laplace") == pytest.approx(expected)
    expected = tb.evaluate(posterior, data, draws=20, seed=1).metrics
    assert metrics(capsys, "laplace", "--draws", "20", "--seed", "1") == pytest.approx(expected)


def test_it_is_resumed_and_other_problems_can_be_said(capsys, trained):
    shutil.copytree(trained, "map")
    assert main([*LAPLACE, "--prior_scale", "0.6", "--method.check_mode", "false"]) == 0
    assert read_config(Path("laplace/config.yaml"))["prior_scale"] == 0.6
    before = Path("laplace/posterior.safetensors").read_bytes()
    assert main(["fit", "--directory", "laplace", "--resume"]) == 0
    assert Path("laplace/posterior.safetensors").read_bytes() == before
    assert main(["fit", *MAP, "--seed", "1", "--directory", "other"]) == 0
    capsys.readouterr()
    assert main(["fit", "--directory", "laplace", "--resume", "--start", "other"]) == 2
    assert "a run of another start (map; now other)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["OnlineLaplace", "HMC"])
def test_other_methods_start_where_they_are_told(name, trained):
    shutil.copytree(trained, "map")
    short = {
        "OnlineLaplace": ["--method.epochs_of_descent", "1", "--method.optimizer.lr", "1e-12"],
        "HMC": [
            "--method.chains",
            "1",
            "--method.steps",
            "4",
            "--method.burn_in",
            "0",
            "--method.step_size",
            "1e-12",
            "--method.trajectory",
            "1e-11",
        ],
    }
    assert main(["fit", "--start", "map", "--method", name, *short[name], "--directory", "a"]) == 0
    _, actual = load_run(Path("a"))
    weights = actual.mean_MD if isinstance(actual, tb.LaplacePosterior) else actual.functions(1, seed=0).weights_SD
    assert weights.flatten().tolist() == pytest.approx(modes("map").flatten().tolist(), abs=1e-6)


def test_a_start_that_is_none_is_said(capsys, trained):
    assert main(["fit", *MOONS, "--method", "Laplace", "--start", "nowhere", "--directory", "a"]) == 2
    assert "there is no file nowhere/config.yaml" in capsys.readouterr().err
    shutil.copytree(trained, "map")
    assert main(LAPLACE) == 0
    capsys.readouterr()
    assert main(["fit", "--method", "Laplace", "--start", "laplace", "--directory", "a"]) == 2
    assert "of the kind LaplacePosterior" in capsys.readouterr().err
    assert not Path("a").exists()


def shown(message, category, *place, **_):
    """What Python does with a warning that nobody records."""
    sys.stderr.write(warnings.formatwarning(message, category, *place[:2]))


def test_what_is_no_mode_is_one_line(capsys):
    map_ = [*MAP[: MAP.index("150")], "1", "--method.optimizer.lr", "1e-6"]
    assert main(["fit", *map_, "--directory", "map"]) == 0
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = shown
        assert main(LAPLACE) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line.lower()]
    assert line.startswith(
        "torchbayes: warning: this posterior should not be trusted: member 0 is not at a mode of this model"
    )


@pytest.mark.study  # `tests/comparison` fits Laplace at what it starts at, and scores it as `evaluate` does, above
def test_laplace_is_compared_at_the_single_network(capsys):
    short = ["--ensemble.members", "2", "--ensemble.epochs", "150", "--ensemble.batch_size", "60", "--draws", "4"]
    options = ["compare", *MOONS, *short, "--methods", "laplace", "ensemble"]
    assert main([*options, "--directory", "a"]) == 0
    said = capsys.readouterr()
    assert "fitting: Laplace, around the single network" in said.err
    actual = json.loads(Path("a/results.json").read_text())["methods"]
    assert list(actual) == ["laplace", "ensemble"]
    row = next(line for line in said.out.splitlines() if line.strip().startswith("Laplace"))
    assert f"{actual['laplace']['clean']['nll']:.3f}" in row
    setup, posterior = load_run(Path("a/fits/laplace"))
    assert isinstance(posterior, tb.LaplacePosterior)
    assert posterior.mean_MD[0].equal(modes("a/fits/ensemble")[0])
    expected = tb.evaluate(tb.Linearised(posterior), tuple(setup.data.test)).metrics
    assert actual["laplace"]["clean"] == pytest.approx(expected)
    assert main(["compare", "--directory", "a", "--resume"]) == 0
    assert json.loads(Path("a/results.json").read_text())["methods"] == actual


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["1.0", pytest.param("scalar", marks=pytest.mark.study)])  # which is tuned as usual
def test_every_command_opens_a_run_whatever_its_prior(capsys, trained, prior):
    """A factor of 1 is a prior that was chosen too; held-out rows choose it among thirteen."""
    shutil.copytree(trained, "map")
    np.savez("new.npz", inputs=np.zeros((3, 2), np.float32))
    assert main([*LAPLACE[:-1], prior, "--method.prior", prior, "--method.check_mode", "false"]) == 0
    assert main(["tune", prior]) == 0
    for run in (prior, f"{prior}/tuned"):
        assert main(["evaluate", run]) == main(["predict", run, "new.npz"]) == 0
    assert main(["diagnose", prior, "--draws", "20"]) == 0
    capsys.readouterr()
    assert main(["fit", "--method", "MAP", "--start", prior, "--directory", "b"]) == 2
    assert "of the kind LaplacePosterior" in capsys.readouterr().err
    assert main(["report", f"{prior}/tuned"]) == 0

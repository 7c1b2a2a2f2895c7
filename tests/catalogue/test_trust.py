"""Code of others: what files name by import path runs only where the user has said so."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import yaml

import torchbayes as tb
from torchbayes.catalogue.config import CONFIG, fit_run, load_run, write_config
from torchbayes.catalogue.imports import foreign_code, named_in
from torchbayes.catalogue.problem import Problem
from torchbayes.cli import main
from torchbayes.comparison.reference import load_reference
from torchbayes.comparison.settings import Comparison
from torchbayes.posteriors.locks import FileWarning

SMALL = Problem("two_moons", "mlp", {"hidden": [4]}, train_size=20)
RUNS = {
    "prior": {"prior": "subprocess:getoutput", "prior_settings": {"cmd": "touch ran"}},
    "prior of a glob": {"prior": {"*": {"name": "subprocess:getoutput", "cmd": "touch ran"}}},
    "prior by name": {"prior": {"*.weight": "normal", "*": "harm:prior"}},
    "likelihood": {"likelihood": "subprocess:getoutput", "likelihood_settings": {"cmd": "touch ran"}},
    "network": {"network": "harm:network"},
    "data": {"data": "harm:data"},
    "a chain of attributes": {"likelihood": "torch:os.system", "likelihood_settings": {"command": "touch ran"}},
    "through the library": {"likelihood": "torchbayes.cli.commands:os.system", "likelihood_settings": {"command": "x"}},
}
METHODS = {
    "class": {"method": {"class_path": "harm.Method", "init_args": {}}},
    "name": {"method": "harm:Method"},
    "optimizer": {"method": {"class_path": "torchbayes.MAP", "init_args": {"optimizer": {"class_path": "harm.Adam"}}}},
    "optimizer by name": {"method": {"class_path": "torchbayes.MAP", "init_args": {"optimizer": "harm.Adam"}}},
    "class in settings": {"network_settings": {"x": {"class_path": "subprocess.Popen", "init_args": {"args": "ls"}}}},
}
HARM = "open('ran', 'w')\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of another, and a module `harm` that leaves the file `ran` where it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "harm", raising=False)
    Path("harm.py").write_text(HARM)
    fit_run(SMALL.setup(), tb.MAP(1, 1), Path("run"), callbacks=())
    return Path("run")


def changed(run, entries):
    """Change the settings of a run, as somebody who writes the checksum too."""
    write_config(run, {**yaml.safe_load((run / CONFIG).read_text()), **entries})


@pytest.mark.parametrize("entries", RUNS.values(), ids=RUNS)
def test_no_reader_of_a_run_runs_what_it_names(run, entries, capsys):
    changed(run, entries)
    path = next(iter(foreign_code(entries)))
    for argv in (
        ["evaluate", "run"], ["predict", "run", "x.csv"], ["report", "run"], ["diagnose", "run"], ["tune", "run"],
        ["fit", "--directory", "run", "--resume"], ["fit", "--start", "run", "--directory", "new"],
        ["fit", "--config", "run/config.yaml", "--directory", "new"], ["evidence", "--config", "run/config.yaml"],
        ["compare", "--config", "run/config.yaml", "--directory", "new"],
        ["acquire", "--config", "run/config.yaml", "--directory", "new"],
        ["forecast", "--config", "run/config.yaml", "--directory", "new"],
    ):  # fmt: skip
        assert main(argv) == 2
        said = capsys.readouterr().err
        assert path in said, (argv, said)
        assert "add --trust" in said
    with pytest.raises(PermissionError, match="trust=True in Python"):
        load_run(run)
    with pytest.raises(PermissionError, match="names code that would run here"):
        fit_run(SMALL.setup(), tb.MAP(1, 1), Path("new"), start=run, callbacks=())
    with pytest.raises(PermissionError, match="names code that would run here"):
        load_reference(Comparison(SMALL, {"single": tb.MAP(1, 1)}, corruptions=(), reference="run"))
    assert not Path("ran").exists()
    assert "harm" not in sys.modules


@pytest.mark.parametrize("entries", METHODS.values(), ids=METHODS)
def test_no_file_of_settings_names_classes_of_others(run, entries, capsys):
    changed(run, entries)
    for argv in (["--directory", "run", "--resume"], ["--config", "run/config.yaml", "--directory", "new"]):
        assert main(["fit", *argv]) == 2
        said = capsys.readouterr().err
        assert "add --trust" in said or "must be a class and its settings" in said, said
    assert not Path("ran").exists()
    assert "harm" not in sys.modules


def test_networks_that_are_compared_are_code_too(run, capsys):
    Path("networks.yaml").write_text("data: two_moons\nnetworks: [linear, 'harm:network']\n")
    assert main(["evidence", "--config", "networks.yaml"]) == 2
    assert "harm:network (`networks`)" in capsys.readouterr().err
    assert "harm" not in sys.modules


def test_what_is_trusted_or_named_runs(run, capsys):
    changed(run, {"network": "tests.catalogue.mine:build", "network_settings": {"width": 4}})
    fit = ["fit", "--config", "run/config.yaml", "--directory"]
    assert main([*fit, "a"]) == 2
    assert main([*fit, "b", "--trust"]) == 0
    assert main([*fit, "c", "--network", "tests.catalogue.mine:build"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "b"]) == 2
    assert main(["evaluate", "b", "--trust"]) == 0
    one, other = (load_run(Path(name), trust=True)[1].sample(1) for name in "bc")
    assert one.equal(other)
    capsys.readouterr()


def test_a_file_cannot_trust_itself(run, capsys):
    changed(run, {"network": "harm:network", "trust": True})
    assert main(["fit", "--config", "run/config.yaml", "--directory", "new"]) == 2
    assert "harm:network" in capsys.readouterr().err


def test_entry_points_of_installed_packages_are_trusted(monkeypatch):
    config = {"network": "a.b:build", "method": {"class_path": "a.b.Method"}, "data": "two_moons"}
    assert foreign_code(config) == {"a.b:build": "network", "a.b.Method": "method"}
    points = {"torchbayes.networks": "a.b:build", "torchbayes.methods": "a.b:Method"}
    actual = {group: {"x": EntryPoint("x", value, group)} for group, value in points.items()}
    monkeypatch.setattr("torchbayes.catalogue.imports.registered", lambda group: actual.get(group, {}))
    assert foreign_code(config) == {}


def test_import_paths_are_told_from_files_and_values():
    words = ["--data", "t.csv", "--directory=out.d/x.y", "--at", "12:30", "C:\\x.csv", "torchbayes.MAP", "0.5", "a/b:c"]
    assert named_in(words) == set()
    words = ["--data=my_module:load", "mine=a.b:Mine", "--method", "pkg.mod.Mine", "{'*': {name: p:q.r, scale: 1}}"]
    assert named_in(words) == {"my_module:load", "a.b:Mine", "pkg.mod.Mine", "p:q.r"}


# --- the working folder


def test_the_working_folder_is_searched_last_and_only_for_code_that_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    before = [*sys.path]
    assert main(["evaluate", "none", "--data", "t.csv"]) == 2
    assert sys.path == before
    assert main(["fit", "--data", "no_such_module:load", "--directory", "none"]) == 2
    assert sys.path == [*before, ""]
    capsys.readouterr()


@pytest.mark.study  # the test above pins the path on which both would be sought
@pytest.mark.slow
def test_modules_of_the_working_folder_shadow_nothing(tmp_path):
    for name in ("pandas", "yaml", "rich", "numpy", "sklearn"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\nraise SystemExit(9)\n")
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    argv = [sys.executable, "-P", "-c", "from torchbayes.cli import main; raise SystemExit(main())", "fit", "--trust"]
    argv += ["--data", "t.csv", "--target", "y", "--method", "MAP", "--method.epochs", "1", "--directory", "run"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


# --- the checksum of config.yaml


def test_a_changed_setting_is_told_and_a_changed_layout_is_not(run, capsys):
    path = run / CONFIG
    whole = path.read_text()
    assert main(["evaluate", "run", "--json"]) == 0
    before = capsys.readouterr().out
    for text in (whole.replace("\n", "\r\n"), f"# mine\n{whole}"):
        path.write_bytes(text.encode())
        assert main(["evaluate", "run", "--json"]) == 0
        assert capsys.readouterr().out == before
    rng = np.random.default_rng(0)
    places = [i for i, letter in enumerate(whole) if letter.isdigit()]
    for at in rng.choice(places, 12, replace=False):
        path.write_text(f"{whole[:at]}{(int(whole[at]) + 1) % 10}{whole[at + 1 :]}")
        assert main(["evaluate", "run"]) == 2
        assert "config.yaml is damaged or was edited" in capsys.readouterr().err
        assert main(["fit", "--directory", "run", "--resume"]) == 2
        assert "config.yaml" in capsys.readouterr().err


def test_a_run_without_a_checksum_opens_and_says_so(run):
    path = run / CONFIG
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("#")))
    with pytest.warns(FileWarning, match=r"config\.yaml has no checksum"):
        load_run(run)

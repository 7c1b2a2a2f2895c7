"""Links, pipes and other names in a run directory: nothing outside the run is ever written to."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import torchbayes as tb
from tests.laws.cases import model_of, rows_of
from torchbayes.cli import main
from torchbayes.posteriors.locks import Locked, folder_in, open_own

SAMPLER = tb.SGHMC(1, 6, 2, 2, step_size=1e-3, batch_size=6, plan="loop")
WRITTEN = ("run.lock", "log.jsonl", "draws.bin")  # in place; the others are replaced
FILES = (*WRITTEN, "draws.json", "checkpoint.safetensors", "config.json", "posterior.safetensors")
PRECIOUS = "precious\n"


def symlink(place: Path, target: Path) -> None:
    place.symlink_to(target)


def dangling(place: Path, target: Path) -> None:
    place.symlink_to(target.with_name("made"))


def hard_link(place: Path, target: Path) -> None:
    os.link(target, place)


def pipe(place: Path, _: Path) -> None:
    os.mkfifo(place)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was stopped half way."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    fit(directory, resume=False, callbacks=[lambda event: event.step >= 4])
    return directory


def fit(directory, *, resume, callbacks=()):
    return tb.fit(model_of(), rows_of(), SAMPLER, directory=directory, resume=resume, callbacks=callbacks)


@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.locks.FileWarning")
@pytest.mark.parametrize("make", [symlink, dangling, hard_link, pipe])
def test_a_fit_writes_to_nothing_outside_its_run(whole, tmp_path, make):
    for resume, names in ((False, WRITTEN), (True, FILES)):
        for name in names:
            home = tmp_path / f"{resume} {name}"
            run, target = home / "run", home / "bashrc"
            home.mkdir()
            shutil.copytree(whole, run) if resume else run.mkdir()
            target.write_text(PRECIOUS)
            (run / name).unlink(missing_ok=True)
            make(run / name, target)
            before = {path.name for path in home.iterdir()}
            with suppress(OSError, ValueError):
                fit(run, resume=resume)
            assert target.read_text() == PRECIOUS, name
            assert {path.name for path in home.iterdir()} == before, name


def test_what_takes_the_place_of_a_link_is_the_runs_own(tmp_path):
    target = tmp_path / "target"
    target.write_text(PRECIOUS)
    (tmp_path / "log.jsonl").symlink_to(target)
    for opened in (lambda: Locked(tmp_path / "run"), lambda: open_own(tmp_path / "log.jsonl", os.O_WRONLY)):
        (tmp_path / "run").mkdir(exist_ok=True)
        if not (tmp_path / "run" / "run.lock").is_symlink():
            (tmp_path / "run" / "run.lock").symlink_to(target)
        with pytest.raises(FileExistsError, match=r"is a link\. What a run writes must be a plain file"):
            opened()
    assert target.read_text() == PRECIOUS


def test_the_directory_itself_may_be_a_link_and_folders_in_it_may_not(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    actual = fit(tmp_path / "run", resume=False)
    again = tb.load(tmp_path / "run" / "posterior.safetensors", model_of())
    assert torch.equal(actual.sample(2), again.sample(2))
    (tmp_path / "run" / "start").symlink_to(tmp_path)
    with pytest.raises(FileExistsError, match=r"start` is a link"):
        folder_in(tmp_path / "run", "start")
    assert folder_in(tmp_path / "run", "other", "inner") == tmp_path / "run" / "other" / "inner"


MOONS = ["fit", "--data", "two_moons", "--train_size", "20", "--network_settings.hidden", "[3]"]
LAPLACE = ["--method", "Laplace", "--method.prior", "model", "--method.check_mode", "false"]


@pytest.fixture(scope="module")
def laplace(tmp_path_factory):
    """A run whose folders other commands write to."""
    home = tmp_path_factory.mktemp("laplace")
    assert main([*MOONS, "--method", "MAP", "--method.epochs", "2", "--directory", str(home / "map")]) == 0
    assert main([*MOONS, *LAPLACE, "--start", str(home / "map"), "--directory", str(home / "run")]) == 0
    return home / "run"


@pytest.mark.parametrize("folder", ["start", "report", "diagnosis", "tuned"])
def test_folders_of_a_run_that_lead_outside_are_refused(tmp_path, monkeypatch, capsys, laplace, folder):
    monkeypatch.chdir(tmp_path)
    Path("outside").mkdir()
    if folder == "start":
        Path("run").mkdir()
    else:
        shutil.copytree(laplace, "run")
    Path("run", folder).symlink_to(tmp_path / "outside")
    fit_ = [*MOONS, "--method", "Laplace", "--directory", "run"]
    command = {"start": fit_, "report": ["report", "run"], "diagnosis": ["diagnose", "run"], "tuned": ["tune", "run"]}
    assert main(command[folder]) == 2
    assert f"{folder}` is a link, and what is written for a run stays within it" in capsys.readouterr().err
    assert not any(Path("outside").iterdir())

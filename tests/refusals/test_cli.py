"""The command line: malformed arguments and files end in one line and exit code 2; unforeseen errors in a report."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torchbayes.catalogue.config import DEEPEST, UnboundedError, check_yaml
from torchbayes.cli import main
from torchbayes.cli.commands import COMMANDS
from torchbayes.cli.terminal import Interrupted, resumable
from torchbayes.linalg import Diagonal

NO_NUMBER = ("nan", "inf", "-inf", "1e400", "abc", "", "None", "true", "[1]", "{}", "é", "/no/such", "a" * 5000)
NO_COUNT = (*NO_NUMBER, "-1", "1.5", "1e-320", "-0.0")
NO_SCALE = (*NO_NUMBER, "-1", "0", "-0.0", "1e200", "1e-320")
NO_NAME = ("nan", "", "None", "[1]", "{}", "é", "/no/such", "-1", "a" * 5000)
NO_FILE = ("/no/such", "file", "folder", "é", "", "a" * 5000)
NO_YAML = ("bytes.yaml", "list.yaml", "bomb.yaml", "self.yaml", "empty.yaml", "bad.yaml", "tag.yaml", "deep.yaml",
           "long.yaml", "types.yaml", "method.yaml", "huge.yaml", "none.yaml", "folder", "file")  # fmt: skip

FIT = ["fit", "--data", "two_moons", "--train_size", "20", "--directory", "run"]
MAP = [*FIT, "--method", "MAP", "--method.epochs", "1"]
HMC = [*FIT, "--method", "HMC", "--method.steps", "4", "--method.burn_in", "2", "--method.step_size", "0.1"]
WRONG = [
    (MAP, "data", NO_NAME), (MAP, "network", NO_NAME), (MAP, "network_settings", ("1", "abc", "[1]", "{a: 1}")),
    (MAP, "likelihood", (*NO_NAME, "gaussian")), (MAP, "prior_scale", NO_SCALE), (MAP, "temperature", NO_SCALE[:-2]),
    (MAP, "split", (*NO_COUNT, "20")), (MAP, "train_size", (*NO_COUNT, "0", "9999")),
    (MAP, "device", (*NO_NAME, "meta", "cuda:99", "cpu:x")), (MAP, "threads", (*NO_COUNT, "0")),
    (MAP, "method", (*NO_NAME[:4], "Map", "SGD")), (MAP, "start", NO_FILE), (MAP, "seed", NO_COUNT),
    (MAP, "steps", ("1", *NO_COUNT)), (MAP, "ranks", ("data", "x", "0x0", "2x")), (MAP, "config", NO_YAML),
    (MAP, "method.epochs", (*NO_COUNT, "0")), (MAP, "method.members", (*NO_COUNT, "0", "9" * 20)),
    (MAP, "method.batch_size", (*NO_COUNT, "0")), (MAP, "method.optimizer", ("abc", "1", "null", "[1]", "Steady")),
    (MAP, "method.optimizer.lr", NO_SCALE[:-2]), (MAP, "method.optimizer.betas", ("1", "[1]", "[0.9, 1.0]", "abc")),
    (MAP, "method.schedule", ("abc", "1", "null", "Cycles")), (MAP, "method.plan", NO_NAME), (MAP, "nonsense", ("1",)),
    (HMC, "method.chains", (*NO_COUNT, "0", "9" * 20)), (HMC, "method.thin", (*NO_COUNT, "0", "5")),
    (HMC, "method.burn_in", (*NO_COUNT, "4")), (HMC, "method.step_size", NO_SCALE[:-2]),
    (HMC, "method.jitter", (*NO_NUMBER, "1", "-1")), (HMC, "method.mass", NO_NAME),
    (["evaluate", "folder"], "draws", NO_COUNT), (["evaluate", "folder"], "seed", NO_COUNT),
    (["evaluate"], "predictions", (*NO_FILE, "floats.npz", "cut.npz", "other.npz")),
    (["diagnose", "folder"], "inputs", (*NO_COUNT, "0")), (["report", "folder"], "draws", NO_COUNT),
    (["report", "folder"], "seed", NO_COUNT), (["reproduce", "hmc_uci"], "scale", NO_NAME),
    (["reproduce", "hmc_uci"], "seeds", (*NO_COUNT, "0")),
    (["compare", "--data", "two_moons"], "methods", ("nothing", "single nothing")),
    (["compare", "--data", "two_moons"], "hmc.chains", (*NO_COUNT, "0")),
    (["evidence", "--data", "two_moons"], "networks", ("nothing",)),
    (["evidence", "--data", "two_moons"], "map.epochs", (*NO_COUNT, "0")),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A folder with files that are not what they should be."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name, text in FILES.items():
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    np.savez("floats.npz", probs=np.full((3, 2), 0.5), labels=np.array([0.0, 1.0, 1.0]))
    np.savez("other.npz", probs=np.full((3, 2), 0.5))
    Path("cut.npz").write_bytes(Path("floats.npz").read_bytes()[:-40])


FILES = {
    "file": "x",
    "bytes.yaml": b"\xff\xfea: 1",
    "list.yaml": "- 1",
    "bomb.yaml": "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
    "self.yaml": "data: &a [*a]",
    "empty.yaml": "",
    "bad.yaml": "a: [1",
    "tag.yaml": "data: !!python/object/apply:os.getcwd []",
    "deep.yaml": "a: " + "[" * 5000 + "]" * 5000,
    "long.yaml": "data: " + "a" * 2**21,
    "types.yaml": "data: 3\nnetwork: [1]",
    "method.yaml": "method: {class_path: 3, init_args: 4}",
    "huge.yaml": f"seed: {'9' * 5000}",
}


def refused(capsys, argv):
    """The one line in which a command ends."""
    code = main(argv)
    said = capsys.readouterr()
    assert code == 2, (argv, code, said)
    assert not said.out
    (line,) = said.err.splitlines()
    assert line.startswith("torchbayes: ")
    assert len(line) < 600
    assert line.endswith((".", "?")), line
    return line


def drawn(count, seed):
    """Malformed calls, some for every option."""
    rng = random.Random(seed)
    return [
        [*argv, f"--{name}={value}"]
        for argv, name, values in WRONG
        for value in rng.sample(values, min(count, len(values)))
    ]


def test_malformed_arguments_end_in_one_line(capsys):
    for argv in drawn(1, seed=0)[::4]:
        assert refused(capsys, argv)


@pytest.mark.slow
@pytest.mark.study  # the quarter of them above meets each kind of option
@pytest.mark.parametrize(("count", "seed"), [(1, 1), *((2, seed) for seed in range(2, 9))])
def test_hundreds_of_malformed_arguments_end_in_one_line(capsys, count, seed):
    for argv in drawn(count, seed):
        assert refused(capsys, argv)


@pytest.mark.parametrize("name", NO_YAML)
def test_files_that_are_no_configuration_are_named(capsys, name):
    assert name in refused(capsys, ["fit", "--config", name, "--directory", "run"]) or name in {
        "types.yaml",
        "method.yaml",
    }


def test_the_first_of_two_configurations_is_read_within_bounds_too(capsys):
    Path("good.yaml").write_text("data: two_moons")
    said = refused(capsys, ["fit", "--config", "bomb.yaml", "--config", "good.yaml", "--directory", "run"])
    assert "bomb.yaml is no configuration: it stands for" in said


def test_aliases_in_the_text_of_an_option_are_bounded(capsys):
    text = "{" + FILES["bomb.yaml"].strip().replace("\n", ", ") + "}"
    assert "network_settings" in refused(capsys, [*MAP, "--network_settings", text])


def test_yaml_with_a_few_aliases_is_read():
    check_yaml("a: &a [1, 2]\nb: [*a, *a]\nc: {<<: {x: 1}}")


@pytest.mark.parametrize("level", ["[", "{", "[{", "{a: ", "- ", "? "])
def test_the_shortest_text_that_is_too_deep_is_refused(level):
    """A text with no more letters than levels are allowed is not looked at: each level takes one at least."""
    check_yaml("[" * (DEEPEST // 2) + "]" * (DEEPEST // 2))
    with pytest.raises(UnboundedError, match="nested deeper"):
        check_yaml(level * (DEEPEST + 1))


def test_a_short_text_may_not_refer_to_itself():
    with pytest.raises(UnboundedError, match="refers to itself"):
        check_yaml("&a [*a]")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(capsys):
    assert "`device` is 'cuda', which PyTorch" in refused(capsys, [*MAP, "--device", "cuda"])


# --- unforeseen errors


@pytest.mark.parametrize(
    "kind", [KeyError, IndexError, AttributeError, AssertionError, ZeroDivisionError, OverflowError]
)
def test_an_error_nobody_foresaw_is_one_line_with_the_place_of_a_report(capsys, monkeypatch, tmp_path, kind):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(COMMANDS, "list", lambda _argv: (_ for _ in ()).throw(kind("deep inside")))
    assert main(["list", "a b"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"torchbayes: an error that was not foreseen, {kind.__name__}: ")
    report = Path(line.rpartition("The report is ")[2].removesuffix("."))
    text = report.read_text()
    assert report.parent == tmp_path
    assert "arguments: ['list', 'a b']" in text
    assert "Traceback (most recent call last)" in text
    assert "deep inside" in text


def test_an_error_of_another_library_is_reported_though_its_class_is_common(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    inside = Diagonal(torch.ones(1, 2))  # whose own line divides the one by the other
    for fails in (lambda _argv: inside.solve(torch.ones(3)), lambda _argv: np.zeros(3).reshape(2, 2)):
        monkeypatch.setitem(COMMANDS, "list", fails)
        assert main(["list"]) == 1
        assert "The report is" in capsys.readouterr().err


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["tempfile.mkstemp", "os.fdopen"])
def test_a_report_that_cannot_be_written_leaves_the_line(capsys, monkeypatch, tmp_path, place):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    monkeypatch.setitem(COMMANDS, "list", lambda _argv: {}["x"])
    with monkeypatch.context() as inside:
        inside.setattr(place, refuse)
        assert main(["list"]) == 1
    assert capsys.readouterr().err == (
        "torchbayes: an error that was not foreseen, KeyError: 'x'. No report could be written (No space left on "
        "device); run it again with --debug to see the traceback.\n"
    )
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "argv", [["--debug", "fit", "--config", "none.yaml"], ["fit", "--config", "none.yaml", "--debug"]]
)
def test_debug_shows_the_traceback(capsys, argv):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert said.splitlines()[-1] == "torchbayes: there is no file none.yaml."


def test_too_little_memory_is_said_without_a_report(capsys, monkeypatch):
    monkeypatch.setitem(COMMANDS, "list", lambda _argv: (_ for _ in ()).throw(MemoryError()))
    assert "there is not enough memory" in refused(capsys, ["list"])


@pytest.mark.parametrize(
    ("stopped", "code"),
    [(SystemExit(3), 3), (SystemExit("text"), 1), (SystemExit(None), 0), (KeyboardInterrupt(), 130)],
)
def test_exit_codes(capsys, monkeypatch, stopped, code):
    monkeypatch.setitem(COMMANDS, "list", lambda _argv: (_ for _ in ()).throw(stopped))
    assert main(["list"]) == code
    capsys.readouterr()


# --- words


def test_the_command_that_goes_on_can_be_pasted_into_a_shell():
    directory = "my runs/it's $HOME"
    with pytest.raises(Interrupted) as caught, resumable(["torchbayes", "fit", "--directory", directory, "--resume"]):
        raise KeyboardInterrupt
    command = str(caught.value).removeprefix("Continue with: torchbayes fit --directory ").removesuffix(" --resume")
    echo = f"{sys.executable} -c 'import sys; print(sys.argv[1])' {command}"
    said = subprocess.run(echo, shell=True, text=True, capture_output=True, check=True)
    assert said.stdout.strip() == directory


def test_labels_that_are_no_integers_are_refused_rather_than_cut(capsys):
    assert main(["evaluate", "--predictions", "floats.npz"]) == 2
    said = capsys.readouterr().err
    assert "`labels` as integers (rows,); got float64 of shape (3, 2) and float64 of shape (3,)" in said
    np.savez("whole.npz", probs=np.array([[0.9, 0.1], [0.2, 0.8]]), labels=np.array([0, 1], np.uint8))
    assert main(["evaluate", "--predictions", "whole.npz", "--json"]) == 0
    assert '"accuracy": 1.0' in capsys.readouterr().out

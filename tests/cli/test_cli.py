"""The command line: what it runs, what it says about mistakes, and how quickly it starts."""

import json
import os
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from sklearn.metrics import accuracy_score, log_loss
from tests.pictures import undrawn, unpainted

import torchbayes as tb
from torchbayes import data, experiments, networks
from torchbayes.catalogue.config import load_run, read_config
from torchbayes.catalogue.methods import METHODS, classes
from torchbayes.catalogue.usual import usual_plan
from torchbayes.cli import main
from torchbayes.cli.options import peek, with_hints
from torchbayes.cli.terminal import one_line

TINY = ["--train_size", "40", "--network_settings.hidden", "[8]"]
FITS = ["--ensemble.members", "2", "--ensemble.epochs", "4", "--multiswag.members", "2", "--multiswag.epochs", "4"]
MOONS = ["compare", "--data", "two_moons", *TINY, *FITS, "--multiswag.rank", "2", "--draws", "4"]
MOONS += ["--methods", "single", "ensemble", "swag", "multiswag"]
OPTIONS = ["--ensemble.optimizer.lr", "0.02", "--multiswag.averaging_lr", "0.05", "--seed", "3"]
SHARED = Path(os.environ.get("TORCHBAYES_DATA") or Path(__file__).parents[2] / "shared" / "data")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Default directories of commands are relative."""
    monkeypatch.chdir(tmp_path)


def numbers(directory):
    return json.loads((Path(directory) / "results.json").read_text())


def normalised(probs):
    """Probabilities in float64: scikit-learn warns of the rounding of float32."""
    probs = probs.astype(np.float64)
    return probs / probs.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    """A comparison, and what the command printed."""
    home, out, err = tmp_path_factory.mktemp("moons") / "a", StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        unpainted(patch)  # `tests/comparison` paints such pictures
        assert main([*MOONS, *OPTIONS, "--directory", str(home)]) == 0
    return home, out.getvalue(), err.getvalue()


@pytest.fixture
def compared(moons, monkeypatch):
    """A copy of it here, and no pictures from now on."""
    undrawn(monkeypatch)
    shutil.copytree(moons[0], "a")


def test_compare_prints_one_table_and_writes_a_report(moons):
    home, out, err = moons
    actual = numbers(home)["methods"]
    for label, name in (("single network", "single"), ("MultiSWAG", "multiswag")):
        row = next(line for line in out.splitlines() if line.strip().startswith(label))
        assert f"{actual[name]['clean']['nll']:.3f}" in row
        assert f"{100 * actual[name]['clean']['accuracy']:.1f} %" in row
    assert (home / "report.html").exists()
    assert "fitting: deep ensemble, 2 × 4 epochs" in err


@pytest.mark.parametrize(
    ("options", "network", "plan"),
    [
        ("--data toy_sine --network linear", "linear", "loop"),  # the usual one has tanh and a kernel of its own
        ("--data digits --network resnet20_frn", "resnet20_frn", "loop"),
        ("--data cifar10 --network mlp", "mlp", None),  # the usual one has no kernel
    ],
)
def test_another_network_takes_neither_settings_nor_plan_of_the_usual_one(options, network, plan):
    usual = peek(options.split()).usual
    assert (usual.problem.network, usual.problem.network_settings) == (network, {})
    fits = {n: usual[n] for n, entry in METHODS.items() if not n.endswith("laplace") and entry.parts == "any"}
    assert fits.pop("repulsive").plan == "loop"  # no kernel runs in the space of functions
    assert {fit.plan for fit in fits.values()} == {plan or usual_plan(usual.problem)}


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # of so short a training
def test_another_network_than_the_usual_one_is_fitted():
    linear = ["--data", "toy_sine", "--network", "linear"]
    assert main(["fit", *linear, "--method", "MAP", "--method.epochs", "2", "--directory", "a"]) == 0
    assert load_run(Path("a"))[0].model.layout.size == 3  # slope, intercept and noise


@pytest.mark.usefixtures("compared")
def test_a_written_configuration_runs_again_identically(capsys):
    ensemble = read_config(Path("a/config.yaml"))["methods"]["ensemble"]["init_args"]
    assert ensemble["optimizer"]["init_args"]["lr"] == 0.02
    assert main(["compare", "--config", "a/config.yaml", "--directory", "b"]) == 0
    assert numbers("b") == numbers("a")
    assert Path("b/config.yaml").read_text() == Path("a/config.yaml").read_text()
    # options after the file have the last word
    assert printed(capsys, "--config", "a/config.yaml", "--methods", "single")["methods"].keys() == {"single"}


def printed(capsys, *options):
    """The configuration of a comparison."""
    capsys.readouterr()
    assert main(["compare", *options, "--print_config"]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.usefixtures("compared")
def test_resume_takes_the_settings_of_the_directory(capsys):
    before = numbers("a")
    assert main(["compare", "--directory", "a"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["compare", "--directory", "a", "--resume", "--draws", "8"]) == 0
    after = numbers("a")
    assert after["methods"]["swag"]["draws"] == 8
    for name in ("single", "ensemble"):  # of which nothing is drawn
        assert after["methods"][name]["clean"] == before["methods"][name]["clean"]


def test_a_choice_of_classes_is_by_name(capsys):
    options = ["--ensemble.optimizer", "AdamW", "--ensemble.optimizer.lr", "0.01", "--ensemble.schedule", "Constant"]
    actual = printed(capsys, *MOONS[1:], *options, "--methods", "single")["methods"]["single"]["init_args"]
    assert actual["optimizer"]["class_path"] == "torchbayes.AdamW"
    assert actual["optimizer"]["init_args"]["lr"] == 0.01
    assert actual["schedule"] == {"class_path": "torchbayes.Constant", "init_args": {}}


@pytest.mark.parametrize("method", ["MAP", "SWA", "SWAG"])
def test_fit_then_evaluate_gives_what_the_library_gives(capsys, method):
    options = ["--data", "two_moons", *TINY, "--method", method, "--method.members", "2", "--method.epochs", "6"]
    assert main(["fit", *options, "--directory", "run"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--draws", "6", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    setup, posterior = load_run(Path("run"))
    inputs, targets = setup.data.test
    probs = normalised(tb.predict(posterior, inputs, draws=6).probs.numpy())
    assert actual["nll"] == pytest.approx(log_loss(targets, probs), rel=1e-5)
    assert actual["accuracy"] == accuracy_score(targets, probs.argmax(1))
    assert posterior.members == 2


@pytest.mark.parametrize("kind", classes().values())
def test_settings_that_are_objects_are_read_whichever_module_declares_them(kind):
    parser = ArgumentParser()
    parser.add_argument("--method", type=with_hints(kind))
    assert parser.instantiate(parser.parse_args(["--method", f"torchbayes.{kind.__name__}"])).method == kind()


OURS = """
from dataclasses import dataclass
import torchbayes as tb

@dataclass(frozen=True)
class Ours:
    epochs: int = 3
    lr: float = 0.5  # as methods of the library have it
    members, needs = 1, tb.MAP().needs

    def init(self, *arguments): ...
    def step(self, *arguments): ...

SET = Ours(lr=0.25)
"""


@pytest.mark.parametrize(("written", "lr"), [("Ours", 0.5), ("SET", 0.25)])
def test_a_method_of_the_user_is_not_taken_for_another_with_the_same_settings(capsys, monkeypatch, written, lr):
    Path("ours.py").write_text(OURS)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "ours", raising=False)
    method = ["--method", f"ours:{written}", "--method.epochs", "4", "--directory", "run", "--print_config"]
    columns = ["--data", "a.csv", "--time", "t", "--target", "y"]
    for command in (["fit", "--data", "two_moons"], ["acquire", "--data", "two_moons"], ["forecast", *columns]):
        assert main([*command, *method]) == 0
        given = yaml.safe_load(capsys.readouterr().out)["method"]
        assert given["class_path"] == "ours.Ours"
        assert given["init_args"] == {"epochs": 4, "lr": lr}


def test_a_run_of_a_method_of_the_user_is_gone_on_with_where_it_is_trusted(monkeypatch):
    Path("theirs.py").write_text("from tests.catalogue.mine import Mine\n\nclass Theirs(Mine): ...\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    method = "method:\n  class_path: theirs.Theirs\n  init_args: {}\n"
    Path("theirs.yaml").write_text(f"data: two_moons\ntrain_size: 40\n{method}")
    assert main(["fit", "--config", "theirs.yaml", "--trust", "--directory", "run"]) == 0
    assert main(["fit", "--directory", "run", "--resume", "--trust"]) == 0
    assert main(["fit", "--config", "run/config.yaml", "--trust", "--directory", "new"]) == 0
    for directory in ("run", "new"):
        assert read_config(Path(directory, "config.yaml"))["method"]["class_path"] == "theirs.Theirs"


def test_an_interrupted_fit_says_how_to_go_on(capsys, monkeypatch):
    options = ["fit", "--data", "two_moons", *TINY, "--method.epochs", "4", "--directory", "run"]
    assert main(["fit", *options[1:-1], "whole"]) == 0

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("torchbayes.driver.progress.Lines.__call__", lambda _, event: interrupt(event))
        assert main(options) == 130
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said == "Stopped. Continue with: torchbayes fit --directory run --resume"
    assert main(said.partition("torchbayes ")[2].split()) == 0
    whole, run = (load_run(Path(name))[1] for name in ("whole", "run"))
    assert torch.equal(whole.sample(3), run.sample(3))


def test_ctrl_c_outside_a_fit_has_its_exit_code(capsys, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(main.__globals__["COMMANDS"], "list", interrupt)
    assert main(["list"]) == 130
    assert capsys.readouterr().err.strip() == "Stopped."


def test_evaluate_tells_foreign_images_from_the_test_set(capsys):
    options = ["--network", "mlp", *TINY, "--method", "MAP", "--method.epochs", "2", "--directory", "run"]
    assert main(["fit", *options]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--data", "letters", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    setup, posterior = load_run(Path("run"))
    letters = data.out_of_distribution(setup.data, "letters")["letters"]
    inside, outside = (tb.uncertainty(posterior, x) for x in (setup.data.test.inputs, letters))
    # AUROC is the chance that a foreign image has the higher entropy
    above = (outside.entropy[:, None] > inside.entropy[None]).double().mean()
    assert actual["auroc_entropy"] == pytest.approx(float(above), abs=1e-3)


def test_published_predictions_are_evaluated(capsys):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), size=50).astype(np.float32)
    labels = rng.integers(0, 3, 50).astype(np.uint8)
    np.savez("p.npz", probs=probs, labels=labels)
    assert main(["evaluate", "--predictions", "p.npz", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["nll"] == pytest.approx(log_loss(labels, normalised(probs), labels=range(3)), rel=1e-5)
    assert actual["accuracy"] == accuracy_score(labels, probs.argmax(1))
    assert main(["evaluate", "--predictions", "p.npz"]) == 0
    assert re.search(rf"nll +{actual['nll']:.4f}", capsys.readouterr().out)


@pytest.mark.parametrize(("name", "accuracy", "nll"), [("cifar10", 0.9144, 0.2773), ("imdb", 0.8756, 0.2950)])
def test_published_hmc_predictions_have_the_stated_numbers(capsys, name, accuracy, nll):
    path = SHARED / "hmc_reference" / f"{name}_probs.npz"
    if not path.is_file():
        pytest.skip("published HMC predictions not found: set TORCHBAYES_DATA to a folder with hmc_reference/")
    assert main(["evaluate", "--predictions", str(path), "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["accuracy"] == pytest.approx(accuracy, abs=5.1e-5)
    assert actual["nll"] == pytest.approx(nll, abs=5.1e-5)


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    for names in (data.names(), networks.names(), experiments.names(), data.CORRUPTIONS, ("MAP", "SWA", "SWAG")):
        for name in names:
            assert re.search(rf"^  {name} +\w", said, re.MULTILINE), name
    assert main(["list", "networks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(networks.names())


def test_reproduce_hands_its_options_on(capsys, monkeypatch, tmp_path):
    asked = {}

    def reproduce(name, **options):
        asked.update(name=name, **options)
        (tmp_path / "results.json").write_text('{"verdict": {"outcome": "holds", "reason": "Its one part holds."}}')
        return tmp_path / "page.html"

    monkeypatch.setattr(experiments, "reproduce", reproduce)
    assert main(["reproduce", "uci_table", "--seeds", "2", "--directory", "d"]) == 0
    assert asked == {"name": "uci_table", "scale": "small", "seeds": 2, "directory": "d"}
    assert capsys.readouterr().out == "Holds. Its one part holds.\nPage: page.html\n"
    assert main(["reproduce", "--list"]) == 0
    assert all(name in capsys.readouterr().out for name in ["uci_table"])


def test_without_the_experiments_their_commands_say_how_to_install_them(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchbayes_experiments", None)
    for argv in (["reproduce", "uci_table"], ["reproduce", "--list"]):
        assert main(argv) == 2
        assert "torchbayes: The experiments are a distribution of their own" in capsys.readouterr().err
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "python -m pip install ./experiments" in said
    assert "digits" in said
    with pytest.raises(ModuleNotFoundError, match="distribution of their own"):
        _ = experiments.names


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("compre", "Did you mean compare"),
        ("compare --data digts", "Did you mean digits"),
        ("compare --data imdb", "holds texts"),
        ("compare --methods single --hmcsteps 3", "Did you mean --hmc.steps"),  # of a method that is not compared
        ("compare --dta digits", "there is no option --dta. Did you mean --data"),
        ("fit --data digits --method MAP --epochs 5", "there is no option --epochs. Did you mean --method.epochs?"),
        ("fit --data digits --method HMC --step_size 5", "Did you mean --method.step_size?"),
        ("compare --data digits --epochs 5", "there is no option --epochs. Did you mean --ensemble.epochs"),
        (
            "compare --methods ensemble --ensemble.optimizer Sgd",
            "`--ensemble.optimizer` cannot be 'Sgd'. Did you mean SGD",
        ),
        (
            "compare --methods ensemble --ensemble.optimizer.rate 1",
            "`--ensemble.optimizer` is SGD, which has no setting 'rate'.",
        ),
        (
            "compare --methods ensemble --ensemble.members two",
            "`--ensemble.members` must be a whole number; got 'two'.",
        ),
        ("compare --methods ensemble --ensemble.members 0", "`members` must be a whole number of at least 1; got 0."),
        ("compare --methods sngle", "Did you mean single"),
        ("compare --methods multiswag --draws 31", "Try 30 or 35"),
        ("compare --config nothing.yaml", "there is no file nothing.yaml"),
        ("compare --config .", "`.` is a folder where a file should be. Name a file in it"),
        (
            "compare --methods single --data toy_sine --corruptions fog --directory a",
            "which the rows of toy_sine are not; got fog.",
        ),
        ("evaluate --predictions .", "`.` is a folder where a file should be"),
        ("compare --methods single --likelihood gaussian", "must be categorical"),
        ("compare --methods single --network lenet", "Use `small_cnn`"),
        ("fit --data toy_sine --network lenet --directory a", "Use `mlp` for vectors"),
        ("fit --data_settings.leave_out [a[m]] --directory a", "`--data_settings.leave_out` is no YAML: while parsing"),
        ("fit", "`--directory` must be given"),
        ("fit --directory a --method SWAGG", "Did you mean SWAG"),
        (
            "fit --directory a --method SWAG --method.rank 1",
            "torchbayes: `rank` must be 0 (diagonal alone) or at least 2",
        ),
        (
            "fit --directory a --method SWAG --method.members two",
            "`--method.members` must be a whole number; got 'two'.",
        ),
        ("evaluate", "say what to evaluate"),
        ("evaluate nothing", "there is no file nothing/config.yaml, which a run has. Name the directory of a fit."),
        ("evaluate --predictions nothing.npz", "there is no file nothing.npz"),
        ("reproduce", "say which experiment: "),
        ("reproduce uci_tabel", "Did you mean uci_table"),
        ("list dat", "Did you mean data"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, argv, said):
    assert main(argv.split()) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("torchbayes: ")
    assert said in line
    assert not list(Path().iterdir())  # nothing was written


@pytest.mark.parametrize(
    ("content", "said"), [(b"text", "is not an npz file"), (None, "must hold probs, labels; it has no probs, labels")]
)
def test_a_file_that_holds_no_predictions_is_said(capsys, content, said):
    if content is None:
        np.savez("p.npz", other=np.zeros(3))
    else:
        Path("p.npz").write_bytes(content)
    assert main(["evaluate", "--predictions", "p.npz"]) == 2
    assert said in capsys.readouterr().err


def test_labels_beyond_the_columns_of_predictions_are_said_without_a_network(capsys):
    np.savez("p.npz", probs=np.full((9, 3), 1 / 3), labels=np.arange(9) % 5)
    assert main(["evaluate", "--predictions", "p.npz"]) == 2
    said = capsys.readouterr().err
    assert "`labels` of p.npz must lie in 0..2, as `probs` has 3 columns; got 3. Relabel those rows" in said
    assert "network" not in said


@pytest.mark.parametrize("command", ["fit", "compare --methods single"])
def test_a_file_in_the_place_of_the_directory_is_said(capsys, command):
    Path("a").write_text("mine")
    assert main([*command.split(), "--data", "two_moons", "--directory", "a"]) == 2
    said = f"`{Path('a').absolute()}` is a file where a folder should be. Choose another directory."
    assert said in capsys.readouterr().err
    assert Path("a").read_text() == "mine"


def test_divergence_is_said_in_one_line_with_where_the_state_is(capsys):
    argv = [*MOONS, "--ensemble.optimizer", "SGD", "--ensemble.optimizer.lr", "1e20", "--directory", "a"]
    assert main(argv) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "not finite" in line
    assert "a/fits/ensemble" in line


def test_the_traceback_is_shown_when_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("TORCHBAYES_DEBUG", "1")
    assert main(["compare", "--methods", "multiswag", "--draws", "31"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.strip().splitlines()[-1].startswith("torchbayes: `draws`")


def test_usage_and_version(capsys):
    assert main([]) == 2
    assert main(["--help"]) == main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.count("usage: torchbayes COMMAND") == 2
    assert said.strip().endswith(tb.__version__)
    assert main(["compare", "--data", "uci_yacht", "--help"]) == 0
    assert "default: uci_yacht" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", "--methods", "single", "--help"]) == 0
    assert "--hmc.steps" in capsys.readouterr().out  # of a method that is not compared


def test_an_error_of_many_lines_becomes_one():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(OSError(27, "a could not be written. Make room.")) == "a could not be written. Make room."
    assert one_line(OSError(13, "Permission denied", "a")) == "a: Permission denied."
    error = tb.DivergedError("loss is nan")
    error.add_note("kept in run")
    assert one_line(error) == "loss is nan kept in run"


@pytest.mark.parametrize(("width", "headers"), [(140, 1), (60, 2)])
def test_a_narrow_terminal_gets_the_table_in_parts(capsys, monkeypatch, width, headers):
    from torchbayes.cli.terminal import print_table
    from torchbayes.report import Table

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    monkeypatch.setenv("TERM", "xterm")
    numbers = [f"column {i}" for i in range(8)]
    parts = [Table(["method", *half], [["a", *range(4)]]) for half in (numbers[:4], numbers[4:])]
    print_table(Table(["method", *numbers], [["a", *range(8)]]), narrow=parts)
    said = capsys.readouterr().out
    assert said.count("method") == headers
    assert all(number in said for number in numbers)


@pytest.mark.filterwarnings("ignore:.*should not be trusted")
def test_home_is_meant_by_a_tilde_wherever_a_path_may_be(tmp_path, monkeypatch, capsys):
    """Shells leave it behind an equals sign, and files hold it as it is."""
    unpainted(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # where the kernel is compiled already
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("file.yaml").write_text("directory: ~/from_file\nmethod: {class_path: MAP, init_args: {epochs: 1}}\n")
    fit = ["fit", "--data=toy_sine", "--network=linear", "--method=MAP", "--method.epochs=1"]
    assert main([*fit, "--directory=~/run"]) == 0
    assert main([*fit, "--start", "~/run", "--directory=~/again"]) == 0
    assert main(["fit", "--data=toy_sine", "--network=linear", "--config=file.yaml"]) == 0
    for words in ("evaluate ~/run", "report ~/run --directory=~/page", "evaluate ~/from_file"):
        assert main(words.split()) == 0
    for words in ("predict ~/none x.csv", "diagnose ~/none", "tune ~/none", "fit --config=~/none"):
        assert main(words.split()) == 2
        assert str(tmp_path / "home" / "none") in capsys.readouterr().err
    assert {each.name for each in Path("home").glob("[!.]*")} == {"run", "again", "from_file", "page"}
    assert not Path("~").exists()

"""`torchbayes evidence`: the numbers of the library, written down, and one line for every mistake."""

import json
import math
import re
import warnings
from pathlib import Path

import pytest
from tests.pictures import unpainted

import torchbayes as tb
from torchbayes import networks
from torchbayes.catalogue.config import read_config, write_config
from torchbayes.catalogue.problem import Problem
from torchbayes.cli import main
from torchbayes.comparison import evidence as room
from torchbayes.data import load
from torchbayes.posteriors.locks import Locked

# a few epochs do not train
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")

SHORT = ["--data", "digits", "--train_size", "80", "--map.epochs", "4", "--network_settings.hidden", "[6]"]
TINY = ["evidence", *SHORT, "--networks", "linear", "mlp"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Directories are relative."""
    monkeypatch.chdir(tmp_path)
    unpainted(monkeypatch)


def results(directory):
    return json.loads((Path(directory) / "results.json").read_text())


def test_a_table_and_files_with_its_numbers(capsys):
    assert main([*TINY, "--directory", "a"]) == 0
    said = capsys.readouterr()
    actual = results("a")["networks"]
    assert list(actual) == ["linear", "mlp"]
    for name, numbers in actual.items():
        row = next(line for line in said.out.splitlines() if line.strip().startswith(name)).replace("−", "-")
        for key, spec in (
            ("log_evidence", ",.1f"),
            ("log_evidence_per_row", ".3f"),
            ("occam", ",.1f"),
            ("test_nll", ".3f"),
        ):
            assert format(numbers[key], spec) in row
        assert numbers["occam"] == pytest.approx(numbers["log_evidence"] - numbers["log_likelihood"])
        assert numbers["log_evidence"] == pytest.approx(80 * numbers["log_evidence_per_row"])
    assert (actual["linear"]["weights"], actual["mlp"]["weights"]) == (650, 64 * 6 + 6 + 70)
    best, other = sorted(actual, key=lambda name: -actual[name]["log_evidence"])
    factor = actual[best]["log_evidence"] - actual[other]["log_evidence"]
    assert f"The evidence favours {best}: log Bayes factor {factor:,.1f} over {other}." in said.out
    assert Path("a/evidence.png").read_bytes().startswith(b"\x89PNG")
    assert "training: linear, 650 weights" in said.err


def test_problems_are_said_once_of_what_is_shown():
    argv = ["evidence", "--data", "two_moons", "--networks", "linear", "--map.epochs", "3"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert main([*argv, "--rounds", "2"]) == 0
    assert [str(each.message).partition(":")[0] for each in said] == ["this posterior should not be trusted"]


def test_the_numbers_are_those_of_the_library():
    options = [
        "--tune_prior",
        "scalar",
        "--rounds",
        "0",
        "--prior_scale",
        "0.7",
        "--seed",
        "3",
        "--map.optimizer",
        "Adam",
    ]
    options += ["--map.optimizer.lr", "0.01"]
    assert main([*TINY, *options, "--networks", "linear", "--directory", "a"]) == 0
    numbers = results("a")["networks"]["linear"]
    data = load("digits", train_size=80)
    model = tb.Model(networks.linear(data.input_shape, 10), tb.likelihoods.Categorical(), tb.priors.Normal(0.7))
    mode = tb.fit(model, tuple(data.train), tb.MAP(1, 4, 64, tb.Adam(0.01), plan="loop"), seed=3, callbacks=())
    actual = tb.fit(model, tuple(data.train), tb.Laplace(prior="scalar", check_mode=False), start=mode, callbacks=())
    assert isinstance(actual, tb.LaplacePosterior)
    assert numbers["log_evidence"] == pytest.approx(float(actual.log_evidence()), rel=1e-5)
    assert numbers["log_likelihood"] == pytest.approx(float(actual.log_likelihood_M), rel=1e-5)
    scale = float(actual.model.prior.stds()[0])
    assert numbers["scales"] == pytest.approx({"1.weight": scale, "1.bias": scale}, rel=1e-4)
    scores = tb.evaluate(tb.Linearised(actual), tuple(data.test)).metrics
    assert numbers["test_nll"] == pytest.approx(scores["nll"], rel=1e-4)
    assert numbers["test_accuracy"] == pytest.approx(scores["accuracy"], abs=0.003)


def test_the_model_s_own_prior_may_stay():
    assert (
        main([*TINY, "--networks", "linear", "--tune_prior", "model", "--prior_scale", "0.7", "--directory", "a"]) == 0
    )
    assert list(results("a")["networks"]["linear"]["scales"].values()) == pytest.approx([0.7, 0.7])


def test_the_prior_is_chosen_as_everywhere():
    rules = "{'*.bias': {name: normal, scale: 3}, '*': normal}"
    options = [*TINY, "--networks", "linear", "--tune_prior", "model"]
    assert main([*options, "--prior", rules, "--prior_scale", "0.7", "--directory", "a"]) == 0
    assert results("a")["networks"]["linear"]["scales"] == pytest.approx({"1.weight": 0.7, "1.bias": 3})
    options += ["--prior", "student_t", "--prior_settings.df", "6", "--prior_scale", "2", "--structure", "diagonal"]
    assert main([*options, "--directory", "b"]) == 0
    scales = results("b")["networks"]["linear"]["scales"]
    assert list(scales.values()) == pytest.approx(
        [2 * 1.5**0.5] * 2
    )  # standard deviations of t with six degrees of freedom


def test_a_configuration_of_before_says_by_prior_what_the_evidence_chooses():
    options = ["--networks", "linear", "--rounds", "0", "--tune_prior", "scalar"]
    assert main([*TINY, *options, "--directory", "a"]) == 0
    config = read_config(Path("a/config.yaml"))
    del config["tune_prior"]
    write_config(Path("old"), {**config, "prior": "scalar"})
    assert main(["evidence", "--config", "old/config.yaml", "--directory", "b"]) == 0
    assert results("b") == results("a")
    assert Path("b/config.yaml").read_text() == Path("a/config.yaml").read_text()


def test_each_layer_has_its_scale_and_rounds_help(capsys):
    assert main([*TINY, "--map.epochs", "30", "--networks", "mlp", "--rounds", "0", "--directory", "a"]) == 0
    assert main([*TINY, "--map.epochs", "30", "--networks", "mlp", "--rounds", "2", "--directory", "b"]) == 0
    scales = results("b")["networks"]["mlp"]["scales"]
    assert scales["1.weight"] == scales["1.bias"] != scales["3.weight"] == scales["3.bias"]
    row = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("mlp"))
    assert re.search(r"0\.\d+ to \d\.\d+", row)


def test_regression_has_rmse_in_the_units_of_the_targets():
    options = ["--data", "toy_sine", "--train_size", "20", "--map.epochs", "10"]
    options += ["--network_settings.hidden", "[6]", "--structure", "dense"]
    assert main(["evidence", *options, "--networks", "linear", "mlp", "--directory", "a"]) == 0
    actual = results("a")["networks"]
    assert all(math.isfinite(numbers["test_rmse"]) and "test_accuracy" not in numbers for numbers in actual.values())
    assert actual["mlp"]["log_evidence"] != actual["linear"]["log_evidence"]


def test_a_written_configuration_runs_again_identically():
    options = ["--networks", "linear", "--rounds", "1", "--tune_prior", "scalar", "--map.optimizer.lr", "0.02"]
    assert main([*TINY, *options, "--directory", "a"]) == 0
    config = read_config(Path("a/config.yaml"))
    assert config["map"]["optimizer"]["init_args"]["lr"] == 0.02
    assert main(["evidence", "--config", "a/config.yaml", "--directory", "b"]) == 0
    assert results("b") == results("a")
    assert Path("b/config.yaml").read_text() == Path("a/config.yaml").read_text()


def test_results_are_not_replaced_unless_asked_for(capsys):
    options = [*TINY, "--networks", "linear", "--rounds", "0", "--directory", "a"]
    assert main(options) == 0
    before = results("a")
    assert main([*options, "--seed", "1"]) == 2
    assert "a already holds results. Add --overwrite" in capsys.readouterr().err
    assert results("a") == before
    assert main([*options, "--seed", "1", "--overwrite"]) == 0
    assert results("a") != before


def test_results_are_looked_for_once_the_directory_is_held(capsys, monkeypatch):
    """Those of a command that ended just before this one got the lock are not replaced either."""

    class Late(Locked):
        def __init__(self, directory):
            super().__init__(directory)
            (Path(directory) / "results.json").write_text("of another command")

    monkeypatch.setattr("torchbayes.cli.compare.Locked", Late)
    assert main([*TINY, "--directory", "a"]) == 2
    assert "a already holds results. Add --overwrite" in capsys.readouterr().err
    assert Path("a/results.json").read_text() == "of another command"


def test_a_command_that_fails_leaves_no_directory(capsys):
    Path("there").mkdir()
    for directory in ("a/b", "there"):
        options = ["--data", "two_moons", "--networks", "mlp", "cnn", "--directory", directory]
        assert main(["evidence", *options]) == 2
        assert "takes images" in capsys.readouterr().err
    assert [path.name for path in Path().rglob("*")] == ["there"]


def test_weights_that_are_not_at_a_mode_are_named(capsys):
    options = ["--networks", "linear", "--rounds", "0", "--map.epochs", "1", "--map.optimizer.lr", "1e-9"]
    assert main([*TINY, *options]) == 0
    assert "Not at a mode: linear. Train longer (--map.epochs)" in capsys.readouterr().out
    assert not list(Path().iterdir())  # without --directory nothing is written


def test_the_parts_for_narrow_terminals_are_the_table():
    numbers = {
        "log_evidence": -50.0,
        "log_evidence_per_row": -0.5,
        "log_likelihood": -20.0,
        "occam": -30.0,
        "weights": 9,
    }
    numbers |= {
        "effective": 4.2,
        "scales": {"w": 0.5, "b": 0.25},
        "at_mode": True,
        "test_nll": 0.3,
        "test_accuracy": 0.9,
    }
    settings, actual = room.Settings(Problem(), tb.MAP()), {"linear": numbers, "mlp": numbers}
    whole, (first, second) = room.table(settings, actual), room.tables(settings, actual)
    assert [*first.columns, *second.columns[1:]] == list(whole.columns)
    assert repr([*first.cells[0], *second.cells[0][1:]]) == repr(whole.cells[0])  # NaN is not equal to itself
    assert "| linear | −50.0 | −0.500 | −20.0 | −30.0 | 9 | 4 | 0.25 to 0.5 | 0.300 | 90.0 % |" in whole.markdown()


def test_cnn_is_short_for_the_small_one_and_keeps_out_of_the_settings_of_the_mlp():
    problem = Problem(network_settings={"hidden": [6]})
    settings = room.Settings(problem, tb.MAP(), ("mlp", "cnn"))
    assert settings.problem_of("cnn") == Problem(network="small_cnn")
    assert settings.problem_of("mlp") == Problem(network="mlp", network_settings={"hidden": [6]})


def test_a_network_of_the_user_is_compared_by_its_import_path():
    path = "tests.catalogue.mine:build"
    assert main(["evidence", *SHORT, "--data", "two_moons", "--networks", "linear", path, "--directory", "a"]) == 0
    assert {name: row["weights"] for name, row in results("a")["networks"].items()} == {
        "linear": 6,
        path: 3 * 5 + 6 * 2,
    }


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--networks", "`networks` must name at least one network; got none"),
        ("--networks linaer", "There is no network called 'linaer'. Did you mean linear?"),
        ("--networks mlp mlp", "must name each network once; got mlp more often"),
        ("--data two_moons --networks mlp cnn", "takes images"),
        ("--data digts", "Did you mean digits"),
        ("--data imdb", "holds texts"),
        ("--rounds -1", "`rounds` must not be negative; got -1"),
        ("--temperature 0.5", "the evidence is that of T = 1; got temperature 0.5"),
        ("--tune_prior weight", "`--tune_prior` must be one of model, scalar, layer; got 'weight'"),
        ("--tune_prior wide", "`--tune_prior`"),
        ("--prior nromal", "There is no prior called 'nromal'. Did you mean normal"),
        ("--structure kronecke", "`--structure`"),
        ("--curvature hessian", "dense matrix alone"),
        ("--likelihood gaussian", "must be categorical"),
        ("--map.epochs 0", "`epochs` must be a whole number of at least 1; got 0"),
        ("--network mlp", "there is no option --network. Did you mean --networks"),
        ("--threads 0", "`threads` must be a whole number of at least 1"),
        ("--train_size 9999", "must be between 1 and its 1437 rows; got 9999"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, argv, said):
    assert main(["evidence", *argv.split()]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("torchbayes: ")
    assert said in lines[0]
    assert not list(Path().iterdir())


def test_help_names_the_networks_of_the_data(capsys):
    assert main(["evidence", "--data", "two_moons", "--help"]) == 0
    assert "default: ['linear', 'mlp']" in " ".join(capsys.readouterr().out.split())
    assert main(["evidence", "--help"]) == 0
    assert "default: ['linear', 'mlp', 'cnn']" in " ".join(capsys.readouterr().out.split())

"""Samplers from the command line: fit, resume, extend, evaluate, diagnose."""

import json
import os
import re
import shutil
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from tests.pictures import unpainted
from tests.processes import forked

import torchbayes as tb
from torchbayes import diagnostics
from torchbayes.catalogue.config import describe, load_run, read_config
from torchbayes.catalogue.methods import classes
from torchbayes.catalogue.problem import Problem
from torchbayes.cli import main
from torchbayes.cli.options import peek, usual_method
from torchbayes.driver.progress import Lines
from torchbayes.native.build import available
from torchbayes.posteriors.store import DrawFile

SAMPLERS = [kind for kind in classes().values() if kind().needs.chain]
TINY = ["--data", "digits", "--network", "mlp", "--network_settings.hidden", "[8]", "--train_size", "60"]
SHORT = ["--method.chains", "2", "--method.steps", "24", "--method.burn_in", "8"]
HMC = [*TINY, "--method", "HMC", *SHORT, "--method.step_size", "0.02", "--method.trajectory", "0.1"]
HMC += ["--method.plan", "loop"]
OWN = {
    "HMC": ["--method.trajectory", "0.2", "--method.mass", "diagonal"],
    "NUTS": ["--method.max_doublings", "3"],
    "RandomWalk": ["--method.step_size", "0.01", "--method.mass", "prior"],
    "EllipticalSlice": ["--method.scale", "0.5"],
    "MALA": ["--method.mass", "diagonal"],
    "MCLMC": ["--method.integrator", "leapfrog"],
    "MAMS": ["--method.trajectory", "2", "--method.max_leapfrogs", "4"],
    "UnderdampedLangevin": ["--method.energy_error", "0.001"],
    "SGLD": ["--method.schedule", "Decay", "--method.schedule.offset", "50", "--method.batch_size", "20"],
    "SGHMC": ["--method.schedule", "Cycles", "--method.schedule.length", "4", "--method.batch_size", "20"],
    "SGNHT": ["--method.batch_size", "20", "--method.thin", "2"],
    "SMILE": ["--method.batch_size", "20", "--method.noise_share", "0.2"],
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Default directories of commands are relative."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ctrl_c_works():
    """A process that a script started in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def draws(directory):
    return DrawFile.open(directory).read().clone()


def normalised(probs):
    """Probabilities in float64: scikit-learn warns of the rounding of float32."""
    probs = probs.astype(np.float64)
    return probs / probs.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run of 24 steps."""
    home = tmp_path_factory.mktemp("short") / "short"
    assert main(["fit", *HMC, "--directory", str(home)]) == 0
    return home


@pytest.fixture
def run(short):
    """A copy of it here."""
    return shutil.copytree(short, "run")


# --- fit


# the others go the same way through the command line: HMC below, and cycles of SGHMC in `test_cli_compare.py`
OFTEN = {"NUTS", "SGLD"}


@pytest.mark.parametrize(
    "method",
    [pytest.param(s.__name__, marks=() if s.__name__ in OFTEN else pytest.mark.study) for s in SAMPLERS],
)
def test_a_sampler_fits_and_its_configuration_runs_again(capsys, method):
    options = [*TINY, "--method", method, *SHORT, *OWN[method], "--seed", "3"]
    assert main(["fit", *options, "--directory", "a"]) == 0
    assert main(["fit", "--config", "a/config.yaml", "--directory", "b"]) == 0
    assert Path("a/config.yaml").read_text() == Path("b/config.yaml").read_text()
    assert torch.equal(draws("a"), draws("b"))
    capsys.readouterr()
    assert main(["evaluate", "a", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    setup, posterior = load_run(Path("a"))
    inputs, targets = setup.data.test
    assert isinstance(posterior, tb.Draws)
    assert posterior.members == 2
    probs = normalised(tb.predict(posterior, inputs).probs.numpy())
    assert actual["nll"] == pytest.approx(log_loss(targets, probs, labels=range(10)), rel=1e-5)
    assert actual["accuracy"] == accuracy_score(targets, probs.argmax(1))


def test_a_fit_from_the_shell_is_that_of_the_library():
    assert main(["fit", *HMC, "--directory", "run", "--seed", "5"]) == 0
    setup, posterior = load_run(Path("run"))
    assert setup.problem == Problem("digits", "mlp", {"hidden": [8]}, prior_scale=0.5, train_size=60, threads=1)
    method = tb.HMC(2, 24, 8, step_size=0.02, trajectory=0.1, plan="loop")
    assert read_config(Path("run/config.yaml"))["method"] == describe(method)
    by_hand = tb.fit(setup.model, tuple(setup.data.train), method, seed=5, callbacks=())
    assert isinstance(posterior, tb.Draws)
    assert isinstance(by_hand, tb.Draws)
    assert torch.equal(posterior.weights_MSD, by_hand.weights_MSD)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 40 steps."""
    home = tmp_path_factory.mktemp("whole") / "whole"
    assert main(["fit", *HMC, "--directory", str(home), "--steps", "40"]) == 0
    return home


@pytest.mark.usefixtures("run")
def test_a_finished_run_goes_on(capsys, whole):
    shutil.copytree(whole, "whole")
    assert draws("run").shape == (2, 16, 610)
    assert main(["fit", "--directory", "run", "--resume", "--steps", "32"]) == 0
    assert draws("run").shape == (2, 24, 610)
    assert main(["fit", "--directory", "run", "--resume", "--method.steps", "40"]) == 0
    assert torch.equal(draws("run"), draws("whole"))
    assert torch.equal(load_run(Path("run"))[1].sample(64), load_run(Path("whole"))[1].sample(64))
    assert Path("run/config.yaml").read_text() == Path("whole/config.yaml").read_text()
    # and again, with the length it now has
    assert main(["fit", "--directory", "run", "--resume"]) == 0
    assert torch.equal(draws("run"), draws("whole"))
    assert main(["fit", "--directory", "run", "--resume", "--method.step_size", "0.01"]) == 2
    assert "another method" in capsys.readouterr().err


@pytest.mark.parametrize(
    "number",
    # Ctrl-C raises KeyboardInterrupt, as in `test_an_interrupted_fit_says_how_to_go_on` of `test_cli.py`
    [pytest.param(signal.SIGINT, marks=pytest.mark.study, id="ctrl_c"), pytest.param(signal.SIGTERM, id="terminated")],
)
def test_an_interrupted_sampler_goes_on_as_it_says(capsys, monkeypatch, ctrl_c_works, short, number):
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(event):
        if event.step == 15:
            signal.raise_signal(number)  # to this thread: another one may be slow to wake

    with monkeypatch.context() as patch:
        patch.setattr("torchbayes.driver.progress.Lines.__call__", lambda _, event: interrupt(event))
        assert main(["fit", *HMC, "--directory", "run"]) == 130
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said == "Stopped. Continue with: torchbayes fit --directory run --resume"
    assert signal.getsignal(signal.SIGTERM) == before
    assert main(["evaluate", "run"]) == 2
    assert "has no posterior yet" in capsys.readouterr().err
    assert main(said.partition("torchbayes ")[2].split()) == 0
    assert torch.equal(draws("run"), draws(short))


@pytest.mark.parametrize(("network", "plans"), [("mlp", {"native", "vmap"}), ("small_cnn", {"native", "loop"})])
def test_the_usual_plan_of_a_sampler_is_that_of_its_network(network, plans):
    """A loop over a small perceptron is twenty times slower than the library's kernel."""
    for seen in (peek(["--network", network, "--method", "HMC"]), peek(["--method", "SGLD", f"--network={network}"])):
        method = usual_method(seen.method, seen.usual)
        assert method.plan in plans
        assert method.members == 4
    for kind in ("MAP", "SWA", "SWAG"):  # also where the usual network of the data has another plan
        seen = peek(["--data", "cifar10", "--network", network, "--method", kind])
        method = usual_method(seen.method, seen.usual)
        assert type(method).__name__ == kind
        assert method.plan in plans


@pytest.mark.parametrize(
    ("likelihood", "known"),
    [
        (["--likelihood=student_t"], False),
        (["--likelihood", "poisson"], False),
        (["--likelihood", "heteroscedastic"], True),
        (["--likelihood", "categorical", "--likelihood_settings.label_smoothing", "0.1"], False),
        (["--likelihood", "gaussian", "--likelihood_settings={scale: 0.3}"], True),
        (["--likelihood", "tests.catalogue.mine:noise"], True),
    ],
)
def test_the_usual_plan_is_one_that_can_run_the_likelihood(likelihood, known):
    seen = peek(["--data", "toy_sine", "--method", "MAP", *likelihood])
    assert usual_method(seen.method, seen.usual).plan == ("native" if known and available() else "vmap")


def test_samplers_are_listed(capsys):
    assert main(["list", "methods"]) == 0
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()}
    for sampler in SAMPLERS:
        assert lines[sampler.__name__] == (sampler.__doc__ or "").splitlines()[0]
    assert list(lines)[:3] == ["MAP", "SWA", "SWAG"]


# --- diagnose


@pytest.mark.usefixtures("run")
def test_diagnose_prints_and_writes_what_the_library_gives(capsys, monkeypatch):
    unpainted(monkeypatch)
    assert main(["diagnose", "run", "--inputs", "50", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    setup, posterior = load_run(Path("run"))
    assert isinstance(posterior, tb.Draws)
    rhat = diagnostics.rhat(posterior.weights_MSD)
    assert actual["spaces"]["weights"]["rhat_largest"] == pytest.approx(float(rhat.max()))
    assert actual["spaces"]["weights"]["rhat_within_1.1"] == pytest.approx(float((rhat <= 1.1).double().mean()))
    # 50 test rows at even distances
    count = len(setup.data.test.inputs)
    rows = torch.tensor([i * count // 50 for i in range(50)])
    inputs, targets = setup.data.test.inputs[rows], setup.data.test.targets[rows]
    expected = tb.diagnose(posterior, inputs, targets, log="run")
    assert actual["spaces"]["probabilities"]["quantities"] == 500
    sizes = expected.spaces["log likelihoods"].ess_bulk
    assert actual["spaces"]["log likelihoods"]["ess_bulk_least"] == pytest.approx(float(sizes.min()))
    log = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()][8:]
    for chain in range(2):
        accepted = np.mean([record["acceptance"][chain] for record in log])
        assert actual["by_chain"]["acceptance"][chain] == pytest.approx(accepted)
        assert actual["by_chain"]["gradients"][chain] == sum(record["gradients"][chain] for record in log)
    assert Path("run/diagnosis/report.html").is_file()


@pytest.mark.usefixtures("run")
def test_diagnose_prints_a_table_and_writes_a_page(capsys, monkeypatch):
    unpainted(monkeypatch)  # `tests/report` paints these
    assert main(["diagnose", "run", "--inputs", "50", "--directory", "elsewhere"]) == 0
    said = capsys.readouterr().out
    row = re.search(r"^ weights +610 +([\d.]+) +([\d.]+)", said, re.MULTILINE)
    assert row is not None
    assert float(row[2]) == pytest.approx(float(diagnostics.rhat(draws("run")).max()), abs=5.1e-4)
    assert "2 chains of 16 draws" in said
    assert "Each chain: E-BFMI" in said
    assert said.strip().splitlines()[-1] == "Report: elsewhere/report.html"
    assert sorted(os.listdir("elsewhere")) == ["ess.png", "report.html", "rhat.png", "traces.png"]
    page = Path("elsewhere/report.html").read_text("utf-8")
    assert "HMC on digits: have the chains converged?" in page
    assert "24 of 24 iterations are done" in page
    assert "torchbayes.HMC" in page


def test_diagnose_says_how_close_a_gaussian_is(capsys, monkeypatch):
    unpainted(monkeypatch)
    options = ["--data", "toy_sine", "--network_settings.hidden", "[4]", "--method", "VI", "--method.epochs", "3"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["fit", *options, "--method.kl_weight", "1.0", "--directory", "run"]) == 0
        capsys.readouterr()
        assert main(["diagnose", "run", "--draws", "50", "--json"]) == 0
        actual = json.loads(capsys.readouterr().out)
        setup, posterior = load_run(Path("run"))
        assert isinstance(posterior, tb.Gaussian)
        expected = tb.diagnose(posterior, *setup.data.train, draws=50)
        assert actual["k"] == pytest.approx(expected.k)
        assert actual["rows"] == len(setup.data.train.inputs)
        assert main(["diagnose", "run", "--draws", "50"]) == 0
    said = capsys.readouterr().out
    assert f"k-hat is {expected.k:.2f} over 50 draws" in said
    page = Path("run/diagnosis/report.html").read_text("utf-8")
    assert "is it close to the posterior?" in page
    assert expected.verdict in page


def test_one_chain_and_more_inputs_than_there_are_rows(capsys, monkeypatch):
    unpainted(monkeypatch)
    options = ["--data", "toy_sine", "--network_settings.hidden", "[4]", "--method", "SGLD", *SHORT]
    options += ["--method.thin", "1"]
    assert main(["fit", *options, "--method.step_size", "1e-4", "--method.chains", "1", "--directory", "run"]) == 0
    capsys.readouterr()
    assert main(["diagnose", "run", "--inputs", "100000"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f" means {len(load_run(Path('run'))[0].data.test.inputs):,} " in said
    assert "One chain of 16 draws. R-hat compares the two halves of the one chain" in said
    assert "One chain cannot show" in said
    assert "E-BFMI" not in said


def test_a_run_that_goes_on_is_diagnosed(capsys, monkeypatch):
    """Its files at one moment are those that a process leaves that is killed then."""
    unpainted(monkeypatch)
    line, options, actual = Lines.__call__, ["--inputs", "20", "--json"], []

    def diagnosed(self, event):
        line(self, event)
        if event.step == 22:
            assert main(["diagnose", "run", *options]) == 0
            actual.append(Path("run/diagnosis/report.html").read_text("utf-8"))
            shutil.copytree("run", "killed")

    with monkeypatch.context() as patch:
        patch.setattr(Lines, "__call__", diagnosed)
        assert main(["fit", *HMC, "--directory", "run"]) == 0
    printed = re.search(r"^{.*^}", capsys.readouterr().out, re.MULTILINE | re.DOTALL)
    assert printed
    first = json.loads(printed[0])
    assert main(["diagnose", "killed", *options]) == 0
    assert json.loads(capsys.readouterr().out) == first
    done = len(Path("killed/log.jsonl").read_text().splitlines())
    assert 8 < first["draws"] == done - 8 <= 22 - 8
    rhat = diagnostics.rhat(draws("killed"))
    assert first["spaces"]["weights"]["rhat_median"] == pytest.approx(float(rhat.median()))
    assert f"{done} of 24 iterations are done" in actual[0]
    assert not Path("killed/posterior.safetensors").exists()


@pytest.mark.study  # the test above diagnoses the files of such a moment
@pytest.mark.slow
def test_a_run_that_goes_on_is_diagnosed_and_then_killed(capsys, monkeypatch):
    """A process samples without end; its run is diagnosed while it does, and after it was killed."""
    unpainted(monkeypatch)
    argv = ["fit", *HMC, "--directory", "run", "--steps", "1000000"]
    process = forked().Process(target=main, args=(argv,))
    process.start()
    try:
        _wait_for_draws(Path("run"), 20)
        assert main(["diagnose", "run", "--inputs", "20", "--json"]) == 0
        first = json.loads(capsys.readouterr().out)
    finally:
        process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert main(["diagnose", "run", "--inputs", "20", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert 20 <= first["draws"] <= last["draws"] == len(DrawFile.open("run"))
    rhat = diagnostics.rhat(draws("run"))
    assert last["spaces"]["weights"]["rhat_median"] == pytest.approx(float(rhat.median()))
    done = len(Path("run/log.jsonl").read_text().splitlines())
    assert f"{done:,} of 1,000,000 iterations are done" in Path("run/diagnosis/report.html").read_text("utf-8")
    assert not Path("run/posterior.safetensors").exists()


def _wait_for_draws(directory, count):
    until = time.monotonic() + 240
    while not (directory / "draws.json").exists() or len(DrawFile.open(directory)) < count:
        assert time.monotonic() < until, "the run did not start"
        time.sleep(0.05)


def test_a_run_in_burn_in_is_said(capsys, monkeypatch):
    def interrupt(event):
        if event.step == 11:
            raise KeyboardInterrupt

    monkeypatch.setattr("torchbayes.driver.progress.Lines.__call__", lambda _, event: interrupt(event))
    assert main(["fit", *HMC, "--directory", "run"]) == 130
    capsys.readouterr()
    assert main(["diagnose", "run"]) == 2
    assert "R-hat needs at least 4 draws of each chain; there are 3." in capsys.readouterr().err
    assert not Path("run/diagnosis").exists()


def test_only_chains_are_diagnosed(capsys):
    options = ["--data", "two_moons", "--train_size", "40", "--network_settings.hidden", "[8]", "--method.epochs", "4"]
    assert main(["fit", *options, "--method", "MAP", "--directory", "run"]) == 0
    capsys.readouterr()
    assert main(["diagnose", "run"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "only the draws of a sampler, such as HMC, and posteriors with a density" in lines[0]
    assert "can be diagnosed; got a Point posterior." in lines[0]
    assert not Path("run/diagnosis").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("diagnose", "say what to diagnose"),
        ("diagnose nothing", "there is no file nothing/config.yaml"),
        ("diagnose nothing --inputs 0", "`--inputs` must be at least 1; got 0."),
        ("diagnose nothing --input 3", "there is no option --input. Did you mean --inputs"),
        ("fit --directory a --method HCM", "Did you mean HMC"),
        ("fit --directory a --method HMC --method.burn_in 2000", "`burn_in` must lie in 0..999"),
        ("fit --directory a --method HMC --steps 100", "`burn_in` must lie in 0..99"),
        ("fit --directory a --method HMC --method.members 3", "is HMC, which has no setting 'members'"),
        ("fit --directory a --method HMC --method.batch_size 3", "is HMC, which has no setting 'batch_size'"),
        ("fit --directory a --method SGLD --method.schedule Steadi", "cannot be 'Steadi'"),
        (
            "fit --directory a --method MILE --method.sampler mine:Sampler",
            "`--method.sampler` must be an import path with dots, such as package.Class; got 'mine:Sampler'.",
        ),
        (
            "fit --directory a --method MILE --method.sampler nowhere.Sampler",
            "class_path 'nowhere.Sampler': No module named 'nowhere'",
        ),
        (
            "fit --directory a --method MAP --steps 100",
            "`--steps` is for samplers; the length of MAP is `--method.epochs`",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, argv, said):
    assert main(argv.split()) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("torchbayes: ")
    assert said in lines[0]
    assert "Import path" not in lines[0]  # what other classes of a union say
    assert not list(Path().iterdir())  # nothing was written


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_chains_that_never_move_are_an_error_once_they_are_saved(capsys):
    still = [*HMC, "--method.step_size", "1e6", "--method.trajectory", "1e6"]
    still += ["--method.burn_in", "0", "--method.steps", "40", "--directory", "still"]
    assert main(["fit", *still]) == 2
    said = capsys.readouterr()
    assert "Posterior: still/posterior.safetensors" in said.out
    assert "no chain moved: all draws are the same, as HMC rejected every proposal" in said.err
    _, actual = load_run(Path("still"))
    assert isinstance(actual, tb.Draws)
    assert actual.weights_MSD.shape[:2] == (2, 40)
    assert (actual.weights_MSD == actual.weights_MSD[:, :1]).all()
    assert main(["fit", "--directory", "still", "--resume"]) == 2


@pytest.mark.parametrize("moved", [0, 1])
def test_draws_are_still_only_where_no_chain_moved(moved):
    model = tb.Model(torch.nn.Linear(1, 1), tb.likelihoods.Gaussian(1.0))
    weights_MSD = torch.ones(2, 20, 2)
    weights_MSD[1, 19, 1] += moved
    assert tb.Draws(model, weights_MSD).still == (not moved)
    assert not tb.Draws(model, weights_MSD[:, :19]).still  # too few to tell

"""Comparisons with samplers and a reference, from the command line."""

import json
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
import yaml
from tests.catalogue import mine
from tests.pictures import undrawn, unpainted

import torchbayes as tb
from torchbayes.catalogue.config import load_run, read_config
from torchbayes.catalogue.data import defaults
from torchbayes.catalogue.methods import METHODS
from torchbayes.catalogue.models import LIKELIHOODS, NETWORKS, PRIORS
from torchbayes.cli import main
from torchbayes.methods.sampler import retained_steps
from torchbayes.posteriors.locks import FileWarning

TINY = ["--data", "two_moons", "--train_size", "40", "--network_settings.hidden", "[8]", "--ensemble.members", "2"]
TINY += ["--ensemble.epochs", "4", "--hmc.chains", "2", "--hmc.steps", "12", "--hmc.burn_in", "4"]
TINY += [
    "--hmc.step_size",
    "0.05",
    "--hmc.trajectory",
    "0.3",
    "--hmc.thin",
    "1",
    "--sghmc.steps",
    "8",
    "--sghmc.burn_in",
    "2",
]
TINY += ["--sghmc.thin", "2", "--sghmc.chains", "2", "--methods", "ensemble", "sghmc", "hmc"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Default directories of commands are relative."""
    monkeypatch.chdir(tmp_path)
    undrawn(monkeypatch)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison with a reference, and what the command printed."""
    home, out, err = tmp_path_factory.mktemp("compared") / "a", StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        unpainted(patch)
        assert main(["compare", *TINY, "--directory", str(home)]) == 0
    return home, out.getvalue(), err.getvalue()


def numbers(directory):
    return json.loads((Path(directory) / "results.json").read_text())


@pytest.mark.slow
def test_samplers_and_the_reference_are_in_the_table(capsys, compared):
    home, out, err = compared
    shutil.copytree(home, "a")
    actual = numbers("a")["methods"]
    assert list(actual) == ["ensemble", "sghmc", "hmc"]
    for label, name in (("deep ensemble", "ensemble"), ("SGHMC", "sghmc"), ("HMC", "hmc")):
        row = next(line for line in out.splitlines() if line.strip().startswith(label))
        assert f"{actual[name]['fidelity']['total_variation']:.3f}" in row
        assert f"{100 * actual[name]['fidelity']['agreement']:.1f} %" in row
    assert "fitting: SGHMC, 2 chains × 8 steps" in err
    assert "fitting: HMC, 2 chains × 12 iterations" in err
    assert "how near another sample of" in " ".join(out.split())
    # the fit is one that the other commands read
    setup, posterior = load_run(Path("a/fits/hmc"))
    probs = tb.predict(posterior, setup.data.test.inputs).probs
    clean = tb.evaluate(tb.Predictive.from_probs(probs), setup.data.test.targets).metrics
    assert clean["nll"] == pytest.approx(actual["hmc"]["clean"]["nll"], rel=1e-4)
    assert main(["diagnose", "a/fits/hmc", "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["draws"] == numbers("a")["reference"]["draws"] == 8
    assert judged["spaces"] == numbers("a")["reference"]["spaces"]


def test_settings_of_samplers_are_written_and_run_again():
    options = ["--methods", "csghmc", "--csghmc.schedule", "Cycles", "--csghmc.schedule.length", "4"]
    options += ["--csghmc.steps", "8", "--csghmc.burn_in", "0", "--csghmc.thin", "1", "--csghmc.step_size", "1e-4"]
    assert main(["compare", *TINY, *options, "--directory", "a"]) == 0
    written = read_config(Path("a/config.yaml"))["methods"]["csghmc"]["init_args"]
    assert written["schedule"]["class_path"] == "torchbayes.Cycles"
    assert written["schedule"]["init_args"]["length"] == 4
    assert main(["compare", "--config", "a/config.yaml", "--directory", "b"]) == 0
    assert numbers("b") == numbers("a")
    assert Path("b/config.yaml").read_text() == Path("a/config.yaml").read_text()


@pytest.mark.slow
def test_a_reference_is_used_again(capsys, compared):
    shutil.copytree(compared[0], "a")
    again = [*TINY, "--methods", "ensemble", "--reference", "a/fits/hmc", "--directory", "b"]
    assert main(["compare", *again]) == 0
    one, other = numbers("a")["methods"], numbers("b")["methods"]
    assert other["ensemble"] == one["ensemble"]
    assert other["reference"]["fidelity"] == one["hmc"]["fidelity"]
    capsys.readouterr()
    assert main(["compare", *again[:-1], "c", "--prior_scale", "0.5"]) == 2
    said = [line for line in capsys.readouterr().err.strip().splitlines() if "have no effect" not in line]
    assert len(said) == 1
    assert "`prior_scale` is 1.0 there and 0.5 here" in said[0]
    assert not Path("c").exists()


def test_the_usual_methods_are_those_of_the_data_set():
    with_hmc = {"digits", "two_moons", "toy_sine"}
    without = {"cifar10", "mnist", "fashion_mnist", "kmnist", "uci_protein", "uci_yacht", "toy_drbayes"}
    for name in with_hmc | without:
        usual = defaults(name)
        assert ("hmc" in usual.methods) == (name in with_hmc)
        chains = {usual["sgld"].chains, usual["sghmc"].chains, usual["csghmc"].chains}
        assert len(chains) == 1
        for sampler in (usual["hmc"], usual["sgld"], usual["sghmc"], usual["csghmc"]):
            assert len(retained_steps(sampler, sampler.steps)) >= 8
        assert len(retained_steps(usual["sgld"], usual["sgld"].steps)) == len(
            retained_steps(usual["csghmc"], usual["csghmc"].steps)
        )


# --- any method, several times

SMALL = ["--data", "two_moons", "--train_size", "40", "--network_settings.hidden", "[8]", "--draws", "4"]
SMALL += ["--ensemble.members", "2", "--ensemble.epochs", "4", "--multiswag.members", "2", "--multiswag.epochs", "4"]
YAML = """
data: two_moons
train_size: 40
network_settings: {hidden: [8]}
draws: 4
multiswag: {members: 2, epochs: 4, rank: 2}
methods:
  single: {epochs: 3}
  swag:
  wide swag:
    class_path: SWAG
    init_args: {averaging_lr: 0.2, epochs: 4, rank: 2}
  nuts: {steps: 8, burn_in: 4, chains: 1, step_size: 0.01, max_doublings: 2}
  mine: tests.catalogue.mine:Mine
"""


def test_a_mapping_in_a_file_names_any_method(capsys):
    Path("mine.yaml").write_text(YAML)
    assert main(["compare", "--config", "mine.yaml", "--trust", "--mine.epochs", "2", "--directory", "a"]) == 0
    actual = read_config(Path("a/config.yaml"))["methods"]
    assert list(actual) == list(numbers("a")["methods"]) == ["single", "swag", "wide swag", "nuts", "mine"]
    assert actual["single"]["init_args"]["epochs"] == 3
    assert actual["swag"]["init_args"]["rank"] == 2  # as MultiSWAG, with one member
    assert actual["wide swag"]["init_args"]["averaging_lr"] == 0.2
    assert actual["mine"] == {
        "class_path": "tests.catalogue.mine.Mine",
        "init_args": {
            "members": 1,
            "epochs": 2,
            "batch_size": 200,
            "lr": 0.01,
            "plan": actual["swag"]["init_args"]["plan"],
        },
    }
    before = numbers("a")
    assert main(["compare", "--directory", "a", "--resume", "--trust"]) == 0
    assert numbers("a") == before
    capsys.readouterr()
    assert main(["compare", "--config", "a/config.yaml", "--trust", "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["methods"] == actual  # which is run again as another one, above


def test_arguments_name_any_method(capsys):
    methods = ["--methods", "swag", "wide=swag", "tests.catalogue.mine:Mine", "two=MAP"]
    options = [
        "--wide.averaging_lr",
        "0.3",
        "--wide.epochs",
        "4",
        "--Mine.lr",
        "0.1",
        "--two.members=2",
        "--two.epochs=4",
    ]
    assert main(["compare", *SMALL, *methods, *options, "--print_config"]) == 0
    actual = yaml.safe_load(capsys.readouterr().out)["methods"]
    assert list(actual) == ["swag", "wide", "Mine", "two"]
    assert actual["wide"]["init_args"]["averaging_lr"] == 0.3
    assert actual["wide"]["init_args"]["members"] == 1
    assert actual["Mine"]["init_args"]["lr"] == 0.1
    assert actual["two"]["init_args"]["members"] == 2
    assert actual["two"]["class_path"] == "torchbayes.MAP"
    assert not list(Path().iterdir())


def test_the_first_member_follows_the_settings_of_the_ensemble(capsys):
    def printed(*options):
        assert main(["compare", *SMALL, *options, "--print_config"]) == 0
        return yaml.safe_load(capsys.readouterr().out)

    assert printed("--methods", "single", "ensemble")["methods"]["single"] == {"first_of": "ensemble"}
    alone = printed("--methods", "single")["methods"]["single"]["init_args"]
    assert (alone["members"], alone["epochs"]) == (1, 4)
    other = printed("--methods", "single", "ensemble", "--single.epochs", "7")["methods"]["single"]["init_args"]
    assert (other["members"], other["epochs"]) == (1, 7)
    started = printed("--methods", "laplace")
    assert started["starts"]["single"]["init_args"]["epochs"] == 4
    assert "starts" not in printed("--methods", "laplace", "ensemble")


def test_a_comparison_written_in_the_older_form_goes_on():
    assert main(["compare", *SMALL, "--methods", "single", "ensemble", "swag", "--directory", "a"]) == 0
    before, config = numbers("a"), read_config(Path("a/config.yaml"))
    methods = config.pop("methods")
    old = {**config, "ensemble": methods["ensemble"]["init_args"], "multiswag": methods["swag"]["init_args"]}
    old |= {"methods": list(methods)}
    for path, there in [(Path("a/config.yaml"), old), *((p, read_config(p)) for p in Path("a/fits").glob("*/*.yaml"))]:
        for name in ("data_settings", "likelihood_settings", "prior", "prior_settings", "outputs"):
            del there[name]
        path.write_text(yaml.safe_dump(there, sort_keys=False))
    logs = {path: path.read_text() for path in Path("a/fits").glob("*/log.jsonl")}
    with pytest.warns(FileWarning, match=r"config\.yaml has no checksum"):
        assert main(["compare", "--directory", "a", "--resume"]) == 0
    assert numbers("a") == before
    assert {path: path.read_text() for path in logs} == logs
    assert read_config(Path("a/config.yaml"))["methods"] == methods


@pytest.mark.parametrize(
    ("argv", "text", "said"),
    [
        (["--methods", "a=MAPP"], "", "there is no method called 'MAPP'"),
        (["--methods", "NUTS"], "", "there is no method called 'NUTS'. Did you mean nuts?"),
        (["--methods", "hmc=SWAG"], "", "'hmc' is HMC in the catalogue. Choose another name for SWAG: my_hmc=SWAG"),
        (["--methods", "seed=swag"], "", "'seed' is the name of an option"),
        (["--methods", "w=swag", "W=swag"], "", "differ by case or signs alone"),
        (["--methods", "w=swag", "--w.rnak", "3"], "", "there is no option --w.rnak. Did you mean --w.rank"),
        (["--methods", "w=nowhere:Mine"], "", "there is no module nowhere"),
        (["--methods", "w=tests.catalogue.mine:build"], "", "must be the settings of a method"),
        (["--trust"], "methods: {w: {class_path: nowhere.Mine}}", "there is no module nowhere"),
        ([], "methods: {w: {class_path: nowhere.Mine}}", "names code that would run here: nowhere.Mine (`methods.w`)"),
        ([], "methods: {w: {class_path: 3}}", "must be a name, or a mapping"),
        ([], "methods: {w: {class_path: SWAG, init_args: 3}}", "must be a name, or a mapping"),
        (
            [],
            "methods: {w: {class_path: SWAG, init_args: {rnak: 3}}}",
            "`--w` has no setting 'rnak'. Did you mean rank",
        ),
        ([], "methods: {swag: {rank: two}}", "`--swag.rank` must be a whole number; got 'two'."),
        ([], "methods: {swag: {class_path: MAP}}", "'swag' is SWAG in the catalogue"),
        ([], "methods: 3", "must be a mapping from names to settings, or a list of names; got 3"),
        ([], "methods: {'': swag}", "must be letters, digits, spaces"),
        ([], "methods: {w: swag, W: swag}", "differ by case or signs alone"),
        ([], "nonsense: 3", "there is no option 'nonsense', which the configuration sets"),
    ],
)
def test_methods_that_are_none_are_one_line(capsys, argv, text, said):
    Path("c.yaml").write_text(f"data: two_moons\n{text}\n")
    assert main(["compare", "--config", "c.yaml", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert [path.name for path in Path().iterdir()] == ["c.yaml"]


def test_fit_takes_what_users_bring(capsys):
    own = "tests.catalogue.mine"
    argv = ["fit", "--data", f"{own}:load", "--data_settings.kind", "classes", "--network", f"{own}:build"]
    argv += ["--network_settings.width", "4", "--prior", "laplace", "--prior_scale", "0.7", "--directory", "a"]
    assert main([*argv, "--method", f"{own}:WIDE", "--method.rank", "3"]) == 0
    setup, posterior = load_run(Path("a"), trust=True)
    assert setup.data.classes == ("no", "yes")
    assert {segment.prior for segment in setup.model.prior.segments} == {tb.priors.Laplace(0.7)}
    assert isinstance(posterior, tb.Gaussian)
    assert read_config(Path("a/config.yaml"))["method"]["init_args"]["averaging_lr"] == 0.2
    assert main([*argv[:-1], "b", f"--method={own}:Mine", "--method.epochs", "2"]) == 0
    assert main(["fit", "--directory", "b", "--resume", "--trust"]) == 0
    assert main(["fit", "--config", "b/config.yaml", "--trust", "--directory", "c"]) == 0
    one, other = (load_run(Path(name), trust=True)[1].sample(1) for name in "bc")
    assert torch.equal(one, other)
    capsys.readouterr()
    for method, said in ((f"{own}:build", "must be the settings of a method"), (f"{own}:Mein", "Did you mean Mine")):
        assert main([*argv[:-1], "d", "--method", method]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # too short a run to learn anything
def test_modules_of_the_folder_are_found_by_the_shell_command(monkeypatch):
    """Where the path does not begin with the folder, as it does not for an installed command."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    Path("here_alone.py").write_text(Path(mine.__file__).read_text())
    try:
        fit = ["fit", "--data", "here_alone:load", "--method", "MAP", "--method.epochs", "2", "--directory", "a"]
        assert main(fit) == 0
    finally:
        sys.modules.pop("here_alone", None)
    assert read_config(Path("a/config.yaml"))["data"] == "here_alone:load"


def test_what_can_be_named_is_listed(capsys):
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    for kind, names in {
        "compared": METHODS,
        "likelihoods": LIKELIHOODS,
        "priors": PRIORS,
        "networks": NETWORKS,
    }.items():
        part = said.partition(f"{kind}:\n")[2]
        lines = [line.split()[0] for line in part.splitlines()[: len(names)]]
        assert lines == list(names)

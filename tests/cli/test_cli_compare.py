"""Comparisons with samplers and a reference, from the command line."""

import json
from pathlib import Path

import pytest

import torchbayes as tb
from torchbayes.catalogue.config import load_run, read_config
from torchbayes.catalogue.data import defaults
from torchbayes.cli import main

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


def numbers(directory):
    return json.loads((Path(directory) / "results.json").read_text())


@pytest.mark.slow
def test_samplers_and_the_reference_are_in_the_table(capsys):
    assert main(["compare", *TINY, "--directory", "a"]) == 0
    said = capsys.readouterr()
    found = numbers("a")["methods"]
    assert list(found) == ["ensemble", "sghmc", "hmc"]
    for label, name in (("deep ensemble", "ensemble"), ("SGHMC", "sghmc"), ("HMC", "hmc")):
        row = next(line for line in said.out.splitlines() if line.strip().startswith(label))
        assert f"{found[name]['fidelity']['total_variation']:.3f}" in row
        assert f"{100 * found[name]['fidelity']['agreement']:.1f} %" in row
    assert "fitting: SGHMC, 2 chains × 8 steps" in said.err
    assert "fitting: HMC, 2 chains × 12 iterations" in said.err
    assert "each of its 2 chains against the others" in " ".join(said.out.split())
    # the fit is one that the other commands read
    setup, posterior = load_run(Path("a/fits/hmc"))
    probs = tb.predict(posterior, setup.data.test.inputs).probs
    clean = tb.evaluate(tb.Predictive.from_probs(probs), setup.data.test.targets).metrics
    assert clean["nll"] == pytest.approx(found["hmc"]["clean"]["nll"], rel=1e-4)
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
def test_a_reference_is_used_again(capsys):
    assert main(["compare", *TINY, "--directory", "a"]) == 0
    again = [*TINY, "--methods", "ensemble", "--reference", "a/fits/hmc", "--directory", "b"]
    assert main(["compare", *again]) == 0
    one, other = numbers("a")["methods"], numbers("b")["methods"]
    assert other["ensemble"] == one["ensemble"]
    assert other["reference"]["fidelity"] == one["hmc"]["fidelity"]
    assert main(["compare", "--directory", "b", "--resume"]) == 0
    assert numbers("b")["methods"] == other
    capsys.readouterr()
    assert main(["compare", *again[:-1], "c", "--prior_scale", "0.5"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
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
            assert sampler.kept(sampler.steps) >= 8
        assert usual["sgld"].kept(usual["sgld"].steps) == usual["csghmc"].kept(usual["csghmc"].steps)

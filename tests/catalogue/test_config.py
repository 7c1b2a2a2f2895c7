"""What a run is made of: defaults, models by name, and runs that are written down and read back."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import torchbayes as tb
from torchbayes import data
from torchbayes.catalogue.config import describe, entries, fit_run, load_run, read_config, write_config
from torchbayes.catalogue.data import defaults
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.comparison import compare
from torchbayes.comparison import evidence as network_evidence
from torchbayes.comparison.settings import Comparison
from torchbayes.model.priors import LogInverseChi

MOONS = Problem("two_moons", "mlp", {"hidden": [8]}, prior_scale=2.0)
SINE = Problem("toy_sine", "mlp", {"hidden": [8]}, "gaussian", train_size=20)


@pytest.mark.parametrize("name", [name for name in data.names() if name != "imdb"])
def test_every_data_set_has_settings_with_equal_budgets(name):
    actual = defaults(name)
    budgets = [(m.members, m.epochs, m.batch_size, m.optimizer) for m in (actual["ensemble"], actual["multiswag"])]
    assert budgets[0] == budgets[1]
    assert actual.problem.data == name
    assert {actual["ensemble"].plan, actual["multiswag"].plan} <= {
        "native",
        "loop",
        "vmap",
    }  # never measured: reruns are exact


def test_texts_have_no_settings_and_near_names_are_suggested():
    with pytest.raises(ValueError, match="holds texts"):
        defaults("imdb")
    with pytest.raises(ValueError, match="Did you mean digits"):
        defaults("digit")


@pytest.mark.parametrize(("likelihood", "outputs"), [("gaussian", 1), ("heteroscedastic", 2)])
def test_the_model_has_the_outputs_and_the_prior_that_were_named(likelihood, outputs):
    setup = dataclasses.replace(SINE, likelihood=likelihood, prior_scale=0.5).setup()
    model, inputs = setup.model, setup.data.train.inputs[:3]
    assert model.network(model.network.weights(), inputs).shape == (3, outputs)
    weights = torch.linspace(-1, 1, model.layout.size, dtype=torch.float64)
    network = slice(0, model.network.layout.size)
    normal = torch.distributions.Normal(0.0, 0.5).log_prob(weights[network]).sum()
    learned = LogInverseChi(2.0, 0.1).log_prob(weights[network.stop :]).sum()
    torch.testing.assert_close(model.log_prior(weights), normal + learned)


def test_target_scale_is_the_spread_of_the_raw_training_targets():
    setup = SINE.setup()
    assert setup.data.target_standardise is not None
    raw = setup.data.target_standardise.inverse(setup.data.train.targets).numpy()
    assert setup.target_scale == pytest.approx(float(np.std(raw)), rel=1e-5)
    assert MOONS.setup().target_scale == 1.0


def test_threads_are_set_for_the_work_and_put_back():
    before = torch.get_num_threads()
    with dataclasses.replace(MOONS, threads=before + 1).threading():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="at least 1; got 0"), dataclasses.replace(MOONS, threads=0).threading():
        pass


def test_likelihood_and_data_must_go_together():
    with pytest.raises(ValueError, match="must be bernoulli, categorical or probit; got 'gaussian'"):
        dataclasses.replace(MOONS, likelihood="gaussian").setup()
    with pytest.raises(ValueError, match="gaussian, heteroscedastic or student_t"):
        dataclasses.replace(SINE, likelihood="categorical").setup()


def test_settings_are_described_with_their_class():
    method = tb.SWAG(members=3, optimizer=tb.Adam(0.02, betas=(0.8, 0.9)))
    actual = yaml.safe_load(yaml.safe_dump(describe(method)))
    assert actual["class_path"] == "torchbayes.SWAG"
    optimizer = actual["init_args"].pop("optimizer")
    betas = tuple(optimizer["init_args"].pop("betas"))
    assert tb.Adam(betas=betas, **optimizer["init_args"]) == method.optimizer
    assert tb.SWAG(optimizer=method.optimizer, **actual["init_args"]) == method


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # too short a run to learn anything
@pytest.mark.parametrize("method", [tb.MAP(2, epochs=3, batch_size=64), tb.SWAG(2, epochs=4, batch_size=64, rank=2)])
def test_a_run_read_back_predicts_the_same(tmp_path, method):
    setup = MOONS.setup()
    posterior = fit_run(setup, method, tmp_path / "run", seed=3, callbacks=())
    again, loaded = load_run(tmp_path / "run")
    assert again.problem == MOONS
    draws = 2 * method.members
    assert torch.equal(loaded.sample(draws, seed=1), posterior.sample(draws, seed=1))
    inputs = setup.data.test.inputs[:50]
    assert torch.equal(tb.predict(loaded, inputs).probs, tb.predict(posterior, inputs).probs)
    # the same fit without a directory, by hand
    by_hand = tb.fit(setup.model, tuple(setup.data.train), method, seed=3, callbacks=())
    assert torch.equal(by_hand.sample(draws, seed=1), posterior.sample(draws, seed=1))


@pytest.mark.slow
def test_batch_norm_of_a_run_read_back_is_recalibrated_on_the_same_rows(tmp_path):
    problem = Problem("digits", "preresnet20", train_size=12)
    setup = problem.setup()
    method = tb.SWAG(1, epochs=2, batch_size=12, burn_in=0.0, rank=2, optimizer=tb.SGD(0.01))
    posterior = fit_run(setup, method, tmp_path, callbacks=())
    _, loaded = load_run(tmp_path)
    inputs = setup.data.test.inputs[:10]
    expected = tb.predict(posterior, inputs, draws=2).probs
    torch.testing.assert_close(tb.predict(loaded, inputs, draws=2).probs, expected, rtol=0, atol=0)
    assert math.isclose(float(expected.sum()), 10.0, rel_tol=1e-5)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # too short a run to learn anything
def test_a_run_is_not_overwritten_and_not_continued_with_other_settings(tmp_path):
    setup, method = MOONS.setup(), tb.MAP(epochs=2, batch_size=100)
    first = fit_run(setup, method, tmp_path, callbacks=())
    with pytest.raises(ValueError, match="already holds a run"):
        fit_run(setup, method, tmp_path, callbacks=())
    with pytest.raises(ValueError, match="another seed"):
        fit_run(setup, method, tmp_path, seed=1, resume=True, callbacks=())
    with pytest.raises(ValueError, match="another method"):
        fit_run(setup, dataclasses.replace(method, epochs=3), tmp_path, resume=True, callbacks=())
    again = fit_run(setup, method, tmp_path, resume=True, callbacks=())
    assert torch.equal(again.sample(1), first.sample(1))


def test_what_is_not_a_finished_run_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_run(tmp_path)
    write_config(tmp_path, {**entries(MOONS), "method": describe(tb.MAP()), "seed": 0})
    with pytest.raises(FileNotFoundError, match="Finish it: torchbayes fit"):
        load_run(tmp_path)
    write_config(tmp_path, entries(MOONS))
    with pytest.raises(ValueError, match="not the directory of one fit"):
        load_run(tmp_path)


@pytest.mark.parametrize(("text", "said"), [("a: [", "is not YAML"), ("- 1\n", "must hold names and values; got list")])
def test_a_damaged_configuration_is_said(tmp_path, text, said):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_config(tmp_path / "config.yaml")


def numbers_of_numpy(*numbers: Any) -> tuple[Any, ...]:
    return numbers


def test_numbers_of_numpy_are_written_and_read_as_plain_ones(tmp_path):
    settings = {"hidden": np.array([4, 3]), "activation": "tanh"}
    scale, size, threads, seed = numbers_of_numpy(np.float32(0.5), np.int64(20), np.int64(1), np.int64(3))
    problem = Problem("two_moons", "mlp", settings, prior_scale=scale, train_size=size, threads=threads)
    plain = Problem("two_moons", "mlp", {**settings, "hidden": (4, 3)}, prior_scale=0.5, train_size=20, threads=1)
    assert problem == plain
    fitted = fit_run(problem.setup(), tb.MAP(epochs=1), tmp_path / "run", seed=seed, callbacks=())
    config = read_config(tmp_path / "run" / "config.yaml")
    assert config["network_settings"] == {"hidden": [4, 3], "activation": "tanh"}
    assert [config[name] for name in ("prior_scale", "train_size", "threads", "seed")] == [0.5, 20, 1, 3]
    again = fit_run(plain.setup(), tb.MAP(epochs=1), tmp_path / "run", seed=3, resume=True, callbacks=())
    assert torch.equal(again.tensors()["weights_MD"], fitted.tensors()["weights_MD"])


def test_settings_of_experiments_are_plain_too(tmp_path):
    rows, rounds = numbers_of_numpy(np.int64(10), np.int64(1))
    comparison = Comparison(MOONS, {"single": tb.MAP()}, rows=rows)
    write_config(tmp_path / "a", compare.configuration(comparison))
    assert read_config(tmp_path / "a" / "config.yaml")["rows"] == 10
    write_config(tmp_path / "b", network_evidence.Settings(MOONS, tb.MAP(), ("mlp",), rounds=rounds).config())
    assert read_config(tmp_path / "b" / "config.yaml")["rounds"] == 1


@pytest.mark.parametrize(
    "device", ["cpu:", "cpu:7", "cuda:", "cuda:01", "cuda:١", "cuda:" + "9" * 5000, "mps:1", "CPU"]
)
def test_devices_that_no_machine_has_are_refused(device):
    with pytest.raises(ValueError, match="`device` must be auto, cpu, cuda, cuda:NUMBER or mps; got"):
        _ = dataclasses.replace(MOONS, device=device).place


def test_the_only_cpu_runs_alike_by_its_number():
    numbered = dataclasses.replace(MOONS, device="cpu:0")
    assert numbered.place == "cpu"
    assert usual_plan(numbered) == usual_plan(dataclasses.replace(MOONS, device="cpu"))

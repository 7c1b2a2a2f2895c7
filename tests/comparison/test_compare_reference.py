"""Comparisons with a reference: fidelity recomputed, the floor, references from directories, regressions."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm, wasserstein_distance
from tests.comparison.references import DIGITS, SINE
from tests.pictures import unpainted
from torch import nn

import torchbayes as tb
from torchbayes.catalogue.config import fit_run
from torchbayes.catalogue.problem import Problem
from torchbayes.comparison import fidelity as compare_fidelity
from torchbayes.comparison.compare import compare, configuration
from torchbayes.comparison.fidelity import Fidelity, averaged, floors, halved, mean, row_distances
from torchbayes.comparison.reference import load_reference, quality, spread, worth
from torchbayes.comparison.report import procedure
from torchbayes.comparison.tables import caption, fidelity_table, table
from torchbayes.data import Pair, corrupt_data
from torchbayes.metrics.fidelity import floor
from torchbayes.posteriors import Functions
from torchbayes.randomness.seeds import Purpose, mix

# a few epochs do not train
pytestmark = pytest.mark.filterwarnings("ignore:.*than under a constant:torchbayes.ProblemWarning")


def some(comparison, *names, **changes):
    """The same comparison of fewer methods."""
    return replace(comparison, methods={name: comparison.methods[name] for name in names}, **changes)


@pytest.fixture
def digits(digits_and_hmc):
    return digits_and_hmc


@pytest.fixture
def sine(sine_and_hmc):
    return sine_and_hmc


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    unpainted(monkeypatch)


def average(functions, inputs, chain=None):
    """Averaged class probabilities by hand, float64; those of one chain if wanted."""
    probs = functions(inputs).double().softmax(-1).numpy()
    return (probs if chain is None else probs[chain::3]).mean(0)


def close(p, q):
    return {"agreement": np.mean(p.argmax(1) == q.argmax(1)), "total_variation": np.abs(p - q).sum(1).mean() / 2}


# --- numbers


def test_fidelity_is_that_of_averages_on_the_same_rows(digits):
    _, actual = digits
    inputs = actual.setup.data.test.inputs
    reference = average(actual.outcomes["hmc"].functions, inputs)
    for name in ("ensemble", "sghmc"):
        outcome = actual.outcomes[name]
        expected = close(average(outcome.functions, inputs), reference)
        assert outcome.fidelity.clean == pytest.approx(expected, abs=1e-6)
        assert 0 < expected["total_variation"] < 1
        assert outcome.fidelity.halves == []


def test_fidelity_under_corruption_is_a_mean_over_corruptions(digits):
    _, actual = digits
    for severity in (1, 5):
        expected = []
        for name in DIGITS.corruptions:
            inputs = corrupt_data(actual.setup.data, name, severity, seed=0, limit=50).inputs
            one, two = (average(actual.outcomes[m].functions, inputs) for m in ("ensemble", "hmc"))
            expected.append(close(one, two))
        fidelity = actual.outcomes["ensemble"].fidelity
        for metric in ("agreement", "total_variation"):
            assert fidelity.at(severity, metric) == pytest.approx(np.mean([e[metric] for e in expected]), abs=1e-6)


def nearer(p, q, share):
    """Closeness of two parts of a reference, brought to two samples of all of it: differences go with the root."""
    actual = close(p, q)
    apart = 1 - actual["agreement"], actual["total_variation"]
    return {"agreement": 1 - np.sqrt(share) * apart[0], "total_variation": np.sqrt(share) * apart[1]}


def test_the_floor_is_one_part_of_the_chains_against_the_other(digits):
    _, actual = digits
    functions, fidelity = actual.outcomes["hmc"].functions, actual.outcomes["hmc"].fidelity
    assert functions.draws == 15

    def expected(inputs):
        chains = np.stack([average(functions, inputs, chain) for chain in range(3)])
        return [nearer(chains[m], np.delete(chains, m, axis=0).mean(0), 4 / 9) for m in range(3)]

    halves = expected(actual.setup.data.test.inputs)
    for one, other in zip(fidelity.halves, halves, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    assert fidelity.clean == pytest.approx({k: np.mean([c[k] for c in halves]) for k in halves[0]}, abs=1e-6)
    parts = [corrupt_data(actual.setup.data, n, 5, seed=0, limit=50).inputs for n in DIGITS.corruptions]
    shifted = [c["total_variation"] for inputs in parts for c in expected(inputs)]
    assert fidelity.at(5, "total_variation") == pytest.approx(np.mean(shifted), abs=1e-6)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # too short a run to learn anything
@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "likelihood", "drawn", "clean"),
    [
        ("two_moons", "bernoulli", {"surface", "reliability"}, {"agreement", "total_variation"}),
        pytest.param(  # compared as the regression
            "tests.catalogue.mine:load", "poisson", {"band"}, {"wasserstein1"}, marks=pytest.mark.study
        ),
    ],
)
def test_two_classes_of_one_output_and_counts_are_compared(tmp_path, data, likelihood, drawn, clean):
    settings = {"kind": "counts", "columns": 1} if likelihood == "poisson" else {}
    problem = Problem(data, "mlp", {"hidden": [6]}, likelihood, data_settings=settings)
    actual = compare(replace(SINE, problem=problem), tmp_path, callbacks=())
    assert {path.stem for path in tmp_path.glob("*.png")} == drawn | {"glance", "rows", "fidelity", "reference_rhat"}
    for outcome in actual.outcomes.values():
        assert outcome.fidelity.clean.keys() == clean
    if likelihood == "bernoulli":
        functions = actual.outcomes["hmc"].functions
        assert isinstance(functions, Functions)
        drawn_probs = functions(actual.setup.data.test.inputs).double().sigmoid().numpy()
        chains = np.stack([drawn_probs[chain::3].mean(0) for chain in range(3)])
        both = np.concatenate([1 - chains, chains], axis=-1)
        expected = [nearer(both[m], np.delete(both, m, axis=0).mean(0), 4 / 9) for m in range(3)]
        for one, other in zip(actual.outcomes["hmc"].fidelity.halves, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-6)


def test_the_floor_of_known_chains():
    certain = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    actual = floors(certain)
    # the first two see (½, ½) in the others, whose top class is the first; the last sees (1, 0)
    expected = [{"agreement": 1.0, "total_variation": 1 / 3}] * 2 + [{"agreement": 1 / 3, "total_variation": 2 / 3}]
    assert [pytest.approx(one) for one in expected] == actual
    assert mean(actual) == pytest.approx({"agreement": 7 / 9, "total_variation": 4 / 9})
    same = floors(torch.full((4, 5, 2), 0.5, dtype=torch.float64))
    assert same == [{"agreement": 1.0, "total_variation": 0.0}] * 2
    assert floors(certain[:1]) == []
    assert mean([]) == {}


def test_chains_are_halved_once_in_every_way_around_the_circle():
    assert halved(1) == []
    assert halved(2) == [([0], [1])]
    assert halved(3) == [([0], [1, 2]), ([1], [0, 2]), ([2], [0, 1])]
    assert halved(4) == [([0, 1], [2, 3]), ([1, 2], [0, 3])]
    assert halved(5)[4] == ([0, 4], [1, 2, 3])


@pytest.mark.parametrize("chains", [2, 3, 4, 7])
def test_the_floor_is_what_two_samples_of_that_size_are_apart(chains):
    """Independent draws of class probabilities: the floor of one sample, and the distance of many pairs of samples."""
    source = np.random.default_rng(chains)
    centre = source.dirichlet(np.ones(4), size=200)

    def sample():
        draws = source.dirichlet(np.ones(4), size=(chains, 30, 200)) * 0.2 + 0.8 * centre
        return draws.mean(1)

    apart = np.mean([close(sample().mean(0), sample().mean(0))["total_variation"] for _ in range(20)])
    actual = [mean(floors(torch.from_numpy(sample())))["total_variation"] for _ in range(20)]
    assert np.mean(actual) == pytest.approx(apart, rel=0.03)


def test_what_a_measure_draws_besides_stays_in_its_floor():
    """With s the distance of samples of one law, d² − s² is that of averages, and goes with the number of chains."""
    assert floor({"wasserstein1": 5.0}, (2, 2), same={"wasserstein1": 3.0}) == {
        "wasserstein1": pytest.approx(np.sqrt(9 + 16 / 2))
    }
    assert floor({"wasserstein1": 2.9}, (1, 2), same={"wasserstein1": 3.0}) == {"wasserstein1": 3.0}


def constants(means, scale):
    """Functions that are constant, with known noise: draw s predicts N(means[s], scale²)."""
    model = tb.Model(nn.Linear(1, 1), tb.likelihoods.Gaussian(scale), tb.priors.Normal(1.0))
    weights = torch.tensor([[0.0, m] for m in means])
    assert list(model.layout.names) == ["weight", "bias"]
    return Functions(model, weights)


def distances(functions, reference, inputs, *, chains, **more):
    return averaged(row_distances(functions, reference, inputs, chains=chains, **more), reference, chains)


def test_distances_of_known_normals():
    functions = {"near": constants([0.0], 1.0), "far": constants([3.0], 1.0), "hmc": constants([0.0, 1.0] * 2, 1.0)}
    actual = distances(functions, "hmc", torch.zeros(2, 1), chains=2, scale=10.0, seed=3)
    far = 10 * 2.5  # every quantile of the mixture lies below that of N(3, 1), so the means tell the distance
    assert actual["far"][0]["wasserstein1"] == pytest.approx(far, rel=0.02)
    x = np.linspace(-8, 9, 20001)
    mixture = (norm.cdf(x) + norm.cdf(x - 1)) / 2
    near = 10 * np.trapezoid(np.abs(norm.cdf(x) - mixture), x)
    assert actual["near"][0]["wasserstein1"] == pytest.approx(near, abs=10 * 4 / np.sqrt(compare_fidelity.SAMPLES))
    # chain 0 has the draws at 0, chain 1 those at 1
    assert [c["wasserstein1"] for c in actual["hmc"]] == pytest.approx([10.0 / np.sqrt(2)], rel=0.1)
    assert distances({"hmc": functions["hmc"]}, "hmc", torch.zeros(2, 1), chains=1, scale=1.0, seed=0) == {"hmc": []}


def test_distances_do_not_depend_on_how_rows_are_split(sine, monkeypatch):
    _, actual = sine
    functions, inputs = {name: o.functions for name, o in actual.outcomes.items()}, actual.setup.data.test.inputs[::8]
    monkeypatch.setattr(compare_fidelity, "SAMPLES", 4000)
    whole = distances(functions, "hmc", inputs, chains=3, scale=1.0, seed=0)
    monkeypatch.setattr(compare_fidelity, "_ROWS", 8)
    parts = distances(functions, "hmc", inputs, chains=3, scale=1.0, seed=0)
    for name, of_method in whole.items():
        for one, other in zip(of_method, parts[name], strict=True):
            assert one["wasserstein1"] == pytest.approx(other["wasserstein1"], rel=0.05)


def test_a_regression_is_compared_by_samples_in_the_targets_own_units(sine):
    home, actual = sine
    inputs, scale = actual.setup.data.test.inputs, actual.setup.target_scale

    def samples(functions, who):
        drawn = tb.predict(functions, inputs).sample(2000, seed=mix(Purpose.DISTANCE, 0, who))
        return drawn[..., 0].double().numpy() * scale

    first, second = (samples(actual.outcomes[name].functions, who) for who, name in enumerate(("ensemble", "hmc")))
    expected = np.mean([wasserstein_distance(first[:, b], second[:, b]) for b in range(len(inputs))])
    assert actual.outcomes["ensemble"].fidelity.clean == {"wasserstein1": pytest.approx(expected, rel=1e-5)}
    assert len(actual.outcomes["hmc"].fidelity.halves) == 3
    assert table(actual.outcomes).columns == ["method", "RMSE", "MAE", "R²", "NLL", "in 95 % interval", "W1 ↓"]
    assert {path.stem for path in home.glob("*.png")} == {"glance", "rows", "band", "fidelity", "reference_rhat"}
    assert "1-Wasserstein distance of predictive samples to those of HMC" in caption(actual.setup, actual.outcomes)


# --- what is left to read


def test_results_report_and_table_hold_the_reference(digits):
    home, actual = digits
    numbers = json.loads((home / "results.json").read_text())
    for name, outcome in actual.outcomes.items():
        held = numbers["methods"][name]["fidelity"]
        assert held["agreement"] == outcome.fidelity.clean["agreement"]
        assert held["severity"]["5"]["total_variation"] == outcome.fidelity.at(5, "total_variation")
    assert len(numbers["methods"]["hmc"]["fidelity"]["halves"]) == 3
    assert numbers["reference"]["draws"] == 5
    assert numbers["reference"]["by_chain"]["acceptance"] == pytest.approx(
        actual.diagnosis.record.acceptance_M.tolist()
    )
    page = actual.report.read_text()
    for name in ("fidelity", "fidelity_severity_agreement", "fidelity_severity_total_variation", "reference_rhat"):
        assert (home / f"{name}.png").exists()
    assert "The row of HMC is the floor: another sample of it, of as many draws." in page
    assert "The reference itself" in page
    made = table(actual.outcomes)
    column = made.columns.index("TV ↓")
    assert [row[column] for row in made.rows] == [o.fidelity.clean["total_variation"] for o in actual.outcomes.values()]
    closer = fidelity_table(actual.outcomes)
    assert closer is not None
    assert closer.rows[0][closer.columns.index("TV at 5")] == actual.outcomes["ensemble"].fidelity.at(
        5, "total_variation"
    )
    said = caption(actual.setup, actual.outcomes, actual.diagnosis)
    assert "how near another sample of HMC, of as many draws, would come" in said
    assert "15 draws kept" in procedure(actual.setup, DIGITS, actual.outcomes)


def test_without_a_reference_nothing_is_said_of_one(tmp_path):
    actual = compare(
        replace(SINE, methods={"single": SINE.methods["single"], "sgld": tb.SGLD(2, 8, 4, plan="vmap", thin=1)}),
        tmp_path,
        callbacks=(),
    )
    assert actual.diagnosis is None
    assert actual.outcomes["sgld"].numbers()["draws"] == 8
    assert actual.outcomes["sgld"].fidelity == Fidelity()
    assert "W1 ↓" not in table(actual.outcomes).columns
    assert "reference" not in json.loads((tmp_path / "results.json").read_text())


def drifting(shift):
    """Draws of two chains of constant functions, the second `shift` away from the first."""
    model = constants([0.0], 1.0).model
    noise = torch.randn(2, 200, 2, generator=torch.Generator().manual_seed(0))
    noise[1, :, 1] += shift
    return tb.Draws(model, noise)


def test_a_reference_that_has_not_converged_is_warned_of():
    inputs = torch.zeros(7, 1)
    actual = tb.diagnose(drifting(0.0), inputs)
    rhat = actual.spaces["means"].rhat.flatten()
    said = worth(actual)
    assert f"at most 1.05 for {100 * float((rhat <= 1.05).double().mean()):.0f} % of its {rhat.numel()}" in said
    assert "Warning" not in said
    said = worth(tb.diagnose(drifting(5.0), inputs))
    assert "has not converged in function space" in said
    assert "at most 1.05 for 0 % of its 7 means" in said


def test_rows_are_spread_over_the_whole():
    rows = Pair(torch.arange(10).unsqueeze(1), torch.arange(10))
    assert spread(rows, 5).targets.tolist() == [0, 2, 4, 6, 8]
    assert spread(rows, 3).targets.tolist() == [0, 3, 6]
    assert spread(rows, 99).targets.tolist() == list(range(10))


# --- where the reference comes from


@pytest.mark.usefixtures("no_pictures")
def test_a_reference_from_a_directory_gives_the_same_numbers(digits, tmp_path):
    home, actual = digits
    given = some(DIGITS, "ensemble", reference=str(home / "fits" / "hmc"))
    again = compare(given, tmp_path, callbacks=())
    assert list(again.outcomes) == ["ensemble", "reference"]
    assert again.outcomes["ensemble"].fidelity == actual.outcomes["ensemble"].fidelity
    assert again.outcomes["reference"].fidelity == actual.outcomes["hmc"].fidelity
    assert again.diagnosis is not None
    assert again.diagnosis.record is not None
    assert configuration(given)["reference"] == str(home / "fits" / "hmc")
    assert not (tmp_path / "fits" / "hmc").exists()


# `test_a_reference_from_a_directory_gives_the_same_numbers` has other methods
@pytest.mark.slow
@pytest.mark.study
@pytest.mark.usefixtures("no_pictures")
def test_hmc_is_compared_with_a_given_reference_like_any_method(digits, tmp_path):
    home, actual = digits
    given = some(DIGITS, "hmc", reference=str(home / "fits" / "hmc"))
    again = compare(given, tmp_path, callbacks=())
    assert again.outcomes["hmc"].fidelity.clean == {"agreement": 1.0, "total_variation": 0.0}
    assert again.outcomes["hmc"].fidelity.halves == []
    assert again.outcomes["reference"].fidelity.clean == actual.outcomes["hmc"].fidelity.clean


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.study)])
def test_any_posterior_can_be_the_reference(tmp_path, members):
    problem = replace(SINE.problem, train_size=20)
    fit_run(problem.setup(), replace(SINE.methods["ensemble"], members=members), tmp_path / "map", callbacks=())
    given = some(SINE, "single", problem=problem, reference=str(tmp_path / "map"))
    actual = compare(given, tmp_path / "out", callbacks=())
    assert actual.diagnosis is None
    # the same seed: the single network is the first member of the reference
    assert actual.outcomes["single"].fidelity.clean["wasserstein1"] < (0.02 if members == 1 else 1)
    assert len(actual.outcomes["reference"].fidelity.halves) == (0 if members == 1 else 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prior_scale": 0.5}, "`prior_scale` is 1.0 there and 0.5 here"),
        ({"train_size": 100}, "`train_size` is 150 there and 100 here"),
        ({"network_settings": {"hidden": [13]}}, "`network_settings`"),
        ({"network": "small_cnn", "network_settings": {}}, "`network` is mlp there and small_cnn here"),
        ({"split": 1, "temperature": 0.5}, "`split` is 0 there and 1 here; `temperature` is 1.0 there and 0.5 here"),
    ],
)
def test_another_posterior_is_refused_before_fitting(digits, tmp_path, change, said):
    home, _ = digits
    wrong = replace(DIGITS, problem=replace(DIGITS.problem, **change), reference=str(home / "fits" / "hmc"))
    with pytest.raises(ValueError, match="is of another posterior") as error:
        compare(wrong, tmp_path / "out", callbacks=())
    assert said in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_reference_for_another_column_is_refused(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,y1,y2\n" + "".join(f"{k % 7 / 7},{k % 5 / 5},{k % 3 / 3}\n" for k in range(40)))
    problem = Problem(data=str(table), network="linear", likelihood="gaussian", target="y2")
    fit_run(problem.setup(), tb.MAP(epochs=2), tmp_path / "run", seed=0, resume=False, callbacks=())
    asked = replace(DIGITS, problem=problem, reference=str(tmp_path / "run"))
    assert load_reference(asked).members == 1
    with pytest.raises(ValueError, match="`target` is y2 there and y1 here"):
        load_reference(replace(asked, problem=replace(problem, target="y1")))


def test_threads_and_device_do_not_make_another_posterior(digits):
    home, _ = digits
    problem = replace(DIGITS.problem, threads=1, device="cpu")
    posterior = load_reference(replace(DIGITS, problem=problem, reference=str(home / "fits" / "hmc")))
    assert posterior.members == 3


def test_a_directory_of_no_finished_fit_is_said(digits, tmp_path):
    home, _ = digits
    with pytest.raises(ValueError, match="is not the directory of one fit"):
        compare(replace(DIGITS, reference=str(home)), tmp_path / "a", callbacks=())
    with pytest.raises(FileNotFoundError, match="there is no file"):
        compare(replace(DIGITS, reference=str(tmp_path / "b")), tmp_path / "a", callbacks=())


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_reference_is_not_overwritten(sine, tmp_path):
    shutil.copytree(sine[0], tmp_path, dirs_exist_ok=True)
    own = some(SINE, "single", reference=str(tmp_path / "fits" / "hmc"))
    with pytest.raises(ValueError, match="which is the reference"):
        compare(own, tmp_path, overwrite=True, callbacks=())
    assert (tmp_path / "fits" / "hmc" / "draws.bin").exists()
    again = compare(own, tmp_path, resume=True, callbacks=())
    assert list(again.outcomes) == ["single", "reference"]


def test_chains_too_short_to_judge_are_not_judged(tmp_path):
    setup = SINE.problem.setup()
    posterior = fit_run(setup, replace(SINE.methods["hmc"], steps=10, burn_in=4), tmp_path / "run", callbacks=())
    assert quality(setup, posterior, tmp_path / "run") is None


# `test_an_interrupted_comparison_goes_on_where_it_was` resumes fits, and the laws of samplers a run of HMC
@pytest.mark.study
@pytest.mark.usefixtures("no_pictures")
def test_an_interrupted_reference_goes_on_where_it_was(sine, tmp_path):
    home, _ = sine

    def stop(event):
        if event.epochs == 14 and event.epoch == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(SINE, tmp_path, callbacks=(stop,))
    compare(SINE, tmp_path, resume=True, callbacks=())
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads((home / "results.json").read_text())

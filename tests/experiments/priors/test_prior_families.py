"""Families of priors: a tiny run against direct computation, and every part of the verdict from made-up numbers."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes.data import load
from torchbayes.data.text import FIRST_WORD
from torchbayes_experiments.priors import prior_families as room
from torchbayes_experiments.priors.prior_families import (
    EXPERIMENT,
    FAMILIES,
    NARROW,
    PRIORS,
    WIDE,
    FamiliesRecipe,
    Problem,
)

CHAINS = tb.HMC(chains=2, steps=14, burn_in=10, max_leapfrogs=8)
TINY = FamiliesRecipe((
    Problem("digits", "digits", 0.3, (4,), CHAINS, train_size=50, test_rows=40),
    Problem("toy_sine", "sine", 0.5, (3,), CHAINS, noise=0.3, test_rows=30),
))


def test_all_families_have_one_standard_deviation():
    priors = TINY.named_priors(0.4)
    assert tuple(priors) == PRIORS
    for name in FAMILIES:
        assert priors[name].std == pytest.approx(0.4)
        drawn = priors[name].sample((200_000,), torch.Generator().manual_seed(0))
        assert float(drawn.std()) == pytest.approx(0.4, rel=0.02)
    assert priors[NARROW] == tb.priors.Normal(0.2)
    assert priors[WIDE] == tb.priors.Normal(0.8)
    mixture = priors["normal mixture"]
    assert isinstance(mixture, tb.priors.NormalMixture)
    wide, narrow = mixture.scales
    assert wide == pytest.approx(2 * narrow)


def test_presence_marks_the_most_frequent_words():
    first = FIRST_WORD + 1
    ids = torch.tensor([[0, 1, first, first], [2, first + 2, first + 3, first + 9]])
    assert room.presence(ids, 3).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_texts_have_inputs_of_unit_length_from_training_statistics(monkeypatch):
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(FIRST_WORD + 1, FIRST_WORD + 40, (60, 10), generator=source)
    pairs = [tb.data.Pair(part, torch.arange(len(part)) % 2) for part in (ids[:40], ids[40:])]
    digits = load("digits", train_size=40)
    monkeypatch.setattr(room.tb.data, "load", lambda *_, **__: replace(digits, train=pairs[0], test=pairs[1]))
    problem = Problem("imdb", "words", 0.3, (4,), CHAINS, train_size=40, test_rows=15, words=30)
    train, test, units = room.rows_of(problem, seed=0)
    assert train.inputs.shape == (40, 30)
    assert test.inputs.shape == (15, 30)
    assert units == 1
    assert float(train.inputs.square().sum(1).mean()) == pytest.approx(1, rel=1e-5)
    own = room.presence(ids[:40], 30)
    expected = (room.presence(ids[40:55], 30) - own.mean(0)) / own.std(0, correction=0) / math.sqrt(30)
    torch.testing.assert_close(test.inputs, expected, rtol=1e-4, atol=1e-5)


def test_the_split_is_that_of_the_seed():
    assert room.rows_of(TINY.problems[1], seed=1)[0].inputs.equal(load("toy_sine", split=1).train.inputs)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("families")
    return directory, EXPERIMENT.run(TINY, 1, directory)


@pytest.mark.filterwarnings("ignore:this posterior should not be trusted")  # a few iterations sample nothing
@pytest.mark.parametrize("name", ["logistic", WIDE])
def test_scores_are_those_of_a_direct_fit(tiny, name):
    data = load("digits", train_size=50, split=1, seed=1)
    net = tb.networks.build("mlp", data.input_shape, 10, hidden=(4,))
    prior = {"logistic": tb.priors.Logistic(0.3 * math.sqrt(3) / math.pi), WIDE: tb.priors.Normal(0.6)}[name]
    posterior = tb.fit(tb.Model(net, tb.likelihoods.Categorical(), prior), data.train, CHAINS, seed=1, callbacks=())
    expected = tb.evaluate(posterior, tb.data.Pair(*(part[:40] for part in data.test))).metrics
    actual = tiny[1]["digits"][name]
    for key in ("nll", "accuracy", "ece"):
        assert actual[key] == pytest.approx(expected[key], rel=1e-5)
    assert actual["chains"]["draws"] == 4
    assert "rmse" not in actual


@pytest.mark.filterwarnings("ignore:this posterior should not be trusted")  # a few iterations sample nothing
def test_a_regression_has_the_units_of_its_file(tiny):
    data = load("toy_sine", split=1)
    actual = tiny[1]["sine"]["normal"]
    assert set(actual) == {"nll", "rmse", "chains"}
    model = tb.Model(tb.networks.mlp((1,), 1, hidden=(3,)), tb.likelihoods.Gaussian(0.3), tb.priors.Normal(0.5))
    posterior = tb.fit(model, data.train, CHAINS, seed=1, callbacks=())
    means = tb.predict(posterior, data.test.inputs[:30]).outputs_SBK.double().mean(0)
    assert data.target_standardise is not None
    units = float(data.target_standardise.scale)
    error = (means - data.test.targets[:30]).square().mean().sqrt()
    assert actual["rmse"] == pytest.approx(float(error) * units, rel=1e-5)


def test_a_second_call_reads_what_is_there(tiny):
    directory, actual = tiny
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*.json")}
    assert len(before) == 12
    assert room.run(TINY, 1, directory) == actual
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*.json")} == before


def made_up(*, nll=0.01, accuracy=0.005, ece=0.004, rmse=0.02, scales=0.1, rhat=1.02):
    """One seed: scores of a classification and of a regression, whose families differ by the ranges given."""
    health = {
        "functions": {"median": rhat, "ess": 90.0},
        "weights": {"median": 1.3},
        "acceptance": 0.8,
        "leapfrogs": 9.0,
    }
    steps = {name: place / 3 for place, name in enumerate(FAMILIES)} | {NARROW: 0.0, WIDE: 0.0}
    classes, numbers = {}, {}
    for name, step in steps.items():
        far = {NARROW: scales, WIDE: -scales / 2}.get(name, 0.0)
        classes[name] = {"nll": 0.3 + nll * step + far, "accuracy": 0.9 - accuracy * step, "ece": 0.02 + ece * step}
        numbers[name] = {"nll": 3.0 + nll * step + far, "rmse": 5.0 * (1 + rmse * (step - 0.5))}
    return {
        "digits": {name: value | {"chains": health} for name, value in classes.items()},
        "concrete": {name: value | {"chains": health} for name, value in numbers.items()},
    }


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng, results = np.random.default_rng(0), copy.deepcopy(results)
    for one in (one for result in results for scores in result.values() for one in scores.values()):
        for key in ("nll", "accuracy", "ece", "rmse"):
            if key in one:
                one[key] += rng.normal(0, 1e-5)
    for result in results:
        for scores in result.values():
            for one in scores.values():
                one["chains"]["functions"]["median"] += rng.normal(0, 1e-5)
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(nll=0.06)] * 3, "does not hold", 2),
        ([made_up(accuracy=0.03)] * 3, "does not hold", 1),
        ([made_up(ece=0.03)] * 3, "does not hold", 1),
        ([made_up(rmse=0.09)] * 3, "does not hold", 1),
        ([made_up(scales=0.004)] * 3, "does not hold", 2),  # scales differ less than families
        ([made_up(rhat=1.4)] * 3, "inconclusive", 2),
        ([made_up(rhat=math.nan)] * 3, "inconclusive", 2),
        ([made_up()], "inconclusive", 9),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = room.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_the_tables_hold_the_means_and_ranges():
    digits, concrete, chains, published = room.summarise([made_up(nll=0.01), made_up(nll=0.03)]).tables
    assert "| Student t | 0.3200 ± 0.0100 |" in digits.markdown()
    assert "| range over families | 0.0200 ± 0.0100 | 0.0050 ± 0.0000 |" in digits.markdown()
    assert "| 0.100 ± 0.000 |" in concrete.markdown()  # the range of the RMSE, in its units
    assert "| concrete | logistic | 1.020 | 1.300 | 90 | 0.80 | 9 |" in chains.markdown()
    assert "| logistic | 0.869 | 0.304 | 0.024 |" in published.markdown()


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1])
    assert (tmp_path / "figure_2.png").exists()
    recorded = json.loads((tmp_path / "recipe.json").read_text("utf-8"))["recipe"]
    assert [one["data"] for one in recorded["problems"]] == ["digits", "toy_sine"]
    assert recorded["problems"][0]["hmc"]["steps"] == 14
    assert "Izmailov, Vikram, Hoffman and Wilson 2021" in page

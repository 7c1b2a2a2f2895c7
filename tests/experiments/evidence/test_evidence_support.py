"""Support and inductive bias: a tiny run against direct computation, and every verdict from made-up numbers."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes import networks
from torchbayes.data import load
from torchbayes_experiments.evidence import evidence_support as room
from torchbayes_experiments.evidence.evidence_support import EXPERIMENT, SupportRecipe
from torchbayes_experiments.shared.classifiers import shuffled

TINY = SupportRecipe(
    data="digits", networks=("linear", "mlp"), hidden=(6,), train_size=80, epochs=4, again=2, rounds=1, test_rows=50
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("support")
    return directory, EXPERIMENT.run(TINY, 2, directory)


def test_numbers_are_those_of_a_direct_fit(tiny):
    _, actual = tiny
    assert actual["uniform"] == pytest.approx(math.log(0.1))
    data = load("digits", train_size=80, seed=2)
    model = tb.Model(networks.linear(data.input_shape, 10), tb.likelihoods.Categorical(), tb.priors.Normal(0.2))
    train = (data.train.inputs, shuffled(data.train.targets, TINY.noise, seed=2))
    mode = tb.fit(model, train, tb.MAP(1, 4, 100, tb.Adam(5e-3), plan="loop"), seed=2, callbacks=())
    laplace = tb.fit(model, train, tb.Laplace(check_mode=False, prior="model"), start=mode, callbacks=())
    assert isinstance(laplace, tb.LaplacePosterior)
    numbers = actual["noisy labels"]["linear"]
    assert numbers["rounds"][0] == pytest.approx(float(laplace.log_evidence()) / 80, rel=1e-5)
    assert numbers["evidence"] == max(numbers["rounds"])
    assert numbers["weights"] == 650
    assert 0 < numbers["effective"] < 650
    assert numbers["log_likelihood"] > numbers["evidence"]


def test_scores_are_of_the_linearised_predictive_on_true_labels():
    recipe = replace(TINY, rounds=0)
    data = load("digits", train_size=80)
    actual = room.numbers(recipe, data, "linear", share=1.0, seed=0)
    model = tb.Model(networks.linear(data.input_shape, 10), tb.likelihoods.Categorical(), tb.priors.Normal(0.2))
    train = (data.train.inputs, shuffled(data.train.targets, 1.0, seed=0))
    mode = tb.fit(model, train, tb.MAP(1, 4, 100, tb.Adam(5e-3), plan="loop"), callbacks=())
    laplace = tb.fit(model, train, tb.Laplace(check_mode=False, prior="model"), start=mode, callbacks=())
    assert isinstance(laplace, tb.LaplacePosterior)
    test = (data.test.inputs[:50], data.test.targets[:50])
    expected = tb.evaluate(tb.Linearised(laplace), test).metrics
    assert actual["test_nll"] == pytest.approx(expected["nll"], rel=1e-5)
    assert actual["test_accuracy"] == expected["accuracy"]
    assert actual["train_accuracy"] == tb.evaluate(mode, train).metrics["accuracy"]
    assert len(actual["rounds"]) == 1


def test_a_second_call_reads_what_is_there(tiny):
    directory, actual = tiny
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert len(before) == 6
    assert room.run(TINY, 2, directory) == actual
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def made_up(*, linear=-0.4, mlp=-0.35, cnn=-0.15, noisy=-1.3, guess=0.0, away=False):
    """One seed: evidence of each network in structured data; of all of them in noisy and random labels."""

    def numbers(evidence):
        rest = {"log_likelihood": -0.1, "effective": 90.0, "weights": 650, "train_accuracy": 1.0, "test_accuracy": 0.9}
        return {"evidence": evidence, "test_nll": 0.3, "at_mode": not away, **rest}

    def each(values):
        return dict(zip(SupportRecipe().networks, map(numbers, values), strict=True))

    uniform = math.log(0.1)
    random = each([uniform - 0.05, uniform - 0.002, uniform + guess])
    return {
        "uniform": uniform,
        "structured": each([linear, mlp, cnn]),
        "noisy labels": each([noisy] * 3),
        "random labels": random,
    }


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(0)
    results = copy.deepcopy(results)
    for result in results:
        for label in ("structured", "noisy labels", "random labels"):
            for numbers in result[label].values():
                numbers["evidence"] += rng.normal(0, 5e-4)
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(linear=-0.3)] * 3, "does not hold", 1),
        ([made_up(cnn=-0.5)] * 3, "does not hold", 1),
        ([made_up(mlp=m) for m in (-0.41, -0.39, -0.4)], "inconclusive", 1),
        ([made_up(noisy=-0.2)] * 3, "does not hold", 2),  # above what two networks find in clean labels
        ([made_up(noisy=-2.4)] * 3, "does not hold", 3),
        ([made_up(guess=0.1)] * 3, "does not hold", 1),  # evidence in random labels
        ([made_up(away=True)] * 3, "inconclusive", 1),
        ([made_up()], "inconclusive", 12),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = room.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_the_table_holds_the_means():
    actual = room.summarise([made_up(), made_up(linear=-0.6)])
    [table] = actual.tables
    assert "| structured | linear | 650 | −0.500 ± 0.100 | −0.100 ± 0.000 | 90 ± 0 |" in table.markdown()
    assert "have −2.303 a row" in table.caption
    assert len(actual.figures) == 1


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert (tmp_path / "figure_1.png").exists()
    assert "Wilson and Izmailov 2020" in page

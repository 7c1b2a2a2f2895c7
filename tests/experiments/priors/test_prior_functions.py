"""Functions of priors: a tiny run against direct computation, and every part of the verdict from made-up numbers."""

import copy

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes.data import load
from torchbayes_experiments.priors import prior_functions as room
from torchbayes_experiments.priors.prior_functions import EXPERIMENT, Drawn, Fitted, PriorRecipe

DRAWN = Drawn(network="mlp", classes=(0, 1, 7), per_class=10, scales=(0.1, 1.0), draws=20, shown=2)
FITTED = Fitted(
    network="mlp",
    settings=(("hidden", (8,)),),
    train_size=60,
    scales=(0.01, 0.3, 1.0),
    broad=(0.3, 1.0),
    epochs=6,
    batch_size=20,
    test_rows=50,
    draws=3,
)
TINY = PriorRecipe(data="digits", drawn=DRAWN, fitted=FITTED)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prior")
    return directory, EXPERIMENT.run(TINY, 2, directory)


def test_images_are_of_the_classes_and_differ_by_seed():
    rows = load("digits").train
    first, second = (room.chosen(rows, DRAWN, seed=seed) for seed in (0, 1))
    assert first.targets.tolist() == [0] * 10 + [1] * 10 + [7] * 10 == second.targets.tolist()
    assert torch.equal(first.inputs[:10], rows.inputs[rows.targets == 0][:10])
    assert torch.equal(second.inputs[:10], rows.inputs[rows.targets == 0][10:20])


def test_correlations_are_those_of_functions_drawn_directly(tiny):
    images = room.chosen(load("digits").train, DRAWN, seed=2)
    model = tb.Model(tb.networks.build("mlp", (1, 8, 8), 10), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    direct = tb.prior_predictive(model, images.inputs, draws=20, seed=2).correlation
    actual = tiny[1]["drawn"][1]
    assert (actual["network"], actual["scale"]) == ("mlp", 1.0)
    own = [direct[at : at + 10, at : at + 10] for at in (0, 10, 20)]
    within = [float((block.sum() - block.trace()) / 90) for block in own]
    between = [float(direct[a : a + 10, b : b + 10].mean()) for a, b in ((0, 10), (0, 20), (10, 20))]
    assert actual["within"] == pytest.approx(np.mean(within), rel=1e-6)
    assert actual["between"] == pytest.approx(np.mean(between), rel=1e-6)
    largest = [max(between[0], between[1]), max(between[0], between[2]), max(between[1], between[2])]
    assert actual["nearest"] == pytest.approx(min(w - b for w, b in zip(within, largest, strict=True)), rel=1e-5)
    assert actual["labels"] == [0, 0, 1, 1, 7, 7]
    assert actual["map"][0][3] == pytest.approx(float(direct[0, 11]), abs=1e-3)
    assert 0.1 <= actual["confidence"] <= 1


def test_the_linear_model_comes_last(tiny):
    assert [one["network"] for one in tiny[1]["drawn"]] == ["mlp", "mlp", "linear"]


def test_scores_are_those_of_a_direct_fit(tiny):
    data = load("digits", train_size=60, seed=2)
    net = tb.networks.build("mlp", data.input_shape, 10, hidden=(8,))
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(0.3))
    posterior = tb.fit(model, data.train, FITTED.swag(), seed=2, callbacks=())
    test = tb.data.Pair(*(part[:50] for part in data.test))
    expected = tb.evaluate(tb.predict(posterior, test.inputs, draws=3, seed=2), test.targets).metrics
    actual = tiny[1]["fitted"][1]
    assert actual["scale"] == 0.3
    for key in ("nll", "accuracy", "ece"):
        assert actual[key] == pytest.approx(expected[key], rel=1e-5)


def test_a_second_call_reads_what_is_there(tiny):
    directory, actual = tiny
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert len(before) == 6
    assert room.run(TINY, 2, directory) == actual
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def made_up(*, between=0.8, nearest=0.03, wide=0.75, nll=(2.3, 0.15, 0.1, 0.14, 0.2)):
    """One seed: correlations under two scales, and the NLL under five, the middle three in the broad range."""
    own = {"within": 0.87, "nearest": nearest, "confidence": 0.9, "map": np.eye(4).tolist(), "labels": [0, 0, 1, 1]}
    drawn = [
        {"network": "lenet", "scale": 0.1, "between": between, **own},
        {"network": "lenet", "scale": 1.0, "between": wide, **own},
        {"network": "linear", "scale": 1.0, "between": 0.3, **own},
    ]
    rest = {"accuracy": 0.9, "ece": 0.1, "train_nll": 0.1}
    scales = (0.01, 0.1, 0.3, 1.0, 3.0)
    fitted = [{"scale": scale, "nll": value, **rest} for scale, value in zip(scales, nll, strict=True)]
    return {"drawn": drawn, "fitted": fitted, "broad": [0.1, 1.0]}


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(0)
    results = copy.deepcopy(results)
    for result in results:
        for one in result["drawn"]:
            for key in ("within", "between", "nearest"):
                one[key] += rng.normal(0, 1e-4)
        for one in result["fitted"]:
            one["nll"] += rng.normal(0, 1e-4)
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(between=0.9)] * 3, "does not hold", 1),
        ([made_up(nearest=-0.02)] * 3, "does not hold", 2),
        ([made_up(wide=0.82)] * 3, "does not hold", 1),
        ([made_up(nll=(2.3, 0.15, 0.1, 0.5, 0.6))] * 3, "does not hold", 1),  # no broad optimum
        ([made_up(nll=(2.3, 0.15, 0.14, 0.16, 0.1))] * 3, "does not hold", 1),  # the best is outside
        ([made_up(nll=(0.12, 0.15, 0.1, 0.14, 0.2))] * 3, "does not hold", 2),  # no fall
        ([made_up()], "inconclusive", 8),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = room.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_the_tables_hold_the_means():
    drawn, fitted = room.summarise([made_up(between=0.79), made_up(between=0.81)]).tables
    assert "| lenet | 0.1 | 0.870 ± 0.000 | 0.800 ± 0.010 |" in drawn.markdown()
    assert "| linear | 1 |" in drawn.markdown()
    assert "2.300 ± 0.000" in fitted.markdown()


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert (tmp_path / "figure_3.png").exists()
    assert "Wilson and Izmailov 2020" in page

"""Bayes by backprop: a tiny run against direct computation, and every verdict from made-up scores."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes import networks
from torchbayes.data import load
from torchbayes.linalg import Diagonal
from torchbayes.model.priors import Flat, Normal, NormalMixture
from torchbayes.posteriors import Gaussian
from torchbayes_experiments.variational import bayes_by_backprop as room
from torchbayes_experiments.variational.bayes_by_backprop import EXPERIMENT, BackpropRecipe, Entry, Regression

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")  # so short a training
SHORT = tb.MAP(epochs=3, batch_size=50)
BAYES = tb.VI(epochs=3, batch_size=50, optimizer=tb.Adam(3e-3), kl_weight=1.0)
TINY = BackpropRecipe(
    plain=Entry(SHORT, Flat()),
    dropout=Entry(SHORT, Flat(), dropout=0.5),
    gaussian=Entry(BAYES, Normal(0.3)),
    mixture=Entry(BAYES, NormalMixture((1.0, 0.01), (1.0, 3.0))),
    regression=Regression(
        Entry(replace(BAYES, epochs=30), Normal(1.0)),
        Entry(replace(SHORT, epochs=30), Flat()),
        hidden=(5,),
        rows=60,
        places=29,
        draws=20,
    ),
    widths=(7, 5),
    train_size=200,
    data="digits",
    white=2.0,
    draws=3,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("backprop")
    return directory, EXPERIMENT.run(TINY, 3, directory)


def images():
    data = load("digits", train_size=200, seed=3)
    return data.standardise.inverse(data.test.inputs) * 2, data.test.targets


def model_of(width, prior, dropout=0.0):
    network = networks.mlp((1, 8, 8), 10, hidden=(width, width), dropout=dropout)
    return tb.Model(network, tb.likelihoods.Categorical(), prior)


def outputs(model, weights, inputs):
    """Outputs of a plain forward pass through the two hidden layers."""
    views, _ = model.split(weights)
    layers = [name.removesuffix(".weight") for name in views if name.endswith("weight")]
    hidden = inputs.flatten(1)
    for layer in layers:
        hidden = hidden @ views[f"{layer}.weight"].mT + views[f"{layer}.bias"]
        hidden = hidden if layer == layers[-1] else hidden.relu()
    return hidden


def error_of(probs, targets):
    return 100 * float((probs.argmax(-1) != targets).double().mean())


def test_white_pixels_have_the_value_of_the_recipe():
    train, test = room._images(TINY, 3)
    assert len(train.targets) == 200
    assert (float(test.inputs.min()), float(test.inputs.max())) == pytest.approx((0.0, 2.0), abs=1e-6)
    assert tb.experiments.get("bayes_by_backprop").recipe("paper").white == pytest.approx(255 / 126)


@pytest.mark.parametrize("name", ["Gaussian prior", "scale mixture"])
def test_errors_are_those_of_the_saved_posterior(tiny, name):
    directory, actual = tiny
    inputs, targets = images()
    model = model_of(7, TINY.entries[name].prior)
    saved = tb.load(directory / f"7_{name.replace(' ', '_')}" / "posterior.safetensors", model)
    assert isinstance(saved, Gaussian)
    assert isinstance(saved.covariance, Diagonal)
    scores, mean = actual["table"]["7"][name], saved.mean_MD[0]
    scale = saved.covariance.variance_MD[0].sqrt()
    drawn = [outputs(model, weights, inputs).softmax(-1) for weights in saved.sample(3, seed=3)]
    assert scores["error"] == pytest.approx(error_of(torch.stack(drawn).mean(0), targets))
    assert scores["mean_error"] == pytest.approx(error_of(outputs(model, mean, inputs), targets))
    order = (mean.abs() / scale).argsort()
    for share, pruned in zip(TINY.shares, scores["pruned"], strict=True):
        left = mean.clone()
        left[order[: round(share * len(mean))]] = 0
        assert pruned == pytest.approx(error_of(outputs(model, left, inputs), targets))
    assert scores["pruned"][0] == scores["mean_error"]
    assert scores["pruned_average"][0] == scores["error"]
    assert sum(scores["loudness"]) == len(mean)
    decibels = 10 * (mean.abs() / scale).log10()
    middle = sum(scores["loudness"][:80])  # below 0 dB
    assert middle == int((decibels < 0).sum())


def test_networks_are_pruned_by_magnitude_and_predict_with_all_units(tiny):
    directory, actual = tiny
    inputs, targets = images()
    for name, dropout in (("SGD", 0.0), ("dropout", 0.5)):
        model = model_of(7, Flat(), dropout)
        weights = tb.load(directory / f"7_{name}" / "posterior.safetensors", model).sample(1)[0]
        scores = actual["table"]["7"][name]
        assert scores["error"] == pytest.approx(error_of(outputs(model, weights, inputs), targets))
        bound = weights.abs().sort().values[round(0.75 * len(weights))]
        left = torch.where(weights.abs() >= bound, weights, 0)
        assert scores["pruned"][2] == pytest.approx(error_of(outputs(model, left, inputs), targets))
        assert "loudness" not in scores


def test_weights_of_one_signal_are_removed_in_their_order():
    assert room.kept(torch.tensor([1.0, 0.0, 1.0, 1.0]), 0.5).tolist() == [0, 0, 1, 1]
    assert room.kept(torch.ones(3), 0.0).tolist() == [1, 1, 1]


def test_every_method_at_every_width_is_scored_and_a_second_call_goes_on(tiny):
    directory, actual = tiny
    assert list(actual["table"]) == ["7", "5"]
    assert all(list(methods) == list(TINY.entries) for methods in actual["table"].values())
    assert room.run(TINY, 3, directory) == actual
    path = directory / "5_scale_mixture.json"
    before = path.read_bytes()
    path.unlink()
    assert room.run(TINY, 3, directory) == actual
    assert path.read_bytes() == before


@pytest.mark.study  # fits go on as those of `tests/driver`, and widths that are finished are read as in the test above
def test_an_interrupted_fit_goes_on_to_the_same_numbers(tiny, tmp_path, monkeypatch):
    _, actual = tiny
    step, taken = tb.VI.step, []

    def interrupted(self, *args, **settings):
        taken.append(None)
        if len(taken) == 10:
            raise KeyboardInterrupt
        return step(self, *args, **settings)

    monkeypatch.setattr(tb.VI, "step", interrupted)
    narrow = replace(TINY, widths=(5,))
    with pytest.raises(KeyboardInterrupt):
        room.run(narrow, 3, tmp_path)
    assert not (tmp_path / "5_Gaussian_prior.json").exists()
    monkeypatch.setattr(tb.VI, "step", step)
    assert room.run(narrow, 3, tmp_path) == {**actual, "table": {"5": actual["table"]["5"]}}


def test_rows_of_the_curve_follow_its_formula():
    recipe = replace(TINY.regression, noise=1e-9)
    x, y = room.curve(50, 4, of=recipe)
    exact = x + 0.3 * torch.sin(2 * torch.pi * x) + 0.3 * torch.sin(4 * torch.pi * x)
    torch.testing.assert_close(y, exact)
    assert (x >= 0).all()
    assert (x <= 0.5).all()
    noisy = room.curve(4000, 4, of=TINY.regression)
    turn = 2 * torch.pi * noisy[0]
    slope = 1 + 0.6 * torch.pi * turn.cos() + 1.2 * torch.pi * (2 * turn).cos()
    exact = noisy[0] + 0.3 * turn.sin() + 0.3 * (2 * turn).sin()
    noise = ((noisy[1] - exact) / slope)[slope.abs() > 3]  # to first order
    assert float(noise.std()) == pytest.approx(0.02, rel=0.1)


def test_quartiles_of_a_network_are_those_of_its_noise(tiny):
    _, actual = tiny
    curve = actual["regression"]
    low, middle, high = (np.array(line) for line in curve["methods"]["single network"]["quartiles"])
    assert high - middle == pytest.approx(middle - low, abs=2e-5)
    single = curve["methods"]["single network"]
    assert single["inside"] == pytest.approx(single["outside"], rel=1e-4)
    assert single["inside"] == pytest.approx(float((high - low).mean()), abs=2e-5)
    grid = np.array(curve["grid"])
    low, _, high = (np.array(line) for line in curve["methods"]["scale mixture"]["quartiles"])
    outside = (grid <= -0.1 + 1e-6) | (grid >= 0.6 - 1e-6)
    assert outside.sum() == 16
    assert curve["methods"]["scale mixture"]["outside"] == pytest.approx((high - low)[outside].mean(), abs=2e-5)


# --- verdicts


GOOD = {"SGD": 1.9, "dropout": 1.6, "Gaussian prior": 1.8, "scale mixture": 1.4}


def made_up(costs=(0.0, 0.0, 0.0, 0.1, 0.2), ratio=5.0, single=1.0, **changed):
    """One seed's scores: errors by method, what pruning costs, and how spread grows beyond the rows."""
    errors = {**GOOD, **{name.replace("_", " "): error for name, error in changed.items()}}
    methods = {
        name: {
            "error": error,
            "nll": 0.1,
            "mean_error": error + 0.05,
            "pruned": [error + 0.05 + (cost if name == "scale mixture" else 20 * cost) for cost in costs],
            "pruned_average": [error] * 5,
            **({"loudness": [1] * 60 + [2] * 60} if name in room.BAYES else {}),
        }
        for name, error in errors.items()
    }
    line = [0.0, 1.0, 2.0]
    curve = {
        name: {"quartiles": [line, line, line], "inside": 0.1, "outside": 0.1 * times}
        for name, times in (("scale mixture", ratio), ("single network", single))
    }
    rows = {"x": [0.1], "y": [0.2], "grid": [-0.2, 0.5, 1.2]}
    return {"shares": [0.0, 0.5, 0.75, 0.95, 0.98], "table": {"400": methods}, "regression": {**rows, "methods": curve}}


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng, results = np.random.default_rng(0), copy.deepcopy(results)
    for result in results:
        for scores in result["table"]["400"].values():
            scores["error"] += rng.normal(0, 1e-3)
            scores["pruned"] = [error + rng.normal(0, 1e-3) for error in scores["pruned"]]
        for one in result["regression"]["methods"].values():
            one["outside"] *= 1 + rng.normal(0, 1e-3)
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(scale_mixture=2.0)] * 3, "does not hold", 2),  # above SGD, and the other prior
        ([made_up(scale_mixture=1.85)] * 3, "does not hold", 1),
        ([made_up(dropout=2.0)] * 3, "does not hold", 1),
        ([made_up((0, 0, 0.15, 0.15, 0.15))] * 3, "does not hold", 1),
        ([made_up((0, 0, 0, 0.25, 0.35))] * 3, "does not hold", 2),
        ([made_up((0, 0, 0, -0.01, 0.2), SGD=1.4, Gaussian_prior=1.5, dropout=1.3)] * 3, "does not hold", 2),
        ([made_up(ratio=1.9)] * 3, "does not hold", 1),
        ([made_up(single=1.2)] * 3, "does not hold", 1),
        ([made_up()], "inconclusive", 9),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = room.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_tables_hold_the_means():
    actual = room.summarise([made_up(), made_up(SGD=2.1)])
    text = actual.tables[0].markdown()
    assert "| 400 | SGD | 2.00 ± 0.10 | – | 0.1000 ± 0.0000 | 1.83 |" in text.replace("*", "")
    pruning = actual.tables[1].markdown()
    assert "| published, 1200 units |  | 1.24 | 1.24 | 1.24 | 1.29 | 1.39 |" in pruning
    assert "Gaussian prior | average of draws | 1.80 ± 0.00" in pruning
    assert len(actual.figures) == 2


def test_published_numbers_are_ordered_as_the_claim_says():
    for errors in room.PUBLISHED.values():
        assert errors["scale mixture"] < errors["SGD"]
        assert errors["scale mixture"] < errors["Gaussian prior"]
        assert errors["dropout"] < errors["SGD"]
    costs = {share: error - room.PUBLISHED_PRUNED[0.0] for share, error in room.PUBLISHED_PRUNED.items()}
    assert all(costs[share] <= margin for share, margin in room.MARGINS.items())


def test_recipes_name_what_the_claim_is_about():
    small, paper = EXPERIMENT.recipe("small"), EXPERIMENT.recipe("paper")
    assert small.widths == (400,)
    assert paper.widths == (400, 800)
    assert all(entry.method.epochs == 600 for entry in paper.entries.values())
    assert all(recipe.mixture.method.kl_weight == recipe.gaussian.method.kl_weight == 1 for recipe in (small, paper))


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert "scale mixture" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 3
    assert len(json.loads((tmp_path / "results.json").read_text())["seeds"]) == 2

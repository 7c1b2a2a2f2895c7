"""Fast ensembling: a tiny run against direct computation, and every part of the verdict from made-up scores."""

import copy
from itertools import combinations

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes import networks
from torchbayes.data import load
from torchbayes_experiments.basins import fast_ensembling as room
from torchbayes_experiments.basins.fast_ensembling import (
    EXPERIMENT,
    FAST,
    INDEPENDENT,
    KINDS,
    PAPER,
    SNAPSHOTS,
    FastRecipe,
)

TINY = FastRecipe(
    data="digits",
    network="small_cnn",
    train_size=200,
    units=3,
    epochs=4,
    burn_in=0.5,
    cycle=1,
    batch_size=50,
    cycles=2,
    test_rows=100,
    plan="loop",
)
FOLDERS = {kind: kind.replace(" ", "_") for kind in KINDS}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fast")
    return directory, EXPERIMENT.run(TINY, 3, directory)


def reload(directory, kind):
    data = load("digits", train_size=200)
    network = networks.small_cnn(data.input_shape, 10)
    model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(TINY.prior_scale))
    posterior = tb.load(directory / FOLDERS[kind] / "posterior.safetensors", model)
    weights_MSD = getattr(posterior, "weights_MSD", None)
    weights_MSD = posterior.weights_MD[:, None] if weights_MSD is None else weights_MSD  # type: ignore[attr-defined]
    return model, weights_MSD, (data.test.inputs[:100], data.test.targets[:100])


def average_of(model, weights_MSD, test):
    """Metrics of the average of networks, each of which is evaluated as a module."""
    probs = []
    for weights in weights_MSD.flatten(0, 1):
        module = networks.small_cnn(test[0].shape[1:], 10)
        module.load_state_dict(dict(model.network.layout.split(weights)))
        with torch.no_grad():
            probs.append(module(test[0]).double().softmax(-1))
    mean = torch.stack(probs).mean(0)
    true = mean.gather(1, test[1][:, None])
    return float((mean.argmax(-1) == test[1]).double().mean()), -float(true.log().mean()), torch.stack(probs)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_saved_networks(tiny, kind):
    directory, actual = tiny
    model, weights_MSD, test = reload(directory, kind)
    numbers = actual["kinds"][kind]
    assert weights_MSD.shape[:2] == (3, numbers["networks"])
    for budget, scores in enumerate(numbers["budgets"], 1):
        chosen = [average_of(model, weights_MSD[list(runs)], test) for runs in combinations(range(3), budget)]
        assert scores["accuracy"] == pytest.approx(np.mean([one[0] for one in chosen]), abs=1e-6)
        assert scores["nll"] == pytest.approx(np.mean([one[1] for one in chosen]), rel=1e-5)
    last = [average_of(model, weights_MSD[m : m + 1, -1:], test)[1] for m in range(3)]
    assert numbers["last"]["nll"] == pytest.approx(np.mean(last), rel=1e-5)
    labels = average_of(model, weights_MSD, test)[2].argmax(-1).unflatten(0, (3, -1))
    between = [
        labels[a, i] != labels[b, j]
        for a, b in combinations(range(3), 2)
        for i, j in np.ndindex(len(labels[a]), len(labels[b]))
    ]
    assert numbers["between"] == pytest.approx(float(torch.stack(between).double().mean()))
    within = [one[i] != one[j] for one in labels for i, j in combinations(range(len(one)), 2)]
    assert (numbers["within"] is None) == (not within)
    if within:
        assert numbers["within"] == pytest.approx(float(torch.stack(within).double().mean()))


def test_every_kind_has_the_same_budget_and_start(tiny):
    for recipe in (*EXPERIMENT.recipes.values(), TINY):
        methods = (recipe.independent(), recipe.fast(), recipe.snapshots())
        for setting in ("members", "epochs", "batch_size", "optimizer", "plan"):
            assert len({getattr(method, setting) for method in methods}) == 1
    assert tiny[1]["kinds"][FAST]["networks"] == tiny[1]["kinds"][SNAPSHOTS]["networks"] == 2
    path = tiny[1]["path"]  # the first epoch of both has the same rate, and so the same network
    assert path["ends"][0]["nll"] == pytest.approx(path["independent"][0]["nll"], rel=1e-5)
    assert path["ends"][3]["nll"] != pytest.approx(path["independent"][3]["nll"], rel=1e-3)
    paper = PAPER.fast()
    assert paper.cycles(200 * 391, 391) == (160 * 391, 2 * 391, 20)
    assert PAPER.prior_scale**-2 / 50_000 == pytest.approx(3e-4)


def test_the_path_is_that_of_the_first_run(tiny):
    directory, actual = tiny
    model, weights_MSD, test = reload(directory, FAST)
    path = actual["path"]
    assert [one["epoch"] for one in path["kept"]] == [one["epoch"] for one in path["average"]] == [2.5, 3.5]
    for count, (alone, average) in enumerate(zip(path["kept"], path["average"], strict=True), 1):
        assert alone["nll"] == pytest.approx(average_of(model, weights_MSD[:1, count - 1 : count], test)[1], rel=1e-5)
        assert average["nll"] == pytest.approx(average_of(model, weights_MSD[:1, :count], test)[1], rel=1e-5)
    assert [one["epoch"] for one in path["ends"]] == [1, 2, 3, 4]
    rates = {round(one["epoch"] * 4): one["lr"] for one in path["rates"]}
    assert rates[1] == pytest.approx(0.05)
    assert rates[10] == rates[14] == pytest.approx(0.005)
    _, last_MSD, _ = reload(directory, INDEPENDENT)
    end = average_of(model, last_MSD[:1], test)
    assert path["independent"][-1]["nll"] == pytest.approx(end[1], rel=1e-5)


@pytest.mark.study  # `test_records.py`: what a file holds is not computed again
def test_a_second_call_gives_the_same(tiny):
    directory, actual = tiny
    assert room.run(TINY, 3, directory) == actual


def made_up(gain=(0.02, 0.01, 0.005), nll=(0.06, 0.04, 0.02), *, last=0.03, error=0.1):
    """Scores of one seed: what FGE gains in accuracy and NLL at each budget, and over its last network."""

    def scores(gains, nlls):
        budgets = [
            {"accuracy": 1 - error + 0.01 * b + gains[b], "nll": 0.4 - 0.02 * b - nlls[b], "ece": 0.02}
            for b in range(3)
        ]
        alone = {"accuracy": budgets[0]["accuracy"] - last, "nll": budgets[0]["nll"] + last, "ece": 0.03}
        return {"networks": 2, "budgets": budgets, "last": alone, "each": dict(alone), "within": 0.05, "between": 0.08}

    none = (0.0, 0.0, 0.0)
    kinds = {INDEPENDENT: {**scores(none, none), "networks": 1, "within": None}, FAST: scores(gain, nll)}
    points = [{"epoch": e, "accuracy": 0.5 + 0.1 * e, "lr": 0.05} for e in range(1, 4)]
    path = dict.fromkeys(("rates", "ends", "kept", "average", "independent"), points)
    return {"kinds": {**kinds, SNAPSHOTS: scores(none, nll)}, "path": path, "largest_error": 0.11}


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng, results = np.random.default_rng(0), copy.deepcopy(results)
    for result in results:
        for kind in result["kinds"].values():
            for scores in (*kind["budgets"], kind["last"]):
                scores["accuracy"] += rng.normal(0, 1e-5)
                scores["nll"] += rng.normal(0, 1e-5)
    return results


@pytest.mark.parametrize(
    ("settings", "outcome", "against"),
    [
        ({}, "holds", []),
        ({"gain": (0.02, -0.01, -0.02)}, "does not hold", [2, 3]),
        ({"gain": (-0.02, -0.03, -0.04)}, "does not hold", [1, 2, 3]),
        ({"nll": (0.02, 0.01, -0.01)}, "does not hold", [6]),
        ({"nll": (-0.02, -0.03, -0.05)}, "does not hold", [4, 5, 6]),
        ({"gain": (0.01, 0.01, 0.02)}, "does not hold", [7]),
        ({"nll": (0.01, 0.01, 0.02)}, "does not hold", [8]),
        ({"last": -0.01}, "does not hold", [9, 10]),
        ({"error": 0.12}, "inconclusive", [0]),  # an unfair comparison proves nothing
    ],
)
def test_every_part_both_ways(settings, outcome, against):
    verdict = room.summarise(jitter([made_up(**settings)] * 3)).verdict
    assert verdict.outcome == outcome
    assert len(verdict.parts) == 11
    assert [n for n, part in enumerate(verdict.parts) if part.outcome == "does not hold"] == against
    assert all(part.outcome == "holds" for n, part in enumerate(verdict.parts) if n not in against)


def test_one_seed_is_inconclusive():
    assert {part.outcome for part in room.summarise([made_up()]).verdict.parts} == {"inconclusive"}


def test_tables_hold_the_means():
    actual = room.summarise([made_up(), made_up(gain=(0.04, 0.01, 0.005))])
    budgets, differences, single, published = (table.markdown() for table in actual.tables)
    assert "| FGE | 1 | 2 | 93.00 ± 1.00 | 0.3400 ± 0.0000 |" in budgets
    assert "| snapshot ensemble | 3 | 6 | 92.00 ± 0.00 |" in budgets
    assert "| FGE − independent networks | 1 | 3.00 ± 1.00 | −0.0600 ± 0.0000 |" in differences
    assert (
        "| FGE | 90.00 ± 1.00 | 90.00 ± 1.00 | 0.3700 ± 0.0000 | 0.3700 ± 0.0000 | 5.00 ± 0.00 | 8.00 ± 0.00 |"
        in single
    )
    assert "| VGG-16 | FGE | 74.6 | 76.1 | 76.6 |" in published


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1])
    assert len(list(tmp_path.glob("figure_*.png"))) == 2
    assert "Garipov" in page
    assert "budget 2: FGE has a lower NLL than independent networks" in page

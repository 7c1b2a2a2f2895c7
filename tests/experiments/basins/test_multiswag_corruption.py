"""The corruption experiment: a tiny run against direct computation, and every verdict from made-up scores."""

import copy
from dataclasses import replace

import numpy as np
import pytest

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes import networks
from torchbayes.data import corrupt_data, load
from torchbayes_experiments.basins import multiswag_corruption as room
from torchbayes_experiments.basins.multiswag_corruption import EXPERIMENT, CorruptionRecipe

TINY = CorruptionRecipe(
    data="digits",
    network="small_cnn",
    train_size=300,
    members=2,
    epochs=3,
    burn_in=0.4,
    rank=2,
    draws=2,
    test_rows=100,
    corrupted_rows=30,
    corruptions=("contrast", "translation"),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("corruption")
    return directory, EXPERIMENT.run(TINY, 3, directory)


def reload(directory, method):
    data = load("digits", train_size=300)
    network = networks.small_cnn(data.input_shape, 10)
    model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(TINY.prior_scale))
    return data, tb.load(directory / method / "posterior.safetensors", model)


def test_scores_are_those_of_the_saved_posteriors(tiny):
    directory, actual = tiny
    data, ensemble = reload(directory, "ensemble")
    test = (data.test.inputs[:100], data.test.targets[:100])
    for key, value in actual["clean"]["ensemble"].items():
        assert value == pytest.approx(tb.evaluate(ensemble, test).metrics[key], rel=1e-6)
    corrupted = corrupt_data(data, "contrast", 5, limit=30)
    _, swag = reload(directory, "multiswag")
    at_five = actual["corrupted"]["contrast"][4]
    expected = tb.evaluate(swag, corrupted, draws=4, seed=3).metrics["nll"]
    assert at_five["MultiSWAG"]["nll"] == pytest.approx(expected, rel=1e-6)
    means = tb.Point(swag.model, swag.mean_MD)  # type: ignore[attr-defined]
    assert at_five["MultiSWA"]["nll"] == pytest.approx(tb.evaluate(means, corrupted).metrics["nll"], rel=1e-6)


def test_a_single_network_is_the_mean_over_members_alone(tiny):
    directory, actual = tiny
    data, ensemble = reload(directory, "ensemble")
    test = (data.test.inputs[:100], data.test.targets[:100])
    alone = [tb.evaluate(tb.Point(ensemble.model, w[None]), test).metrics["nll"] for w in ensemble.sample(2)]
    assert actual["clean"]["single"]["nll"] == pytest.approx(np.mean(alone), rel=1e-6)
    assert actual["clean"]["single"]["nll_std"] == pytest.approx(np.std(alone), rel=1e-5)
    _, swag = reload(directory, "multiswag")
    functions = swag.functions(4, seed=3)
    first = replace(functions, weights_SD=functions.weights_SD[::2])
    second = replace(functions, weights_SD=functions.weights_SD[1::2])
    alone = [tb.evaluate(part, test).metrics["nll"] for part in (first, second)]
    assert actual["clean"]["SWAG"]["nll"] == pytest.approx(np.mean(alone), rel=1e-6)


@pytest.mark.study  # `test_records.py`: what a file holds is not computed again
def test_a_second_call_resumes_and_gives_the_same(tiny):
    directory, actual = tiny
    again = room.run(TINY, 3, directory)
    assert again == actual
    assert again["clean"]["ensemble"]["nll"] == actual["clean"]["ensemble"]["nll"] > 0


def test_both_fits_have_the_same_budget():
    for recipe in (*EXPERIMENT.recipes.values(), TINY):
        ensemble, swag = recipe.ensemble(), recipe.multiswag()
        for setting in ("members", "epochs", "batch_size", "optimizer", "plan"):
            assert getattr(ensemble, setting) == getattr(swag, setting)
        assert swag.averaging_lr == recipe.averaging_lr
    paper = EXPERIMENT.recipe("paper")
    assert paper.prior_scale**-2 / 50_000 == pytest.approx(3e-4)
    assert round(paper.burn_in * paper.epochs) == 161


def test_without_the_files_the_error_names_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHBAYES_DATA", str(tmp_path))

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("pooch.retrieve", offline)
    with pytest.raises(FileNotFoundError, match="TORCHBAYES_DATA"):
        room.run(CorruptionRecipe(), 0, tmp_path / "seed_0")
    assert len(list(tmp_path.iterdir())) == 0


def made_up(*, single=1.0, ensemble=0.8, multiswag=0.7, accuracy=0.92, clean=0.85):
    """Two kinds; NLL at severity s is s times the given value, so the strong mean is 4.5 times it."""
    strong = {"single": single, "SWAG": single, "ensemble": ensemble, "MultiSWA": ensemble, "MultiSWAG": multiswag}

    def scores(severity):
        factor = severity or 1
        return {name: {"nll": v * factor, "accuracy": accuracy, "ece": 0.1} for name, v in strong.items()}

    result = {"clean": scores(0), "corrupted": {k: [scores(s) for s in range(1, 6)] for k in ("fog", "jpeg")}}
    result["clean"]["ensemble"]["nll"] = clean * single
    return result


def jitter(results):
    """Repeats with a little noise on the NLLs, so that no spread is zero."""
    rng = np.random.default_rng(0)
    results = copy.deepcopy(results)
    for result in results:
        for scores in [result["clean"], *(s for kind in result["corrupted"].values() for s in kind)]:
            for metrics in scores.values():
                metrics["nll"] += rng.normal(0, 1e-3)
                metrics["accuracy"] += rng.normal(0, 1e-4)
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(multiswag=0.9)] * 3, "does not hold", 1),
        ([made_up(multiswag=m) for m in (0.79, 0.81, 0.8)], "inconclusive", 1),
        ([made_up(), made_up(multiswag=0.9), made_up(multiswag=0.75)], "inconclusive", 1),
        ([made_up(clean=0.95)] * 3, "does not hold", 1),
        ([made_up(accuracy=0.89, multiswag=0.9)] * 3, "inconclusive", 2),  # an unfair comparison proves nothing
        ([made_up()], "inconclusive", 4),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = room.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_tables_hold_the_means():
    actual = room.summarise([made_up(), made_up(multiswag=0.5)])
    clean, severities, differences, kinds = (table.markdown() for table in actual.tables)
    assert "| MultiSWAG | 0.9200 ± 0.0000 | **0.6000 ± 0.1000** |" in clean
    assert "| MultiSWAG | **0.600 ± 0.100** | **1.200 ± 0.200** |" in severities
    assert "| fog | 4.500 | 4.500 | 3.600 | 3.600 | 2.700 |" in kinds
    assert "| severity 5 | −1.0000 ± 0.0000 | −1.0000 ± 0.5000 | −1.0000 ± 0.5000 |" in differences
    assert len(actual.figures) == 3
    difference = actual.verdict.parts[3].evidence
    assert difference.startswith("mean −0.9,")  # 4.5 (0.6 − 0.8)


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert len(list(tmp_path.glob("figure_*.png"))) == 3
    assert "Wilson and Izmailov 2020" in page
    assert "| contrast |" in page
    assert sorted(path.name for path in tiny[0].iterdir()) == ["ensemble", "multiswag"]

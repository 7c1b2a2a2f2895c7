"""The UCI experiment on made-up files: scores in raw units, resuming by split, worker processes, every verdict."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.made_up_uci import of_true_size, run_on_small_sets, small_sets
from tests.experiments.shared.pages import page_of
from tests.processes import forked
from torchbayes.data import load
from torchbayes_experiments.regression import uci_table as room
from torchbayes_experiments.regression.uci_table import EXPERIMENT, UCITableRecipe
from torchbayes_experiments.shared import uci_splits

pytestmark = pytest.mark.filterwarnings("ignore:.*the noise explains what the mean could:torchbayes.ProblemWarning")
TINY = UCITableRecipe(sets=("boston", "yacht"), splits=2, members=2, epochs=4, burn_in=0.4, rank=2, draws=2)


@pytest.fixture(autouse=True)
def files(tmp_path_factory, monkeypatch):
    yield from small_sets(tmp_path_factory.mktemp("data"), monkeypatch, "uci_boston", "uci_yacht")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory and the numbers of a run."""
    return run_on_small_sets(EXPERIMENT, TINY, tmp_path_factory.mktemp("finished"), "uci_boston", "uci_yacht")


def test_scores_are_in_the_units_of_the_file(finished):
    actual = {name: {key: values[1] for key, values in of.items()} for name, of in finished[1]["boston"].items()}
    data = load("uci_boston", split=1)
    model = tb.Model(room.TwoHeads(3, 50), tb.likelihoods.HeteroscedasticGaussian(), TINY.prior())
    ensemble = tb.fit(model, data.train, TINY.ensemble(), seed=5, callbacks=())
    average = tb.predict(ensemble, data.test.inputs)
    assert data.target_standardise is not None
    scale = data.target_standardise.scale.double()
    mean = data.target_standardise.inverse(average.mean).double()
    deviation = average.variance.double().sqrt() * scale
    targets = data.target_standardise.inverse(data.test.targets).double()
    rmse = (mean - targets).square().mean().sqrt().item()
    nll = -torch.distributions.Normal(mean, deviation).log_prob(targets).mean().item()
    assert actual["ensemble"]["rmse"] == pytest.approx(rmse, rel=1e-5)
    assert actual["ensemble"]["nll_gaussian"] == pytest.approx(nll, rel=1e-5)
    assert actual["ensemble"]["nll"] == pytest.approx(
        -average.log_prob(data.test.targets).mean().item() + math.log(scale), rel=1e-5
    )
    alone = [tb.evaluate(tb.Point(model, w[None]), data.test, target_scale=float(scale)) for w in ensemble.sample(2)]
    assert actual["single"]["rmse"] == pytest.approx(np.mean([one.metrics["rmse"] for one in alone]), rel=1e-5)


def test_two_heads_are_one_layer_with_two_outputs():
    two = room.TwoHeads(3, 50)
    one = torch.nn.Linear(50, 2)
    with torch.no_grad():
        one.weight.copy_(torch.cat([two.mean.weight, two.noise.weight]))
        one.bias.copy_(torch.cat([two.mean.bias, two.noise.bias]))
        inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(two(inputs), one(torch.relu(two.hidden(inputs))))


def test_finished_splits_are_read_and_missing_ones_run(finished, tmp_path):
    recipe, first = replace(TINY, sets=("yacht",)), finished[1]["yacht"]
    assert np.shape(first["MultiSWAG"]["rmse"]) == (2,)
    home = shutil.copytree(finished[0], tmp_path / "run")
    marked = home / "yacht" / "split_1.json"
    scores = json.loads(marked.read_text())
    scores["ensemble"]["rmse"] = -7.0
    marked.write_text(json.dumps(scores))
    (home / "yacht" / "split_0.json").unlink()
    again = EXPERIMENT.run(recipe, 5, home)["yacht"]
    assert again.pop("ensemble")["rmse"] == [first["ensemble"]["rmse"][0], -7.0]
    assert again == {name: values for name, values in first.items() if name != "ensemble"}
    other = EXPERIMENT.run(replace(recipe, splits=1), 1, tmp_path / "other")["yacht"]
    assert other["single"]["rmse"][0] != first["single"]["rmse"][0]


def test_without_the_files_the_error_names_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHBAYES_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="TORCHBAYES_DATA"):
        EXPERIMENT.run(UCITableRecipe(), 0, tmp_path / "seed_0")
    assert len(list(tmp_path.iterdir())) == 0


@pytest.mark.slow
@pytest.mark.parametrize("sooner", [True, pytest.param(False, marks=pytest.mark.study)])
def test_worker_processes_change_no_number(tmp_path, monkeypatch, sooner):
    of_true_size(monkeypatch, tmp_path, "uci_yacht")  # separate processes do not see what is patched here
    if sooner:  # processes as clean as those that are asked for, of a server that has loaded the library
        monkeypatch.setattr(uci_splits, "get_context", {"spawn": forked()}.__getitem__)
    recipe = replace(TINY, sets=("yacht",))
    alone = EXPERIMENT.run(recipe, 0, tmp_path / "one")
    torch.set_num_threads(2)
    assert EXPERIMENT.run(recipe, 0, tmp_path / "two") == alone
    assert torch.get_num_threads() == 2


def made_up(*, shift=0.0, noise=0.05, seed=0):
    """One seed's scores of boston, `shift` published error bars above the published means of the ensemble."""
    rng = np.random.default_rng(seed)
    values = {}
    for method in room.METHODS:
        values[method] = {"nll": np.zeros(20).tolist()}
        for metric, (mean, bar) in room.PUBLISHED["boston"].items():
            values[method][metric] = (mean + shift * bar + noise * rng.normal(size=20)).tolist()
    return {"boston": values}


@pytest.mark.parametrize(
    ("shift", "noise", "seeds", "outcome", "held"),
    [
        (0.0, 0.05, 3, "holds", 4),
        (0.7, 0.05, 3, "holds", 4),
        (1.6, 0.05, 3, "does not hold", 0),
        (1.0, 1.0, 3, "inconclusive", 0),
        (0.5, 20.0, 3, "inconclusive", 0),
        (0.0, 0.05, 1, "inconclusive", 0),
    ],
)
def test_every_verdict_is_reached(shift, noise, seeds, outcome, held):
    results = [made_up(shift=shift, noise=noise, seed=seed) for seed in range(seeds)]
    verdict = room.summarise(results).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome == "holds" for part in verdict.parts) == held
    values = [np.mean(result["boston"]["ensemble"]["rmse"]) for result in results]
    assert verdict.parts[0].evidence.startswith(f"mean {np.mean(values):.4g},".replace("-", "−"))


def test_replicates_are_averaged_before_the_spread_over_splits_is_taken():
    low, high = made_up(), made_up()
    low["boston"]["ensemble"]["rmse"] = [1.0, 2.0, 3.0, 4.0] * 5
    high["boston"]["ensemble"]["rmse"] = [3.0, 4.0, 5.0, 6.0] * 5
    table = room.summarise([low, high]).tables[2]
    assert table.columns[0] == "test RMSE"
    mean, error = table.rows[0][2]  # type: ignore[misc]
    assert mean == pytest.approx(3.5)
    assert error == pytest.approx(np.std([2.0, 3.0, 4.0, 5.0] * 5, ddof=1) / math.sqrt(20))
    assert table.rows[0][4] == (3.28, 1.0)


def test_end_to_end(finished, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, finished[1], finished[1])
    assert "boston: RMSE of MultiSWAG no worse than 3.28 + 1" in page
    assert "| yacht |" in page
    assert "| 1.58 ± 0.48 |" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 2
    assert json.loads((tmp_path / "results.json").read_text())["verdict"]["outcome"] == "does not hold"


def test_the_small_recipe_covers_the_four_sets_and_the_paper_one_all():
    small, paper = (EXPERIMENT.recipe(scale) for scale in ("small", "paper"))
    assert small.sets == ("boston", "concrete", "energy", "yacht")
    assert set(paper.sets) == set(room.PUBLISHED)
    assert replace(paper, sets=small.sets) == small
    assert (small.splits, small.members) == (20, 5)

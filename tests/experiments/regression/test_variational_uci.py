"""The UCI table of variational methods on made-up files: scores, what held-out rows choose, resuming, verdicts."""

import json
import math
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.made_up_uci import of_true_size, run_on_small_sets, small_sets
from tests.experiments.shared.pages import page_of
from tests.processes import forked
from torchbayes.data import load
from torchbayes.health.ending import Ending
from torchbayes_experiments.regression import variational_uci as room
from torchbayes_experiments.regression.variational_uci import EXPERIMENT
from torchbayes_experiments.shared import uci_splits

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")  # runs of few steps

PROBLEMS = Ending.problems  # which no fit of an experiment is asked for, but one
TINY = replace(
    room.SMALL, sets=("boston",), splits=2, folds=2, epochs=1, steps=20, long_steps=30, draws=4, rates=(0.1,),
    shares=(0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0),
)  # fmt: skip


@pytest.fixture(autouse=True)
def files(tmp_path_factory, monkeypatch):
    yield from small_sets(tmp_path_factory.mktemp("data"), monkeypatch, "uci_boston")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory and the numbers of a run."""
    return run_on_small_sets(EXPERIMENT, TINY, tmp_path_factory.mktemp("finished"), "uci_boston")


def at_split(scores, split):
    """The scores of one split."""
    return {name: {key: values[split] for key, values in of.items()} for name, of in scores.items()}


def network(rate=0.0, features=3):
    return tb.networks.mlp((features,), 1, hidden=(50,), dropout=rate)


def test_scores_are_in_the_units_of_the_file(finished):
    actual = at_split(finished[1]["boston"], 1)
    data = load("uci_boston", split=1)
    assert data.target_standardise is not None
    scale = data.target_standardise.scale.double()
    targets = data.target_standardise.inverse(data.test.targets).double()
    noise, less = (actual["chosen"][name] for name in ("noise", "dropout_noise"))
    assert actual["chosen"]["rate"] == 0.1
    assert less / noise in [pytest.approx(share) for share in TINY.shares]
    lower = tb.priors.Normal(0.5 * math.sqrt(0.9))
    dropped = {"4.weight": lower, "*": tb.priors.Normal(0.5)}
    settings = {
        "single": (network(), tb.priors.Normal(0.5), noise, replace(TINY.single, epochs=10), None),
        "mean field": (network(), tb.priors.Normal(0.5), noise, replace(TINY.mean_field, epochs=15), 4),
        "MC dropout": (network(0.1), dropped, less, replace(TINY.dropout, epochs=15), 4),
    }
    for name, (net, prior, noise, method, draws) in settings.items():
        model = tb.Model(net, tb.likelihoods.Gaussian(noise / float(scale)), prior)
        posterior = tb.fit(model, data.train, method, seed=5, callbacks=())
        outputs = tb.predict(posterior, data.test.inputs, draws=draws).outputs_SBK
        means = data.target_standardise.inverse(outputs.float()).double()
        of_draws = torch.distributions.Normal(means, noise).log_prob(targets).sum(-1)
        nll = -(of_draws.logsumexp(0) - math.log(len(means))).mean().item()
        rmse = (means.mean(0) - targets).square().mean().sqrt().item()
        assert actual[name] == pytest.approx({"nll": nll, "rmse": rmse}, rel=1e-4)
    assert math.isfinite(actual["VBLL"]["nll"])


def test_the_noise_is_the_error_on_rows_that_a_network_has_not_seen():
    train = load("uci_boston", split=0).train
    wrong = []
    for fold in range(2):
        own, others = (tb.data.Pair(*(part[first::2] for part in train)) for first in (fold, 1 - fold))
        model = tb.Model(network(), tb.likelihoods.Gaussian("learned"), tb.priors.Normal(0.5))
        posterior = tb.fit(model, others, replace(TINY.single, epochs=20), seed=3, callbacks=())
        wrong.append(tb.predict(posterior, own.inputs).mean - own.targets)
    expected = torch.cat(wrong).square().mean().sqrt().item()
    assert room.noise_scale(TINY, train, width=50, seed=3) == pytest.approx(expected, rel=1e-4)


def test_networks_that_interpolate_get_the_noise_of_new_rows(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    inputs, noise = torch.randn(60, 10, generator=draw), torch.randn(60, 1, generator=draw)
    train, longer = tb.data.Pair(inputs, 0.8 * inputs[:, :1] + 0.6 * noise), replace(TINY, steps=400)
    single = longer.lasting(longer.single, 60, steps=400)
    model = tb.Model(network(features=10), tb.likelihoods.Gaussian("learned"), tb.priors.Normal(0.5))
    monkeypatch.setattr(Ending, "problems", PROBLEMS)
    with pytest.warns(tb.ProblemWarning, match="interpolates its training rows"):
        tb.fit(model, train, single, seed=0, callbacks=())
    with warnings.catch_warnings(action="error"):
        actual = room.noise_scale(longer, train, width=50, seed=0)
    assert 0.6 < actual < 1.5


def test_the_rate_and_the_noise_under_which_held_out_rows_are_most_likely_are_chosen():
    train = load("uci_boston", split=0).train
    rates = (0.9, 0.05, 0.95)  # neither the first nor the last is the best
    settings = replace(TINY, steps=100, draws=50, rates=rates, shares=(0.01, 0.3, 1.0, 3.0, 100.0))
    rate, noise = room.best_dropout(settings, train, noise=0.3, width=50, seed=0)
    rest, held = room.parted(train, 2, 0)
    method = settings.lasting(settings.dropout, 27, steps=100)
    posterior = room.fitted(settings, method, rest, noise=0.3, rate=0.05, width=50, seed=0)
    outputs = tb.predict(posterior, held.inputs, draws=50).outputs_SBK.double()

    def nll(scale):
        log_prob = torch.distributions.Normal(outputs, scale).log_prob(held.targets).sum(-1)
        return -(log_prob.logsumexp(0) - math.log(50)).mean().item()

    assert (rate, noise) == (0.05, min((0.003, 0.09, 0.3, 0.9, 30.0), key=nll))


def test_only_training_rows_choose(finished, monkeypatch):
    before = at_split(finished[1]["boston"], 0)

    def other_test_rows(name, split):
        data = load(name, split=split)
        return replace(data, test=tb.data.Pair(data.test.inputs, data.test.targets + 1))

    monkeypatch.setattr(room.tb.data, "load", other_test_rows)
    after = room.split_scores(TINY, "boston", 0, seed=5)
    assert after["chosen"] == before["chosen"]
    assert after["single"] != before["single"]


def test_folds_hold_every_row_once():
    rows = tb.data.Pair(torch.arange(11.0)[:, None], torch.arange(11.0)[:, None])
    parts = [room.parted(rows, 3, fold) for fold in range(3)]
    assert sorted(torch.cat([held.targets for _, held in parts]).flatten().tolist()) == list(range(11))
    for rest, held in parts:
        assert sorted(torch.cat([rest.inputs, held.inputs]).flatten().tolist()) == list(range(11))
        assert torch.equal(held.inputs, held.targets)


@pytest.mark.parametrize(("rows", "epochs"), [(99, 2600), (277, 867), (1_000, 260), (100_000, 40)])
def test_every_set_takes_as_many_steps(rows, epochs):
    for method in (room.SMALL.single, room.SMALL.mean_field, room.SMALL.dropout, room.SMALL.last_layer):
        asked = replace(method, batch_size=100)
        assert replace(room.SMALL, epochs=40).lasting(asked, rows, steps=2600) == replace(asked, epochs=epochs)


@pytest.mark.study  # they are read as those of `uci_table`, whose test of the same name runs always
def test_finished_splits_are_read_and_missing_ones_run(finished, tmp_path):
    first = finished[1]["boston"]
    assert np.shape(first["VBLL"]["rmse"]) == np.shape(first["chosen"]["noise"]) == (2,)
    home = shutil.copytree(finished[0], tmp_path / "run")
    marked = home / "boston" / "split_1.json"
    scores = json.loads(marked.read_text())
    scores["MC dropout"]["rmse"] = -7.0
    marked.write_text(json.dumps(scores))
    (home / "boston" / "split_0.json").unlink()
    again = EXPERIMENT.run(TINY, 5, home)["boston"]
    assert again.pop("MC dropout")["rmse"] == [first["MC dropout"]["rmse"][0], -7.0]
    assert again == {name: values for name, values in first.items() if name != "MC dropout"}


@pytest.mark.slow
@pytest.mark.study  # the workers are those of `uci_table`, whose test of the same name runs always
def test_worker_processes_change_no_number(tmp_path, monkeypatch):
    of_true_size(monkeypatch, tmp_path, "uci_boston", "uci_yacht")  # separate processes do not see what is patched here
    monkeypatch.setattr(uci_splits, "get_context", lambda _: forked())  # as clean, and begun sooner
    both = replace(TINY, sets=("boston", "yacht"))
    alone = EXPERIMENT.run(both, 0, tmp_path / "one")
    torch.set_num_threads(2)
    assert EXPERIMENT.run(both, 0, tmp_path / "two") == alone


# --- verdicts


def made_up(seed=0, noise=0.02, **shifts):
    """One seed's scores of boston: NLLs at the published ones, a single network's at 2.6, and `shifts` off these."""
    rng = np.random.default_rng(seed)
    base = {"single": 2.6, "mean_field": 3.12, "MC_dropout": np.array(room.DROPOUT_NLL["boston"]), "VBLL": 2.6}
    values = {
        name.replace("_", " "): {
            "nll": (nll + shifts.get(name, 0.0) + noise * rng.normal(size=20)).tolist(),
            "rmse": rng.normal(3, 0.1, size=20).tolist(),
        }
        for name, nll in base.items()
    }
    chosen = {"noise": [3.0] * 20, "dropout_noise": [2.0] * 20, "rate": [0.005] * 15 + [0.05] * 5}
    return {"boston": {**values, "chosen": chosen}}


@pytest.mark.parametrize(
    ("result", "outcome", "held"),
    [
        (made_up(), "holds", 3),
        (made_up(MC_dropout=0.1), "does not hold", 2),  # though the spread over splits is 0.19
        (made_up(mean_field=-1.0, VBLL=0.1), "does not hold", 2),
        (made_up(single=0.1, VBLL=0.1), "holds", 3),  # splits that are harder for both
        (made_up(mean_field=0.05), "inconclusive", 2),
        (made_up(noise=1.0), "inconclusive", 0),
    ],
)
def test_every_verdict_is_reached(result, outcome, held):
    verdict = room.summarise([result]).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome == "holds" for part in verdict.parts) == held


def test_published_means_are_those_of_their_splits():
    printed = {
        "boston": 2.40, "concrete": 2.93, "energy": 1.21, "kin8nm": -1.14, "naval": -4.45, "power": 2.80,
        "protein": 2.87, "wine": 0.93, "yacht": 1.25,
    }  # fmt: skip
    assert printed.keys() == room.DROPOUT_NLL.keys() == room.MEAN_FIELD_NLL.keys() == room.DROPOUT_RMSE.keys()
    for name, nll in printed.items():
        assert len(room.DROPOUT_NLL[name]) == (5 if name == "protein" else 20)
        assert np.mean(room.DROPOUT_NLL[name]) == pytest.approx(nll, abs=0.0085)  # some were cut off, not rounded


def test_seeds_are_averaged_before_the_spread_over_splits_is_taken():
    low, high = made_up(0), made_up(1)
    tables = {table.columns[0]: table for table in room.summarise([low, high]).tables}
    each = np.mean([result["boston"]["VBLL"]["nll"] for result in (low, high)], axis=0)
    cell = tables["test NLL"].rows[0][4]
    assert cell == pytest.approx((each.mean(), each.std(ddof=1) / math.sqrt(20)))
    assert "| 3.12 | 2.40 |" in tables["test NLL"].markdown()
    assert "| 2.90 |" in tables["test RMSE"].markdown()
    assert "0.005 (30), 0.05 (10)" in tables["chosen"].markdown()


def test_end_to_end(finished, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, finished[1])
    assert "boston: NLL of MC dropout within 0.05 of the published one of the same split" in page
    assert "boston: NLL of mean field within 0.05 of the published 3.12" in page
    assert "boston: NLL of VBLL within 0.05 of a single network's" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 2
    assert json.loads((tmp_path / "results.json").read_text())["verdict"]["outcome"] != "holds"  # of fits this short


def test_the_small_recipe_covers_the_four_sets_and_the_paper_one_all():
    small, paper = (EXPERIMENT.recipe(scale) for scale in ("small", "paper"))
    assert small.sets == ("boston", "concrete", "energy", "yacht")
    assert set(paper.sets) == set(room.PUBLISHED)
    assert replace(paper, sets=small.sets, long_steps=small.long_steps) == small
    assert paper.long_steps > small.long_steps
    assert (small.splits, small.mean_field.kl_weight) == (20, 1.0)

"""PBP on UCI regression: scores against direct computation on made-up files, the stream, resuming, every verdict."""

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
from torchbayes_experiments.regression import pbp_uci as room
from torchbayes_experiments.regression.pbp_uci import EXPERIMENT
from torchbayes_experiments.shared import uci_splits

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")  # runs of few passes

TINY = room.PBPUCIRecipe(
    sets=("boston", "yacht"),
    splits=2,
    method=tb.PBP(epochs=3),
    passes=(1,),
    deep=("boston",),
    hidden=6,
    parts=3,
)


@pytest.fixture(autouse=True)
def files(tmp_path_factory, monkeypatch):
    yield from small_sets(tmp_path_factory.mktemp("data"), monkeypatch, "uci_boston", "uci_yacht")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory and the numbers of a run."""
    return run_on_small_sets(EXPERIMENT, TINY, tmp_path_factory.mktemp("finished"), "uci_boston", "uci_yacht")


@pytest.mark.parametrize(("name", "passes", "hidden"), [("1 pass", 1, (6,)), ("PBP", 3, (6,)),
                                                        ("two hidden layers", 3, (6, 6))])  # fmt: skip
def test_scores_are_those_of_the_closed_form_in_the_units_of_the_file(finished, name, passes, hidden):
    actual = {key: values[1] for key, values in finished[1]["boston"][name].items()}
    data = load("uci_boston", split=1)
    assert data.target_standardise is not None
    posterior = room.fitted(data.train, tb.PBP(epochs=passes), hidden=hidden, seed=5)
    mean_BK, variance_BK = (part[0].double() for part in tb.Propagated(posterior).functions(data.test.inputs))
    log_scale, spread = (float(t[0, -1]) for t in (posterior.mean_MD, posterior.covariance.diagonal()))
    scale = float(data.target_standardise.scale)
    std_BK = scale * (variance_BK + math.exp(2 * log_scale + 2 * spread)).sqrt()
    means, targets = (data.target_standardise.inverse(t.float()).double() for t in (mean_BK, data.test.targets))
    nll = -float(torch.distributions.Normal(means, std_BK).log_prob(targets).mean())
    rmse = float((means - targets).square().mean().sqrt())
    assert {key: actual[key] for key in ("nll", "rmse")} == pytest.approx({"nll": nll, "rmse": rmse}, rel=1e-4)
    assert actual["seconds"] >= 0


def test_the_prior_is_the_papers():
    rows = load("uci_boston", split=0).train
    posterior = room.fitted(rows, tb.PBP(epochs=1), hidden=(6, 5), seed=0)
    stds = posterior.model.prior.stds()[:-1]
    fan_in = torch.tensor([3] * 24 + [6] * 41)
    torch.testing.assert_close(stds, 1 / (fan_in + 1.0).sqrt().double(), rtol=1e-6, atol=0)


def test_layers_share_the_prior_of_the_first_hidden_one_only_where_they_are_as_wide():
    assert {EXPERIMENT.recipe("small").width(name) for name in EXPERIMENT.recipe("paper").sets} == {50, 100}
    assert EXPERIMENT.recipe("small").width("protein") == 100


def test_the_stream_learns_every_row_once_under_the_posterior_of_those_before(monkeypatch):
    rows, seen, priors = load("uci_boston", split=0).train, [], []
    whole = room.fitted

    def spied(part, method, **settings):
        seen.append(part)
        priors.append(settings["prior"])
        assert method.epochs == 1
        return whole(part, method, **settings)

    monkeypatch.setattr(room, "fitted", spied)
    actual = room.streamed(rows, TINY, hidden=(6,), seed=2)
    assert torch.equal(torch.cat([part.inputs for part in seen]), rows.inputs)
    assert torch.equal(torch.cat([part.targets for part in seen]), rows.targets)
    prior = None
    for part in seen:
        expected = whole(part, tb.PBP(epochs=1), hidden=(6,), seed=2, prior=prior)
        prior = tb.as_prior(expected)
    assert priors[0] is None
    assert torch.equal(actual.mean_MD, expected.mean_MD)  # type: ignore[possibly-unbound]


def test_a_stream_of_one_part_is_one_pass():
    rows = load("uci_boston", split=0).train
    actual = room.streamed(rows, replace(TINY, parts=1), hidden=(6,), seed=2)
    assert torch.equal(actual.mean_MD, room.fitted(rows, tb.PBP(epochs=1), hidden=(6,), seed=2).mean_MD)


@pytest.mark.study  # they are read as those of `uci_table`, whose test of the same name runs always
def test_finished_splits_are_read_and_missing_ones_run(finished, tmp_path):
    home, first = shutil.copytree(finished[0], tmp_path / "run"), finished[1]
    assert np.shape(first["yacht"]["stream"]["rmse"]) == (2,)
    assert "two hidden layers" in first["boston"]
    assert "two hidden layers" not in first["yacht"]
    marked = home / "boston" / "split_1.json"
    scores = json.loads(marked.read_text())
    scores["PBP"]["rmse"] = -7.0
    marked.write_text(json.dumps(scores))
    (home / "yacht" / "split_0.json").unlink()
    again = EXPERIMENT.run(TINY, 5, home)
    assert again["boston"]["PBP"]["rmse"] == [first["boston"]["PBP"]["rmse"][0], -7.0]
    assert again["yacht"]["PBP"]["nll"] == first["yacht"]["PBP"]["nll"]


@pytest.mark.slow
@pytest.mark.study  # the workers are those of `uci_table`, whose test of the same name runs always
def test_worker_processes_change_no_score(tmp_path, monkeypatch):
    of_true_size(monkeypatch, tmp_path, "uci_boston", "uci_yacht")  # separate processes do not see what is patched here
    monkeypatch.setattr(uci_splits, "get_context", lambda _: forked())  # as clean, and begun sooner
    alone = EXPERIMENT.run(TINY, 0, tmp_path / "one")
    torch.set_num_threads(2)
    together = EXPERIMENT.run(TINY, 0, tmp_path / "two")
    for name, fits in alone.items():
        for fit, scores in fits.items():
            assert {k: v for k, v in scores.items() if k != "seconds"} == {
                k: v for k, v in together[name][fit].items() if k != "seconds"
            }


# --- verdicts


def made_up(seed=0, noise=0.002, **shifts):
    """One seed's scores of boston, at the published ones, and `shifts` off these."""
    rng = np.random.default_rng(seed)
    fits = {}
    for fit in ("1 pass", "PBP", "two hidden layers", "stream"):
        fits[fit] = {
            metric: (mean + shifts.get(metric, 0.0) + noise * rng.normal() + 0.3 * np.linspace(-1, 1, 20)).tolist()
            for metric, (mean, _) in room.PUBLISHED["boston"].items()
        }
        fits[fit]["seconds"] = [0.1] * 20
    return {"boston": fits}


@pytest.mark.parametrize(
    ("settings", "outcome", "held"),
    [
        ({}, "holds", 2),
        ({"rmse": 0.15, "nll": 0.08}, "holds", 2),  # within the published standard errors
        ({"nll": 0.12}, "does not hold", 1),
        ({"rmse": 0.3, "nll": -1.0}, "does not hold", 1),
        ({"nll": 0.0945}, "inconclusive", 1),
        ({"noise": 0.5}, "inconclusive", 0),
    ],
)
def test_every_verdict_is_reached(settings, outcome, held):
    verdict = room.summarise([made_up(seed, **settings) for seed in range(3)]).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome == "holds" for part in verdict.parts) == held


def test_one_seed_decides_nothing():
    assert room.summarise([made_up()]).verdict.outcome == "inconclusive"


def test_seeds_are_averaged_before_the_spread_over_splits_is_taken():
    low, high = made_up(0), made_up(1)
    del low["boston"]["two hidden layers"], high["boston"]["two hidden layers"]
    tables = {table.columns[0]: table for table in room.summarise([low, high]).tables}
    each = np.mean([result["boston"]["PBP"]["nll"] for result in (low, high)], axis=0)
    assert tables["test RMSE"].rows[0][2:5:2] == [None, (3.01, 0.18)]
    after = {table.columns[1]: table for table in room.summarise([low, high]).tables}
    assert after["PBP"].columns[0] == "test NLL" or after["PBP"].columns[0] == "test RMSE"
    assert after["1 pass"].rows[0][-1] == pytest.approx((each.mean(), each.std(ddof=1) / math.sqrt(20)))
    assert tables["seconds"].rows[0] == ["boston", 20, pytest.approx(0.1), None, pytest.approx(0.1), pytest.approx(6.0)]


def test_end_to_end(finished, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, finished[1], finished[1])
    assert "boston: NLL no worse than 2.57 + 0.09" in page
    assert "yacht: RMSE no worse than 1.02 + 0.05" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 2
    assert json.loads((tmp_path / "results.json").read_text())["verdict"]["outcome"] != "holds"  # of fits this short


def test_the_small_recipe_covers_five_sets_and_the_paper_one_all():
    small, paper = (EXPERIMENT.recipe(scale) for scale in ("small", "paper"))
    assert set(small.sets) < set(paper.sets) == set(room.PUBLISHED)
    assert replace(paper, sets=small.sets, passes=small.passes) == small
    assert (small.splits, small.method, small.hidden) == (20, tb.PBP(), 50)
    assert all(value[metric][1] >= 0 for value in room.PUBLISHED.values() for metric in room.METRICS)

"""HMC on UCI regression with made-up files: scores and diagnostics recomputed, and every verdict."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

import torchbayes as tb
from tests.experiments.shared.made_up_uci import of_true_size, run_on_small_sets, small_sets
from tests.experiments.shared.pages import page_of
from tests.processes import forked
from torchbayes import networks
from torchbayes.data import load
from torchbayes_experiments.references import hmc_uci as room
from torchbayes_experiments.references.hmc_uci import EXPERIMENT, UCIChainsRecipe
from torchbayes_experiments.shared import uci_splits

pytestmark = pytest.mark.filterwarnings("ignore:.*the noise explains what the mean could:torchbayes.ProblemWarning")
TINY = UCIChainsRecipe(
    prior_scale=(0.5, 0.7),
    lr=(0.02, 0.01),
    sgld_step=(2e-4, 1e-4),
    splits=2,
    width=6,
    steps=(30, 30),
    burn_in=10,
    trajectory=0.05,
    sgld_steps=60,
    sgld_draws=15,
    members=3,
    epochs=4,
    batch_size=20,
)


@pytest.fixture(autouse=True)
def files(tmp_path_factory, monkeypatch):
    """Two made-up sets of 60 rows and 3 features with 2 splits, targets in the hundreds."""
    yield from small_sets(tmp_path_factory.mktemp("data"), monkeypatch, "uci_energy", "uci_yacht")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory and the numbers of a run, and the priors of its fits."""
    seen, fit = [], tb.fit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room.tb, "fit", lambda model, *a, **k: seen.append(model.prior) or fit(model, *a, **k))
        root = tmp_path_factory.mktemp("finished")
        return *run_on_small_sets(EXPERIMENT, TINY, root, "uci_energy", "uci_yacht"), seen


def energy(finished, split):
    """The scores of one split."""
    return {name: {key: values[split] for key, values in of.items()} for name, of in finished[1]["energy"].items()}


def by_hand(weights_SD, data):
    """Log likelihood and RMSE of an average in the target's units, and the means of its draws, in float64."""
    first, bias, second, last = torch.split(weights_SD.double(), [18, 6, 12, 2], dim=-1)
    first, second = first.unflatten(-1, (6, 3)), second.unflatten(-1, (2, 6))
    hidden = torch.relu(data.test.inputs.double() @ first.mT + bias.unsqueeze(1))
    mean_SB, raw_SB = (hidden @ second.mT + last.unsqueeze(1)).unbind(-1)
    shift, scale = (float(part) for part in (data.target_standardise.mean, data.target_standardise.scale))
    targets = data.test.targets[:, 0].double() * scale + shift
    normal = torch.distributions.Normal(mean_SB * scale + shift, (softplus(raw_SB) + 1e-4).sqrt() * scale)
    log_likelihood = (normal.log_prob(targets).logsumexp(0) - math.log(len(weights_SD))).mean().item()
    return log_likelihood, (normal.mean.mean(0) - targets).square().mean().sqrt().item(), mean_SB


@pytest.fixture
def case():
    data = load("uci_energy", split=1)
    network = networks.mlp((3,), 2, hidden=(6,))
    return data, tb.Model(network, tb.likelihoods.HeteroscedasticGaussian(1e-4), tb.priors.Normal(0.7))


def test_scores_are_in_the_units_of_the_file(finished, case):
    data, model = case
    actual = energy(finished, 1)
    weights_MD = tb.fit(model, data.train, TINY.sgd(0.01), seed=5, callbacks=()).sample(3)
    for name, method in (("HMC", TINY.hmc(30)), ("SGLD", TINY.sgld(1e-4))):
        posterior = tb.fit(model, data.train, method, start=weights_MD[:2], seed=5, callbacks=())
        log_likelihood, rmse, mean_SB = by_hand(posterior.sample(posterior.default_draws), data)
        assert actual[name]["log_likelihood"] == pytest.approx(log_likelihood, rel=1e-4)
        assert actual[name]["rmse"] == pytest.approx(rmse, rel=1e-5)
        means = tb.predict(posterior, data.test.inputs).distribution.mean.squeeze(-1)
        torch.testing.assert_close(means.double(), mean_SB, rtol=1e-4, atol=1e-4)
        rhats = tb.diagnostics.rhat(means.unflatten(0, (-1, 2)).transpose(0, 1))
        assert actual[name]["rhat"] == pytest.approx(rhats.tolist(), rel=1e-6)
    alone = [by_hand(one[None], data) for one in weights_MD]
    assert actual["SGD"]["log_likelihood"] == pytest.approx(np.mean([one[0] for one in alone]), rel=1e-4)
    assert actual["SGD"]["rmse"] == pytest.approx(np.mean([one[1] for one in alone]), rel=1e-5)


def test_the_health_of_hmc_is_what_it_logged_after_burn_in(finished, case):
    data, model = case
    records = []
    start = tb.fit(model, data.train, TINY.sgd(0.01), seed=5, callbacks=()).sample(3)[:2]
    log = (lambda event: records.append(event.record),)
    tb.fit(model, data.train, TINY.hmc(30), start=start, seed=5, callbacks=log)
    actual = energy(finished, 1)["HMC"]
    assert actual["acceptance"] == pytest.approx(np.mean([record["acceptance"] for record in records[10:]]))
    assert actual["divergences"] == np.sum([record["divergent"] for record in records[10:]])
    assert actual["leapfrogs"] == np.sum([record["gradients"] for record in records])
    assert actual["step_size"] == pytest.approx(np.mean([record["step_size"] for record in records[10:]]), rel=1e-6)


def test_every_method_has_the_prior_of_its_set(finished):
    scales = [prior.segments[0].prior.scale for prior in finished[2]]
    assert scales == [0.5] * 3 * 2 + [0.7] * 3 * 2  # of three methods on two splits
    assert all(len(prior.segments) == 1 for prior in finished[2])


@pytest.mark.study  # they are read as those of `uci_table`, whose test of the same name runs always
def test_finished_splits_are_read_and_missing_ones_run(finished, tmp_path):
    home, first = shutil.copytree(finished[0], tmp_path / "run"), finished[1]
    assert np.shape(first["yacht"]["HMC"]["rmse"]) == (2,)
    assert np.shape(first["yacht"]["SGLD"]["rhat"]) == (2, 6)
    marked = home / "energy" / "split_1.json"
    scores = json.loads(marked.read_text())
    scores["HMC"]["rmse"] = -7.0
    marked.write_text(json.dumps(scores))
    (home / "yacht" / "split_0.json").unlink()
    again = EXPERIMENT.run(TINY, 5, home)
    assert again["energy"]["HMC"]["rmse"] == [first["energy"]["HMC"]["rmse"][0], -7.0]
    assert again["yacht"] == first["yacht"]


@pytest.mark.study  # the workers are those of `uci_table`, whose test of the same name runs always
@pytest.mark.filterwarnings("ignore:this posterior should not be trusted")  # a few iterations sample nothing
def test_worker_processes_change_no_number(tmp_path, monkeypatch):
    of_true_size(monkeypatch, tmp_path, "uci_energy", "uci_yacht")  # separate processes do not see what is patched here
    monkeypatch.setattr(uci_splits, "get_context", lambda _: forked())  # as clean, and begun sooner
    alone = EXPERIMENT.run(TINY, 0, tmp_path / "one")
    torch.set_num_threads(2)
    assert EXPERIMENT.run(TINY, 0, tmp_path / "two") == alone


def made_up(*, hmc=-1.0, sgld=-1.5, sgd=-2.0, rhat=1.01, noise=0.05, seed=0):
    """One seed's scores of yacht on five splits, with a spread over splits that all methods share."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=5)
    values = {}
    for method, level in {"HMC": hmc, "SGLD": sgld, "SGD": sgd}.items():
        values[method] = {
            "log_likelihood": (level + shared + noise * rng.normal(size=5)).tolist(),
            "rmse": (-level + noise * rng.normal(size=5)).tolist(),
        }
    for method in ("HMC", "SGLD"):
        # one prediction of 20 is bad however good the chains
        rhats = [[*(rhat + 0.001 * rng.random(19)), 3.0] for _ in range(4)] + [[rhat] * 20]
        values[method] |= {"rhat": rhats, "ess": [50.0] * 5, "rhat_weights": [1.5] * 5}
    values["HMC"] |= {"acceptance": [0.8] * 5, "divergences": [0, 0, 1, 0, 0], "step_size": [1e-3] * 5}
    values["HMC"] |= {"leapfrogs": [1000.0] * 5}
    return {"yacht": values}


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()], "holds", 0),
        ([made_up(), made_up(seed=1)], "holds", 0),
        ([made_up(sgld=-0.5)], "does not hold", 1),
        ([made_up(hmc=-2.5)], "does not hold", 2),
        ([made_up(sgld=-1.0, noise=0.3)], "inconclusive", 1),
        ([made_up(rhat=1.3)], "inconclusive", 1),
        ([made_up(rhat=1.3, hmc=-2.5)], "inconclusive", 3),  # chains that disagree prove nothing
        ([made_up(rhat=math.nan)], "inconclusive", 1),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    verdict = room.summarise(results).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in verdict.parts) == open_parts
    values = [np.mean([r["yacht"][m]["log_likelihood"] for r in results], axis=0) for m in ("SGD", "HMC")]
    assert verdict.parts[1].evidence.startswith(f"mean {np.mean(values[0] - values[1]):.4g},".replace("-", "−"))


def test_tables_hold_the_distance_to_the_paper():
    results = [made_up()]
    likelihoods, rmses, differences, health = (table.rows for table in room.summarise(results).tables)
    assert [row[1] for row in likelihoods] == ["SGD", "SGLD", "HMC"]
    ours = np.array(results[0]["yacht"]["HMC"]["log_likelihood"])
    mean, error = likelihoods[2][2]  # type: ignore[misc]
    assert mean == pytest.approx(ours.mean())
    assert error == pytest.approx(ours.std(ddof=1) / math.sqrt(5))
    assert likelihoods[2][3] == 0.55
    assert likelihoods[2][4] == pytest.approx(ours.mean() - 0.55)
    assert rmses[2][3] == 0.65
    paired = ours - np.array(results[0]["yacht"]["SGLD"]["log_likelihood"])
    assert differences[1][:3] == ["yacht", "log likelihood", "HMC − SGLD"]
    assert differences[1][3] == pytest.approx(paired.mean())
    assert health[1][:2] == ["yacht", "HMC"]
    assert health[1][3] == "96.0 %"  # four of a hundred predictions are above the bound
    assert health[1][7] == 1


def test_end_to_end(finished, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, finished[1])
    assert "energy: log likelihood of SGLD below that of HMC" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 3


def test_both_recipes_have_the_same_settings():
    small, paper = (EXPERIMENT.recipe(scale) for scale in ("small", "paper"))
    assert (small.prior_scale, small.lr, small.sgld_step) == (paper.prior_scale, paper.lr, paper.sgld_step)
    assert (small.splits, paper.splits) == (10, 20)
    assert small.sets == tuple(room.PUBLISHED)
    assert len(small.prior_scale) == len(small.lr) == len(small.steps) == len(small.sgld_step) == len(small.sets)
    assert small.hmc(320).chains == small.sgld(1e-5).chains

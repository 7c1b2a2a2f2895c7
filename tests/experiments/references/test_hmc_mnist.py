"""HMC on few images: a tiny chain against direct computation, time that is up, every verdict from made-up chains."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ttest_ind
from torch.nn.functional import cross_entropy

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes import networks
from torchbayes.data import load
from torchbayes.posteriors.files import sealed, unsealed
from torchbayes_experiments.references import hmc_mnist as room
from torchbayes_experiments.references.hmc_mnist import EXPERIMENT, MNISTChainRecipe

TINY = MNISTChainRecipe(
    data="digits",
    train_size=40,
    hidden=(8,),
    step_size=0.01,
    trajectory=0.3,
    iterations=7,
    minutes=60.0,
    burn_in=0.3,
    narrow_scale=0.5,
    narrow_step_size=0.05,
    narrow_iterations=4,
    members=2,
    epochs=5,
    batch_size=20,
    test_rows=100,
)


def tiny_model(scale=1.0):
    data = load("digits", train_size=40)
    network = networks.mlp(data.input_shape, 10, hidden=(8,))
    return data, tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(scale))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("chain")
    return directory, EXPERIMENT.run(TINY, 3, directory)


def outputs(directory):
    """Outputs (S, B, 10) of every place of the chain at the test rows, in float64, by plain matrix products."""
    data, model = tiny_model()
    weights_SD = tb.load(directory / "hmc" / "posterior.safetensors", model).sample(7).double()
    views, _ = model.split(weights_SD)
    inputs = data.test.inputs[:100].flatten(1).double()
    hidden = torch.relu(inputs @ views["1.weight"].mT + views["1.bias"].unsqueeze(1))
    return hidden @ views["3.weight"].mT + views["3.bias"].unsqueeze(1), data.test.targets[:100]


def test_scores_are_those_of_averaged_probabilities(tiny):
    directory, actual = tiny
    outputs_SBK, targets = outputs(directory)
    probs_SBK = outputs_SBK.softmax(-1)
    assert actual["left_out"] == 2
    kept = probs_SBK[2:]
    for count in (1, 3, 5):
        mean = kept[:count].mean(0)
        nll = -mean[torch.arange(100), targets].log().mean().item()
        assert actual["running"]["nll"][count - 1] == pytest.approx(nll, rel=1e-4)
        accuracy = (mean.argmax(-1) == targets).double().mean().item()
        assert actual["running"]["accuracy"][count - 1] == pytest.approx(accuracy)
    assert actual["scores"]["average"] == {key: actual["running"][key][-1] for key in room.METRICS}
    each = [cross_entropy(one, targets).item() for one in outputs_SBK]
    assert actual["each"]["nll"] == pytest.approx(each, rel=1e-4)
    assert actual["scores"]["draw"]["nll"] == pytest.approx(np.mean(each[2:]), rel=1e-4)


def test_a_single_network_is_the_mean_over_modes_alone(tiny):
    _, actual = tiny
    data, model = tiny_model()
    modes = tb.fit(model, data.train, TINY.single(), seed=3, callbacks=())
    test = (data.test.inputs[:100], data.test.targets[:100])
    alone = [tb.evaluate(tb.Point(model, w[None]), test).metrics["nll"] for w in modes.sample(2)]
    assert actual["scores"]["single"]["nll"] == pytest.approx(np.mean(alone), rel=1e-5)


def test_the_narrower_prior_has_a_chain_and_modes_of_its_own(tiny):
    directory, actual = tiny
    data, model = tiny_model(scale=0.5)
    draws = tb.load(directory / "narrow" / "posterior.safetensors", model)
    assert draws.default_draws == 4
    test = (data.test.inputs[:100], data.test.targets[:100])
    weights_SD = draws.sample(4)
    average = tb.evaluate(tb.Point(model, weights_SD[1:]), test)  # one iteration of four is burn-in
    assert actual["narrow"]["scores"]["average"]["nll"] == pytest.approx(average.metrics["nll"], rel=1e-5)
    prior = torch.distributions.Normal(0.0, 0.5).log_prob(weights_SD.double()).sum(-1)
    chain = actual["narrow"]["chain"]
    entropy = torch.distributions.Normal(0.0, 0.5).entropy().item()
    assert actual["narrow"]["prior_mean"] == pytest.approx(-entropy * weights_SD.shape[1])
    assert np.subtract(chain["log_density"], chain["log_likelihood"]) == pytest.approx(prior.tolist(), rel=1e-6)
    assert chain["gradients"] == [math.ceil(math.pi / 2 * 0.5 / 0.05)] * 4
    modes = tb.fit(model, data.train, TINY.single(), seed=3, callbacks=()).sample(2)
    alone = [tb.evaluate(tb.Point(model, w[None]), test).metrics["nll"] for w in modes]
    assert actual["narrow"]["scores"]["single"]["nll"] == pytest.approx(np.mean(alone), rel=1e-5)


def test_the_log_density_is_that_of_the_chains_places(tiny):
    directory, actual = tiny
    data, model = tiny_model()
    weights_SD = tb.load(directory / "hmc" / "posterior.safetensors", model).sample(7).double()
    views, _ = model.split(weights_SD)
    hidden = torch.relu(data.train.inputs.flatten(1).double() @ views["1.weight"].mT + views["1.bias"].unsqueeze(1))
    outputs_SBK = hidden @ views["3.weight"].mT + views["3.bias"].unsqueeze(1)
    likelihood = [-cross_entropy(one, data.train.targets, reduction="sum").item() for one in outputs_SBK]
    assert actual["chain"]["log_likelihood"] == pytest.approx(likelihood, rel=1e-4)
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(weights_SD).sum(-1)
    assert actual["chain"]["log_density"] == pytest.approx((prior + torch.tensor(likelihood)).tolist(), rel=1e-6)
    entropy = torch.distributions.Normal(0.0, 1.0).entropy().item()
    assert actual["prior_mean"] == pytest.approx(-entropy * (64 * 8 + 8 + 8 * 10 + 10))
    assert sum(actual["chain"]["gradients"]) == 7 * 30


def test_an_interrupted_chain_goes_on_and_ends_as_an_uninterrupted_one(tiny, tmp_path):
    _, actual = tiny
    data, model = tiny_model()
    home = tmp_path / "hmc"
    tb.fit(model, data.train, TINY.chain(), seed=3, directory=home, callbacks=(lambda event: event.step == 3,))
    assert len((home / "log.jsonl").read_text().splitlines()) == 3
    again = room.run(TINY, 3, tmp_path)
    assert again["scores"] == actual["scores"]
    assert again["chain"]["log_density"] == actual["chain"]["log_density"]


def test_the_minutes_of_all_sittings_count(tmp_path):
    short = replace(TINY, minutes=1e-9)
    first = room.run(short, 3, tmp_path)
    assert (len(first["chain"]["seconds"]), first["left_out"]) == (1, 0)
    assert room.run(short, 3, tmp_path) == first
    # an iteration that took 90 s leaves no time of a minute and a half, but some of a little more
    log = tmp_path / "hmc" / "log.jsonl"
    log.write_text(json.dumps(sealed({**unsealed(log.read_text()), "seconds": 90.0})) + "\n")
    assert len(room.run(replace(TINY, minutes=1.5), 3, tmp_path)["chain"]["seconds"]) == 1
    assert len(room.run(replace(TINY, minutes=1.6), 3, tmp_path)["chain"]["seconds"]) == 7


def test_energy_errors_are_what_acceptance_says():
    assert room.energy_errors([math.exp(-0.3), 1.0, math.exp(-2.0)]) == pytest.approx([0.3, 0.0, 2.0])
    assert np.isfinite(room.energy_errors([0.0])).all()


@pytest.mark.parametrize("length", [4, 8, 9, 30])
def test_the_drift_is_the_t_statistic_of_the_halves(length):
    values = np.random.default_rng(length).normal(-400.0, 5.0, length)
    half = length // 2
    statistic: float = ttest_ind(values[:half], values[-half:]).statistic  # type: ignore[attr-defined]
    assert room.drift(values.tolist()) == pytest.approx(abs(statistic))
    assert room.drift(values[:3].tolist()) == math.inf


def made_up(*, acceptance=0.99, trend=0.0, single=1.0, draw=5.0, average=0.8, narrow=0.7, iterations=12):
    """A chain whose log density is white noise around a trend, and scores as given."""
    rng = np.random.default_rng(0)
    density = -1000 + rng.normal(size=iterations) + trend * np.arange(iterations)
    chain = {
        "log_density": density.tolist(),
        "log_likelihood": [-1.0] * iterations,
        "acceptance": [acceptance] * iterations,
        "seconds": [30.0] * iterations,
        "gradients": [10_000.0] * iterations,
    }
    nlls = {"single": single, "draw": draw, "average": average}
    scores = {k: {"accuracy": 0.9 - 0.1 * nll / 5, "nll": nll, "ece": 0.1} for k, nll in nlls.items()}
    columns = {key: [scores["draw"][key]] * iterations for key in room.METRICS}
    running = {key: [*columns[key][:9], scores["average"][key]] for key in room.METRICS}
    actual = {
        "chain": chain,
        "left_out": 2,
        "prior_mean": -1000.0,
        "each": columns,
        "running": running,
        "scores": scores,
    }
    second = {**scores, "average": {**scores["average"], "nll": narrow}}
    return actual | {"narrow": {**actual, "scores": second}}


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(1)
    results = copy.deepcopy(results)
    for result in results:
        for scores in [*result["scores"].values(), *result["narrow"]["scores"].values()]:
            for key in scores:
                scores[key] += rng.normal(0, 1e-4)
        result["chain"]["log_density"] = (np.array(result["chain"]["log_density"]) + rng.normal(0, 0.1, 12)).tolist()
        result["chain"]["acceptance"] = (np.array(result["chain"]["acceptance"]) + rng.normal(0, 1e-4, 12)).tolist()
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(acceptance=0.7)] * 3, "does not hold", 1),
        ([made_up(trend=3.0)] * 3, "does not hold", 1),
        ([made_up(average=1.2)] * 3, "does not hold", 1),
        ([made_up(average=6.0, single=7.0)] * 3, "does not hold", 1),
        ([made_up(average=a) for a in (0.7, 1.1, 0.95)], "inconclusive", 1),
        ([made_up(narrow=1.1)] * 3, "does not hold", 1),
        ([made_up()], "inconclusive", 5),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    verdict = room.summarise(jitter(results)).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in verdict.parts) == open_parts


def test_a_chain_too_short_to_judge_is_left_open():
    results = [{**made_up(), "left_out": 10}] * 3
    part = room.summarise(results).verdict.parts[1]
    assert part.outcome == "inconclusive"
    assert "fewer than four" in part.evidence


def test_tables_hold_the_numbers():
    slow = made_up(average=0.6)
    slow["chain"]["seconds"] = [60.0] * 12
    scores, narrow, chains, running = (table.markdown() for table in room.summarise([made_up(), slow]).tables)
    assert "| model average of HMC | **0.8860 ± 0.0020** | **0.700 ± 0.100** |" in scores
    assert "| model average of HMC | **0.8860 ± 0.0020** | **0.700 ± 0.000** |" in narrow
    # 12 × 30 s for 120,000 steps are 6 minutes, 3 ms a step; −log 0.99 = 0.01005
    assert "| 0 | 12 | 2 | 6.0 | 3.00 | 0.9900 | 0.0101 |" in chains
    assert "| 1 | 12 | 2 | 12.0 | 6.00 | 0.9900 |" in chains
    assert "| 10 | 0.8860 ± 0.0020 | 0.700 ± 0.100 |" in running
    assert [line.split("|")[1].strip() for line in running.splitlines()[2:7]] == ["1", "2", "4", "8", "10"]


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert "| 1 | 7 | 2 |" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 3


def test_the_recipe_is_the_published_setting():
    small, paper = (EXPERIMENT.recipe(scale) for scale in ("small", "paper"))
    shorter = {"iterations": small.iterations, "minutes": small.minutes, "burn_in": small.burn_in}
    assert replace(paper, **shorter) == small
    assert int(small.burn_in * small.iterations) == 1
    chain = paper.chain()
    assert (chain.step_size, chain.trajectory, chain.max_leapfrogs, chain.steps) == (3e-5, 1.5, 50_000, 100)
    assert int(paper.burn_in * paper.iterations) == 10

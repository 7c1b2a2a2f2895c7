"""How HMC chains mix: R-hat of a tiny run against the formula in numpy, and every verdict from made-up numbers."""

import copy
import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, rankdata

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes.posteriors import Functions
from torchbayes_experiments.references import hmc_mixing as room
from torchbayes_experiments.references import hmc_reference
from torchbayes_experiments.references.hmc_mixing import EXPERIMENT, MixingRecipe
from torchbayes_experiments.shared import image_hmc

TINY = MixingRecipe(
    digits=image_hmc.Problem(
        "digits",
        60,
        tb.HMC(chains=3, steps=16, burn_in=4, max_leapfrogs=8),
        prior_scale=0.3,
        hidden=(5,),
        test_rows=20,
    ),
    noisy=None,
    mnist=None,
    narrow=None,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mixing")
    return directory, EXPERIMENT.run(TINY, 2, directory)


def draws(directory):
    setup = image_hmc.set_up(TINY.digits, 2)
    posterior = tb.load(directory / "problem_0" / "hmc" / "posterior.safetensors", setup.model)
    return setup, posterior


def rank_rhat(values_MS: Any) -> float:
    """Return the rank-normalised split R-hat of one quantity (Vehtari et al. 2021, section 4.1)."""

    def split_rhat(values: Any) -> float:
        scores: Any = norm.ppf(
            (rankdata(values.astype(np.float64)).reshape(values.shape) - 0.375) / (values.size + 0.25)
        )
        within, length = scores.var(1, ddof=1).mean(), scores.shape[1]
        return np.sqrt((length - 1) / length + scores.mean(1).var(ddof=1) / within)

    halves = np.concatenate(np.split(values_MS, 2, axis=1))
    return max(split_rhat(halves), split_rhat(abs(halves - np.median(halves))))


def test_rhat_is_that_of_the_saved_draws_in_both_spaces(tiny):
    directory, actual = tiny
    setup, posterior = draws(directory)
    chains: Any = posterior.weights_MSD  # type: ignore[attr-defined]
    assert tuple(chains.shape) == (3, 12, 65 * 5 + 6 * 10)
    outputs = [Functions(posterior.model, of_chain)(setup.test.inputs) for of_chain in chains]
    probs = np.stack([part.softmax(-1).numpy() for part in outputs])
    probs_64, chains_64 = probs.reshape(3, 12, -1).astype(np.float64), chains.double().numpy()
    # with other blocks of rows the last digits of probabilities change, and ranks of nearly equal ones
    for space, values, close in (("weights", chains_64, 1e-6), ("functions", probs_64, 2e-3)):
        rhat = np.array([rank_rhat(values[:, :, place]) for place in range(np.shape(values)[-1])])
        numbers = actual["digits"][space]
        assert numbers["median"] == pytest.approx(np.median(rhat), rel=close)
        assert numbers["maximum"] == pytest.approx(rhat.max(), rel=close)
        assert numbers["share"] == pytest.approx(np.mean(rhat < 1.1), abs=2 * close)
        assert numbers["high"] == pytest.approx(np.quantile(rhat, 0.95), rel=close)
        assert numbers["quantities"] == rhat.size
        spread = room.spread_out(actual["digits"]["counts"][space])
        np.testing.assert_allclose(np.mean(spread), np.mean(rhat), atol=6e-5 + close)
        assert np.median(spread) == pytest.approx(numbers["median"], abs=5.1e-5)


def test_what_the_log_says(tiny):
    directory, actual = tiny
    lines = (directory / "problem_0" / "hmc" / "log.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines[4:]]
    numbers = actual["digits"]
    assert numbers["acceptance"] == pytest.approx(np.mean([record["acceptance"] for record in log]))
    assert numbers["leapfrogs"] == pytest.approx(np.mean([record["gradients"] for record in log]))
    assert numbers["divergences"] == sum(sum(record["divergent"]) for record in log)
    assert (numbers["chains"], numbers["draws"], numbers["iterations"]) == (3, 12, 12)
    traces = {trace["name"]: np.array(trace["values"]) for trace in numbers["traces"]}
    np.testing.assert_allclose(traces["log density"].T, [record["log_density"] for record in log], atol=0.051)
    _, posterior = draws(directory)
    worst = next(values for name, values in traces.items() if name.startswith("weight "))
    distance = abs(posterior.weights_MSD.numpy() - worst[:, :, None]).max((0, 1))  # type: ignore[attr-defined]
    assert distance.min() < 1e-4


def test_a_second_call_reads_what_is_done(tiny):
    directory, actual = tiny
    assert room.run(TINY, 2, directory) == actual
    path = directory / "problem_0" / "mixing.json"
    before = path.read_bytes()
    path.unlink()
    assert room.run(TINY, 2, directory)["digits"]["weights"]["median"] == actual["digits"]["weights"]["median"] > 0.9
    assert path.read_bytes() == before


def made_up(*, functions=(1.01, 1.2, 0.99), weights=(1.05, 3.0, 0.9), divergences=0):
    """One seed's numbers of one problem: (median, maximum, share below 1.1) of each space."""

    def space(median, maximum, share):
        return {"median": median, "high": 1.1, "maximum": maximum, "share": share, "ess": 100.0, "quantities": 10}

    chains = {"chains": 4, "draws": 100, "iterations": 100, "leapfrogs": 50.0, "acceptance": 0.8, "ebfmi": 1.0}
    chains |= {"step_size": 1e-3, "divergences": divergences, "floor": space(1.0, 1.02, 1.0)}
    chains["counts"] = {"weights": {"1.050": 6, "3.000": 4}, "functions": {"1.010": 10}}
    values = np.random.default_rng(0).normal(size=(4, 100)).round(4).tolist()
    chains["traces"] = [{"name": "log density", "values": values, "at": list(range(1, 101)), "over": "iteration"}]
    return {"digits": chains | {"functions": space(*functions), "weights": space(*weights)}}


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(0)
    results = copy.deepcopy(results)
    for result in results:
        for space in ("functions", "weights"):
            for key in ("median", "maximum", "share"):
                result["digits"][space][key] += rng.normal(0, 1e-4)
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(functions=(1.06, 1.2, 0.99))] * 3, "does not hold", 1),
        ([made_up(functions=(1.01, 1.2, 0.94))] * 3, "does not hold", 2),
        ([made_up(functions=(1.01, 1.2, 0.955), weights=(1.05, 3.0, 0.92))] * 3, "does not hold", 1),
        ([made_up(functions=(1.01, 3.1, 0.99))] * 3, "does not hold", 1),
        ([made_up(functions=(1.01, 3.1, 0.99), divergences=20)] * 3, "inconclusive", 2),
        ([made_up(), made_up(functions=(1.2, 1.2, 0.99)), made_up()], "inconclusive", 1),
        ([made_up()], "inconclusive", 5),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    verdict = room.summarise(jitter(results)).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in verdict.parts) == open_parts


def test_tables_hold_the_means():
    actual = room.summarise([made_up(), made_up(weights=(1.15, 5.0, 0.8))])
    texts = [table.markdown() for table in actual.tables]
    assert (
        "| digits | weights | 10 | 1.100 ± 0.050 | 1.100 ± 0.000 | 4.000 ± 1.000 | 0.8500 ± 0.0500 | 100 ± 0 |"
        in texts[0]
    )
    assert "| digits | 4 × 100 | 50 ± 0 | 0.00100 ± 0.00000 | 0.80 ± 0.00 | 1.00 ± 0.00 | 0 |" in texts[1]
    assert "| digits | independent draws | 10 | 1.000 ± 0.000 |" in texts[0]
    half = next(part for part in actual.verdict.parts if part.statement.startswith("digits: median"))
    assert half.evidence.startswith("mean −0.09,")  # 1.01 less the mean of 1.05 and 1.15


def test_independent_draws_set_the_floor():
    short, long = (room.independent(4, draws, 0, quantities=300) for draws in (20, 500))
    assert short["median"] > long["median"] > 0.999
    assert long["maximum"] < 1.05
    assert long["ess"] == pytest.approx(2000, rel=0.1)


def test_both_experiments_run_the_same_chains():
    small = EXPERIMENT.recipe("small").problems()
    narrow = small.pop("digits, narrow network")
    assert small == hmc_reference.EXPERIMENT.recipe("small").problems()
    assert list(small) == ["digits", "digits, noisy labels", "MNIST"]
    assert narrow.prior_scale == 1.0


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert "| digits | test probabilities | 200 |" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 2
    assert len(json.loads((tmp_path / "results.json").read_text())["seeds"]) == 2

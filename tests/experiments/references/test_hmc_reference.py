"""HMC as the reference: tiny runs against direct computation, and every verdict from made-up scores."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes.data import load
from torchbayes_experiments.references import hmc_reference as room
from torchbayes_experiments.references.hmc_reference import EXPERIMENT, ReferenceRecipe
from torchbayes_experiments.shared import image_hmc

TINY = ReferenceRecipe(
    digits=image_hmc.Problem(
        "digits",
        60,
        tb.HMC(chains=3, steps=12, burn_in=4, max_leapfrogs=8),
        prior_scale=0.3,
        hidden=(5,),
        test_rows=40,
        spare_rows=30,
    ),
    noisy=None,
    mnist=None,
    ensemble=tb.MAP(members=2, epochs=2, batch_size=20),
    sgld=tb.SGLD(chains=2, steps=12, burn_in=4, thin=2, step_size=1e-5, batch_size=20),
    sghmc=tb.SGHMC(chains=2, steps=12, burn_in=4, thin=2, step_size=1e-5, batch_size=20),
    cyclical=tb.SGHMC(
        chains=2, steps=12, burn_in=0, thin=2, step_size=1e-5, batch_size=20, schedule=tb.Cycles(6, draws=2)
    ),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("reference")
    return directory, EXPERIMENT.run(TINY, 3, directory)


def saved(directory, method):
    """Return the rows of the run, and the test probabilities of each saved chain or member, computed by hand."""
    setup = image_hmc.set_up(TINY.digits, 3)
    posterior = tb.load(directory / "problem_0" / method / "posterior.safetensors", setup.model)
    weights = posterior.weights_MSD if isinstance(posterior, tb.Draws) else posterior.weights_MD[:, None]  # type: ignore[attr-defined]
    inputs = setup.test.inputs.flatten(1).double()
    probs = []
    for of_chain in weights.double():
        each = []
        for flat in of_chain:
            w1, b1, w2, b2 = flat.split([64 * 5, 5, 50, 10])
            hidden = torch.relu(inputs @ w1.view(5, 64).T + b1)
            each.append((hidden @ w2.view(10, 5).T + b2).softmax(-1))
        probs.append(torch.stack(each).mean(0))
    return setup, torch.stack(probs)


def test_quality_is_that_of_the_saved_draws(tiny):
    directory, actual = tiny
    actual = actual["digits"]["methods"]
    for name, method in (("HMC", "hmc"), ("deep ensemble", "deep_ensemble"), ("SGLD", "sgld"), ("cSGHMC", "csghmc")):
        setup, probs = saved(directory, method)
        rows = torch.arange(40)
        nlls = [-p[rows, setup.test.targets].log().mean().item() for p in probs]
        whole = probs.mean(0)
        assert actual[name]["one"]["nll"] == pytest.approx(np.mean(nlls), rel=1e-5)
        assert actual[name]["all"]["nll"] == pytest.approx(
            -whole[rows, setup.test.targets].log().mean().item(), rel=1e-5
        )
        right = (whole.argmax(-1) == setup.test.targets).double().mean().item()
        assert actual[name]["all"]["accuracy"] == pytest.approx(right)
        assert actual[name]["all"]["gap"] == pytest.approx(whole.amax(-1).mean().item() - right, abs=1e-5)


def test_closeness_is_to_all_of_hmc_and_of_one_chain_to_the_others(tiny):
    directory, actual = tiny
    actual = actual["digits"]["methods"]
    _, hmc = saved(directory, "hmc")
    _, other = saved(directory, "sghmc")
    reference = hmc.mean(0)

    def distance(p, q):
        return (p - q).abs().sum(-1).mean().item() / 2

    expected = np.mean([distance(p, reference) for p in other])
    assert actual["SGHMC"]["one"]["total_variation"] == pytest.approx(expected, rel=1e-5)
    assert actual["SGHMC"]["all"]["total_variation"] == pytest.approx(distance(other.mean(0), reference), rel=1e-5)
    same = [(p.argmax(-1) == reference.argmax(-1)).double().mean().item() for p in other]
    assert actual["SGHMC"]["one"]["agreement"] == pytest.approx(np.mean(same))
    expected = np.mean([distance(hmc[m], hmc[[n for n in range(3) if n != m]].mean(0)) for m in range(3)])
    assert actual["HMC"]["one"]["total_variation"] == pytest.approx(expected, rel=1e-5)
    assert "total_variation" not in actual["HMC"]["all"]


def test_the_temperature_is_fitted_on_spare_rows(tiny):
    directory, actual = tiny
    setup = image_hmc.set_up(TINY.digits, 3)
    posterior = tb.load(directory / "problem_0" / "hmc" / "posterior.safetensors", setup.model)
    spare = tb.predict(posterior, setup.spare.inputs).probs.double().log()
    betas = torch.linspace(0.05, 12, 4000, dtype=torch.float64)
    losses = torch.stack([F.cross_entropy(beta * spare, setup.spare.targets) for beta in betas])
    best = betas[losses.argmin()]
    whole = actual["digits"]["methods"]["HMC"]["all"]
    assert whole["temperature"] == pytest.approx(1 / best.item(), rel=2e-2)
    test = tb.predict(posterior, setup.test.inputs).probs.double().log() / whole["temperature"]
    assert whole["nll_scaled"] == pytest.approx(F.cross_entropy(test, setup.test.targets).item(), rel=1e-4)


def test_rows_of_a_problem_are_disjoint_and_drawn_by_the_seed():
    digits = load("digits")
    first, again, other = (image_hmc.set_up(TINY.digits, seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)
    assert torch.equal(first.test.inputs, other.test.inputs)
    assert torch.equal(first.test.inputs, digits.test.inputs[::9])
    keys = [{row.numpy().tobytes() for row in part.inputs} for part in (first.train, first.spare, digits.test)]
    known = {row.numpy().tobytes() for row in digits.train.inputs}
    assert keys[0].isdisjoint(keys[1])
    assert keys[0] | keys[1] <= known
    assert (keys[0] | keys[1]).isdisjoint(keys[2])
    assert [len(part.targets) for part in (first.train, first.spare, first.test)] == [60, 30, 40]


def test_images_are_averaged_and_labels_made_wrong():
    plain = image_hmc.Problem("digits", 1000, TINY.digits.hmc, prior_scale=0.3)
    noisy = replace(plain, pool=2, noise=0.2)
    one, two = image_hmc.set_up(plain, 5), image_hmc.set_up(noisy, 5)
    means = one.train.inputs.view(1000, 1, 4, 2, 4, 2).mean((3, 5))
    torch.testing.assert_close(two.train.inputs, means)
    assert two.model.network.layout.size == (16 + 1) * 50 + 51 * 50 + 51 * 10
    for part in ("train", "spare", "test"):
        wrong = (getattr(one, part).targets != getattr(two, part).targets).double().mean().item()
        assert wrong == pytest.approx(0.2 * 0.9, abs=0.06)


def test_too_many_training_rows_are_refused():
    with pytest.raises(ValueError, match="must leave some of its 1437 training rows; got 1437"):
        image_hmc.set_up(replace(TINY.digits, train_size=1437), 0)


def test_a_second_call_reads_what_is_done_and_resumes_the_rest(tiny):
    directory, actual = tiny
    assert room.run(TINY, 3, directory) == actual
    path = directory / "problem_0" / "scores.json"
    before = path.read_bytes()
    path.unlink()
    again = room.run(TINY, 3, directory)
    assert path.read_bytes() == before
    assert again["digits"]["methods"]["HMC"]["all"]["nll"] == actual["digits"]["methods"]["HMC"]["all"]["nll"] > 0


def test_passes_over_the_data(tiny):
    directory, actual = tiny
    log = [json.loads(line) for line in (directory / "problem_0" / "hmc" / "log.jsonl").read_text().splitlines()]
    passes = actual["digits"]["passes"]
    assert passes["HMC"] == sum(sum(record["gradients"]) for record in log)
    assert passes["deep ensemble"] == 2 * 2
    assert passes["SGLD"] == pytest.approx(2 * 12 * 20 / 60)


GOOD = {
    "HMC": (0.20, 1.0, 0.02),
    "deep ensemble": (0.22, 0.95, 0.08),
    "single": (0.30, 0.90, 0.12),
    "SGLD": (0.21, 0.97, 0.05),
    "SGHMC": (0.21, 0.97, 0.05),
    "cSGHMC": (0.21, 0.97, 0.05),
}


def made_up(rhat_share=0.99, **changed):
    """One seed's scores of one problem: method -> (NLL, agreement, total variation)."""
    numbers = {**GOOD, **{name.replace("_", " "): value for name, value in changed.items()}}
    common = {"accuracy": 0.9, "ece": 0.05, "gap": -0.02, "temperature": 0.8}

    def metrics(name):
        nll, agreement, distance = numbers[name]
        return common | {"nll": nll, "nll_scaled": nll - 0.05, "agreement": agreement, "total_variation": distance}

    methods = {name: {"all": metrics(name), "one": metrics(name)} for name in numbers if name != "single"}
    methods["deep ensemble"]["one"] = metrics("single")
    chains = {"chains": 4, "draws": 100, "leapfrogs": 100.0, "acceptance": 0.8, "divergences": 0, "ebfmi": 1.0}
    chains |= {"functions": {"share": rhat_share}, "weights": {"share": 0.9}}
    return {"digits": {"methods": methods, "chains": chains, "passes": dict.fromkeys(methods, 1000.0)}}


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(0)
    results = copy.deepcopy(results)
    for result in results:
        result["digits"]["chains"]["functions"]["share"] += rng.normal(0, 1e-4)
        for method in result["digits"]["methods"].values():
            for metrics in method.values():
                for key in ("nll", "agreement", "total_variation"):
                    metrics[key] += rng.normal(0, 1e-3)
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(HMC=(0.25, 1.0, 0.02))] * 3, "does not hold", 1),  # another method is better by more than the margin
        ([made_up(HMC=(0.35, 1.0, 0.02))] * 3, "does not hold", 2),  # worse than a single network too
        ([made_up(SGLD=(0.21, 0.88, 0.05))] * 3, "does not hold", 1),
        ([made_up(SGLD=(0.21, 0.97, 0.13))] * 3, "does not hold", 1),
        ([made_up(SGLD=(0.21, 0.97, 0.09))] * 3, "holds", 0),  # the best of the three is still nearer than the ensemble
        ([made_up(deep_ensemble=(0.22, 0.95, 0.15))] * 3, "does not hold", 1),
        ([made_up(deep_ensemble=(0.22, 0.95, 0.03))] * 3, "does not hold", 1),
        ([made_up(HMC=(0.35, 1.0, 0.13))] * 3, "inconclusive", 3),  # chains that do not agree are no reference
        ([made_up(0.9, HMC=(0.35, 1.0, 0.02))] * 3, "inconclusive", 3),
        ([made_up(), made_up(HMC=(0.4, 1.0, 0.02)), made_up()], "inconclusive", 2),
        ([made_up()], "inconclusive", 8),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = room.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_tables_hold_the_means():
    actual = room.summarise([made_up(), made_up(SGLD=(0.41, 0.97, 0.09))])
    texts = [table.markdown() for table in actual.tables]
    assert "| SGLD, one chain | 0.9000 ± 0.0000 | 0.3100 ± 0.1000 |" in texts[0]
    assert "| HMC, all chains | 0.9000 ± 0.0000 | **0.2000 ± 0.0000** |" in texts[0]
    assert "| single network | 0.9000 ± 0.0000 | 0.3000 ± 0.0000 |" in texts[0]
    assert "| SGD | 83.44 ± 1.14 | 85.48 ± 1.00 | 0.190 ± 0.005 | 0.80 | 0.120 |" in texts[1]
    assert "| digits | 4 × 100 | 100 ± 0 |" in texts[4]
    part = next(part for part in actual.verdict.parts if "NLL of HMC below" in part.statement)
    assert part.evidence.startswith("mean −0.1,")
    assert len(actual.figures) == 4


def test_published_numbers_are_ordered_as_the_claim_says():
    distances = {name: row[2][0] for name, row in room.PUBLISHED.items()}
    assert distances["HMC, one chain"] < distances["SGHMC, cyclical"] < distances["deep ensemble (50)"]
    assert distances["deep ensemble (50)"] < distances["SGD"] == 0.190


def test_the_paper_recipe_is_the_published_one():
    paper = EXPERIMENT.recipe("paper")
    hmc = paper.digits.hmc
    assert (hmc.chains, hmc.burn_in, hmc.steps) == (3, 50, 290)
    assert np.ceil(np.pi / 2 * paper.digits.prior_scale / hmc.step_size) == pytest.approx(70_248, abs=1)
    assert (paper.sgld.steps - paper.sgld.burn_in) / paper.sgld.thin == 900
    small = EXPERIMENT.recipe("small")
    assert list(small.problems()) == ["digits", "digits, noisy labels", "MNIST"]
    assert list(paper.problems()) == ["CIFAR-10"]
    assert room.passes_of(small.sgld, small.digits.train_size) == small.sgld.chains * 10_000


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert "Izmailov" in page
    assert "| HMC, one chain |" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 4
    assert len(json.loads((tmp_path / "results.json").read_text())["seeds"]) == 2

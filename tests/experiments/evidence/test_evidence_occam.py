"""Occam's razor with a made-up file: scores recomputed, the search for the noise, and every verdict."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.experiments.shared.made_up_uci import tell, write
from torchbayes.data import load
from torchbayes_experiments import get, reproduce
from torchbayes_experiments.evidence import evidence_occam as room
from torchbayes_experiments.evidence.evidence_occam import EXPERIMENT, OccamRecipe
from torchbayes_experiments.experiment import open_directory
from torchbayes_experiments.verdicts import ranks_agree

TINY = OccamRecipe(widths=(1, 3), scales=(0.1, 0.7, 3.0), rounds=4, steps=40)


@pytest.fixture(autouse=True)
def files(tmp_path_factory, monkeypatch):
    """A made-up set of 60 rows and 3 features with 2 splits."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(60, 3)) * [1, 10, 100]
    targets = 500 + 80 * np.tanh(2 * inputs[:, 0]) + rng.normal(0, 20, 60)
    write(root / "uci_regression" / "energy.npz", inputs, targets, splits=20, train=50)
    tell(monkeypatch, root, {"uci_energy": (60, 3)})


@pytest.fixture
def data():
    actual = load("uci_energy", split=1)
    return [(pair.inputs.double(), pair.targets.double()) for pair in (actual.train, actual.test)]


def test_scores_are_those_of_the_dense_posterior(data):
    train, test = data
    fitted = room.best_noise(TINY, train, width=3, scale=0.7, seed=2)
    actual = room.scores(fitted, test)
    weights_D = fitted.posterior.mean_MD[0]

    def outputs(weights_D, inputs):
        first, bias, last, rest = torch.split(weights_D, [9, 3, 3, 1])
        return torch.tanh(inputs @ first.view(3, 3).mT + bias) @ last + rest

    jacobian, at_test = (torch.func.jacrev(outputs)(weights_D, inputs) for inputs in (train[0], test[0]))
    noise, precision = actual["noise"], torch.eye(16, dtype=torch.float64) / 0.7**2
    total = jacobian.mT @ jacobian / noise**2 + precision
    normal = torch.distributions.Normal
    log_likelihood = normal(outputs(weights_D, train[0]), noise).log_prob(train[1][:, 0]).sum()
    log_prior = normal(0.0, 0.7).log_prob(weights_D).sum()
    evidence = log_likelihood + log_prior + 8 * math.log(2 * math.pi) - 0.5 * total.logdet()
    assert actual["log_evidence"] == pytest.approx(float(evidence), rel=1e-8)
    assert actual["log_likelihood"] == pytest.approx(float(log_likelihood), rel=1e-8)
    assert actual["train_nll"] == pytest.approx(-float(log_likelihood) / 50, rel=1e-8)
    assert actual["effective"] == pytest.approx(16 - float((precision @ total.inverse()).trace()), rel=1e-6)
    variance = (at_test @ total.inverse() * at_test).sum(1) + noise**2
    predictive = normal(outputs(weights_D, test[0]), variance.sqrt())
    assert actual["test_nll"] == pytest.approx(-float(predictive.log_prob(test[1][:, 0]).mean()), rel=1e-6)
    assert actual["test_rmse"] == pytest.approx(
        float((predictive.mean - test[1][:, 0]).square().mean().sqrt()), rel=1e-6
    )
    assert actual["symmetries"] == pytest.approx(math.log(8 * 6))
    assert actual["is_mode"] == 1.0
    assert actual["promise"] < TINY.tolerance


def test_the_noise_is_that_of_the_highest_evidence(data):
    recipe = replace(TINY, noise=1.0, rounds=20, steps=200, tolerance=1e-6)
    best = room.best_noise(recipe, data[0], width=2, scale=0.7, seed=2)
    assert 0.2 < best.noise < 0.5
    for factor in (0.8, 1.25):
        fixed = replace(recipe, noise=factor * best.noise, rounds=1)
        assert room.best_noise(fixed, data[0], width=2, scale=0.7, seed=2).log_evidence < best.log_evidence


def grid(*, evidence=None, test=None, train=None, is_mode=1.0, seed=0):
    """One seed's grid of three widths and four scales: best evidence and test NLL at the second scale."""
    rng = np.random.default_rng(seed)
    shape = (3, 4)
    peak = np.array([-50.0, 0.0, -10.0, -30.0]) + np.array([[0.0], [20.0], [5.0]])
    actual = {
        "log_evidence": peak + rng.normal(0, 0.5, shape) if evidence is None else np.array(evidence),
        "test_nll": -0.02 * peak + rng.normal(0, 0.001, shape) if test is None else np.array(test),
        "train_nll": np.arange(12.0)[::-1].reshape(3, 4) if train is None else np.array(train),
        "is_mode": np.full(shape, is_mode),
        "promise": np.full(shape, 0.01),
        "effective": np.ones(shape),
        "noise": np.ones(shape),
        "test_rmse": np.ones(shape),
        "symmetries": np.ones(shape),
    }
    actual["log_likelihood"] = -50 * actual["train_nll"]
    numbers = {name: values.tolist() for name, values in actual.items()}
    return {"widths": [2, 5, 10], "scales": [0.1, 0.5, 1.0, 5.0], **numbers}


def several(**changes):
    return [grid(seed=seed, **changes) for seed in range(4)]


RISING = np.arange(4.0) * np.ones((3, 1)) * 10 + np.array([[0.0], [20.0], [5.0]])


@pytest.mark.parametrize(
    ("results", "outcome", "against"),
    [
        (several(), "holds", []),
        (
            several(evidence=RISING),
            "does not hold",
            ["evidence at prior scale 5", "test NLL lost", "rank correlation of evidence"],
        ),
        (several(evidence=-RISING), "does not hold", ["evidence at prior scale 0.1", "test NLL lost"]),
        (several(evidence=[[0, 1, 1, 0], [1, 2, 2, 1], [2, 3, 3, 2]]), "does not hold", ["evidence of 10 units"]),
        (several(train=np.arange(12.0).reshape(3, 4)), "does not hold", ["rank correlation of width", "log Occam"]),
        (several(test=np.zeros((3, 4))), "does not hold", ["rank correlation of evidence"]),
        (several(is_mode=0.0), "inconclusive", ["share of networks"]),
    ],
)
def test_every_verdict_is_reached(results, outcome, against):
    verdict = room.summarise(results).verdict
    assert verdict.outcome == outcome
    failed = [part.statement for part in verdict.parts if part.outcome == "does not hold"]
    for beginning in against:
        assert any(statement.startswith(beginning) for statement in failed), (beginning, failed)
    assert bool(failed) == bool(against)


def test_one_seed_decides_nothing():
    verdict = room.summarise([grid()]).verdict
    assert verdict.outcome == "inconclusive"
    assert {part.outcome for part in verdict.parts} == {"inconclusive"}


def test_choices_are_made_width_by_width():
    one = {name: np.array(values) for name, values in grid().items()}
    assert room.at_best(one, "test_nll").tolist() == one["test_nll"][:, 1].tolist()
    expected = one["test_nll"][:, 3] - one["test_nll"].min(1)
    assert room.regret(one, by="train_nll", highest=False).tolist() == expected.tolist()
    ranks = np.array([[1.0, 2, 3], [4, 5, 6]])
    assert ranks_agree(ranks, -np.exp(ranks)) == pytest.approx(-1)
    assert ranks_agree(ranks, np.ones((2, 3))) == 0
    widths, choices, scales = room.summarise(several()).tables
    means = np.mean([np.array(g["log_evidence"]).max(1) for g in several()], axis=0)
    assert [row[2][0] for row in widths.rows] == pytest.approx(means.tolist())  # type: ignore[index]
    assert [row[1] for row in widths.rows] == ["0.5"] * 3
    best = [np.array(g["test_nll"]).flat[np.argmax(g["log_evidence"])] for g in several()]
    assert choices.rows[3][:2] == ["prior scale and width", "highest evidence"]
    assert choices.rows[3][2][0] == pytest.approx(np.mean(best))  # type: ignore[index]
    assert len(scales.rows) == 6


def test_end_to_end_and_finished_widths_are_read(tmp_path):
    experiment = replace(EXPERIMENT, recipes={"small": TINY})
    path = reproduce(experiment, seeds=1, directory=tmp_path)
    page = (path.parent / "page.md").read_text("utf-8")
    assert "evidence at prior scale 3 below the highest between" in page
    assert (tmp_path / "figure_1.png").stat().st_size > 10_000
    width = tmp_path / "seed_0" / "width_3.json"
    marked = json.loads(width.read_text())
    marked["scores"][1]["test_nll"] = -77.0
    width.write_text(json.dumps(marked))
    again = room.run(TINY, 0, tmp_path / "seed_0")
    assert np.shape(again["log_evidence"]) == (2, 3)
    assert again["test_nll"][1][1] == -77.0


def test_both_recipes_have_the_same_scales():
    small, paper = (get("evidence_occam").recipe(scale) for scale in ("small", "paper"))
    assert small.scales == paper.scales
    assert set(small.widths) < set(paper.widths)


def test_results_that_were_recorded_with_the_unused_setting_go_on(tmp_path):
    about = open_directory(EXPERIMENT, "small", tmp_path)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({**about, "recipe": {**about["recipe"], "starts": [8, 6, 4, 2, 1]}}))
    assert open_directory(EXPERIMENT, "small", tmp_path) == about
    path.write_text(json.dumps({**about, "recipe": {**about["recipe"], "ends": 3}}))
    with pytest.raises(ValueError, match=r"of other settings \(some were removed\)"):
        open_directory(EXPERIMENT, "small", tmp_path)

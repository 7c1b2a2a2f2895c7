"""Agreement of estimators of the evidence: data as stated, numbers recomputed, and every verdict."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.pictures import unpainted
from torchbayes_experiments import get, reproduce
from torchbayes_experiments.evidence import evidence_agreement as room
from torchbayes_experiments.evidence.evidence_agreement import EXPERIMENT, AgreementRecipe, Problem

TINY = AgreementRecipe(
    Problem("line", "regression", 2, (3, 6), 1.0, noise=1.0),
    Problem("wide line", "regression", 3, (3,), 1.0, noise=1.0),
    Problem("classes", "classification", 3, (4,), 1.0),
    starts=2,
    climb_steps=200,
    particles=16,
    chains=2,
    chain_steps=30,
    draws=16,
    thin=1,
    burn_in=20,
    prior_rows=4,
    prior_draws=2000,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(effective|do not agree).*:UserWarning")


def test_the_data_are_those_of_two_units():
    problem = replace(TINY.regression, rows=(5, 4000), noise=0.3)
    inputs, targets = problem.data(0)
    mean = 1.5 * torch.tanh(2 * inputs + 1.5) - torch.tanh(1.5 * inputs - 1.5)
    assert float((targets - mean).std()) == pytest.approx(0.3, rel=0.04)
    assert (float(inputs.min()), float(inputs.max())) == pytest.approx((-2, 2), abs=0.01)
    classes = replace(TINY.classes, rows=(4000,))
    inputs, labels = classes.data(0)
    logits = 3 * torch.tanh(2.5 * inputs[:, 0] - 1) + 3 * torch.tanh(-inputs[:, 0] + 2 * inputs[:, 1] + 0.5)
    assert labels.dtype == torch.int64
    fitted = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.double())
    assert float(fitted) == pytest.approx(
        float(torch.distributions.Bernoulli(logits=logits).entropy().mean()), abs=0.02
    )
    assert [problem.regular, classes.regular] == [True, False]


def test_estimates_are_of_the_model_named():
    problem = TINY.regression
    inputs, targets = problem.data(0)
    actual = room.estimates(replace(TINY, prior_draws=20_000), problem, (inputs[:3], targets[:3]), seed=1)
    model = problem.model(torch.float64)
    assert model.layout.size == 7
    exact = tb.evidence.prior_monte_carlo(model, (inputs[:3], targets[:3]), draws=100_000, seed=9)
    for name in ("AIS", "TI", "prior"):
        assert abs(actual[name]["value"] - exact.log_evidence) < 5 * math.hypot(actual[name]["error"], exact.error)
    assert actual["AIS"]["single"] < actual["AIS"]["value"]
    assert actual["reverse"]["single"] > actual["reverse"]["value"]
    assert actual["symmetries"] == pytest.approx(math.log(8))
    assert actual["laplace"] == pytest.approx(actual["laplace_hessian"], abs=1.0)
    assert actual["log_joints"][0] == max(actual["log_joints"])
    assert actual["is_mode"] is True


def made_up(*, laplace=0.0, shift=0.0, error=0.1, is_mode=True, bounds=0.5, regular=True, seed=0):
    """One seed's numbers of one problem: Laplace of all modes off by `laplace` at the last of three sizes."""
    rng = np.random.default_rng(seed)
    cases = []
    for place in range(3):
        truth = -10.0 * (place + 1)
        ais, ti, off = rng.normal(0, 0.5 * error, 3)
        cases.append({
            "AIS": {"value": truth + ais, "error": error, "single": truth - bounds + 0.1 * off, "single_error": 0.1},
            "TI": {"value": truth + shift + ti, "error": error},
            "reverse": {"value": truth, "error": error, "single": truth + bounds, "single_error": 0.1},
            "laplace": truth - math.log(8) + laplace + (2 - place) + 0.3 * off,
            "laplace_hessian": truth - math.log(8),
            "symmetries": math.log(8),
            "is_mode": is_mode,
            "log_joints": [1.0, 0.5],
            "warnings": [],
        })  # fmt: skip
    cases[0]["prior"] = {"value": -10.0, "error": 0.2}
    return {"net": {"hidden": 2, "regular": regular, "rows": [4, 16, 64], "cases": cases}}


def several(**changes):
    return [made_up(seed=seed, **changes) for seed in range(4)]


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        (several(), "holds", 0),
        (several(laplace=1.5), "does not hold", 2),  # too far, and no nearer than one mode's
        (several(laplace=1.5, regular=False), "holds", 0),  # no claim is made of these
        (several(shift=1.0), "does not hold", 3),
        (several(bounds=-0.5), "does not hold", 2),  # bounds the wrong way round
        (several(error=2.0), "inconclusive", 4),  # errors so wide that all agree
        (several(is_mode=False), "inconclusive", 1),
        ([made_up()], "inconclusive", 8),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    verdict = room.summarise(results).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in verdict.parts) == open_parts, verdict.reason


def test_tables_hold_differences_from_the_weighted_mean():
    results = several()
    evidence, laplace = room.summarise(results).tables
    case = results[0]["net"]["cases"][1]
    problem = room._arrays(results[0]["net"])
    assert room.reference(problem)[1] == pytest.approx((case["AIS"]["value"] + case["TI"]["value"]) / 2)
    assert [row[:2] for row in evidence.rows] == [["net", 4], ["net", 16], ["net", 64]]
    bases = [room.reference(room._arrays(r["net"]))[1] for r in results]
    assert evidence.rows[1][2] == pytest.approx((np.mean(bases), np.std(bases, ddof=1) / 2))
    assert evidence.rows[1][8] is None  # no prior Monte Carlo there
    first = np.mean([room.reference(room._arrays(r["net"]))[0] for r in results])
    assert evidence.rows[0][8][0] == pytest.approx(-10 - first)  # type: ignore[index]
    gaps = [r["net"]["cases"][1]["laplace"] + math.log(8) - base for r, base in zip(results, bases, strict=True)]
    assert laplace.rows[1][4] == pytest.approx((np.mean(gaps), np.std(gaps, ddof=1) / 2))


@pytest.mark.slow
def test_end_to_end_and_finished_cases_are_read(tmp_path, monkeypatch):
    unpainted(monkeypatch)
    line = replace(TINY.regression, rows=(3,))
    few = replace(
        TINY,
        regression=line,
        starts=1,
        climb_steps=50,
        particles=8,
        chain_steps=30,
        draws=8,
        burn_in=5,
        prior_draws=500,
    )
    path = reproduce(replace(EXPERIMENT, recipes={"small": few}), seeds=1, directory=tmp_path)
    page = (path.parent / "page.md").read_text("utf-8")
    assert "line: it is nearer with log(2^H H!) than without" in page
    assert "classes: it is nearer" not in page
    assert (tmp_path / "figure_1.png").is_file()
    case = tmp_path / "seed_0" / "problem_0" / "rows_3.json"
    marked = json.loads(case.read_text()) | {"laplace": -77.0}
    case.write_text(json.dumps(marked))
    again = room.run(few, 0, tmp_path / "seed_0")
    assert again["line"]["cases"][0]["laplace"] == -77.0
    assert again["classes"] == json.loads((tmp_path / "seed_0" / "results.json").read_text())["results"]["classes"]


def test_the_recipes_contain_what_the_claim_is_about():
    small, paper = (get("evidence_agreement").recipe(scale) for scale in ("small", "paper"))
    assert any(p.regular for p in small.problems)
    assert any(not p.regular for p in small.problems)
    assert all(q.rows[: len(p.rows)] == p.rows for p, q in zip(small.problems, paper.problems, strict=True))
    assert small.hmc().steps - small.hmc().burn_in == small.draws // 8 * small.thin

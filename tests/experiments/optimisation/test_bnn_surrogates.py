"""Surrogates of Bayesian optimisation: problems and rounds computed directly, and verdicts from made-up numbers."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("botorch")

from botorch.test_functions import Branin, BraninCurrin
from botorch.utils.sampling import draw_sobol_samples

from tests.oracles import assert_close
from torchbayes_experiments.optimisation.bnn_surrogates import (
    EXPERIMENT,
    FRONT,
    GP,
    METHODS,
    WIDE,
    SurrogatesRecipe,
    drawn_network,
    optimised,
    problem_of,
)

TINY = SurrogatesRecipe(
    problems=("Branin",),
    start=5,
    batch=2,
    rounds=1,
    samples=8,
    raw=4,
    restarts=1,
    iterations=2,
    sgmcmc_steps=40,
    members=2,
    epochs=5,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The numbers of a tiny run."""
    return EXPERIMENT.run(TINY, 3, tmp_path_factory.mktemp("run"))


def test_every_method_starts_at_the_same_points_and_never_falls(finished):
    bounds: Any = Branin().double().bounds
    X = draw_sobol_samples(bounds, n=5, q=1, seed=3)[:, 0]
    best = float(-Branin().double()(X).min())
    assert finished["Branin"].keys() == set(METHODS)
    for scores in finished["Branin"].values():
        assert scores[0] == pytest.approx(best)
        assert len(scores) == 2
        assert scores[1] >= scores[0]


def test_the_same_seed_gives_the_same_rounds(finished):
    for method in ("HMC", GP):
        assert optimised(TINY, "Branin", method, seed=3)["best"] == pytest.approx(finished["Branin"][method])


def test_problems():
    for name, top in {"Branin": -0.397887, "Hartmann-6": 3.32237, "Ackley-10": 0.0}.items():
        problem = problem_of(name, 0)
        X = draw_sobol_samples(problem.bounds, n=64, q=1, seed=0)[:, 0]
        assert problem.function(X).shape == (64, 1)
        assert problem.score(problem.function(X)) < top
    front, X = problem_of(FRONT, 0), torch.tensor([[0.2, 0.9], [0.5, 0.1], [0.9, 0.2]]).double()
    Y = BraninCurrin(negate=True).double()(X)
    assert_close(front.function(X), Y)
    above = (Y - front.reference).clamp_min(0)
    boxes = sorted(above.tolist(), reverse=True)
    volume, height = 0.0, 0.0
    for width, tall in boxes:
        volume, height = volume + width * max(tall - height, 0.0), max(height, tall)
    assert front.score(Y) == pytest.approx(volume)
    wide, X = problem_of(WIDE, 4), torch.rand(500, 200).double() * 2 - 1
    assert 0.2 < wide.function(X).std() < 4
    assert_close(wide.function(X), drawn_network(200, 4)(X))
    assert not torch.equal(wide.function(X), drawn_network(200, 5)(X))


def made_up(*, noise=0.05, seed=0, **levels):
    """One seed's curves of two problems, with a start that all methods share."""
    rng = np.random.default_rng(seed)
    last = {"HMC": 3.0, "SGHMC": 2.5, "ensemble": 2.0, "Laplace": 2.5, "GP": 2.0, "random": 1.0} | levels
    shared = rng.normal()
    curves = {m: [0.0, shared + level / 2, shared + level + noise * rng.normal()] for m, level in last.items()}
    return {"Branin": curves, WIDE: curves}


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up(seed=s) for s in range(5)], "holds", 0),
        ([made_up(seed=s, ensemble=4.0) for s in range(5)], "does not hold", 2),
        ([made_up(seed=s, GP=4.0) for s in range(5)], "does not hold", 1),
        ([made_up(seed=s, random=3.0) for s in range(5)], "inconclusive", 2),
        ([made_up()], "inconclusive", 5),
    ],
)
def test_verdicts(results, outcome, open_parts):
    findings = EXPERIMENT.summarise(results)
    assert findings.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in findings.verdict.parts) == open_parts
    table = findings.tables[0]
    assert len(table.rows) == len(METHODS)
    assert len(findings.figures) == 1

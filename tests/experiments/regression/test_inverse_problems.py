"""Inverse problems: what is simulated solves its equations, a tiny recipe, and verdicts from made-up numbers."""

import numpy as np
import pytest
import torch

from torchbayes.inverse import derivatives
from torchbayes_experiments.regression.inverse_problems import EXPERIMENT, METHODS, InverseRecipe
from torchbayes_experiments.shared.equations import CASES

DOUBLE = torch.float64
TINY = InverseRecipe(
    cases=("poisson",), hidden=(3,), members=2, epochs=4, steps=8, burn_in=2, max_leapfrogs=2, draws=8, plan="vmap"
)


def solitons(x):
    place, time = x[:, :1], -x[:, 1:] / 4
    above = 3 + 4 * (2 * place - 8 * time).cosh() + (4 * place - 64 * time).cosh()
    return 12 * above / (3 * (place - 28 * time).cosh() + (3 * place - 36 * time).cosh()) ** 2


def test_two_solitons_solve_their_equation():
    x = torch.tensor([[0.3, 0.1], [-1.0, -0.4], [2.0, 0.7]], dtype=DOUBLE)
    value, slope, _, third = derivatives(solitons, x, order=3)
    rate = derivatives(solitons, x, axis=1)[1]
    torch.testing.assert_close(rate - 1.5 * value * slope, 0.25 * third)
    simulated = CASES["korteweg_de_vries"]((3,), torch.Generator().manual_seed(0))
    torch.testing.assert_close(simulated.truth["u"], solitons(simulated.points))


def test_the_source_of_poisson_is_that_of_its_solution():
    simulated = CASES["poisson"]((3,), torch.Generator().manual_seed(0))
    value, _, second = derivatives(lambda x: (6 * x).sin() ** 3, simulated.points, order=2)
    torch.testing.assert_close(simulated.truth["u"], value)
    torch.testing.assert_close(simulated.truth["source"], 0.01 * second + 0.7 * value.tanh())


@pytest.mark.parametrize("name", ["kraichnan_orszag", "epidemic"])
def test_paths_solve_their_equations(name):
    simulated = CASES[name]((3,), torch.Generator().manual_seed(0))
    u, points = simulated.truth["u"], simulated.points[:, 0]
    slope = (u[2:] - u[:-2]) / (points[2:] - points[:-2])[:, None]
    u = u[1:-1]
    if name == "kraichnan_orszag":
        first, second, third = u.unbind(1)
        right = torch.stack([second * third, first * third, -2 * first * second], 1)
        assert simulated.truth["u"][0].tolist() == [1.0, 0.8, 0.5]
    else:
        beta, gamma, nu = simulated.truth["beta"][1:-1, 0], 0.025, 0.006
        ill = u[:, 0]
        right = torch.stack([beta * ill * (1 - u.sum(1) / 604.6) - (gamma + nu) * ill, gamma * ill, nu * ill], 1) * 100
        assert 0.5 < float(ill.max()) < 3
    assert float((slope - right).norm() / right.norm()) < 0.06


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_a_tiny_recipe(tmp_path):
    computed = EXPERIMENT.run(TINY, 0, tmp_path)["poisson"]
    assert set(computed) == set(METHODS)
    for method in METHODS:
        numbers = computed[method]
        assert numbers["k away"] == pytest.approx(abs(numbers["k mean"] - 0.7) / numbers["k sd"])
        assert ("k rhat" in numbers) == (method == "hmc")
        assert 0 <= numbers["coverage of u"] <= 1
        assert numbers["error of u"] > 0
    assert EXPERIMENT.run(TINY, 0, tmp_path)["poisson"] == computed


def made_up(seed, *, hmc=0.1, vi=0.3, away=1.0, rhat=1.01):
    noise = 0.001 * float(np.random.default_rng(seed).normal())
    common = {"k mean": 0.7, "k sd": 0.1, "k away": away + noise, "coverage of u": 1.0}
    errors = {"hmc": hmc, "vi": vi, "laplace": 0.2, "map": 0.2}
    computed = {method: {"error of u": error + noise, **common} for method, error in errors.items()}
    computed["vi"]["error of u"] += 10 * noise
    computed["hmc"] |= {"k rhat": rhat + noise, "rhat of u": 1.0}
    return {"poisson": computed}


def test_verdicts():
    findings = EXPERIMENT.summarise([made_up(seed) for seed in range(3)])
    assert findings.verdict.outcome == "holds"
    assert len(findings.verdict.parts) == 4
    assert len(findings.tables) == 4
    assert len(findings.figures) == 1
    assert EXPERIMENT.summarise([made_up(seed, rhat=1.5) for seed in range(3)]).verdict.outcome == "inconclusive"
    worse = EXPERIMENT.summarise([made_up(seed, hmc=0.4) for seed in range(3)])
    assert [part.outcome for part in worse.verdict.parts] == ["holds", "does not hold", "holds", "does not hold"]
    away = EXPERIMENT.summarise([made_up(seed, away=3.0) for seed in range(3)])
    assert away.verdict.outcome == "does not hold"
    assert EXPERIMENT.headline is not None
    assert EXPERIMENT.headline.lines(findings.tables)

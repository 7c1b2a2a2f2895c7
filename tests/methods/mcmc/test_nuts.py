"""NUTS against a recursive one, its trees and where they turn, its moments; what diagnostics see, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.covering import some_of
from tests.oracles import assert_close, normal
from tests.targets import Target, assert_expectations, assert_moments, assert_quantiles, funnel, skewed
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.diagnostics import ebfmi, rhat
from torchbayes.methods.mcmc.hamiltonian import momenta
from torchbayes.methods.mcmc.trees import turns
from torchbayes.methods.sampler import Sampler
from torchbayes.randomness.seeds import Purpose, member_seeds, mix
from torchbayes.report.diagnosis import chain_table, numbers, remarks


def isotropic() -> tb.FunctionDensity:
    return tb.FunctionDensity(lambda w: -0.5 * w.double().square().sum(1))


# --- a recursive NUTS, one chain at a time ---


@dataclass
class Tree:
    """One iteration of one chain by recursion (Betancourt 2017, appendix A), with the sampler's own random numbers."""

    log_density: Callable[[Tensor], Tensor]
    step_size: float
    inverse_mass_D: Tensor
    energy: float
    leaves: list[tuple[Tensor, Tensor, float]] = field(default_factory=list)  # weights, momentum, H_0 − H
    ends: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def leap(self, weights_D: Tensor, momentum_D: Tensor, sign: float) -> tuple[Tensor, Tensor]:
        def kicked(momentum_D: Tensor) -> Tensor:
            leaf = weights_D.clone().requires_grad_()
            (gradient_D,) = torch.autograd.grad(self.log_density(leaf[None])[0], leaf)
            return momentum_D + sign * self.step_size / 2 * gradient_D

        momentum_D = kicked(momentum_D)
        weights_D = weights_D + sign * self.step_size * self.inverse_mass_D * momentum_D
        return weights_D, kicked(momentum_D)

    def turned(self, momenta_PD: list[Tensor]) -> bool:
        ends_D = (momenta_PD[0] + momenta_PD[-1]) / 2
        velocity_D = self.inverse_mass_D * (torch.stack(momenta_PD).sum(0) - ends_D)
        return bool(momenta_PD[0] @ velocity_D <= 0) or bool(momenta_PD[-1] @ velocity_D <= 0)

    def joined(self, left: list[Tensor], right: list[Tensor]) -> bool:
        """Whether two neighbours turn together, or one of them does with the next step."""
        return self.turned(left + right) or self.turned([*left, right[0]]) or self.turned([left[-1], *right])

    def build(self, depth: int, side: int) -> bool:
        """Add 2^depth leaves at an end; whether all of them are there and none of their subtrees turns."""
        if depth == 0:
            self.ends[side] = self.leap(*self.ends[side], 1.0 if side else -1.0)
            weights_D, momentum_D = self.ends[side]
            energy = 0.5 * float(momentum_D @ (self.inverse_mass_D * momentum_D)) - float(
                self.log_density(weights_D[None])
            )
            gain = -math.inf if math.isnan(energy) else self.energy - energy
            self.leaves.append((weights_D, momentum_D, gain))
            return gain >= -1000
        before = len(self.leaves)
        whole = self.build(depth - 1, side) and self.build(depth - 1, side)
        momenta_PD = [momentum_D for _, momentum_D, _ in self.leaves[before:]]
        return whole and not self.joined(momenta_PD[: len(momenta_PD) // 2], momenta_PD[len(momenta_PD) // 2 :])


def recursive(
    method: tb.NUTS, log_density: Callable[[Tensor], Tensor], state: Any, chain: int
) -> tuple[Tensor, Tree, bool]:
    """The next weights of a chain, the points its trajectory saw, and whether it was still to grow."""
    weights_D, momentum_D = state.weights_MD[chain], momenta(state, state.inverse_mass_MD)[chain]
    mass_D, step_size = state.inverse_mass_MD[chain], float(state.step_size.step_size_M[chain])
    energy = 0.5 * float(momentum_D @ (mass_D * momentum_D)) - float(log_density(weights_D[None]))
    tree = Tree(log_density, step_size, mass_D, energy, ends=[(weights_D, momentum_D)] * 2)
    total, path = 0.0, [momentum_D]
    for doubling in range(method.max_doublings):
        key = Purpose.TREE, state.seeds[chain], state.step, doubling
        direction, taken, *picks = ((mix(*key, n) >> 10) * 2.0**-53 for n in range(2 + 2**doubling))
        side, before = int(direction < 0.5), len(tree.leaves)
        whole = tree.build(doubling, side)
        weight, chosen_D, new = -math.inf, weights_D, tree.leaves[before:]
        for (point_D, _, gain), pick in zip(new, picks, strict=False):
            weight = float(np.logaddexp(weight, gain))
            chosen_D = point_D if pick < math.exp(gain - weight) else chosen_D
        if not whole:
            return weights_D, tree, False
        weights_D = chosen_D if taken < math.exp(min(weight - total, 0.0)) else weights_D
        total = float(np.logaddexp(total, weight))
        added = [momentum_D for _, momentum_D, _ in new]
        halves = (path, added) if side else (added[::-1], path)
        path = halves[0] + halves[1]
        if tree.joined(*halves):
            return weights_D, tree, False
    return weights_D, tree, True


def wall(weights_MD: Tensor) -> Tensor:
    """A correlated normal, cut off at −1 in the first coordinate."""
    sums_M = (weights_MD.double().sum(1) * 0.8) ** 2 + weights_MD.double().square().sum(1)
    return torch.where(weights_MD[:, 0] > -1, -0.5 * sums_M, -torch.inf)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log_density", "step_size", "doublings", "divergences"),
    [
        pytest.param(skewed().log_density, 0.3, 8, 0, marks=pytest.mark.study),  # as at a wall, before it is met
        (skewed().log_density, 0.02, 6, 0),
        (skewed().log_density, 2.5, 5, 8),
        (wall, 0.2, 8, 8),
    ],
    ids=["usual", "bounded", "divergent", "wall"],
)
def test_it_equals_a_recursive_one_draw_by_draw(log_density: Any, step_size: float, doublings: int, divergences: int):
    chains = 8 if divergences else 3
    method = tb.NUTS(chains, 20, 0, step_size=step_size, mass="unit", max_doublings=doublings)
    density = tb.FunctionDensity(log_density)
    state: Any = method.init(density, 0.3 * normal(chains, 4), seeds=member_seeds(0, chains))
    state.inverse_mass_MD.copy_(normal(chains, 4, seed=1).exp())
    divergent, saturated = 0.0, 0.0
    for _ in range(1 if step_size < 0.1 else 4):
        expected = [recursive(method, log_density, state, chain) for chain in range(chains)]
        state, info = method.step(density, state)
        gains = [torch.tensor([gain for *_, gain in tree.leaves], dtype=torch.float64) for _, tree, _ in expected]
        seen = info.means()
        assert seen["gradients"].tolist() == [len(gains_P) for gains_P in gains]
        assert seen["saturated"].tolist() == [float(saturated) for *_, saturated in expected]
        assert_close(state.weights_MD, torch.stack([weights_D for weights_D, *_ in expected]), rtol=1e-9)
        assert_close(state.log_density_M, log_density(state.weights_MD))
        assert_close(seen["acceptance"], [float(g.clamp(max=0).exp().mean()) for g in gains], rtol=1e-8)
        assert seen["divergent"].tolist() == [float((g < -1000).any()) for g in gains]
        divergent, saturated = divergent + float(seen["divergent"].sum()), saturated + float(seen["saturated"].sum())
    assert divergent >= divergences
    assert saturated > 0 or step_size > 0.1


# --- trees ---


@pytest.mark.parametrize("doublings", [1, 2, 5])
def test_a_trajectory_has_at_most_so_many_doublings(doublings: int):
    """Steps so small that nothing turns: every tree is as large as it may be."""
    method = tb.NUTS(3, 10, 0, step_size=1e-4, mass="unit", max_doublings=doublings)
    chains = tb.sample(isotropic(), method, normal(3, 5))
    assert (chains.numbers["gradients"] == 2**doublings - 1).all()
    assert (chains.numbers["saturated"] == 1).all()
    assert chains.numbers["divergent"].sum() == 0
    assert_close(chains.numbers["acceptance"], torch.ones(3, 10), rtol=0, atol=1e-3)


def test_a_trajectory_that_ends_with_its_last_doubling_is_not_cut_short():
    """On one circle in phase space for all: the tree of 2^j points, the first beyond half a period, turns."""
    method = tb.NUTS(3, 6, 0, step_size=0.3, mass="unit")
    for doublings, saturated in ((3, 1.0), (4, 0.0), (5, 0.0)):
        chains = tb.sample(isotropic(), replace(method, max_doublings=doublings), normal(3, 4000))
        assert (chains.numbers["saturated"] == saturated).all()
        assert (chains.numbers["gradients"] == 2 ** min(doublings, 4) - 1).all()


@pytest.mark.parametrize(("step_size", "doublings", "share"), [(1e-4, 2, 1.0), (0.3, 5, 0.0)])
def test_a_diagnosis_complains_of_trajectories_cut_short(
    step_size: float, doublings: int, share: float, tmp_path: Path
):
    model, data = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(1.0)), (normal(8, 4), normal(8, 1, seed=1))
    method = tb.NUTS(2, 24, 4, step_size=step_size, mass="unit", max_doublings=doublings, plan="loop")
    posterior = tb.fit(model, data, method, directory=tmp_path, callbacks=())
    actual = tb.diagnose(posterior, data[0], log=tmp_path)  # type: ignore[arg-type]
    assert actual.record is not None
    assert actual.record.saturated_M is not None
    assert actual.record.saturated_M.tolist() == [share, share]
    said, table = " ".join(remarks(actual)), chain_table(actual)
    assert ("Of the trajectories of each chain, 100.0 % were cut short by `max_doublings`" in said) == (share == 1)
    assert table is not None
    assert table.cells[0][list(table.columns).index("saturated")].text == f"{100 * share:.1f} %"
    assert numbers(actual)["by_chain"]["saturated"] == [share, share]


def test_samplers_without_trees_are_never_saturated():
    chains = tb.sample(isotropic(), tb.HMC(2, 6, 0, step_size=0.1, trajectory=0.5), normal(2, 3))
    assert "saturated" not in chains.numbers


def test_what_is_reported_is_what_was_paid():
    """Each chain stops separately, and one whose tree is finished is not evaluated again."""
    rows: list[int] = []
    density = tb.FunctionDensity(lambda w: rows.append(len(w)) or isotropic()._function(w))  # type: ignore[func-returns-value]
    chains = tb.sample(density, tb.NUTS(9, 20, 0, step_size=0.4, mass="unit"), normal(9, 3))
    assert sum(rows) == 9 + int(chains.numbers["gradients"].sum())
    assert len(chains.numbers["gradients"][:, 0].unique()) > 1
    assert min(rows) < 9


@pytest.mark.parametrize("step", [0.3, 0.05, 0.7])
@pytest.mark.parametrize("phase", [0.0, 1.0, 4.0])
def test_an_oscillator_turns_after_half_a_period(step: float, phase: float):
    """On a circle p_0 · (Σp − (p_0 + p_{n−1})/2) = sin((n − 1) ε) / 2 tan(ε/2), above zero below (n − 1) ε = π."""
    inverse_mass_MD = torch.tensor([[4.0, 0.25]]).double()
    for points in range(2, math.ceil(2 * math.pi / step)):
        angles_P = phase + step * torch.arange(points, dtype=torch.float64)
        momenta_PD = torch.stack([angles_P.cos(), angles_P.sin()], 1) / inverse_mass_MD.sqrt()
        actual = turns(
            momenta_PD[:1], momenta_PD[-1:], momenta_PD.sum(0, keepdim=True), inverse_mass_MD=inverse_mass_MD
        )
        assert bool(actual) == ((points - 1) * step >= math.pi)


@pytest.mark.parametrize("size", [2, 50])
def test_trees_on_a_normal_target_do_not_go_round_and_round(size: int):
    """A period is 2π; whatever the step size, no trajectory is longer than the doubling that goes beyond it."""
    worst = 0.0
    for step_size in torch.linspace(0.25, 1.2, 4).tolist():
        chains = tb.sample(isotropic(), tb.NUTS(16, 6, 0, step_size=step_size, mass="unit"), normal(16, size), seed=1)
        worst = max(worst, step_size * float(chains.numbers["gradients"].max()))
    assert worst < 4 * math.pi


@pytest.mark.parametrize(("mass", "steps"), some_of(["unit", "wide"], [(0.3, 15), (0.15, 31), (0.6, 7)], one_in=2))
def test_trees_in_many_dimensions_are_the_first_beyond_half_a_period(mass: str, steps: tuple[float, int]):
    """There position and momentum are of one length and orthogonal: 2^j − 1 steps, the first number above π/ε."""
    step_size, leapfrogs = steps
    scale = 1.0 if mass == "unit" else 30.0
    density = tb.FunctionDensity(lambda w: -0.5 * (w.double() / scale).square().sum(1))
    method = tb.NUTS(3, 6, 0, step_size=step_size, mass="unit")
    state: Any = method.init(density, scale * normal(3, 4000), seeds=[0, 1, 2])
    state.inverse_mass_MD.fill_(scale**2)
    for _ in range(3):
        state, info = method.step(density, state)
        assert info.means()["gradients"].tolist() == [leapfrogs] * 3


# --- moments ---


def banana_log_density(weights_MD: Tensor) -> Tensor:
    x, y = weights_MD.double().unbind(1)
    return -0.5 * x**2 - 2.0 * (y - x**2 + 1) ** 2 - 0.05 * y**4


@pytest.mark.study  # trees are those of a recursive NUTS draw by draw, and in detailed balance
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*of the iterations.*diverged")  # with NUTS, they cost less than the checks see
def test_a_banana_has_the_moments_of_quadrature():
    """The trapezoid rule on an even grid that covers all of the mass: exact to rounding."""
    x, y = torch.linspace(-6, 6, 361, dtype=torch.float64), torch.linspace(-8, 8, 481, dtype=torch.float64)
    grid_PD = torch.cartesian_prod(x, y)
    masses_P = banana_log_density(grid_PD).softmax(0)

    def functions(weights: Tensor) -> Tensor:
        x, y = weights.double().unbind(-1)
        return torch.stack([x, y, x**2, y**2, x**2 * y, x * y, (y > 0).double()], -1)

    exact_F = masses_P @ functions(grid_PD)
    coarse_P = banana_log_density(torch.cartesian_prod(x[::2], y[::2])).softmax(0)
    assert_close(coarse_P @ functions(torch.cartesian_prod(x[::2], y[::2]))[:, :6], exact_F[:6], rtol=1e-9, atol=1e-9)
    chains = tb.sample(tb.FunctionDensity(banana_log_density), tb.NUTS(640, 72, 50), normal(640, 2), seed=1)
    labels = ["x", "y", "x²", "y²", "x² y", "x y", "y > 0"]
    within_F = torch.tensor([0.1, 0.1, 0.15, 0.15, 0.3, 0.15, 0.05]).double()
    assert_expectations(functions(chains.weights_MSD), exact_F, within_F=within_F, labels=labels)


@pytest.mark.study  # trees are those of a recursive NUTS draw by draw, and in detailed balance
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"step_size": 1.7, "mass": "unit"}],
    ids=["adapted", "given"],
)
def test_one_dimension_is_enough(settings: dict[str, Any]):
    """N(3, 4): trajectories turn all the time."""
    mean_D, scale = torch.tensor([3.0]).double(), 2.0
    target = Target(
        "N(3, 4)",
        lambda w: -0.5 * ((w.double()[:, 0] - 3) / scale) ** 2,
        mean_D,
        torch.tensor([[scale**2]]).double(),
        cdf=lambda w: torch.special.ndtr((w.double() - 3) / scale),
    )
    chains = tb.sample(target.density(), tb.NUTS(400, 85, 45, **settings), normal(400, 1), seed=1)
    assert_moments(chains.weights_MSD, target)
    assert_quantiles(chains.weights_MSD, target)


@pytest.mark.slow
@pytest.mark.study  # E-BFMI, R-hat and divergences are read in `tests/health/test_chain_health.py`
@pytest.mark.parametrize("make", [tb.HMC, tb.NUTS])
def test_diagnostics_complain_of_the_funnel_where_it_is_centred(make: Callable[..., Sampler]):
    settings = {"trajectory": 1.5, "jitter": 0.3} if make is tb.HMC else {"mass": "unit", "max_doublings": 5}
    seen = {}
    for centred in (True, False):
        method = make(16, 200, 60, step_size=0.5, **settings)
        with pytest.warns(tb.ProblemWarning, match="E-BFMI of") if centred else nullcontext():
            chains = tb.sample(funnel(centred=centred).density(), method, normal(16, 10), seed=2)
        missing, divergent_MS = ebfmi(chains.numbers["energy"][:, 60:]).min(), chains.numbers["divergent"][:, 60:]
        seen[centred] = float(missing), float(rhat(chains.weights_MSD).max()), float(divergent_MS.sum())
    assert seen[True][0] < 0.2 < 0.7 < seen[False][0]
    assert seen[False][1] < 1.02 < 1.05 < seen[True][1]
    assert seen[False][2] == 0 < seen[True][2]


# --- what is refused ---

POSITIVE = r"`{}` must be above 0; got {}\."
SHARE = r"`{}` must lie in \[0, 1\).*got {}\."
COUNT = r"`{}` must be a whole number of at least 1; got {}\."
NOTHING_TO_LEARN_IN = r"adapted during burn-in, and `burn_in` is 0\. Give a `step_size`\."
GRADED, ADJUSTED, NOISY = [tb.HMC, tb.NUTS], [tb.HMC, tb.NUTS, tb.MALA, tb.RandomWalk], [tb.SGLD, tb.SGHMC, tb.SGNHT]
REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    (ADJUSTED + NOISY, {"step_size": 0.0}, POSITIVE.format("step_size", "0.0")),
    (ADJUSTED + NOISY, {"step_size": -0.1}, POSITIVE.format("step_size", "-0.1")),
    (ADJUSTED + NOISY, {"step_size": math.nan}, POSITIVE.format("step_size", "nan")),
    (ADJUSTED, {"target_acceptance": 1.0}, SHARE.format("target_acceptance", "1.0")),
    (ADJUSTED, {"target_acceptance": -0.2}, SHARE.format("target_acceptance", "-0.2")),
    (ADJUSTED, {"burn_in": 0}, NOTHING_TO_LEARN_IN),
    (GRADED, {"burn_in": 0, "step_size": 0.1, "mass": "diagonal"}, NOTHING_TO_LEARN_IN),
    (GRADED, {"burn_in": 0, "step_size": 0.1, "mass": "layer"}, NOTHING_TO_LEARN_IN),
    (GRADED, {"mass": "full"}, r"`mass` must be one of unit, prior, diagonal, layer, dense; got 'full'\."),
    ([tb.HMC], {"trajectory": 0.0}, POSITIVE.format("trajectory", "0.0")),
    ([tb.HMC], {"jitter": 1.0}, SHARE.format("jitter", "1.0")),
    ([tb.HMC], {"max_leapfrogs": 0}, COUNT.format("max_leapfrogs", "0")),
    ([tb.NUTS], {"max_doublings": 0}, COUNT.format("max_doublings", "0")),
    ([tb.NUTS], {"max_doublings": 2.5}, COUNT.format("max_doublings", "2.5")),
    (NOISY, {"batch_size": 0}, COUNT.format("batch_size", "0")),
    ([tb.SGLD, tb.SGHMC], {"decay": 1.0}, SHARE.format("decay", "1.0")),
    ([tb.SGLD, tb.SGHMC], {"floor": 0.0}, POSITIVE.format("floor", "0.0")),
    ([tb.SGHMC], {"momentum": 1.0}, SHARE.format("momentum", "1.0")),
    ([tb.SGHMC], {"form": "leapfrog"}, r"`form` must be one of momentum, friction; got 'leapfrog'\."),
    ([tb.SGHMC], {"form": "friction", "noise_estimate": 0.1}, r"`noise_estimate` must lie in \[0, 0\.1\).*got 0\.1\."),
    ([tb.SGHMC], {"noise_estimate": 0.05}, "`noise_estimate` is for form='friction'"),
    ([tb.SGHMC], {"form": "friction", "preconditioned": True}, "`preconditioned` for form='momentum'"),
    ([tb.SGNHT], {"diffusion": 0.0}, POSITIVE.format("diffusion", "0.0")),
    (ADJUSTED + NOISY, {"chunk_size": 0}, COUNT.format("chunk_size", "0")),
]


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [(make, settings, message) for makes, settings, message in REFUSED for make in makes],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[..., Any], settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, COUNT.format("length", "0")),
        ({"draws": 0}, COUNT.format("draws", "0")),
        ({"exploration": 1.0}, SHARE.format("exploration", "1.0")),
    ],
)
def test_cycles_that_make_no_sense_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        tb.Cycles(**settings)


@pytest.mark.parametrize("make", [*ADJUSTED, *NOISY])
def test_an_infinite_step_size_is_refused(make: Callable[..., Any]):
    with pytest.raises(ValueError, match="step_size"):
        make(step_size=math.inf)


@pytest.mark.parametrize("make", ADJUSTED)
def test_no_acceptance_at_all_is_no_target(make: Callable[..., Any]):
    with pytest.raises(ValueError, match="target_acceptance"):
        make(target_acceptance=0.0)


@pytest.mark.parametrize("make", NOISY)
def test_cycles_that_do_not_end_within_the_run_are_refused(make: Callable[..., Any]):
    with pytest.raises(ValueError, match="length"):
        make(1, 50, 0, step_size=0.01, schedule=tb.Cycles(100))

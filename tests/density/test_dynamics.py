"""Leapfrog: reversible, of second order, the same in the kernel and on any density; energies keep their digits."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.model.helpers import mlp
from tests.oracles import assert_close, classes, normal
from torch import Tensor

from torchbayes.density import FunctionDensity, LogDensity
from torchbayes.density.dynamics import Density, Phase
from torchbayes.model import Batch, Model, likelihoods, priors
from torchbayes.native.build import available

M, N = 3, 40
FREQUENCIES = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def oscillator() -> FunctionDensity:
    return FunctionDensity(lambda w: -0.5 * (FREQUENCIES * w).square().sum(-1))


def network(plan: str = "loop", **settings: object) -> LogDensity:
    model = Model(mlp((3, 5, 2)), likelihoods.Categorical(), priors.Normal(0.8), **settings)  # type: ignore[arg-type]
    return LogDensity(model, N, Batch(normal(N, 3), classes(N, 2)), plan=plan, chunk_size=17)  # type: ignore[arg-type]


KERNEL = pytest.param(lambda: network("native"), marks=pytest.mark.skipif(not available(), reason="no kernels here"))
DENSITIES: list[object] = [oscillator, network, KERNEL]
each_density = pytest.mark.parametrize("make", DENSITIES, ids=["oscillator", "network", "kernel"])


def size_of(density: Density) -> int:
    return density.model.layout.size if isinstance(density, LogDensity) else 3


def go(
    density: Density, weights: Tensor, momentum: Tensor, *, step: float, steps: int, mass: Tensor | None = None
) -> Phase:
    return density.leapfrog(
        weights,
        momentum,
        gradient_MD=density(weights).gradient,
        step_size_M=torch.full((len(weights),), step, dtype=torch.float64),
        steps_M=torch.full((len(weights),), steps),
        inverse_mass_MD=mass,
    )


def energy(density: Density, weights: Tensor, momentum: Tensor, mass: Tensor | None = None) -> Tensor:
    kinetic = 0.5 * (momentum.square() * (1.0 if mass is None else mass)).sum(-1)
    return kinetic - density(weights).log_density


@each_density
@pytest.mark.parametrize("massive", [False, True])
def test_it_is_reversible(make: Callable[[], Density], massive: bool):
    density = make()
    size = size_of(density)
    weights, momentum = normal(M, size), normal(M, size, seed=1)
    mass = normal(M, size, seed=2).exp() if massive else None
    there = go(density, weights, momentum, step=0.1, steps=8, mass=mass)
    assert (there.weights_MD - weights).abs().max() > 0.1
    back = go(density, there.weights_MD, there.momentum_MD, step=-0.1, steps=8, mass=mass)
    assert_close(back.weights_MD, weights, rtol=0, atol=1e-10)
    assert_close(back.momentum_MD, momentum, rtol=0, atol=1e-10)
    assert_close(back.value.log_density, density(weights).log_density, rtol=1e-10)


@each_density
def test_the_energy_error_has_order_two(make: Callable[[], Density]):
    density = make()
    size = size_of(density)
    weights, momentum = normal(M, size), normal(M, size, seed=1)
    before, errors = energy(density, weights, momentum), []
    for halvings in range(1, 4):
        end = go(density, weights, momentum, step=0.1 / 2**halvings, steps=8 * 2**halvings)
        errors.append((energy(density, end.weights_MD, end.momentum_MD) - before).abs())
    for coarse, fine in pairwise(errors):
        assert_close(coarse / fine, torch.full((M,), 4.0), rtol=0.05)


def test_an_oscillator_follows_the_closed_form():
    """One step is the matrix [[1 − a, ε], [−ω²ε(1 − a/2), 1 − a]] with a = (ωε)²/2: a rotation by arccos(1 − a)."""
    weights, momentum, step, steps = normal(M, 3), normal(M, 3, seed=1), 0.3, 7
    end = go(oscillator(), weights, momentum, step=step, steps=steps)
    angle = steps * torch.arccos(1 - (FREQUENCIES * step) ** 2 / 2)
    stretch = FREQUENCIES * (1 - (FREQUENCIES * step) ** 2 / 4).sqrt()
    assert_close(end.weights_MD, weights * angle.cos() + momentum * angle.sin() / stretch)
    assert_close(end.momentum_MD, momentum * angle.cos() - weights * stretch * angle.sin())


def test_a_density_without_gradient_is_told_and_one_in_inference_mode_has_its_own():
    constant = FunctionDensity(lambda w: torch.zeros(len(w)))
    with pytest.raises(ValueError, match="has no gradient: PyTorch does not see how it depends on the weights"):
        constant(normal(2, 3))
    with torch.inference_mode():
        actual = FunctionDensity(lambda w: -w.square().sum(-1))(normal(2, 3))
    assert_close(actual.gradient, -2 * normal(2, 3))


@each_density
def test_members_move_by_their_own_steps(make: Callable[[], Density]):
    density = make()
    size = size_of(density)
    weights, momentum, mass = normal(M, size), normal(M, size, seed=1), normal(M, size, seed=2).exp()
    step_size_M, steps_M = torch.tensor([0.1, 0.02, 0.05], dtype=torch.float64), torch.tensor([3, 11, 1])
    together = density.leapfrog(
        weights,
        momentum,
        gradient_MD=density(weights).gradient,
        step_size_M=step_size_M,
        steps_M=steps_M,
        inverse_mass_MD=mass,
    )
    for m in range(M):
        w, v = weights[m : m + 1], momentum[m : m + 1]
        alone = go(density, w, v, step=float(step_size_M[m]), steps=int(steps_M[m]), mass=mass[m : m + 1])
        assert_close(together.weights_MD[m], alone.weights_MD[0])
        assert_close(together.momentum_MD[m], alone.momentum_MD[0])
        assert_close(together.value.gradient[m], alone.value.gradient[0])
        assert_close(together.value.log_density[m], alone.value.log_density[0])


@pytest.mark.skipif(not available(), reason="kernels cannot be built here")
@pytest.mark.parametrize("prior", [priors.Normal(0.8), {"0.*": priors.Flat(), "*": priors.Normal(2.0, 0.3)}])
@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
def test_the_kernel_goes_where_the_loop_goes(prior: Any, tempering: Any):
    ends = []
    for plan in ("native", "loop"):
        model = Model(mlp((3, 5, 2)), likelihoods.Categorical(), prior, temperature=0.3, tempering=tempering)
        density = LogDensity(model, N, Batch(normal(N, 3), classes(N, 2)), plan=plan)  # type: ignore[arg-type]
        start = normal(M, model.layout.size), normal(M, model.layout.size, seed=1)
        kept = [tensor.clone() for tensor in start]
        ends.append(go(density, *start, step=0.02, steps=9))
        assert_close(torch.stack(start), torch.stack(kept), rtol=0, atol=0)
    assert_close(ends[0].weights_MD, ends[1].weights_MD)
    assert_close(ends[0].momentum_MD, ends[1].momentum_MD)
    for mine, expected in zip(ends[0].value, ends[1].value, strict=True):
        assert_close(mine, expected)


@pytest.mark.skipif(not available(), reason="kernels cannot be built here")
@pytest.mark.parametrize("prior", [priors.Laplace(), priors.StudentT(3.0), priors.Hierarchical(0.5, 3.0, "columns")])
def test_priors_that_are_not_normal_are_integrated_in_the_kernel_or_outside_it(prior: priors.PriorLike):
    model = Model(mlp((3, 5, 2)), likelihoods.Categorical(), prior)
    data = Batch(normal(N, 3), classes(N, 2))
    start = normal(M, model.layout.size), normal(M, model.layout.size, seed=1)
    ends = [go(LogDensity(model, N, data, plan=plan), *start, step=0.02, steps=9) for plan in ("native", "loop")]
    assert_close(ends[0].weights_MD, ends[1].weights_MD)


@pytest.mark.parametrize("prior", [priors.Normal(0.5), priors.Laplace(), priors.FanInNormal()])
def test_energies_of_a_million_float32_weights_keep_their_digits(prior: priors.PriorLike):
    single = Model(torch.nn.Linear(1000, 1000), likelihoods.Categorical(), prior)
    double = Model(torch.nn.Linear(1000, 1000).double(), likelihoods.Categorical(), prior)
    weights = torch.randn(1, single.layout.size, generator=torch.Generator().manual_seed(0))
    assert_close(single.log_prior(weights), double.log_prior(weights.double()), rtol=1e-8)


@pytest.mark.parametrize("plan", ["loop", "vmap", pytest.param("native", marks=KERNEL.marks)])
def test_likelihoods_of_many_float32_rows_keep_their_digits(plan: str):
    rows, values = 20_000, []
    for dtype in (torch.float32, torch.float64):
        model = Model(mlp((3, 5, 2)).to(dtype), likelihoods.Categorical())
        data = Batch(normal(rows, 3).float().to(dtype), classes(rows, 2))
        weights = normal(2, model.layout.size).float().to(dtype)
        values.append(LogDensity(model, rows, data, plan=plan)(weights).log_density)  # type: ignore[arg-type]
    assert values[0].abs().min() > 10_000
    assert_close(values[0], values[1], rtol=0, atol=5e-3)  # float32 sums would be off by about 0.1


@pytest.mark.parametrize(
    ("prior", "std"),
    [
        (priors.Normal(0.3), 0.3),
        (priors.Laplace(0.3), 0.3 * math.sqrt(2)),
        (priors.StudentT(4.0, 0.5), 0.5 * math.sqrt(2)),
        (priors.StudentT(2.0), math.inf),
        (priors.Logistic(0.7), 0.7 * math.pi / math.sqrt(3)),
        (priors.NormalMixture((1.0, 3.0), (3.0, 1.0)), math.sqrt(3.0)),
        (priors.Flat(), math.inf),
        (torch.distributions.Gumbel(0.0, 2.0), 2 * math.pi / math.sqrt(6)),
    ],
)
def test_prior_standard_deviations(prior: priors.PriorLike, std: float):
    model = Model(mlp((2, 1)), likelihoods.Gaussian(), prior, temperature=0.25)
    assert_close(LogDensity(model, 5).prior_stds(), torch.full((3,), std / 2), rtol=1e-6)
    likelihood = Model(mlp((2, 1)), likelihoods.Gaussian(), prior, temperature=0.25, tempering="likelihood")
    assert_close(LogDensity(likelihood, 5).prior_stds(), torch.full((3,), std), rtol=1e-6)

"""Velocities and integrators against ordinary differential equations, determinants, and laws in closed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from tests.oracles import assert_close, normal
from torch import Tensor

import torchbayes as tb
from torchbayes.density.dynamics import displaced
from torchbayes.methods.langevin.integrators import Moved, Moving, gradients_of, integrated
from torchbayes.methods.langevin.kinetics import Isokinetic, Kinetics, Newtonian

BOTH: list[Any] = [Isokinetic(), Newtonian()]
either = pytest.mark.parametrize("kinetics", BOTH, ids=["isokinetic", "newtonian"])
INTEGRATORS = ["minimal_norm", "leapfrog"]


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def unit(*shape: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(normal(*shape, seed=seed), dim=-1)


def skewed(weights_MD: Tensor) -> Tensor:
    """A smooth density without symmetries."""
    weights_MD = weights_MD.double()
    coupled_M = (weights_MD[:, 1:] - 0.3 * weights_MD[:, :-1].square()).square().sum(1)
    return -0.5 * weights_MD.square().sum(1) - 0.5 * coupled_M - 0.1 * weights_MD.exp().sum(1)


# --- velocities ---


@pytest.mark.parametrize(("size", "time", "strength"), [(2, 0.7, 1.0), (5, 1.3, 4.0), (20, 0.2, 30.0), (5, 3.0, 0.01)])
def test_a_kick_solves_the_equation_of_motion_on_the_sphere(size: int, time: float, strength: float):
    velocity, force = unit(1, size, seed=1), strength * normal(1, size, seed=2)
    kicked, gain = Isokinetic().kicked(velocity, force, double(time))
    f = force[0].numpy()

    def motion(_: float, at: np.ndarray) -> np.ndarray:
        u = at[:-1]
        return np.append((f - u * (u @ f)) / (size - 1), f @ u)  # the last is the work of the force

    solved = solve_ivp(motion, (0, time), np.append(velocity[0].numpy(), 0.0), rtol=1e-12, atol=1e-13, method="DOP853")
    assert_close(kicked[0], torch.from_numpy(solved.y[:-1, -1]), rtol=1e-9, atol=1e-10)
    assert_close(gain[0], torch.tensor(solved.y[-1, -1]), rtol=1e-9, atol=1e-10)
    assert_close(kicked.norm(dim=-1), double(1.0))


def test_a_kick_contracts_the_area_of_the_sphere_by_its_work():
    velocity, force, time = unit(1, 5, seed=1), 3 * normal(1, 5, seed=2), double(0.9)
    kicked, gain = Isokinetic().kicked(velocity, force, time)
    jacobian = torch.func.jacrev(lambda u: Isokinetic().kicked(u[None], force, time)[0][0])(velocity[0])

    def tangents(u: Tensor) -> Tensor:
        return torch.linalg.qr(torch.cat([u[:, None], torch.eye(5, dtype=torch.float64)[:, :4]], 1))[0][:, 1:]

    area = torch.linalg.det(tangents(kicked[0]).T @ jacobian @ tangents(velocity[0])).abs()
    assert_close(area, (-gain[0]).exp(), rtol=1e-9)


def test_a_kick_is_undone_by_itself_backwards():
    velocity, force, time = unit(3, 7, seed=1), normal(3, 7, seed=2), double(0.1, 1.0, 4.0)
    kicked, gain = Isokinetic().kicked(velocity, force, time)
    back, lost = Isokinetic().kicked(-kicked, force, time)
    assert_close(-back, velocity, rtol=1e-8, atol=1e-10)
    assert_close(lost, -gain, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strength", [0.0, 1e-30, 1.0, 1e8, 1e30])
def test_any_force_leaves_a_finite_velocity_of_length_one(dtype: torch.dtype, strength: float):
    velocity = unit(4, 6, seed=1).to(dtype)
    force = strength * torch.stack([normal(6, seed=2), *(sign * velocity[1].double() for sign in (1, -1, 1))])
    kicked, gain = Isokinetic().kicked(velocity, force.to(dtype), double(2.0, 2.0, 2.0, 2.0))
    assert torch.isfinite(gain).all()
    assert_close(kicked.double().norm(dim=-1), torch.ones(4).double(), rtol=1e-6)
    if strength == 0.0:
        assert_close(kicked, velocity, rtol=1e-6, atol=1e-7)
        assert_close(gain, torch.zeros(4).double(), atol=1e-6)


@pytest.mark.parametrize(("size", "expected"), [(2, 0.9724), (5, 0.9594), (20, 0.9532), (200, 0.9514)])
def test_refreshment_forgets_as_fast_as_it_says(size: int, expected: float):
    """The expected products were found by simulation; e^−0.05 = 0.9512 is the limit of many weights."""
    rows = 400_000 // size
    velocity, rate = unit(rows, size, seed=3), double(0.05).expand(rows)
    turned = Isokinetic().refreshed(velocity, normal(rows, size, seed=4), rate, length_M=torch.ones_like(rate))
    products = (velocity * turned).sum(-1)
    assert float(products.mean()) == pytest.approx(expected, abs=4 * float(products.std()) / rows**0.5 + 1e-4)
    assert_close(turned.norm(dim=-1), torch.ones(rows).double())


@either
def test_refreshment_keeps_the_law_of_velocities(kinetics: Kinetics):
    velocity = kinetics.fresh(normal(200_000, 3, seed=3))
    time = torch.full((200_000,), 0.4, dtype=torch.float64)
    turned = kinetics.refreshed(velocity, normal(200_000, 3, seed=4), time, length_M=torch.ones_like(time))
    variance = 1 / 3 if isinstance(kinetics, Isokinetic) else 1.0
    assert_close(turned.T @ turned / len(turned), variance * torch.eye(3).double(), rtol=0, atol=0.012 * variance)
    assert_close(turned.mean(0), torch.zeros(3).double(), atol=0.01)
    for at, parts in ((velocity, (0, 1)), (turned, (0, 2))):  # and no more of a coordinate's fourth power
        fourth = at[:, parts[0]].pow(4).mean() / variance**2
        assert float(fourth) == pytest.approx(9 / 5 if variance < 1 else 3.0, rel=0.03)


def test_underdamped_refreshment_is_the_exact_process():
    time, length, count = 0.3, 0.7, 100_000
    momentum = torch.full((count, 1), 2.0, dtype=torch.float64)
    full = double(time).expand(count)
    turned = Newtonian().refreshed(momentum, normal(count, 1, seed=4), full, length_M=double(length).expand(count))
    keep = math.exp(-time / length)
    assert float(turned.mean()) == pytest.approx(2 * keep, abs=0.015)
    assert float(turned.var()) == pytest.approx(1 - keep**2, rel=0.03)


# --- integrators ---


def steps_of(
    kinetics: Kinetics, start: Moving, integrator: str, step_size: float, steps: int = 1, mass: Tensor | None = None
) -> Moved:
    sizes = torch.full((steps, len(start.weights_MD)), step_size, dtype=torch.float64)
    return integrated(kinetics, DENSITY, start, step_size_LM=sizes, integrator=integrator, inverse_mass_MD=mass)


DENSITY = tb.FunctionDensity(skewed)


def moving(kinetics: Kinetics, size: int = 4, rows: int = 3) -> Moving:
    weights = normal(rows, size, seed=1)
    return Moving(weights, kinetics.fresh(normal(rows, size, seed=2)), DENSITY(weights).gradient)


@either
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_steps_are_reversible(kinetics: Kinetics, integrator: str):
    start = moving(kinetics)
    factor = torch.linalg.cholesky(torch.eye(4).double() + 0.4).expand(3, 4, 4)
    there = steps_of(kinetics, start, integrator, 0.3, 7, factor)
    back = steps_of(
        kinetics, Moving(there.weights_MD, -there.velocity_MD, there.value.gradient), integrator, 0.3, 7, factor
    )
    assert_close(back.weights_MD, start.weights_MD, rtol=1e-8, atol=1e-9)
    assert_close(-back.velocity_MD, start.velocity_MD, rtol=1e-8, atol=1e-9)
    assert_close(back.gain_M, -there.gain_M, rtol=1e-8, atol=1e-8)


@either
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_steps_change_the_volume_by_their_work(kinetics: Kinetics, integrator: str):
    """Of weights and velocities together: e^−ΔK on the sphere, 1 for momenta."""
    start, size = moving(kinetics, rows=1), 4

    def both(weights: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        def gradient(at_MD: Tensor) -> Any:
            value = DENSITY(at_MD)
            return value._replace(gradient=torch.func.vmap(torch.func.grad(lambda w: skewed(w[None])[0]))(at_MD))

        at = Moving(weights[None], velocity[None], gradient(weights[None]).gradient)
        end = integrated(
            kinetics, gradient, at, step_size_LM=double(0.4, 0.4)[:, None], integrator=integrator, inverse_mass_MD=None
        )
        return end.weights_MD[0], end.velocity_MD[0]

    rows: list[Tensor] = []
    at = torch.cat([start.weights_MD[0], start.velocity_MD[0]])
    for column in torch.eye(2 * size).double():  # by central differences, which need no derivative of a gradient
        ends = [torch.cat(both(*(at + sign * 1e-6 * column).split(size))) for sign in (1, -1)]
        rows.append((ends[0] - ends[1]) / 2e-6)
    jacobian = torch.stack(rows, 1)
    end = steps_of(kinetics, start, integrator, 0.4, 2)
    expected = double(1.0)
    if isinstance(kinetics, Isokinetic):

        def basis(u: Tensor) -> Tensor:
            tangent = torch.linalg.qr(torch.cat([u[:, None], torch.eye(size).double()[:, : size - 1]], 1))[0][:, 1:]
            return torch.block_diag(torch.eye(size).double(), tangent)

        jacobian = basis(end.velocity_MD[0]).T @ jacobian @ basis(start.velocity_MD[0])
        expected = (-end.gain_M).exp()
    assert_close(torch.linalg.det(jacobian).abs()[None], expected, rtol=1e-6)


@either
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_errors_of_a_step_are_of_third_order(kinetics: Kinetics, integrator: str):
    start, errors = moving(kinetics, rows=64), []
    before = DENSITY(start.weights_MD).log_density
    for step_size in (0.02, 0.01, 0.005):
        end = steps_of(kinetics, start, integrator, step_size)
        errors.append(float((end.gain_M + before - end.value.log_density).abs().median()))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(3.0, abs=0.1)
    assert math.log2(errors[1] / errors[2]) == pytest.approx(3.0, abs=0.1)


@either
def test_a_mass_is_a_change_of_coordinates(kinetics: Kinetics):
    """Steps with M⁻¹ = R Rᵀ are those of y, w = R y, with unit mass."""
    factor = torch.linalg.cholesky(torch.eye(4).double() + 0.4)
    start, step = moving(kinetics, rows=2), torch.full((3, 2), 0.2, dtype=torch.float64)
    with_mass = steps_of(kinetics, start, "minimal_norm", 0.2, 3, factor.expand(2, 4, 4))
    other = tb.FunctionDensity(lambda y: skewed(y @ factor.T))
    at = torch.linalg.solve_triangular(factor, start.weights_MD.T, upper=False).T
    plain = integrated(
        kinetics,
        other,
        Moving(at, start.velocity_MD, other(at).gradient),
        step_size_LM=step,
        integrator="minimal_norm",
        inverse_mass_MD=None,
    )
    assert_close(displaced(plain.weights_MD, factor.expand(2, 4, 4)), with_mass.weights_MD, rtol=1e-9, atol=1e-10)
    assert_close(plain.gain_M, with_mass.gain_M, rtol=1e-9, atol=1e-10)


def test_a_member_of_step_size_zero_stays():
    start = moving(Isokinetic(), rows=2)
    sizes = torch.tensor([[0.3, 0.3], [0.3, 0.0]]).double()
    options: dict[str, Any] = {"integrator": "leapfrog", "inverse_mass_MD": None}
    both = integrated(Isokinetic(), DENSITY, start, step_size_LM=sizes, **options)
    alone = integrated(
        Isokinetic(), DENSITY, Moving(*(part[1:] for part in start)), step_size_LM=sizes[:1, 1:], **options
    )
    assert_close(both.weights_MD[1:], alone.weights_MD)
    assert_close(both.gain_M[1:], alone.gain_M)


def test_gradients_are_counted_as_they_are_taken():
    assert [gradients_of(name) for name in INTEGRATORS] == [2, 1]

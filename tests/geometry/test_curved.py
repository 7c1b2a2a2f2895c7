"""Directions of largest curvature against dense eigenvectors."""

from __future__ import annotations

import pytest
import torch

import torchbayes as tb
from tests.geometry.problems import NAMES, gauss_newton, hessian, problem
from torchbayes.geometry import curved_directions

GGN = [name for name in NAMES if name not in {"learned noise", "one weight"}]


@pytest.mark.parametrize("name", NAMES)
def test_directions_are_eigenvectors_of_the_dense_hessian(name):
    model, data = problem(name)
    dense = hessian(model, data)
    actual = curved_directions(
        model, data, model.given_weights(), rank=min(3, len(dense)), matrix="hessian", steps=dense.shape[0]
    )
    values = torch.linalg.eigvalsh(dense)
    wanted = values[values.abs().argsort(descending=True)[: len(actual.values_R)]]
    assert torch.allclose(actual.values_R, wanted, rtol=1e-8, atol=1e-9)
    assert torch.allclose(actual.vectors_RD @ dense, actual.values_R[:, None] * actual.vectors_RD, atol=1e-7)
    gram = actual.vectors_RD @ actual.vectors_RD.T
    assert torch.allclose(gram, torch.eye(len(gram), dtype=torch.float64), atol=1e-10)


@pytest.mark.parametrize("name", GGN)
def test_directions_span_the_same_subspace_as_dense_ones(name):
    model, data = problem(name)
    dense = gauss_newton(model, data)
    actual = curved_directions(model, data, model.given_weights(), rank=2, steps=dense.shape[0])
    _, vectors = torch.linalg.eigh(dense)
    inside = vectors[:, -2:].T @ actual.vectors_RD.T
    assert torch.allclose(inside @ inside.T, torch.eye(2, dtype=torch.float64), atol=1e-7)


def test_a_subspace_lies_along_them():
    model, data = problem("mlp" if "mlp" in NAMES else NAMES[0])
    weights = model.given_weights()
    actual = curved_directions(model, data, weights, rank=2)
    space = tb.Subspace(model, weights, actual.vectors_RD, prior_scale=1.0)
    posterior = tb.fit(model, data, tb.EllipticalSlice(2, 30, 10), space=space, callbacks=())
    moved = posterior.sample(4) - space.origin_D
    inside = moved @ space.basis_RD.T @ space.basis_RD
    assert torch.allclose(moved, inside, atol=1e-9)


def test_too_few_steps_are_said():
    model, data = problem(NAMES[0])
    with pytest.warns(UserWarning, match="have not converged"):
        curved_directions(model, data, model.given_weights(), rank=2, steps=2)


@pytest.mark.parametrize(("rank", "steps"), [(5, 3), (10_000, 20_000)])
def test_more_directions_than_steps_or_weights_are_refused(rank, steps):
    model, data = problem(NAMES[0])
    with pytest.raises(ValueError, match="`rank` must be at most"):
        curved_directions(model, data, model.given_weights(), rank=rank, steps=steps)

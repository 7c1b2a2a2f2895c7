"""Barriers: closed forms where the loss is quadratic or convex, and the library's own evaluation elsewhere."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.geometry.networks import filled, made, normal
from torchbayes.geometry import Barrier, align, barrier, interior
from torchbayes.model.likelihoods import Weighted


def regression() -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    model = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(0.7))
    return model, (normal(30, 4, seed=1), normal(30, 1, seed=2))


def classifier() -> tuple[tb.Model, tuple[Tensor, Tensor], Tensor]:
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    model = tb.Model(net, tb.likelihoods.Categorical())
    return model, (normal(50, 3, seed=1), torch.arange(50) % 3), normal(2, model.layout.size, seed=5)


def test_a_quadratic_loss():
    """L(λ) = (1−λ) L_A + λ L_B − ½ λ(1−λ) ΔᵀHΔ with H = XᵀX / (N s²), and s² is 0.49."""
    model, data = regression()
    first_D, second_D = normal(2, 5, seed=3)
    actual = barrier(model, data, first_D, second=second_D, points=11)
    design = torch.cat([data[0], torch.ones(30, 1, dtype=torch.float64)], dim=1)
    change = design @ (first_D - second_D)
    curvature = float(change @ change) / (30 * 0.49)
    for at, loss in zip(actual.positions, actual.nll, strict=True):
        straight = (1 - at) * actual.nll[0] + at * actual.nll[-1]
        assert loss == pytest.approx(straight - 0.5 * at * (1 - at) * curvature, rel=1e-12)
    assert actual.excess == pytest.approx(0.0, abs=1e-12)  # at the ends, as the loss is convex
    assert actual.height == pytest.approx(0.5 * abs(actual.nll[0] - actual.nll[-1]), rel=1e-12)
    residuals = data[1] - design @ first_D.unsqueeze(1)
    assert actual.nll[0] == pytest.approx(
        float(residuals.square().mean()) / 0.98 + math.log(0.7) + 0.5 * math.log(2 * math.pi), rel=1e-12
    )
    assert actual.kind == "rmse"
    assert actual.error is not None
    assert actual.error[0] == pytest.approx(float(residuals.square().mean().sqrt()), rel=1e-12)


def test_a_convex_loss_has_no_excess():
    model = tb.Model(nn.Linear(3, 4).double(), tb.likelihoods.Categorical())
    data = normal(40, 3, seed=1), torch.arange(40) % 4
    first_D, second_D = 3 * normal(2, 16, seed=8)
    actual = barrier(model, data, first_D, second=second_D)
    assert len(actual.nll) == 25
    assert actual.excess == pytest.approx(0.0, abs=1e-12)
    assert actual.height >= 0.5 * abs(actual.nll[0] - actual.nll[-1]) - 1e-12


def test_both_definitions_by_hand():
    actual = Barrier((0.0, 0.5, 1.0), (1.0, 3.0, 2.0), (0.1, 0.5, 0.2), "error rate")
    assert actual.height == pytest.approx(1.5)
    assert actual.excess == pytest.approx(1.5)
    assert actual.error_excess == pytest.approx(0.35)
    slope = Barrier((0.0, 0.25, 1.0), (1.0, 2.0, 3.0), None, "")
    assert (slope.height, slope.excess, slope.error_excess) == (pytest.approx(1.0), pytest.approx(0.5), None)


def test_points_agree_with_evaluate():
    model, data, (first_D, second_D) = classifier()
    actual = barrier(model, data, first_D, second=second_D, points=5)
    assert actual.error is not None
    assert actual.kind == "error rate"
    for at, loss, error in zip(actual.positions, actual.nll, actual.error, strict=True):
        judged = tb.evaluate(tb.Point(model, ((1 - at) * first_D + at * second_D).unsqueeze(0)), data)
        assert loss == pytest.approx(judged.metrics["nll"], rel=1e-12)
        assert error == pytest.approx(1 - judged.metrics["accuracy"], abs=1e-12)


def test_chunks_and_kinds_of_data_do_not_matter():
    model, data, ends = classifier()
    table = barrier(model, data, ends[0], second=ends[1], points=3)
    sets = torch.utils.data.TensorDataset(*data)
    for other, size in ((data, 7), (sets, 1024), (torch.utils.data.DataLoader(sets, batch_size=9), 4)):
        actual = barrier(model, other, ends[0], second=ends[1], points=3, chunk_size=size)
        assert actual.nll == pytest.approx(table.nll, rel=1e-12)
        assert actual.error == pytest.approx(table.error, rel=1e-12)


def test_batch_norm_is_recalibrated_at_every_point():
    model, data = made("batch norm")
    weights_MD = torch.stack([model.given_weights(), made("batch norm", seed=1)[0].given_weights()])
    train = normal(20, 2, 8, 8, seed=3), normal(20, 3, seed=4)
    actual = barrier(model, data, weights_MD[0], second=weights_MD[1], points=3, calibration=train)
    middle = tb.Point(model, weights_MD.mean(0, keepdim=True)).calibrated(lambda: iter([train[0]]))
    assert actual.nll[1] == pytest.approx(tb.evaluate(middle, data).metrics["nll"], rel=1e-10)
    assert barrier(model, data, weights_MD[0], second=weights_MD[1], points=3).nll[1] != pytest.approx(actual.nll[1])


def test_alignment_does_not_move_the_ends():
    model, data, weights_MD = classifier()
    before = barrier(model, data, weights_MD[0], second=weights_MD[1])
    moved_MD = align(model, weights_MD).weights_MD
    after = barrier(model, data, moved_MD[0], second=moved_MD[1])
    assert after.nll[0] == pytest.approx(before.nll[0], rel=1e-12)
    assert after.nll[-1] == pytest.approx(before.nll[-1], rel=1e-12)


def test_learned_noise_is_interpolated():
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian())
    data = normal(9, 2), normal(9, 1, seed=1)
    first_D, second_D = normal(2, model.layout.size, seed=2)
    actual = barrier(model, data, first_D, second=second_D, points=3)
    middle = tb.Point(model, 0.5 * (first_D + second_D).unsqueeze(0))
    assert actual.nll[1] == pytest.approx(tb.evaluate(middle, data).metrics["nll"], rel=1e-12)


def test_weights_of_rows_and_ignored_labels():
    net = nn.Linear(3, 3).double()
    data = normal(12, 3), torch.arange(12) % 3
    ends = normal(2, 12, seed=6)
    some = data[1].clone()
    some[6:] = -100
    model = tb.Model(net, tb.likelihoods.Categorical(ignore_index=-100))
    actual = barrier(model, (data[0], some), ends[0], second=ends[1], points=3)
    half = barrier(model, (data[0][:6], data[1][:6]), ends[0], second=ends[1], points=3)
    assert actual.nll == pytest.approx(half.nll, rel=1e-12)
    assert actual.error == pytest.approx(half.error, rel=1e-12)
    weighted = tb.Model(net, Weighted(tb.likelihoods.Categorical()))
    counts = torch.tensor([1.0] * 6 + [0.0] * 6, dtype=torch.float64)
    actual = barrier(weighted, (data[0], (data[1], counts)), ends[0], second=ends[1], points=3)
    assert actual.nll == pytest.approx(half.nll, rel=1e-12)
    with pytest.raises(ValueError, match="no row"):
        barrier(model, (data[0], torch.full((12,), -100)), ends[0], second=ends[1])


def test_binary_labels():
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Bernoulli())
    data = normal(20, 2), (normal(20, 1, seed=2) > 0).double()
    ends = normal(2, 3, seed=6)
    actual = barrier(model, data, ends[0], second=ends[1], points=2)
    logits = data[0] @ ends[0, :2] + ends[0, 2]
    assert actual.error is not None
    assert actual.error[0] == pytest.approx(float(((logits > 0).double() != data[1][:, 0]).double().mean()))


def test_a_summary():
    model, data, ends = classifier()
    actual = barrier(model, data, ends[0], second=ends[1], points=4)
    held = json.loads(json.dumps(actual.to_dict()))
    assert held["nll"] == pytest.approx(actual.nll)
    assert held["height"] == pytest.approx(actual.height)
    assert f"height {actual.height:.4g}" in repr(actual)


def test_what_is_refused():
    model, data, ends = classifier()
    net = filled(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)))
    assert barrier(model, data, net, second=tb.Point(model, ends[:1]), points=2).nll[1] > 0
    with pytest.raises(ValueError, match="`second` must be one network; got 2"):
        barrier(model, data, ends[0], second=ends)
    with pytest.raises(ValueError, match="`points` must be a whole number of at least 2; got 1"):
        barrier(model, data, ends[0], second=ends[1], points=1)
    with pytest.raises(ValueError, match="`first` must be finite"):
        barrier(model, data, ends[0] * torch.nan, second=ends[1])


# --- in a simplex ---


def test_a_quadratic_loss_in_a_simplex():
    """L(Σ b_v w_v) = Σ b_v L(w_v) − ½ Σ b_v |w_v − w̄|²_H with w̄ the point itself; E b bᵀ is that of Dirichlet(1)."""
    model, data = regression()
    vertices = normal(4, 5, seed=3)
    actual = interior(model, data, vertices, points=400, seed=1)
    design = torch.cat([data[0], torch.ones(30, 1, dtype=torch.float64)], dim=1)
    points = actual.coordinates_PV @ vertices
    apart = (vertices - points.unsqueeze(1)) @ design.T
    below = 0.5 * (actual.coordinates_PV * apart.square().sum(-1)).sum(-1) / (30 * 0.49)
    torch.testing.assert_close(actual.nll_P, actual.coordinates_PV @ actual.vertices_V - below, rtol=1e-10, atol=1e-10)
    assert actual.excess < 0
    assert actual.worst < 0
    moment = (1 + torch.eye(4, dtype=torch.float64)) / 20
    mean = float((design @ vertices.T @ moment @ vertices @ design.T).trace() / (2 * 30 * 0.49))
    cross = float(data[1].T @ design @ vertices.mean(0)) / (30 * 0.49)
    constant = float(data[1].square().mean()) / 0.98 + math.log(0.7) + 0.5 * math.log(2 * math.pi)
    assert float(actual.nll_P.mean()) == pytest.approx(mean - cross + constant, rel=0.1)
    assert actual.mean == pytest.approx(float(actual.nll_P.mean() - actual.vertices_V.mean()))
    assert actual.kind == "rmse"


def test_a_simplex_of_two_networks_is_the_line_between_them():
    model, data, ends = classifier()
    actual = interior(model, data, ends, points=3, seed=2)
    share = float(actual.coordinates_PV[1, 1])
    there = torch.lerp(ends[0], ends[1], share)
    expected = barrier(model, data, there, second=there, points=2)
    assert float(actual.nll_P[1]) == pytest.approx(expected.nll[0], rel=1e-12)
    assert expected.error is not None
    assert actual.error_P is not None
    assert float(actual.error_P[1]) == pytest.approx(expected.error[0], rel=1e-12)
    line = barrier(model, data, ends[0], second=ends[1], points=2)
    assert actual.vertices_V.tolist() == pytest.approx(list(line.nll), rel=1e-12)
    assert interior(model, data, tb.Point(model, ends), points=3, seed=2).to_dict() == actual.to_dict()
    assert json.loads(json.dumps(actual.to_dict()))["worst"] == actual.worst
    assert "at the vertices" in repr(actual)


def test_a_simplex_needs_two_networks():
    model, data, ends = classifier()
    with pytest.raises(ValueError, match="at least two, which span a simplex; got 1"):
        interior(model, data, ends[0])

"""Optimisers against torch.optim, schedules against hand-computed points."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.laws.cases import normal

import torchbayes as tb
from torchbayes.methods.optimise.optimizers import Optimizer

PAIRS: list[tuple[Optimizer, type[torch.optim.Optimizer], dict[str, Any]]] = [
    (tb.SGD(lr=0.1, momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (tb.SGD(lr=0.1, momentum=0.9, nesterov=True), torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (tb.SGD(lr=0.1, momentum=0.0), torch.optim.SGD, {}),
    (tb.Adam(lr=0.1), torch.optim.Adam, {}),
    (tb.Adam(lr=0.1, betas=(0.5, 0.7), eps=1e-3), torch.optim.Adam, {"betas": (0.5, 0.7), "eps": 1e-3}),
    (tb.AdamW(lr=0.1, weight_decay=0.3), torch.optim.AdamW, {"weight_decay": 0.3}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("ours", "theirs", "settings"), PAIRS, ids=lambda v: getattr(v, "__name__", None))
def test_equals_torch_optim_step_by_step(
    ours: Optimizer, theirs: type[torch.optim.Optimizer], settings: dict[str, Any], dtype: torch.dtype
) -> None:
    """Two members in one tensor against one torch optimiser per member, with a learning rate that changes."""
    weights_MD = normal(2, 37, dtype=dtype)
    copies = [torch.nn.Parameter(row.clone()) for row in weights_MD]
    optimizers = [theirs([copy], lr=ours.lr, foreach=False, fused=False, **settings) for copy in copies]  # type: ignore[call-arg]
    slots = ours.slots(weights_MD)
    for step in range(12):
        gradient_MD, lr = normal(2, 37, seed=step, dtype=dtype), ours.lr / (1 + step)
        ours.update(weights_MD, gradient_MD.clone(), slots, lr=lr)
        for copy, optimizer, gradient_D in zip(copies, optimizers, gradient_MD, strict=True):
            copy.grad, optimizer.param_groups[0]["lr"] = gradient_D.clone(), lr
            optimizer.step()
        tolerance = 1e-12 if dtype == torch.float64 else 2e-6
        torch.testing.assert_close(weights_MD, torch.stack([*copies]).detach(), rtol=tolerance, atol=tolerance)


def test_zero_gradient_leaves_weights_alone() -> None:
    for ours in (tb.SGD(), tb.Adam()):
        weights_MD = normal(2, 5)
        before, slots = weights_MD.clone(), ours.slots(weights_MD)
        ours.update(weights_MD, torch.zeros(2, 5, dtype=torch.float64), slots, lr=0.5)
        torch.testing.assert_close(weights_MD, before, rtol=0, atol=0)


def swag_paper(epoch: float, epochs: float, final: float) -> float:
    """The schedule in the code published with Maddox et al. (2019), with t = epoch / epochs."""
    t = epoch / epochs
    if t <= 0.5:
        return 1.0
    if t <= 0.9:
        return 1.0 - (1.0 - final) * (t - 0.5) / 0.4
    return final


@pytest.mark.parametrize("end", [1.0, 0.75, 0.25])
@pytest.mark.parametrize("final", [0.01, 0.5, 2.0])
def test_piecewise_linear_is_the_swag_papers(end: float, final: float) -> None:
    schedule = tb.PiecewiseLinear(final=final, end=end)
    for step in range(200):
        expected = swag_paper(step, 200 * end, final)
        assert schedule.factor(step / 200) == pytest.approx(expected, rel=1e-12)


def test_piecewise_linear_at_points() -> None:
    schedule = tb.PiecewiseLinear(final=0.1)
    points = {0.0: 1.0, 0.5: 1.0, 0.6: 0.775, 0.7: 0.55, 0.9: 0.1, 0.99: 0.1}
    assert [schedule.factor(t) for t in points] == pytest.approx(list(points.values()))
    assert tb.PiecewiseLinear(final=0.2, end=0.0).factor(0.0) == pytest.approx(0.2)


def test_cosine_at_points() -> None:
    points = {0.0: 1.0, 1 / 3: 0.75, 0.5: 0.5, 2 / 3: 0.25, 1.0: 0.0}
    assert [tb.Cosine().factor(t) for t in points] == pytest.approx(list(points.values()), abs=1e-15)
    assert tb.Cosine(final=0.2).factor(0.5) == pytest.approx(0.6)
    warm = tb.Cosine(warmup=0.2)
    assert [warm.factor(t) for t in (0.0, 0.1, 0.2, 0.6)] == pytest.approx([0.0, 0.5, 1.0, 0.5])


def test_cosine_is_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1)
    for step in range(50):
        assert tb.Cosine(final=0.1).factor(step / 50) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        theirs.step()


def test_constant_is_one() -> None:
    assert {tb.Constant().factor(t) for t in (0.0, 0.3, 0.999)} == {1.0}
    assert math.isclose(tb.Constant().factor(0.5), 1.0)


def test_fit_uses_the_schedule() -> None:
    """The learning rate of the last step of each epoch is the schedule's at the share of the run before it."""
    rates: list[float] = []
    model = tb.Model(torch.nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(1.0))
    method = tb.MAP(epochs=10, batch_size=5, optimizer=tb.SGD(lr=0.2), schedule=tb.PiecewiseLinear(final=0.1))
    tb.fit(model, (normal(10, 2), normal(10)), method, callbacks=[lambda event: rates.append(event.record["lr"])])
    assert rates == pytest.approx([0.2 * swag_paper(2 * e + 1, 20, 0.1) for e in range(10)])

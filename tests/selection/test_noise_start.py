"""Where a learned noise begins and ends that held-out rows say more of: against known noise, and residuals by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.optimise.learned import likeliest
from torchbayes.model.sources.sources import as_source

FEATURES, NOISE = 4, 3.0
LIKELIHOOD = tb.likelihoods.Gaussian("learned")


def table(rows: int, seed: int = 0, outputs: int = 1) -> tuple[Tensor, Tensor]:
    """Return rows of a linear function of standard deviation 2, with normal noise."""
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, FEATURES, generator=random).double()
    means = inputs.sum(1, keepdim=True).expand(-1, outputs)
    return inputs, means + NOISE * torch.randn(rows, outputs, generator=random).double()


def linear(outputs: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(FEATURES, outputs).double()


def model(likelihood: Any = LIKELIHOOD, outputs: int = 1) -> tb.Model:
    return tb.Model(linear(outputs), likelihood)


def noise_of(posterior: Any) -> float:
    return float(posterior.functions(8).parameters["log_scale"].exp().mean())


FEW: dict[str, Any] = {"epochs": 8}
METHODS = [
    tb.MAP(members=2, **FEW),
    pytest.param(tb.MAP(optimizer=tb.SAM(tb.Adam(0.003)), **FEW), marks=pytest.mark.study),
    pytest.param(tb.SWA(**FEW), marks=pytest.mark.study),  # which SWAG is too, and snapshots are the next
    tb.SWAG(rank=2, **FEW),
    pytest.param(tb.FGE(**FEW), marks=pytest.mark.study),
    pytest.param(tb.Snapshots(cycles=2, **FEW), marks=pytest.mark.study),  # descents begin in one place
    tb.RepulsiveEnsemble(members=2, **FEW),
    tb.VBLL(kl_weight=1.0, **FEW),
]


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_few_epochs_leave_the_noise_at_its_known_value(method: Any) -> None:
    # the targets have the spread √13, half of which is 0.6 of the noise; 32 steps move its logarithm by 0.1 at most
    data, new = table(400), table(400, seed=1)
    begin = torch.cat([torch.ones(FEATURES), torch.tensor([0.0, math.log(0.5 * data[1].std())])])
    actual = tb.fit(model(), data, method, start=begin.double(), callbacks=(), validation=new)
    assert noise_of(actual) == pytest.approx(NOISE, rel=0.08)  # 400 rows know it to 3.5 %


def half_spread(data: tuple[Tensor, Tensor]) -> Tensor:
    return (0.5 * data[1].std(0, correction=0)).log()


STILL: dict[str, Any] = {"epochs": 4, "optimizer": tb.SGD(1e-12)}


def noises(method: Any, likelihood: Any, data: Any, new: Any, directory: Path) -> tuple[Tensor, Tensor]:
    """Return the noise of a run whose network cannot move, and what held-out rows ask for."""
    outputs = data[1].shape[1]
    about: dict[str, Any] = {"start": torch.zeros(outputs * (FEATURES + 2)).double(), "callbacks": ()}
    about["start"][-outputs:] = half_spread(data)
    actual = tb.fit(model(likelihood, outputs), data, method, validation=new, directory=directory, **about)
    seen = json.loads((directory / "config.json").read_text())["chosen"]
    centre = actual.centre or actual
    return centre.sample(1)[0, -outputs:], torch.tensor(seen.get("learned", []), dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
@pytest.mark.parametrize("size", [1.0, 0.2], ids=["above", "below"])
@pytest.mark.parametrize(
    "method", [tb.Snapshots(cycles=1, **STILL), tb.MAP(**STILL), tb.SWA(**STILL), tb.SWAG(burn_in=0.0, **STILL)]
)
def test_it_begins_no_lower_than_held_out_rows_ask_for_or_ends_there(method: Any, size: float, tmp_path: Path) -> None:
    """With S the sum of squares of n residuals of an output they ask for (S + 2 (spread/10)²)/(n + 2)."""
    data, (inputs, targets) = table(60, outputs=2), table(50, seed=1, outputs=2)
    new, likelihood = (inputs, size * targets), tb.likelihoods.Gaussian("learned", outputs=2)
    now, wanted = noises(method, likelihood, data, new, tmp_path)
    tenth = data[1].std(0, correction=0) / 10
    by_hand = (((new[1] ** 2).sum(0) + 2 * tenth**2) / 52).log() / 2
    torch.testing.assert_close(wanted, by_hand, atol=1e-5, rtol=0)
    begun = torch.maximum(half_spread(data), by_hand)
    torch.testing.assert_close(now, begun if isinstance(method, tb.Snapshots) else by_hand, atol=1e-5, rtol=0)


def test_rows_judge_networks_under_the_noise_that_makes_them_likeliest() -> None:
    """It has the variance S/n, and n residuals cost log(2 π e S/n)/2 nats each, whatever noise the networks have."""
    points, rows, squares = list[Any](), list[Any](), list[Tensor]()
    for seed, own in ((1, -3.0), (2, 2.0)):
        inputs, targets = table(30, seed=seed)
        weights_D = torch.tensor([0.5, 1.0, 0.0, 2.0, 0.1, own]).double()
        points.append(tb.Point(model(), weights_D.unsqueeze(0)))
        rows.append(as_source(model(), (inputs, targets), 7).some(30))
        squares.append((targets[:, 0] - inputs @ weights_D[:FEATURES] - 0.1).square())
    by_hand = -0.5 * math.log(2 * math.pi * math.e * float(torch.cat(squares).mean()))
    assert likeliest(points, rows) == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_a_start_that_is_given_is_kept(tmp_path: Path) -> None:
    data = table(60)
    now, wanted = noises(
        tb.MAP(**STILL), tb.likelihoods.Gaussian("learned", initial=1.0), data, table(50, seed=1), tmp_path
    )
    torch.testing.assert_close(now, half_spread(data))
    assert not len(wanted)

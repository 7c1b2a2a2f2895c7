"""Members of a run, each judged against the network where it began."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.oracles import normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.health.members import Verdict, judged
from torchbayes.model.sources.sources import as_source

NOISE = 0.3
TRUE = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)


def model() -> tb.Model:
    return tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(1.0))


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs = normal(count, 2, seed=seed)
    return inputs, inputs @ TRUE[:2].unsqueeze(1) + TRUE[2] + NOISE * normal(count, 1, seed=seed + 1)


def verdict(chains_MSD: Tensor, start_MD: Tensor, **given: Any) -> Verdict:
    source = as_source(model(), rows(200, 1), 64)
    held_out = as_source(model(), rows(100, 5), 50).some(100)
    posterior = tb.Draws(model(), chains_MSD)
    return judged(posterior, tb.Point(model(), start_MD), source, held_out=held_out, **given)


def reports(means: list[float]) -> dict[str, Tensor]:
    """Log densities, and further below each other log likelihoods, of one step and 200 rows."""
    return {"log_density": torch.tensor(means)[:, None], "log_likelihood": 300 * torch.tensor(means)[:, None]}


def around(*centres: Tensor, spread: float = 0.02) -> Tensor:
    return torch.stack(centres).unsqueeze(1) + spread * normal(len(centres), 30, 3, seed=3)


def test_sound_members_stay() -> None:
    """Also where a chain is worse than its network by less than what the rows can tell."""
    start = torch.stack([TRUE, TRUE + 0.01, TRUE - 0.02])
    actual = verdict(around(TRUE + 0.01, TRUE, TRUE), start, columns=reports([-1.0, 0.0, 5.0]))
    assert actual.said == ()
    assert not actual.dropped_M.any()
    assert not actual.replaced_M.any()


def test_a_member_that_is_worse_than_its_network_is_lost() -> None:
    """A mean that is off by .5 x costs (.5)²/2/.09 = 1.4 nats a row, far beyond two standard errors of 100 rows."""
    off = TRUE + torch.tensor([0.5, 0.0, 0.0])
    actual = verdict(around(TRUE, off, TRUE), TRUE.expand(3, -1))
    assert actual.replaced_M.tolist() == [False, True, False]
    assert not actual.dropped_M.any()
    assert actual.said == ("chain 1 was replaced by the network where it began, which predicts held-out rows better",)
    assert not verdict(around(TRUE, off, TRUE), off.expand(3, -1)).replaced_M.any()


def test_members_without_a_function_of_the_inputs_are_dropped() -> None:
    dead = torch.tensor([0.0, 0.0, 0.2], dtype=torch.float64)
    chains = around(TRUE, dead, TRUE)
    chains[1, :, :2] = 0
    actual = verdict(chains, torch.stack([TRUE, dead, TRUE]))
    assert actual.dropped_M.tolist() == [False, True, False]
    assert "chain 1 was dropped: predictions do not depend on inputs" in actual.said


def test_a_member_that_hardly_moves_is_replaced() -> None:
    actual = verdict(around(TRUE, TRUE, spread=0.02) * torch.ones(2, 1, 1), TRUE.expand(2, -1))
    assert not actual.said
    chains = around(TRUE, TRUE)
    chains[0] = TRUE + 1e-6 * normal(30, 3)
    actual = verdict(chains, TRUE.expand(2, -1))
    assert actual.replaced_M.tolist() == [True, False]
    assert "hardly moved" in actual.said[0]


@pytest.mark.parametrize(("behind", "dropped"), [(9.9, False), (10.1, True)])
def test_a_member_far_below_the_others_is_dropped(behind: float, dropped: bool) -> None:
    """In units of √(D/2), the standard deviation of the log density of D normal weights."""
    actual = verdict(
        around(TRUE, TRUE, TRUE), TRUE.expand(3, -1), columns=reports([0.0, 0.0, -behind * math.sqrt(3 / 2)])
    )
    assert actual.dropped_M.tolist() == [False, False, dropped]


def test_a_mixture_worse_than_the_ensemble_becomes_the_ensemble() -> None:
    """No chain is lost against its own network; together they miss what two good networks of three know."""
    dead = torch.zeros(3, dtype=torch.float64)
    actual = verdict(around(TRUE + 0.6, TRUE + 0.6, dead), torch.stack([TRUE, TRUE, dead]))
    assert actual.replaced_M[:2].all()


def test_all_dead_members_stay_because_nothing_else_is_left() -> None:
    chains = torch.zeros(2, 30, 3, dtype=torch.float64)
    actual = verdict(chains, chains[:, 0])
    assert not actual.dropped_M.any()

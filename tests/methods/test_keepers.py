"""Keepers on motions that nobody put together before: each keeps of a path what it says, whatever moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.cases import assert_same_tensors
from tests.laws.test_method_laws import break_after, keep_every
from tests.oracles import assert_close, normal
from torch import nn

import torchbayes as tb
from torchbayes.health.ending import Ended
from torchbayes.methods.keepers import Last, Mean, Thinned, WithMoments
from torchbayes.methods.protocol import Needs

FEATURES, ROWS = 3, 40
X = normal(ROWS, FEATURES, seed=1)
Y = X @ normal(FEATURES, 1, seed=2) + 0.3 * normal(ROWS, 1, seed=3)
SHORT: dict[str, Any] = {"chains": 2, "steps": 60, "burn_in": 20, "batch_size": 8, "step_size": 1e-3}


@dataclass(frozen=True)
class LangevinMoments(tb.SGLD):
    """SGLD whose draws are not kept: a Gaussian with their moments takes their place."""

    rank: int = field(default=4, kw_only=True)

    @property
    def needs(self) -> Needs:
        return Needs(batch_size=self.batch_size, chain=True)

    @property
    def keeper(self) -> Any:
        return WithMoments(lambda now: self.retains(now.step), self.rank)

    def posterior(self, density: Any, state: Any, shelf: Any = None) -> Any:
        return tb.Gaussian(density.model, state.moments.mean_MD, state.moments.covariance(1.0))

    def ending(self, posterior: Any, state: Any) -> Any:
        return Ended()


@dataclass(frozen=True)
class MeanOfHMC(tb.HMC):
    """HMC whose draws are not kept: their mean is a network."""

    @property
    def needs(self) -> Needs:
        return Needs(chunk_size=self.chunk_size, chain=True)

    @property
    def keeper(self) -> Any:
        return Mean(lambda now: self.retains(now.step))

    def posterior(self, density: Any, state: Any, shelf: Any = None) -> Any:
        return tb.Point(density.model, state.mean_MD, statistics_known=True)

    def ending(self, posterior: Any, state: Any) -> Any:
        return Ended()


def model() -> tb.Model:
    return tb.Model(nn.Linear(FEATURES, 1).double(), tb.likelihoods.Gaussian(0.3), tb.priors.Normal(1.0))


def fit(method: Any, **about: Any) -> Any:
    return tb.fit(model(), (X, Y), method, seed=3, callbacks=(), **about)


def test_moments_of_langevin_dynamics_are_those_of_its_draws() -> None:
    actual, draws = fit(LangevinMoments(**SHORT)), fit(tb.SGLD(**SHORT)).weights_MSD
    assert_close(actual.mean_MD, draws.mean(1))
    running = torch.stack([draws[:, : s + 1].mean(1) for s in range(draws.shape[1])], 1)
    variance = draws.var(1, correction=0)
    assert_close(actual.covariance.diagonal(), variance + (draws - running)[:, -4:].square().sum(1) / 3)


def test_the_mean_of_hamiltonian_draws_is_a_network() -> None:
    settings: dict[str, Any] = {"chains": 2, "steps": 30, "burn_in": 10}
    assert_close(fit(MeanOfHMC(**settings)).weights_MD, fit(tb.HMC(**settings)).weights_MSD.mean(1))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # so short a run has not arrived
@pytest.mark.parametrize("optimizer", [tb.SAM(tb.SGD(0.05), rho=0.05), tb.SAM(tb.Adam(0.01), rho=0.01, adaptive=True)])
def test_cycles_of_sharpness_aware_descent_are_kept_at_their_ends(optimizer: Any) -> None:
    method = tb.FGE(epochs=8, batch_size=10, optimizer=optimizer, cycle=2, burn_in=0.5)
    seen: list[torch.Tensor] = []
    actual = tb.fit(
        model(), (X, Y), method, seed=3, callbacks=[lambda event: seen.append(event.state.weights_MD.clone())]
    )
    assert_close(actual.weights_MSD, torch.stack([seen[4], seen[6]], 1))  # a cycle is lowest in its middle


@pytest.mark.parametrize("method", [LangevinMoments(**SHORT), MeanOfHMC(2, 30, 10)], ids=["moments", "mean"])
def test_interrupted_and_resumed_equals_uninterrupted(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(method, directory=tmp_path / "whole")
    keep_every(monkeypatch, 10.0)
    with monkeypatch.context() as inside:
        break_after(inside, type(method), 23)
        with pytest.raises(KeyboardInterrupt):
            fit(method, directory=tmp_path / "cut")
    again = fit(method, directory=tmp_path / "cut", resume=True)
    assert_same_tensors(again.tensors(), whole.tensors())


def test_what_a_keeper_keeps_is_not_changed_unless_it_is_donated() -> None:
    @dataclass(frozen=True)
    class Moved:
        weights_MD: torch.Tensor
        step: int = 1

    path = [Moved(normal(2, 5, seed=seed), seed) for seed in range(4)]
    keepers: list[Any] = [Mean(lambda _: True), WithMoments(lambda _: True, 2)]
    for keeper in keepers:
        state = keeper.begin(path[0])
        for moved in path[1:]:
            before = {name: value.clone() for name, value in kept(state).items()}
            after = keeper.keep(state, moved, donate=False)
            assert_same_tensors(kept(state), before)
            state = after
        assert_close(kept(state)["mean"], torch.stack([moved.weights_MD for moved in path[1:]]).mean(0))
    assert Last().keep(path[0], path[1], donate=False) is path[1]
    due = Thinned(lambda now: now.step == 2)
    assert due.draw(path[1]) is None
    assert due.draw(path[2]) is path[2].weights_MD


def kept(state: Any) -> dict[str, torch.Tensor]:
    if hasattr(state, "moments"):
        return {"mean": state.moments.mean_MD, "squares": state.moments.squares_MD}
    return {"mean": state.mean_MD}

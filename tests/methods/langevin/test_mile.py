"""An ensemble, and then chains: exact posteriors, the same run after an interruption, and what is held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import LinearGaussian, assert_close, normal
from torch import Tensor, nn

import torchbayes as tb

NOISE = 0.4
ENSEMBLE = tb.MAP(epochs=40, batch_size=32, optimizer=tb.Adam(0.05))
CHAINS = tb.NUTS(steps=160, burn_in=60)
SHORT = tb.MILE(members=3, sampler=tb.MCLMC(steps=90, burn_in=60, thin=3, energy_error=0.01), ensemble=ENSEMBLE)


def model() -> tb.Model:
    return tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(1.0))


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    inputs = normal(count, 3, seed=seed)
    return inputs, inputs @ normal(3, 1, seed=9) + NOISE * normal(count, 1, seed=seed + 1)


def test_chains_have_the_exact_posterior_of_rows_that_are_not_held_out() -> None:
    """With rows of their own to compare by, all of the data are sampled; 800 draws have errors of sd/√300 or so."""
    data = rows(60)
    actual = tb.fit(
        model(), data, tb.MILE(members=8, sampler=CHAINS, ensemble=ENSEMBLE), validation=rows(40, 5), callbacks=()
    )
    mean, covariance = LinearGaussian(data[0], data[1][:, 0], 1.0, NOISE).posterior()
    draws_SD = actual.weights_MSD.flatten(0, 1)
    assert actual.weights_MSD.shape == (8, 100, 4)
    assert float(((draws_SD.mean(0) - mean) / covariance.diagonal().sqrt()).abs().max()) < 0.2
    assert_close(draws_SD.T.cov().diagonal().sqrt(), covariance.diagonal().sqrt(), rtol=0.15)


def test_a_tenth_of_the_rows_is_held_out_of_networks_and_chains(tmp_path: Path) -> None:
    """Of 120 rows 24: a fifth, as a tenth would be fewer than 50."""
    data = rows(120)
    actual = tb.fit(model(), data, SHORT, directory=tmp_path / "run", callbacks=())
    for folder in (tmp_path / "run", tmp_path / "run" / "start"):
        assert '"num_data": 96' in (folder / "config.json").read_text().replace("\n", " ")
    assert actual.members == 3
    loaded = tb.load(tmp_path / "run" / "posterior.safetensors", model())
    assert torch.equal(loaded.sample(30), actual.sample(30))


def test_a_given_ensemble_is_the_start_and_nothing_is_held_out(tmp_path: Path) -> None:
    """It may have seen any row: chains are as many as its members, and begin there."""
    start = tb.Point(model(), normal(2, 4, seed=3))
    actual = tb.fit(model(), rows(60), SHORT, start=start, directory=tmp_path / "run", callbacks=())
    assert actual.members == 2
    assert '"num_data": 60' in (tmp_path / "run" / "config.json").read_text()
    with pytest.raises(ValueError, match="validation"):
        tb.fit(model(), rows(60), tb.Laplace(), start=start, validation=0.2)


@cache
def uninterrupted() -> tb.Draws:
    return tb.fit(model(), rows(60), SHORT, callbacks=(), seed=3)


@pytest.mark.parametrize("after", [*(pytest.param(after, marks=pytest.mark.study) for after in (1, 8)), 70])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(after: int, tmp_path: Path) -> None:
    """Within the ensemble or within the chains, by an exception as Ctrl-C raises it."""
    data, seen, whole = rows(60), [0], uninterrupted()

    def stop(event: tb.Event) -> bool:
        seen[0] += 1
        if seen[0] == (after if after < 40 else 40 + after):
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        tb.fit(model(), data, SHORT, directory=tmp_path / "run", callbacks=[stop], seed=3)
    again = tb.fit(model(), data, SHORT, directory=tmp_path / "run", resume=True, callbacks=(), seed=3)
    assert_close(again.weights_MSD, whole.weights_MSD)


@dataclass(frozen=True)
class Leaving(tb.MCLMC):
    """MCLMC whose draws are all far from where they were."""

    def posterior(self, density: Any, state: Any, shelf: Any = None) -> tb.Draws:
        actual = super().posterior(density, state, shelf)
        return tb.Draws(actual.model, actual.weights_MSD + 1.0, statistics_known=True)


def test_chains_that_leave_for_a_worse_place_become_their_networks() -> None:
    leaving = tb.MILE(members=2, sampler=Leaving(steps=90, burn_in=60), ensemble=ENSEMBLE)
    data, test = rows(100), rows(300, 20)
    with pytest.warns(tb.ProblemWarning, match="replaced by the network"):
        actual = tb.fit(model(), data, leaving, callbacks=())
    assert torch.equal(actual.weights_MSD, actual.weights_MSD[:, :1].expand_as(actual.weights_MSD))
    ensemble = tb.fit(model(), data, replace(ENSEMBLE, members=2), callbacks=())
    ours, theirs = (tb.evaluate(each, test).metrics["nll"] for each in (actual, ensemble))
    assert ours == pytest.approx(theirs, abs=0.05)


@pytest.mark.parametrize(
    "sampler",
    [
        tb.HMC(chains=3, steps=1, burn_in=0, step_size=1e-4, trajectory=2e-4, mass="unit"),
        tb.NUTS(chains=3, steps=1, burn_in=0, step_size=1e-5, mass="unit"),
        tb.MALA(chains=3, steps=1, burn_in=0, step_size=1e-4),
        tb.MAMS(chains=3, steps=1, burn_in=0, step_size=1e-4, trajectory=2e-4, mass="unit"),
        tb.MCLMC(chains=3, steps=1, burn_in=0, thin=1, step_size=1e-4, trajectory=1.0, mass="unit"),
        tb.UnderdampedLangevin(chains=3, steps=1, burn_in=0, thin=1, step_size=1e-4, trajectory=1.0, mass="unit"),
        tb.EllipticalSlice(chains=3, steps=1, burn_in=0),
        tb.SGLD(chains=3, steps=1, burn_in=0, thin=1, step_size=1e-8),
        tb.SGHMC(chains=3, steps=1, burn_in=0, thin=1, step_size=1e-8),
        tb.SGNHT(chains=3, steps=1, burn_in=0, thin=1, step_size=1e-8),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_every_sampler_begins_at_an_ensemble(sampler: Any) -> None:
    """Near the members, and each nearer to its own than to the others: slices alone move far in a step."""
    start = tb.Point(model(), 3 * normal(3, 4, seed=3))
    actual = tb.fit(model(), rows(60), sampler, start=start, callbacks=())
    if not isinstance(sampler, tb.EllipticalSlice):
        assert_close(actual.weights_MSD[:, 0], start.weights_MD, atol=0.05)  # NUTS takes up to 1,024 steps
    assert actual.weights_MSD.shape == (3, 1, 4)

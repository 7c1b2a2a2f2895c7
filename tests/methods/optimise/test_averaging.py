"""SWA and SWAG against numpy on the snapshots they saw."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.covering import with_studies
from tests.laws.cases import made, model_of, normal, rows_of
from torch import Tensor

import torchbayes as tb
from torchbayes.linalg import Diagonal, LowRankPlusDiagonal
from torchbayes.methods.moments import VARIANCE_FLOOR, Moments
from torchbayes.methods.optimise.averaging import averaging_start, is_snapshot
from torchbayes.model.sources.sources import as_source
from torchbayes.randomness.seeds import member_seeds

MEMBERS = 2
SHORT = {
    "members": MEMBERS,
    "batch_size": 6,
    "optimizer": tb.SGD(),
    "averaging_lr": 0.1,
    "per_epoch": 1,
    "plan": "loop",
}


def recorded(method: tb.SWA | tb.SWAG) -> tuple[Any, np.ndarray]:
    """Fit, and record the weights at the end of every epoch: posterior, snapshots (T, M, D)."""
    seen: list[Tensor] = []

    def look(event: tb.Event) -> None:
        seen.append(event.state.trajectory.weights_MD.clone())

    posterior = tb.fit(model_of(), rows_of(), method, callbacks=[look])
    return posterior, torch.stack(seen).numpy()


def running_deviations(snapshots_TMD: np.ndarray) -> np.ndarray:
    """θ_t minus the mean of θ_1 … θ_t."""
    counts = np.arange(1, len(snapshots_TMD) + 1).reshape(-1, 1, 1)
    return snapshots_TMD - np.cumsum(snapshots_TMD, axis=0) / counts


def test_swa_is_the_mean_of_the_snapshots() -> None:
    posterior, all_TMD = recorded(tb.SWA(epochs=10, burn_in=0.5, **SHORT))
    np.testing.assert_allclose(posterior.sample(MEMBERS).numpy(), all_TMD[5:].mean(0), rtol=1e-12)
    # not what was started from, nor the last iterate
    assert np.abs(all_TMD[5:].mean(0) - all_TMD[-1]).max() > 1e-3


@pytest.mark.parametrize("rank", [2, 5, 20, *(pytest.param(rank, marks=pytest.mark.study) for rank in (3, 4))])
def test_swag_covariance_is_the_papers(rank: int) -> None:
    """½ [diag(v) + DᵀD/(K − 1)] with K deviations really collected; six snapshots are taken."""
    posterior, all_TMD = recorded(tb.SWAG(epochs=12, burn_in=0.5, rank=rank, **SHORT))
    kept_TMD = all_TMD[6:]
    np.testing.assert_allclose(posterior.mean_MD.numpy(), kept_TMD.mean(0), rtol=1e-12)
    deviations = running_deviations(kept_TMD)[-rank:]
    collected = min(rank, 6)
    assert len(deviations) == collected
    dense = posterior.covariance.dense().numpy()
    for m in range(MEMBERS):
        low_rank = deviations[:, m].T @ deviations[:, m] / (collected - 1)
        expected = 0.5 * (np.diag(kept_TMD[:, m].var(0)) + low_rank)
        np.testing.assert_allclose(dense[m], expected, rtol=1e-9, atol=1e-15)


def test_swag_diagonal_is_the_variance() -> None:
    posterior, all_TMD = recorded(tb.SWAG(epochs=12, burn_in=0.5, rank=0, **SHORT))
    assert isinstance(posterior.covariance, Diagonal)
    np.testing.assert_allclose(posterior.covariance.diagonal().numpy(), all_TMD[6:].var(0), rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize(("rank", "scale"), with_studies([(0, 0.25), (4, 2.0)], (0, 4), (0.25, 1.0, 2.0)))
def test_scale_multiplies_the_covariance(rank: int, scale: float) -> None:
    own = 1.0 if rank == 0 else 0.5
    plain, scaled = (
        tb.fit(model_of(), rows_of(), tb.SWAG(epochs=8, rank=rank, scale=s, **SHORT), callbacks=())
        for s in (None, scale)
    )
    assert isinstance(plain, tb.Gaussian)
    assert isinstance(scaled, tb.Gaussian)
    expected = plain.covariance.dense() * scale / own
    torch.testing.assert_close(scaled.covariance.dense(), expected, rtol=1e-12, atol=1e-18)
    torch.testing.assert_close(scaled.mean_MD, plain.mean_MD, rtol=0, atol=0)


def moments_of(snapshots_TMD: Tensor, rank: int) -> Moments:
    moments = Moments.empty(snapshots_TMD[0], rank)
    for snapshot_MD in snapshots_TMD:
        moments = moments.collect(snapshot_MD)
    return moments


def test_moments_are_exact_far_from_zero() -> None:
    """Welford's rule keeps what the difference of raw moments loses: a spread of 0.1 around 1,000 in float32."""
    snapshots = 1e3 + 0.1 * normal(30, 1, 50).float().double()
    moments = moments_of(snapshots.float(), 0)
    exact = snapshots.float().double().var(0, correction=0)
    torch.testing.assert_close(moments.covariance(None).diagonal().double(), exact, rtol=2e-2, atol=0)
    raw = (snapshots.float() ** 2).mean(0) - snapshots.float().mean(0) ** 2
    assert (raw / exact - 1).abs().max() > 0.5
    # one snapshot gives the snapshot itself, whatever was there before: no share of a start at zero
    torch.testing.assert_close(moments_of(snapshots[:1], 0).mean_MD, snapshots[0], rtol=0, atol=0)


def test_collecting_is_pure_unless_donated() -> None:
    snapshots = normal(7, 2, 5)
    moments = moments_of(snapshots[:5], 3)
    before = [t.clone() for t in (moments.mean_MD, moments.squares_MD, moments.deviations_MKD)]
    pure = moments.collect(snapshots[5])
    for kept, tensor in zip(before, (moments.mean_MD, moments.squares_MD, moments.deviations_MKD), strict=True):
        assert torch.equal(kept, tensor)
    donated = moments.collect(snapshots[5], donate=True)
    torch.testing.assert_close(pure.deviations_MKD, donated.deviations_MKD, rtol=0, atol=0)
    torch.testing.assert_close(pure.squares_MD, donated.squares_MD, rtol=0, atol=0)
    # slots are filled in turn: 6 snapshots, K = 3, so slot 2 holds the last
    expected = torch.from_numpy(running_deviations(snapshots[:6].numpy()))
    torch.testing.assert_close(pure.deviations_MKD, expected[3:6].transpose(0, 1))


class TestTraps:
    """Errors met in other implementations, on snapshots whose right answer is plain."""

    snapshots = torch.tensor([[[1.0]], [[2.0]], [[6.0]]], dtype=torch.float64)

    def test_the_first_snapshot_counts_once(self) -> None:
        """Mean (1 + 2 + 6)/3 = 3; with the first twice it would be 2.5, with a zero in it 2.25."""
        assert float(moments_of(self.snapshots, 2).mean_MD) == pytest.approx(3.0)

    def test_variance_is_a_variance(self) -> None:
        """Var = (4 + 1 + 9)/3 = 14/3; its root is 2.16 and the unbiased one 7."""
        assert float(moments_of(self.snapshots, 0).covariance(None).diagonal()) == pytest.approx(14 / 3)

    def test_covariance_is_halved_and_divided_by_what_was_collected(self) -> None:
        """Deviations 0, ½, 3: ½ [14/3 + 9.25/(K − 1)], K = 3 of them though the rank is 20."""
        actual = float(moments_of(self.snapshots, 20).covariance(None).dense())
        assert actual == pytest.approx(0.5 * (14 / 3 + 9.25 / 2))
        assert float(moments_of(self.snapshots, 2).covariance(None).dense()) == pytest.approx(0.5 * (14 / 3 + 9.25))

    def test_equal_snapshots_have_the_smallest_variance(self) -> None:
        moments = moments_of(torch.ones(4, 1, 3, dtype=torch.float64), 2)
        torch.testing.assert_close(
            moments.covariance(None).diagonal(), torch.full((1, 3), VARIANCE_FLOOR, dtype=torch.float64)
        )


def test_start_weights_do_not_enter() -> None:
    """The averages of a run from far away do not depend on its start: nothing was collected there."""
    start = normal(51, seed=9)
    method = tb.SWA(epochs=6, burn_in=0.5, **SHORT)
    seen: list[Tensor] = []
    look = lambda event: seen.append(event.state.trajectory.weights_MD.clone())  # noqa: E731
    posterior = tb.fit(model_of(), rows_of(), method, start=start, callbacks=[look])
    torch.testing.assert_close(posterior.sample(MEMBERS), torch.stack(seen[3:]).mean(0), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.study), 4])
def test_sampled_moments_are_the_declared_ones(rank: int) -> None:
    posterior = tb.fit(model_of(), rows_of(), tb.SWAG(epochs=12, rank=rank, **SHORT), callbacks=())
    assert isinstance(posterior, tb.Gaussian)
    draws = 20_000
    samples = posterior.sample(MEMBERS * draws, seed=1).unflatten(0, (draws, MEMBERS))
    for m, sigma in enumerate(posterior.covariance.dense()):
        scale = sigma.diagonal().sqrt()
        error = (samples[:, m].mean(0) - posterior.mean_MD[m]) / scale * math.sqrt(draws)
        assert error.abs().max() < 4.5  # 51 standard normals
        actual = torch.cov(samples[:, m].T)
        # variance of a sample covariance of normals: (Σ_ij² + Σ_ii Σ_jj)/S
        deviation = ((sigma**2 + torch.outer(sigma.diagonal(), sigma.diagonal())) / draws).sqrt()
        assert ((actual - sigma) / deviation).abs().max() < 5.5  # 1,326 nearly normal numbers


@pytest.mark.parametrize(("per_epoch", "expected"), [(1, [5]), (2, [3, 5]), (3, [2, 4, 5]), (5, [1, 2, 3, 4, 5])])
def test_snapshots_are_spread_over_the_epoch_and_end_with_it(per_epoch: int, expected: list[int]) -> None:
    model = model_of()
    method = tb.SWA(epochs=4, batch_size=5, per_epoch=per_epoch, burn_in=0.5)
    source, seeds = as_source(model, rows_of(), 5), member_seeds(0, 1)
    density = tb.LogDensity(model, source.num_data, plan="loop", training=True)
    state = method.init(density, *model.starting_weights(seeds), seeds=seeds, steps_per_epoch=source.steps_per_epoch)
    taken, seen = [], []
    for epoch in range(4):
        for batch in source.epoch(seeds, epoch):
            before = state.snapshots
            state, _ = method.step(density, state, batch)
            if state.snapshots > before:
                taken.append(state.step)
                seen.append(state.trajectory.weights_MD)
                assert is_snapshot(state.trajectory, 0.5, per_epoch)
    assert taken == [10 + s for s in expected] + [15 + s for s in expected]
    torch.testing.assert_close(method.posterior(density, state).weights_MD, torch.stack(seen).mean(0))


@pytest.mark.parametrize(  # 0.29 · 100 is a little less than 29 in floating point
    ("burn_in", "epochs", "before"), [(0.5, 4, 2), (0.2, 3, 1), (0.29, 100, 29), (0.75, 5, 4), (0.9, 3, 2), (0.0, 3, 0)]
)
def test_averaging_starts_at_the_nearest_epoch_that_leaves_one(burn_in: float, epochs: int, before: int) -> None:
    trajectory: Any = SimpleNamespace(total_steps=7 * epochs, steps_per_epoch=7)
    assert averaging_start(trajectory, burn_in) == 7 * before


def test_more_snapshots_than_steps_are_one_a_step() -> None:
    posterior, _ = recorded(tb.SWAG(**{**SHORT, "per_epoch": 99}, epochs=2, burn_in=0.0, rank=20))
    assert isinstance(posterior.covariance, LowRankPlusDiagonal)
    assert posterior.covariance.factor_MRD.shape[1] == 2 * 4


def test_the_averaging_phase_runs_at_its_own_rate() -> None:
    rates: list[float] = []
    method = tb.SWAG(**{**SHORT, "averaging_lr": 0.02, "optimizer": tb.SGD(lr=0.08)}, epochs=20, burn_in=0.5)
    tb.fit(model_of(), rows_of(), method, callbacks=[lambda event: rates.append(event.record["lr"])])
    assert rates[:5] == pytest.approx([0.08] * 5)
    assert rates[9:] == pytest.approx([0.02] * 11)
    assert all(a > b for a, b in pairwise(rates[5:9]))


@pytest.mark.parametrize("stop", [1, 3])
def test_too_few_snapshots_are_refused(stop: int) -> None:
    """Two epochs in, nothing is collected; one snapshot has no spread."""
    halt = [lambda event: event.epoch == stop]
    with pytest.raises(ValueError, match=f"at least 2 snapshots to have a spread; got {max(stop - 2, 0)}"):
        tb.fit(model_of(), rows_of(), tb.SWAG(epochs=4, burn_in=0.5, **SHORT), callbacks=halt)
    if stop == 1:
        with pytest.raises(ValueError, match="no snapshot has been taken"):
            tb.fit(model_of(), rows_of(), tb.SWA(epochs=4, burn_in=0.5, **SHORT), callbacks=halt)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 1}, "`rank` must be 0"),
        ({"rank": -2}, "`rank`"),
        ({"scale": -0.1}, "`scale` must be at least 0; got -0.1"),
        ({"burn_in": 1.0}, r"`burn_in` must lie in \[0, 1\).*got 1.0"),
        ({"averaging_lr": 0.0}, "`averaging_lr` must be above 0; got 0.0"),
    ],
)
def test_settings_of_averaging_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tb.SWAG(**settings)


def test_batch_norm_is_recalibrated_for_each_draw() -> None:
    """A draw's outputs equal PyTorch's own recipe: load the weights, reset the statistics, pass the data once."""
    model, (inputs, targets) = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    posterior = tb.fit(model, (inputs, targets), tb.SWAG(**{**SHORT, "batch_size": 8}, epochs=6), callbacks=())
    functions = posterior.functions(4, seed=2)
    outputs_SBK = functions(inputs)
    loader = [(inputs[a : a + 8], targets[a : a + 8]) for a in (0, 8, 16)]
    for s, weights_D in enumerate(functions.weights_SD):
        module = made("conv_batch_norm")
        module.load_state_dict({**module.state_dict(), **model.layout.split(weights_D)})
        torch.optim.swa_utils.update_bn(loader, module)  # type: ignore[arg-type]
        torch.testing.assert_close(outputs_SBK[s], module.eval()(inputs), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(outputs_SBK[0], outputs_SBK[2])

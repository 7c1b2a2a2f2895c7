"""SMILE: the noise it measures, the bias that noise leaves, what burn-in finds, and what is said of a run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.oracles import LinearGaussian, assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.dynamics import Value
from torchbayes.methods.sgmcmc.gradient_noise import Noise
from torchbayes.model.batches.batch import Batch
from torchbayes.posteriors.problems import ProblemWarning

ROWS, SIZE = 40, 20  # N and D of a mean


def test_noise_is_that_of_batches_without_replacement():
    """Over all batches and all first halves of them: E n nᵀ is the covariance of the gradient over all batches."""
    size, half = 4, 2
    gradients_ND = normal(5, 3, seed=1)  # of each row, so that a batch has N times their mean
    batches = [5 * gradients_ND[list(rows)].mean(0) for rows in itertools.combinations(range(5), size)]
    exact = torch.stack(batches).T.cov(correction=0)
    actual, count = torch.zeros(3, 3).double(), 0
    for rows in itertools.permutations(range(5), size):
        whole_MD, half_MD = (5 * gradients_ND[list(rows[:end])].mean(0, keepdim=True) for end in (size, half))
        sample_D = Noise.none(whole_MD).after(half_MD, whole_MD, rows=size, num_data=5).sample_MD[0]
        actual, count = actual + sample_D.outer(sample_D), count + 1
    assert_close(actual / count, exact, rtol=1e-9, atol=1e-9)


def noise_of(variances_D: Tensor, batches: int = 3000) -> Noise:
    """Noise of independent normal samples of some variances, without running means."""
    samples = normal(batches, len(variances_D), seed=3) * variances_D.sqrt()
    trace, square = samples.square().sum(1).mean(), (samples[1:] * samples[:-1]).sum(1).square().mean()
    return Noise(samples[:1], trace[None], square[None], batches)


@pytest.mark.parametrize("variances", [[2.0] * 30, [0.1] * 15 + [3.9] * 15])
def test_share_is_that_of_its_formula(variances: list[float]):
    noise, sizes = noise_of(torch.tensor(variances).double()), torch.tensor([0.5]).double()
    along = sum(v**2 for v in variances) / sum(variances)
    share = noise.share(sizes, torch.tensor([4.0]).double(), steps_per_epoch=10**9)
    assert float(share) == pytest.approx(0.5 * 4.0 * along / (2 * 29), rel=0.05)


def test_noise_of_shuffled_rows_turns_a_velocity_less():
    """f of a velocity that decays by e^(−γ) a step, under noise that adds up to 0 in every n: a sum over pairs."""
    noise, length = noise_of(torch.ones(30).double()), torch.ones(1).double()
    for steps, decay in itertools.product((50, 200), (0.002, 0.01, 0.05, 0.3)):
        lags = torch.arange(1, steps).double()
        together = 2 * ((steps - lags) * (-decay * lags).exp()).sum() / (steps * (steps - 1))
        size = torch.tensor([decay]).double()
        ratio = noise.share(size, length, steps_per_epoch=steps) / noise.share(size, length, steps_per_epoch=10**9)
        assert float(ratio) == pytest.approx(1 - float(together), rel=0.12, abs=0.01)


def test_longest_step_has_the_share():
    noise, length = noise_of(torch.linspace(0.1, 4, 30).double()), torch.tensor([0.3]).double()
    for share, steps in itertools.product((0.01, 0.1, 2.0), (1, 9, 1000)):
        longest = noise.longest(share, length, steps_per_epoch=steps)
        assert_close(noise.share(longest, length, steps_per_epoch=steps), torch.full((1,), share).double(), rtol=1e-6)
    assert Noise.none(normal(1, 30)).longest(0.1, length, steps_per_epoch=9).isinf().all()
    assert_close(Noise.none(normal(1, 30)).share(length, length, steps_per_epoch=9), torch.zeros(1).double())


class Means:
    """The log density of a mean of rows under normal noise and a flat prior, so that the posterior is N(ȳ, I/N)."""

    def __init__(self, rows_ND: Tensor) -> None:
        self.num_data = len(rows_ND)

    def __call__(self, weights_MD: Tensor, batch: Batch) -> Value:
        deviations_MBD = batch.targets - weights_MD.unsqueeze(1)
        factor = self.num_data / batch.targets.shape[1]
        value_M = -0.5 * factor * deviations_MBD.square().sum((1, 2))
        return Value(value_M, factor * deviations_MBD.sum(1), value_M)


def variances(ratio: float, share: float, *, shuffled: bool) -> tuple[float, float, float, float]:
    """Variances of two halves of the weights over the exact ones, the share measured, and ρ that it should be.

    The rows' standard deviations differ by `ratio` between the halves. `share` is ρ of the mean noise. Batches are
    half of the rows, drawn anew, or one half after the other.
    """
    spreads_D = torch.tensor([ratio, 1.0]).double().repeat_interleave(SIZE // 2) * (2 / (1 + ratio**2)) ** 0.5
    rows_ND = normal(ROWS, SIZE, seed=4)
    rows_ND = torch.linalg.qr(rows_ND - rows_ND.mean(0)).Q * (ROWS - 1) ** 0.5 * spreads_D  # of that covariance exactly
    length, noise = (SIZE / ROWS) ** 0.5, ROWS**2 * (2 / ROWS - 1 / ROWS)
    settings = {"step_size": share * 2 * (SIZE - 1) / (length * noise), "trajectory": length}
    method, density = tb.SMILE(64, 1100, 100, **settings), Means(rows_ND)
    start_MD = normal(64, SIZE, seed=5) / ROWS**0.5
    state = method.init(density, start_MD, seeds=range(64), steps_per_epoch=2 if shuffled else 10**9)
    generator, squares_D, order_MN = torch.Generator().manual_seed(6), torch.zeros(SIZE).double(), torch.empty(0)
    actual = 0.0
    for number in range(method.steps):
        if number % 2 == 0 or not shuffled:
            order_MN = torch.rand(64, ROWS, generator=generator).argsort(1)
        batch_MB = order_MN[:, ROWS // 2 :] if number % 2 else order_MN[:, : ROWS // 2]
        batch = Batch(torch.zeros(*batch_MB.shape, 1), rows_ND[batch_MB])
        state, info = method.step(density, state, batch, donate=True)
        squares_D += state.weights_MD.square().mean(0) * (number >= method.burn_in)
        actual = float(info.noise_share_M.mean())
    hot, cold = (ROWS / (method.steps - method.burn_in) * squares_D).view(2, -1).mean(1).tolist()
    exact = share * 2 * (ratio**4 + 1) / (ratio**2 + 1) ** 2
    return hot, cold, actual, exact


@pytest.mark.study  # noise and share are exact, above; a regression is met by batches below
@pytest.mark.slow
def test_noise_that_is_drawn_anew_heats_some_directions_and_cools_others():
    ratio, share = 11.0, 0.1
    hot, cold, measured, exact = variances(ratio, share, shuffled=False)
    assert measured == pytest.approx(exact, rel=0.1)
    for actual, part in ((hot, ratio**2), (cold, 1.0)):
        assert actual == pytest.approx((1 + share * 2 * part / (1 + ratio**2)) / (1 + share), abs=0.025)
    assert hot > 1.06 > 0.94 > cold


@pytest.mark.study  # the two directions of the test above share its formula
@pytest.mark.slow
def test_noise_that_is_equal_in_all_directions_leaves_the_posterior():
    hot, cold, measured, exact = variances(1.0, 0.1, shuffled=False)
    assert measured == pytest.approx(exact, rel=0.1)
    assert hot == pytest.approx(1.0, abs=0.025)
    assert cold == pytest.approx(1.0, abs=0.025)


@pytest.mark.study  # the share of shuffled rows is that of their noise, by the second test
@pytest.mark.slow
def test_shuffled_rows_bias_less_than_their_share():
    hot, cold, measured, exact = variances(11.0, 0.1, shuffled=True)
    assert measured < 0.2 * exact
    for actual in (hot, cold):
        assert actual == pytest.approx(1.0, abs=0.025 + measured)


def run(method: Any, start_MD: Tensor, density: Any, seed: int = 1) -> tb.Chains:
    return tb.sample(density, method, start_MD, seed=seed, callbacks=())


NORMAL = tb.FunctionDensity(lambda w: -0.5 * w.double().square().sum(1))


@pytest.mark.slow
def test_on_all_the_data_it_is_mclmc_with_leapfrog_steps():
    """On N(0, I) with h = ε/√D: variances of 1 + h²/12, and Var[E]/D = h⁶/144, as of MCLMC."""
    h, size = 0.5, 60
    settings = {"step_size": h * size**0.5, "trajectory": size**0.5, "batch_size": None}
    chains = run(tb.SMILE(400, 110, 50, 1, **settings), normal(400, size), NORMAL)
    squares = chains.weights_MSD.square().mean((1, 2))
    assert float(squares.mean()) - 1 == pytest.approx(h**2 / 12, rel=0.1, abs=4 * float(squares.std()) / 400**0.5)
    errors = chains.numbers["energy_error"][:, 50:]
    assert float(errors.mean()) == pytest.approx(h**6 / 144, rel=0.15)
    assert_close(chains.numbers["noise_share"], torch.zeros(400, 110).double())


def regression(rows: int, temperature: float = 1.0) -> tuple[LinearGaussian, tb.Model, tuple[Tensor, Tensor]]:
    """A regression on seven inputs of different scales, its model and its data."""
    inputs = normal(rows, 7, seed=2) * torch.linspace(0.5, 2, 7).double()
    targets = inputs @ normal(7, seed=3) + normal(rows, seed=4)
    likelihood, prior = tb.likelihoods.Gaussian(1.0), tb.priors.Normal(2.0)
    model = tb.Model(nn.Linear(7, 1).double(), likelihood, prior, temperature=temperature)
    return LinearGaussian(inputs, targets, 2.0, 1.0, temperature), model, (inputs, targets.unsqueeze(-1))


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "temperature"), [pytest.param(None, 0.3, marks=pytest.mark.study), (50, 1.0)])
def test_a_linear_regression_is_met(batch_size: int | None, temperature: float):
    problem, model, data = regression(200, temperature)
    method = tb.SMILE(64, 500, 340, 4, batch_size=batch_size)
    posterior = tb.fit(model, data, method, callbacks=())
    mean, covariance = problem.posterior()
    actual = posterior.weights_MSD.flatten(0, 1) - mean
    white = actual @ torch.linalg.cholesky(torch.linalg.inv(covariance))
    assert_close(white.mean(0), torch.zeros(8).double(), atol=0.15)
    assert_close(white.square().mean(0), torch.ones(8).double(), atol=0.25)
    assert float(white.square().mean()) == pytest.approx(1.0, abs=0.08)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"step_size": 0.05}, "the noise of gradients has a share of"),
        ({"step_size": 30.0, "batch_size": None}, "the energy error of"),
    ],
)
def test_bias_is_said(settings: dict[str, Any], said: str):
    _, model, data = regression(200)
    shape = {
        "chains": 2,
        "steps": 80,
        "burn_in": 10,
        "thin": 1,
        "batch_size": 10,
        "trajectory": 1.0,
    }
    with pytest.warns(ProblemWarning, match=said):
        tb.fit(model, data, tb.SMILE(**{**shape, **settings}), callbacks=())


def test_batches_of_one_row_and_single_weights_are_refused():
    _, model, data = regression(20)
    with pytest.raises(ValueError, match="a batch has one row"):
        tb.fit(model, data, tb.SMILE(2, 20, 10, 1, batch_size=1), callbacks=())
    with pytest.raises(ValueError, match="SMILE moves at a constant speed"):
        run(tb.SMILE(2, 20, 10, 1), normal(2, 1), NORMAL)
    with pytest.raises(ValueError, match="Give `step_size` and `trajectory`"):
        tb.SMILE(burn_in=0, step_size=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("preconditioned", [False, pytest.param(True, marks=pytest.mark.study)])
def test_a_chain_that_goes_back_finds_its_step_size_again(preconditioned: bool):
    calls = [0]

    def breaking(weights_MD: Tensor) -> Tensor:
        calls[0] += 1
        broken_M = torch.tensor([calls[0] == 460, False]).double()
        return -0.5 * weights_MD.square().sum(1) + 0 * weights_MD.sum(1) / (1 - broken_M)

    method = tb.SMILE(2, 860, 800, 1, batch_size=None, preconditioned=preconditioned)
    with pytest.warns(ProblemWarning, match="chain 0 diverged once"):
        chains = run(method, normal(2, 30), tb.FunctionDensity(breaking))
    assert chains.numbers["divergent"].sum(1).tolist() == [1.0, 0.0]
    first, second = chains.numbers["step_size"][:, -1].tolist()
    assert 0.2 < first / second < 1.1  # half of it, but for chance

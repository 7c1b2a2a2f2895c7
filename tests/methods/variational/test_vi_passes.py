"""Steps of variational inference by the kernel's two passes against the same steps by tensor operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.laws.cases import normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.layers import noisy
from torchbayes.linalg import Dense
from torchbayes.methods.noise import normals
from torchbayes.methods.variational import mean_field, passes
from torchbayes.methods.variational.objective import Info, State
from torchbayes.methods.variational.passes import Descent, Penalty
from torchbayes.model.priors.joint import Joint
from torchbayes.native import noise as adds
from torchbayes.native.noise import fill_signs, philox
from torchbayes.randomness.seeds import Purpose, member_seeds, mix

SIZE, ROWS = 283, 12  # weights of a perceptron 3-40-3
LOCS = normal(SIZE, seed=8)
PRIORS: dict[str, Any] = {
    "normal": tb.priors.Normal(0.7),
    "several": {"0.weight": tb.priors.Normal(0.4, loc=0.1), "0.bias": tb.priors.Flat(), "*": tb.priors.Laplace(0.6)},
    "no closed form": {"2.weight": tb.priors.StudentT(3.0, scale=0.5), "*": tb.priors.Normal(0.5)},
    "mixture": {"2.*": tb.priors.NormalMixture((0.9, 0.01), (1.0, 3.0)), "*": tb.priors.NormalMixture()},
    "each its own": Joint.independent(LOCS, normal(SIZE, seed=9).exp()),
    "correlated": Joint(LOCS, Dense((torch.eye(SIZE, dtype=torch.float64) + 0.05).unsqueeze(0))),
}

needs_kernel = pytest.mark.skipif(not passes.runs(torch.zeros(1, 2)), reason="there is no compiler")


def run(method: tb.VI, *, prior: Any, dtype: torch.dtype = torch.float64, steps: int = 6, **settings: Any) -> Any:
    """The state after some steps, and their infos."""
    likelihood = settings.pop("likelihood", tb.likelihoods.Categorical())
    net = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 3)).to(dtype)
    if isinstance(prior, Joint) and dtype != torch.float64:
        prior = Joint.independent(prior.loc_D.to(dtype), prior.covariance.diagonal()[0].to(dtype))
    model = tb.Model(net, likelihood, prior, **settings)
    density = tb.LogDensity(model, 5 * ROWS, training=True)
    seeds = member_seeds(4, method.members)
    inputs = normal(method.members, ROWS, 3, seed=1).to(dtype)
    targets = inputs if "Gaussian" in type(likelihood).__name__ else inputs.argmax(-1)
    weights_MD, buffers = model.starting_weights(seeds)
    state = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=5)
    infos = []
    for _ in range(steps):
        state, info = method.step(density, state, tb.Batch(inputs, targets))
        infos.append(info)
    return state, infos


def both(monkeypatch: pytest.MonkeyPatch, method: tb.VI, **about: Any) -> tuple[Any, Any]:
    """The run by the kernel, and that by tensors."""
    fast = run(method, **about)
    monkeypatch.setattr(mean_field, "takes", lambda *_: False)
    return fast, run(method, **about)


def assert_same(fast: tuple[State, list[Info]], plain: tuple[State, list[Info]], tolerance: float) -> None:
    """Parameters, slots and infos agree, each to a share of its largest number."""
    old, new = plain[0].trajectory, fast[0].trajectory
    pairs = [(new.weights_MD, old.weights_MD), *((new.slots[name], old.slots[name]) for name in old.slots)]
    for name in ("loss_M", "nll_M", "kl_M", "elbo_M"):
        pairs += [(getattr(a, name), getattr(b, name)) for a, b in zip(fast[1], plain[1], strict=True)]
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * float(expected.abs().max()) + 1e-300)


def method(**settings: Any) -> tb.VI:
    return tb.VI(**{"kl_weight": 0.7, "initial_scale": 0.1, "optimizer": tb.Adam(0.02), "epochs": 2} | settings)


@needs_kernel
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("estimator", ["weights", "auto"])
def test_every_prior(monkeypatch: pytest.MonkeyPatch, prior: str, estimator: Any) -> None:
    fast, plain = both(monkeypatch, method(estimator=estimator, members=2), prior=PRIORS[prior])
    assert_same(fast, plain, 1e-11)


@needs_kernel
@pytest.mark.parametrize("settings", [{"draws": 3}, {"draws": 4, "antithetic": True}, {"draws": 2, "members": 3}])
@pytest.mark.parametrize("prior", ["several", "no closed form", "mixture"])
def test_several_draws(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], prior: str) -> None:
    fast, plain = both(monkeypatch, method(**settings), prior=PRIORS[prior])
    assert_same(fast, plain, 1e-11)


@needs_kernel
@pytest.mark.parametrize("optimizer", [tb.SGD(0.02), tb.AdamW(0.02, weight_decay=0.3), tb.Adam(0.02, (0.8, 0.9), 1e-3)])
@pytest.mark.parametrize("estimator", ["weights", "local"])
def test_every_optimiser(monkeypatch: pytest.MonkeyPatch, optimizer: Any, estimator: Any) -> None:
    chosen = method(optimizer=optimizer, estimator=estimator, members=2)
    fast, plain = both(monkeypatch, chosen, prior=PRIORS["normal"])
    assert_same(fast, plain, 1e-11)


@needs_kernel
@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
def test_temperature_and_a_learned_noise_scale(monkeypatch: pytest.MonkeyPatch, tempering: Any) -> None:
    about = {"likelihood": tb.likelihoods.Gaussian(), "temperature": 0.3, "tempering": tempering}
    fast, plain = both(monkeypatch, method(draws=2), prior=PRIORS["normal"], **about)
    assert_same(fast, plain, 1e-11)


@needs_kernel
@pytest.mark.parametrize("optimizer", [tb.SGD(0.02), tb.Adam(0.02, eps=1e-3)])
def test_float32(monkeypatch: pytest.MonkeyPatch, optimizer: Any) -> None:
    about = {"prior": PRIORS["normal"], "dtype": torch.float32}
    fast, plain = both(monkeypatch, method(optimizer=optimizer, draws=2), **about)
    assert_same(fast, plain, 2e-5)
    assert fast[0].trajectory.weights_MD.dtype == torch.float32


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("draws", "size"), [(1, 1), (1, 2500), (3, 7), (5, 1023), (2, 2049)])
def test_the_noise_is_that_of_every_other_way(dtype: torch.dtype, draws: int, size: int) -> None:
    """Of mean 0 and scale 1 the draws are the normals of the step, bit for bit, antithetic or not."""
    seeds, penalty = (3, 11), Penalty(torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype))
    expected = normals(seeds, Purpose.VARIATIONAL, 5, like=torch.empty(2, draws * size, dtype=dtype))
    expected_MSD = expected.view(2, draws, size)
    parameters = torch.zeros(2, 2 * size, dtype=dtype)
    about = {"seeds": seeds, "stream": mix(Purpose.VARIATIONAL, 5)}
    found_MSD = torch.empty(2, draws, size, dtype=dtype)
    passes.scatter(parameters, penalty, found_MSD, **about)
    assert torch.equal(found_MSD, expected_MSD)
    pairs_MSD = torch.empty(2, 2 * draws, size, dtype=dtype)
    sums_M2 = passes.scatter(parameters, penalty, pairs_MSD, antithetic=True, **about)
    assert torch.equal(pairs_MSD, torch.cat([expected_MSD, -expected_MSD], 1))
    assert torch.equal(sums_M2, torch.tensor([[0.0, size]] * 2, dtype=torch.float64))


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_and_sums(dtype: torch.dtype) -> None:
    """exp to rounding over all exponents, with its limits; sums against NumPy's."""
    log_scale = torch.linspace(-80, 80, 3001).to(dtype)
    parameters = torch.cat([torch.zeros_like(log_scale), log_scale]).unsqueeze(0)
    penalty = Penalty(torch.tensor([0.5], dtype=dtype), torch.tensor([0.0], dtype=dtype))
    actual = torch.empty(1, 1, 3001, dtype=dtype)
    passes.scatter(parameters, penalty, actual, seeds=(0,), stream=None)
    eps = torch.finfo(dtype).eps
    assert float((actual[0, 0].double() / log_scale.double().exp() - 1).abs().max()) < 4 * eps
    limits = torch.tensor([[0.0] * 4, [-torch.inf, torch.inf, torch.nan, 0.0]], dtype=dtype).view(1, 8)
    passes.scatter(limits, penalty, actual := torch.empty(1, 1, 4, dtype=dtype), seeds=(0,), stream=None)
    torch.testing.assert_close(actual[0, 0], limits[0, 4:].exp(), rtol=0, atol=0, equal_nan=True)
    mean, log_scale = 2 * normal(1, 5000, seed=1).to(dtype), 0.1 * normal(1, 5000, seed=2).to(dtype) - 3
    each = Penalty(normal(5000, seed=3).to(dtype), normal(5000, seed=4).exp().to(dtype))
    drawn = torch.empty(1, 1, 5000, dtype=dtype)
    (sums,) = passes.scatter(torch.cat([mean, log_scale], 1), each, drawn, seeds=(0,), stream=0).tolist()
    energy = each.precision.double() * ((mean - each.loc).double() ** 2 + (2 * log_scale.double()).exp())
    assert sums == pytest.approx([float(log_scale.double().sum()), float(energy.sum())], rel=20 * eps)


@needs_kernel
def test_threads_change_nothing() -> None:
    """Draws, sums and updates of 60,000 weights are the same bits on one thread and on two."""
    actual = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            parameters = torch.cat([normal(2, 30_000, seed=1), normal(2, 30_000, seed=2) - 3], 1)
            penalty = Penalty(torch.zeros(1).double(), torch.ones(1).double())
            weights = torch.empty(2, 1, 30_000, dtype=torch.float64)
            sums = passes.scatter(parameters, penalty, weights, seeds=(1, 2), stream=3)
            slots, rule = (torch.zeros_like(parameters), torch.zeros_like(parameters)), passes.AdamRule
            about = Descent(weights.sin(), weights, None, 0.1, -0.2)
            passes.descend(parameters, penalty, about, rule=rule(0.9, 0.99, 1e-8, 0.1, 0.0, 1), slots=slots)
            actual.append((sums, weights, parameters, *slots))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*actual, strict=True))


@needs_kernel
@pytest.mark.parametrize("estimator", ["weights", "local"])
def test_a_step_that_is_not_finite_changes_no_parameter(estimator: Any) -> None:
    chosen = method(estimator=estimator)
    net = nn.Linear(3, 2).double()
    model = tb.Model(net, tb.likelihoods.Gaussian(1.0), tb.priors.Normal())
    density = tb.LogDensity(model, ROWS, training=True)
    state = chosen.init(density, *model.starting_weights([0]), seeds=[0], steps_per_epoch=1)
    before = state.trajectory.weights_MD.clone()
    batch = tb.Batch(torch.full((1, ROWS, 3), 1e200, dtype=torch.float64), normal(1, ROWS, 2))
    with pytest.raises(tb.DivergedError, match="diverged at step 0"):
        chosen.step(density, state, batch, donate=True)
    assert torch.equal(state.trajectory.weights_MD, before)
    assert float(state.trajectory.slots["count"]) == 0


# --- outputs with noise of their own ---


def adding(shape: tuple[int, ...]) -> tuple[noisy.Perturb, Tensor]:
    """What adds noise, and the noise."""
    noise = torch.empty(shape, dtype=torch.float64)
    adds.fill_normal(noise, seed=3, stream=9)
    return lambda mean, variance: adds.perturb(mean, variance, seed=3, stream=9), noise


@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5), (5,)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_local_layer_is_its_formula(shape: tuple[int, ...], bias: bool) -> None:
    """Value and all gradients are those of m + √v ∘ ζ by autograd; of 700 outputs, more than a piece of the kernel."""
    inputs = normal(*shape, seed=1)
    inputs.view(-1, 5)[0] = 0.0  # without a bias this row's outputs have no noise
    mean, scale = normal(700, 5, seed=2), normal(700, 5, seed=3).exp()
    biases = (normal(700, seed=4), normal(700, seed=5).exp()) if bias else (None, None)
    leaves = [t.clone().requires_grad_() for t in (inputs, mean, scale, *biases) if t is not None]
    perturb, noise = adding((*shape[:-1], 700))
    x, m, s, *rest = leaves
    m_bias, s_bias = rest or (None, None)
    variance = F.linear(x.square(), s.square(), None if s_bias is None else s_bias.square())
    plain = F.linear(x, m, m_bias) + variance.clamp_min(1e-20).sqrt() * noise
    fast = noisy.linear(x, (m, m_bias), (s, s_bias), noise=perturb)
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-9)  # √1e-20 of noise where there is none
    slope = normal(*plain.shape, seed=6)
    actual, expected = (torch.autograd.grad((out * slope).sum(), leaves, retain_graph=True) for out in (fast, plain))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_noise_of_any_outputs_is_its_formula() -> None:
    """Variances of 0, and memory that is not contiguous, included; and without the kernel the same."""
    mean, variance = normal(4, 9, 11, seed=1).transpose(0, 1), normal(4, 9, 11, seed=2).exp().transpose(0, 1)
    variance = torch.where(mean > 1, 0.0, variance)
    actual = []
    for by in ("kernel", "tensors"):
        leaves = [mean.clone().requires_grad_(), variance.clone().requires_grad_()]
        perturb, noise = adding(tuple(mean.shape))
        if by == "tensors":
            perturb = lambda m, v, noise=noise: adds.perturb_by(m, v, noise)  # noqa: E731
        outputs = noisy.spread(leaves[0] * 1.0, (leaves[1] * 1.0).contiguous(), perturb)
        actual.append([outputs, *torch.autograd.grad((outputs * mean).sum(), leaves)])
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    outputs, by_mean, by_variance = actual[0]
    torch.testing.assert_close(outputs, mean + variance.clamp_min(1e-20).sqrt() * noise)
    expected = torch.where(variance > 0, 0.5 * mean * noise / variance.clamp_min(1e-20).sqrt(), 0.0)
    torch.testing.assert_close(by_variance, expected)
    assert torch.equal(by_mean, mean)


@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_flipped_layer_is_its_formula(shape: tuple[int, ...], bias: bool) -> None:
    """Value and all gradients are those of m + s ∘ ((r ∘ x) Δᵀ) by autograd."""
    tensors = [normal(*shape, seed=1), normal(7, 5, seed=2), normal(7, 5, seed=3).exp()]
    tensors += [normal(7, seed=4), normal(7, seed=5).exp()] if bias else []
    x, m, s, *rest = leaves = [t.requires_grad_() for t in tensors]
    m_bias, s_bias = rest or (None, None)
    noise, bias_noise = normal(7, 5, seed=6), normal(7, seed=7)
    signs = [torch.empty(shape[0], *[1] * (len(shape) - 2), size, dtype=torch.float64) for size in (5, 7)]
    before, after = (fill_signs(each, seed=2, stream=n) for n, each in enumerate(signs))
    plain = F.linear(x, m, m_bias) + after * F.linear(
        x * before, s * noise, None if s_bias is None else s_bias * bias_noise
    )
    fast = noisy.linear(
        x, (m, m_bias), (s, s_bias), noise=noisy.Flips(noise, bias_noise if bias else None, before, after)
    )
    slope = normal(*plain.shape, seed=8)
    actual, expected = (torch.autograd.grad((out * slope).sum(), leaves) for out in (fast, plain))
    for one, other in zip((fast, *actual), (plain, *expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_signs_are_bits_of_the_generator() -> None:
    """Against the words themselves, the same in every dtype, and as often 1 as −1, to 4.5 standard errors of 10⁵."""
    actual = fill_signs(torch.empty(300), seed=5 << 40 | 3, stream=7 << 33 | 1)
    words = [philox([block, 0, 1, 14], [3, 5 << 8]) for block in range(3)]
    expected = [1.0 - 2.0 * (word >> i & 1) for block in words for word in block for i in range(32)]
    assert actual.tolist() == expected[:300]
    for dtype in (torch.float64, torch.bfloat16):
        other = fill_signs(torch.empty(3, 100, dtype=dtype), seed=5 << 40 | 3, stream=7 << 33 | 1)
        assert torch.equal(other.flatten().float(), actual)
    many = fill_signs(torch.empty(100_000), seed=1, stream=2)
    assert torch.equal(many.double(), fill_signs(torch.empty(100_000, dtype=torch.float64), seed=1, stream=2))
    assert abs(float(many.mean())) < 4.5 / 100_000**0.5
    assert abs(float((many[1:] * many[:-1]).mean())) < 4.5 / 100_000**0.5
    assert len(fill_signs(torch.empty(0), seed=1, stream=2)) == 0

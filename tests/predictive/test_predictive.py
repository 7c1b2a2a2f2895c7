"""The model average against hand-computed mixtures, torch distributions and Monte Carlo."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from tests.laws.cases import POSTERIORS, made, model_of, normal, rows_of
from torch import Tensor, nn
from torch.distributions import Distribution, MixtureSameFamily, Normal
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from torchbayes.metrics import uncertainty
from torchbayes.posteriors.posterior import Posterior

LIKELIHOODS = tb.likelihoods
INPUTS, TARGETS = rows_of()


def classes(draws: int = 7, rows: int = 5, width: int = 4) -> tb.Predictive:
    return tb.Predictive(2 * normal(draws, rows, width), LIKELIHOODS.Categorical())


def mixture(predictive: tb.Predictive) -> MixtureSameFamily:
    """The average as torch's own mixture, for one distribution per (draw, input, output)."""
    each = predictive.distribution
    assert isinstance(each, Normal)
    loc, scale = (t.expand(each.batch_shape).movedim(0, -1) for t in (each.loc, each.scale))
    return MixtureSameFamily(torch.distributions.Categorical(torch.ones_like(loc)), Normal(loc, scale))


def gaussians(width: int = 2) -> tb.Predictive:
    return tb.Predictive(normal(6, 5, width), LIKELIHOODS.Gaussian(0.4))


def heteroscedastic(width: int = 2) -> tb.Predictive:
    return tb.Predictive(normal(6, 5, 2 * width), LIKELIHOODS.HeteroscedasticGaussian())


def learned() -> tb.Predictive:
    return tb.Predictive(
        normal(6, 5, 2), LIKELIHOODS.Gaussian("learned", outputs=2), {"log_scale": 0.3 * normal(6, 1, 2, seed=1)}
    )


REGRESSIONS = pytest.mark.parametrize("predictive", [gaussians(), heteroscedastic(), learned()])


# --- the laws


@pytest.mark.parametrize("network", ["mlp", "conv_batch_norm", "tied", "frozen", "dropout"])
def test_one_point_is_the_plain_network(network: str) -> None:
    module = made(network).eval()
    model, (inputs, _) = tb.Model(module, LIKELIHOODS.Categorical()), rows_of(network)
    weights_MD = model.given_weights().unsqueeze(0)
    prediction = tb.predict(tb.Point(model, weights_MD, statistics_known=True), inputs)
    with torch.no_grad():
        expected = module(inputs)
    torch.testing.assert_close(prediction.probs, expected.softmax(-1), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(prediction.mutual_information, torch.zeros(24, dtype=torch.float64), rtol=0, atol=1e-15)
    log_prob = -nn.functional.cross_entropy(expected, TARGETS, reduction="none")
    torch.testing.assert_close(prediction.log_prob(TARGETS), log_prob, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("make", POSTERIORS.values(), ids=POSTERIORS.keys())
def test_order_of_draws_and_chunks_change_nothing(make: Any) -> None:
    model = model_of()
    functions = make(model, 3).functions(12, seed=1)
    expected = tb.predict(functions, INPUTS)
    shuffled = tb.Functions(model, functions.weights_SD[torch.randperm(12, generator=torch.Generator().manual_seed(2))])
    for other in (tb.predict(shuffled, INPUTS), tb.predict(functions, INPUTS, chunk_size=7)):
        for name in ("probs", "entropy", "expected_entropy", "mutual_information"):
            torch.testing.assert_close(getattr(other, name), getattr(expected, name), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(other.log_prob(TARGETS), expected.log_prob(TARGETS), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("make", POSTERIORS.values(), ids=POSTERIORS.keys())
def test_stream_over_a_loader_equals_one_shot(make: Any) -> None:
    """The same functions for every batch, whatever its size."""
    posterior: Posterior = make(model_of(), 3)
    expected = tb.predict(posterior, INPUTS, draws=6, seed=3)
    for size in (1, 5):
        loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=size)
        parts = list(tb.stream(posterior, loader, draws=6, seed=3))
        outputs_SBK = torch.cat([p.outputs_SBK for p, _ in parts], dim=1)
        torch.testing.assert_close(outputs_SBK, expected.outputs_SBK, rtol=1e-12, atol=1e-13)
        assert torch.equal(torch.cat([targets for _, targets in parts]), TARGETS)
        whole = tb.predict(posterior, loader, draws=6, seed=3)
        torch.testing.assert_close(whole.outputs_SBK, expected.outputs_SBK, rtol=1e-12, atol=1e-13)


def test_learned_parameters_follow_their_draw_through_a_loader() -> None:
    module = nn.Linear(4, 2).double()
    model = tb.Model(module, LIKELIHOODS.Gaussian("learned"))
    posterior = POSTERIORS["gaussian_diagonal"](model, 2)
    targets = normal(24, 2)
    loader = DataLoader(TensorDataset(INPUTS, targets), batch_size=5)
    parts = [p.log_prob(y) for p, y in tb.stream(posterior, loader, draws=4)]
    expected = tb.predict(posterior, INPUTS, draws=4).log_prob(targets)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-12, atol=1e-12)


# --- classes


def test_class_probabilities_are_averaged_not_outputs() -> None:
    predictive = classes()
    each = predictive.outputs_SBK.softmax(-1)
    torch.testing.assert_close(predictive.probs, each.mean(0))
    torch.testing.assert_close(predictive.probs.sum(-1), torch.ones(5, dtype=torch.float64))
    assert not torch.allclose(predictive.probs, predictive.outputs_SBK.mean(0).softmax(-1), atol=1e-3)


def test_log_prob_is_the_log_of_the_mean_probability() -> None:
    predictive, targets = classes(), torch.tensor([0, 1, 2, 3, 0])
    expected = [
        math.log(sum(float(predictive.outputs_SBK[s, b].softmax(0)[targets[b]]) for s in range(7)) / 7)
        for b in range(5)
    ]
    assert predictive.log_prob(targets).tolist() == pytest.approx(expected, rel=1e-12)


def test_log_prob_does_not_underflow() -> None:
    outputs = torch.tensor([[[0.0, 2000.0]], [[0.0, 1000.0]]], dtype=torch.float64)
    actual = tb.Predictive(outputs, LIKELIHOODS.Categorical()).log_prob(torch.tensor([0]))
    assert float(actual) == pytest.approx(-1000 - math.log(2), rel=1e-12)


def test_entropies_by_hand() -> None:
    predictive = classes()
    each = predictive.outputs_SBK.softmax(-1)
    expected_entropy = -(each * each.log()).sum(-1).mean(0)
    mean = each.mean(0)
    entropy = -(mean * mean.log()).sum(-1)
    torch.testing.assert_close(predictive.entropy, entropy)
    torch.testing.assert_close(predictive.expected_entropy, expected_entropy)
    torch.testing.assert_close(predictive.mutual_information, entropy - expected_entropy)
    # the mean divergence of the draws from the average is the same number
    divergence = (each * (each / mean).log()).sum(-1).mean(0)
    torch.testing.assert_close(predictive.mutual_information, divergence)


@pytest.mark.parametrize("likelihood", [LIKELIHOODS.Categorical(), LIKELIHOODS.Bernoulli()])
@pytest.mark.parametrize("level", [0.0, 3.0, 20.0])
def test_single_precision_keeps_small_entropies(likelihood: Any, level: float) -> None:
    """Draws that nearly agree, up to classes of probability 1e-9, against 60 digits."""
    outputs = (3e-4 * normal(8, 20, 1) + level).float()
    both = torch.cat([torch.zeros_like(outputs), outputs], dim=-1)
    predictive = tb.Predictive(both if isinstance(likelihood, LIKELIHOODS.Categorical) else outputs, likelihood)
    with mpmath.workdps(60):
        chance = [[1 / (1 + mpmath.exp(-mpmath.mpf(f))) for f in row] for row in outputs[..., 0].T.tolist()]
        entropy = [[-p * mpmath.log(p) - (1 - p) * mpmath.log(1 - p) for p in row] for row in chance]
        mean = [mpmath.fsum(row) / 8 for row in chance]
        total = [-p * mpmath.log(p) - (1 - p) * mpmath.log(1 - p) for p in mean]
        expected = [mpmath.fsum(row) / 8 for row in entropy]
        exact = [[float(t), float(e), float(t - e)] for t, e in zip(total, expected, strict=True)]
    actual = torch.stack([predictive.entropy, predictive.expected_entropy, predictive.mutual_information], dim=-1)
    assert actual.dtype == torch.float32
    truth = torch.tensor(exact).view(20, 3)
    torch.testing.assert_close(actual.view(20, 3)[:, :2], truth[:, :2], rtol=1e-5, atol=0)
    # torch's Categorical normalises logits in single precision: 6e-8 of differences of 3e-4
    near = 1e-6 if isinstance(likelihood, LIKELIHOODS.Bernoulli) else 5e-4
    torch.testing.assert_close(actual.view(20, 3)[:, 2], truth[:, 2], rtol=near, atol=0)
    assert float(truth[:, 2].max()) < 5e-8


def test_entropies_are_taken_once_and_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve terms of a series for every number of all draws took 21 times as long as two entropies, and 320 MB."""
    predictive = tb.Predictive(normal(4, 3000, 20), LIKELIHOODS.Categorical())
    sizes: list[int] = []
    real = uncertainty.divergence

    def seen(probs: Tensor, weights: Tensor | None = None) -> Tensor:
        sizes.append(probs.shape[1])
        return real(probs, weights)

    monkeypatch.setattr(uncertainty, "divergence", seen)
    actual = tb.evaluate(predictive, torch.arange(3000) % 20).scores
    assert actual is not None
    assert sum(sizes) == 3000
    assert max(sizes) * 4 * 20 <= 2**16
    probs = predictive.outputs_SBK.softmax(-1)
    torch.testing.assert_close(actual.mutual_information, real(probs))
    torch.testing.assert_close(actual.entropy, torch.special.entr(probs.mean(0)).sum(-1))


def test_a_distribution_given_by_probabilities_keeps_zeros() -> None:
    """Two sure draws that contradict each other, of a likelihood that makes probabilities."""
    likelihood = LIKELIHOODS.Custom(lambda f: torch.distributions.Categorical(probs=f, validate_args=False))
    predictive = tb.Predictive(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), likelihood)
    assert float(predictive.expected_entropy) == 0.0
    assert float(predictive.mutual_information) == pytest.approx(math.log(2), rel=1e-6)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropies_are_ordered(scale: float, dtype: torch.dtype) -> None:
    predictive = tb.Predictive(scale * normal(9, 200, 6, dtype=dtype), LIKELIHOODS.Categorical())
    assert (predictive.entropy >= predictive.expected_entropy - 1e-6).all()
    assert (predictive.mutual_information >= 0).all()
    assert (predictive.mutual_information <= math.log(6) + 1e-6).all()
    assert (predictive.entropy <= math.log(6) + 1e-6).all()
    assert predictive.probs.sum(-1).sub(1).abs().max() < 1e-6


def test_known_entropies() -> None:
    """Two sure draws that contradict each other: log 2 in all, none of it expected."""
    outputs = torch.tensor([[[50.0, -50.0]], [[-50.0, 50.0]]], dtype=torch.float64)
    predictive = tb.Predictive(outputs, LIKELIHOODS.Categorical())
    assert float(predictive.entropy) == pytest.approx(math.log(2))
    assert float(predictive.expected_entropy) == pytest.approx(0, abs=1e-12)
    assert float(predictive.mutual_information) == pytest.approx(math.log(2))


def test_published_probabilities_come_back_zeros_included() -> None:
    probs = torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    predictive = tb.Predictive.from_probs(probs)
    assert predictive.draws == 1
    torch.testing.assert_close(predictive.probs, probs)
    entropy = -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))
    assert predictive.entropy.tolist() == pytest.approx([0.0, entropy])
    assert predictive.log_prob(torch.tensor([1, 2])).tolist() == pytest.approx([0.0, math.log(0.5)])
    assert predictive.log_prob(torch.tensor([0, 0])).tolist() == pytest.approx([-math.inf, math.log(0.2)])


def test_published_probabilities_of_draws_are_averaged() -> None:
    probs_SBK = (3 * normal(4, 6, 3)).softmax(-1)
    probs_SBK[0, 0] = torch.tensor([1.0, 0.0, 0.0])
    predictive = tb.Predictive.from_probs(probs_SBK)
    torch.testing.assert_close(predictive.probs, probs_SBK.mean(0))
    expected = torch.special.entr(probs_SBK.mean(0)).sum(-1) - torch.special.entr(probs_SBK).sum(-1).mean(0)
    torch.testing.assert_close(predictive.mutual_information, expected)
    targets = torch.zeros(6, dtype=torch.int64)
    torch.testing.assert_close(predictive.log_prob(targets), probs_SBK.mean(0)[:, 0].log())


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.full((3, 4), 0.3), "must sum to one over the last axis; got a sum of 1.2"),
        (torch.tensor([[-0.5, 1.5]]), "must not be negative; got -0.5"),
        (torch.ones(3), r"must sum to one over the last axis; got a sum of 3"),
    ],
)
def test_what_are_no_probabilities_is_refused(probs: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tb.Predictive.from_probs(probs)


def test_binary_and_multi_label_by_hand() -> None:
    outputs = normal(5, 4, 3)
    predictive, p = tb.Predictive(outputs, LIKELIHOODS.Bernoulli()), outputs.sigmoid()
    torch.testing.assert_close(predictive.probs, p.mean(0))
    torch.testing.assert_close(predictive.mean, p.mean(0))
    torch.testing.assert_close(predictive.variance, p.mean(0) * (1 - p.mean(0)))
    targets = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]])
    expected = torch.where(targets == 1, p, 1 - p).prod(-1).mean(0).log()
    torch.testing.assert_close(predictive.log_prob(targets), expected)

    def entropy(q: Tensor) -> Tensor:
        return -(q * q.log() + (1 - q) * (1 - q).log())

    torch.testing.assert_close(predictive.entropy, entropy(p.mean(0)))
    torch.testing.assert_close(predictive.mutual_information, entropy(p.mean(0)) - entropy(p).mean(0))


def test_one_binary_output_equals_two_classes() -> None:
    """σ(f) is the softmax of (0, f)."""
    outputs, targets = normal(5, 4, 1), torch.tensor([0, 1, 1, 0])
    binary = tb.Predictive(outputs, LIKELIHOODS.Bernoulli())
    two = tb.Predictive(torch.cat([torch.zeros_like(outputs), outputs], dim=-1), LIKELIHOODS.Categorical())
    torch.testing.assert_close(binary.log_prob(targets), two.log_prob(targets))
    torch.testing.assert_close(binary.probs.squeeze(-1), two.probs[:, 1])
    torch.testing.assert_close(binary.entropy.squeeze(-1), two.entropy)
    torch.testing.assert_close(binary.mutual_information.squeeze(-1), two.mutual_information)


# --- regression


@REGRESSIONS
def test_regression_is_torchs_mixture(predictive: tb.Predictive) -> None:
    exact, targets = mixture(predictive), normal(5, 2, seed=7)
    torch.testing.assert_close(predictive.mean, exact.mean)
    torch.testing.assert_close(predictive.variance, exact.variance)
    # the mixture of the joint density over outputs: a product over outputs inside each draw
    joint = predictive.distribution.log_prob(targets).sum(-1).logsumexp(0) - math.log(6)
    torch.testing.assert_close(predictive.log_prob(targets), joint)


@REGRESSIONS
def test_variance_splits_into_epistemic_and_aleatoric(predictive: tb.Predictive) -> None:
    each = predictive.distribution
    torch.testing.assert_close(predictive.epistemic, each.mean.var(0, correction=0))
    torch.testing.assert_close(predictive.aleatoric, each.variance.expand(6, 5, 2).mean(0))
    torch.testing.assert_close(predictive.variance, predictive.epistemic + predictive.aleatoric)
    one = tb.Predictive(
        predictive.outputs_SBK[:1], predictive.likelihood, {k: v[:1] for k, v in predictive.parameters.items()}
    )
    assert float(one.epistemic.abs().max()) == pytest.approx(0.0)


@REGRESSIONS
def test_samples_have_the_predictives_moments(predictive: tb.Predictive) -> None:
    count = 60_000
    samples = predictive.sample(count, seed=3)
    assert samples.shape == (count, 5, 2)
    error = (samples.mean(0) - predictive.mean) / (predictive.variance / count).sqrt()
    assert error.abs().max() < 4.5
    torch.testing.assert_close(samples.var(0), predictive.variance, rtol=5 * math.sqrt(3 / count), atol=0)


@REGRESSIONS
def test_quantiles_invert_the_mixtures_distribution_function(predictive: tb.Predictive) -> None:
    levels = torch.tensor([0.001, 0.025, 0.3, 0.5, 0.975, 0.999], dtype=torch.float64)
    actual = predictive.quantile(levels)
    assert actual.shape == (6, 5, 2)
    expected = levels.view(-1, 1, 1).expand_as(actual)
    torch.testing.assert_close(mixture(predictive).cdf(actual), expected, rtol=1e-10, atol=1e-12)
    assert (actual.diff(dim=0) > 0).all()
    for level in (0.3, torch.tensor(0.3)):
        torch.testing.assert_close(predictive.quantile(level), actual[2], rtol=1e-6, atol=1e-7)


def test_quantile_of_one_gaussian_is_its_own() -> None:
    outputs = normal(1, 5, 1)
    levels = torch.tensor([0.05, 0.95], dtype=torch.float64)
    actual = tb.Predictive(outputs, LIKELIHOODS.Gaussian(2.0)).quantile(levels)
    torch.testing.assert_close(actual, Normal(outputs, 2.0).icdf(levels.view(-1, 1, 1)))


def test_quantile_between_two_far_modes() -> None:
    """Half the mass at −100, half at 100: the quarter points are the modes."""
    outputs = torch.tensor([[[-100.0]], [[100.0]]], dtype=torch.float64)
    actual = tb.Predictive(outputs, LIKELIHOODS.Gaussian(1.0)).quantile(torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(actual.flatten(), outputs.flatten(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("levels", [0.0, 1.0, torch.tensor([0.5, 1.5])])
def test_levels_outside_the_unit_interval_are_refused(levels: float | Tensor) -> None:
    with pytest.raises(ValueError, match=r"`levels` must lie in \(0, 1\); got"):
        gaussians().quantile(levels)


def test_student_t_by_hand() -> None:
    predictive = tb.Predictive(normal(5, 4, 1), LIKELIHOODS.StudentT(df=5.0, scale=0.7))
    targets = normal(4, seed=1)
    each = torch.distributions.StudentT(5.0, predictive.outputs_SBK.squeeze(-1), 0.7)
    torch.testing.assert_close(predictive.log_prob(targets), each.log_prob(targets).exp().mean(0).log())
    torch.testing.assert_close(predictive.aleatoric, torch.full((4, 1), 0.49 * 5 / 3, dtype=torch.float64))
    with pytest.raises(NotImplementedError):
        predictive.quantile(0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_of_counts_are_the_least_that_reach_the_level(dtype: torch.dtype) -> None:
    rates = torch.tensor([1e-6, 0.3, 1.0, 4.0, 60.0, 900.0], dtype=dtype)
    outputs = (rates * (1 + 0.9 * normal(5, 6).tanh())).log().to(dtype)
    levels = torch.tensor([1e-3, 0.025, 0.5, 0.975, 0.999])
    actual = tb.Predictive(outputs.unsqueeze(-1), LIKELIHOODS.Poisson()).quantile(levels)
    counts = torch.arange(3000, dtype=torch.float64).view(-1, 1, 1)
    below = torch.distributions.Poisson(outputs.double().exp()).log_prob(counts).exp().mean(1).cumsum(0)
    expected = (below.unsqueeze(0) < levels.double().view(-1, 1, 1)).sum(1)
    assert torch.equal(actual.squeeze(-1).long(), expected)
    assert torch.equal(actual, actual.round())
    assert actual.dtype == dtype


def test_a_quantile_without_an_inverse_is_found_between_bounds_of_the_moments() -> None:
    class Plain(torch.distributions.Normal):
        def icdf(self, value: Tensor) -> Tensor:
            raise NotImplementedError

    outputs, levels = 3 * normal(6, 5, 2), torch.tensor([1e-4, 0.1, 0.5, 0.99])
    actual = tb.Predictive(outputs, LIKELIHOODS.Custom(lambda f: Plain(f, 0.4))).quantile(levels)
    torch.testing.assert_close(actual, tb.Predictive(outputs, LIKELIHOODS.Gaussian(0.4)).quantile(levels))


def test_poisson_by_hand() -> None:
    outputs = normal(5, 4, 1)
    predictive, rates = tb.Predictive(outputs, LIKELIHOODS.Poisson()), outputs.exp()
    torch.testing.assert_close(predictive.mean, rates.mean(0))
    torch.testing.assert_close(predictive.variance, rates.mean(0) + rates.var(0, correction=0))
    counts = torch.tensor([0, 1, 2, 7])
    factorials = torch.tensor([1.0, 1.0, 2.0, 5040.0], dtype=torch.float64)
    by_hand = ((-rates).exp() * rates ** counts.unsqueeze(-1)).squeeze(-1) / factorials
    torch.testing.assert_close(predictive.log_prob(counts), by_hand.mean(0).log())
    samples = predictive.sample(40_000, seed=2).squeeze(-1)
    assert (
        (samples.mean(0) - rates.mean(0).squeeze(-1)) / (predictive.variance.squeeze(-1) / 40_000).sqrt()
    ).abs().max() < 4


def test_a_custom_likelihood_is_a_mixture_too() -> None:
    def laplace(outputs: Tensor) -> Distribution:
        return torch.distributions.Laplace(outputs, 0.5)

    model = tb.Model(nn.Linear(4, 1).double(), laplace)
    posterior = POSTERIORS["gaussian_diagonal"](model, 2)
    prediction, targets = tb.predict(posterior, INPUTS, draws=8), normal(24, 1)
    each = torch.distributions.Laplace(prediction.outputs_SBK, 0.5).log_prob(targets).squeeze(-1)
    torch.testing.assert_close(prediction.log_prob(targets), each.exp().mean(0).log())
    exact = torch.distributions.Laplace(prediction.outputs_SBK, 0.5).cdf(prediction.quantile(0.8)).mean(0)
    torch.testing.assert_close(exact, torch.full_like(exact, 0.8))


@pytest.mark.parametrize("count", [1, 3, 6, 7, 20])
def test_samples_are_seeded_and_leave_the_global_state_alone(count: int) -> None:
    predictive, before = gaussians(), torch.get_rng_state()
    samples = predictive.sample(count, seed=1)
    assert samples.shape == (count, 5, 2)
    assert torch.equal(samples, predictive.sample(count, seed=1))
    assert not torch.equal(samples, predictive.sample(count, seed=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_take_the_draws_in_turn() -> None:
    """Sample s comes from draw s mod S: far apart draws show which."""
    outputs = torch.tensor([0.0, 100.0, 200.0], dtype=torch.float64).view(3, 1, 1).expand(3, 2, 1)
    samples = tb.Predictive(outputs, LIKELIHOODS.Gaussian(0.1)).sample(7)
    assert (samples[:, 0, 0] / 100).round().tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_class_samples_have_the_averages_frequencies() -> None:
    predictive, count = classes(), 35_000
    actual = nn.functional.one_hot(predictive.sample(count, seed=4), 4).double().mean(0)
    deviation = (predictive.probs * (1 - predictive.probs) / count).sqrt()
    assert ((actual - predictive.probs) / deviation).abs().max() < 4.5


# --- errors


def test_class_probabilities_of_a_regression_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"class probabilities exist for Categorical and Bernoulli.*gives Normal. Use mean"
    ):
        _ = gaussians().probs


def test_draws_of_functions_already_drawn_are_fixed() -> None:
    functions = POSTERIORS["gaussian_diagonal"](model_of(), 2).functions(4)
    assert torch.equal(tb.predict(functions, INPUTS, draws=4).probs, tb.predict(functions, INPUTS).probs)
    with pytest.raises(ValueError, match=r"these are 4 functions already drawn; got draws=6. Leave it out"):
        tb.predict(functions, INPUTS, draws=6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite_are_refused(value: float) -> None:
    inputs = INPUTS.clone()
    inputs[3, 1] = value
    posterior = POSTERIORS["point"](model_of(), 2)
    with pytest.raises(ValueError, match="inputs must be finite; 1 of 96 values"):
        tb.predict(posterior, inputs)
    with pytest.raises(ValueError, match="inputs must be finite; 1 of 20 values"):
        list(tb.stream(posterior, DataLoader(TensorDataset(inputs, TARGETS), batch_size=5)))


def test_nothing_to_predict_is_refused() -> None:
    posterior = POSTERIORS["point"](model_of(), 2)
    with pytest.raises(ValueError, match="has no rows"):
        tb.predict(posterior, INPUTS[:0])
    with pytest.raises(ValueError, match="the dataset has no rows"):
        tb.predict(posterior, DataLoader(TensorDataset(INPUTS[:0], TARGETS[:0])))
    with pytest.raises(ValueError, match="the loader yields no rows"):
        tb.predict(posterior, DataLoader(TensorDataset(INPUTS, TARGETS), batch_sampler=[]))


def test_learned_noise_of_each_draw_reaches_every_position() -> None:
    """Outputs (S, B, T, K) with B = S, where a parameter in the wrong place would broadcast without a word."""
    model = tb.Model(torch.nn.Linear(4, 2).double(), tb.likelihoods.Gaussian("learned", outputs=2))
    weights_SD = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    predictive = tb.predict(tb.Functions(model, weights_SD), inputs)
    expected = (2 * weights_SD[:, 10:]).exp().mean(0).expand(3, 5, 2)
    torch.testing.assert_close(predictive.aleatoric, expected, rtol=1e-12, atol=0)
    each = torch.stack([
        model.log_likelihood(w, tb.Batch(inputs, torch.zeros(3, 5, 2, dtype=torch.float64))) for w in weights_SD
    ])
    expected = each.logsumexp(0) - torch.tensor(3.0).log()
    torch.testing.assert_close(predictive.log_prob(torch.zeros(3, 5, 2, dtype=torch.float64)), expected)

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, distributions, nn

from tests.model.helpers import mlp
from tests.oracles import assert_close, classes, finite_differences, mass, normal
from torchbayes.model import Batch, Model, priors
from torchbayes.model.likelihoods import (
    Bernoulli,
    Categorical,
    Custom,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    Probit,
    StudentT,
)

B, K = 4, 3
counts = torch.tensor([[0, 1, 7], [3, 0, 2], [1, 1, 1], [12, 0, 5]])
binary = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]])


# name: likelihood, outputs per target, targets (B, K), and its log density by scipy, elementwise
CASES: dict[str, tuple[Likelihood, int, Tensor, Callable[[Tensor, Tensor], Any]]] = {
    "bernoulli": (Bernoulli(), 1, binary, lambda f, y: stats.bernoulli.logpmf(y, f.sigmoid())),
    "gaussian": (Gaussian(0.7), 1, normal(B, K, seed=1), lambda f, y: stats.norm.logpdf(y, f, 0.7)),
    "gaussian per output": (
        Gaussian((0.7, 1.0, 2.0)),
        1,
        normal(B, K, seed=1),
        lambda f, y: stats.norm.logpdf(y, f, torch.tensor([0.7, 1.0, 2.0], dtype=torch.float64)),
    ),
    "heteroscedastic": (
        HeteroscedasticGaussian(floor=0.01),
        2,
        normal(B, K, seed=1),
        lambda f, y: stats.norm.logpdf(y, f[..., :K], ((1 + f[..., K:].exp()).log() + 0.01).sqrt()),
    ),
    "student t": (StudentT(3.0, 0.5), 1, normal(B, K, seed=1), lambda f, y: stats.t.logpdf(y, 3.0, f, 0.5)),
    "poisson": (Poisson(), 1, counts, lambda f, y: stats.poisson.logpmf(y, f.exp())),
    "probit": (Probit(), 1, binary, lambda f, y: stats.bernoulli.logpmf(y, stats.norm.cdf(f))),
    "custom": (
        Custom(lambda f: distributions.Laplace(f, 0.5)),
        1,
        normal(B, K, seed=1),
        lambda f, y: stats.laplace.logpdf(y, f, 0.5),
    ),
}
each = pytest.mark.parametrize(("likelihood", "width", "targets", "oracle"), CASES.values(), ids=CASES.keys())


# --- values ---


@each
def test_log_prob_is_scipys_summed_over_outputs(likelihood: Any, width: int, targets: Tensor, oracle: Any):
    outputs = normal(B, width * K)
    likelihood.check(outputs, targets)
    assert_close(likelihood.log_prob(outputs, targets), oracle(outputs, targets).sum(-1))
    assert_close(likelihood.distribution(outputs).log_prob(targets.double()).sum(-1), oracle(outputs, targets).sum(-1))


@each
def test_leading_axes_are_a_loop_over_draws(likelihood: Any, width: int, targets: Tensor, oracle: Any):
    outputs = normal(2, 5, B, width * K)
    actual = likelihood.log_prob(outputs, targets)
    expected = [[oracle(outputs[i, s], targets).sum(-1) for s in range(5)] for i in range(2)]
    assert_close(actual, torch.stack([torch.stack([torch.as_tensor(e) for e in row]) for row in expected]))


@each
def test_flat_targets_of_one_output_never_broadcast(likelihood: Any, width: int, targets: Tensor, oracle: Any):
    if isinstance(likelihood, Gaussian) and isinstance(likelihood.scale, tuple):
        likelihood, oracle = Gaussian((0.7,)), CASES["gaussian"][3]
    if isinstance(likelihood, HeteroscedasticGaussian):
        oracle = lambda f, y: stats.norm.logpdf(y, f[:, :1], ((1 + f[:, 1:].exp()).log() + 0.01).sqrt())  # noqa: E731
    outputs, flat = normal(B, width), targets[:, 0]
    expected = oracle(outputs, flat.unsqueeze(1)).sum(-1)
    for given in (flat, flat.unsqueeze(1)):
        likelihood.check(outputs, given)
        assert_close(likelihood.log_prob(outputs, given), expected)
        draws = likelihood.log_prob(outputs.expand(2, B, width), given)
        assert_close(draws, torch.as_tensor(expected).expand(2, B))


@each
def test_further_target_axes_are_summed(likelihood: Any, width: int, targets: Tensor, oracle: Any):
    outputs, steps = normal(B, 2, width * K), torch.stack([targets, targets.flip(0)], dim=1)
    likelihood.check(outputs, steps)
    assert_close(likelihood.log_prob(outputs, steps), oracle(outputs, steps).sum((-1, -2)))


@each
def test_gradient_is_that_of_finite_differences(likelihood: Any, width: int, targets: Tensor, oracle: Any):
    outputs = normal(B, width * K)
    leaf = outputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(likelihood.log_prob(leaf, targets).sum(), leaf)
    expected = finite_differences(lambda f: likelihood.log_prob(f, targets).sum(), outputs)
    assert_close(gradient, expected, rtol=1e-6, atol=1e-8)


def test_categorical_by_hand_with_draws_and_sequences():
    outputs, targets = normal(5, B, 2, K), classes(B * 2, K).view(B, 2)
    by_hand = (outputs.exp() / outputs.exp().sum(-1, keepdim=True)).log()
    for lead in (outputs[0, :, 0], outputs[:, :, 0]):  # (B, K) and (S, B, K)
        picked = torch.stack([by_hand[s, b, 0, targets[b, 0]] for s in range(5) for b in range(B)]).view(5, B)
        assert_close(Categorical().log_prob(lead, targets[:, 0]), picked if lead.ndim == 3 else picked[0])
    picked = [sum(by_hand[s, b, t, targets[b, t]] for t in range(2)) for s in range(5) for b in range(B)]
    assert_close(Categorical().log_prob(outputs, targets), torch.stack([torch.as_tensor(p) for p in picked]).view(5, B))
    assert_close(Categorical().log_prob(outputs[2], targets), torch.stack(picked[2 * B : 3 * B]))  # type: ignore[arg-type]
    Categorical().check(outputs[0], targets)
    assert_close(
        Categorical().distribution(outputs[0, :, 0]).log_prob(targets[:, 0]),
        by_hand[0, :, 0].gather(1, targets[:, :1])[:, 0],
    )


def test_extreme_logits_stay_finite():
    sure = torch.tensor([[1e4, -1e4]], dtype=torch.float64)
    assert_close(Categorical().log_prob(sure, torch.tensor([1])), [-2e4])
    assert_close(Bernoulli().log_prob(sure, torch.tensor([[0, 1]])), [-2e4])
    assert_close(Bernoulli().log_prob(sure, torch.tensor([[1, 0]])), [0.0])


# --- normalisation ---


def test_probabilities_of_all_outcomes_sum_to_one():
    outputs = normal(1, 3)
    assert_close(sum(Categorical().log_prob(outputs, torch.tensor([k])).exp() for k in range(3)), [1.0])
    cells = torch.cartesian_prod(*[torch.tensor([0, 1])] * 3)
    assert_close(Bernoulli().log_prob(outputs.expand(8, 3), cells).exp().sum(), 1.0)
    tail = Poisson().log_prob(outputs[:, :1].expand(200, 1), torch.arange(200)).exp().sum()
    assert_close(tail, 1.0)


@pytest.mark.parametrize(
    ("likelihood", "width"),
    [(Gaussian(0.3), 1), (HeteroscedasticGaussian(), 2), (StudentT(5.0, 0.5), 1)],
    ids=["gaussian", "heteroscedastic", "student t"],
)
def test_densities_integrate_to_one(likelihood: Likelihood, width: int):
    outputs = torch.tensor([[0.4, -1.0][:width]], dtype=torch.float64)
    assert_close(mass(lambda y: likelihood.log_prob(outputs.expand(len(y), width), y)), 1.0, rtol=1e-6)


# --- learned noise ---


@pytest.mark.parametrize("outputs", [1, 2])
def test_learned_noise_lives_in_the_flat_vector_with_its_own_prior(outputs: int):
    likelihood = Gaussian("learned", outputs=outputs, initial=0.3, prior=priors.Laplace(0.5))
    model = Model(mlp((3, 4, 2)), likelihood, priors.Normal(2.0))
    assert model.layout.names[-1] == "likelihood.log_scale"
    size = model.network.layout.size
    assert model.layout.size == size + outputs
    start = model.given_weights()
    assert_close(start[size:], [math.log(0.3)] * outputs)
    assert_close(model.starting_weights([1, 2])[0][:, size:], [[math.log(0.3)] * outputs] * 2)
    weights, batch = normal(model.layout.size), Batch(normal(5, 3), normal(5, 2, seed=1))
    prior = stats.norm.logpdf(weights[:size], scale=2.0).sum() + stats.laplace.logpdf(weights[size:], scale=0.5).sum()
    assert_close(model.log_prior(weights), prior)
    mean = model.network(weights[:size], batch.inputs)
    expected = stats.norm.logpdf(batch.targets, mean, weights[size:].exp()).sum(-1)
    assert_close(model.log_likelihood(weights, batch), expected)
    leaf = weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_joint(leaf, batch, 20), leaf)
    by_differences = finite_differences(lambda w: model.log_joint(w, batch, 20), weights)
    assert_close(gradient, by_differences, rtol=1e-6, atol=1e-6)
    assert (gradient[size:].abs() > 1e-3).all()


def test_noise_of_draws_broadcasts():
    likelihood = Gaussian("learned", outputs=2)
    outputs, targets, log_scale = normal(5, B, 2), normal(B, 2, seed=1), normal(5, 1, 2, seed=2)
    expected = stats.norm.logpdf(targets, outputs, log_scale.exp()).sum(-1)
    assert_close(likelihood.log_prob(outputs, targets, {"log_scale": log_scale}), expected)
    assert_close(Gaussian((0.5, 2.0)).noise(outputs), [0.5, 2.0])


def test_only_the_learned_likelihood_has_parameters():
    assert list(Gaussian("learned").parameters()) == ["log_scale"]
    assert Gaussian("learned", outputs=3).parameters()["log_scale"].shape == (3,)
    assert all(not likelihood.parameters() for likelihood, *_ in CASES.values())
    assert all(isinstance(likelihood, Likelihood) for likelihood, *_ in CASES.values())


# --- custom likelihoods ---


def test_a_function_of_the_outputs_is_a_likelihood():
    def student(outputs: Tensor) -> distributions.Distribution:
        return distributions.StudentT(torch.tensor(3.0, dtype=torch.float64), outputs, 0.5)

    module = nn.Sequential(nn.Linear(3, 1)).double()
    batch = Batch(normal(B, 3), normal(B, seed=1))
    model = Model(module, student)
    model.check(batch)
    by_hand = stats.t.logpdf(batch.targets, 3.0, module(batch.inputs).squeeze(1).detach(), 0.5)
    assert_close(model.log_likelihood(model.given_weights(), batch), by_hand)


def test_custom_mixtures_and_multivariate_events():
    def mixture(outputs: Tensor) -> distributions.Distribution:  # a mixture density network of two components
        parts = distributions.Normal(outputs[..., 2:4], outputs[..., 4:6].exp())
        return distributions.MixtureSameFamily(distributions.Categorical(logits=outputs[..., :2]), parts)

    outputs, targets = normal(B, 6), normal(B, seed=1)
    shares, scales = outputs[:, :2].softmax(-1), outputs[:, 4:].exp()
    density = (shares * torch.as_tensor(stats.norm.pdf(targets[:, None], outputs[:, 2:4], scales))).sum(1)
    Custom(mixture).check(outputs, targets)
    assert_close(Custom(mixture).log_prob(outputs, targets), density.log())

    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    joint = Custom(lambda f: distributions.MultivariateNormal(f, covariance))
    outputs, targets = normal(3, B, 2), normal(B, 2, seed=1)
    centred = targets - outputs
    square = torch.einsum("sbi,ij,sbj->sb", centred, torch.linalg.inv(covariance), centred)
    joint.check(outputs[0], targets)
    assert_close(joint.log_prob(outputs, targets), -0.5 * (square + torch.logdet(2 * math.pi * covariance)))


def test_custom_classes_per_position():
    words = Custom(lambda f: distributions.Categorical(logits=f))
    outputs, targets = normal(B, 2, K), classes(B * 2, K).view(B, 2)
    words.check(outputs, targets)
    assert_close(words.log_prob(outputs, targets), Categorical().log_prob(outputs, targets))


def test_a_custom_likelihood_that_would_broadcast_is_an_error():
    flat = Custom(lambda f: distributions.Normal(f.squeeze(-1), 1.0))
    outputs, targets = normal(B, 1), normal(B, seed=1)
    flat.check(outputs, targets)
    assert_close(flat.log_prob(outputs, targets), stats.norm.logpdf(targets, outputs[:, 0]))
    with pytest.raises(ValueError, match=r"over targets of shape \(4, 1\), with the 4 rows.*got batch shape \(4,\)"):
        flat.check(outputs, targets.unsqueeze(1))
    with pytest.raises(
        ValueError, match=r"over targets of shape \(4, 1\).*got batch shape \(4, 3\) and event shape \(\)"
    ):
        Custom(lambda f: distributions.Normal(f, 1.0)).check(normal(B, K), targets[:, None])
    with pytest.raises(ValueError, match=r"got batch shape \(\) and event shape \(4, 1\)"):
        Custom(lambda f: distributions.Independent(distributions.Normal(f, 1.0), 2)).check(outputs, targets[:, None])
    with pytest.raises(TypeError, match="must return a torch Distribution; got Tensor"):
        Custom(lambda f: f).check(outputs, targets)  # type: ignore[arg-type,return-value]


# --- checks: every message ---

NAN = torch.tensor([[1.0], [math.nan], [2.0], [math.inf]], dtype=torch.float64)
WRONG: list[tuple[Likelihood, Tensor, Tensor, type[Exception], str]] = [
    (
        Categorical(),
        normal(B, 1),
        classes(B, 2),
        ValueError,
        r"at least 2; the network gives 1.*likelihoods\.Bernoulli",
    ),
    (Categorical(), normal(B, 3), normal(B), TypeError, r"must be int64; got torch\.float64\. Use targets\.long"),
    (Categorical(), normal(B, 3), classes(B, 3)[:, None], ValueError, r"must have shape \(4,\); got \(4, 1\)"),
    (Categorical(), normal(B, 3), torch.tensor([0, 1, 3, 2]), ValueError, r"lie in 0\.\.2.*3 outputs; got 3\. Relabel"),
    (Categorical(), normal(B, 3), torch.tensor([0, -1, 1, 2]), ValueError, r"lie in 0\.\.2.*got -1\."),
    (Bernoulli(), normal(B, 2), classes(B, 2), ValueError, r"must have shape \(4, 2\).*got \(4,\)"),
    (Bernoulli(), normal(B, 1), torch.tensor([0, 1, 2, 1]), ValueError, r"must be 0 or 1; got values in 0\.\.2"),
    (Bernoulli(), normal(B, 1), torch.tensor([1, -1, 1, 1]), ValueError, r"must be 0 or 1; got values in -1\.\.1"),
    (Probit(), normal(B, 1), torch.tensor([0, 1, 2, 1]), ValueError, r"must be 0 or 1; got values in 0\.\.2"),
    (Bernoulli(), normal(B, 1), NAN, ValueError, "must be 0 or 1"),
    (Gaussian(), normal(B, 1), classes(B, 3), TypeError, r"must be floating point; got torch\.int64\. Use targets\.fl"),
    (Gaussian(), normal(B, 1), NAN, ValueError, r"finite; 2 of 4 are NaN or infinite\. Remove those rows"),
    (Gaussian(), normal(B, 2), normal(B), ValueError, r"must have shape \(4, 2\) to match the network's outputs; got"),
    (Gaussian((1.0, 2.0)), normal(B, 3), normal(B, 3), ValueError, "2 noise scales but the network gives 3 outputs"),
    (Gaussian("learned", outputs=2), normal(B, 3), normal(B, 3), ValueError, "2 noise scales but .* 3 outputs"),
    (HeteroscedasticGaussian(), normal(B, 3), normal(B), ValueError, r"needs two outputs per target.*; got 3\."),
    (HeteroscedasticGaussian(), normal(B, 2), normal(B, 2), ValueError, r"must have shape \(4, 1\).*got \(4, 2\)"),
    (HeteroscedasticGaussian(), normal(B, 2), NAN, ValueError, "2 of 4 are NaN"),
    (StudentT(), normal(B, 1), NAN, ValueError, "2 of 4 are NaN"),
    (StudentT(), normal(B, 2), normal(B), ValueError, r"must have shape \(4, 2\)"),
    (Poisson(), normal(B, 2), classes(B, 3), ValueError, r"must have shape \(4, 2\)"),
    (Poisson(), normal(B, 1), torch.tensor([0, 2, -3, 1]), ValueError, r"whole numbers >= 0; got values in -3\.\.2"),
    (Poisson(), normal(B, 1), torch.tensor([0.5, 2, 3, 1]), ValueError, r"got values in 0\.5\.\.3"),
    (Poisson(), normal(B, 1), NAN, ValueError, "whole numbers"),
    (
        Categorical(),
        normal(B, 3, 5, 6),
        torch.zeros(B, 5, 6, dtype=torch.int64),
        ValueError,
        r"shape \(4, 3, 5\); got \(4, 5, 6\).*\(4, 3, 5, 6\), is that of the classes.*Categorical\(class_axis=1\)",
    ),
    (Categorical(), normal(B, 3), torch.eye(4, 3).long(), ValueError, r"of one-hot labels use targets\.argmax\(-1\)"),
    (Categorical(), normal(B, 3), classes(B, 3)[:, None], ValueError, r"got \(4, 1\).*use targets\.squeeze\(-1\)"),
]


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets", "error", "message"),
    WRONG,
    ids=[f"{type(w[0]).__name__} {w[4]}" for w in WRONG],
)
def test_targets_that_cannot_come_from_the_outputs(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        likelihood.check(outputs, targets)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0.0), r"`scale` must be above 0; got 0\.0"),
        (lambda: Gaussian((1.0, -2.0)), r"`scale` must be above 0; got -2\.0"),
        (lambda: Gaussian("fixed"), "a tuple of numbers or 'learned'; got 'fixed'"),
        (lambda: Gaussian("learned", initial=0.0), r"`initial` must be above 0; got 0\.0"),
        (lambda: StudentT(df=0.0), r"`df` must be above 0; got 0\.0"),
        (lambda: StudentT(scale=-1.0), r"`scale` must be above 0; got -1\.0"),
    ],
)
def test_settings_outside_their_range(make: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_heteroscedastic_variance_has_its_floor():
    outputs = torch.tensor([[0.0, -800.0]], dtype=torch.float64)
    likelihood = HeteroscedasticGaussian(floor=1e-4)
    assert_close(likelihood.distribution(outputs).variance, [[1e-4]])
    assert_close(F.softplus(outputs[0, 1]), 0.0)

"""Heads against exact moments, and losses that are zero at a copy of the teacher."""

from __future__ import annotations

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import beta
from torch import Tensor, distributions

import torchbayes as tb
from tests.oracles import assert_close, finite_differences, normal
from torchbayes.distillation.heads import DirichletHead, Head, NumbersHead, OutputsHead, head_of, normal_nodes
from torchbayes.model.likelihoods.dirichlet import Dirichlet, DirichletCategorical, concentration, mutual_information
from torchbayes.posteriors.modules.summary import summary
from torchbayes.predictive.average import Predictive

_ALPHAS = ((2.0, 1.0, 0.5), (30.0, 0.01, 7.0), (1e-4, 1e-3, 1e-5), (1e5, 2e5, 3.0), (8.0, 7.999, 8.001))


def _softplus_inverse(values: Tensor) -> Tensor:
    return values + (-(-values).expm1()).log()


@pytest.mark.parametrize("alpha", _ALPHAS)
def test_mutual_information_is_that_of_the_digamma_function(alpha: tuple[float, ...]) -> None:
    alpha_K = torch.tensor(alpha, dtype=torch.float64)
    mean, total = alpha_K / alpha_K.sum(), alpha_K.sum()
    expected = torch.digamma(total + 1) - (mean * torch.digamma(alpha_K + 1)).sum()
    exact = -(mean * mean.log()).sum() - expected
    assert_close(mutual_information(alpha_K.log()), exact, rtol=1e-9, atol=1e-11)


def test_mutual_information_is_the_integral_over_two_classes() -> None:
    a, b = 1.7, 0.6

    def entropy(p: float) -> float:
        return float(distributions.Bernoulli(torch.tensor(p, dtype=torch.float64)).entropy())

    inner, _ = quad(lambda p: entropy(p) * beta.pdf(p, a, b), 0, 1, epsabs=1e-11)
    actual = mutual_information(torch.tensor([a, b], dtype=torch.float64).log())
    assert_close(actual, entropy(a / (a + b)) - inner, rtol=1e-7)


def test_concentration_is_found_from_mean_and_information() -> None:
    alphas = torch.tensor(_ALPHAS[:4], dtype=torch.float64)
    total = alphas.sum(-1)
    actual = concentration(alphas / total.unsqueeze(-1), mutual_information(alphas.log()))
    assert_close(actual, total.log(), rtol=1e-5, atol=1e-6)


def test_a_dirichlet_says_what_samples_of_it_say() -> None:
    log_alpha_BK = normal(5, 4)
    predictive = Predictive(log_alpha_BK.unsqueeze(0), Dirichlet())
    samples = distributions.Dirichlet(log_alpha_BK.exp()).sample((200_000,))
    sampled = Predictive.from_probs((samples.clamp_min(1e-300) / samples.sum(-1, keepdim=True)).double())
    for name in ("probs", "entropy", "expected_entropy", "mutual_information"):
        assert_close(getattr(predictive, name), getattr(sampled, name), rtol=0, atol=4e-3)
        assert_close(summary(predictive.distribution)[name], getattr(predictive, name), rtol=1e-9, atol=1e-12)
    variance = DirichletCategorical(log_alpha_BK).total_variance()
    assert_close(variance, distributions.Dirichlet(log_alpha_BK.exp()).variance.sum(-1), rtol=1e-12, atol=0)
    targets = torch.tensor([0, 1, 2, 3, 0])
    assert_close(predictive.log_prob(targets), predictive.probs.log()[torch.arange(5), targets])


def _class_teacher() -> Predictive:
    return Predictive(1.5 * normal(8, 5, 3, seed=1), tb.likelihoods.Categorical())


def test_the_dirichlet_of_mean_and_information_has_no_loss() -> None:
    predictive = _class_teacher()
    moments = DirichletHead().moments(predictive)
    total = concentration(predictive.probs, predictive.mutual_information)
    outputs = predictive.probs.log() + total.unsqueeze(-1)
    assert_close(DirichletHead().loss(outputs, moments), torch.zeros(5), rtol=0, atol=1e-10)
    away = DirichletHead().loss(outputs + 0.3 * normal(5, 3), moments)
    assert (away > 1e-3).all()


def test_gaussian_logits_are_met_exactly() -> None:
    # 64 draws that are the nodes of a Gaussian are the predictive of that Gaussian.
    mean, std = normal(5, 3, seed=2), 0.5 + normal(5, 3, seed=3).abs()
    nodes_JK = normal_nodes(3)
    teacher = Predictive(mean + std * nodes_JK.unsqueeze(1), tb.likelihoods.Poisson())
    head, outputs = OutputsHead(), torch.cat([mean, _softplus_inverse(std - 1e-4)], dim=-1)
    assert_close(head.loss(outputs, head.moments(teacher)), torch.zeros(5), rtol=0, atol=1e-12)
    read = Predictive(head.read(outputs, nodes_JK).outputs_SBK, tb.likelihoods.Poisson())
    for name in ("mean", "epistemic", "aleatoric"):
        assert_close(getattr(read, name), getattr(teacher, name), rtol=1e-9)


def test_nodes_integrate_a_softmax_of_gaussian_logits() -> None:
    mean, std = normal(6, 4, seed=4), 0.3 + normal(6, 4, seed=5).abs()
    outputs = torch.cat([mean, _softplus_inverse(std - 1e-4)], dim=-1)
    read = Predictive(
        OutputsHead(classes=True).read(outputs, normal_nodes(4)).outputs_SBK, tb.likelihoods.Categorical()
    )
    sampled = Predictive(mean + std * normal(40_000, 6, 4, seed=6), tb.likelihoods.Categorical())
    assert_close(read.probs, sampled.probs, rtol=0, atol=0.012)
    assert_close(read.mutual_information, sampled.mutual_information, rtol=0.08, atol=0.006)


def test_numbers_with_these_moments_have_no_loss_and_are_read_back() -> None:
    likelihood = tb.likelihoods.HeteroscedasticGaussian()
    teacher = Predictive(normal(7, 5, 4, seed=7), likelihood)
    head, parts = NumbersHead(), (teacher.aleatoric - likelihood.floor, teacher.epistemic)
    outputs = torch.cat([teacher.mean, *map(_softplus_inverse, parts)], dim=-1)
    assert_close(head.loss(outputs, head.moments(teacher)), torch.zeros(5), rtol=0, atol=1e-12)
    assert (head.loss(outputs + 0.1, head.moments(teacher)) > 1e-4).all()
    read = head.read(outputs, normal_nodes(2))
    student = Predictive(read.outputs_SBK, head.likelihood(likelihood), function_variance=read.spread)
    for name in ("mean", "variance", "epistemic", "aleatoric"):
        assert_close(getattr(student, name), getattr(teacher, name), rtol=1e-9)
    normal_ = distributions.Normal(teacher.mean, teacher.variance.sqrt())
    targets = normal(5, 2, seed=8)
    assert_close(student.log_prob(targets), normal_.log_prob(targets).sum(-1), rtol=1e-8)


_HEADS = (
    (DirichletHead(), 3, _class_teacher()),
    (OutputsHead(classes=True), 6, _class_teacher()),
    (OutputsHead(), 6, Predictive(normal(8, 5, 3, seed=1), tb.likelihoods.Poisson())),
    (NumbersHead(), 9, Predictive(normal(8, 5, 3, seed=1), tb.likelihoods.Gaussian(0.4))),
)


@pytest.mark.parametrize(("head", "width", "teacher"), _HEADS, ids=lambda each: getattr(each, "name", ""))
def test_gradients_are_those_of_finite_differences(head: Head, width: int, teacher: Predictive) -> None:
    moments, outputs = head.moments(teacher), normal(5, width, seed=9).requires_grad_()
    (gradient,) = torch.autograd.grad(head.log_prob(outputs, moments).sum(), outputs)
    exact = finite_differences(lambda at: head.log_prob(at.view(5, width), moments).sum(), outputs.detach().flatten())
    assert_close(gradient.flatten(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 60.0, 1e4])
@pytest.mark.parametrize("head", [DirichletHead(), OutputsHead(classes=True)], ids=lambda each: each.name)
def test_gradients_are_finite_in_float32_for_teachers_that_agree(head: Head, scale: float) -> None:
    logits = torch.tensor([[30.0, 0.0, -20.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    teacher = Predictive(logits.expand(6, 3, 3) + 1e-6 * torch.randn(6, 3, 3), tb.likelihoods.Categorical())
    outputs = (scale * normal(3, 3 * head.width).float()).requires_grad_()
    loss = head.loss(outputs, head.moments(teacher).float())
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


def test_places_of_a_row_add_up() -> None:
    head, teacher = DirichletHead(), Predictive(normal(8, 5, 2, 3, seed=1), tb.likelihoods.Categorical())
    outputs, moments = normal(5, 2, 3, seed=3), head.moments(teacher)
    assert_close(head.log_prob(outputs, moments), -head.scale * head.loss(outputs, moments).sum(-1))


def test_which_head_a_teacher_gets() -> None:
    assert isinstance(head_of("auto", _class_teacher()), OutputsHead)
    assert isinstance(head_of("dirichlet", _class_teacher()), DirichletHead)
    with pytest.raises(ValueError, match="'dirichlet' is for the Categorical likelihood"):
        head_of("dirichlet", Predictive(normal(8, 5, 3), tb.likelihoods.Poisson()))
    with pytest.raises(ValueError, match="single function"):
        head_of("auto", Predictive(normal(1, 5, 3), tb.likelihoods.Categorical()))

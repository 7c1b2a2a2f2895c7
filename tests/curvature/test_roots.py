"""Columns r of the outputs' curvature: Σ r rᵀ is the Hessian by autograd, or the Fisher information by enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions

from tests.oracles import assert_close, classes, normal
from torchbayes.curvature.roots import check_curved, parameter_information, root
from torchbayes.model.likelihoods import (
    Bernoulli,
    Categorical,
    Custom,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from torchbayes.model.likelihoods.categorical import categorical_root

LOG_SCALE = {"log_scale": torch.tensor([math.log(0.4)], dtype=torch.float64)}
LOG_SCALES = {"log_scale": torch.tensor([-0.5, 0.1, 0.3], dtype=torch.float64)}


def gram(columns: Tensor) -> Tensor:
    """Return Σ r rᵀ of every row, (B, K, K), all outputs of a row on one axis."""
    flat = columns.flatten(2)
    return torch.einsum("rbk,rbl->bkl", flat, flat)


def ggn(likelihood: Likelihood, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
    return gram(root("ggn", likelihood, outputs, targets=targets, parameters=parameters or {}))


def hessians(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Hessian of a loss written out by hand, row by row."""
    each = [
        torch.as_tensor(torch.autograd.functional.hessian(lambda f, y=y: loss(f, y), f)).reshape(f.numel(), f.numel())
        for f, y in zip(outputs, targets, strict=True)
    ]
    return torch.stack(each)


def softmax_loss(outputs_K: Tensor, target: Tensor) -> Tensor:
    log_p = outputs_K - outputs_K.exp().sum(-1, keepdim=True).log()
    return -log_p.reshape(-1, outputs_K.shape[-1])[torch.arange(target.numel()), target.flatten()].sum()


def normal_loss(scale: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda f, y: (0.5 * ((y - f) / scale) ** 2).sum()


COUNTS = torch.tensor([[0.0, 3.0], [1.0, 0.0], [7.0, 2.0]], dtype=torch.float64)
SCALES = (0.5, 2.0, 0.1)
NATURAL: dict[str, tuple[Likelihood, Any, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]] = {
    "categorical": (Categorical(), None, normal(4, 5), classes(4, 5), softmax_loss),
    "two classes": (Categorical(), None, normal(4, 2), classes(4, 2), softmax_loss),
    "classes at places": (Categorical(), None, normal(3, 2, 4), classes(6, 4).view(3, 2), softmax_loss),
    "classes on a grid": (Categorical(), None, normal(2, 2, 3, 3), classes(12, 3).view(2, 2, 3), softmax_loss),
    "bernoulli": (
        Bernoulli(),
        None,
        2 * normal(4, 3),
        classes(12, 2).view(4, 3).double(),
        lambda f, y: ((1 + f.exp()).log() - y * f).sum(),
    ),
    "poisson": (Poisson(), None, normal(3, 2), COUNTS, lambda f, y: (f.exp() - y * f).sum()),
    "gaussian": (Gaussian(0.3), None, normal(4, 2), normal(4, 2, seed=1), normal_loss(0.3)),
    "gaussian at places": (Gaussian(0.3), None, normal(3, 2, 2), normal(3, 2, 2, seed=1), normal_loss(0.3)),
    "gaussian, a scale each": (
        Gaussian(SCALES),
        None,
        normal(4, 3),
        normal(4, 3, seed=1),
        normal_loss(torch.tensor(SCALES, dtype=torch.float64)),
    ),
    "gaussian, learned": (Gaussian("learned"), LOG_SCALE, normal(4, 2), normal(4, 2, seed=1), normal_loss(0.4)),
    "gaussian, learned each": (
        Gaussian("learned", outputs=3),
        LOG_SCALES,
        normal(4, 3),
        normal(4, 3, seed=1),
        normal_loss(LOG_SCALES["log_scale"].exp()),
    ),
    "custom categorical": (
        Custom(lambda f: distributions.Categorical(logits=f, validate_args=False)),
        None,
        normal(4, 3),
        classes(4, 3),
        softmax_loss,
    ),
    "custom normal": (
        Custom(lambda f: distributions.Normal(f, 0.3, validate_args=False)),
        None,
        normal(4, 2),
        normal(4, 2, seed=1),
        normal_loss(0.3),
    ),
}


@pytest.mark.parametrize("name", NATURAL)
def test_natural_parameters_have_the_hessian(name: str):
    likelihood, parameters, outputs, targets, loss = NATURAL[name]
    columns = root("ggn", likelihood, outputs, targets=targets, parameters=parameters or {})
    assert columns.shape[1:] == outputs.shape
    assert_close(gram(columns), hessians(loss, outputs, targets))


@pytest.mark.parametrize("name", NATURAL)
def test_empirical_is_the_score(name: str):
    likelihood, parameters, outputs, targets, loss = NATURAL[name]
    columns = root("empirical", likelihood, outputs, targets=targets, parameters=parameters or {})
    assert columns.shape == (1, *outputs.shape)
    scores = [torch.as_tensor(torch.autograd.functional.jacobian(lambda f, y=y: -loss(f, y), f))
              for f, y in zip(outputs, targets, strict=True)]  # fmt: skip
    assert_close(columns[0], torch.stack(scores))


@pytest.mark.parametrize("name", [n for n in NATURAL if "places" not in n and "grid" not in n])
def test_sampled_fisher_has_the_exact_one_as_its_mean(name: str):
    likelihood, parameters, outputs, targets, loss = NATURAL[name]
    torch.manual_seed(1)
    draws, samples = 20, 40
    options = {"targets": targets, "parameters": parameters or {}, "samples": samples}
    actual = torch.stack([gram(root("fisher", likelihood, outputs, **options)) for _ in range(draws)])
    error = actual.std(0) / math.sqrt(draws)
    # 5 standard errors by Student's t with 19 degrees of freedom; entries that are zero for every draw are exact
    assert ((actual.mean(0) - hessians(loss, outputs, targets)).abs() <= 5 * error + 1e-12).all()


def expected_information(log_prob: Callable[[Tensor, Tensor], Tensor], outputs_K: Tensor, width: int) -> Tensor:
    """Return E_y[s sᵀ], s = d log p / df, by the trapezoid rule over each target in turn, the others at any value."""
    assert width == 1
    tangent = torch.linspace(-math.pi / 2, math.pi / 2, 20_003, dtype=torch.float64)[1:-1]
    grid = 30 * tangent.tan()  # so that heavy tails are seen to their ends
    leaf = outputs_K.expand(len(grid), -1).clone().requires_grad_()
    log_p = log_prob(leaf, grid)
    (scores,) = torch.autograd.grad(log_p.sum(), leaf)
    weight = log_p.detach().exp() * 30 / tangent.cos() ** 2
    return torch.trapezoid(weight[:, None, None] * scores.unsqueeze(2) * scores.unsqueeze(1), tangent, dim=0)


def test_heteroscedastic_is_the_fisher_information():
    outputs = torch.tensor([[0.3, -1.0], [0.0, 2.0], [-2.0, 0.5]], dtype=torch.float64)

    def log_prob(f: Tensor, y: Tensor) -> Tensor:
        variance = (1 + f[:, 1].exp()).log() + 1e-2
        return -0.5 * (y - f[:, 0]) ** 2 / variance - 0.5 * (2 * math.pi * variance).log()

    expected = torch.stack([expected_information(log_prob, row, 1) for row in outputs])
    assert_close(ggn(HeteroscedasticGaussian(1e-2), outputs, normal(3, 1)), expected, rtol=1e-8, atol=1e-9)


def test_heteroscedastic_of_several_targets_pairs_mean_and_variance():
    outputs = normal(4, 6)
    actual = ggn(HeteroscedasticGaussian(), outputs, normal(4, 3))
    for target in range(3):
        both = [target, target + 3]
        single = ggn(HeteroscedasticGaussian(), outputs[:, both], normal(4, 1))
        assert_close(actual[:, both][:, :, both], single)
    assert torch.count_nonzero(actual) == 4 * 6


@pytest.mark.parametrize("df", [1.0, 4.0, 30.0])
def test_student_is_the_fisher_information(df: float):
    likelihood, outputs = StudentT(df, 0.7), torch.tensor([[0.4]], dtype=torch.float64)

    def log_prob(f: Tensor, y: Tensor) -> Tensor:
        constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi) - math.log(0.7)
        return constant - (df + 1) / 2 * (1 + ((y - f[:, 0]) / 0.7) ** 2 / df).log()

    expected = expected_information(log_prob, outputs[0], 1).unsqueeze(0)
    assert_close(ggn(likelihood, outputs, normal(1, 1)), expected, rtol=1e-7)


@pytest.mark.parametrize(
    "likelihood", [StudentT(3.0, 2.0), HeteroscedasticGaussian()], ids=["student", "heteroscedastic"]
)
def test_curvature_of_a_family_does_not_depend_on_the_targets(likelihood: Likelihood):
    outputs = normal(4, 2)
    wide = 2 if isinstance(likelihood, StudentT) else 1
    assert torch.equal(
        ggn(likelihood, outputs, normal(4, wide)), ggn(likelihood, outputs, 100 * normal(4, wide, seed=1))
    )


def test_enumerable_custom_likelihood_takes_the_mean_over_targets():
    """A link that is not the natural one: the Hessian at the observed target may be negative, its mean never is."""

    def link(f: Tensor) -> distributions.Distribution:
        return distributions.Bernoulli(torch.special.ndtr(f.squeeze(-1)), validate_args=False)

    outputs, targets = torch.tensor([[-2.0], [0.3], [1.5]], dtype=torch.float64), torch.tensor([1.0, 0.0, 1.0])
    p, density = torch.special.ndtr(outputs), (-0.5 * outputs**2).exp() / math.sqrt(2 * math.pi)
    expected = density**2 / (p * (1 - p))  # Fisher information of probit regression
    assert_close(ggn(Custom(link), outputs, targets.double()), expected.unsqueeze(-1), rtol=1e-8)


class Probit:
    """Probit regression that leaves targets below 0 out."""

    def parameters(self) -> dict[str, Any]:
        return {}

    def distribution(self, outputs: Tensor, parameters: Any = None) -> distributions.Distribution:
        return distributions.Bernoulli(torch.special.ndtr(outputs.squeeze(-1)), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        p = torch.special.ndtr(outputs.squeeze(-1))
        return torch.where(targets < 0, 0.0, torch.where(targets > 0, p.log(), (1 - p).log()))

    def check(self, outputs: Tensor, targets: Tensor) -> None: ...


def test_each_row_has_the_same_curvature_whatever_rows_it_comes_with():
    """A target outside the support took the Fisher information from all rows of its batch."""
    outputs, targets = normal(6, 1), torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, -1.0], dtype=torch.float64)
    whole = ggn(Probit(), outputs, targets)
    alone = torch.cat([ggn(Probit(), outputs[i : i + 1], targets[i : i + 1]) for i in range(6)])
    assert_close(whole, alone)
    p, density = torch.special.ndtr(outputs), (-0.5 * outputs**2).exp() / math.sqrt(2 * math.pi)
    assert_close(whole[:5, :, 0], (density**2 / (p * (1 - p)))[:5])
    assert whole[5] == 0


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_a_trailing_axis_of_one_changes_nothing(shape: tuple[int, ...]):
    outputs, targets = normal(6, 1), classes(6, 2).double()
    likelihood = Custom(lambda f: distributions.Bernoulli(torch.special.ndtr(f.reshape(shape)), validate_args=False))
    assert_close(ggn(likelihood, outputs, targets.reshape(shape)), ggn(Probit(), outputs, targets))


def test_a_class_without_probability_has_no_share():
    likelihood = Custom(
        lambda f: distributions.Categorical(logits=torch.cat([f, f - math.inf], -1), validate_args=False)
    )
    assert_close(ggn(likelihood, normal(3, 2), classes(3, 2)), ggn(Categorical(), normal(3, 2), classes(3, 2)))


def test_many_values_take_a_backward_pass_each():
    passes = []

    def made(f: Tensor) -> distributions.Distribution:
        if f.requires_grad:
            f.register_hook(passes.append)
        return distributions.Categorical(logits=f, validate_args=False)

    assert_close(ggn(Custom(made), normal(2, 30), classes(2, 30)), ggn(Categorical(), normal(2, 30), classes(2, 30)))
    assert len(passes) == 30


def test_other_custom_likelihood_takes_the_positive_part_at_the_observed_target():
    """A Cauchy distribution, whose log density curves upwards away from its middle."""

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return (1 + (y - f) ** 2).log().sum()

    outputs, targets = normal(6, 2), 2 * normal(6, 2, seed=1)
    exact = hessians(loss, outputs, targets)
    assert (exact < 0).any()
    likelihood = Custom(lambda f: distributions.Cauchy(f, 1.0, validate_args=False))
    assert_close(ggn(likelihood, outputs, targets), torch.diag_embed(exact.diagonal(dim1=1, dim2=2).clamp_min(0)))


def test_custom_likelihood_that_checks_its_arguments():
    outputs, targets = normal(4, 3), classes(4, 3)
    likelihood = Custom(lambda f: distributions.Categorical(logits=f))
    assert_close(ggn(likelihood, outputs, targets), hessians(softmax_loss, outputs, targets))


def test_no_curvature_is_said_of_all_rows_together():
    """Some rows may well have none, such as ones that are ignored or censored."""
    likelihood = Custom(lambda f: distributions.Laplace(f, 1.0, validate_args=False))
    columns = root("ggn", likelihood, normal(4, 2), targets=normal(4, 2, seed=1), parameters={})
    assert not columns.any()
    with pytest.raises(ValueError, match="Custom has no curvature in f"):
        check_curved(likelihood, float(columns.abs().max()))
    check_curved(likelihood, 1e-9)
    check_curved(Categorical(), 0.0)  # has some: it is the network that does not use its weights


@pytest.mark.parametrize("classes_", [2, 5, 1000])
@pytest.mark.parametrize("top", [0, 1, -1])
@pytest.mark.parametrize("gap", [0.0, 20.0, 80.0, 300.0])
def test_confident_classes_keep_their_digits_in_single_precision(classes_: int, top: int, gap: float):
    logits = 0.1 * normal(1, classes_).float()
    logits[0, top] += gap
    log_p = logits.double().log_softmax(-1)
    # p_k (1 − p_k) with 1 − p_k summed from the others, not taken from one
    others = torch.where(torch.eye(classes_, dtype=torch.bool), -torch.inf, log_p).logsumexp(-1)
    expected = (log_p[0] + others).exp()
    columns = categorical_root(logits)
    assert torch.isfinite(columns).all()
    actual = columns.double().square().sum(0)[0]
    assert_close(actual, expected, rtol=2e-4, atol=1e-37)


def test_categorical_root_is_orthogonal_to_constants_and_is_triangular():
    columns = categorical_root(3 * normal(4, 6))
    assert columns.shape == (5, 4, 6)
    assert_close(columns.sum(-1), torch.zeros(5, 4), atol=1e-14)
    assert not any(columns[j, :, :j].any() for j in range(5))


@pytest.mark.parametrize("kind", ["ggn", "fisher", "empirical"])
def test_columns_carry_no_graph(kind: str):
    outputs = normal(3, 4).requires_grad_()
    assert not root(kind, Categorical(), outputs, targets=classes(3, 4), parameters={}, samples=2).requires_grad


@pytest.mark.parametrize(("parameters", "count"), [(LOG_SCALE, 1), (LOG_SCALES, 3)], ids=["shared", "each"])
def test_information_of_a_learned_scale(parameters: dict[str, Tensor], count: int):
    likelihood, outputs = Gaussian("learned", outputs=count), normal(5, 3)
    actual = parameter_information(likelihood, outputs, normal(5, 3, seed=1), parameters=parameters)
    # E[−d² log p / d(log s)²] = 2 for each value that has the scale
    assert_close(actual["log_scale"], torch.full((count,), 2.0 * 15 / count))

"""Sequences of linear-Gaussian tasks against Bayes' rule, and against the recursion of online EWC."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import normal
from torchbayes.continual.coresets import Coreset
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import Purpose, mix

SIZES, NOISE, PRIOR = (12, 7, 9), 1.0, 0.8
TRUTH = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
MIXED = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)  # correlated inputs
INPUTS = [normal(n, 3, seed=20 + n) @ MIXED for n in SIZES]
TASKS = [(x, (x @ TRUTH + NOISE * normal(len(x), seed=30 + len(x))).unsqueeze(1)) for x in INPUTS]
pytestmark = pytest.mark.usefixtures("unjudged_fits")
SEEKER = tb.MAP(epochs=120, batch_size=64, optimizer=tb.SGD(lr=0.5, momentum=0.7), schedule=tb.Constant())


def model() -> tb.Model:
    module = nn.Linear(3, 1, bias=False).double()
    return tb.Model(module, tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(PRIOR))


def recursion(*, diagonal: bool, tasks: list[tuple[Tensor, Tensor]] = TASKS) -> list[tuple[Tensor, Tensor]]:
    """Means and precisions after each task: of Bayes' rule, or with the diagonal of every curvature alone."""
    precision, mean, actual = torch.eye(3, dtype=torch.float64) / PRIOR**2, torch.zeros(3, dtype=torch.float64), []
    for x, y in tasks:
        curvature = x.T @ x / NOISE**2
        mean = torch.linalg.solve(precision + curvature, precision @ mean + x.T @ y[:, 0] / NOISE**2)
        precision = precision + (torch.diag(curvature.diagonal()) if diagonal else curvature)
        actual.append((mean, precision))
    return actual


def moments(posterior: Posterior) -> tuple[Tensor, Tensor]:
    gaussian = posterior.gaussian  # type: ignore[attr-defined]
    return gaussian.mean_MD[0], torch.linalg.inv(gaussian.covariance.dense()[0])


# `test_what_predicts_with_coresets_is_the_posterior_of_all_rows` has dense ones
@pytest.mark.parametrize("structure", [pytest.param("dense", marks=pytest.mark.study), "kronecker"])
def test_a_sequence_of_full_laplace_posteriors_is_bayes_rule(structure: str) -> None:
    actual = tb.sequence(model(), TASKS, tb.Laplace(structure, prior="model"), seeker=SEEKER)
    for posterior, (mean, precision) in zip(actual.posteriors, recursion(diagonal=False), strict=True):
        own = moments(posterior)
        torch.testing.assert_close(own[0], mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(own[1], precision, rtol=1e-8, atol=1e-8)


def test_a_sequence_of_diagonal_laplace_posteriors_is_online_ewc() -> None:
    actual = tb.sequence(model(), TASKS, tb.Laplace("diagonal", prior="model"), seeker=SEEKER)
    for posterior, (mean, precision) in zip(actual.posteriors, recursion(diagonal=True), strict=True):
        own = moments(posterior)
        torch.testing.assert_close(own[0], mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(own[1], precision, rtol=1e-8, atol=1e-8)
    other = tb.sequence(model(), TASKS[::-1], tb.Laplace("diagonal", prior="model"), seeker=SEEKER)
    reverse = recursion(diagonal=True, tasks=TASKS[::-1])[-1][0]
    torch.testing.assert_close(moments(other.posteriors[-1])[0], reverse, rtol=1e-8, atol=1e-8)
    assert (reverse - recursion(diagonal=True)[-1][0]).abs().max() > 1e-3


def vi(structure: str) -> tb.VI:
    return tb.VI(
        structure,  # type: ignore[arg-type]
        epochs=180,
        optimizer=tb.Adam(0.05),
        draws=32,
        antithetic=True,
        kl_weight=1.0,
        initial_scale=0.1,
    )


# Laplace and expectation propagation pin how dense posteriors are carried on, and tests/methods the fit of a dense one
DENSE = pytest.param("dense", False, marks=pytest.mark.study)


@pytest.mark.slow
@pytest.mark.parametrize(("structure", "diagonal"), [DENSE, ("diagonal", True)])
def test_variational_continual_learning_meets_its_recursion(structure: str, diagonal: bool) -> None:
    actual = tb.sequence(model(), TASKS, vi(structure))
    for posterior, (mean, precision) in zip(actual.posteriors, recursion(diagonal=diagonal), strict=True):
        own = moments(posterior)
        torch.testing.assert_close(own[0], mean, rtol=0, atol=0.01)
        torch.testing.assert_close(own[1], precision, rtol=0, atol=0.08 * float(precision.max()))


@pytest.mark.parametrize(
    "coreset", [tb.coresets.Random(3), pytest.param(tb.coresets.KCentre(4, first=2), marks=pytest.mark.study)]
)
def test_what_predicts_with_coresets_is_the_posterior_of_all_rows(coreset: Coreset) -> None:
    """And what is carried on is that of the rows that were not set aside."""
    method = tb.Laplace("dense", prior="model")
    actual = tb.sequence(model(), TASKS, method, seeker=SEEKER, coreset=coreset)
    for predictor, posterior, (mean, precision) in zip(
        actual.predictors, actual.posteriors, recursion(diagonal=False), strict=True
    ):
        own = moments(predictor)
        torch.testing.assert_close(own[0], mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(own[1], precision, rtol=1e-8, atol=1e-8)
        assert torch.linalg.eigvalsh(precision - moments(posterior)[1])[-1] > 0.1


@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_a_sequence_of_expectation_propagation_is_bayes_rule(order: Literal["parallel", "sequential"]) -> None:
    """And the evidences of the tasks add up to that of all rows."""
    method = tb.EP(order=order)
    actual = tb.sequence(model(), TASKS, method)
    for posterior, (mean, precision) in zip(actual.posteriors, recursion(diagonal=False), strict=True):
        own = moments(posterior)
        torch.testing.assert_close(own[0], mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(own[1], precision, rtol=1e-10, atol=1e-10)
    rows = tuple(torch.cat(parts) for parts in zip(*TASKS, strict=True))
    whole = tb.fit(model(), rows, method, callbacks=())
    each = [float(posterior.log_evidence()) for posterior in actual.posteriors]  # type: ignore[attr-defined]
    assert sum(each) == pytest.approx(float(whole.log_evidence()), abs=1e-9)  # type: ignore[attr-defined]


def test_a_sequence_of_probabilistic_backpropagation_goes_on_under_the_posterior_before() -> None:
    """As by hand: a fit of the first task, and one of the second under it."""
    learned, data = tb.likelihoods.Gaussian("learned"), TASKS[:2]
    net = nn.Linear(3, 1, bias=False).double()
    first = tb.Model(net, learned, tb.priors.Normal(PRIOR))
    actual = tb.sequence(first, data, tb.PBP(epochs=3), seed=5)
    before = actual.posteriors[0]
    assert isinstance(before, tb.Gaussian)
    onward = tb.Model(net, before.model.likelihood, tb.as_prior(before))
    seed = mix(Purpose.TASK, 5, 2)
    by_hand = tb.fit(onward, data[1], tb.PBP(epochs=3), seed=seed, callbacks=())
    torch.testing.assert_close(moments(actual.posterior), moments(by_hand), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_one_task_is_a_fit() -> None:
    method = tb.VI(epochs=20, kl_weight=1.0)
    actual = tb.sequence(model(), TASKS[:1], method, seed=3)
    alone = tb.fit(model(), TASKS[0], method, seed=3)
    assert torch.equal(actual.posterior.gaussian.mean_MD, alone.mean_MD)  # type: ignore[attr-defined]
    assert actual.scores["rmse"].shape == (1, 1)
    assert torch.tensor(actual.forward_transfer("rmse")).isnan()
    assert torch.tensor(actual.backward_transfer("rmse")).isnan()

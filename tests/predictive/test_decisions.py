"""Decisions of least expected loss against sums by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.laws.cases import normal
from torch import Tensor

import torchbayes as tb


def by_hand(probs: Tensor, losses: Tensor) -> tuple[list[int], list[float]]:
    actions, paid = [], []
    for row in probs.tolist():
        expected = [sum(p * v for p, v in zip(row, loss, strict=True)) for loss in losses.tolist()]
        paid.append(min(expected))
        actions.append(expected.index(paid[-1]))
    return actions, paid


@pytest.mark.parametrize("actions", [1, 3, 7])
def test_decisions_are_those_of_all_expected_losses(actions: int) -> None:
    predictive, losses = tb.Predictive(2 * normal(5, 40, 4), tb.likelihoods.Categorical()), normal(actions, 4, seed=2)
    found = predictive.decide(losses)
    expected = by_hand(predictive.probs, losses)
    assert found.action.tolist() == expected[0]
    assert found.loss.tolist() == pytest.approx(expected[1], rel=1e-12, abs=1e-14)
    assert predictive.decide(losses.tolist()).action.tolist() == expected[0]


def test_one_for_every_error_is_the_most_probable_class() -> None:
    predictive = tb.Predictive(normal(5, 40, 4).float(), tb.likelihoods.Categorical())
    found = predictive.decide(1 - torch.eye(4))
    assert torch.equal(found.action, predictive.probs.argmax(-1))
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, 1 - predictive.probs.amax(-1))


def test_asking_is_cheaper_where_the_error_is_likely() -> None:
    predictive = tb.Predictive.from_probs(torch.tensor([[0.95, 0.05], [0.7, 0.3], [0.2, 0.8]]))
    found = predictive.decide([[0.0, 1.0], [1.0, 0.0], [0.25, 0.25]])
    assert found.action.tolist() == [0, 2, 1]
    assert found.loss.tolist() == pytest.approx([0.05, 0.25, 0.2])


def test_of_tied_actions_the_first_counts() -> None:
    assert tb.Predictive.from_probs(torch.full((1, 2), 0.5)).decide([[1, 1], [0, 2], [2, 0]]).action.tolist() == [0]


@pytest.mark.parametrize("shape", [(3, 20, 1), (3, 20, 6), (3, 20)])
def test_binary_labels_are_two_classes_each(shape: tuple[int, ...]) -> None:
    outputs, losses = normal(*shape), torch.tensor([[0.0, 5.0], [1.0, 0.0]], dtype=torch.float64)
    predictive = tb.Predictive(outputs, tb.likelihoods.Bernoulli())
    found = predictive.decide(losses)
    probs = predictive.probs.flatten()
    expected = by_hand(torch.stack([1 - probs, probs], -1), losses)
    assert found.action.shape == predictive.probs.shape
    assert found.action.flatten().tolist() == expected[0]
    assert found.loss.flatten().tolist() == pytest.approx(expected[1], rel=1e-12)


def test_every_token_has_a_decision() -> None:
    predictive, losses = tb.Predictive(normal(3, 4, 5, 3), tb.likelihoods.Categorical()), normal(2, 3, seed=2)
    found = predictive.decide(losses)
    assert found.action.shape == (4, 5)
    torch.testing.assert_close(found.loss, (predictive.probs @ losses.T).amin(-1))


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (torch.zeros(4), r"shape \(A, 3\): a row for each action .* got shape \(4,\)"),
        (torch.zeros(3, 4), r"each of the 3 classes; got shape \(3, 4\)"),
        (torch.zeros(0, 3), r"got shape \(0, 3\)"),
        (torch.tensor([[0.0, math.nan, math.inf]]), "holds NaN or infinite values: 2 of 3. Forbid an action"),
    ],
)
def test_losses_that_do_not_fit_are_refused(losses: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tb.Predictive(normal(5, 40, 3), tb.likelihoods.Categorical()).decide(losses)


def test_numbers_have_no_classes_to_decide_on() -> None:
    with pytest.raises(TypeError, match="Categorical and Bernoulli likelihoods; this one gives Normal"):
        tb.Predictive(normal(5, 40, 1), tb.likelihoods.Gaussian()).decide([[0.0, 1.0]])

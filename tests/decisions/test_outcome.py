"""What decisions cost on rows with targets, beside other rules, by hand."""

from __future__ import annotations

import numpy as np
import torch

import torchbayes as tb
from torchbayes.data.base import Standardise
from torchbayes.decisions import Abstention, Costs, Exceeds, Linear
from torchbayes.decisions.outcome import outcome_of
from torchbayes.decisions.written import decision_columns

COSTS = Costs(torch.tensor([[3.0, 1.0], [0.0, 20.0]]), ("treat", "wait"), ("well", "ill"))
PROBS = torch.tensor([[0.9, 0.1], [0.95, 0.05], [0.2, 0.8], [0.99, 0.01]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1, 0])


def test_costs_of_rules_are_those_of_a_table():
    outcome = outcome_of(tb.Predictive.from_probs(PROBS), LABELS, COSTS, classes=("well", "ill"))
    # expected: treat 2.8, wait 2 | treat 2.9, wait 1 | treat 1.4, wait 16 | treat 2.98, wait .2
    assert outcome.loss.tolist() == [0.0, 20.0, 1.0, 0.0]
    others = {name: values.tolist() for name, values in outcome.others.items()}
    assert others == {
        "as if the prediction were certain": [0.0, 20.0, 1.0, 0.0],
        "always treat": [3.0, 1.0, 1.0, 3.0],
        "always wait": [0.0, 20.0, 20.0, 0.0],
        "with the targets known": [0.0, 1.0, 1.0, 0.0],
    }
    assert outcome.mean(outcome.loss) == 5.25
    torch.testing.assert_close(outcome.expected, torch.tensor([2.0, 1.0, 1.4, 0.2], dtype=torch.float64))


def test_rows_count_as_often_as_they_weigh():
    likelihood = tb.likelihoods.Weighted(tb.likelihoods.Categorical())
    predictive = tb.Predictive(PROBS.log().unsqueeze(0), likelihood)
    outcome = outcome_of(predictive, (LABELS, torch.tensor([1.0, 0.0, 2.0, 1.0])), COSTS, classes=("well", "ill"))
    assert outcome.mean(outcome.loss) == 0.5


def test_numbers_are_compared_with_the_best_number_for_all_and_with_the_truth():
    units = Standardise(torch.tensor([10.0]), torch.tensor([2.0]))
    predictive = tb.Predictive(torch.tensor([[[0.0], [1.0]]], dtype=torch.float64), tb.likelihoods.Gaussian(0.5))
    targets = torch.tensor([[0.5], [1.0]])  # 11 and 12
    known = torch.arange(101.0)
    outcome = outcome_of(predictive, targets, Linear(3.0, 1.0), targets=units, known=known)
    quantile = 0.6744897501960817  # Φ⁻¹(3/4), times a scale of 1
    np.testing.assert_allclose(outcome.loss, [3 * (1 - quantile), quantile], rtol=1e-6)
    others = {name: values.tolist() for name, values in outcome.others.items()}
    assert others == {
        "as if the prediction were certain": [3.0, 0.0],
        "always 75": [64.0, 63.0],
        "with the targets known": [0.0, 0.0],
    }
    threshold = outcome_of(predictive, targets, Exceeds(11.5, miss=5.0, alarm=2.0), targets=units)
    assert threshold.others["always wait"].tolist() == [0.0, 5.0]
    assert threshold.others["always act"].tolist() == [2.0, 0.0]
    assert threshold.others["as if the prediction were certain"].tolist() == [0.0, 0.0]


def test_a_rule_hands_rows_on():
    rule = Abstention(torch.zeros(100), torch.linspace(0, 0.15, 100), 0.05, None, cost=Costs.errors((0, 1)))
    outcome = outcome_of(tb.Predictive.from_probs(PROBS), LABELS, rule=rule)
    assert outcome.abstained.tolist() == [False] * 4  # all held-out rows are accepted
    losses = torch.cat([torch.zeros(80), torch.ones(20)])
    strict = Abstention(losses, torch.linspace(0, 0.15, 100), 0.05, None, cost=Costs.errors((0, 1)))
    assert strict.threshold == torch.linspace(0, 0.15, 100).double()[84]
    assert outcome_of(tb.Predictive.from_probs(PROBS), LABELS, rule=strict).abstained.tolist() == [0, 0, 1, 0]


def test_columns_have_names_costs_and_spreads():
    draws = torch.stack([PROBS, PROBS.flip(1)])
    columns = decision_columns(tb.decide(draws, cost=COSTS, classes=("well", "ill"), abstain=2.01))
    assert list(columns) == ["decision", "expected_cost", "expected_cost_sd"]
    assert columns["decision"].tolist() == ["treat"] * 4
    np.testing.assert_allclose(columns["expected_cost_sd"], [0.8, 0.9, 0.6, 0.98])
    numbers = tb.Predictive(torch.tensor([[[0.0], [1.0]], [[0.0], [3.0]]]), tb.likelihoods.Gaussian(1.0))
    columns = decision_columns(tb.decide(numbers, cost="squared", abstain=1.5))
    assert columns["decision"].tolist() == [0.0, "abstain"]
    several = tb.Predictive(torch.zeros(1, 3, 2), tb.likelihoods.Gaussian(1.0))
    assert list(decision_columns(tb.decide(several, cost="squared"))) == [
        "decision[0]", "decision[1]", "expected_cost[0]", "expected_cost[1]",
    ]  # fmt: skip

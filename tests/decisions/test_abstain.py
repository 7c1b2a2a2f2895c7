"""Rules of abstention: what they are certified on, what they accept, what they refuse, and their files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import LogisticRegression

import torchbayes as tb
from torchbayes import decisions
from torchbayes.data.base import Standardise
from torchbayes.decisions import Costs, Exceeds, Linear, Within, abstain
from torchbayes.decisions.abstain import check_held_out
from torchbayes.sklearn import BayesianClassifier, BayesianRegressor

NAMED = {"wait": {"ill": 30.0, "well": 0.0}, "treat": {"ill": 1.0, "well": 4.0}}
NAMES = ("ill", "well")
COSTS = Costs(torch.tensor([[30.0, 0.0], [1.0, 4.0]]), ("wait", "treat"), NAMES)


def classes(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    logits = 2.5 * torch.randn(3, rows, 1, generator=source, dtype=torch.float64).mean(0) * 3**0.5
    p = torch.cat([-logits, logits], 1).softmax(1)
    return p, (torch.rand(rows, generator=source, dtype=torch.float64) < p[:, 1]).long()


def test_a_rule_accepts_the_rows_of_least_expected_cost():
    probs, targets = classes(500)
    predictive = tb.Predictive.from_probs(probs)
    rule = abstain(predictive, targets, risk=0.1)
    wrong = probs.argmax(1) != targets
    torch.testing.assert_close(rule.losses_N, wrong.double())
    torch.testing.assert_close(rule.scores_N, 1 - probs.amax(1))
    made = tb.decide(predictive, rule=rule)
    accepted = 1 - probs.amax(1) < rule.threshold
    assert torch.equal(~made.abstained, accepted)
    assert int(accepted.sum()) == rule.accepted
    assert rule.empirical == pytest.approx(float(wrong[accepted].double().mean()))
    assert 0.2 < rule.coverage < 1
    assert "With probability 0.9" in rule.words
    assert "500 held-out rows" in rule.words


def test_columns_of_an_array_are_in_the_order_of_the_classes():
    X, y = make_classification(300, n_classes=3, n_informative=4, random_state=0)
    estimator, names = LogisticRegression().fit(X, np.array(["a", "b", "c"])[y]), ("c", "b", "a")
    cost = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    rule = abstain(estimator, (X, np.array(["a", "b", "c"])[y]), risk=0.4, cost=cost, classes=names)
    made = tb.decide(estimator, X, cost=cost, classes=names)
    assert isinstance(rule.cost, Costs)
    assert isinstance(made.cost, Costs)
    assert torch.equal(rule.cost.costs, made.cost.costs)
    assert torch.equal(rule.scores_N, made.expected_cost)


def test_copies_of_held_out_rows_are_told(recwarn):
    probs, targets = classes(60)
    abstain(tb.Predictive.from_probs(probs), targets, risk=0.3)
    few = probs[torch.arange(60) % 5]  # rows of few different inputs, whose targets differ
    abstain(tb.Predictive.from_probs(few), torch.arange(60) % 2, risk=0.9)
    certain = torch.eye(2, dtype=torch.float64)[targets]
    abstain(tb.Predictive.from_probs(certain), targets, risk=0.3)
    assert not recwarn
    with pytest.warns(UserWarning, match="360 of 420 held-out rows have score and loss of another one"):
        abstain(tb.Predictive.from_probs(probs.repeat(7, 1)), targets.repeat(7), risk=0.3)


def test_a_rate_is_another_promise_and_says_so():
    probs, targets = classes(500)
    rule = abstain(tb.Predictive.from_probs(probs), targets, rate=0.03)
    assert rule.confidence is None
    assert rule.empirical * 500 + 1 <= 0.03 * 501
    assert "no bound on the error rate of accepted rows alone" in rule.words
    for limit in (None, 0.1):
        with pytest.raises(ValueError, match="say which is promised"):
            abstain(tb.Predictive.from_probs(probs), targets, risk=limit, rate=limit)


def test_costs_are_promised_in_their_own_units():
    probs, targets = classes(2000)
    predictive = tb.Predictive.from_probs(probs)
    rule = abstain(predictive, targets, risk=1.5, cost=COSTS, classes=NAMES)
    table = probs @ COSTS.costs.T
    torch.testing.assert_close(rule.scores_N, table.amin(1))
    torch.testing.assert_close(rule.losses_N, COSTS.costs[table.argmin(1), targets])
    assert rule.bound == 30.0
    assert rule.empirical < 1.5
    with pytest.raises(ValueError, match="certified for other costs"):
        tb.decide(predictive, cost="error", rule=rule)
    assert (
        tb.decide(predictive, cost=COSTS, rule=rule, classes=NAMES).labels.tolist().count("abstain")
        == 2000 - rule.accepted
    )


def test_rows_that_are_off_by_more_than_a_tolerance_are_errors():
    source = torch.Generator().manual_seed(0)
    scale = torch.linspace(0.1, 3.0, 800, dtype=torch.float64).unsqueeze(1)
    outputs = torch.stack([0 * scale, scale.log()], -1).flatten(1).unsqueeze(0)
    predictive = tb.Predictive(outputs, tb.likelihoods.HeteroscedasticGaussian())
    targets = predictive.variance.sqrt() * torch.randn(800, 1, generator=source, dtype=torch.float64)
    units = Standardise(torch.tensor([100.0]), torch.tensor([10.0]))
    rule = abstain(predictive, targets, risk=0.1, cost=Within(12.0), targets=units)
    torch.testing.assert_close(rule.losses_N, (targets[:, 0].abs() > 1.2).double())
    made = tb.decide(predictive, rule=rule, targets=units)
    sizes = predictive.variance[:, 0]
    assert sizes[~made.abstained].max() < sizes[made.abstained].min()
    with pytest.raises(ValueError, match="needs costs with a bound"):
        abstain(predictive, targets, risk=0.1, cost=Linear(2.0, 1.0))


def test_rows_that_are_ignored_do_not_count_and_weights_are_refused():
    probs, targets = classes(300)
    likelihood = tb.likelihoods.Categorical(ignore_index=-1)
    predictive = tb.Predictive(probs.log().unsqueeze(0), likelihood)
    some = torch.where(torch.arange(300) % 3 == 0, -1, targets)
    rule = abstain(predictive, some, risk=0.15)
    assert len(rule.losses_N) == 200
    weighted = tb.Predictive(probs.log().unsqueeze(0), tb.likelihoods.Weighted(likelihood))
    with pytest.raises(ValueError, match="must count once each"):
        abstain(weighted, (targets, torch.full((300,), 2.0)), risk=0.1)


def test_batches_of_a_posterior_are_rows_of_one_rule():
    model = tb.Model(tb.networks.mlp(2, 2, hidden=(4,)), tb.likelihoods.Categorical())
    posterior = tb.Point(model, torch.randn(2, model.layout.size, generator=torch.Generator().manual_seed(0)))
    inputs = torch.randn(400, 2, generator=torch.Generator().manual_seed(1))
    targets = tb.predict(posterior, inputs).probs.argmax(1)
    whole = abstain(posterior, (inputs, targets), risk=0.1)
    parts = abstain(posterior, [(inputs[:150], targets[:150]), (inputs[150:], targets[150:])], risk=0.1)
    torch.testing.assert_close(whole.scores_N, parts.scores_N)
    assert whole.threshold == parts.threshold == float("inf")
    assert whole.coverage == 1.0


@pytest.mark.parametrize("cost", ["error", COSTS, Exceeds(1.0, 0.2, 0.7, below=True), None])
def test_a_rule_is_the_same_after_a_file(tmp_path, cost):
    probs, targets = classes(400)
    if isinstance(cost, Exceeds):
        numbers = tb.Predictive(torch.randn(2, 400, 1, generator=torch.Generator().manual_seed(0)), GAUSSIAN)
        rule = abstain(numbers, torch.zeros(400, 1), rate=0.3, cost=cost)
    elif cost is None:
        rule = decisions.Abstention(targets.double() * 0, probs[:, 0], 0.1)
    else:
        risk = 0.15 if cost == "error" else 4.0
        rule = abstain(tb.Predictive.from_probs(probs), targets, risk=risk, cost=cost, classes=NAMES)
    read = decisions.load(rule.save(tmp_path / "rule.safetensors"))
    for name in ("threshold", "accepted", "limit", "confidence", "bound", "words"):
        assert getattr(read, name) == getattr(rule, name)
    if isinstance(cost, Exceeds):
        assert read.cost == cost
    elif cost is not None:
        assert torch.equal(tb.decide(probs, rule=read).abstained, tb.decide(probs, rule=rule).abstained)


GAUSSIAN = tb.likelihoods.Gaussian(1.0)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    probs, targets = classes(400)
    path = abstain(tb.Predictive.from_probs(probs), targets, risk=0.15).save(tmp_path / "rule.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        decisions.load(tmp_path / "damaged.safetensors")
    other = tb.TemperatureScaling(2.0).save(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="not a rule of abstention"):
        decisions.load(other)


def test_estimators_of_scikit_learn_decide_by_names_of_their_classes():
    X, y = make_classification(900, 5, flip_y=0.05, random_state=0)
    names = np.where(y == 1, "ill", "well")
    estimator = BayesianClassifier(method=tb.MAP(members=3, epochs=20), random_state=0).fit(X[:300], names[:300])
    made = tb.decide(estimator, X[600:], cost=NAMED)
    p = estimator.predict_proba(X[600:])  # columns ill, well
    table = p @ np.array([[30.0, 0.0], [1.0, 4.0]]).T
    np.testing.assert_allclose(made.expected_cost, table.min(1), rtol=1e-5)
    assert made.labels.tolist() == [("wait", "treat")[a] for a in table.argmin(1)]
    assert made.by_draw.shape == (3, 300)
    assert (made.spread > 0).any()
    rule = abstain(estimator, (X[300:600], names[300:600]), risk=0.2)
    plain = LogisticRegression().fit(X[:300], names[:300])
    other = abstain(plain, (X[300:600], names[300:600]), risk=0.2)
    for each in (rule, other):
        assert isinstance(each.cost, Costs)
        assert each.cost.classes == ("ill", "well")
    with pytest.raises(ValueError, match="300 of 300 rows have the inputs of rows of the fit"):
        abstain(estimator, (X[:300], names[:300]), risk=0.2)
    with pytest.raises(ValueError, match="8 of 308 rows have the inputs of rows of the fit"):
        abstain(estimator, (X[292:600], names[292:600]), risk=0.2)
    abstain(estimator, (X[299:600], names[299:600]), risk=0.2)  # one may be chance
    with pytest.raises(ValueError, match="row 0 is 'sick'"):
        abstain(estimator, (X[300:600], ["sick"] * 300), risk=0.2)


NORMAL = torch.randn(292, 2, generator=torch.Generator().manual_seed(2))


def test_rows_of_a_few_categories_repeat_by_chance():
    known = torch.randint(0, 3, (200, 2), generator=torch.Generator().manual_seed(0)).float()
    check_held_out(known, torch.randint(0, 3, (100, 2), generator=torch.Generator().manual_seed(1)).float())
    with pytest.raises(ValueError, match="8 of 100 rows"):
        check_held_out(NORMAL[:200], NORMAL[192:292])


def test_regressors_of_scikit_learn_decide_in_the_units_of_their_targets():
    X, y, *_ = make_regression(600, 3, noise=20.0, random_state=0)
    y = 1000 + y
    estimator = BayesianRegressor(method=tb.MAP(members=2, epochs=20), random_state=0).fit(X[:300], y[:300])
    made = tb.decide(estimator, X[300:], cost=Linear(3.0, 1.0))
    np.testing.assert_allclose(made.action, estimator.predict_quantile(X[300:], 0.75), rtol=1e-5)
    np.testing.assert_allclose(tb.decide(estimator, X[300:], cost="squared").action, estimator.predict(X[300:]))
    wide = float(np.abs(y[300:] - np.median(y)).max())
    rule = abstain(estimator, (X[300:], y[300:]), risk=0.2, cost=Within(wide))
    assert rule.coverage == 1.0

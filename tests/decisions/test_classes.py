"""Decisions over classes against enumeration: costs by hand, draw by draw, and what information is worth."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import torchbayes as tb
from torchbayes import decisions
from torchbayes.decisions import Costs

SOURCE = np.random.default_rng(0)
PROBS = SOURCE.dirichlet(np.ones(3), size=(4, 7))  # four draws, seven rows
COSTS = np.array([[0.0, 8.0, 3.0], [2.0, 1.0, 2.5]])
NAMED = {"wait": {"a": 0.0, "b": 8.0, "c": 3.0}, "treat": {"a": 2.0, "b": 1.0, "c": 2.5}}


def by_hand(costs: np.ndarray, abstain: float = np.inf) -> dict[str, np.ndarray]:
    names = ("action", "cost", "by_draw", "informed", "settled", "abstained")
    actual: dict[str, list] = {name: [] for name in names}
    for b in range(PROBS.shape[1]):
        table = costs if costs.ndim == 2 else costs[b]
        draws = [[sum(p * c for p, c in zip(PROBS[s, b], row, strict=True)) for row in table] for s in range(4)]
        means = [sum(draw[a] for draw in draws) / 4 for a in range(len(table))]
        best = means.index(min(means))
        actual["action"].append(best)
        actual["abstained"].append(means[best] > abstain)
        actual["cost"].append(min(means[best], abstain))
        actual["by_draw"].append([abstain if means[best] > abstain else draw[best] for draw in draws])
        least = [min(abstain, *(row[k] for row in table)) for k in range(3)]
        actual["informed"].append(sum(PROBS[:, b, k].mean() * least[k] for k in range(3)))
        actual["settled"].append(sum(min(abstain, *draw) for draw in draws) / 4)
    return {name: np.array(values) for name, values in actual.items()}


@pytest.mark.parametrize("abstain", [None, 1.4])
@pytest.mark.parametrize("each", [False, True])
def test_costs_are_those_of_enumeration(each: bool, abstain: float | None):
    costs = COSTS + SOURCE.random((7, 2, 3)) if each else COSTS
    expected = by_hand(costs, np.inf if abstain is None else abstain)
    made = tb.decide(PROBS, cost=costs, abstain=abstain)
    assert made.action.tolist() == expected["action"].tolist()
    assert made.abstained.tolist() == expected["abstained"].tolist()
    np.testing.assert_allclose(made.expected_cost, expected["cost"], rtol=1e-12)
    np.testing.assert_allclose(made.by_draw.T, expected["by_draw"], rtol=1e-12)
    np.testing.assert_allclose(made.perfect_information, expected["cost"] - expected["informed"], atol=1e-12)
    assert made.unlimited_data is not None
    np.testing.assert_allclose(made.unlimited_data, expected["cost"] - expected["settled"], atol=1e-12)
    assert (made.unlimited_data <= made.perfect_information + 1e-12).all()


def test_names_may_be_given_in_any_order_and_form():
    frame = pd.DataFrame(NAMED).T[["c", "a", "b"]]
    turned = Costs(COSTS[:, [2, 0, 1]], ("wait", "treat"), ("c", "a", "b"))
    estimator = LogisticRegression().fit(SOURCE.standard_normal((60, 2)), np.array(["a", "b", "c"] * 20))
    X = SOURCE.standard_normal((7, 2))
    plain = tb.decide(estimator.predict_proba(X), cost=COSTS)
    for cost in (NAMED, frame, turned):
        made = tb.decide(estimator, X, cost=cost)
        assert torch.equal(made.expected_cost, plain.expected_cost)
        assert made.labels.tolist() == [("wait", "treat")[a] for a in plain.action]
    with pytest.raises(ValueError, match="Give `classes`"):
        tb.decide(estimator.predict_proba(X), cost=NAMED)
    made = tb.decide(estimator.predict_proba(X), cost=turned, classes=["a", "b", "c"])
    assert torch.equal(made.expected_cost, plain.expected_cost)
    with pytest.raises(ValueError, match="no class 'a'"):
        tb.decide(estimator, X, cost=Costs(COSTS, ("x", "y"), ("A", "b", "c")))


def test_errors_decide_for_the_most_probable_class_and_chow_abstains_below_a_confidence():
    probs = torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.5, 0.5], [0.95, 0.05]])
    made = tb.decide(probs, cost="error", classes=("well", "ill"), abstain=0.35)
    assert made.labels.tolist() == ["abstain", "ill", "abstain", "well"]
    assert made.action.tolist() == [0, 1, 0, 0]  # the first of tied ones
    torch.testing.assert_close(made.expected_cost, torch.tensor([0.35, 0.3, 0.35, 0.05], dtype=torch.float64))
    assert made.summary == {"expected_cost": pytest.approx(0.2625), "abstain": 0.5, "well": 0.25, "ill": 0.25}


def test_binary_predictives_and_ensembles_have_two_classes():
    logits = torch.randn(3, 5, 1, generator=torch.Generator().manual_seed(0))
    made = tb.decide(tb.Predictive(logits, tb.likelihoods.Bernoulli()), cost=[[0.0, 5.0], [1.0, 0.0], [0.5, 0.5]])
    p = logits[..., 0].sigmoid().double().mean(0)
    torch.testing.assert_close(made.expected_cost, torch.stack([5 * p, 1 - p, 0 * p + 0.5]).amin(0), rtol=1e-6, atol=0)


def test_rows_in_blocks_are_decided_as_one(monkeypatch):
    costs = COSTS + SOURCE.random((7, 2, 3))
    whole = tb.decide(PROBS, cost=costs)
    monkeypatch.setattr(sys.modules["torchbayes.decisions.decide"], "_AT_ONCE", 40)
    parts = tb.decide(PROBS, cost=costs)
    assert torch.equal(whole.action, parts.action)
    assert torch.equal(whole.by_draw, parts.by_draw)


def test_a_decision_is_the_best_of_all_rules():
    """Its expected cost is at most that of each of the eight rules that go by the most probable class."""
    made = tb.decide(PROBS, cost=COSTS)
    mean = PROBS.mean(0)
    for rule in itertools.product((0, 1), repeat=3):
        taken = [rule[k] for k in mean.argmax(1)]
        assert float(made.expected_cost.mean()) <= (COSTS[taken] * mean).sum(1).mean() + 1e-12


def test_costs_are_read_from_files_whichever_way_they_are_written(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("action,a,b,c\nwait,0,8,3\ntreat,2,1,2.5\n")
    columns = tmp_path / "columns.csv"
    columns.write_text("\ufeffclass,wait,treat\r\na,0,2\r\nb,8,1\r\nc,3,2.5\r\n", encoding="utf-8")
    for path in (rows, columns):
        read = Costs.read(path)
        assert (read.actions, read.classes) == (("wait", "treat"), ("a", "b", "c"))
        np.testing.assert_array_equal(read.costs, COSTS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("what,a,b\nx,1,2\n", "first cell"),
        ("action,a,b\n", "a row besides the first"),
        ("action,a,b\nx,1\n", "3 cells"),
        ("action,a,b\nx,1,two\n", "must hold numbers"),
        ("action,a,b\nx,1,nan\n", "NaN or infinite"),
        ("action,a,a\nx,1,2\n", "different names"),
        ("action,a,b\nabstain,1,2\n", "no action may be called"),
        ("action,a,b\nx,1,2\nx,3,4\n", "different names"),
    ],
)
def test_files_that_are_no_costs_are_refused(tmp_path, text: str, says: str):
    path = tmp_path / "costs.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as refused:
        Costs.read(path)
    assert str(path) in str(refused.value)


def test_actions_without_names_are_the_classes_of_the_table():
    probs = torch.tensor([[0.9, 0.05, 0.05]])
    table = Costs(1 - torch.eye(3), classes=("low", "mid", "high"))  # symmetric, so that no names are needed
    made = tb.decide(probs, cost=table, classes=("high", "low", "mid"))
    assert made.labels.tolist() == ["high"]
    assert made.expected_cost.item() == pytest.approx(0.1)


def test_files_of_a_spreadsheet_are_read(tmp_path):
    texts = "action,a,b\nwait,0,20.5\ntreat,3,1\n", "\ufeffaction;a;b\r\nwait;0;20,5\r\ntreat;3;1\r\n"
    made = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.csv").write_text(text, "utf-8")
        made.append(Costs.read(tmp_path / f"{number}.csv"))
    assert torch.equal(made[0].costs, made[1].costs)
    assert made[1].actions == ("wait", "treat")
    assert made[1].classes == ("a", "b")
    (tmp_path / "2.csv").write_text('action,a,b\nwait,0,"1,000"\n', "utf-8")
    with pytest.raises(ValueError, match="must hold numbers"):  # and not one thousandth of it
        Costs.read(tmp_path / "2.csv")


def test_columns_of_a_frame_of_probabilities_are_names():
    frame = pd.DataFrame([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]], columns=["ill", "well", "dead"])
    cost = {"treat": {"ill": 0, "well": 5, "dead": 0}, "wait": {"ill": 9, "well": 0, "dead": 0}}
    for classes in (None, ["ill", "well", "dead"], ["dead", "well", "ill"]):
        made = tb.decide(frame[["dead", "well", "ill"]], cost=cost, classes=classes)
        torch.testing.assert_close(made.expected_cost, torch.tensor([1.5, 0.9], dtype=torch.float64))
    assert tb.decide(frame, cost="error").labels.tolist() == ["ill", "dead"]
    assert tb.decide(pd.DataFrame(frame.to_numpy()), cost="error", classes=[*frame.columns]).labels[0] == "ill"
    written = frame.rename(columns={name: f"p({name})" for name in frame.columns})  # as `predict` writes them
    assert tb.decide(written, cost="error", classes=[*frame.columns]).labels.tolist() == ["ill", "dead"]
    with pytest.raises(ValueError, match="`classes` must be those of the predictions, ill, well, dead"):
        tb.decide(frame, cost="error", classes=["ill", "b", "c"])
    with pytest.raises(ValueError, match=r"no action may be called 'abstain'.* Rename it, or the class of"):
        tb.decide(frame.rename(columns={"dead": "abstain"}), cost="error")


def test_a_square_table_without_names_is_refused_unless_it_is_symmetric():
    with pytest.raises(ValueError, match="could be actions × classes or classes × actions"):
        tb.decide(PROBS, cost=[[0, 5, 5], [1, 0, 1], [2, 2, 0]])
    named = tb.decide(PROBS, cost=[[0, 5, 5], [1, 0, 1], [2, 2, 0]], actions=list("xyz"), classes=list("abc"))
    assert named.actions == ("x", "y", "z")
    assert tb.decide(PROBS, cost=1 - np.eye(3)).actions == (0, 1, 2)
    with pytest.raises(ValueError, match="Transpose it"):
        tb.decide(PROBS, cost=COSTS.T)
    estimator = LogisticRegression().fit(SOURCE.standard_normal((6, 2)), np.array(["u", "v"] * 3))
    with pytest.raises(ValueError, match="transpose it"):
        tb.decide(estimator, np.zeros((1, 2)), cost=Costs([[1.0, 2.0], [3.0, 4.0]], ("u", "v"), ("x", "y")))


def test_a_row_alone_one_action_and_gains_are_fine():
    made = tb.decide(np.array([[0.25, 0.75]]), cost=np.array([[-4.0, 0.0]]))
    assert made.labels.tolist() == ["0"]
    assert float(made.expected_cost) == -1.0
    assert float(made.spread) == 0.0
    single = tb.decide(np.ones((3, 1)), cost="error")
    assert single.expected_cost.tolist() == [0.0, 0.0, 0.0]


def test_places_in_a_row_are_no_rows():
    tokens = tb.Predictive(torch.zeros(2, 4, 5, 3), tb.likelihoods.Categorical())
    with pytest.raises(TypeError, match="one class for each row"):
        tb.decide(tokens, cost="error")


def test_numbers_and_classes_have_costs_of_their_own():
    numbers = tb.Predictive(torch.zeros(2, 4, 1), tb.likelihoods.Gaussian(1.0))
    with pytest.raises(TypeError, match="the predictions are numbers"):
        tb.decide(numbers, cost=Costs(COSTS))
    with pytest.raises(TypeError, match="'error'"):
        tb.decide(PROBS, cost=decisions.Linear(1, 2))

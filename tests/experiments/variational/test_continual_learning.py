"""The continual learning experiment: a tiny run against direct computation, and every part of the verdict both ways."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchbayes as tb
from torchbayes.data import load
from torchbayes_experiments.variational import continual_learning as room
from torchbayes_experiments.variational.continual_learning import (
    CENTRES,
    DIAGONAL,
    EXPERIMENT,
    KINDS,
    KRONECKER,
    PERMUTED,
    RANDOM,
    SPLIT,
    TUNED,
    VCL,
    ContinualRecipe,
    Scenario,
)

FEW = Scenario(tasks=2, hidden=(6, 5), coreset=8, epochs=2, map_epochs=2, batch_size=32, train_size=90, test_size=60)
TINY = ContinualRecipe(permuted=FEW, split=replace(FEW, plan="loop"), data="digits")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of a kind with a coreset, of Laplace, and of fine-tuning."""
    directory = tmp_path_factory.mktemp("continual")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "KINDS", (CENTRES, KRONECKER, TUNED))
        return directory, room.run(TINY, 3, directory)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return room.run(TINY, 3, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("run", "kinds"),
    [("tiny", (CENTRES, KRONECKER, TUNED)), pytest.param("whole", KINDS, marks=pytest.mark.study)],
)
def test_every_kind_is_run_on_both_sequences(run: str, kinds: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(run)
    results = results[1] if run == "tiny" else results
    for scenario in (PERMUTED, SPLIT):
        assert [*results[scenario]] == [*kinds]
        for actual in results[scenario].values():
            accuracy = np.array(actual["accuracy"], dtype=float)
            assert np.isfinite(accuracy).all()
            assert actual["backward"] == pytest.approx(accuracy[1, 0] - accuracy[0, 0])


def test_a_run_that_is_finished_is_read(tiny: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "KINDS", (CENTRES, KRONECKER, TUNED))
    monkeypatch.setattr(room.tb, "sequence", lambda *_, **__: pytest.fail("something was learned again"))
    assert room.run(TINY, 3, tiny[0]) == tiny[1]


def test_fine_tuning_is_training_on_one_task_after_the_other(tiny: tuple[Path, dict[str, Any]]) -> None:
    """Its first task put through plain PyTorch."""
    data = load("digits")
    tasks = room.permuted(data, FEW, 3)
    model = room.model_of(TINY, FEW, tasks)
    method, _ = TINY.sequence(TUNED, FEW)
    first: Any = tb.fit(model, tasks[0].train, method, seed=3)
    w1, b1, w2, b2, w3, b3 = first.weights_MD[0].split([6 * 64, 6, 5 * 6, 5, 10 * 5, 10])
    for task, expected in zip(tasks, tiny[1][PERMUTED][TUNED]["accuracy"][0], strict=True):
        inputs, targets = task.test
        hidden = (inputs @ w1.view(6, 64).T + b1).relu()
        logits = (hidden @ w2.view(5, 6).T + b2).relu() @ w3.view(10, 5).T + b3
        assert float((logits.argmax(1) == targets).double().mean()) == pytest.approx(expected)


def test_tasks_are_the_same_rows_with_pixels_in_another_order() -> None:
    data = load("digits")
    first, second = room.permuted(data, FEW, 3)
    assert torch.equal(first.test[0], data.test.inputs[:60].flatten(1))
    assert torch.equal(first.train[0].sort(1).values, second.train[0].sort(1).values)
    assert not torch.equal(first.train[0], second.train[0])
    assert torch.equal(first.train[1], second.train[1])
    again, other = (room.permuted(data, FEW, seed)[1] for seed in (3, 4))
    assert torch.equal(again.train[0], second.train[0])
    assert not torch.equal(other.test[0], second.test[0])


def test_split_tasks_have_two_classes_and_a_head_each() -> None:
    data = load("digits")
    for t, task in enumerate(room.split(data, FEW, 3)):
        (inputs, heads), targets = task.test
        assert (heads == t).all()
        own = data.test.targets // 2 == t
        assert torch.equal(inputs, data.test.inputs[own].flatten(1)[:60])
        assert torch.equal(targets, data.test.targets[own][:60] - 2 * t)


def test_every_recipe_is_of_two_sequences() -> None:
    for recipe in EXPERIMENT.recipes.values():
        assert recipe.split.tasks == 5  # of ten classes
        for scenario in (recipe.permuted, recipe.split):
            methods = [recipe.sequence(kind, scenario) for kind in KINDS]
            assert [more.get("coreset") is not None for _, more in methods] == [k in {RANDOM, CENTRES} for k in KINDS]
            assert methods[KINDS.index(VCL)][0].kl_weight == 1.0


LEVELS = {VCL: 0.94, RANDOM: 0.96, CENTRES: 0.97, DIAGONAL: 0.8, KRONECKER: 0.9, TUNED: 0.6}


def made_up(**changes: float) -> dict[str, Any]:
    """Results of one seed: the average after five tasks of each kind is its level."""
    levels = {**LEVELS, **{kind: changes[name] for kind, name in NAMED.items() if name in changes}}
    now = changes.get("now", 0.97)
    actual = {}
    for kind, level in levels.items():
        table: list[list[float | None]] = [[None] * 5 for _ in range(5)]
        for t in range(5):
            for s in range(min(t + 2, 5)):
                table[t][s] = now if s == t else level if s < t else 0.1
        table[4] = [*[(5 * level - now) / 4] * 4, now]
        actual[kind] = {"accuracy": table, "backward": level - now, "forward": 0.0, "seconds": 3.0}
    return {PERMUTED: actual, SPLIT: copy.deepcopy(actual)}


NAMED = {VCL: "vcl", RANDOM: "random", CENTRES: "centres", DIAGONAL: "ewc", KRONECKER: "kron", TUNED: "tuned"}


def three(**changes: float) -> list[dict[str, Any]]:
    """Three seeds, with a little noise on every accuracy."""
    rng = np.random.default_rng(0)
    results = [made_up(**changes) for _ in range(3)]
    for result in results:
        for kinds in result.values():
            for actual in kinds.values():
                actual["accuracy"] = [
                    [v if v is None else v + rng.normal(0, 1e-4) for v in row] for row in actual["accuracy"]
                ]
                actual["backward"] += rng.normal(0, 1e-4)
    return results


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ({}, ()),
        ({"ewc": 0.5}, ("diagonal Laplace (EWC) above that of fine-tuning",)),
        ({"ewc": 0.95, "kron": 0.96}, ("of VCL above that of diagonal",)),
        ({"kron": 0.7}, ("Kronecker Laplace above that of diagonal",)),
        ({"random": 0.93}, ("random coreset above that of VCL", "coreset at most 2 points")),
        ({"centres": 0.935}, ("k-centre coreset above that of VCL", "coreset at most 2 points")),
        ({"vcl": 0.89}, ("VCL at most 2 points",)),
        (
            {"vcl": 0.59, "ewc": 0.7},
            ("of VCL above that of fine-tuning", "of VCL above that of diagonal", "VCL at most"),
        ),
    ],
)
def test_every_part_can_fail(change: dict[str, float], failing: tuple[str, ...]) -> None:
    actual = room.summarise(three(**change)).verdict
    refuted = [part.statement for part in actual.parts if part.outcome == "does not hold"]
    assert actual.outcome == ("does not hold" if failing else "holds")
    assert len(actual.parts) == 2 * 11
    assert all(any(text in statement for text in failing) for statement in refuted)
    for text in failing:
        assert any(text in statement for statement in refuted)


@pytest.mark.parametrize("change", [{"tuned": 0.95, "now": 0.97}, {"now": 0.85, "tuned": 0.5}])
def test_without_forgetting_or_learning_there_is_nothing_to_compare(change: dict[str, float]) -> None:
    assert room.summarise(three(**change)).verdict.outcome == "inconclusive"


def test_one_seed_is_inconclusive() -> None:
    assert room.summarise([made_up()]).verdict.outcome == "inconclusive"


def test_tables_and_figure_hold_the_means() -> None:
    findings = room.summarise([made_up(), made_up(vcl=0.92)])
    averages, transfers = (findings.tables[place].markdown() for place in (0, 1))
    assert "0.9300 ± 0.0100" in averages
    assert "0.933" in averages
    assert "| fine-tuning | 0.9700 ± 0.0000 | -0.3700 ± 0.0000 |" in transfers.replace("−", "-")
    axes = findings.figures[0].image.axes  # type: ignore[union-attr]
    drawn = np.asarray(axes[0].lines[0].get_xydata())[:, 1]
    expected = [0.97, *((0.97 + t * 0.93) / (t + 1) for t in range(1, 4)), 0.93]
    np.testing.assert_allclose(drawn, expected)
    np.testing.assert_allclose(np.asarray(axes[2].lines[0].get_xydata())[:, 1], [0.97, 0.93, 0.93, 0.93, 0.92])

"""`compression`: a tiny run, and every part of the verdict from made-up numbers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from torchbayes.data import load
from torchbayes_experiments import get
from torchbayes_experiments.variational.compression import (
    CONVOLUTIONAL,
    DENSE,
    DROPOUT,
    GHS,
    GNJ,
    GROUPS,
    MODE,
    PUBLISHED,
    QUICK,
    SINGLE,
    NetworkRecipe,
    error_of,
    run,
    speed,
    summarise,
)

TINY = replace(
    QUICK,
    data="digits",
    train_size=200,
    dense=NetworkRecipe(hidden=(12, 8), epochs=3, single=2, mode=3),
    shares=(0.5, 0.2),
    draws=2,
    rows=20,
    repeats=2,
)


def test_a_tiny_run_gives_all_numbers_and_goes_on_from_its_files(tmp_path: Any) -> None:
    actual = run(TINY, 0, tmp_path)
    assert actual == run(TINY, 0, tmp_path)
    assert list(actual) == [DENSE]
    for method in (*GROUPS, *SINGLE):
        one = actual[DENSE][method]
        assert 0 <= one["mean_error"] <= 100
        assert ("compressed" in one) == (method in {*GROUPS, DROPOUT})
        kept = [point[0] for point in one["curve"][:2]]
        assert kept == sorted(kept, reverse=True)
    own = actual[DENSE][GNJ]["compressed"]
    assert own["before"] == 4 * (64 * 12 + 12 + 12 * 8 + 8 + 8 * 10 + 10)
    assert own["difference"] < 1e-4
    assert own["bytes"] < own["before"]
    assert set(actual[DENSE][GHS]["noise"]) == {"1", "3", "5"}
    findings = summarise([actual, copy.deepcopy(actual)])
    assert len(findings.tables) == len(findings.figures) == 2


def test_errors_and_speeds_are_of_the_networks() -> None:
    data = load("digits", train_size=50)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        net[1].weight.zero_()  # type: ignore[union-attr]
        net[1].bias.copy_(torch.arange(10.0))  # type: ignore[union-attr]
    assert error_of(net, data) == pytest.approx(100 * float((data.test.targets != 9).double().mean()))
    slow = nn.Sequential(nn.Flatten(), nn.Linear(64, 3000), nn.Linear(3000, 3000), nn.Linear(3000, 10))
    assert speed(slow, net, data.test.inputs[:256], repeats=5) > 2


def made_up() -> list[dict[str, Any]]:
    """Numbers of three seeds under which every part holds."""
    results = []
    for seed in range(3):
        actual: dict[str, Any] = {}
        for network in (DENSE, CONVOLUTIONAL):
            actual[network] = {MODE: {"curve": [[1000, 5.0 + 0.01 * seed], [100, 50.0]]}}
            for method in GROUPS:
                mark, wobble = PUBLISHED[network, method], 0.01 * seed
                actual[network][method] = {
                    "mean_error": mark.error - 0.3 - wobble,
                    "curve": [[500, 3.0], [300, mark.error - 0.2]],
                    "compressed": {
                        "error": mark.error - 0.2 - wobble,
                        "rounded_error": mark.error - 0.1 - wobble,
                        "rate": mark.rate + 1 + wobble,
                        "bits": mark.bits + 1 + wobble,
                        "bytes": 1000.0,
                        "before": 1000.0 * (mark.bits + wobble),
                        "difference": 1e-7 * (1 + wobble),
                        "faster": 3.0 + wobble,
                    },
                }
        results.append(actual)
    return results


def test_every_part_holds_where_it_should() -> None:
    assert {part.outcome for part in summarise(made_up()).verdict.parts} == {"holds"}
    assert len(summarise(made_up()).verdict.parts) == 2 * 2 * 9


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rounded_error", 9.0, "error at most the published"),
        ("rate", 2.0, "times fewer weights"),
        ("bits", 3.0, "times fewer bits"),
        ("error", 9.0, "pruning costs less"),
        ("rounded_error", 9.0, "rounding costs less"),
        ("difference", 0.1, "the same outputs"),
        ("bytes", 1e9, "its file is at least"),
        ("faster", 0.5, "forward pass is faster"),
    ],
)
def test_a_part_fails_by_its_own_number(key: str, value: float, said: str) -> None:
    results = made_up()
    for seed, actual in enumerate(results):
        actual[DENSE][GNJ]["compressed"][key] = value * (1 + 0.001 * seed)
    against = [part.statement for part in summarise(results).verdict.parts if part.outcome == "does not hold"]
    assert any(said in statement and GNJ in statement and DENSE in statement for statement in against)


def test_pruning_by_magnitude_is_compared_at_as_many_weights() -> None:
    results = made_up()
    for actual in results:
        actual[DENSE][MODE]["curve"] = [[1000, 0.5], [100, 1.0]]
    against = [part.statement for part in summarise(results).verdict.parts if part.outcome == "does not hold"]
    assert against == [f"{DENSE}, {m}: at as many weights it errs less than pruning by magnitude" for m in GROUPS]


def test_the_scales_are_there() -> None:
    experiment = get("compression")
    assert list(experiment.recipes) == ["quick", "small", "paper"]
    assert experiment.recipe("quick").convolutional is None

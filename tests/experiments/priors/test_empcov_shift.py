"""`empcov_shift`: rows, shifts and models against direct computation, and every verdict from made-up numbers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.oracles import assert_close
from torchbayes_experiments import get
from torchbayes_experiments.priors.empcov_shift import (
    DEAD,
    EMPCOV,
    METHODS,
    MODE,
    NOISE,
    NORMAL,
    QUICK,
    ShiftRecipe,
    along_nothing,
    model_of,
    rows,
    run,
    shifted,
    summarise,
)

TINY = replace(QUICK.dead, train_size=60, hidden=(6,), steps=12, burn_in=6, epochs=4, test_rows=40, noise=(0.0, 2.0))


def test_added_pixels_are_dead_and_noise_comes_to_them_alone() -> None:
    train, test = rows(TINY, seed=1)
    assert train.inputs.shape == (60, 64 + 40)
    assert (train.inputs[:, 64:] == 0).all()
    assert (test.inputs[:, 64:] == 0).all()
    one, two = (shifted(TINY, test.inputs, level, seed=1) - test.inputs for level in (1.0, 2.0))
    assert (one[:, :64] == 0).all()
    assert_close(two, 2 * one, rtol=1e-6)
    assert_close(one[:, 64:].std(), 1.0, rtol=0.1)
    everywhere = shifted(replace(TINY, dead=0), test.inputs, 1.0, seed=1) - test.inputs
    assert_close(everywhere.std(), 1.0, rtol=0.1)


def test_both_priors_have_the_same_mean_variance_and_the_stated_one_without_data() -> None:
    problem = replace(TINY, jitter=1e-8, prior_scale=0.2)
    train, _ = rows(problem, seed=1)
    stds = {method: model_of(problem, method, train).prior.stds() for method in METHODS}
    assert_close(stds[NORMAL], torch.full_like(stds[NORMAL], 0.2))
    first = stds[EMPCOV][: 6 * 104]
    assert_close(first.square().mean(), 0.04 * 60 / 59, rtol=1e-4)  # by rows less one, as the published formula
    assert_close(first.view(6, 104)[:, 64:], torch.full((6, 40), 1e-4), rtol=1e-6)
    assert_close(stds[EMPCOV][6 * 104 :], torch.full_like(stds[EMPCOV][6 * 104 :], 0.2))


def test_weights_along_no_data_are_found() -> None:
    train, _ = rows(TINY, seed=1)
    model = model_of(TINY, NORMAL, train)
    weights = torch.zeros(1, model.layout.size)
    weights[0, : 6 * 104].view(6, 104)[:, 64:] = 3.0
    actual = along_nothing(tb.Point(model, weights), train.inputs)
    rank = int(torch.linalg.matrix_rank(train.inputs.double()))
    assert actual["directions"] == 104 - rank
    assert_close(actual["weights"], 3.0 * (40 / actual["directions"]) ** 0.5, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*should not be trusted")
def test_a_tiny_run_gives_all_numbers_and_goes_on_from_its_files(tmp_path: Any) -> None:
    images = replace(TINY, data="digits", dead=0)
    recipe = ShiftRecipe(images, TINY)
    actual = run(recipe, 0, tmp_path)
    assert actual == run(recipe, 0, tmp_path)
    for problem in (NOISE, DEAD):
        for method in METHODS:
            one = actual[problem][method]
            assert len(one["accuracy"]) == len(one["nll"]) == 2
            assert one["prior"] == (1e-2 if method == EMPCOV else TINY.prior_scale)
    assert actual[DEAD][MODE]["accuracy"][0] > 0.1
    findings = summarise([actual, actual])
    assert len(findings.tables) == 3
    assert findings.verdict.outcome in {"inconclusive", "does not hold"}


def made_up(**changed: Any) -> list[dict[str, Any]]:
    """Numbers of three seeds under which the claim holds, some of them changed in both problems."""
    source, results = np.random.default_rng(0), []
    for _ in range(3):
        own: dict[str, Any] = {"noise": [0.0, 1.0]}
        for method, last in ((MODE, 0.7), (NORMAL, 0.4), (EMPCOV, 0.68)):
            prior = 0.01 if method == EMPCOV else 0.1
            own[method] = {
                "accuracy": [0.9, last + 0.01 * source.random()],
                "nll": [0.3, 1.0],
                "weights": 0.0 if method == MODE else prior * 1.01,
                "directions": 7,
                "prior": prior,
            }
            own[method].update(changed.get({MODE: "mode", NORMAL: "normal", EMPCOV: "empcov"}[method], {}))
        results.append({NOISE: own, DEAD: copy.deepcopy(own)})
    return results


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({}, []),
        ({"normal": {"accuracy": [0.8, 0.4]}}, [0]),
        ({"normal": {"accuracy": [0.9, 0.68]}}, [1, 2]),
        ({"empcov": {"accuracy": [0.9, 0.45]}}, [2]),
        ({"normal": {"weights": 0.05}}, [3]),
        ({"empcov": {"weights": 0.02}}, [4]),
    ],
)
def test_each_part_of_the_verdict_can_fail(changed: Any, failing: list[int]) -> None:
    results = made_up(**changed)
    actual = [place for place, part in enumerate(summarise(results).verdict.parts) if part.outcome != "holds"]
    assert actual == [*failing, *(5 + place for place in failing)]
    assert (summarise(results).verdict.outcome == "holds") == (not failing)


def test_it_is_listed() -> None:
    assert get("empcov_shift").recipe("quick") is QUICK

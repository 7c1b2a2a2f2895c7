"""`temperature`: views, models and samplers against direct computation, and every verdict from made-up numbers."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.oracles import assert_close
from torchbayes.data import load
from torchbayes.model import Batch
from torchbayes_experiments import get
from torchbayes_experiments.references.temperature import (
    CYCLICAL,
    FULL,
    METHODS,
    PLAIN,
    QUICK,
    ROWS,
    SMALL,
    VIEWS,
    TemperatureProblem,
    TemperatureRecipe,
    model_of,
    pooled,
    rows_of,
    run,
    summarise,
    views,
)

DIGITS = TemperatureProblem("digits", "digits", 0.4, train_size=40, shift=1, pool=1, hidden=(5,), test_rows=60)
TINY = TemperatureRecipe(
    (DIGITS,),
    tb.HMC(2, 14, 10, max_leapfrogs=8),
    temperatures=(0.1, 1.0),
    chains=2,
    cycle=10,
    cycles=8,
    left_out=4,
    few=4,
)


def test_views_are_shifted_and_what_enters_has_the_least_value() -> None:
    images = torch.arange(1.0, 33.0).view(2, 1, 4, 4)
    same, down, up, right, left = (one.view(2, 4, 4) for one in views(images, 1))
    first = images.view(2, 4, 4)
    assert same.equal(first)
    assert down[:, 1:].equal(first[:, :-1])
    assert up[:, :-1].equal(first[:, 1:])
    assert right[:, :, 1:].equal(first[:, :, :-1])
    assert left[:, :, :-1].equal(first[:, :, 1:])
    for entered in (down[:, 0], up[:, -1], right[:, :, 0], left[:, :, -1]):
        assert (entered == 1).all()


def test_rows_are_all_views_of_the_images_that_the_seed_draws() -> None:
    problem = replace(DIGITS, pool=2, shift=2)
    data = load("digits", train_size=40, seed=3)
    plain, more = (rows_of(problem, seed=3, augmented=augmented) for augmented in (False, True))
    assert (plain.views, more.views) == (1, 5)
    assert plain.train.inputs.equal(pooled(data.train.inputs, 2))
    assert more.train.inputs.shape == (200, 1, 4, 4)
    assert more.train.inputs[:40].equal(plain.train.inputs)
    assert more.train.targets.equal(data.train.targets.repeat(5))
    # a shift by the side of the square is one of the pooled image
    assert more.train.inputs[40:80, :, 1:].equal(plain.train.inputs[:, :, :-1])
    assert more.test.inputs.equal(plain.test.inputs)
    assert len(plain.test.targets) == 60


def test_the_joint_density_is_that_of_images_with_averaged_views() -> None:
    """Against the definition by a `Weighted` likelihood whose rows count 1/k: a constant apart, at every weight."""
    rows = rows_of(DIGITS, seed=0, augmented=True)
    net = tb.networks.build("mlp", (1, 8, 8), 10, hidden=(5,))
    categorical = tb.likelihoods.Categorical()
    for heat in (0.1, 1.0, 3.0):
        defined = tb.Model(net, tb.likelihoods.Weighted(categorical), tb.priors.Normal(0.4), temperature=heat)
        shares = torch.full((200,), 1 / 5)
        pairs = (
            (defined, Batch(rows.train.inputs, (rows.train.targets, shares))),
            (model_of(DIGITS, rows, heat), Batch(*rows.train)),
        )
        changes = []
        for at in torch.randn(4, defined.layout.size, generator=torch.Generator().manual_seed(1)):
            joint = [partial(model.log_joint, batch=batch, num_data=200) for model, batch in pairs]
            (expected, value), (actual, other) = (torch.func.grad_and_value(one)(at) for one in joint)
            assert_close(actual, expected, rtol=1e-4, atol=1e-3)
            changes.append(other - value)
        assert_close(torch.stack(changes), changes[0].expand(4), rtol=1e-5)


def test_copies_in_the_place_of_shifts_change_nothing() -> None:
    """The posterior is then that of the images alone, and so is every step of SGHMC at its step size."""
    plain = rows_of(DIGITS, seed=0, augmented=False)
    copies = plain._replace(
        train=tb.data.Pair(plain.train.inputs.repeat(5, 1, 1, 1), plain.train.targets.repeat(5)), views=5
    )
    ends = []
    for rows in (plain, copies):
        method = replace(TINY.sghmc(len(rows.train.targets)), batch_size=None, steps=10, burn_in=0)
        model = model_of(DIGITS, rows, 0.5)
        ends.append(tb.fit(model, rows.train, method, seed=0, callbacks=()).sample(2))  # type: ignore[union-attr]
    assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-5)


def test_cycles_of_sghmc_end_in_one_draw_each() -> None:
    method = TINY.sghmc(40)
    assert (method.steps, method.burn_in) == (80, 40)
    assert method.step_size == pytest.approx(0.03 / 40)
    rows = rows_of(DIGITS, seed=0, augmented=False)
    posterior = tb.fit(model_of(DIGITS, rows, 1.0), rows.train, method, seed=0, callbacks=())
    assert posterior.default_draws == 2 * 4


@pytest.mark.filterwarnings("ignore:.*should not be trusted")
def test_a_tiny_run_is_a_direct_fit_and_goes_on_from_its_files(tmp_path: Any) -> None:
    actual = run(TINY, 1, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(before) == 2 * 2 * 2
    assert run(TINY, 1, tmp_path) == actual
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == before
    data = load("digits", train_size=40, seed=1)
    net = tb.networks.build("mlp", (1, 8, 8), 10, hidden=(5,))
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(0.4), temperature=0.1)
    posterior = tb.fit(model, data.train, TINY.hmc, seed=1, callbacks=())
    expected = tb.evaluate(posterior, tb.data.Pair(*(part[:60] for part in data.test))).metrics
    scores = actual["digits"][PLAIN][FULL][0]
    for metric in ("accuracy", "nll", "ece"):
        assert scores[metric] == pytest.approx(expected[metric], rel=1e-5)
    few = tb.evaluate(posterior, tb.data.Pair(*(part[:60] for part in data.test)), draws=4).metrics["nll"]
    assert scores["few"] == pytest.approx(few, rel=1e-5)
    assert scores["few"] != scores["nll"]
    findings = summarise([actual, actual])
    assert len(findings.tables) == 6
    assert len(findings.verdict.parts) == 13


def made_up(change: Any = None) -> list[dict[str, Any]]:
    """Numbers of three seeds under which the claim holds, changed by a function of one seed's."""
    source, results = np.random.default_rng(0), []
    for _ in range(3):
        one: dict[str, Any] = {"temperatures": [0.1, 1.0, 3.0]}
        for what, nll, accuracy in (
            (PLAIN, (0.62, 0.61, 0.7), (0.76, 0.77, 0.75)),
            (VIEWS, (0.5, 0.6, 0.8), (0.8, 0.77, 0.7)),
        ):
            one[what] = {
                method: [
                    {"nll": n, "accuracy": a, "ece": 0.02, "few": n + 0.05, "functions": {"median": 1.02}}
                    for n, a in zip(nll, accuracy, strict=True)
                ]
                for method in METHODS
            }
        if change is not None:
            change(one)
        for what in ROWS:  # a little noise, so that no spread is zero
            for method in METHODS:
                for score in one[what][method]:
                    score.update({key: score[key] + source.normal(0, 1e-5) for key in ("nll", "accuracy")})
                    score["functions"] = {"median": score["functions"]["median"] + source.normal(0, 1e-5)}
        results.append({"digits": one})
    return results


def setting(what: str, method: str, place: int, **scores: Any) -> Any:
    """Return a function that changes scores at one temperature."""
    return lambda one: one[what][method][place].update(copy.deepcopy(scores))


@pytest.mark.parametrize(
    ("change", "failing", "outcome"),
    [
        (None, [], "holds"),
        (setting(PLAIN, FULL, 1, nll=0.66), [1], "does not hold"),  # more than the margin behind T = 0.1
        (setting(PLAIN, FULL, 2, nll=0.57), [1], "does not hold"),  # or T = 3
        (setting(VIEWS, FULL, 0, nll=0.595), [2], "does not hold"),  # ahead of T = 1, but within the margin
        (setting(VIEWS, FULL, 2, nll=0.505), [2], "does not hold"),  # T = 3 is nearly as good
        (setting(PLAIN, CYCLICAL, 0, nll=0.45), [7, 9], "does not hold"),  # T = 0.1 helps without augmentation too
        (setting(PLAIN, FULL, 1, accuracy=0.74), [4], "does not hold"),
        (setting(VIEWS, FULL, 0, accuracy=0.773), [5], "does not hold"),
        (setting(VIEWS, CYCLICAL, 0, accuracy=0.75), [11, 12], "does not hold"),
        (setting(VIEWS, FULL, 0, functions={"median": 1.3}), [0], "inconclusive"),
        (setting(VIEWS, FULL, 0, functions={"median": math.nan}), [0], "inconclusive"),
        (setting(VIEWS, CYCLICAL, 0, functions={"median": 1.3}), [], "holds"),
    ],
)
def test_each_part_of_the_verdict_can_fail(change: Any, failing: list[int], outcome: str) -> None:
    actual = summarise(made_up(change)).verdict
    assert [place for place, part in enumerate(actual.parts) if part.outcome != "holds"] == failing
    assert actual.outcome == outcome


def test_tables_hold_the_scores_of_every_temperature() -> None:
    nll, accuracy, _, few, chains, published = summarise(made_up()).tables
    assert "| digits | augmentation | HMC | 0.5000 ± 0.0000 | 0.6000 ± 0.0000 | 0.8000 ± 0.0000 |" in nll.markdown()
    assert "| digits | no augmentation | cyclical SGHMC | 0.7600 ± 0.0000 |" in accuracy.markdown()
    assert "| digits | augmentation | HMC | 0.5500 ± 0.0000 |" in few.markdown()
    assert "| digits | augmentation | HMC | 1.020 | 1.020 | 1.020 |" in chains.markdown()
    assert "| 0.3 | 0.830 | 0.378 | 0.020 |" in published.markdown()


def test_it_is_listed() -> None:
    assert get("temperature").recipe("quick") is QUICK
    assert SMALL.temperatures == (0.03, 0.1, 0.3, 1.0, 3.0)


@pytest.mark.parametrize("scale", ["quick", "small", "paper"])
def test_few_draws_can_be_taken_from_all_chains(scale: str) -> None:
    recipe = get("temperature").recipe(scale)
    assert recipe.few % recipe.hmc.chains == recipe.few % recipe.chains == 0
    assert recipe.few <= recipe.hmc.chains * (recipe.hmc.steps - recipe.hmc.burn_in)

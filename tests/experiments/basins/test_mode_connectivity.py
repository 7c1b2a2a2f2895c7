"""Mode connectivity: a tiny run against direct computation, and every part of the verdict from made-up scores."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import torchbayes as tb
from torchbayes.data import load
from torchbayes.geometry import align, barrier
from torchbayes_experiments.basins.mode_connectivity import EXPERIMENT, report, run
from torchbayes_experiments.basins.mode_connectivity.run import (
    BEFORE,
    BEZIER,
    BY_ACTIVATIONS,
    BY_WEIGHTS,
    CHAIN,
    CURVES,
    PAPER,
    SEGMENT,
    SMALL,
    Alignment,
    Connection,
    ModeConnectivityRecipe,
)
from torchbayes_experiments.shared.classifiers import classifier, decay_prior

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")  # curves of few steps

STEPS: dict[str, Any] = {"epochs": 3, "batch_size": 16, "plan": "loop"}
ABOUT: dict[str, Any] = {"data": "digits", "decay": 1e-3, "ends": tb.MAP(members=2, **STEPS)}
TINY = ModeConnectivityRecipe(
    images=Connection(
        network="small_cnn",
        train_size=64,
        test_rows=50,
        points=5,
        bends=tb.Curve(**STEPS),
        surface_points=3,
        surface_rows=20,
        **ABOUT,
    ),
    residual=Connection(
        network="preresnet20",
        train_size=16,
        test_rows=10,
        points=3,
        bends=tb.Curve(**{**STEPS, "epochs": 1}),
        **{**ABOUT, "ends": tb.MAP(members=2, **{**STEPS, "epochs": 1})},
    ),
    alignment=Alignment(
        network="mlp",
        hidden=(9, 8),
        train_size=64,
        test_rows=50,
        points=5,
        barrier_rows=30,
        activation_rows=40,
        **ABOUT,
    ),
    surface_seed=3,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("paths")
    return directory, run.run(TINY, 3, directory)


def about(task: Any) -> tuple[tb.Model, Any]:
    data = load(task.data, train_size=task.train_size, seed=3)
    prior = tb.priors.Normal((task.decay * task.train_size) ** -0.5)
    return classifier(task.network, data.input_shape, 10, prior=prior, hidden=task.hidden), data


def read(directory: Any, task: str, name: str, model: tb.Model) -> Any:
    return tb.load(directory / task / name / "posterior.safetensors", model)


def outputs(model: tb.Model, weights_D: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return tb.Point(model, weights_D[None]).functions()(inputs)[0].double()


@pytest.mark.parametrize("name", [SEGMENT, BEZIER, CHAIN])
def test_networks_on_paths_are_scored_by_their_weights(tiny, name):
    directory, actual = tiny
    assert TINY.images is not None
    model, data = about(TINY.images)
    first_D, last_D = read(directory, "images", "ends", model).weights_MD
    bend = {n: read(directory, "images", n, model).points_MPD[0, 1] for n in ("bezier", "chain")}
    own = actual["images"]["paths"][name]
    test, targets = data.test.inputs[:50], data.test.targets[:50]
    classes, at_zero = [], outputs(model, first_D, test).softmax(-1)
    for place, t in enumerate((0.0, 0.25, 0.5, 0.75, 1.0)):
        w = {
            SEGMENT: (1 - t) * first_D + t * last_D,
            BEZIER: (1 - t) ** 2 * first_D + 2 * t * (1 - t) * bend["bezier"] + t**2 * last_D,
            CHAIN: 2 * (t * bend["chain"] + (0.5 - t) * first_D)
            if t <= 0.5
            else 2 * ((t - 0.5) * last_D + (1 - t) * bend["chain"]),
        }[name]
        nll = cross_entropy(outputs(model, w, data.train.inputs), data.train.targets).item()
        assert own["nll"][place] == pytest.approx(nll, rel=1e-4)
        assert own["loss"][place] == pytest.approx(nll + 0.5e-3 * w.double().square().sum().item(), rel=1e-4)
        probs = outputs(model, w, test).softmax(-1)
        classes.append(probs.argmax(-1))
        assert own["error"][place] == pytest.approx((classes[-1] != targets).double().mean().item())
        assert own["test_nll"][place] == pytest.approx(cross_entropy(probs.log(), targets).item(), rel=1e-4)
        assert own["differs"][place] == pytest.approx((classes[-1] != classes[0]).double().mean().item())
        pair = cross_entropy(((probs + at_zero) / 2).log(), targets).item()
        assert own["pair_nll"][place] == pytest.approx(pair, rel=1e-4)
    assert actual["images"]["positions"] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_statistics_of_batch_norm_are_recalibrated_along_paths(tiny):
    directory, actual = tiny
    assert TINY.residual is not None
    model, data = about(TINY.residual)
    ends = read(directory, "residual", "ends", model)
    first_D, last_D = ends.weights_MD
    bend_D = read(directory, "residual", "bezier", model).points_MPD[0, 1]
    middle = {SEGMENT: 0.5 * first_D + 0.5 * last_D, BEZIER: 0.25 * first_D + 0.5 * bend_D + 0.25 * last_D}
    for name, weights_D in middle.items():
        network = tb.networks.build("preresnet20", (1, 8, 8), 10)
        network.load_state_dict(model.layout.split(weights_D), strict=False)
        for norm in network.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                norm.momentum = None  # a plain average over batches
        with torch.no_grad():
            for batch in data.train.inputs.split(16):
                network.train()(batch)
            nll = cross_entropy(network.eval()(data.train.inputs), data.train.targets)
        assert actual["residual"]["paths"][name]["nll"][1] == pytest.approx(nll.item(), rel=1e-3)
    assert actual["residual"]["surfaces"] == {}


def test_the_loss_over_the_plane_of_a_curve(tiny):
    directory, actual = tiny
    assert TINY.images is not None
    model, data = about(TINY.images)
    for name, shape in ((BEZIER, "bezier"), (CHAIN, "chain")):
        own = actual["images"]["surfaces"][name]
        first_D, bend_D, last_D = read(directory, "images", shape, model).points_MPD[0].double()
        u_D = (last_D - first_D) / (last_D - first_D).norm()
        v_D = (bend_D - first_D) - ((bend_D - first_D) @ u_D) * u_D
        v_D /= v_D.norm()
        for place, w in enumerate((first_D, last_D, bend_D)):
            expected = [((w - first_D) @ u_D).item(), ((w - first_D) @ v_D).item()]
            np.testing.assert_allclose(own["marks"][place], expected, atol=1e-4)
        middle_D = first_D + own["x"][1] * u_D + own["y"][2] * v_D
        nll = cross_entropy(outputs(model, middle_D.float(), data.train.inputs[:20]), data.train.targets[:20])
        assert own["loss"][2][1] == pytest.approx(nll.item() + 0.5e-3 * middle_D.square().sum().item(), rel=1e-3)
        curve = np.array(own["curve"])
        np.testing.assert_allclose(curve[[0, -1]], own["marks"][:2], atol=1e-4)
        half = np.array(own["marks"]).T @ ((0.25, 0.25, 0.5) if name == BEZIER else (0, 0, 1))
        np.testing.assert_allclose(curve[50], half, atol=1e-4)


def test_lines_between_aligned_perceptrons(tiny):
    directory, actual = tiny
    assert TINY.alignment is not None
    model, data = about(TINY.alignment)
    ends = read(directory, "alignment", "ends", model)
    rows = data.train.inputs[:30], data.train.targets[:30]
    test = data.test.inputs[:50], data.test.targets[:50]
    some = data.train.inputs[:40], data.train.targets[:40]
    matched = {
        BEFORE: ends,
        BY_WEIGHTS: align(model, ends, seed=3),
        BY_ACTIVATIONS: align(model, ends, method="activations", data=some, seed=3),
    }
    lines = actual["alignment"]["lines"]
    for name, pair in matched.items():
        first, second = pair.weights_MD
        expected = barrier(model, rows, first, second=second, points=5)
        np.testing.assert_allclose(lines[name]["nll"], expected.nll, rtol=1e-5)
        middle = outputs(model, 0.5 * first + 0.5 * second, test[0]).argmax(-1) != test[1]
        assert lines[name]["error"][2] == pytest.approx(middle.double().mean().item())
        assert lines[name]["height"] == pytest.approx(expected.height)
        np.testing.assert_allclose(lines[name]["nll"][::4], lines[BEFORE]["nll"][::4], rtol=1e-4)  # the same functions


def test_a_second_call_reads_what_is_there_and_surfaces_are_of_one_seed(tiny, tmp_path, monkeypatch):
    directory, actual = tiny
    assert TINY.images is not None
    images = run.on_paths(replace(TINY.images, surface_points=0), 3, directory / "images")
    assert images["paths"] == actual["images"]["paths"]
    seen = []
    monkeypatch.setattr(run, "on_paths", lambda task, seed, home: seen.append(task.surface_points) or {"paths": {}})
    run.run(replace(TINY, residual=None, alignment=None), 4, tmp_path)
    assert seen == [0]
    monkeypatch.setattr(run.tb.data, "load", None)
    assert run.run(TINY, 3, directory) == actual


def test_scores_of_averages():
    probs_TNK = torch.tensor([[[0.8, 0.2], [0.6, 0.4]], [[0.1, 0.9], [0.5, 0.5]], [[0.4, 0.6], [0.1, 0.9]]]).double()
    actual = run.scores(probs_TNK, torch.tensor([1, 0]))
    assert actual["error"] == [0.5, 0.0, 0.5]
    assert actual["differs"] == [0.0, 0.5, 1.0]
    assert actual["pair_error"] == [0.5, 0.0, 1.0]
    log = np.log
    np.testing.assert_allclose(actual["pair_nll"][1], -(log(0.55) + log(0.55)) / 2)
    assert actual["averages"]["2"]["error"] == 1.0
    np.testing.assert_allclose(actual["averages"]["2"]["nll"], -(log(0.4) + log(0.35)) / 2)
    np.testing.assert_allclose(actual["averages"]["3"]["nll"], -(log(1.7 / 3) + log(1.2 / 3)) / 2)
    assert run.spacings(25) == [(2, 24), (3, 12), (4, 8), (5, 6), (7, 4), (9, 3), (13, 2), (25, 1)]
    assert run.spacings(3) == [(2, 2), (3, 1)]


def test_recipes_have_a_middle_and_priors_of_their_decay():
    for recipe in (SMALL, PAPER):
        tasks = (recipe.images, recipe.residual, recipe.alignment)
        assert all(task is not None and task.points % 2 == 1 for task in tasks)
        assert recipe.images is not None
        scale = decay_prior(recipe.images.decay, 5000).scale
        assert 1 / (5000 * scale**2) == pytest.approx(recipe.images.decay)
        assert {name: method.shape for name, method in recipe.images.curves().items()} == {
            BEZIER: "bezier",
            CHAIN: "chain",
        }


def path(loss: float, error: float, **other: Any) -> dict[str, Any]:
    """Scores of three networks, with loss and error of the middle one."""
    scores = {
        "loss": [0.2, loss, 0.25],
        "nll": [0.1, loss - 0.1, 0.15],
        "error": [0.1, error, 0.11],
        "test_nll": [0.4, 0.38, 0.42],
        "differs": [0.0, 0.06, 0.1],
        "pair_error": [0.1, 0.095, 0.09],
        "pair_nll": [0.4, 0.36, 0.33],
        "averages": {"2": {"error": 0.09, "nll": 0.33}, "3": {"error": 0.088, "nll": 0.31}},
    }
    return {**scores, **other}


def made_up(task: str = "", name: str = "", **changes: Any) -> dict[str, Any]:
    """Scores in which everything claimed is so, but for the changes of one path."""
    on_paths: dict[str, Any] = {
        SEGMENT: path(2.0, 0.6),
        **{curve: path(0.22, 0.105) for curve in CURVES},
    }
    surface = {"x": [0, 1, 2], "y": [0, 1], "loss": [[0.1, 0.4, 0.2], [0.2, 0.3, 0.5]]}
    surface |= {"marks": [[0, 0], [2, 0], [1, 1]], "curve": [[0, 0], [1, 0.5], [2, 0]]}
    one = {"positions": [0.0, 0.5, 1.0], "paths": on_paths, "surfaces": dict.fromkeys(CURVES, surface)}
    line = {"nll": [0.01, 0.03, 0.02], "error": [0.02, 0.022, 0.021], "height": 0.015, "excess": 0.015}
    lines = {BEFORE: {"nll": [0.01, 0.9, 0.02], "error": [0.02, 0.3, 0.021], "height": 0.885, "excess": 0.885}}
    lines |= {name: dict(line) for name in (BY_WEIGHTS, BY_ACTIVATIONS)}
    actual: dict[str, Any] = {
        "images": one,
        "residual": {**copy.deepcopy(one), "surfaces": {}},
        "alignment": {"positions": one["positions"], "lines": lines},
    }
    actual = copy.deepcopy(actual)
    if task:
        target = actual[task]["lines" if task == "alignment" else "paths"]
        for key in [name] if name else list(target):
            target[key].update(changes)
    return actual


def jitter(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(1)

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(one) for key, one in value.items()}
        if isinstance(value, list):
            return [moved(one) for one in value]
        return value + rng.normal(0, 1e-6) if isinstance(value, float) else value

    return [{k: v if k == "positions" else moved(v) for k, v in result.items()} for result in results]


NO_GAIN = {"2": {"error": 0.09, "nll": 0.33}, "3": {"error": 0.12, "nll": 0.39}}
SOME_GAIN = {"2": {"error": 0.09, "nll": 0.33}, "3": {"error": 0.088, "nll": 0.35}}


@pytest.mark.parametrize(
    ("changes", "outcome", "open_parts"),
    [
        ({}, "holds", 0),
        ({"task": "images", "name": SEGMENT, "loss": [0.2, 0.7, 0.25]}, "does not hold", 1),
        ({"task": "images", "name": SEGMENT, "error": [0.1, 0.2, 0.11]}, "does not hold", 1),
        ({"task": "residual", "name": SEGMENT, "loss": [0.2, 0.7, 0.25]}, "does not hold", 1),
        ({"task": "images", "name": BEZIER, "loss": [0.2, 0.31, 0.25]}, "does not hold", 1),
        ({"task": "images", "name": CHAIN, "loss": [0.2, 0.31, 0.25]}, "does not hold", 1),
        ({"task": "images", "name": CHAIN, "loss": [0.2, 0.29, 0.25]}, "holds", 0),
        ({"task": "residual", "name": BEZIER, "error": [0.1, 0.121, 0.11]}, "does not hold", 1),
        ({"task": "residual", "name": BEZIER, "error": [0.1, 0.119, 0.11]}, "holds", 0),
        ({"task": "images", "name": CHAIN, "differs": [0.0, 0.04, 0.1]}, "does not hold", 1),
        ({"task": "images", "name": CHAIN, "pair_nll": [0.4, 0.37, 0.33]}, "does not hold", 1),
        ({"task": "images", "name": BEZIER, "averages": NO_GAIN}, "does not hold", 3),
        ({"task": "images", "name": BEZIER, "averages": SOME_GAIN}, "does not hold", 1),
        ({"task": "residual", "name": BEZIER, "averages": NO_GAIN}, "holds", 0),  # nothing is claimed of it
        ({"task": "alignment", "name": BEFORE, "height": 0.19}, "does not hold", 1),
        ({"task": "alignment", "name": BY_WEIGHTS, "height": 0.051}, "does not hold", 1),
        ({"task": "alignment", "name": BY_ACTIVATIONS, "height": 0.051}, "does not hold", 1),
        ({"task": "alignment", "name": BY_ACTIVATIONS, "error": [0.02, 0.031, 0.021]}, "does not hold", 1),
        ({"task": "images", "name": SEGMENT, "error": [0.1, 0.6, 0.16]}, "inconclusive", 1),
        ({"task": "alignment", "name": BEFORE, "error": [0.05, 0.3, 0.02]}, "inconclusive", 1),
    ],
)
def test_every_verdict_is_reached(changes, outcome, open_parts):
    verdict = report.summarise(jitter([made_up(**changes)] * 3)).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in verdict.parts) == open_parts
    assert len(verdict.parts) == 30


def test_tables_and_figures():
    findings = report.summarise(jitter([made_up(), made_up()]))
    tables: Any = findings.tables
    on_images, averages, on_residual, _, alignment = tables
    assert [row[0] for row in on_images.rows] == [row[0] for row in on_residual.rows] == ["ends", SEGMENT, *CURVES]
    ends, straight = on_images.rows[:2]
    assert [cell[0] for cell in ends[1:]] == pytest.approx([0.2, 0.25, 10, 11, 0.15], abs=1e-3)
    assert [cell[0] for cell in straight[1:]] == pytest.approx([0.2, 2.0, 10, 60, 1.9], abs=1e-3)
    assert [cell[0] for cell in averages.rows[0][2:]] == pytest.approx([0.41, 0.38, 0.33, 0.31], abs=1e-3)
    assert [cell[0] for cell in averages.rows[1][2:]] == pytest.approx([10.5, 10, 9, 8.8], abs=1e-3)
    assert [cell[0] for cell in alignment.rows[0][1:]] == pytest.approx([0.885, 0.885, 2.05, 30], abs=1e-3)
    titles = [figure.title for figure in findings.figures]
    assert len(titles) == 7
    assert sum("plane" in title for title in titles) == 2
    alone = report.summarise([{"alignment": made_up()["alignment"]}])
    assert alone.verdict.outcome == "inconclusive"
    assert len(alone.figures) == 1


def test_the_experiment_is_listed():
    assert tb.experiments.registry.get("mode_connectivity") is EXPERIMENT

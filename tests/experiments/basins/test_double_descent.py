"""The double descent experiment: a tiny run against direct computation, and every part of the verdict both ways."""

import copy
from dataclasses import replace

import numpy as np
import pytest

import torchbayes as tb
from torchbayes import networks
from torchbayes.data import load
from torchbayes_experiments.basins import double_descent as room
from torchbayes_experiments.basins.double_descent import EXPERIMENT, METHODS, DescentRecipe
from torchbayes_experiments.shared.classifiers import shuffled

# runs this short learn nothing
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")

TINY = DescentRecipe(
    data="digits",
    network="mlp",
    widths=(2, 4, 9),
    peak=4,
    train_size=200,
    members=2,
    epochs=4,
    batch_size=50,
    rank=2,
    draws=2,
    test_rows=80,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("descent")
    return directory, room.run(TINY, 3, directory)


def direct(directory, method, functions):
    """Class probabilities (S, B, K) of the draws of width 4 by plain PyTorch, and the rows they are of."""
    data = load("digits", train_size=200, seed=3)
    labels = shuffled(data.train.targets, 0.2, seed=3)
    network = networks.mlp((1, 8, 8), 10, hidden=(4,))
    prior = tb.priors.Normal((3e-4 * 200) ** -0.5)
    posterior = tb.load(
        directory / "width_4" / method / "posterior.safetensors", tb.Model(network, tb.likelihoods.Categorical(), prior)
    )
    rows = {"train": (data.train.inputs, labels), "test": (data.test.inputs[:80], data.test.targets[:80])}
    weights = posterior.functions(functions, seed=3).weights_SD.split([4 * 64, 4, 10 * 4, 10], dim=1)
    actual = {}
    for name, (inputs, targets) in rows.items():
        first, first_bias, last, last_bias = (part[:, None] for part in weights)
        hidden = inputs.flatten(1) @ first.reshape(-1, 4, 64).mT + first_bias
        logits = hidden.relu() @ last.reshape(-1, 10, 4).mT + last_bias
        actual[name] = (logits.double().softmax(-1), targets)
    return actual


def scores(probs, targets):
    """Error and NLL of class probabilities (B, K)."""
    wrong = (probs.argmax(-1) != targets).double().mean()
    return float(wrong), -float(probs.gather(1, targets[:, None]).log().mean())


@pytest.mark.parametrize(("method", "alone", "functions"), [("ensemble", "SGD", 2), ("MultiSWAG", "SWAG", 4)])
def test_scores_are_those_of_the_saved_posteriors(tiny, method, alone, functions):
    directory, actual = tiny
    for rows, (probs, targets) in direct(directory, method.lower(), functions).items():
        member = [scores(probs[m::2].mean(0), targets) for m in range(2)]
        for at, measure in enumerate(("error", "nll")):
            together, by_itself = (actual["scores"][name][rows][measure][1] for name in (method, alone))
            assert together == pytest.approx(scores(probs.mean(0), targets)[at], rel=1e-5)
            assert by_itself == pytest.approx(np.mean([one[at] for one in member]), rel=1e-5)
            if rows == "test":
                growing = actual["averaged"][method][measure][1]
                assert growing == pytest.approx([member[0][at], together], rel=1e-5)
    assert actual["weights"] == [64 * w + w + 10 * w + 10 for w in (2, 4, 9)]


def test_labels_are_shuffled_as_the_recipe_says(tiny):
    targets = load("digits", train_size=200, seed=3).train.targets
    wrong = (shuffled(targets, 0.2, seed=3) != targets).double().mean()
    assert tiny[1]["wrong"] == pytest.approx(float(wrong))
    assert 0.1 < tiny[1]["wrong"] <= 0.2  # of the shuffled fifth some keep their class


def test_an_interrupted_run_says_what_is_finished_and_goes_on(tiny, tmp_path, monkeypatch):
    score = room.of_width

    def fails_at_four(recipe, width, *args, **kwargs):
        if width == 4:
            raise KeyboardInterrupt
        return score(recipe, width, *args, **kwargs)

    monkeypatch.setattr(room, "of_width", fails_at_four)
    with pytest.raises(KeyboardInterrupt):
        room.run(TINY, 3, tmp_path)
    text = (tmp_path / "so_far.md").read_text()
    assert "1 of 3 widths are finished. Not finished: widths 4, 9; there is no verdict." in text
    assert f"| 2 | {tiny[1]['scores']['SGD']['train']['error'][0]:.3f} |" in text
    done = (tmp_path / "width_2" / "scores.json").read_bytes()
    monkeypatch.setattr(room, "of_width", score)
    assert room.run(TINY, 3, tmp_path) == tiny[1]
    assert (tmp_path / "width_2" / "scores.json").read_bytes() == done
    assert "All widths are finished." in (tmp_path / "so_far.md").read_text()


def test_both_fits_have_the_same_budget():
    for recipe in (*EXPERIMENT.recipes.values(), TINY):
        ensemble, swag = recipe.ensemble(), recipe.multiswag()
        for setting in ("members", "epochs", "batch_size", "optimizer", "plan"):
            assert getattr(ensemble, setting) == getattr(swag, setting)
        assert swag.averaging_lr == recipe.averaging_lr
    with pytest.raises(ValueError, match=r"`widths` must rise .* got \(2, 4, 9\), 2 and 9"):
        replace(TINY, peak=9)


def test_every_width_builds_its_network():
    for recipe in EXPERIMENT.recipes.values():
        shape = (3, 32, 32) if recipe.data == "cifar10" else (1, 28, 28)
        for width in (recipe.widths[0], recipe.good):
            first = next(networks.build(recipe.network, shape, 10, **recipe.settings(width)).parameters())
            assert first.shape[0] == width


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([5, 4, 3, 2], 0),  # falls throughout
        ([2, 3, 4, 5], 0),  # rises throughout
        ([5, 2, 1, 4], 0),  # falls, then rises
        ([2, 5, 3, 4], 2),  # above the lowest at wider ones, 3
        ([4, 5, 1], 1),
        ([1, 3, 2, 6, 0], 5),
        ([3, 1, 2, 0.5, 4, 3.5], 1),  # 2 above 1 and 0.5; 4 above 3.5 by half
    ],
)
def test_bumps_of_known_height(curve, expected):
    assert room.bump(curve) == pytest.approx(expected)


def test_a_bump_is_the_best_of_all_triples():
    rng = np.random.default_rng(0)
    for curve in rng.normal(size=(50, 7)):
        triples = [
            curve[j] - max(curve[i], curve[k]) for i in range(7) for j in range(i + 1, 7) for k in range(j + 1, 7)
        ]
        assert room.bump(curve) == pytest.approx(max(0, *triples))


WIDTHS, GOOD, PEAK = [2, 3, 6, 24], 2, 6
ERROR = {"SGD": [0.1, 0.14, 0.18, 0.12], "SWAG": [0.1, 0.12, 0.13, 0.11], "ensemble": [0.08, 0.07, 0.06, 0.05]}
NLL = {"SGD": [0.5, 0.6, 0.9, 0.6], "SWAG": [0.5, 0.55, 0.6, 0.5], "ensemble": [0.4, 0.38, 0.35, 0.3]}


def made_up(*, train=(0.2, 0.1, 0.02, 0.0), **changes):
    """Scores of one seed; a change such as SGD_error replaces a curve."""
    actual = {}
    for name in METHODS:
        like = "ensemble" if name == "MultiSWAG" else name
        test = {"error": changes.get(f"{name}_error", ERROR[like]), "nll": changes.get(f"{name}_nll", NLL[like])}
        actual[name] = {"test": test, "train": {"error": list(train), "nll": list(train)}}
    averaged = {
        name: {m: [[v + 0.1, v] for v in actual[name]["test"][m]] for m in ("error", "nll")}
        for name in ("ensemble", "MultiSWAG")
    }
    about = {"widths": WIDTHS, "good": GOOD, "peak": PEAK, "wrong": 0.18, "weights": [10, 20, 40, 200]}
    return {**about, "scores": actual, "averaged": averaged}


def jitter(results):
    """Repeats with a little noise on every score, so that no spread is zero."""
    rng = np.random.default_rng(0)
    results = copy.deepcopy(results)
    for result in results:
        for scored in result["scores"].values():
            for rows in scored.values():
                for measure, values in rows.items():
                    rows[measure] = [value + rng.normal(0, 1e-4) for value in values]
    return results


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ({}, ()),
        ({"SGD_error": [0.2, 0.19, 0.18, 0.12], "SWAG_error": ERROR["ensemble"]}, ("error of SGD at width 2", "SWAG")),
        ({"SGD_error": [0.1, 0.14, 0.18, 0.2], "SWAG_error": ERROR["ensemble"]}, ("error of SGD at width 24", "SWAG")),
        ({"SWAG_error": [0.1, 0.14, 0.2, 0.11]}, ("bump in the test error of SWAG",)),
        ({"ensemble_error": [0.05, 0.06, 0.08, 0.06]}, ("bump in the test error of ensemble",)),
        ({"MultiSWAG_error": [0.05, 0.08, 0.06, 0.04]}, ("bump in the test error of MultiSWAG",)),
        ({"MultiSWAG_error": [0.05, 0.055, 0.06, 0.06]}, ("test error of MultiSWAG at width 24",)),
        ({"MultiSWAG_nll": [0.3, 0.32, 0.34, 0.35]}, ("test NLL of MultiSWAG at width 24",)),
        ({"SGD_nll": [1.0, 0.95, 0.9, 0.6], "SWAG_nll": NLL["ensemble"]}, ("NLL of SGD at width 2", "SWAG")),
        ({"SGD_nll": [0.5, 0.6, 0.9, 1.0], "SWAG_nll": NLL["ensemble"]}, ("NLL of SGD at width 24", "SWAG")),
        ({"SWAG_nll": [0.5, 0.6, 1.2, 0.5]}, ("bump in the test NLL of SWAG",)),
        ({"ensemble_nll": [0.3, 0.32, 0.4, 0.3]}, ("bump in the test NLL of ensemble",)),
        ({"MultiSWAG_nll": [0.3, 0.4, 0.32, 0.2]}, ("bump in the test NLL of MultiSWAG",)),
    ],
)
def test_every_part_can_fail(change, failing):
    actual = room.summarise(jitter([made_up(**change)] * 3)).verdict
    refuted = [part.statement for part in actual.parts if part.outcome == "does not hold"]
    assert actual.outcome == ("does not hold" if failing else "holds")
    assert len(actual.parts) == 14
    assert all(any(text in statement for text in failing) for statement in refuted)
    assert bool(refuted) == bool(failing)
    for text in failing[:1]:
        assert any(text in statement for statement in refuted)


@pytest.mark.parametrize("train", [(0.2, 0.1, 0.05, 0.03), (0.03, 0.02, 0.01, 0.0)])
def test_widths_on_one_side_of_the_threshold_prove_nothing(train):
    assert room.summarise(jitter([made_up(train=train)] * 3)).verdict.outcome == "inconclusive"


def test_one_seed_is_inconclusive():
    assert room.summarise([made_up()]).verdict.outcome == "inconclusive"


def test_tables_hold_the_means():
    other = made_up(SGD_error=[0.1, 0.14, 0.22, 0.12])
    error, _, train, bumps = (table.markdown() for table in room.summarise([made_up(), other]).tables)
    assert "| 6 | 40 | 0.2000 ± 0.0200 | 0.1300 ± 0.0000 | 0.0600 ± 0.0000 |" in error
    assert "18.0 % of which are wrong" in train
    assert "| SGD | 0.0800 ± 0.0200 | 0.3000 ± 0.0000 |" in bumps


def test_figures_hold_the_curves_and_the_threshold():
    width, members = room.summarise([
        made_up(train=(0.2, 0.1, 0.005, 0.0)),
        made_up(train=(0.2, 0.1, 0.005, 0.0)),
    ]).figures
    axes = width.image.axes  # type: ignore[union-attr]
    np.testing.assert_allclose(np.asarray(axes[0].lines[0].get_xydata())[:, 1], ERROR["SGD"])
    np.testing.assert_array_equal(np.asarray(axes[2].lines[-1].get_xydata())[:, 0], [2, 2])  # width 6 is the third
    assert "width 6 is the first" in width.caption
    heights = np.asarray(members.image.axes[0].lines[0].get_xydata())  # type: ignore[union-attr]
    np.testing.assert_allclose(heights, [[0, 0], [1, 0]])
    missing = room.summarise([made_up(train=(0.2, 0.1, 0.05, 0.03))]).figures[0]
    assert "no width fits them" in missing.caption

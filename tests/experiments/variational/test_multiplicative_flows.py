"""Multiplicative flows against other methods: a tiny run on a made-up MNIST, and every verdict from made-up scores."""

import copy
import gzip
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes import networks
from torchbayes.data import load, out_of_distribution
from torchbayes_experiments.variational.multiplicative_flows import EXPERIMENT, report, run
from torchbayes_experiments.variational.multiplicative_flows.run import (
    DROPOUT,
    ENSEMBLE,
    FFG,
    FFLU,
    FLOWS,
    L2,
    METHODS,
    PAPER,
    SMALL,
    Digits,
    MultiplicativeFlowsRecipe,
    Photographs,
)

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")  # runs of few steps

STEPS: dict[str, Any] = {"epochs": 2, "batch_size": 50}
ABOUT: dict[str, Any] = {
    "data": "mnist",
    "train_size": 100,
    "test_rows": 60,
    "channels": (3, 4),
    "hidden": 12,
    "ensemble": tb.MAP(members=2, plan="loop", **STEPS),
    "dropout": tb.MCDropout(**STEPS),
    "rate": 0.2,
    "gaussian": tb.VI(kl_weight=1.0, plan="loop", **STEPS),
    "flows": tb.MNF(kl_weight=1.0, plan="loop", hidden=5, **STEPS),
    "decay_scale": 0.2,
    "prior_scale": 0.3,
    "draws": 4,
}
SEEN = ("4", "1", "7", "0", "9")
TINY = MultiplicativeFlowsRecipe(
    Photographs(classes=SEEN, log_uniform=tb.VI(kl_weight=1.0, plan="loop", **STEPS), **ABOUT),
    Digits(classes=None, log_uniform=None, digit="3", count=6, angles=(0, 90, 180), **ABOUT),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a set in MNIST's format, of digits of 8 x 8 pixels that were enlarged."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "mnist").mkdir()
    images, labels = load_digits(return_X_y=True)
    large = torch.tensor(images).reshape(-1, 1, 8, 8) * 255 / 16
    large = torch.nn.functional.interpolate(large, (28, 28), mode="bilinear").round().to(torch.uint8)[:, 0].numpy()
    for part, rows in (("train", slice(0, 1200)), ("t10k", slice(1200, None))):
        for kind, array in (("images-idx3", large[rows]), ("labels-idx1", labels[rows].astype(np.uint8))):
            header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return folder


@pytest.fixture(scope="module")
def tiny(root, tmp_path_factory):
    directory = tmp_path_factory.mktemp("flows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHBAYES_DATA", str(root))
        return directory, EXPERIMENT.run(TINY, 3, directory)


def posterior(directory, root, *, task, name):
    """What was fitted for a method, loaded anew, with its data."""
    recipe = TINY.photographs if task == "photographs" else TINY.digits
    assert recipe is not None
    data = load("mnist", classes=recipe.classes, train_size=100, seed=3, root=root)
    dropout = {"dropout": 0.2} if name == DROPOUT else {}
    net = networks.lenet((1, 28, 28), data.num_classes, channels=(3, 4), hidden=12, **dropout)
    model = tb.Model(net, tb.likelihoods.Categorical(), recipe.named_priors()[name])
    return tb.load(directory / task / name.replace(" ", "_") / "posterior.safetensors", model), data


@pytest.mark.parametrize("name", [DROPOUT, FFG, FFLU, FLOWS])
def test_photographs_are_scored_by_draws_of_the_posterior(tiny, root, name):
    directory, actual = tiny
    fitted, data = posterior(directory, root, task="photographs", name=name)
    strange = out_of_distribution(data, "mnist", root=root)["mnist"][:60]
    functions = fitted.functions(4, seed=0)
    probs = {
        "seen": functions(data.test.inputs[:60]).double().softmax(-1).mean(0),
        "unseen": functions(strange).double().softmax(-1).mean(0),
    }
    entropy = {of: -(p * p.log()).sum(-1) for of, p in probs.items()}
    scores = actual["photographs"][name]
    right = (probs["seen"].argmax(-1) == data.test.targets[:60]).double().mean()
    assert scores["seen"]["accuracy"] == pytest.approx(right.item())
    auroc = roc_auc_score([0] * 60 + [1] * 60, torch.cat([entropy["seen"], entropy["unseen"]]).numpy())
    assert scores["unseen"]["auroc"] == pytest.approx(auroc, abs=2e-3)
    for of in ("seen", "unseen"):
        assert scores[of]["entropy"] == pytest.approx(entropy[of].mean().item(), rel=1e-4)
        counts = np.histogram(entropy[of].numpy(), run.BINS, (0, math.log(5)))[0]
        assert np.abs(np.cumsum(counts) - np.cumsum(scores["counts"][of])).max() <= 1
        assert sum(scores["counts"][of]) == 60


def test_l2_is_the_first_network_of_the_ensemble(tiny, root):
    directory, actual = tiny
    fitted, data = posterior(directory, root, task="photographs", name=ENSEMBLE)
    assert isinstance(fitted, tb.Point)
    first = tb.Point(fitted.model, fitted.weights_MD[:1])
    test = data.test.inputs[:60], data.test.targets[:60]
    for name, source in ((L2, first), (ENSEMBLE, fitted)):
        nll = tb.evaluate(source, test).metrics["nll"]
        assert actual["photographs"][name]["seen"]["nll"] == pytest.approx(nll, rel=1e-5)
    assert list(actual["photographs"]) == list(METHODS)
    assert list(actual["digits"]["methods"]) == [name for name in METHODS if name != FFLU]


def test_turned_digits_are_those_of_the_class(tiny, root):
    directory, actual = tiny
    fitted, data = posterior(directory, root, task="digits", name=FLOWS)
    threes = data.standardise.inverse(data.test.inputs[data.test.targets == 3][:6])
    functions = fitted.functions(4, seed=0)
    lost, own = [], actual["digits"]["methods"][FLOWS]
    for place, turns in enumerate((0, 1, 2)):
        inputs = data.standardise(torch.rot90(threes, turns, dims=(2, 3)))
        draws = functions(inputs).double().softmax(-1)
        probs = draws.mean(0)
        entropy = -(probs * probs.log()).sum(-1)
        wrong = probs.argmax(-1) != 3
        lost.append(entropy[wrong])
        assert own["wrong"][place] == pytest.approx(wrong.double().mean().item())
        assert own["entropy"][place] == pytest.approx(entropy.mean().item(), rel=1e-4)
        np.testing.assert_allclose(own["mean"][place], probs[0], atol=1e-5)
        np.testing.assert_allclose(own["spread"][place], draws[:, 0].std(0, correction=0), atol=1e-5)
    assert own["entropy_wrong"] == pytest.approx(torch.cat(lost).mean().item(), rel=1e-4)
    assert actual["digits"]["methods"][L2]["entropy_wrong"] == actual["digits"]["methods"][L2]["entropy_same"]
    np.testing.assert_array_equal(actual["digits"]["pixels"], (threes[0, 0] * 255).round())


def test_a_second_call_reads_what_is_there_and_continues_with_the_next(tiny, root, monkeypatch):
    directory, actual = tiny
    monkeypatch.setattr(run.tb.data, "load", None)
    assert run.run(TINY, 3, directory) == actual
    monkeypatch.undo()
    monkeypatch.setenv("TORCHBAYES_DATA", str(root))
    for name in ("deep_ensemble", "MNF"):
        (directory / "digits" / f"{name}.json").unlink()
    assert run.run(TINY, 3, directory) == actual


def test_images_turn_counter_clockwise():
    images = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(0))
    for turns in range(4):
        turned = run.rotated(images, 90.0 * turns)
        torch.testing.assert_close(turned, torch.rot90(images, turns, dims=(2, 3)), atol=1e-5, rtol=0)
    assert run.rotated(images, 45.0)[..., 0, 0].abs().max() < 1e-6  # what comes from outside is black


def test_nothing_wrong_has_no_entropy():
    unit = {"test": {}, "label": [[3, 3]], "entropy": [[0.1, 0.2]], "mean": [], "spread": [], "pixels": []}
    other = {**unit, "label": [[3, 5]]}
    assert TINY.digits is not None
    actual = run.turned({L2: unit, FLOWS: other}, TINY.digits)["methods"]
    assert actual[L2]["entropy_wrong"] is None
    assert actual[FLOWS]["entropy_same"] is None
    assert actual[FLOWS]["entropy_wrong"] == pytest.approx(0.2)


def test_the_recipes_are_the_papers():
    for recipe in (SMALL, PAPER):
        assert recipe.photographs is not None
        assert list(recipe.photographs.named()) == list(METHODS)
    assert PAPER.photographs is not None
    assert (PAPER.photographs.channels, PAPER.photographs.hidden) == ((192, 192), 1000)
    assert PAPER.photographs.flows.epochs == 100
    assert PAPER.photographs.flows.initial_scale == pytest.approx(math.exp(-9))
    assert PAPER.photographs.train_size is None


def made_up(*, at=None):
    """Scores in which everything claimed is so, but for what stands in `at`: (method, metric) -> value."""
    errors = {L2: 0.26, DROPOUT: 0.20, ENSEMBLE: 0.21, FFG: 0.23, FFLU: 0.24, FLOWS: 0.19}
    entropy = {L2: 0.3, DROPOUT: 0.6, ENSEMBLE: 0.6, FFG: 0.5, FFLU: 0.5, FLOWS: 0.9}
    base = {n: {"error": errors[n], "unseen": entropy[n], "digits": 0.01, "turned": entropy[n]} for n in METHODS}
    for (name, metric), value in (at or {}).items():
        base[name][metric] = value
    photographs = {
        name: {
            "seen": {"accuracy": 1 - s["error"], "nll": 0.6, "ece": 0.05, "entropy": 0.4},
            "unseen": {"entropy": s["unseen"], "auroc": 0.6},
            "counts": {"seen": [3, 2, 1, 0], "unseen": [1, 1, 1, 3]},
        }
        for name, s in base.items()
    }
    digits = {
        name: {
            "test": {"accuracy": 1 - s["digits"], "nll": 0.03, "ece": 0.01},
            "wrong": [0.0, 0.8, 0.9],
            "entropy": [0.1, 0.5, 0.4],
            "entropy_wrong": s["turned"],
            "entropy_same": s["turned"],
            "mean": np.full((3, 10), 0.1).tolist(),
            "spread": np.full((3, 10), 0.05).tolist(),
        }
        for name, s in base.items()
    }
    pixels = np.eye(28, dtype=int).tolist()
    return {"photographs": photographs, "digits": {"methods": digits, "pixels": pixels, "angles": [0, 90, 180]}}


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(1)
    results = [copy.deepcopy(result) for result in results]  # one by one: they may be one and the same
    for result in results:
        for scores in result["photographs"].values():
            for values in (scores["seen"], scores["unseen"]):
                for key in values:
                    values[key] += rng.normal(0, 1e-5)
        for scores in result["digits"]["methods"].values():
            for key in ("entropy_wrong", "entropy_same"):
                if scores[key] is not None:
                    scores[key] += rng.normal(0, 1e-5)
            scores["test"]["accuracy"] += rng.normal(0, 1e-5)
    return results


@pytest.mark.parametrize(
    ("changes", "outcome", "open_parts"),
    [
        ({}, "holds", 0),
        ({(FFG, "error"): 0.18}, "does not hold", 1),
        ({(FFLU, "error"): 0.18}, "does not hold", 1),
        ({(FLOWS, "error"): 0.27}, "does not hold", 4),
        ({(ENSEMBLE, "error"): 0.182}, "holds", 0),  # within the margin
        ({(ENSEMBLE, "error"): 0.178}, "does not hold", 1),
        ({(FLOWS, "unseen"): 0.2}, "does not hold", 1),
        ({(FLOWS, "turned"): 0.2}, "does not hold", 2),
        ({(L2, "turned"): None}, "inconclusive", 2),
        ({(L2, "error"): 0.4}, "inconclusive", 1),
        ({(L2, "digits"): 0.06, (FLOWS, "unseen"): 0.2}, "inconclusive", 2),
    ],
)
def test_every_verdict_is_reached(changes, outcome, open_parts):
    verdict = report.summarise(jitter([made_up(at=changes)] * 3)).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in verdict.parts) == open_parts


def test_tables_and_figures_show_every_method():
    findings = report.summarise(jitter([made_up()] * 2))
    seen, differences, digits = findings.tables
    assert [row[0] for row in seen.rows] == [row[0] for row in digits.rows] == list(METHODS)
    assert seen.rows[-1][2] == 16
    assert len(differences.rows) == 3 * (len(METHODS) - 1)
    assert len(findings.figures) == 3
    one = report.summarise([made_up(at={(L2, "turned"): None})])
    assert one.verdict.outcome == "inconclusive"
    alone = [{"digits": made_up()["digits"]}]
    assert len(report.summarise(alone).figures) == 2


def test_the_distribution_function_is_that_of_the_pooled_counts():
    first, second = made_up()["photographs"], made_up()["photographs"]
    second[FLOWS]["counts"]["unseen"] = [0, 0, 2, 4]
    figure: Any = report.entropies([first, second]).image
    line = figure.axes[0].get_lines()[METHODS.index(FLOWS)]
    np.testing.assert_allclose(line.get_ydata(), np.array([0, 1, 2, 5, 12]) / 12)
    np.testing.assert_allclose(line.get_xdata(), np.linspace(0, math.log(5), 5))


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1])
    assert "Louizos" in page
    assert "| FFLU |" in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 3

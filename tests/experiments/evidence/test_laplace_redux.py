"""Laplace around a trained network: a tiny run against formulas in float64, every verdict from made-up scores."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import roc_auc_score
from torch import nn

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes import networks
from torchbayes.data import load, out_of_distribution
from torchbayes_experiments.evidence import laplace_redux as room
from torchbayes_experiments.evidence.laplace_redux import EXPERIMENT, LaplaceReduxRecipe
from torchbayes_experiments.shared.classifiers import decay_prior
from torchbayes_experiments.streams import Purpose, generator

TINY = LaplaceReduxRecipe(
    data="digits",
    foreign=("letters", "patches"),
    network="mlp",
    train_size=300,
    weight_decay=1e-2,
    members=2,
    epochs=80,
    batch_size=300,
    lr=1e-2,
    rows_per_pass=128,
    test_rows=200,
    foreign_rows=60,
    plan="loop",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("redux")
    return directory, EXPERIMENT.run(TINY, 3, directory)


@pytest.fixture(scope="module")
def trained(tiny):
    """Data, and weights and biases of the first member's three layers in float64."""
    directory, _ = tiny
    data = load("digits", train_size=300)
    model = tb.Model(
        networks.mlp(data.input_shape, 10), tb.likelihoods.Categorical(), decay_prior(TINY.weight_decay, 300)
    )
    ensemble = tb.load(directory / "ensemble" / "posterior.safetensors", model)
    views, _ = model.split(ensemble.sample(2)[0].double())
    return data, [(views[f"{i}.weight"], views[f"{i}.bias"]) for i in (1, 3, 5)], (model, ensemble)


def images(data):
    """The test images that are scored, their labels, and the foreign images."""
    order = torch.randperm(360, generator=generator(Purpose.TEST_ROWS))[:200]
    foreign = {name: out_of_distribution(data, name, limit=60)[name] for name in TINY.foreign}
    return data.test.inputs[order], data.test.targets[order], foreign


def linearised(layers, inputs):
    """Outputs (B, K), inputs of every layer with a one appended, and Jacobians in every layer's outputs (B, K, H)."""
    hidden, seen, outputs = inputs.flatten(1).double(), [], []
    for index, (weight, bias) in enumerate(layers):
        seen.append(torch.cat([hidden, torch.ones(len(hidden), 1)], 1))
        outputs.append(hidden @ weight.mT + bias)
        hidden = outputs[-1].relu() if index < 2 else outputs[-1]
    back = torch.eye(10, dtype=torch.float64).expand(len(hidden), 10, 10)
    jacobians = [back]
    for (weight, _), out in zip(layers[:0:-1], outputs[-2::-1], strict=True):
        back = (back @ weight) * (out > 0).double()[:, None]
        jacobians.append(back)
    return hidden, seen, jacobians[::-1]


def precision(eigenvalues, squared, start):
    """The prior precision δ at the maximum of D log δ − δ |w|² − Σ log(λ + δ)."""

    def negative(log_delta):
        delta = math.exp(log_delta)
        return -(len(eigenvalues) * log_delta - delta * squared - float((eigenvalues + delta).log().sum()))

    bounds = (math.log(start) - 15, math.log(start) + 15)
    actual = minimize_scalar(negative, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    return math.exp(actual.x)  # type: ignore[attr-defined]


def curvatures(layers, train, variant):
    """Eigenvalues and eigenvectors of every random layer: of a matrix over outputs and inputs, or of two factors."""
    f, seen, jacobians = linearised(layers, train.inputs)
    p = f.softmax(-1)
    if variant == "LA*":
        g = (p - nn.functional.one_hot(train.targets, 10))[:, :, None] * seen[-1][:, None]
        values, vectors = torch.linalg.eigh(g.flatten(1).mT @ g.flatten(1))
        return [(values, lambda rows: rows.flatten(2) @ vectors)]
    hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    actual = []
    for jacobian, a in list(zip(jacobians, seen, strict=True))[0 if "all" in variant else -1 :]:
        left, left_vectors = torch.linalg.eigh(torch.einsum("nkh,nkl,nlg->hg", jacobian, hessian, jacobian))
        right, right_vectors = torch.linalg.eigh(a.mT @ a / len(a))
        values = torch.outer(left, right).flatten()
        actual.append((values, lambda rows, u=left_vectors, v=right_vectors: (u.mT @ rows @ v).flatten(2)))
    return actual


def closed_form(data, layers, variant, inputs):
    """Probabilities of a variant at inputs, and the prior scale that it chose."""
    actual = curvatures(layers, data.train, variant)
    eigenvalues = torch.cat([values for values, _ in actual]).clamp_min(0)
    squared = sum(float(w.square().sum() + b.square().sum()) for w, b in layers[-len(actual) :])
    delta = precision(eigenvalues, squared, TINY.weight_decay * 300)
    f, seen, jacobians = linearised(layers, inputs)
    variance = torch.zeros_like(f)
    for (values, turned), jacobian, a in zip(actual[::-1], jacobians[::-1], seen[::-1], strict=False):
        apart = (jacobian - jacobian.mean(1, keepdim=True)) * 10 / 9  # of each output from the mean of the others
        rows = turned(apart[..., None] * a[:, None, None])
        variance += (rows.square() / (values.clamp_min(0) + delta)).sum(-1)
    return ((f - f.mean(-1, keepdim=True)) / (1 + math.pi / 8 * variance).sqrt()).softmax(-1), delta**-0.5


@pytest.mark.parametrize("variant", ["LA", "LA*", "Laplace, all layers"])
def test_every_variant_is_its_closed_form(tiny, trained, variant):
    _, actual = tiny
    data, layers, _ = trained
    inputs, targets, foreign = images(data)
    probs, scale = closed_form(data, layers, variant, inputs)
    assert actual["prior_scale"][variant] == pytest.approx(scale, rel=1e-3)
    scores = actual["methods"][variant]
    assert scores["test"]["nll"] == pytest.approx(-probs[range(200), targets].log().mean().item(), rel=1e-3)
    assert scores["test"]["accuracy"] == pytest.approx((probs.argmax(-1) == targets).double().mean().item())
    for name, rows in foreign.items():
        outside = closed_form(data, layers, variant, rows)[0].amax(-1)
        assert scores["foreign"][name]["confidence"] == pytest.approx(outside.mean().item(), rel=1e-3)
        labels = [0] * 200 + [1] * len(rows)
        auroc = roc_auc_score(labels, -torch.cat([probs.amax(-1), outside]).numpy())
        assert scores["foreign"][name]["auroc"] == pytest.approx(auroc, abs=1e-3)


def test_the_mode_is_the_first_member_and_the_ensemble_holds_it(tiny, trained):
    _, actual = tiny
    data, layers, (model, ensemble) = trained
    inputs, targets, foreign = images(data)
    alone = linearised(layers, inputs)[0].softmax(-1)
    scores = actual["methods"]["MAP"]
    assert scores["test"]["nll"] == pytest.approx(-alone[range(200), targets].log().mean().item(), rel=1e-5)
    both = tb.Point(model, ensemble.sample(2))
    test, stranger = tb.evaluate(both, (inputs, targets)).metrics, tb.predict(both, foreign["letters"]).probs
    assert actual["methods"]["deep ensemble"]["test"]["nll"] == pytest.approx(test["nll"], rel=1e-6)
    confidence = actual["methods"]["deep ensemble"]["foreign"]["letters"]["confidence"]
    assert confidence == pytest.approx(stranger.amax(-1).mean().item(), rel=1e-5)
    assert actual["prior_scale"]["MAP"] == pytest.approx((1e-2 * 300) ** -0.5)


def test_bins_hold_every_image_once(tiny, trained):
    _, actual = tiny
    data, layers, _ = trained
    confidence = linearised(layers, images(data)[0])[0].softmax(-1).amax(-1).numpy()
    scores = actual["methods"]["MAP"]
    assert scores["counts"]["test"] == np.histogram(confidence, room.BINS, (0.1, 1.0))[0].tolist()
    assert sum(scores["counts"]["letters"]) == sum(scores["counts"]["patches"]) == 60
    bins = scores["reliability"]
    assert sum(bins["count"]) == 200
    share = np.dot(bins["count"], bins["accuracy"]) / 200
    assert share == pytest.approx(scores["test"]["accuracy"])


@pytest.mark.study  # `test_records.py`: what a file holds is not computed again
def test_a_second_call_resumes_and_gives_the_same(tiny):
    directory, actual = tiny
    assert room.run(TINY, 3, directory) == actual


def test_only_the_last_layer_is_random_and_the_rest_is_as_trained(trained):
    data, layers, (model, ensemble) = trained
    posterior = room.approximate(TINY, "LA", data, ensemble=ensemble, seed=3)
    assert posterior.model.layout.names == ("5.weight", "5.bias")
    held = dict(posterior.model.network.module.named_parameters())
    for number, (weight, bias) in zip((1, 3, 5), layers, strict=True):
        torch.testing.assert_close(held[f"{number}.weight"].double(), weight, rtol=0, atol=0)
        torch.testing.assert_close(held[f"{number}.bias"].double(), bias, rtol=0, atol=0)
    assert room.approximate(TINY, "Laplace, all layers", data, ensemble=ensemble, seed=3).model.layout == model.layout


def made_up(*, at=None):
    """Scores in which everything claimed is so, but for what stands in `at`: (method, metric) -> value."""
    base = {
        "MAP": {"confidence": 0.75, "auroc": 0.965, "accuracy": 0.98, "nll": 0.06, "ece": 0.010},
        "deep ensemble": {"confidence": 0.65, "auroc": 0.975, "accuracy": 0.985, "nll": 0.05, "ece": 0.012},
    }
    base |= {n: {**base["MAP"], "confidence": 0.6, "auroc": 0.963, "nll": 0.062} for n in room.VARIANTS}
    for (name, metric), value in (at or {}).items():
        base[name][metric] = value
    sets = {"fashion_mnist": 0.01, "kmnist": 0.0, "notmnist": -0.01}

    def method(s):
        return {
            "test": {key: s[key] for key in room.METRICS},
            "foreign": {k: {"confidence": s["confidence"] + e, "auroc": s["auroc"] - e} for k, e in sets.items()},
            "counts": {name: [1] * 10 for name in ("test", *sets)},
            "reliability": {"confidence": [0.5, 0.9], "accuracy": [0.4, 0.95], "count": [10, 30]},
        }

    scale = dict.fromkeys(("MAP", *room.VARIANTS), 0.2)
    return {"methods": {name: method(scores) for name, scores in base.items()}, "prior_scale": scale}


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng = np.random.default_rng(1)
    results = [copy.deepcopy(result) for result in results]  # one by one: they may be one and the same
    for result in results:
        for scores in result["methods"].values():
            for values in (scores["test"], *scores["foreign"].values()):
                for key in values:
                    values[key] += rng.normal(0, 1e-5)
    return results


@pytest.mark.parametrize(
    ("changes", "outcome", "open_parts"),
    [
        ({}, "holds", 0),
        ({("LA", "confidence"): 0.76}, "does not hold", 1),
        ({("LA*", "auroc"): 0.954}, "does not hold", 1),
        ({("LA*", "auroc"): 0.956}, "holds", 0),
        ({("Laplace, all layers", "nll"): 0.071}, "does not hold", 1),
        ({("Laplace, all layers", "ece"): 0.021}, "does not hold", 1),
        ({("LA", "accuracy"): 0.977}, "does not hold", 1),
        ({("LA", "accuracy"): 0.983}, "does not hold", 1),  # better is not unchanged
        ({("LA", "auroc"): 0.976}, "does not hold", 1),  # better than the ensemble
        ({("MAP", "accuracy"): 0.94, ("LA", "confidence"): 0.76}, "inconclusive", 5),
    ],
)
def test_every_verdict_is_reached(changes, outcome, open_parts):
    verdict = room.summarise(jitter([made_up(at=changes)] * 3)).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in verdict.parts) == open_parts


def test_seeds_that_disagree_and_one_seed_are_inconclusive():
    results = [made_up(at={("LA", "confidence"): value}) for value in (0.6, 0.8, 0.7)]
    verdict = room.summarise(jitter(results)).verdict
    assert verdict.outcome == "inconclusive"
    assert [part.statement for part in verdict.parts if part.outcome != "holds"] == [
        "LA: mean confidence on foreign images below the MAP's"
    ]
    assert {part.outcome for part in room.summarise([made_up()]).verdict.parts} == {"inconclusive"}


def test_tables_hold_the_numbers():
    results = [made_up(), made_up(at={("LA", "confidence"): 0.5, ("LA", "nll"): 0.072})]
    digits, average, confidence, auroc, pair = (table.markdown() for table in room.summarise(results).tables)
    assert "| LA | 0.9800 ± 0.0000 | 0.0670 ± 0.0050 | **0.0100 ± 0.0000** | 0.200 ± 0.000 |" in digits
    assert "| LA | **55.0 ± 5.0** | 96.3 ± 0.0 | 67.5 | 96.2 |" in average
    assert "| Laplace, all layers | 60.0 ± 0.0 | 96.3 ± 0.0 | – | – |" in average
    assert "| LA | **56.0 ± 5.0** | **55.0 ± 5.0** | **54.0 ± 5.0** | 58.8 | 69.0 |" in confidence
    assert "| deep ensemble | **96.5 ± 0.0** | **97.5 ± 0.0** | **98.5 ± 0.0** | 99.2 | 98.3 |" in auroc
    assert "| foreign: AUROC | −0.0120 | −0.0120 | −0.0120 | deep ensemble |" in pair
    assert "| foreign: mean confidence | −0.0500 | −0.0500 | −0.0500 | Laplace, all layers |" in pair


def test_without_an_ensemble_nothing_is_called_one():
    results = jitter([made_up()] * 3)
    for result in results:
        del result["methods"]["deep ensemble"]
    actual = room.summarise(results)
    assert actual.verdict.outcome == "holds"
    assert len(actual.verdict.parts) == 16
    assert len(actual.tables) == 4
    assert all("ensemble" not in str(row[0]) for table in actual.tables for row in table.rows)


def test_the_published_averages_are_those_of_the_published_sets():
    for row in room.PUBLISHED.values():
        means = np.mean([values for name, values in row.items() if name != "average"], axis=0)
        assert means == pytest.approx(row["average"], abs=0.15)  # of rounded numbers


def test_recipes_state_the_papers_setting():
    small, paper = (EXPERIMENT.recipe(scale) for scale in ("small", "paper"))
    assert (paper.train_size, paper.epochs, paper.test_rows, paper.foreign_rows) == (None, 100, None, None)
    assert paper.weight_decay == small.weight_decay == 5e-4
    assert decay_prior(paper.weight_decay, 60_000).scale == pytest.approx((5e-4 * 60_000) ** -0.5)
    la, star, full = (small.laplace(variant) for variant in room.VARIANTS)
    assert (la.structure, la.curvature, la.prior) == ("kronecker", "ggn", "scalar")
    assert (star.structure, star.curvature, star.prior) == ("dense", "empirical", "scalar")
    assert full == la
    assert room.last_layer(networks.lenet((1, 28, 28), 10)) == "9"


@pytest.mark.filterwarnings("ignore:this posterior should not be trusted")  # so short a training ends at no mode
def test_end_to_end(tmp_path):
    recipe = replace(TINY, members=1, epochs=10, train_size=60, test_rows=30, foreign_rows=10)
    actual = EXPERIMENT.run(recipe, 0, tmp_path / "run")
    page = page_of(EXPERIMENT, recipe, tmp_path, actual, actual)
    assert "Daxberger" in page
    assert "| Laplace, all layers |" in page
    assert "| deep ensemble |" not in page
    assert len(list(tmp_path.glob("figure_*.png"))) == 3

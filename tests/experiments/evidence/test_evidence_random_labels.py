"""Random labels: a tiny run against direct computation, and every verdict from made-up numbers."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes import networks
from torchbayes.data import load
from torchbayes_experiments.evidence import evidence_random_labels as room
from torchbayes_experiments.evidence.evidence_random_labels import EXPERIMENT, RandomLabelsRecipe
from torchbayes_experiments.shared.classifiers import shuffled

TINY = RandomLabelsRecipe(
    data="digits", shares=(0.0, 0.5, 1.0), hidden=(8,), train_size=60, epochs=5, process_rows=40, test_rows=50
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("labels")
    return directory, EXPERIMENT.run(TINY, 1, directory)


def laplace_evidence(inputs, labels, *, amplitude, length_scale):
    """Rasmussen and Williams (2006), algorithm 3.1, in float64."""
    signs = 2.0 * labels - 1
    gaps = ((inputs[:, None] - inputs[None]) ** 2).sum(-1)
    kernel = amplitude**2 * np.exp(-0.5 * gaps / length_scale**2)
    latent, dual, inner = np.zeros(len(labels)), np.zeros(len(labels)), np.eye(len(labels))
    for _ in range(100):
        probs = 1 / (1 + np.exp(-latent))
        curved = probs * (1 - probs)
        root = np.sqrt(curved)
        inner = np.eye(len(labels)) + root[:, None] * kernel * root[None]
        step = curved * latent + labels - probs
        dual = step - root * np.linalg.solve(inner, root * (kernel @ step))
        latent = kernel @ dual
    value = -0.5 * dual @ latent - np.logaddexp(0, -signs * latent).sum()
    return value - 0.5 * np.linalg.slogdet(inner)[1]


def test_the_process_has_the_evidence_of_the_textbook(tiny):
    _, actual = tiny
    pair = room.two_classes(load("digits"), TINY, seed=1)
    for at, share in enumerate(TINY.shares):
        labels = shuffled(pair[1], share, seed=1).numpy()
        expected = laplace_evidence(pair[0].numpy(), labels, amplitude=10.0, length_scale=0.5)
        assert actual["Gaussian process"]["evidence"][at] == pytest.approx(expected / 40, rel=1e-4)
    assert actual["uniform"] == pytest.approx({"Gaussian process": math.log(0.5), "network": math.log(0.1)})


def test_the_network_has_the_evidence_of_a_direct_fit(tiny):
    _, actual = tiny
    data = load("digits", train_size=60, seed=1)
    network = networks.mlp(data.input_shape, 10, hidden=(8,))
    model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    train = (data.train.inputs, shuffled(data.train.targets, 0.5, seed=1))
    mode = tb.fit(model, train, tb.MAP(1, 5, 100, tb.Adam(0.01), plan="loop"), seed=1, callbacks=())
    laplace = tb.fit(model, train, tb.Laplace(check_mode=False, prior="model"), start=mode, callbacks=())
    assert isinstance(laplace, tb.LaplacePosterior)
    tuned = tb.tune(laplace)
    numbers = actual["network"]
    assert numbers["evidence"][1] == pytest.approx(float(laplace.log_evidence()) / 60, rel=1e-4)
    assert numbers["tuned"][1] == pytest.approx(float(tuned.log_evidence()) / 60, rel=1e-4)
    assert numbers["scale"][1] == pytest.approx(float(tuned.model.prior.stds()[0]), rel=1e-3)
    assert numbers["train_error"][1] == 1 - tb.evaluate(mode, train).metrics["accuracy"]


def test_two_classes_are_told_apart_by_mean_squares():
    data = load("digits")
    inputs, targets, test_inputs, test_targets = room.two_classes(data, TINY, seed=0)
    assert inputs.shape == (40, 64)
    assert set(targets.tolist()) == {0, 1}
    rows = torch.isin(data.test.targets, torch.tensor([3, 5]))
    assert len(test_inputs) == int(rows.sum())
    assert int(test_targets.sum()) == int((data.test.targets == 5).sum())
    raw = data.test.inputs[rows].flatten(1).double()
    expected = (raw[0] - raw[1]).square().mean()
    assert float((test_inputs[0] - test_inputs[1]).square().sum()) == pytest.approx(float(expected))
    with pytest.raises(ValueError, match=r"at most the 2\d\d of both classes; got 5000"):
        room.two_classes(data, replace(TINY, process_rows=5000), seed=0)


def test_a_second_call_reads_what_is_there(tiny):
    directory, actual = tiny
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert len(before) == 6
    assert room.run(TINY, 1, directory) == actual
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def made_up(
    *, process=(-0.2, -0.7, -0.9), network=(-1.4, -4.0, -6.0), tuned=(-0.5, -2.0, -2.7), mistakes=0.0, away=False
):
    """One seed with three shares."""
    errors = {"train_error": [0.0, mistakes, 0.0], "test_error": [0.02, 0.2, 0.9]}
    return {
        "shares": [0.0, 0.5, 1.0],
        "uniform": {"Gaussian process": math.log(0.5), "network": math.log(0.1)},
        "Gaussian process": {"evidence": list(process), **errors},
        "network": {"evidence": list(network), "tuned": list(tuned), "at_mode": [True, not away, True], **errors},
    }


def jitter(results):
    """Repeats with a little noise on the evidence, so that no spread is zero."""
    rng = np.random.default_rng(0)
    results = copy.deepcopy(results)
    for result in results:
        for values in (
            result["Gaussian process"]["evidence"],
            result["network"]["evidence"],
            result["network"]["tuned"],
        ):
            values[:] = np.add(values, rng.normal(0, 1e-3, 3)).tolist()
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(process=(-0.2, -0.7, -0.6))] * 3, "does not hold", 1),
        ([made_up(tuned=(-0.5, -0.4, -2.7))] * 3, "does not hold", 1),
        ([made_up(network=(-1.4, n, -6.0)) for n in (-5.9, -6.1, -6.0)], "inconclusive", 1),
        ([made_up(mistakes=0.01)] * 3, "does not hold", 2),
        ([made_up(mistakes=m) for m in (0.0, 0.0, 0.001)], "inconclusive", 2),  # one row of one repeat
        ([made_up(away=True)] * 3, "inconclusive", 1),
        ([made_up()], "inconclusive", 9),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = room.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_tables_hold_the_means():
    errors, evidence = (
        table.markdown() for table in room.summarise([made_up(), made_up(tuned=(-0.7, -2, -2.7))]).tables
    )
    assert "| 50 % | 0.000 ± 0.000 | 0.200 ± 0.000 | 0.000 ± 0.000 | 0.200 ± 0.000 |" in errors
    assert "| 0 % | −0.200 ± 0.000 | −1.400 ± 0.000 | −0.600 ± 0.100 |" in evidence
    assert "−0.693 for the two classes" in evidence


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1], tiny[1])
    assert (tmp_path / "figure_1.png").exists()
    assert "Wilson and Izmailov 2020" in page

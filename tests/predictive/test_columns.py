"""Predictions as columns, in raw units, against what the predictive says."""

import csv

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch import nn

import torchbayes as tb
from torchbayes.data import Standardise
from torchbayes.predictive.columns import Units
from torchbayes.predictive.written import columns_of, write_columns
from torchbayes.report.figures.predictions import new_rows


def drawn(likelihood, outputs=1, rows=7):
    """Functions of an ensemble of three linear networks."""
    model = tb.Model(lambda: nn.Linear(2, outputs), likelihood)
    inputs = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0))
    point = tb.Point(model, torch.randn(3, model.layout.size, generator=torch.Generator().manual_seed(1)))
    return point.functions(), inputs


def test_numbers_are_in_raw_units():
    functions, inputs = drawn(tb.likelihoods.Gaussian(0.5))
    units = Units((), Standardise(torch.tensor([10.0]), torch.tensor([4.0])), 0.9)
    actual = columns_of(functions, inputs, units)
    predictive = tb.predict(functions, inputs)
    assert list(actual) == ["mean", "sd", "sd_of_function", "low_0.9", "high_0.9"]
    assert np.allclose(actual["mean"], 10 + 4 * predictive.mean[:, 0], atol=1e-5)
    assert np.allclose(actual["sd"], 4 * predictive.variance[:, 0].sqrt(), atol=1e-5)
    assert np.allclose(actual["sd_of_function"], 4 * predictive.epistemic[:, 0].sqrt(), atol=1e-5)
    assert np.allclose(actual["low_0.9"], 10 + 4 * predictive.quantile(0.05)[:, 0], atol=1e-5)
    assert np.allclose(actual["high_0.9"], 10 + 4 * predictive.quantile(0.95)[:, 0], atol=1e-5)


def test_numbers_far_from_zero_are_written_to_a_part_of_their_spread(tmp_path):
    functions, inputs = drawn(tb.likelihoods.Gaussian(0.5))
    for mean, scale, digits in ((10.0, 4.0, 7), (1e9, 1.5, 13), (1e30, 1.0, 17), (1e-12, 1e-12, 7)):
        units = Units((), Standardise(torch.tensor([mean]).double(), torch.tensor([scale]).double()), 0.9)
        assert units.digits == digits
        actual = columns_of(functions, inputs, units)
        write_columns(tmp_path / "p.csv", actual, digits=units.digits)
        with (tmp_path / "p.csv").open() as file:
            written = [float(row["mean"]) for row in csv.DictReader(file)]
        np.testing.assert_allclose(written, actual["mean"], rtol=1e-15, atol=1e-3 * scale)


def test_counts_have_intervals_of_samples():
    functions, inputs = drawn(tb.likelihoods.Poisson())
    actual = columns_of(functions, inputs, Units(level=0.8))
    assert np.allclose(actual["mean"], tb.predict(functions, inputs).mean.flatten(), rtol=1e-5)
    samples = tb.predict(functions, inputs).sample(60_000, seed=3).reshape(60_000, -1)
    below = (samples.numpy() <= actual["high_0.8"]).mean(0)
    assert (below >= 0.88).all()


def test_classes_have_probabilities_and_uncertainty():
    functions, inputs = drawn(tb.likelihoods.Categorical(), outputs=3)
    actual = columns_of(functions, inputs, Units(("a", "b", "c")))
    predictive = tb.predict(functions, inputs)
    assert list(actual) == ["prediction", "p(a)", "p(b)", "p(c)", "entropy", "mutual_information"]
    assert actual["prediction"].tolist() == ["abc"[k] for k in predictive.probs.argmax(1)]
    assert np.allclose(np.stack([actual[f"p({name})"] for name in "abc"], 1), predictive.probs, atol=1e-6)
    assert np.allclose(actual["entropy"], predictive.entropy, atol=1e-6)
    assert np.allclose(actual["mutual_information"], predictive.mutual_information, atol=1e-6)
    alone = tb.Point(functions.model, functions.weights_SD[:1]).functions()
    assert "mutual_information" not in columns_of(alone, inputs, Units(("a", "b", "c")))


def test_two_classes_of_one_output():
    functions, inputs = drawn(tb.likelihoods.Bernoulli())
    actual = columns_of(functions, inputs, Units(("no", "yes")))
    probs = tb.predict(functions, inputs).probs.reshape(-1)
    assert np.allclose(actual["p(yes)"], probs, atol=1e-6)
    assert np.allclose(actual["p(no)"], 1 - probs, atol=1e-6)
    assert actual["prediction"].tolist() == ["yes" if p > 0.5 else "no" for p in probs]


def test_many_rows_are_those_of_one_call():
    functions, inputs = drawn(tb.likelihoods.Gaussian(0.5), rows=5000)
    actual = columns_of(functions, inputs, Units())
    assert np.allclose(actual["mean"], tb.predict(functions, inputs).mean.flatten(), atol=1e-6)
    assert len(actual["low_0.95"]) == 5000


def test_the_file_has_a_line_for_each_row(tmp_path):
    write_columns(tmp_path / "p.csv", {"mean": np.array([0.123456789, 2.0]), "prediction": np.array(["x, y", 'z "q"'])})
    with (tmp_path / "p.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["row", "mean", "prediction"],
            ["1", "0.1234568", "x, y"],
            ["2", "2", 'z "q"'],
        ]
    write_columns(tmp_path / "p.csv", {"mean": np.array([1.0])}, names=["cat/1.png"])
    assert (tmp_path / "p.csv").read_text() == "name,mean\ncat/1.png,1\n"


def test_refusals():
    functions, inputs = drawn(tb.likelihoods.Gaussian(0.5))
    for level in (0, 1, 2.0):
        with pytest.raises(ValueError, match="`level` must lie between 0 and 1"):
            Units(level=level)
    with pytest.raises(ValueError, match="there are no rows to predict"):
        columns_of(functions, inputs[:0], Units())
    many, inputs = drawn(tb.likelihoods.Categorical(), outputs=3)
    with pytest.raises(TypeError, match="are no columns"):
        columns_of(many, inputs, Units(("a", "b")))


def test_the_picture_of_a_single_network_shows_its_noise():
    functions, inputs = drawn(tb.likelihoods.Gaussian(0.5))
    units = Units((), None, 0.9)
    several = columns_of(functions, inputs, units)
    alone = {**several, "sd_of_function": np.zeros(len(inputs))}
    for actual, label, note in (
        (several, "sd of the function", "Rows unlike the training data lie further right"),
        (alone, "sd of target", "One network alone does not show"),
    ):
        figure = new_rows(actual, actual, level=0.9)
        assert label in figure.axes[1].get_xlabel()
        assert note in str([text.get_text() for text in figure.findobj(Text)])

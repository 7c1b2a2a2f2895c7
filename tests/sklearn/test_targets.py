"""Several targets in a row: shapes, units, and what each has to do with the others."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score
from sklearn.multioutput import MultiOutputRegressor
from torch import nn

import torchbayes as tb
from torchbayes import sklearn as estimators
from torchbayes.predictive.mixture import some_rows
from torchbayes.sklearn import BayesianClassifier, BayesianMLPRegressor, BayesianRegressor
from torchbayes.sklearn.blocks import average_blocks

QUICK = tb.MAP(members=2, epochs=12, batch_size=32, optimizer=tb.Adam(0.01))
RNG = np.random.default_rng(0)
N = 120
INPUTS = RNG.normal(size=(N, 3))
NOISE = np.array([0.1, 1.0, 0.5])
TARGETS = np.c_[INPUTS[:, 0] - INPUTS[:, 1], INPUTS[:, 2], INPUTS[:, 1] ** 2] + NOISE * RNG.normal(size=(N, 3))
UNITS = np.array([1.0, 1e6, 1e-3]), np.array([0.0, 1e9, 5.0])
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")


def regressor(**settings) -> BayesianRegressor:
    return BayesianRegressor(**{"method": QUICK, "random_state": 0, **settings})


OF = regressor().fit(INPUTS, TARGETS * UNITS[0] + UNITS[1])


def test_every_verb_has_an_axis_of_targets():
    mean, std = OF.predict(INPUTS, return_std=True)
    assert mean.shape == std.shape == (N, 3)
    quantiles = OF.predict_quantile(INPUTS, [0.05, 0.5, 0.95])
    assert quantiles.shape == (N, 3, 3)
    ends = OF.predict_interval(INPUTS)
    np.testing.assert_allclose((ends - UNITS[1][:, None]), quantiles[..., [0, 2]] - UNITS[1][:, None], rtol=1e-4)
    assert np.array_equal(OF.predict_quantile(INPUTS, 0.5), quantiles[..., 1])
    drawn = OF.sample(INPUTS, 4000)
    assert drawn.shape == (N, 3, 4000)
    assert (np.abs(drawn.mean(2) - mean) < 5.5 * std / 4000**0.5).all()
    truth = TARGETS * UNITS[0] + UNITS[1]
    assert OF.score(INPUTS, truth) == r2_score(truth, mean)
    inside = ((ends[..., 0] <= truth) & (truth <= ends[..., 1])).mean(0)
    assert ((inside > 0.75) & (inside < 1)).all()


def test_the_distribution_is_a_mixture_of_independent_targets():
    rows, truth = INPUTS[:9], TARGETS[:9] * UNITS[0] + UNITS[1]
    distribution = OF.predict_dist(rows)
    assert (distribution.batch_shape, distribution.event_shape) == ((9,), (3,))
    ((block, _),) = average_blocks(OF, rows)
    parts = some_rows(block, slice(9)).distribution
    loc, scale = (getattr(parts, name).double() * OF.target_units_.scale for name in ("loc", "scale"))
    each = torch.distributions.Normal(loc + OF.target_units_.mean, scale).log_prob(torch.tensor(truth))
    expected = each.sum(-1).logsumexp(0) - np.log(len(each))
    np.testing.assert_allclose(distribution.log_prob(torch.tensor(truth)), expected, rtol=1e-9)
    mean, std = OF.predict(rows, return_std=True)
    np.testing.assert_allclose(
        (distribution.mean.numpy() - UNITS[1]) / UNITS[0], (mean - UNITS[1]) / UNITS[0], atol=1e-3
    )
    np.testing.assert_allclose(distribution.stddev, std, rtol=1e-4)


def test_targets_of_a_linear_network_with_fixed_noise_are_those_of_a_fit_each():
    settings = {"likelihood": tb.likelihoods.Gaussian(scale=0.5), "prior": tb.priors.Normal(1.0), "network": "linear"}
    method = tb.MAP(epochs=300, batch_size=N, optimizer=tb.Adam(0.05))
    together = regressor(method=method, **settings).fit(INPUTS, TARGETS)
    standard = (INPUTS - INPUTS.mean(0)) / INPUTS.std(0)
    design, scaled = np.c_[standard, np.ones(N)], (TARGETS - TARGETS.mean(0)) / TARGETS.std(0)
    mode = np.linalg.solve(design.T @ design / 0.25 + np.eye(4), design.T @ scaled / 0.25)
    np.testing.assert_allclose(together.predict(INPUTS), design @ mode * TARGETS.std(0) + TARGETS.mean(0), atol=2e-3)


@pytest.mark.parametrize(
    "likelihood", ["gaussian", "student_t", "poisson", tb.likelihoods.Gaussian("learned", outputs=3)]
)
def test_other_likelihoods(likelihood):
    targets = np.round(np.exp(TARGETS / 2)) if likelihood == "poisson" else TARGETS
    of = regressor(likelihood=likelihood).fit(INPUTS, targets, sample_weight=RNG.random(N) + 0.5)
    assert of.predict_interval(INPUTS).shape == (N, 3, 2)
    assert of.predict_dist(INPUTS).log_prob(torch.tensor(targets)).shape == (N,)


def test_a_column_is_one_target_and_a_frame_is_an_array(tmp_path):
    frame = pd.DataFrame(TARGETS, columns=["price", "rent", "size"])
    of = regressor().fit(pd.DataFrame(INPUTS, columns=list("abc")), frame)
    mean = of.predict(pd.DataFrame(INPUTS, columns=list("abc")))
    assert np.array_equal(mean, regressor().fit(INPUTS, TARGETS.tolist()).predict(INPUTS))
    loaded = estimators.load(estimators.save(of, tmp_path / "several.safetensors"))
    assert np.array_equal(loaded.predict(pd.DataFrame(INPUTS, columns=list("abc"))), mean)
    with pytest.warns(Warning, match="column-vector y"):
        single = regressor().fit(INPUTS, TARGETS[:, :1])
    assert np.array_equal(single.predict(INPUTS), regressor().fit(INPUTS, TARGETS[:, 0]).predict(INPUTS))
    assert np.shape(single.predict(INPUTS)) == (N,)


def test_rows_in_parts_and_in_any_order():
    order = RNG.permutation(N)
    plain = regressor().fit(INPUTS, TARGETS).predict(INPUTS)
    assert np.array_equal(regressor().fit(INPUTS[order], TARGETS[order]).predict(INPUTS), plain)
    parts = regressor().partial_fit(INPUTS[:50], TARGETS[:50]).partial_fit(INPUTS[50:], TARGETS[50:])
    assert np.array_equal(parts.predict(INPUTS), plain)
    with pytest.raises(ValueError, match="y has 2 targets in each row, and had 3 before"):
        parts.partial_fit(INPUTS, TARGETS[:, :2])
    assert np.array_equal(parts.predict(INPUTS), plain)


def test_scikit_learn_composes_them():
    of: BayesianMLPRegressor = BayesianMLPRegressor((8,), method=QUICK, random_state=0)
    assert cross_val_score(of, INPUTS, TARGETS, cv=2).shape == (2,)
    each = MultiOutputRegressor(of).fit(INPUTS, TARGETS[:, :2])
    alone = of.fit(INPUTS, TARGETS[:, 1])
    assert np.array_equal(each.predict(INPUTS)[:, 1], alone.predict(INPUTS))


HOSTILE = {
    "missing": (lambda: regressor().fit(INPUTS, np.where(TARGETS > 2, np.nan, TARGETS)), "y contains NaN"),
    "texts": (lambda: regressor().fit(INPUTS, np.where(TARGETS > 2, "a", "b")), "could not convert string"),
    "axes": (lambda: regressor().fit(INPUTS, TARGETS[:, :, None]), "dim 3|1d array"),
    "none": (lambda: regressor().fit(INPUTS, TARGETS[:, :0]), "0 feature|1d array"),
    "lengths": (lambda: regressor().fit(INPUTS, TARGETS[:5]), "inconsistent numbers of samples"),
    "outputs": (lambda: regressor(network=nn.Linear(3, 2)).fit(INPUTS, TARGETS), "6 outputs|outputs|shape"),
    "classes": (lambda: BayesianClassifier(method=QUICK).fit(INPUTS, TARGETS.round()), "1d array"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_targets_are_refused_in_words(name):
    call, words = HOSTILE[name]
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.filterwarnings("error")
def test_a_constant_target_is_said():
    with pytest.warns(tb.ProblemWarning, match="all values of a target are the same"):
        regressor().fit(INPUTS, np.c_[TARGETS[:, 0], np.ones(N)])

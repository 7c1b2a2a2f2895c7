"""Evidence in turns with training: against the exact optimum of a linear model; shuffles; effective weights."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import torchbayes as tb
from torchbayes import networks
from torchbayes.evidence import linear_gaussian_evidence
from torchbayes.experiments.shared.empirical_bayes import best, kept, rounds, shuffled

# a few epochs do not train
pytestmark = pytest.mark.filterwarnings("ignore:.*than under a constant:torchbayes.ProblemWarning")

NOISE = 0.3


def regression(rows=40, columns=4):
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, columns, generator=random, dtype=torch.float64)
    slopes = torch.randn(columns, 1, generator=random, dtype=torch.float64)
    targets = inputs @ slopes + NOISE * torch.randn(rows, 1, generator=random, dtype=torch.float64)
    return inputs, targets


def linear_model(scale, columns=4):
    return tb.Model(networks.linear(columns, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(scale))


def exact_evidence(scale, data):
    return linear_gaussian_evidence(linear_model(scale), data).log_evidence


@pytest.mark.slow
def test_the_turns_end_at_the_prior_of_the_largest_exact_evidence():
    data = regression()
    options = {"bounds": (-3, 3), "method": "bounded", "options": {"xatol": 1e-6}}
    exact: Any = minimize_scalar(lambda s: -exact_evidence(math.exp(s), data), **options)
    first = tb.MAP(1, 400, 40, tb.SGD(0.02), plan="loop")
    dense = tb.Laplace("dense")
    found = rounds(linear_model(8.0), data, first, laplace=dense, again=[first] * 4)
    assert len(found) == 5
    assert all(one.at_mode for one in found)
    # every round is exact for the prior that it was trained under
    for one in found:
        scale = float(one.fitted.model.prior.stds()[0])
        assert float(one.fitted.log_evidence()) == pytest.approx(exact_evidence(scale, data), abs=1e-6)
    chosen = best(found)
    assert float(chosen.fitted.log_evidence()) == pytest.approx(-exact.fun, abs=1e-4)
    assert float(chosen.fitted.model.prior.stds()[0]) == pytest.approx(math.exp(exact.x), rel=0.02)
    assert best(found[::-1]) is chosen  # that of the largest evidence, not merely the last


def test_weights_that_are_no_mode_are_said_so():
    # far from the mode: hardly trained at all
    hardly = tb.MAP(1, 1, 40, tb.SGD(1e-8), plan="loop")
    [one] = rounds(linear_model(1.0), regression(), hardly, laplace=tb.Laplace("dense"))
    assert not one.at_mode


def test_without_a_free_prior_the_model_stays():
    first = tb.MAP(1, 20, 40, tb.SGD(0.02), plan="loop")
    found = rounds(linear_model(1.0), regression(), first, laplace=tb.Laplace("dense"), groups="model", again=[first])
    assert found[1].fitted.model is found[0].fitted.model


def test_effective_parameters_are_those_of_the_explicit_matrices():
    inputs, targets = regression()
    model = linear_model(0.1)
    mode = tb.fit(model, (inputs, targets), tb.MAP(1, 50, 40, tb.SGD(0.02), plan="loop"), callbacks=())
    found = tb.fit(model, (inputs, targets), tb.Laplace("dense"), start=mode, callbacks=())
    design = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], dim=1)
    values = torch.linalg.eigvalsh(design.T @ design / NOISE**2)
    assert isinstance(found, tb.LaplacePosterior)
    assert float(found.effective_parameters()) == pytest.approx(float((values / (values + 100)).sum()), rel=1e-9)
    assert 4 < float(tb.tune(found).effective_parameters()) <= 5 + 1e-9


def test_shuffles_keep_classes_and_grow_with_the_share():
    labels = torch.arange(10).repeat_interleave(30)
    assert torch.equal(shuffled(labels, 0.0, seed=1), labels)
    before, taken = labels, 0
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        found = shuffled(labels, share, seed=1)
        assert Counter(found.tolist()) == Counter(labels.tolist())
        more = round(share * 300)
        assert int((found != labels).sum()) <= more
        # of rows that come in later, each changes itself and at most one more
        assert int((found != before).sum()) <= 2 * (more - taken)
        before, taken = found, more
    kept_labels = np.mean([float((shuffled(labels, 1.0, seed=s) == labels).double().mean()) for s in range(40)])
    assert kept_labels == pytest.approx(0.1, abs=0.01)  # expected share 0.1, its deviation about 0.003
    assert not torch.equal(shuffled(labels, 1.0, seed=1), shuffled(labels, 1.0, seed=2))
    with pytest.raises(ValueError, match=r"between 0 and 1; got 1\.5"):
        shuffled(labels, 1.5, seed=0)


def test_every_arrangement_is_as_likely():
    # three rows have six arrangements; a shuffle that is wrong favours some
    counts = Counter(tuple(shuffled(torch.arange(3), 1.0, seed=seed).tolist()) for seed in range(3000))
    assert len(counts) == 6
    assert max(abs(count - 500) for count in counts.values()) < 5 * math.sqrt(500 * 5 / 6)


def test_what_is_kept_is_not_computed_again(tmp_path):
    path = tmp_path / "a" / "numbers.json"
    path.parent.mkdir()
    assert kept(path, lambda: {"evidence": -1.5}) == {"evidence": -1.5}

    def again():
        raise AssertionError("computed twice")

    assert kept(path, again) == {"evidence": -1.5}

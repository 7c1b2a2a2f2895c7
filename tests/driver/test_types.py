"""What type checkers know of the result of a fit: `make types` checks the assertions, a run that they are true."""

from typing import assert_type

import pytest
import torch
from torch import nn

import torchbayes as tb

pytestmark = pytest.mark.usefixtures("unjudged_fits")

INPUTS = torch.linspace(-1, 1, 8)[:, None]
TARGETS = 0.5 * INPUTS
TRAINED = tb.MAP(epochs=10, optimizer=tb.Adam(lr=0.05))
MODEL = tb.Model(nn.Linear(1, 1), tb.likelihoods.Gaussian(0.3), tb.priors.Normal())


def test_result_of_fit_has_the_type_of_the_method():
    point = tb.fit(MODEL, (INPUTS, TARGETS), TRAINED, callbacks=())
    laplace = tb.fit(MODEL, (INPUTS, TARGETS), tb.Laplace(check_mode=False), start=point, callbacks=())
    draws = tb.fit(MODEL, (INPUTS, TARGETS), tb.EllipticalSlice(steps=40, burn_in=10), callbacks=())
    assert_type(point, tb.Point)
    assert_type(laplace, tb.LaplacePosterior)
    assert_type(draws, tb.Draws)
    assert (type(point), type(laplace), type(draws)) == (tb.Point, tb.LaplacePosterior, tb.Draws)
    assert point.weights_MD.shape == (1, 2)
    assert laplace.log_evidence().isfinite().all()


def test_result_of_fit_in_a_subspace():
    space = tb.Subspace.random(MODEL, torch.zeros(2), rank=1)
    posterior = tb.fit(MODEL, (INPUTS, TARGETS), TRAINED, space=space, callbacks=())
    assert_type(posterior, tb.InSubspace)
    assert type(posterior) is tb.InSubspace

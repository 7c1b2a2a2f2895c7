"""A file says whether prior and noise were chosen, whatever numbers were: it opens with the model that was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.covering import some_of
from tests.oracles import normal
from torchbayes.model.description import describe_model

X = normal(40, 3)
Y = X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.7 * normal(40, seed=1)
Change = Callable[[tb.LaplacePosterior], tb.LaplacePosterior]


def model(prior: tb.priors.Prior | None = None) -> tb.Model:
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    return tb.Model(network, tb.likelihoods.Gaussian(0.7), prior or tb.priors.Normal(0.4))


def fitted(given: tb.Model, method: tb.Laplace) -> tb.LaplacePosterior:
    start = 0.4 * normal(given.layout.size, seed=3)
    posterior = tb.fit(given, (X, Y), method, start=start, callbacks=())
    assert isinstance(posterior, tb.LaplacePosterior)
    return posterior


def by_factors(*factors: float) -> Change:
    def change(posterior: tb.LaplacePosterior) -> tb.LaplacePosterior:
        for factor in factors:
            posterior = posterior.with_strength(posterior.strength_D * factor)
        return posterior

    return change


def by_noise(*factors: float) -> Change:
    def change(posterior: tb.LaplacePosterior) -> tb.LaplacePosterior:
        for factor in factors:
            posterior = posterior.with_noise(factor)
        return posterior

    return change


CHANGES: dict[str, Change] = {
    "nothing": lambda posterior: posterior,
    "a factor of one": by_factors(1.0),
    "a factor, and back": by_factors(4.0, 0.25),
    "another factor": by_factors(3.0),
    "the noise by one": by_noise(1.0),
    "the noise, and back": by_noise(2.0, 0.5),
    "the noise and the prior": lambda posterior: by_factors(1.0)(posterior.with_noise(3.0)),
    "evidence": lambda posterior: tb.tune(posterior, prior="layer", noise=True),
    "rows": lambda posterior: tb.tune(posterior, on=(X, Y)),
}


@pytest.mark.parametrize(
    ("change", "prior"), some_of(CHANGES, [tb.priors.Normal(0.4), tb.priors.StudentT(5.0, 0.4)], one_in=2)
)
def test_a_changed_posterior_opens_with_the_model_given_and_with_its_own(
    change: str, prior: tb.priors.Prior, tmp_path: Path
) -> None:
    given = model(prior)
    posterior = CHANGES[change](fitted(given, tb.Laplace("dense", prior="model", check_mode=False)))
    path = posterior.save(tmp_path / "q.safetensors")
    for known in (given, posterior.model):
        opened = tb.load(path, known)
        assert isinstance(opened, tb.LaplacePosterior)
        assert describe_model(opened.model) == describe_model(posterior.model)
        assert opened.settings() == posterior.settings()
        assert opened.sample(4, seed=1).equal(posterior.sample(4, seed=1))
        assert opened.log_evidence().equal(posterior.log_evidence())
        again = opened.save(tmp_path / "again.safetensors")
        assert describe_model(tb.load(again, given).model) == describe_model(posterior.model)


@pytest.mark.parametrize("prior", [0.5, 1.0, 2.0, "model", "scalar", "layer", "weight"])
def test_the_prior_of_a_method_is_read_back_whatever_it_is(prior: float, tmp_path: Path) -> None:
    given = model()
    posterior = fitted(given, tb.Laplace("diagonal", prior=prior, check_mode=False))
    opened = tb.load(posterior.save(tmp_path / "q.safetensors"), given)
    assert opened.model.prior.stds().equal(posterior.model.prior.stds())
    assert isinstance(opened, tb.LaplacePosterior)
    assert opened.prior_chosen == (prior != "model")


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_the_factor_of_online_laplace_is_read_back(factor: float, tmp_path: Path) -> None:
    given = model()
    method = tb.OnlineLaplace("diagonal", prior="model", epochs_of_descent=1, every=1, factor=factor, check_mode=False)
    posterior = tb.fit(given, (X, Y), method, callbacks=())
    opened = tb.load(posterior.save(tmp_path / "q.safetensors"), given)
    assert describe_model(opened.model) == describe_model(posterior.model)


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_the_scale_of_an_open_prior_is_read_into_a_model_that_has_another(scale: float, tmp_path: Path) -> None:
    open_model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.7))
    scaled = [tb.model.model.having_scale(open_model, each) for each in (scale, 0.25)]
    path = tb.Point(scaled[0], normal(1, 4)).save(tmp_path / "q.safetensors")
    for known in (open_model, *scaled):
        assert float(tb.load(path, known).model.prior.stds()[0]) == pytest.approx(scale)

"""The functional form is Laplace with a dense Gauss-Newton matrix, by a matrix of the size of the data."""

from __future__ import annotations

import pytest
import torch
from tests.covering import some_of
from tests.laws.cases import NETWORKS, made, rows_of
from tests.oracles import LinearGaussian, assert_close, normal
from torch import nn

import torchbayes as tb


def both(model: tb.Model, data: tuple[torch.Tensor, torch.Tensor], link: str = "auto") -> tuple:  # type: ignore[type-arg]
    start = model.given_weights()
    functional = tb.functional_laplace(model, data, start, link=link, chunk=500)  # type: ignore[arg-type]
    dense = tb.fit(model, data, tb.Laplace("dense", check_mode=False, prior="model"), start=start, callbacks=())
    return functional, tb.Linearised(dense, link)  # type: ignore[arg-type]


@pytest.mark.parametrize(("network", "link"), some_of(NETWORKS, ["probit", "pairwise", "bridge"], one_in=3))
def test_classification_on_every_network(network: str, link: str) -> None:
    model = tb.Model(made(network), tb.likelihoods.Categorical(), tb.priors.FanInNormal())
    functional, dense = both(model, rows_of(network), link)
    inputs = normal(5, *NETWORKS[network].shape, seed=9)
    actual, expected = functional.functions(inputs), dense.functions(inputs)
    assert_close(actual.mean_MBK, expected.mean_MBK)
    assert_close(actual.covariance_MBKK, expected.covariance_MBKK, rtol=1e-6, atol=1e-9)
    assert_close(tb.predict(functional, inputs).probs, tb.predict(dense, inputs).probs, rtol=1e-6)
    assert_close(functional.log_evidence(), dense.posterior.log_evidence()[0], rtol=1e-8)
    scores = [tb.evaluate(p, rows_of(network)).metrics["nll"] for p in (functional, dense)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)


def test_regression_is_exact_for_a_linear_model() -> None:
    inputs, targets = normal(12, 3), normal(12, seed=1)
    exact = LinearGaussian(inputs, targets, 0.4, 0.7)
    module = nn.Linear(3, 1).double()
    model = tb.Model(module, tb.likelihoods.Gaussian(0.7), tb.priors.Normal(0.4))
    functional = tb.functional_laplace(model, (inputs, targets), exact.posterior()[0])
    assert_close(functional.log_evidence(), exact.log_evidence(), rtol=1e-9)
    test = normal(4, 3, seed=5)
    prediction = tb.predict(functional, test)
    assert_close(prediction.mean[:, 0], exact.predictive(test)[0], rtol=1e-9)
    assert_close(prediction.variance[:, 0], exact.predictive(test)[1], rtol=1e-8)


@pytest.mark.parametrize("noise", [0.3, 0.03, 0.003])
def test_single_precision_keeps_variances_that_the_data_leave(noise: float) -> None:
    """Of a prior variance of thousands they leave a millionth, which is a difference of the two."""
    module = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    inputs, actual = normal(60, 3), {}
    start = 0.4 * normal(151, seed=2).float()
    for dtype in (torch.float32, torch.float64):
        model = tb.Model(module.to(dtype), tb.likelihoods.Gaussian(noise), tb.priors.Normal(3.0))
        data = inputs.float().to(dtype), normal(60, 1, seed=1).to(dtype)
        functional = tb.functional_laplace(model, data, start.to(dtype))
        actual[dtype] = functional.functions(data[0][:20], diagonal=True).covariance_MBKK
        assert actual[dtype].dtype == dtype
    assert_close(actual[torch.float32], actual[torch.float64], rtol=1e-3)


def test_more_weights_than_memory_for_their_matrix() -> None:
    """A hundred thousand weights: a dense matrix would take 80 GB."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(50, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1))
    model = tb.Model(module, tb.likelihoods.Gaussian(0.1), tb.priors.FanInNormal())
    inputs = torch.randn(40, 50)
    functional = tb.functional_laplace(model, (inputs, inputs[:, 0]), module)
    seen, new = (tb.predict(functional, x).epistemic for x in (inputs, 3 * torch.randn(10, 50)))
    assert float(seen.max()) < 0.011  # below the noise where there are data
    assert float(new.min()) > float(seen.max())


def test_what_it_refuses() -> None:
    data, module = rows_of(), made("mlp")
    with pytest.raises(ValueError, match="more than `largest`=10"):
        tb.functional_laplace(tb.Model(module, tb.likelihoods.Categorical()), data, module, largest=10)
    with pytest.raises(ValueError, match="prior with a precision"):
        tb.functional_laplace(tb.Model(module, tb.likelihoods.Categorical(), tb.priors.Flat()), data, module)
    with pytest.raises(ValueError, match="T = 1"):
        tb.functional_laplace(tb.Model(module, tb.likelihoods.Categorical(), temperature=0.5), data, module)
    functional = tb.functional_laplace(tb.Model(module, tb.likelihoods.Categorical()), data, module)
    for call in (functional.functions, functional.predictive):
        with pytest.raises(ValueError, match=r"the network cannot take inputs of shape \(9, 2\): (addmm: )?mat1"):
            call(normal(9, 2))

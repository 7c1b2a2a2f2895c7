"""What arviz gets of a posterior is what the library itself computes, and its functions run on it."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb

arviz: Any = pytest.importorskip("arviz")
ROWS = 40


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    inputs = torch.linspace(-1, 1, ROWS, dtype=torch.float64).unsqueeze(1)
    return inputs, inputs + 0.3 * torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def model_of(likelihood: Any) -> tb.Model:
    torch.manual_seed(0)
    return tb.Model(nn.Linear(1, 1, dtype=torch.float64), likelihood, tb.priors.Normal(1.0))


@pytest.fixture(scope="module")
def chains(data: tuple[Tensor, Tensor]) -> tb.Posterior:
    method = tb.HMC(chains=4, steps=600, burn_in=100)
    return tb.fit(model_of(tb.likelihoods.Gaussian(0.3)), data, method, callbacks=())


def test_groups_hold_what_the_library_computes(chains: tb.Posterior, data: tuple[Tensor, Tensor]) -> None:
    tree = tb.to_arviz(chains, data, prior=True)
    groups = {"posterior", "posterior_predictive", "log_likelihood", "observed_data", "prior", "prior_predictive"}
    assert set(tree.groups()) == groups
    draws_MS = chains.weights_MSD[:, :, 0].numpy()  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_array_equal(tree.posterior["weight"].values[..., 0, 0], draws_MS)
    prediction = tb.predict(chains, data[0], draws=chains.default_draws)
    noise = prediction.distribution
    expected_SN = noise.log_prob(data[1]).flatten(1)
    found = tree.log_likelihood["targets"].values
    assert found.shape == (4, 500, ROWS)
    np.testing.assert_allclose(found[3, 7], expected_SN[7 * 4 + 3].numpy(), rtol=1e-12)
    np.testing.assert_array_equal(tree.observed_data["targets"].values, data[1][:, 0].numpy())
    spread = tree.posterior_predictive["targets"].values.reshape(-1, ROWS).std(0)
    np.testing.assert_allclose(spread, noise.variance.mean(0).flatten().sqrt().numpy(), rtol=0.25)
    assert tree.prior["weight"].values.shape == (1, 1000, 1, 1)


@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")  # of arviz, to matplotlib
def test_loo_and_plots_of_arviz_run_and_agree(chains: tb.Posterior, data: tuple[Tensor, Tensor]) -> None:
    tree = tb.to_arviz(chains, data)
    ours = tb.loo(chains, data)
    # arviz smooths the tail of all chains together, `loo` of each by itself: their noise differs
    assert arviz.loo(tree).elpd_loo == pytest.approx(ours.elpd, abs=0.1)
    for plot in (arviz.plot_loo_pit, arviz.plot_ppc):
        plot(tree, **({"y": "targets"} if plot is arviz.plot_loo_pit else {}))
    plt.close("all")


def test_other_posteriors_are_one_chain_of_independent_draws(data: tuple[Tensor, Tensor]) -> None:
    model = model_of(tb.likelihoods.Gaussian(0.3))
    swag = tb.fit(model, data, tb.SWAG(members=2, epochs=800), callbacks=())
    tree = tb.to_arviz(swag, data, draws=6, weights="bias", seed=3)
    assert list(tree.posterior) == ["bias"]
    np.testing.assert_array_equal(tree.posterior["bias"].values[0, :, 0], swag.sample(6, seed=3)[:, 1].numpy())
    assert list(tb.to_arviz(swag, weights=[]).groups()) == []
    with pytest.raises(ValueError, match="names no random parameter by 'head"):
        tb.to_arviz(swag, weights="head.*")


def test_classes_and_batches_of_rows() -> None:
    inputs, targets = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    model = tb.Model(nn.Linear(2, 3), tb.likelihoods.Categorical())
    ensemble = tb.fit(model, (inputs, targets), tb.MAP(members=3, epochs=20), callbacks=())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=7)
    tree = tb.to_arviz(ensemble, loader, draws=3)
    assert {"weight", "bias"} == set(tree.posterior)
    assert tree.posterior_predictive["targets"].values.shape == (1, 3, 30)
    whole = tb.to_arviz(ensemble, (inputs, targets), draws=3)
    np.testing.assert_allclose(tree.log_likelihood["targets"], whole.log_likelihood["targets"], rtol=1e-5)

"""What arviz gets of a posterior is what the library itself computes, and its functions run on it."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.driver.log import History
from torchbayes.selection.start import without_dropped

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
    assert set(tree.groups()) == groups | {"sample_stats"}
    draws_MS = chains.weights_MSD[:, :, 0].numpy()  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_array_equal(tree.posterior["weight"].values[..., 0, 0], draws_MS)
    prediction = tb.predict(chains, data[0], draws=chains.default_draws)
    noise = prediction.distribution
    expected_SN = noise.log_prob(data[1]).flatten(1)
    actual = tree.log_likelihood["targets"].values
    assert actual.shape == (4, 500, ROWS)
    np.testing.assert_allclose(actual[3, 7], expected_SN[7 * 4 + 3].numpy(), rtol=1e-12)
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


def log_joint(weights_MSD: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
    """The log joint density of the linear model by its formula, (M, S)."""
    noise = torch.distributions.Normal(weights_MSD[..., :1] * data[0][:, 0] + weights_MSD[..., 1:], 0.3)
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(weights_MSD).sum(-1)
    return noise.log_prob(data[1][:, 0]).sum(-1) + prior


def test_each_draw_has_the_report_of_its_own_step(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    method = tb.HMC(chains=2, steps=60, burn_in=21, thin=3)
    actual: Any = tb.fit(model_of(tb.likelihoods.Gaussian(0.3)), data, method, callbacks=(), directory=tmp_path / "run")
    stats = actual.sample_stats
    torch.testing.assert_close(stats["lp"], log_joint(actual.weights_MSD, data), rtol=1e-10, atol=0)
    assert stats["step"].tolist() == [list(range(24, 61, 3))] * 2
    actual.save(tmp_path / "copy.safetensors")
    for file in (tmp_path / "run" / "posterior.safetensors", tmp_path / "copy.safetensors"):
        loaded = tb.load(file, model_of(tb.likelihoods.Gaussian(0.3)))
        assert loaded.sample_stats is not None
        assert stats.keys() == loaded.sample_stats.keys()
        assert all(torch.equal(stats[name], loaded.sample_stats[name]) for name in stats)


def test_a_resumed_run_reports_what_a_whole_one_does(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    model, method = model_of(tb.likelihoods.Gaussian(0.3)), tb.NUTS(chains=2, steps=60, burn_in=20)
    whole = tb.fit(model, data, method, callbacks=()).sample_stats
    tb.fit(model, data, method, callbacks=[lambda event: event.step == 35], directory=tmp_path)
    resumed = tb.fit(model, data, method, callbacks=(), directory=tmp_path, resume=True).sample_stats
    assert whole is not None
    assert resumed is not None
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    depth, steps = whole["tree_depth"], whole["n_steps"]
    assert bool(((2 ** (depth - 1) <= steps) & (steps < 2**depth)).all())


def test_draws_on_minibatches_have_the_means_of_their_epoch(data: tuple[Tensor, Tensor]) -> None:
    records: list[dict[str, Any]] = []
    method = tb.SGLD(chains=2, steps=200, burn_in=80, thin=1, batch_size=10, step_size=3e-3)
    keep = [lambda event: records.append(event.record) and None]
    actual = tb.fit(model_of(tb.likelihoods.Gaussian(0.3)), data, method, callbacks=keep)
    assert actual.sample_stats is not None
    expected = [[records[(step - 1) // 4]["log_density"][m] for step in range(81, 201)] for m in range(2)]
    assert actual.sample_stats["lp"].tolist() == expected
    assert list(tb.to_arviz(actual).sample_stats) == list(actual.sample_stats)


def test_a_line_that_was_lost_leaves_gaps() -> None:
    history = History({"epoch": n, "step": 4 * n, "energy": [float(n), -float(n)]} for n in (1, 2, 4))
    energy_MS = history.at(torch.arange(1, 18), within=4)["energy"]
    expected = [1.0] * 4 + [2.0] * 4 + [float("nan")] * 4 + [4.0] * 4 + [float("nan")]
    np.testing.assert_array_equal(energy_MS[0].numpy(), expected)
    np.testing.assert_array_equal(energy_MS[1].numpy(), -np.array(expected))


@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")  # of arviz, to matplotlib
def test_arviz_reads_the_reports(chains: tb.Posterior, data: tuple[Tensor, Tensor]) -> None:
    tree = tb.to_arviz(chains)
    ours = tb.diagnostics.ebfmi(torch.from_numpy(tree.sample_stats["energy"].values))
    np.testing.assert_allclose(arviz.bfmi(tree), ours.numpy(), rtol=0.02)  # which divides by S - 1 and S
    for plot in (arviz.plot_energy, arviz.plot_trace):
        plot(tree)
    plt.close("all")
    few, kept = tb.to_arviz(chains, draws=80), range(0, 500, 25)  # of 4 chains of 500 draws, 20 each
    for group, name in (("sample_stats", "lp"), ("posterior", "weight")):
        np.testing.assert_array_equal(few[group][name].values, tree[group][name].values[:, kept])


def test_what_chains_report_leaves_with_them(data: tuple[Tensor, Tensor]) -> None:
    method = tb.HMC(chains=3, steps=30, burn_in=10)
    actual: Any = tb.fit(model_of(tb.likelihoods.Gaussian(0.3)), data, method, callbacks=())
    with pytest.warns(tb.ProblemWarning, match="dropped"):
        left = without_dropped(actual, torch.tensor([False, True, False]))
    torch.testing.assert_close(left.sample_stats["lp"], log_joint(left.weights_MSD, data), rtol=1e-10, atol=0)

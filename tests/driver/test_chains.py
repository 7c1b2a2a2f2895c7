"""What `sample` returns: draws by name, the table, `diagnose` and arviz, which is also the oracle."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.testing import assert_close

import torchbayes as tb
from torchbayes.diagnostics import to_arviz
from torchbayes.report.diagnosis import remarks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    az = pytest.importorskip("arviz")


@pytest.fixture(scope="module")
def chains() -> tb.Chains:
    """Four chains of 50 draws, thinned, of parameters of several shapes."""
    parameters = tb.Parameters(mu=(), tau=constraints.positive, theta=(2, 2), w=(3, constraints.simplex))

    def log_density(mu: Tensor, tau: Tensor, theta: Tensor, w: Tensor) -> Tensor:
        return -mu.square() / 2 - tau - (theta - mu).square().sum() + 2 * w.log().sum()

    method = tb.HMC(4, 140, 40, 2, trajectory=1.0, jitter=0.2)
    return tb.sample(log_density, method, parameters=parameters, callbacks=())


def test_draws_come_by_name_on_their_own_scale(chains: tb.Chains):
    shapes = {name: tuple(draws.shape) for name, draws in chains.draws().items()}
    assert shapes == {"mu": (4, 50), "tau": (4, 50), "theta": (4, 50, 2, 2), "w": (4, 50, 3)}
    assert torch.equal(chains["tau"], chains.weights_MSD[:, :, 1].exp())
    assert_close(chains["w"].sum(-1), torch.ones(4, 50, dtype=torch.float64))
    with pytest.raises(KeyError, match="no parameter 'sigma'; there are mu, tau, theta, w"):
        chains["sigma"]


def test_the_summary_is_that_of_arviz(chains: tb.Chains):
    actual = chains.summary()
    data = to_arviz(chains)
    assert list(actual) == ["mu", "tau", *(f"theta[{i}, {j}]" for i in (0, 1) for j in (0, 1)), "w[0]", "w[1]", "w[2]"]
    oracle = az.summary(data, round_to="none", hdi_prob=0.9, stat_focus="mean")
    for name, row in actual.items():
        expected = oracle.loc[name]
        for ours, theirs in {
            "mean": "mean",
            "sd": "sd",
            "ess_bulk": "ess_bulk",
            "ess_tail": "ess_tail",
            "rhat": "r_hat",
        }.items():
            assert row[ours] == pytest.approx(expected[theirs], rel=1e-6), (name, ours)
    draws = chains["tau"].flatten()
    assert actual["tau"]["q50"] == pytest.approx(float(draws.quantile(0.5)))
    assert actual["tau"]["q5"] == pytest.approx(float(draws.quantile(0.05)))
    assert actual["tau"]["q95"] == pytest.approx(float(draws.quantile(0.95)))


def test_arviz_gets_names_and_the_statistics_of_the_step_before_each_draw(chains: tb.Chains):
    data = to_arviz(chains)
    assert set(data.posterior.data_vars) == {"mu", "tau", "theta", "w"}
    assert_close(torch.as_tensor(data.posterior["theta"].values), chains["theta"])
    stats = data.sample_stats
    assert set(stats.data_vars) >= {"lp", "energy", "acceptance_rate", "step_size", "n_steps", "diverging"}
    assert_close(torch.as_tensor(stats["lp"].values), chains.numbers["log_density"][:, 41::2])
    mu, tau, theta, w = (chains[name] for name in ("mu", "tau", "theta", "w"))
    free = (
        -mu.square() / 2 - tau - (theta - mu[..., None, None]).square().sum((-2, -1)) + 3 * w.log().sum(-1) + tau.log()
    )
    assert_close(torch.as_tensor(stats["lp"].values), free)  # that of a simplex adds the log of all its entries
    assert stats["diverging"].dtype == bool
    assert_close(torch.as_tensor(az.bfmi(data)), torch.as_tensor(az.bfmi(chains.numbers["energy"][:, 41::2].numpy())))


def test_the_table_has_a_row_for_each_quantity(chains: tb.Chains):
    lines = str(chains).splitlines()
    assert lines[0].split("  ")[-1] == "R-hat"
    assert [line.split("  ")[0] for line in lines[1:4]] == ["mu", "tau", "theta[0, 0]"]
    assert len({len(line) for line in lines[:10]}) == 1
    assert lines[10] == "4 chains of 50 draws each, of 140 steps, the first 40 burn-in."
    cells = lines[2].split()
    assert float(cells[1]) == pytest.approx(float(chains["tau"].mean()), rel=1e-3)
    noted = replace(chains, problems=("chain 2 never moved",))
    assert repr(noted).endswith("\nProblem: chain 2 never moved.")


def test_a_long_vector_is_cut_short():
    """Of 30 numbers the first 20 are printed, under the name of a vector without names."""
    method = tb.RandomWalk(2, 12, 2, step_size=0.1)
    chains = tb.sample(lambda w: -w.square().sum(), method, torch.zeros(30), callbacks=())
    lines = str(chains).splitlines()
    assert lines[1].startswith("w[0] ")
    assert lines[20].startswith("w[19]")
    assert lines[21] == "... (10 more)"
    assert len(chains.summary()) == 30
    assert chains["w"].shape == (2, 10, 30)


@pytest.mark.parametrize("draws", [1, 3, 5])
def test_few_draws_have_a_table_without_what_they_do_not_tell(draws: int):
    method = tb.RandomWalk(1, 2 + draws, 2, step_size=0.1)
    chains = tb.sample(lambda w: -w.square().sum(), method, torch.zeros(2), callbacks=())
    row = chains.summary()["w[0]"]
    assert math.isnan(row["ess_bulk"])
    assert math.isnan(row["rhat"]) == (draws < 4)
    assert math.isfinite(row["mean"])
    assert "nan" in str(chains)


def test_a_draw_that_is_not_finite_does_not_hide_the_table(chains: tb.Chains):
    weights = chains.weights_MSD.clone()
    weights[0, 0, 0] = math.nan
    broken = replace(chains, weights_MSD=weights)
    assert math.isnan(broken.summary()["mu"]["rhat"])
    assert broken.summary()["tau"] == chains.summary()["tau"]
    assert "nan" in str(broken)


def test_weights_of_a_network_have_its_names():
    net = torch.nn.Linear(2, 1)
    model = tb.Model(net, tb.likelihoods.Gaussian(1.0))
    density = tb.LogDensity(model, 4, tb.Batch(torch.ones(4, 2), torch.ones(4, 1)))
    chains = tb.sample(density, tb.RandomWalk(2, 12, 2, step_size=0.1), torch.zeros(3), callbacks=())
    assert list(chains.summary()) == ["weight[0, 0]", "weight[0, 1]", "bias[0]"]


def test_diagnose_judges_chains_without_inputs(chains: tb.Chains):
    actual = tb.diagnose(chains)
    assert (actual.chains, actual.draws, actual.functions) == (4, 50, "parameters")
    summary = chains.summary()
    assert_close(actual.spaces["parameters"].rhat, torch.tensor([row["rhat"] for row in summary.values()]).double())
    assert actual.spaces["weights"].rhat.shape == (8,)
    assert actual.record is not None
    assert actual.record.burn_in == 40
    assert_close(actual.record.log_density_MR, chains.numbers["log_density"][:, 40:])
    assert_close(actual.record.gradients_M, chains.numbers["gradients"][:, 40:].sum(1))
    assert actual.per_gradient("parameters").max() < 1
    worst = max(summary, key=lambda name: summary[name]["rhat"])
    assert [trace.name.split(" (")[0] for trace in actual.traces] == ["log density", worst]
    said = " ".join(remarks(actual))
    assert "Averaged over draws, parameters have Monte Carlo standard errors of up to" in said


def test_diagnose_refuses_what_chains_do_not_need(chains: tb.Chains):
    with pytest.raises(TypeError, match="`inputs` is for the draws of a network"):
        tb.diagnose(chains, torch.zeros(3, 1))
    with pytest.raises(ValueError, match="at least 4 draws of each chain; there are 3"):
        tb.diagnose(replace(chains, weights_MSD=chains.weights_MSD[:, :3]))

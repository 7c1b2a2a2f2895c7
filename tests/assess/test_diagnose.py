"""diagnose against the diagnostics of draws of functions that are made by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.covering import some_of
from tests.laws.cases import model_of, normal, rows_of
from torch import Tensor, nn

import torchbayes as tb
from torchbayes import diagnostics
from torchbayes.diagnostics import Summary
from torchbayes.driver.log import read_log
from torchbayes.model.layout import weight_name
from torchbayes.posteriors.store import DrawFile

INPUTS, TARGETS = rows_of()
MODULE = sys.modules["torchbayes.assess.diagnose"]  # the package's attribute of this name is the function


def chain(model: tb.Model, chains: int = 3, draws: int = 30, rho: float = 0.7) -> Tensor:
    """Autocorrelated weights, (M, S, D)."""
    weights_MSD = normal(chains, draws, model.layout.size, dtype=model.network.dtype)
    for s in range(1, draws):
        weights_MSD[:, s] = rho * weights_MSD[:, s - 1] + (1 - rho**2) ** 0.5 * weights_MSD[:, s]
    return weights_MSD


def outputs(model: tb.Model, weights_MSD: Tensor, inputs: Tensor = INPUTS) -> Tensor:
    """Outputs of every draw, one network call each, (M, S, B, K)."""
    with torch.no_grad():
        return torch.stack([
            torch.stack([model.network(model.split(weights_D)[0], inputs) for weights_D in weights_SD])
            for weights_SD in weights_MSD
        ])


def assert_same(actual: Summary, expected: Summary) -> None:
    """Equal to rounding, but for R-hat: rounding decides which of the two middle values is farther from the median.

    If they change places, so do two of the 40 or more ranks that R-hat is made of, which moves it by up to 0.02.
    """
    for name, part in actual._asdict().items():
        atol = 0.02 if name == "rhat" else 1e-12
        torch.testing.assert_close(part, getattr(expected, name), rtol=1e-8, atol=atol, equal_nan=True)


def array(numbers: Tensor | None) -> np.ndarray:
    assert numbers is not None
    return numbers.numpy()


def records_of(chains: int, steps: int, **columns: Any) -> list[dict[str, Any]]:
    """A log with one record a step; a column is an array (M, steps)."""
    columns = {"log_density": normal(chains, steps, seed=9).numpy(), **columns}
    return [
        {"epoch": i + 1, "step": i + 1, **{name: column[:, i].tolist() for name, column in columns.items()}}
        for i in range(steps)
    ]


# --- weight space and function space


@pytest.mark.parametrize(("chunk_size", "block"), some_of([None, 1, 7, 100], [2**22, 300], one_in=2))
def test_spaces_are_those_of_functions_made_one_by_one(
    chunk_size: int | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "_BLOCK", block)  # of 300 numbers: two draws at a time, and three rows
    model = model_of()
    weights_MSD = chain(model)
    actual = tb.diagnose(tb.Draws(model, weights_MSD), INPUTS, TARGETS, chunk_size=chunk_size)
    logits = outputs(model, weights_MSD)
    assert (actual.chains, actual.draws, actual.functions) == (3, 30, "probabilities")
    assert list(actual.spaces) == ["weights", "probabilities", "log likelihoods"]
    assert_same(actual.spaces["weights"], diagnostics.summary(weights_MSD))
    assert_same(actual.spaces["probabilities"], diagnostics.summary(logits.softmax(-1)))
    each = logits.log_softmax(-1).gather(-1, TARGETS.expand(3, 30, -1).unsqueeze(-1)).squeeze(-1)
    assert_same(actual.spaces["log likelihoods"], diagnostics.summary(each))
    assert actual.traces[0].name == "log likelihood of the 24 rows"
    torch.testing.assert_close(actual.traces[0].values_MS, each.sum(-1))


def test_the_memory_of_functions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more rows than asked for, and no more draws than a block holds, go through the network at once."""
    model, seen = model_of(), []
    monkeypatch.setattr(MODULE, "_BLOCK", 8 * 3 * model.layout.size)
    real = tb.Functions.__call__

    def watched(self: tb.Functions, inputs: Tensor, **settings: Any) -> Tensor:
        seen.append((self.draws, len(inputs)))
        return real(self, inputs, **settings)

    monkeypatch.setattr(tb.Functions, "__call__", watched)
    tb.diagnose(tb.Draws(model, chain(model, 3, 50)), INPUTS, TARGETS, chunk_size=5)
    draws, rows = zip(*seen, strict=True)
    assert max(draws) == 8 * 3
    assert max(rows) == 5
    assert sum(d * r for d, r in seen) <= 3 * 50 * 24 + 3 * (50 + 1)  # each once, but for the first draw and the trace


def test_a_regression_has_means_and_its_learned_noise() -> None:
    model = tb.Model(nn.Linear(4, 2).double(), tb.likelihoods.Gaussian("learned"), tb.priors.Normal(1.0))
    weights_MSD, targets = chain(model, 2, 20), normal(24, 2, seed=3)
    actual = tb.diagnose(tb.Draws(model, weights_MSD), INPUTS, targets)
    means = outputs(model, weights_MSD)
    assert_same(actual.spaces["means"], diagnostics.summary(means))
    scale = weights_MSD[..., -1:].exp().unsqueeze(-1)
    each = torch.distributions.Normal(means, scale).log_prob(targets).sum(-1)
    assert_same(actual.spaces["log likelihoods"], diagnostics.summary(each))


def test_targets_may_have_several_parts() -> None:
    model = tb.Model(nn.Linear(4, 2).double(), tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.5)))
    weights_MSD, targets, counts = chain(model, 2, 20), normal(24, 2, seed=3), torch.arange(24).double()
    actual = tb.diagnose(tb.Draws(model, weights_MSD), INPUTS, (targets, counts), chunk_size=5)
    each = counts * torch.distributions.Normal(outputs(model, weights_MSD), 0.5).log_prob(targets).sum(-1)
    assert_same(actual.spaces["log likelihoods"], diagnostics.summary(each))


def test_inputs_without_targets_and_of_several_parts() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(a + b)

    model = tb.Model(Sum().double(), tb.likelihoods.Categorical())
    posterior = tb.Draws(model, chain(model))
    actual = tb.diagnose(posterior, (INPUTS, 2 * INPUTS), chunk_size=5)
    one = tb.diagnose(
        tb.Draws(tb.Model(nn.Linear(4, 3).double(), tb.likelihoods.Categorical()), chain(model)), 3 * INPUTS
    )
    assert_same(actual.spaces["probabilities"], one.spaces["probabilities"])
    assert list(actual.spaces) == ["weights", "probabilities"]
    assert [trace.over for trace in actual.traces] == ["draw", "draw"]


def test_networks_that_exchange_units_agree_as_functions_alone() -> None:
    """Every chain has the hidden units in its own order: R-hat of functions does not see it."""
    model = model_of()
    same = normal(model.layout.size, seed=2) + 0.1 * normal(4, 60, model.layout.size, seed=4)
    views = model.split(same.clone())[0]
    moved = []
    for m in range(4):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(m))
        own = {name: view[m] for name, view in views.items()}
        own["0.weight"], own["0.bias"] = own["0.weight"][:, order], own["0.bias"][:, order]
        own["2.weight"] = own["2.weight"][:, :, order]
        moved.append(model.layout.join(own))
    actual, plain = (
        tb.diagnose(tb.Draws(model, weights_MSD), INPUTS, TARGETS) for weights_MSD in (torch.stack(moved), same)
    )
    assert_same(actual.spaces["probabilities"], plain.spaces["probabilities"])
    assert float(plain.spaces["weights"].rhat.median()) < 1.05
    assert float(actual.spaces["weights"].rhat.median()) > 1.5


def test_one_chain_is_judged_by_its_halves() -> None:
    """A step in the middle of the one chain shows; classic R-hat of the ranks of its halves is what is reported."""
    model = model_of()
    weights_MSD = chain(model, chains=1, draws=40, rho=0.0)
    weights_MSD[:, 20:, 7] += 5.0
    actual = tb.diagnose(tb.Draws(model, weights_MSD), INPUTS)
    scores = torch.special.ndtri((weights_MSD[0, :, 7].argsort().argsort().double() + 1 - 0.375) / 40.25)
    within, between = scores.unflatten(0, (2, 20)).var(1).mean(), scores.unflatten(0, (2, 20)).mean(1).var()
    assert actual.chains == 1
    torch.testing.assert_close(actual.spaces["weights"].rhat[7], (19 / 20 + between / within).sqrt())
    assert int(actual.spaces["weights"].rhat.argmax()) == 7


def test_what_never_moves_is_nan_and_few_draws_have_no_sizes() -> None:
    model = model_of()
    weights_MSD = chain(model, 2, 12)
    weights_MSD[:, :, 5] = 0.3
    actual = tb.diagnose(tb.Draws(model, weights_MSD), INPUTS).spaces["weights"]
    assert int(actual.rhat.isnan().sum()) == 1
    assert bool(actual.rhat[5].isnan())
    few = tb.diagnose(tb.Draws(model, weights_MSD[:, :9]), INPUTS).spaces["weights"]
    torch.testing.assert_close(few.rhat, diagnostics.rhat(weights_MSD[:, :9]), equal_nan=True)
    assert all(bool(part.isnan().all()) for part in (few.ess_bulk, few.ess_tail, few.mcse))


def test_traces_are_of_the_worst() -> None:
    model = model_of()
    weights_MSD = chain(model, 3, 40, rho=0.0)
    weights_MSD[0, :, 10] += 4.0
    actual = tb.diagnose(tb.Draws(model, weights_MSD), INPUTS)
    weight, function = actual.traces
    rhat = float(actual.spaces["weights"].rhat[10])
    assert weight.name == f"weight 0.weight[2, 2] (R-hat {rhat:.2f})"
    torch.testing.assert_close(weight.values_MS, weights_MSD[:, :, 10])
    row, label = divmod(int(actual.spaces["probabilities"].mcse.argmax()), 3)
    assert function.name.startswith(f"probability of class {label} at input {row} (R-hat ")
    torch.testing.assert_close(function.values_MS, outputs(model, weights_MSD).softmax(-1)[:, :, row, label])
    assert torch.equal(function.at_S, torch.arange(1, 41))


def test_weights_are_named_by_their_place() -> None:
    layout = model_of().layout
    for name, part in layout.split(torch.arange(layout.size)).items():
        for place in np.ndindex(*part.shape):
            assert weight_name(layout, int(part[place])) == f"{name}[{', '.join(map(str, place))}]"


# --- the log


def test_the_log_of_a_sampler_on_all_the_data() -> None:
    model, generator = model_of(), np.random.default_rng(0)
    columns = {
        "energy": generator.normal(size=(2, 30)),
        "acceptance": generator.uniform(size=(2, 30)),
        "divergent": (generator.uniform(size=(2, 30)) < 0.2).astype(float),
        "gradients": generator.integers(1, 9, (2, 30)).astype(float),
        "step_size": generator.uniform(size=(2, 30)),
    }
    log = records_of(2, 30, **columns)
    actual = tb.diagnose(tb.Draws(model, chain(model, 2, 20)), INPUTS, log=log, burn_in=10)
    record = actual.record
    assert record is not None
    after = {name: column[:, 10:] for name, column in columns.items()}
    jumps = np.diff(after["energy"]) ** 2
    spread = (after["energy"] - after["energy"].mean(1, keepdims=True)) ** 2
    np.testing.assert_allclose(array(record.ebfmi_M), jumps.sum(1) / spread.sum(1))
    np.testing.assert_allclose(array(record.acceptance_M), after["acceptance"].mean(1))
    np.testing.assert_array_equal(array(record.divergences_M), after["divergent"].sum(1))
    np.testing.assert_allclose(array(record.step_size_M), after["step_size"].mean(1))
    np.testing.assert_array_equal(array(record.gradients_M), after["gradients"].sum(1))
    np.testing.assert_array_equal(array(record.burn_in_gradients_M), columns["gradients"][:, :10].sum(1))
    level = torch.tensor([line["log_density"] for line in log[10:]], dtype=torch.float64).T
    assert_same(actual.spaces["log density"], diagnostics.summary(level))
    assert actual.gradients == after["gradients"].sum()
    torch.testing.assert_close(actual.per_gradient("weights"), actual.spaces["weights"].ess_bulk / actual.gradients)
    assert actual.traces[0].name == "log density"
    torch.testing.assert_close(actual.traces[0].values_MS, level)
    assert torch.equal(actual.traces[0].at_S, torch.arange(11, 31))


def test_a_sampler_without_momentum_has_no_ebfmi() -> None:
    level = normal(2, 20, seed=1).numpy()
    model = model_of()
    posterior = tb.Draws(model, chain(model, 2, 20))
    log = records_of(2, 20, log_density=level, gradients=np.ones((2, 20)))
    record = tb.diagnose(posterior, INPUTS, log=log).record
    assert record is not None
    assert record.ebfmi_M is None
    log = records_of(2, 20, log_density=level, energy=0.1 - level, gradients=np.ones((2, 20)))
    record = tb.diagnose(posterior, INPUTS, log=log).record
    assert record is not None
    assert record.ebfmi_M is not None
    assert bool((record.ebfmi_M > 0).all())


def test_gradients_of_minibatches_are_passes_over_the_data() -> None:
    """Six steps make an epoch; 21 steps with 9 of burn-in are two passes after it, and the log is of estimates."""
    model = model_of()
    log = [{"epoch": e + 1, "step": s, "log_density": [1.0 * e, 2.0]} for e, s in enumerate((6, 12, 18, 21))]
    actual = tb.diagnose(tb.Draws(model, chain(model, 2, 12)), INPUTS, TARGETS, log=log, burn_in=9)
    record = actual.record
    assert record is not None
    np.testing.assert_allclose(array(record.gradients_M), [2.0, 2.0])
    np.testing.assert_allclose(array(record.burn_in_gradients_M), [1.5, 1.5])
    assert not record.exact
    assert "log density" not in actual.spaces
    assert actual.traces[0].name == "log likelihood of the 24 rows"
    without = tb.diagnose(tb.Draws(model, chain(model, 2, 12)), INPUTS, log=log, burn_in=9).traces[0]
    assert without.name == "log density, mean of an epoch's estimates"
    torch.testing.assert_close(without.values_MS[0], torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))


def test_a_log_of_burn_in_alone_says_nothing() -> None:
    model = model_of()
    log = records_of(2, 8, gradients=np.ones((2, 8)))
    actual = tb.diagnose(tb.Draws(model, chain(model, 2, 12)), INPUTS, log=log, burn_in=8)
    assert actual.record is None
    assert np.isnan(actual.gradients)
    assert bool(actual.per_gradient("weights").isnan().all())


# --- runs on disk


def run_of(directory: Path, method: Any = None, **settings: Any) -> tb.Draws:
    method = method or tb.HMC(2, 40, 20, trajectory=0.3, step_size=0.05, plan="loop")
    posterior = tb.fit(model_of(), rows_of(), method, directory=directory, callbacks=(), **settings)
    assert isinstance(posterior, tb.Draws)
    return posterior


def test_a_run_directory_gives_burn_in_and_what_every_step_saw(tmp_path: Path) -> None:
    posterior = run_of(tmp_path)
    actual = tb.diagnose(posterior, INPUTS, TARGETS, log=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    energy_MR = np.array([line["energy"] for line in lines[20:]]).T
    record = actual.record
    assert record is not None
    assert record.burn_in == 20
    np.testing.assert_array_equal(array(record.ebfmi_M), diagnostics.ebfmi(torch.from_numpy(energy_MR)))
    assert actual.gradients == sum(sum(line["gradients"]) for line in lines[20:])
    # the log density that the log gives at each draw is that of the drawn weights
    density = tb.LogDensity(model_of(), 24, posterior.model.unpack(rows_of()), plan="loop")
    last_M = density(posterior.weights_MSD[:, -1]).log_density
    torch.testing.assert_close(record.log_density_MR[:, -1], last_M, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", [tb.RandomWalk, tb.MALA])
def test_metropolis_samplers_have_no_momentum(tmp_path: Path, kind: Any) -> None:
    posterior = run_of(tmp_path, kind(2, 30, 10, step_size=0.02, plan="loop"))
    record = tb.diagnose(posterior, INPUTS, log=tmp_path).record
    assert record is not None
    assert record.ebfmi_M is None
    np.testing.assert_array_equal(array(record.gradients_M), [20, 20])


def test_minibatch_samplers_log_epochs(tmp_path: Path) -> None:
    posterior = run_of(tmp_path, tb.SGLD(2, 45, 10, step_size=1e-3, batch_size=6, plan="loop", thin=1))
    record = tb.diagnose(posterior, INPUTS, log=tmp_path).record
    assert record is not None
    np.testing.assert_allclose(array(record.gradients_M), [35 / 4, 35 / 4])
    np.testing.assert_allclose(array(record.burn_in_gradients_M), [10 / 4, 10 / 4])


def test_a_run_that_was_killed_in_a_write_is_read_up_to_there(tmp_path: Path) -> None:
    posterior = run_of(tmp_path)
    expected = tb.diagnose(posterior, INPUTS, log=tmp_path)
    with (tmp_path / "draws.bin").open("ab") as file:
        file.write(b"\0" * 12)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"epoch": 41, "step": 41, "log_dens')
    os.remove(tmp_path / "posterior.safetensors")
    draws = tb.Draws(model_of(), DrawFile.open(tmp_path).read())
    actual = tb.diagnose(draws, INPUTS, log=str(tmp_path))
    assert actual.draws == 20
    for name, space in expected.spaces.items():
        assert_same(actual.spaces[name], space)
    assert len(read_log(tmp_path)) == 40
    assert read_log(tmp_path / "nothing") == []


def test_a_run_is_diagnosed_while_it_goes_on(tmp_path: Path) -> None:
    """A callback looks in after 30 of 40 steps: what it sees is the diagnosis of the first ten draws of the whole."""
    seen = []

    def look(event: tb.Event) -> None:
        if event.step == 30:
            draws = tb.Draws(model_of(), DrawFile.open(tmp_path).read())
            seen.append(tb.diagnose(draws, INPUTS, log=tmp_path))

    method = tb.HMC(2, 40, 20, trajectory=0.3, step_size=0.05, plan="loop")
    posterior = tb.fit(model_of(), rows_of(), method, directory=tmp_path, callbacks=[look])
    assert isinstance(posterior, tb.Draws)
    (actual,) = seen
    assert actual.draws == 10
    first = dataclasses.replace(posterior, weights_MSD=posterior.weights_MSD[:, :10])
    assert_same(actual.spaces["probabilities"], tb.diagnose(first, INPUTS).spaces["probabilities"])
    assert actual.record is not None
    assert torch.equal(actual.record.step_R, torch.arange(21, 31))


# --- what cannot be diagnosed


def test_what_has_no_chains_is_refused() -> None:
    model = model_of()
    with pytest.raises(TypeError, match=r"such as HMC, and posteriors with a density.*got a Point posterior"):
        tb.diagnose(tb.Point(model, chain(model)[:, 0]), INPUTS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 4 draws of each chain; there are 3"):
        tb.diagnose(tb.Draws(model, chain(model, 2, 3)), INPUTS)
    with pytest.raises(ValueError, match="at least 4 draws of each chain; there are 0"):
        tb.diagnose(tb.Draws(model, chain(model, 2, 3)[:, :0]), INPUTS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "`inputs` must be rows at which .* are compared; got None"),
        ({"inputs": INPUTS[:0]}, "a target for each; got 0 rows"),
        ({"inputs": INPUTS, "targets": TARGETS[:5]}, "got 24 rows and 5 targets"),
        ({"inputs": INPUTS, "targets": TARGETS + 1}, "class labels must lie in 0..2"),
        ({"inputs": INPUTS * float("nan")}, "inputs must be finite"),
        ({"inputs": INPUTS, "log": records_of(3, 5)}, "not one of 2 chains"),
        ({"inputs": INPUTS, "log": [{"epoch": 1, "step": 1, "loss": [0.1, 0.2]}]}, "not one of 2 chains"),
    ],
)
def test_inputs_targets_and_log_must_fit(settings: dict[str, Any], message: str) -> None:
    model = model_of()
    with pytest.raises(ValueError, match=message):
        tb.diagnose(tb.Draws(model, chain(model, 2, 12)), **settings)


def test_draws_that_are_not_finite_are_refused() -> None:
    model = model_of()
    weights_MSD = chain(model, 2, 12)
    weights_MSD[1, 4, 3] = float("inf")
    with (
        pytest.raises(ValueError, match="holds NaN or infinite values"),
        pytest.warns(tb.ProblemWarning, match="not finite"),
    ):
        tb.diagnose(tb.Draws(model, weights_MSD), INPUTS)

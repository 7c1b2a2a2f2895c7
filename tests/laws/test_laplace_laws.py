"""Laws of Laplace, whatever its structure, on every network: those of methods, where the start is a mode."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import torchbayes as tb
from tests.laws.cases import (
    NETWORKS,
    assert_same_tensors,
    everything,
    losses,
    made,
    normal,
    rows_of,
    unjudged,
    with_variants_as_studies,
)
from tests.laws.test_method_laws import break_after, keep_every
from tests.oracles import assert_close
from tests.ranks import check, launch
from torchbayes.curvature import factors
from torchbayes.driver.checkpoint import flatten
from torchbayes.model.sources.sources import as_source
from torchbayes.randomness.seeds import member_seeds

KINDS: dict[str, dict[str, Any]] = {
    "diagonal": {"structure": "diagonal"},
    "kronecker": {"structure": "kronecker"},
    "reduce": {"structure": "kronecker", "sharing": "reduce", "joint_bias": False},
    "ekfac": {"structure": "ekfac"},
    "dense": {"structure": "dense"},
    "low_rank": {"structure": "low_rank", "rank": 3, "passes": 2},
    "fisher": {"structure": "kronecker", "curvature": "fisher", "samples": 2},
    "empirical": {"structure": "diagonal", "curvature": "empirical"},
    "hessian": {"structure": "dense", "curvature": "hessian"},
    "long": {"structure": "kronecker", "rank": 1},
}
BATCH = 13  # two batches of unlike sizes

# what these do in the laws of a whole fit another does by the same structure or pass
VARIANTS = ("reduce", "diagonal", "kronecker")


@pytest.fixture(autouse=True)
def long_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side of these networks is long if it is no shorter than the other; only a kind with a rank makes use of it."""
    monkeypatch.setattr(factors, "RATIO", 1)


kinds = pytest.mark.parametrize("kind", KINDS)
chief = pytest.mark.parametrize("kind", with_variants_as_studies({kind: kind for kind in KINDS}, VARIANTS))
unjudged_fits = pytest.mark.usefixtures("unjudged_fits")


def on_networks(further: int = 0) -> pytest.MarkDecorator:
    """Each kind on one network, in turn, or on one that comes some places later; on the others as a study.

    Structures meet the layers of every network in tests/curvature.
    """
    order = [*NETWORKS]
    run = {kind: order[(n + further) % len(order)] for n, kind in enumerate(k for k in KINDS if k not in VARIANTS)}
    return pytest.mark.parametrize(
        ("kind", "network"),
        [
            pytest.param(kind, network, marks=() if run.get(kind) == network else pytest.mark.study)
            for kind, network in itertools.product(KINDS, NETWORKS)
        ],
    )


def method_of(kind: str, **settings: Any) -> tb.Laplace:
    """A method; weights here are random and no mode."""
    return tb.Laplace(**{"batch_size": BATCH, "check_mode": False, "prior": "model", **KINDS[kind], **settings})


def modes(model: tb.Model, members: int = 2) -> Tensor:
    """Some weights that are not too far from the prior's mean, so that the exact Hessian is definite."""
    return 0.1 * normal(members, model.layout.size, seed=5, dtype=model.network.dtype)


def model_for(kind: str, network: str = "mlp", **settings: Any) -> tb.Model:
    """A classifier; under a narrow prior where the curvature may be negative."""
    scale = 0.1 if kind == "hessian" else 1.0
    return tb.Model(made(network), tb.likelihoods.Categorical(), tb.priors.Normal(scale), **settings)


def fitted(kind: str, network: str = "mlp", **options: Any) -> tb.LaplacePosterior:
    """One small fit."""
    model = model_for(kind, network)
    options = {"start": modes(model), "seed": 7, "callbacks": (), **options}
    with patch.object(factors, "RATIO", 1):  # in other processes too
        return tb.fit(model, rows_of(network), method_of(kind), **options)  # type: ignore[return-value]


@cache
def in_memory(kind: str, network: str) -> tb.LaplacePosterior:
    """The small fit that several laws compare with."""
    with unjudged():
        return fitted(kind, network)


@on_networks(2)
@unjudged_fits
def test_interrupted_and_resumed_equals_uninterrupted(
    kind: str, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unjudged():
        expected = fitted(kind, network, directory=tmp_path / "whole")
    keep_every(monkeypatch, 10.0)
    steps = 2 * method_of(kind).epochs - 1  # within the pass, or the second where there are two
    with monkeypatch.context() as inside:
        break_after(inside, tb.Laplace, steps)
        with pytest.raises(KeyboardInterrupt):
            fitted(kind, network, directory=tmp_path / "cut")
    resumed = fitted(kind, network, directory=tmp_path / "cut", resume=True)
    assert_same_tensors(everything(resumed), everything(expected))
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    again = fitted(kind, network, directory=tmp_path / "whole", resume=True)
    assert_same_tensors(everything(again), everything(expected))


@pytest.mark.filterwarnings("ignore:the directions that the low rank leaves out")
@on_networks()
def test_members_together_equal_members_alone(kind: str, network: str) -> None:
    together = in_memory(kind, network)
    assert together.members == 2
    with unjudged():
        alone = fitted(kind, network, start=modes(model_for(kind, network))[1:], seed=member_seeds(7, 2)[1])
    covariance = together.gaussian.covariance.dense()[1]
    assert_close(covariance, alone.gaussian.covariance.dense()[0], rtol=1e-7, atol=1e-10)
    assert_close(together.log_evidence()[1], alone.log_evidence()[0], rtol=1e-9)


@on_networks()
def test_step_is_pure_and_donating_changes_nothing(kind: str, network: str) -> None:
    method, model = method_of(kind, members=2), model_for(kind, network)
    source, seeds = as_source(model, rows_of(network), BATCH), member_seeds(7, 2)
    density = tb.LogDensity(model, source.num_data, plan="loop")
    start, buffers = modes(model), model.network.stacked_buffers(2)
    options = {"seeds": seeds, "steps_per_epoch": source.steps_per_epoch}
    state, donated = (method.init(density, start, buffers, **options) for _ in range(2))
    for epoch in range(method.epochs):
        for batch in source.epoch(seeds, epoch):
            before = {name: tensor.clone() for name, tensor in flatten(state)[0].items()}
            first, info = method.step(density, state, batch)
            donated, donated_info = method.step(density, donated, batch, donate=True)
            assert_same_tensors(flatten(state)[0], before)
            assert_same_tensors(flatten(first)[0], flatten(donated)[0])
            assert torch.equal(info.nll_M, donated_info.nll_M)
            state = first
    by_hand = method.posterior(density, state)
    assert_same_tensors(by_hand.tensors(), in_memory(kind, network).tensors())


@on_networks(4)
def test_saved_posterior_is_the_returned_one_and_nothing_else_moves(kind: str, network: str, tmp_path: Path) -> None:
    module = made(network).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    model = tb.Model(module, tb.likelihoods.Categorical(), tb.priors.Normal(0.1))
    posterior = tb.fit(model, rows_of(network), method_of(kind), start=modes(model), directory=tmp_path, callbacks=())
    loaded = tb.load(tmp_path / "posterior.safetensors", model)
    assert_same_tensors(everything(loaded), everything(posterior))
    inputs, _ = rows_of(network)
    linear, again = (tb.predict(tb.Linearised(p), inputs).probs for p in (posterior, loaded))  # type: ignore[arg-type]
    assert_close(linear, again, rtol=1e-13)  # products round by where their factors lie in memory
    assert torch.equal(posterior.functions(4, seed=1)(inputs), loaded.functions(4, seed=1)(inputs))
    assert_same_tensors(module.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in module.modules())
    assert all(p.grad is None for p in module.parameters())


@chief
def test_size_of_batches_and_pieces_changes_nothing(kind: str) -> None:
    """H is a sum over rows; sampled targets differ between batches, so they are left out."""
    if kind == "fisher":
        return
    model, whole = model_for(kind), in_memory(kind, "mlp")
    method = method_of(kind, batch_size=5, chunk=400)
    with unjudged():
        pieces = tb.fit(model, rows_of(), method, start=modes(model), seed=7, callbacks=())
    for m in range(2):
        actual = pieces.gaussian.covariance.dense()[m]  # type: ignore[attr-defined]
        assert_close(actual, whole.gaussian.covariance.dense()[m], rtol=1e-7, atol=1e-9)


@kinds
def test_float32_is_kept(kind: str) -> None:
    module = made("mlp", torch.float32)
    model = tb.Model(module, tb.likelihoods.Categorical(), tb.priors.Normal(0.1))
    posterior = tb.fit(model, rows_of("mlp", torch.float32), method_of(kind), start=modes(model), callbacks=())
    own = {name: tensor.dtype for name, tensor in posterior.tensors().items()}
    assert {d for n, d in own.items() if n not in {"log_likelihood_M", "curvature.order_D"}} == {torch.float32}
    assert posterior.sample(2).dtype == torch.float32


# batch norm sees its own statistics here, not those of a batch, so that its rows can be split too
SHARED = [*((kind, "mlp") for kind in KINDS), ("kronecker", "conv_batch_norm"), ("dense", "conv_batch_norm")]
# ranks add up sums over rows: those of `dense` and others, which have no second pass, as those of `kronecker`
FEW = [("ekfac", "mlp"), ("low_rank", "mlp"), ("kronecker", "conv_batch_norm"), ("long", "mlp")]


def fit_shared(ranks: tb.Ranks, folder: Path, shared: list[tuple[str, str]]) -> None:
    """Fit with kinds on ranks; each saves what it got."""
    number = ranks.data_rank * ranks.chains + ranks.chain_rank
    for kind, network in shared:
        with unjudged():
            actual = fitted(kind, network, start=modes(model_for(kind, network), 3), ranks=ranks)
        tensors = {n: t.contiguous() for n, t in everything(actual).items()}
        save_file(tensors, folder / f"{kind}_{network}_{number}.safetensors")


def fit_all(grid: tuple[int, int], folder: Path) -> None:
    """Fit with all kinds on a grid of processes."""
    with tb.Ranks.grid(*grid) as ranks:
        fit_shared(ranks, folder, SHARED)


@pytest.mark.slow
@pytest.mark.study  # tests/laws/test_rank_laws.py has some that share the rows; the driver shares members of any method
@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2)])
def test_ranks_together_equal_one_process(grid: tuple[int, int], tmp_path: Path) -> None:
    check(launch(fit_all, grid[0] * grid[1], tmp_path, grid, tmp_path))
    # rows on another rank draw other targets: these need whole rows
    shared = [(kind, network) for kind, network in SHARED if kind != "fisher" or grid[0] == 1]
    assert_ranks_found_the_same(tmp_path, shared, grid[0] * grid[1])


def assert_ranks_found_the_same(folder: Path, shared: list[tuple[str, str]], count: int) -> None:
    """What each of some ranks has left is what one process finds."""
    for kind, network in shared:
        with unjudged():
            alone = fitted(kind, network, start=modes(model_for(kind, network), 3))
        for rank in range(count):
            actual = load_file(folder / f"{kind}_{network}_{rank}.safetensors")
            other = tb.LaplacePosterior.restore(model_for(kind, network), actual, alone.settings())
            # eigenvectors are not unique, their products are
            ours, theirs = (p.gaussian.covariance.dense() for p in (alone, other))
            assert_close(theirs, ours, rtol=1e-7, atol=1e-9)
            assert_close(actual["log_likelihood_M"], alone.log_likelihood_M)

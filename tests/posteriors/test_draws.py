"""Draws: which are taken, and that all of them are used where they lie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import made, model_of, rows_of
from tests.oracles import assert_close, normal
from torchbayes import checks
from torchbayes.native.build import available
from torchbayes.posteriors.draws import thinned
from torchbayes.posteriors.store import DrawFile

DTYPES = [torch.float16, torch.float32, torch.float64, torch.bfloat16]
SAMPLER = tb.SGLD(chains=2, steps=8, burn_in=2, thin=2, batch_size=6, step_size=1e-3)


def from_disk(folder: Path, weights_MSD: Tensor) -> Tensor:
    """Draws that were written to a file, mapped into memory."""
    file = DrawFile.create(folder, weights_MSD[:, 0], {"w": weights_MSD.shape[2:]})
    for weights_MD in weights_MSD.unbind(1):
        file.append(weights_MD)
    return file.read()


def shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without free memory."""
    monkeypatch.setattr(checks, "free_memory", lambda _device="cpu": 0.0)
    monkeypatch.setattr(checks, "_SMALL", -1)


# --- all draws, where they lie ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chains", [1, 2, 3])
def test_all_draws_on_disk_are_one_view(chains: int, dtype: torch.dtype, tmp_path: Path, no_memory: None) -> None:
    model = tb.Model(made("mlp").to(dtype), tb.likelihoods.Categorical())
    expected_MSD = normal(chains, 5, model.layout.size).to(dtype)
    weights_MSD = from_disk(tmp_path, expected_MSD)
    weights_SD = tb.Draws(model, weights_MSD).sample(5 * chains)
    assert shares_memory(weights_SD, weights_MSD)
    for s, weights_D in enumerate(weights_SD):
        assert torch.equal(weights_D, expected_MSD[s % chains, s // chains])


@pytest.mark.parametrize("streamed", [False, True])
def test_all_draws_of_a_fit_are_one_view(streamed: bool, tmp_path: Path) -> None:
    posterior = tb.fit(model_of(), rows_of(), SAMPLER, directory=tmp_path if streamed else None, callbacks=())
    assert isinstance(posterior, tb.Draws)
    assert posterior.weights_MSD.shape[:2] == (2, 3)
    assert shares_memory(posterior.sample(6), posterior.weights_MSD)


@pytest.mark.skipif(not available(), reason="kernels cannot be built here (compiler or MKL missing)")
@pytest.mark.parametrize("chains", [1, 3])
def test_the_kernel_reads_draws_where_they_lie(chains: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tb.Model(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), tb.likelihoods.Categorical())
    weights_MSD, inputs = from_disk(tmp_path, normal(chains, 5, model.layout.size).float()), normal(7, 4).float()
    expected = tb.predict(tb.Point(model, weights_MSD.transpose(0, 1).reshape(5 * chains, -1)), inputs)
    seen, pointer = [], torch.Tensor.data_ptr

    def noted(tensor: torch.Tensor) -> int:
        if sys._getframe(1).f_globals["__name__"] == "torchbayes.native.dense":  # which hands it to the kernel
            seen.append(pointer(tensor))
        return pointer(tensor)

    monkeypatch.setattr(torch.Tensor, "data_ptr", noted)
    actual = tb.predict(tb.Draws(model, weights_MSD), inputs)
    assert pointer(weights_MSD) in seen
    assert_close(actual.outputs_SBK, expected.outputs_SBK, rtol=1e-5, atol=1e-5)


# --- memory ---


def test_all_draws_are_used_whatever_is_free(tmp_path: Path, no_memory: None) -> None:
    model = model_of()
    posterior = tb.Draws(model, from_disk(tmp_path, normal(2, 6, model.layout.size)))
    assert len(posterior.functions().weights_SD) == 12
    assert posterior.sample(12).shape == (12, model.layout.size)


@pytest.mark.parametrize("draws", [2, 6, 24])
def test_draws_that_must_be_copied_are_refused_where_they_do_not_fit(draws: int, no_memory: None) -> None:
    model = model_of()
    chain_by_chain = tb.Draws(model, normal(2, 3, model.layout.size))
    message = rf"`draws` must be smaller; got {draws}: the drawn weights would take .*, and 0\.0 MiB are free"
    with pytest.raises(ValueError, match=message):
        chain_by_chain.sample(draws)


def test_noise_that_does_not_fit_is_refused(no_memory: None) -> None:
    model = model_of()
    posterior = tb.Gaussian(model, normal(2, model.layout.size), tb.linalg.Diagonal(torch.ones(2, model.layout.size)))
    with pytest.raises(ValueError, match=r"got 4: the noise of the drawn weights would take .*, and 0\.0 MiB are free"):
        posterior.sample(4)


# --- some draws ---


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(("draws", "often"), [(3, 0), (9, 0), (12, 1), (24, 2), (30, 2)])
def test_each_chain_gives_its_share_without_replacement(draws: int, often: int, on_disk: bool, tmp_path: Path) -> None:
    """Row s is of chain s mod M; every draw of a chain is taken `often` times or once more."""
    model, chains, kept = model_of(), 3, 4
    weights_MSD = normal(chains, kept, model.layout.size)
    weights_MSD = from_disk(tmp_path, weights_MSD) if on_disk else weights_MSD
    weights_SD = tb.Draws(model, weights_MSD).sample(draws, seed=5)
    assert weights_SD.shape == (draws, model.layout.size)
    for chain in range(chains):
        same = (weights_SD[chain::chains, None] == weights_MSD[chain]).all(-1)
        assert (same.sum(1) == 1).all()
        counts = same.sum(0)
        assert counts.min() >= often
        assert counts.max() <= often + (draws > chains * kept * often)
    assert torch.equal(weights_SD, tb.Draws(model, weights_MSD).sample(draws, seed=5))


def test_thinned_chains_are_worth_as_much_as_whole_ones() -> None:
    """x_t = 0.98 x_(t−1) + e: 8,000 draws are worth 8,000 (1 − 0.98) / (1 + 0.98) = 81, and every fourth as much."""
    model = model_of()
    weights_MSD = normal(4, 2000, model.layout.size)
    for step in range(1, 2000):
        weights_MSD[:, step] = 0.98 * weights_MSD[:, step - 1] + 0.02**0.5 * weights_MSD[:, step]
    chains = tb.Draws(model, weights_MSD, sample_stats={"step": torch.arange(2000).expand(4, 2000)})
    few = thinned(chains, 4 * 500)
    assert 40 < float(tb.diagnostics.ess_bulk(few.weights_MSD[..., 0].double())) < 160
    assert few.sample_stats is not None
    assert torch.equal(few.sample_stats["step"][0], torch.arange(0, 2000, 4))
    assert torch.equal(few.sample(2000).unflatten(0, (500, 4)), weights_MSD[:, ::4].transpose(0, 1))
    assert torch.equal(thinned(chains, 10_000 * 4).weights_MSD, weights_MSD)
    with pytest.raises(ValueError, match="must be a multiple of the 4 members; got 6"):
        thinned(chains, 6)

"""Two processes that share the rows find what one does, of methods whose ranks no law has: both in one group."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.laws.cases import assert_same_tensors, everything, model_of, rows_of
from tests.oracles import assert_close, normal
from tests.ranks import check, launch
from torch import Tensor, nn

import torchbayes as tb

X = normal(12, 1, seed=1)
Y = (X + 0.7 * normal(12, 1, seed=2) > 0).double()


def fits(ranks: tb.Ranks | None = None) -> dict[str, dict[str, Tensor]]:
    """Tensors of expectation propagation, and of an ensemble that repels on extra rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        classifier = tb.Model(nn.Linear(1, 1).double(), tb.likelihoods.Bernoulli(), tb.priors.Normal(2.0))
    repelled = tb.RepulsiveEnsemble(3, 3, 6, extra=5, prior="functions", prior_draws=4, plan="loop")
    found = {
        "ep": tb.fit(classifier, (X, Y), tb.EP(batch_size=5), ranks=ranks, callbacks=()),
        "repelled": tb.fit(model_of(), rows_of(), repelled, ranks=ranks, callbacks=()),
    }
    return {
        name: {key: tensor.contiguous() for key, tensor in everything(posterior).items()}
        for name, posterior in found.items()
    }


def fit_shared(folder: Path) -> None:
    """Fit both in one of two processes that share the rows."""
    with tb.Ranks.grid(data=2, chains=1) as ranks:
        for name, tensors in fits(ranks).items():
            save_file(tensors, folder / f"{name}_{ranks.data_rank}.safetensors")


@pytest.mark.slow
def test_processes_that_share_the_rows_find_what_one_does(tmp_path: Path) -> None:
    check(launch(fit_shared, 2, tmp_path, tmp_path))
    alone = fits()
    for rank in range(2):
        assert_same_tensors(load_file(tmp_path / f"ep_{rank}.safetensors"), alone["ep"])
        repelled = load_file(tmp_path / f"repelled_{rank}.safetensors")
        assert repelled.keys() == alone["repelled"].keys()
        for name, tensor in repelled.items():
            assert_close(tensor, alone["repelled"][name], rtol=1e-8, atol=1e-9)

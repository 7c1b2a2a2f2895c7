"""What no law has of ranks, in one group of two processes: two methods that share the rows, and problems of chains."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.health.test_chain_health import SAID, STUCK, problem_of_fit
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
    """Fit both in one of two processes that share the rows; and chains that are stuck, of which each has one."""
    with tb.Ranks.grid(data=2, chains=1) as ranks:
        for name, tensors in fits(ranks).items():
            save_file(tensors, folder / f"{name}_{ranks.data_rank}.safetensors")
    with tb.Ranks.grid(data=1, chains=2) as ranks, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, data = problem_of_fit()
        said = [tb.fit(model, data, STUCK, directory=where, ranks=ranks).problems for where in (folder / "run", None)]
        (folder / f"{ranks.chain_rank}.json").write_text(json.dumps(said))


@pytest.mark.slow
def test_processes_find_and_say_what_one_does(tmp_path: Path) -> None:
    check(launch(fit_shared, 2, tmp_path, tmp_path))
    alone = fits()
    for rank in range(2):
        assert_same_tensors(load_file(tmp_path / f"ep_{rank}.safetensors"), alone["ep"])
        repelled = load_file(tmp_path / f"repelled_{rank}.safetensors")
        assert repelled.keys() == alone["repelled"].keys()
        for name, tensor in repelled.items():
            assert_close(tensor, alone["repelled"][name], rtol=1e-8, atol=1e-9)
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [list(SAID)] * 2
    assert tb.load(tmp_path / "run" / "posterior.safetensors", problem_of_fit()[0]).problems == SAID

"""Sparse gradients and sparse buffers change nothing but how a network is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import rows_of

INPUTS, TARGETS = rows_of()


class Mixing(nn.Module):
    """A linear layer on columns that a constant matrix mixes, as a graph does."""

    mixing: Tensor

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        mixing = torch.eye(4, dtype=torch.float64) + torch.diag(torch.ones(3, dtype=torch.float64), 1)
        self.register_buffer("mixing", mixing.to_sparse(layout=layout) if layout != torch.strided else mixing)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer((self.mixing @ inputs.T).T)


WORDS = torch.arange(24 * 5).view(24, 5) % 9
SPARSE: dict[str, tuple[Callable[[bool], nn.Module], Tensor]] = {
    "embedding": (
        lambda sparse: nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(20, 3)).double(),
        WORDS,
    ),
    "bag": (
        lambda sparse: nn.Sequential(nn.EmbeddingBag(9, 4, mode="sum", sparse=sparse), nn.Linear(4, 3)).double(),
        WORDS,
    ),
    "COO": (lambda sparse: Mixing(torch.sparse_coo if sparse else torch.strided).double(), INPUTS),
    "CSR": (lambda sparse: Mixing(torch.sparse_csr if sparse else torch.strided).double(), INPUTS),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients_and_buffers_change_nothing(name: str, tmp_path: Path) -> None:
    make, inputs = SPARSE[name]
    actual = []
    for sparse in (True, False):
        torch.manual_seed(0)
        module = make(sparse)
        model, run = tb.Model(module, tb.likelihoods.Categorical()), tmp_path / str(sparse)
        mode = tb.fit(
            model,
            (inputs, TARGETS),
            tb.MAP(members=2, epochs=4, batch_size=6, plan="loop"),
            directory=run,
            callbacks=(),
        )
        assert isinstance(mode, tb.Point)
        laplace = tb.fit(
            model, (inputs, TARGETS), tb.Laplace(check_mode=False, prior="model"), start=mode, callbacks=()
        )
        assert isinstance(laplace, tb.LaplacePosterior)
        loaded = tb.load(run / "posterior.safetensors", model)
        nll = tb.evaluate(loaded, (inputs, TARGETS)).metrics["nll"]
        actual.append((mode.weights_MD, laplace.log_evidence(), torch.tensor(nll)))
        if name in {"embedding", "bag"}:
            assert module.get_submodule("0").sparse is sparse  # the given module stays as it is
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)

"""The low-rank curvature: exact where the rank suffices, the top of the spectrum elsewhere, never above H."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.curvature import oracle
from tests.curvature.networks import NETS
from tests.curvature.oracle import ROWS
from tests.oracles import assert_close, normal
from torchbayes.linalg.curvature import LowRankCurvature

SOME = (
    *(
        "mlp",
        "linear",
        "tied",
        "multihead attention",
        "linear attention",
        "in place",
        "layer norm",
        "embedding",
        "groups",
    ),
    *("lstm", "batch norm", "filter response norm", "a number", "outputs at places", "weight norm", "unused"),
)


def found(name: str, **settings: Any) -> tuple[tb.LaplacePosterior, Tensor]:
    """Return the posterior and the exact curvature in units of the prior, (M, D, D)."""
    inputs, targets, weights_MD, buffers_M = oracle.problem(name)
    model, sizes = oracle.model_of(NETS[name], targets, tb.priors.Normal(scale=0.6)), settings.pop("sizes", None)
    method = tb.Laplace(structure="low_rank", check_mode=False, **settings)
    posterior = oracle.fitted(method, model, weights_MD, (inputs, targets), sizes=sizes, buffers_M=buffers_M)
    return posterior, 0.36 * oracle.truth(name, "ggn")


@pytest.mark.parametrize("sizes", [None, [3, 2]], ids=["one batch", "two batches"])
@pytest.mark.parametrize("name", SOME)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_exact_where_the_rank_suffices(name: str, sizes: Any):
    posterior, exact = found(name, rank=2 * 3 * ROWS, passes=2, sizes=sizes)  # two directions a row, and three places
    assert_close(posterior.curvature.dense(), exact, rtol=1e-7, atol=1e-9 * float(exact.abs().max()))
    identity = torch.eye(exact.shape[-1], dtype=torch.float64)
    assert_close(posterior.gaussian.covariance.dense(), 0.36 * torch.linalg.inv(exact + identity), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("passes", [2, 3, 6])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_never_above_the_curvature(rank: int, passes: int):
    posterior, exact = found("linear attention", rank=rank, passes=passes)
    assert isinstance(posterior.curvature, LowRankCurvature)
    assert posterior.curvature.factor_MRD.shape[1] == rank
    left = torch.linalg.eigvalsh(exact - posterior.curvature.dense())
    assert float(left.min()) > -1e-10 * float(exact.abs().max())
    assert (left[:, -1] > 1e-6).any()  # the rank does not suffice


def test_top_of_the_spectrum_after_some_passes():
    posterior, exact = found("linear attention", rank=4, passes=8)
    values, vectors = torch.linalg.eigh(exact)
    top, directions = values[:, -4:], vectors[..., -4:]
    gram = posterior.curvature.factor_MRD @ posterior.curvature.factor_MRD.mT  # type: ignore[union-attr]
    assert_close(torch.linalg.eigvalsh(gram), top, rtol=1e-8)
    best = directions * top.unsqueeze(1) @ directions.mT
    assert_close(posterior.curvature.dense(), best, rtol=1e-5, atol=1e-7 * float(top.max()))


def test_more_passes_leave_less():
    # more directions than are looked at, and none far above the others
    model = tb.Model(nn.Linear(60, 1).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
    data, start = (normal(300, 60, seed=1), normal(300, 1, seed=2)), torch.zeros(61, dtype=torch.float64)
    found = {}
    for name, settings in {"dense": {}, **{str(n): {"rank": 3, "passes": n} for n in (2, 3, 5, 40)}}.items():
        structure = "dense" if name == "dense" else "low_rank"
        method = tb.Laplace(structure, check_mode=False, **settings)  # type: ignore[arg-type]
        posterior = tb.fit(model, data, method, start=start, callbacks=())
        assert isinstance(posterior, tb.LaplacePosterior)
        found[name] = posterior.curvature.dense()[0]
    best = torch.linalg.eigvalsh(found["dense"])[:-3].sum()  # what the three largest leave
    left = [float((found["dense"] - found[str(n)]).diagonal().sum() - best) for n in (2, 3, 5, 40)]
    assert left[0] > 1.5 * left[1] > 1.5 * left[2] > 0
    assert left[3] < 1e-6 * float(best)


def test_directions_are_orthogonal():
    posterior, _ = found("mlp", rank=5)
    factor = posterior.curvature.factor_MRD  # type: ignore[union-attr]
    gram = factor @ factor.mT
    assert_close(gram, torch.diag_embed(gram.diagonal(dim1=1, dim2=2)), atol=1e-10)


def test_rank_above_the_number_of_weights():
    posterior, exact = found("bias of the head", rank=50)
    assert_close(posterior.curvature.dense(), exact, rtol=1e-8, atol=1e-11)


def test_seed_alone_decides():
    first, second = (found("mlp", rank=2)[0].curvature.dense() for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", ["fisher", "empirical"])
def test_other_curvatures_are_the_same_in_every_pass(kind: Any):
    settings = {"curvature": kind, "samples": 2}
    posterior, _ = found("mlp", rank=40, passes=4, sizes=[3, 2], **settings)
    inputs, targets, weights_MD, _ = oracle.problem("mlp")
    model = oracle.model_of(NETS["mlp"], targets, tb.priors.Normal(scale=0.6))
    dense = tb.Laplace(structure="dense", check_mode=False, **settings)
    expected = oracle.fitted(dense, model, weights_MD, (inputs, targets), sizes=[3, 2]).curvature.dense()
    assert_close(posterior.curvature.dense(), expected, rtol=1e-7, atol=1e-9)


def test_no_curvature_at_all():
    """Inputs of zero, and no bias: no direction, and the posterior is the prior."""
    model = tb.Model(nn.Linear(3, 2, bias=False).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(scale=0.5))
    data = torch.zeros(4, 3, dtype=torch.float64), normal(4, 2)
    method = tb.Laplace(structure="low_rank", check_mode=False)
    posterior = oracle.fitted(method, model, normal(1, 6), data)
    assert_close(posterior.gaussian.covariance.dense()[0], 0.25 * torch.eye(6, dtype=torch.float64))

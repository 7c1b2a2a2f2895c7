"""A structure that the package does not know works everywhere: as posterior, predictive, prior, choice and in files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.covering import some_of
from tests.linalg.circulant import Circulant, circulant
from tests.oracles import assert_close, classes, normal
from torchbayes.curvature.sums import DiagonalSums, OnePass, Piece, Sum
from torchbayes.linalg import Blocks, Dense, Diagonal, DiagonalCurvature, Scaled, Structure
from torchbayes.methods.laplace import curvature_pass, laplace
from torchbayes.methods.laplace.curvature_pass import SUMS
from torchbayes.model.priors.joint import Joint
from torchbayes.settings import kinds_of

INPUTS, CLASSES, ROWS = 3, 2, 7


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()


def images() -> nn.Module:
    """A network whose layers share weights over places, with one that has no factors."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.LayerNorm([2, 2, 2]), nn.Flatten(), nn.Linear(8, CLASSES)).double()


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (network, (INPUTS,)),
    "last layer": (lambda: nn.Linear(INPUTS, CLASSES).double(), (INPUTS,)),
    "places": (images, (1, 3, 3)),
}


def covariances(size: int, members: int) -> dict[str, Structure]:
    """Return the new structure alone and inside those that are composed."""
    first = size // 2 + 1
    order = normal(size, seed=3).argsort()
    rest = Diagonal(normal(members, size - first, seed=4).exp())
    return {
        "alone": circulant(members, size),
        "scaled": Scaled(normal(members, size, seed=5).exp(), circulant(members, size)),
        "in a block": Blocks(order, (circulant(members, first), rest)),
        "scaled block": Scaled(normal(members, size, seed=6).exp(), Blocks(order, (circulant(members, first), rest))),
    }


KINDS = ["alone", "scaled", "in a block", "scaled block"]
every = pytest.mark.parametrize("kind", KINDS)
every_network = pytest.mark.parametrize("name", NETWORKS)


def as_dense(structure: Structure) -> Dense:
    """Return the same covariance in a structure that the package knows."""
    return Dense.of_precision(torch.linalg.inv(structure.dense()))


def both(name: str, kind: str, members: int = 2) -> tuple[tb.Gaussian, tb.Gaussian]:
    """Return a posterior with the new structure, and with the dense matrix."""
    model = tb.Model(NETWORKS[name][0](), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    size = model.layout.size
    covariance, mean_MD = covariances(size, members)[kind], normal(members, size, seed=1)
    return tb.Gaussian(model, mean_MD, covariance), tb.Gaussian(model, mean_MD, as_dense(covariance))


def fitted(posterior: object) -> tb.LaplacePosterior:
    assert isinstance(posterior, tb.LaplacePosterior)
    return posterior


@every
def test_draws_and_density(kind: str):
    own, dense = both("dense", kind)
    drawn = own.sample(6, seed=3)
    assert_close(own.log_prob(drawn), dense.log_prob(drawn), rtol=1e-9)
    assert torch.equal(drawn, own.sample(6, seed=3))
    centred = own.sample(20_000, seed=4).view(-1, 2, own.mean_MD.shape[1]) - own.mean_MD
    actual = torch.einsum("smi,smj->mij", centred, centred) / len(centred)
    largest = float(own.covariance.diagonal().max())
    assert_close(actual, own.covariance.dense(), rtol=0, atol=0.08 * largest)


@every
def test_files(kind: str, tmp_path: Path):
    own, _ = both("dense", kind)
    own.save(tmp_path / "posterior.safetensors")
    loaded = tb.load(tmp_path / "posterior.safetensors", own.model)
    assert isinstance(loaded, tb.Gaussian)
    assert type(loaded.covariance) is type(own.covariance)
    assert torch.equal(loaded.covariance.dense(), own.covariance.dense())
    assert torch.equal(loaded.sample(4, seed=2), own.sample(4, seed=2))


@pytest.mark.parametrize("chunk", [64, pytest.param(2**24, marks=pytest.mark.study)])
@pytest.mark.parametrize(("name", "kind"), some_of(NETWORKS, KINDS, one_in=2))
def test_linearised_predictive(name: str, kind: str, chunk: int):
    own, dense = (tb.Linearised(posterior, chunk=chunk) for posterior in both(name, kind))
    inputs = normal(ROWS, *NETWORKS[name][1], seed=8)
    for ask in (
        lambda linearised: linearised.functions(inputs).covariance_MBKK,
        lambda linearised: linearised.functions(inputs, diagonal=True).covariance_MBKK,
        lambda linearised: linearised.joint(inputs).covariance_MBKK,
        lambda linearised: linearised.predictive(inputs).probs,
    ):
        assert_close(ask(own), ask(dense), rtol=1e-8, atol=1e-10)


@every
def test_joint_prior(kind: str):
    own, dense = both("dense", kind, members=1)
    mine, other = (Joint(p.mean_MD[0], p.covariance) for p in (own, dense))
    weights = normal(5, len(mine.loc_D), seed=9)
    assert_close(mine.log_prob(weights), other.log_prob(weights), rtol=1e-9)
    assert_close(mine.precision(weights), other.precision(weights), rtol=1e-9)
    assert_close(mine.stds(), other.stds(), rtol=1e-9)
    assert not mine.is_independent
    gradients = [torch.zeros_like(weights) for _ in range(2)]
    for prior, gradient in zip((mine, other), gradients, strict=True):
        prior.add_gradient_(gradient, weights, 0.3)
    assert_close(*gradients, rtol=1e-8)


@every
def test_laplace_under_a_joint_prior(kind: str):
    """What the new structure says of an earlier task counts in the evidence of the next."""
    gaussians, actual = both("dense", kind, members=1), []
    data = (normal(30, INPUTS, seed=10), classes(30, CLASSES, seed=11))
    for gaussian in gaussians:
        model = tb.Model(network(), tb.likelihoods.Categorical(), tb.as_prior(gaussian))
        start = gaussian.mean_MD[0]
        actual.append(tb.fit(model, data, tb.Laplace(structure="dense", check_mode=False, prior="model"), start=start))
    mine, other = map(fitted, actual)
    assert_close(mine.log_evidence(), other.log_evidence(), rtol=1e-9)
    assert_close(mine.effective_parameters(), other.effective_parameters(), rtol=1e-8)
    assert_close(mine.gaussian.covariance.dense(), other.gaussian.covariance.dense(), rtol=1e-7, atol=1e-11)
    assert_close(tb.Linearised(mine).functions(data[0]).covariance_MBKK,
                 tb.Linearised(other).functions(data[0]).covariance_MBKK, rtol=1e-7)  # fmt: skip


def test_curvatures_that_it_does_not_add_up_with_say_so():
    own, _ = both("dense", "alone", members=1)
    model = tb.Model(network(), tb.likelihoods.Categorical(), tb.as_prior(own))
    data = (normal(30, INPUTS, seed=10), classes(30, CLASSES, seed=11))
    for structure in ("diagonal", "kronecker", "low_rank"):
        with pytest.raises(ValueError, match=r"circulant covariance and a .* do not add up to a structure"):
            tb.fit(model, data, tb.Laplace(structure=structure, check_mode=False, prior="model"), start=own.mean_MD[0])


@pytest.mark.parametrize("kind", ["scaled", "scaled block"])  # all variances of a circulant matrix are the same
def test_subnetwork(kind: str):
    own, dense = both("dense", kind)
    mine, other = tb.subnetwork(own, 5), tb.subnetwork(dense, 5)
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


@dataclass(frozen=True)
class LevelSums(OnePass):
    """H as the same number for all weights, the mean of its diagonal."""

    correlations = "none"

    def empty(self, network: Any, like: Tensor, seed: int = 0) -> Sum:
        return DiagonalSums().empty(network, like)

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        DiagonalSums().add_(total, piece)

    def curvature(self, network: Any, totals_M: Sum, scale_MD: Tensor) -> DiagonalCurvature:
        values_MD = totals_M["diagonal"].mean(-1, keepdim=True)
        return DiagonalCurvature(values_MD * scale_MD**2)


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Register the sums as a structure of `Laplace`, in one line; annotations are made of the table anew."""
    monkeypatch.setitem(SUMS, "level", lambda settings: LevelSums())
    for module in (laplace, curvature_pass):
        monkeypatch.setattr(module, "StructureName", Literal[*SUMS])
    kinds_of.cache_clear()
    yield "level"
    kinds_of.cache_clear()


def test_a_new_structure_of_laplace_is_a_line_in_a_table(level: str):
    model = tb.Model(network(), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    data = (normal(30, INPUTS, seed=10), classes(30, CLASSES, seed=11))
    start = normal(model.layout.size, seed=12)
    actual, diagonal = (
        fitted(tb.fit(model, data, tb.Laplace(structure=structure, check_mode=False, prior="model"), start=start))
        for structure in (level, "diagonal")
    )
    expected = 1 / (diagonal.curvature.diagonal().mean() + 1)
    assert_close(actual.gaussian.covariance.diagonal(), expected.expand(1, len(start)))
    assert_close(tb.tune(actual, prior="scalar").strength_D.std(), 0.0)
    with pytest.raises(ValueError, match="'levels'"):
        tb.Laplace(structure="levels", prior="model")


def test_the_class_is_not_of_the_package():
    assert Circulant.__module__.startswith("tests.")

"""Weights that are distributions in the kernel: what layers by tensors say, with the same noise, to rounding."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.density.test_images import NETWORKS, headed
from tests.oracles import assert_close, classes, normal
from torch import Tensor, nn
from torch.nn import Dropout, Flatten, Linear, ReLU, Sequential, SiLU, Tanh

import torchbayes as tb
from torchbayes.density import LogDensity
from torchbayes.density.layers.kernel import kernel_for
from torchbayes.density.layers.passes import by_layers
from torchbayes.density.layers.uses import how
from torchbayes.density.ranks import Ranks
from torchbayes.model import Batch, Model
from torchbayes.model.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from torchbayes.native import noise
from torchbayes.native.build import available, load

pytestmark = pytest.mark.skipif(not available(), reason="kernels cannot be built here (compiler or MKL missing)")
ESTIMATORS = ("local", "flipout", "auto")
PERCEPTRONS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: Linear(5, 3),
    "deep": lambda: Sequential(Linear(5, 7), Tanh(), Linear(7, 4, bias=False), SiLU(), Linear(4, 3)),
    "narrow": lambda: Sequential(Linear(5, 1), Tanh(), Linear(1, 6), ReLU(), Linear(6, 1), SiLU(), Linear(1, 3)),
    "flat": lambda: Sequential(Flatten(), Linear(5, 33), ReLU(), Linear(33, 3)),
}
LIKELIHOODS: dict[str, tuple[Likelihood, int]] = {
    "classes": (Categorical(), 3),
    "fixed noise": (Gaussian(0.3), 3),
    "learned noise": (Gaussian("learned"), 3),
    "noise of the network": (HeteroscedasticGaussian(), 1),
}


def gradients(
    model: Model, batch: Batch, *, plan: Any, estimator: Any, chunk_size: int = 1024, ranks: Ranks | None = None
) -> list[Tensor]:
    """Loss and gradients of the members by a plan."""
    members = len(batch.inputs)
    density = LogDensity(model, 500, plan=plan, training=True, chunk_size=chunk_size, ranks=ranks)
    mean_MD = normal(members, model.layout.size, seed=1).mul_(0.5)
    scale_MD = normal(members, model.layout.size, seed=2).exp_().mul_(0.2)
    before = mean_MD.clone()
    hows = how(density, batch.map(lambda t: t[0]), estimator)
    taken = kernel_for(density, mean_MD, batch, hows=hows)
    assert (taken is not None) == (plan != "loop")
    seeds = list(range(3, 3 + members))
    actual = by_layers(density, mean_MD, scale_MD, batch=batch, estimator=estimator, buffers={}, seeds=seeds, step=5)
    assert torch.equal(mean_MD, before)
    assert actual.health_M.isfinite().tolist() == actual.mean_MD.isfinite().all(1).tolist()
    return [actual.nll_M, actual.mean_MD, actual.scale_MD]


def assert_same(model: Model, batch: Batch, estimator: str, **options: Any) -> None:
    for ours, theirs in zip(
        gradients(model, batch, plan="auto", estimator=estimator, **options),
        gradients(model, batch, plan="loop", estimator=estimator),
        strict=True,
    ):
        assert_close(ours, theirs)


def rows_of(shape: tuple[int, ...], likelihood: Likelihood, targets: int, *, members: int, rows: int) -> Batch:
    inputs = normal(members, rows, *shape, seed=4)
    if isinstance(likelihood, Categorical):
        return Batch(inputs, classes(members * rows, targets, seed=6).view(members, rows))
    return Batch(inputs, normal(members, rows, targets, seed=6))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", PERCEPTRONS)
@pytest.mark.parametrize("noise_name", LIKELIHOODS)
def test_perceptrons(name: str, noise_name: str, estimator: str) -> None:
    likelihood, targets = LIKELIHOODS[noise_name]
    net = PERCEPTRONS[name]().double()
    if noise_name == "noise of the network":
        net = Sequential(net, Linear(3, 2).double())
    model = Model(net, likelihood, tb.priors.Normal())
    assert_same(model, rows_of((5,), likelihood, targets, members=2, rows=9), estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("shape", "stages"), NETWORKS.values(), ids=NETWORKS.keys())
def test_images(shape: tuple[int, int, int], stages: Any, estimator: str) -> None:
    model = Model(headed(shape, *stages()), Categorical(), tb.priors.Normal())
    assert_same(model, rows_of(shape, Categorical(), 3, members=2, rows=7), estimator)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_threads_members_and_chunks(threads: int, members: int, estimator: str) -> None:
    """Enough rows that the threads of one member share them; chunks that do not divide them."""
    shape, stages = NETWORKS["pools"]
    images = Model(headed(shape, *stages()), Categorical(), tb.priors.Normal())
    vectors = Model(PERCEPTRONS["deep"]().double(), Gaussian("learned"), tb.priors.Normal())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(images, rows_of(shape, Categorical(), 3, members=members, rows=23), estimator, chunk_size=5)
        batch = rows_of((5,), Gaussian("learned"), 3, members=members, rows=613)
        assert_same(vectors, batch, estimator, chunk_size=100)
    finally:
        torch.set_num_threads(before)


def test_float32() -> None:
    model = Model(PERCEPTRONS["deep"](), Categorical(), tb.priors.Normal())
    batch = Batch(normal(2, 40, 5, seed=4).float(), classes(80, 3, seed=6).view(2, 40))
    mean_MD, scale_MD = normal(2, model.layout.size, seed=1), 0.1 * normal(2, model.layout.size, seed=2).exp()
    about: dict[str, Any] = {"batch": batch, "estimator": "flipout", "buffers": {}, "seeds": [0, 1], "step": 1}
    densities = [LogDensity(model, 500, plan=plan, training=True) for plan in ("native", "loop")]
    ours, theirs = (by_layers(density, mean_MD.float(), scale_MD.float(), **about) for density in densities)
    for one, other in zip(ours[:3], theirs[:3], strict=True):
        assert_close(one, other, rtol=2e-4, atol=2e-6)  # of numbers with seven digits


class _Half(Ranks):
    """The second of two processes, which does not wait for the first."""

    def sum_(self, *tensors: Tensor) -> None:
        """Leave the sums to the test."""


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_noise_of_a_row_does_not_depend_on_who_computes_it(estimator: str) -> None:
    shape, stages = NETWORKS["pools"]
    for model, batch in (
        (
            Model(headed(shape, *stages()), Categorical(), tb.priors.Normal()),
            rows_of(shape, Categorical(), 3, members=2, rows=11),
        ),
        (
            Model(PERCEPTRONS["deep"]().double(), Gaussian(1.0), tb.priors.Normal()),
            rows_of((5,), Gaussian(1.0), 3, members=2, rows=11),
        ),
    ):
        whole = gradients(model, batch, plan="auto", estimator=estimator)
        halves = [
            gradients(model, batch, plan="auto", estimator=estimator, ranks=_Half(2, data_rank=rank))
            for rank in range(2)
        ]
        for one, first, second in zip(whole, *halves, strict=True):
            assert_close(first + second, one)


def test_no_noise_where_scales_are_zero() -> None:
    """Then the gradient by means is that of the network at them, and that by scales 0 for local noise."""
    model = Model(PERCEPTRONS["deep"]().double(), Categorical(), tb.priors.Normal())
    batch = rows_of((5,), Categorical(), 3, members=1, rows=8)
    density = LogDensity(model, 500, training=True)
    mean_MD = normal(1, model.layout.size, seed=1)
    plain = density.nll(mean_MD, batch)
    for estimator in ESTIMATORS:
        about: dict[str, Any] = {"estimator": estimator, "buffers": {}, "seeds": [0], "step": 0}
        actual = by_layers(density, mean_MD, torch.zeros_like(mean_MD), batch=batch, **about)
        # outputs without variance get noise of the smallest one, a deviation of 1e-10
        assert_close(actual.nll_M, plain.log_density, rtol=1e-8)
        assert_close(actual.mean_MD, plain.gradient, rtol=1e-7, atol=1e-8)
        assert actual.scale_MD.isfinite().all()
        assert estimator == "flipout" or not actual.scale_MD.any()


def test_not_a_number_stays_one() -> None:
    model = Model(PERCEPTRONS["deep"]().double(), Categorical(), tb.priors.Normal())
    batch = rows_of((5,), Categorical(), 3, members=2, rows=8)
    batch.inputs[1, 2, 3] = torch.nan
    for estimator in ESTIMATORS:
        nll_M, parts = (actual := gradients(model, batch, plan="auto", estimator=estimator))[0], actual[1:]
        assert nll_M.isnan().tolist() == [False, True]
        assert all(part[0].isfinite().all() and part[1].isnan().any() for part in parts)


def test_labels_that_are_no_classes_are_refused() -> None:
    model = Model(PERCEPTRONS["deep"]().double(), Categorical(), tb.priors.Normal())
    batch = rows_of((5,), Categorical(), 3, members=1, rows=8)
    batch.targets[0, 3] = 3
    with pytest.raises(ValueError, match=r"0\.\.2"):
        gradients(model, batch, plan="auto", estimator="local")


def test_dropout_is_left_to_tensors() -> None:
    model = Model(Sequential(Linear(5, 4), Dropout(0.5), Linear(4, 3)).double(), Categorical(), tb.priors.Normal())
    density = LogDensity(model, 500, training=True)
    batch = rows_of((5,), Categorical(), 3, members=1, rows=8)
    hows = how(density, batch.map(lambda t: t[0]), "local")
    assert kernel_for(density, normal(1, model.layout.size), batch, hows=hows) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_from_any_position(dtype: torch.dtype) -> None:
    whole = noise.fill_normal(torch.empty(5000, dtype=dtype), seed=9, stream=4)
    function = getattr(load("noise"), f"normals_{str(dtype).removeprefix('torch.')}")
    for at, count in ((0, 5000), (1, 1), (3, 2), (2, 4100), (4, 1024), (1023, 3000), (4999, 1), (7, 0)):
        part = torch.full((count + 1,), 77.0, dtype=dtype)
        function(
            ctypes.c_void_p(part.data_ptr()),
            ctypes.c_int64(at),
            ctypes.c_int64(count),
            ctypes.c_uint64(9),
            ctypes.c_uint64(4),
        )
        assert torch.equal(part[:-1], whole[at : at + count])
        assert part[-1] == 77.0

"""Every method on every device: the numbers of the CPU, resumed runs, draws, predictions, and files between devices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchbayes as tb
from tests.device.conftest import PLACES
from tests.laws.cases import (
    METHODS,
    assert_same_tensors,
    everything,
    made,
    normal,
    rows_of,
    unjudged,
    with_variants_as_studies,
)
from tests.laws.test_laplace_laws import KINDS, method_of
from tests.laws.test_last_layer_laws import vbll
from tests.laws.test_method_laws import SMALL
from tests.laws.test_sampler_laws import SAMPLERS

Make = Callable[..., Any]
# kernels of two devices round differently, and steps carry that on
TOLERANCE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}

SHORT = {**SMALL, "epochs": 2, "batch_size": 12}  # an operation on the device that is not there takes long
EVERY: dict[str, Make] = {
    **{name: lambda make=make: make(members=2, **SHORT) for name, make in METHODS.items()},
    "vbll": lambda: vbll(members=2, **SHORT),
    **SAMPLERS,
    "hmc_dense": lambda: SAMPLERS["hmc_dense"](trajectory=0.1),
    **{name: lambda make=SAMPLERS[name]: make(steps=16, burn_in=12) for name in ("mams", "mclmc", "smile")},
    **{f"laplace_{kind}": lambda kind=kind: method_of(kind) for kind in KINDS},
}

# a state of each kind: what a checkpoint holds of it does not depend on other settings
STATES = ("map_sam", "swag", "svgd", "ivon_pairs", "vi_low_rank", "mnf", "fge", "bsam", "vbll", "hmc_dense",
          "elliptical", "sghmc_preconditioned", "laplace_kronecker")  # fmt: skip
# which hold tensors and numbers as the states of others do
OTHER_STATES = (
    *("map_sam", "svgd", "ivon_pairs", "vi_low_rank", "fge", "bsam", "vbll", "mnf"),
    # whose files on a CPU are those of `test_interrupted_and_resumed_equals_uninterrupted_at_any_length`
    *("hmc_dense", "elliptical"),
)
KINDS_OF_METHOD = {type(make()): name for name, make in reversed(EVERY.items())}  # the first of each class
# others of their class run here; `test_steps_on_minibatches_never_wait` sees that their steps mix no devices
SELDOM = {"hmc", "ivon", "map_sgd", "swa", "fge_sam", "vi", "sghmc", "laplace_diagonal"}
SELDOM |= {
    "underdamped",
    "mams",
    "mclmc",
}  # `test_metropolis_waits_a_few_times_an_iteration_whatever_its_length` has it
SELDOM |= {"snapshots"}  # whose draws are on a shelf as those of chains
# steps of these are seen there, and of trees in `test_metropolis_waits_a_few_times_an_iteration_whatever_its_length`
SELDOM |= {"smile", "bsam", "ivon_pairs", "vi_by_layers", "nuts"}
SELDOM |= {"mala", "random_walk", "sgld", "sgnht", "fge", "flow_planar", "repulsive_weights"}
OFTEN = {*STATES, *KINDS_OF_METHOD.values(), "laplace_low_rank"} - SELDOM
every = pytest.mark.parametrize(
    "make",
    [pytest.param(make, id=name, marks=() if name in OFTEN else pytest.mark.study) for name, make in EVERY.items()],
)
JUDGED = ("map_sam", "vi_low_rank", "hmc_dense", "laplace_kronecker", "vbll")  # one of each kind of judgement
elsewhere = pytest.mark.parametrize("place", [name for name in PLACES if name != "cpu"] or ["cpu"], indirect=True)
CPU = torch.device("cpu")


def model_on(device: torch.device, network: str = "mlp", dtype: torch.dtype = torch.float64) -> tb.Model:
    """A classifier on a device, under a prior so narrow that exact Hessians are definite at the start below."""
    return tb.Model(made(network, dtype).to(device), tb.likelihoods.Categorical(), tb.priors.Normal(0.1))


DRAWN = tb.Gaussian | tb.LaplacePosterior | tb.RadialPosterior | tb.FlowPosterior | tb.MNFPosterior


def start_of(model: tb.Model) -> Tensor:
    """Where both members begin, whatever the device: initialisers draw other numbers on a GPU than on a CPU."""
    return 0.1 * normal(2, model.layout.size, seed=5, dtype=model.network.dtype).to(model.network.device)


def fitted(make: Make, device: torch.device, network: str = "mlp", **options: Any) -> Any:
    """One small fit; the rows are given on the CPU."""
    model = model_on(device, network)
    return tb.fit(model, rows_of(network), make(), seed=7, start=start_of(model), **{"callbacks": (), **options})


def assert_same_draws(actual: Tensor, expected: Tensor, posterior: Any) -> None:
    """Draws agree across devices, but for those by normal numbers, which come from the device's own generator."""
    assert actual.shape == expected.shape
    assert torch.isfinite(actual).all()
    if not isinstance(posterior, DRAWN):
        torch.testing.assert_close(actual.cpu(), expected.cpu(), **TOLERANCE)


def on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, on the CPU."""
    return {name: tensor.cpu() for name, tensor in tensors.items()}


Whole = Callable[[Make, torch.device], tuple[Any, Path]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Each uninterrupted fit on a device once, and where its files are."""

    @cache
    def fit(make: Make, device: torch.device) -> tuple[Any, Path]:
        folder = tmp_path_factory.mktemp("run")
        with nullcontext() if make in [EVERY[name] for name in JUDGED] else unjudged():
            return fitted(make, device, directory=folder), folder

    return fit


@pytest.fixture
def expected(make: Make, request: pytest.FixtureRequest) -> Any:
    """The fit on the CPU, made before the device is in use: operations take several times as long then."""
    if request.node.callspec.params["place"] == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    with unjudged():
        return fitted(make, CPU)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # such short runs learn little
@elsewhere
@every
def test_a_run_has_the_numbers_of_the_cpu_and_is_read_on_both(
    make: Make, expected: Any, device: torch.device, whole: Whole
) -> None:
    inputs, targets = rows_of()
    actual, folder = whole(make, device)
    for name, tensor in everything(expected).items():
        torch.testing.assert_close(everything(actual)[name].cpu(), tensor, **TOLERANCE)
    assert_same_draws(actual.sample(4, seed=3), expected.sample(4, seed=3), expected)
    outputs = tb.predict(actual, inputs, draws=4).outputs_SBK
    assert actual.sample(2).device.type == outputs.device.type == device.type
    assert_same_draws(outputs, tb.predict(expected, inputs, draws=4).outputs_SBK, expected)
    if make in [EVERY[name] for name in (*JUDGED, "swag")]:  # whatever the method, metrics are those of the outputs
        scores, others = (tb.evaluate(p, (inputs, targets), draws=4).metrics for p in (actual, expected))
        assert scores.keys() == others.keys()
        if not isinstance(expected, DRAWN):
            assert scores == pytest.approx(others, rel=1e-5, abs=1e-7)
    for where in (CPU, device):
        read = tb.load(folder / "posterior.safetensors", model_on(where))
        assert_same_tensors(on_cpu(everything(read)), on_cpu(everything(actual)))
        assert read.sample(2).device.type == where.type


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
@elsewhere
@pytest.mark.parametrize("name", with_variants_as_studies({name: name for name in STATES}, OTHER_STATES))
def test_a_run_goes_on_from_its_files(name: str, device: torch.device, whole: Whole, tmp_path: Path) -> None:
    def interrupt(event: tb.Event) -> None:
        if event.epoch == min(2, event.epochs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(EVERY[name], device, directory=tmp_path, callbacks=[interrupt])
    with unjudged():
        resumed = fitted(EVERY[name], device, directory=tmp_path, resume=True)
    assert_same_tensors(on_cpu(everything(resumed)), on_cpu(everything(whole(EVERY[name], device)[0])))


def test_a_file_of_the_cpu_is_read_on_the_device(device: torch.device, tmp_path: Path) -> None:
    written = fitted(EVERY["sgld"], CPU, directory=tmp_path)
    read = tb.load(tmp_path / "posterior.safetensors", model_on(device))
    drawn = read.sample(6, seed=1)
    assert drawn.device.type == device.type
    torch.testing.assert_close(drawn.cpu(), written.sample(6, seed=1), rtol=0, atol=0)

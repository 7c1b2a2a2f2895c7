"""What the program has set for its own computations changes no result: autocast, inference mode, defaults of PyTorch.

The calls are the good ones of the tables of refusals, which hold all that is public.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import METHODS, POSTERIORS, made, model_of, rows_of
from tests.refusals.nonsense import Case
from tests.refusals.rooms import ROOMS
from tests.refusals.settings import SETTINGS
from tests.refusals.verbs import VERBS

CALLS: dict[str, Case] = {**VERBS, **ROOMS, **SETTINGS}
# whose cases make tensors of their own as they are called, on the default device and in the default dtype
MAKE = (
    "Predictive.quantile",
    "conformal.Forecast",
    "networks.tabular",
    *(name for name in ROOMS if "evidence." in name),
)


@contextmanager
def default_device() -> Iterator[None]:
    """One that holds no numbers: what is made there by mistake, or moved there, is seen."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def everything() -> Iterator[None]:
    with ExitStack() as stack:
        for surrounding in SURROUNDINGS.values():
            stack.enter_context(surrounding())
        yield


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "default_dtype": default_dtype,
    "default_device": default_device,
}
each: Any = pytest.mark.parametrize(
    "surrounding",
    [everything, *(pytest.param(make, marks=pytest.mark.study) for make in SURROUNDINGS.values())],
    ids=["everything", *SURROUNDINGS],
)


def numbers(result: Any, depth: int = 0) -> Iterator[Tensor]:
    """All numbers in a result, one after the other."""
    if isinstance(result, Tensor):
        yield result.detach()
    elif isinstance(result, np.ndarray) and result.dtype.kind in "fiub":
        yield torch.from_numpy(result)
    elif isinstance(result, int | float):
        yield torch.tensor(result, dtype=torch.float64, device="cpu")
    elif depth > 8 or isinstance(result, type):
        return
    elif isinstance(result, Mapping | list | tuple):
        for value in result.values() if isinstance(result, Mapping) else result:
            yield from numbers(value, depth + 1)
    elif isinstance(result, tb.Posterior):
        yield from numbers(result.tensors(), depth + 1)
    elif dataclasses.is_dataclass(result):
        yield from numbers([getattr(result, field.name) for field in dataclasses.fields(result)], depth + 1)


def assert_same(actual: Any, expected: Any, rtol: float = 0.0) -> None:
    """Equal bit for bit, or to a rounding, and in the same place."""
    pairs = zip(numbers(actual), numbers(expected), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, equal_nan=True)


@each
@pytest.mark.parametrize("name", [name for name in CALLS if name not in MAKE])
def test_what_the_program_has_set_changes_no_result(
    name: str, surrounding: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    case, results = CALLS[name], list[Any]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for around in (ExitStack, surrounding):
            given = case.good()
            with around():
                results.append(case.call(**given))
    assert_same(results[1], results[0], rtol=1e-9 if "calibrator" in name else 0.0)


def asked(posterior: Any, inputs: Tensor) -> list[Tensor]:
    predicted = tb.predict(posterior, inputs, draws=4)
    values = [posterior.sample(4), posterior.functions(4)(inputs), predicted.probs, predicted.entropy]
    if hasattr(posterior, "log_prob") and posterior.kind != "mnf":  # which has no density
        values.append(posterior.log_prob(posterior.sample(2)))
    return values


@each
@pytest.mark.parametrize("kind", POSTERIORS)
def test_every_posterior_draws_the_same(kind: str, surrounding: Any) -> None:
    inputs, posterior = rows_of(dtype=torch.float32)[0], POSTERIORS[kind](model_of(dtype=torch.float32), 2)
    expected = asked(posterior, inputs)
    with surrounding():
        actual = asked(posterior, inputs)
    assert_same(actual, expected)


@each
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("unjudged_fits")
def test_every_method_fits_the_same(method: str, surrounding: Any) -> None:
    def fitted() -> Any:
        model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
        return tb.fit(
            model, (inputs.clone(), targets.clone()), METHODS[method](members=2, epochs=5, batch_size=8), callbacks=()
        )

    network, (inputs, targets) = made("mlp", torch.float32), rows_of(dtype=torch.float32)
    expected = fitted()
    with surrounding():
        actual = fitted()
    assert_same(actual, expected, rtol=2e-6)  # plans are chosen by measuring, and differ by rounding


class Placed(nn.Linear):
    """A layer that makes a tensor where the program does."""

    def forward(self, input: Tensor) -> Tensor:
        self.seen = torch.zeros(()).device
        return super().forward(input)


def test_networks_and_their_makers_see_the_default_device_of_the_program() -> None:
    devices: list[torch.device] = []

    def make() -> nn.Module:
        devices.append(torch.zeros(()).device)
        return Placed(2, 3, device="cpu")

    inputs = torch.zeros(4, 2)
    with default_device():
        model = tb.Model(make, tb.likelihoods.Categorical())
        posterior = tb.fit(model, (inputs, inputs.new_zeros(4).long()), tb.MAP(epochs=1), callbacks=())
        tb.predict(posterior, inputs)
    assert {device.type for device in devices} == {"meta"}
    assert model.network.module.seen == torch.device("meta")


class Watching(nn.Linear):
    """A layer that notes whether gradients are recorded."""

    def __init__(self, recorded: list[bool]) -> None:
        super().__init__(2, 3)
        self.note = recorded.append

    def forward(self, input: Tensor) -> Tensor:
        self.note(torch.is_grad_enabled())
        return super().forward(input)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_graph_is_recorded_where_the_program_asks_for_none(mode: Any) -> None:
    """Not even in the first call, which finds out what a network changes: it would keep all activations."""
    seen: list[bool] = []
    posterior = tb.Point(tb.Model(Watching(seen), tb.likelihoods.Categorical()), torch.zeros(1, 9))
    with mode():
        tb.predict(posterior, torch.zeros(4, 2))
    assert seen
    assert not any(seen)

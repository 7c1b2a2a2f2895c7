"""Modules wrapped by torch.compile, whole or in part: names, files and starts are those of the plain module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.oracles import classes, normal

ROWS = (normal(12, 3, seed=0), classes(12, 3, seed=1))


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def whole() -> nn.Module:
    return torch.compile(plain(), backend="eager")  # type: ignore[return-value]


def part() -> nn.Module:
    module = plain()
    module[0] = torch.compile(module[0], backend="eager")  # type: ignore[assignment]
    return module


def in_place() -> nn.Module:
    module = plain()
    module.compile(backend="eager")
    return module


WRAPPED = {"whole": whole, "part": part, "in_place": in_place}


def model(network: nn.Module | Callable[[], nn.Module]) -> tb.Model:
    return tb.Model(network, tb.likelihoods.Categorical())


@pytest.mark.parametrize("make", [*WRAPPED.values()], ids=[*WRAPPED])
def test_a_compiled_module_is_fitted_saved_and_loaded_as_the_plain_one(make: Callable[[], nn.Module], tmp_path: Path):
    given = make()
    names = [*given.state_dict()]
    wrapped, bare = model(given), model(plain())
    assert wrapped.layout.names == bare.layout.names
    assert [*given.state_dict()] == names

    method = tb.MAP(members=2, epochs=2)
    ours, theirs = tb.fit(wrapped, ROWS, method), tb.fit(bare, ROWS, method)
    assert isinstance(ours, tb.Point)
    assert isinstance(theirs, tb.Point)
    torch.testing.assert_close(ours.weights_MD, theirs.weights_MD)
    for posterior, other in ((ours, bare), (theirs, wrapped)):
        loaded = tb.load(posterior.save(tmp_path / f"{id(other)}.safetensors"), other)
        before = tb.predict(posterior, ROWS[0]).probs
        torch.testing.assert_close(tb.predict(loaded, ROWS[0]).probs, before)


@pytest.mark.parametrize("make", [*WRAPPED.values()], ids=[*WRAPPED])
def test_a_fit_starts_at_a_compiled_module_and_laplace_sees_its_layers(make: Callable[[], nn.Module]):
    trained = make()
    inside = {n.replace("_orig_mod.", ""): t for n, t in trained.state_dict().items()}
    start = plain()
    start.load_state_dict(inside)
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    for network in (plain(), make()):
        ours = tb.fit(model(network), ROWS, method, start=trained)
        theirs = tb.fit(model(plain()), ROWS, method, start=start)
        assert isinstance(ours, tb.LaplacePosterior)
        assert isinstance(theirs, tb.LaplacePosterior)
        expected = tb.Linearised(theirs).functions(ROWS[0])
        torch.testing.assert_close(tb.Linearised(ours).functions(ROWS[0]), expected)


def test_members_come_from_a_function_that_compiles():
    ours, theirs = (model(make).starting_weights([3, 4])[0] for make in (whole, plain))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_compiled_part_used_twice_is_unwrapped_at_both_places():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.compile(nn.Linear(3, 3), backend="eager")
            self.second = self.first

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(inputs))

    made = model(Twice().double())
    assert made.layout.names == ("first.weight", "first.bias")
    weight, bias = made.layout.split(made.given_weights()).values()
    expected = (ROWS[0] @ weight.T + bias) @ weight.T + bias
    torch.testing.assert_close(made.network(made.given_weights(), ROWS[0]), expected)

"""Arguments that do not fit a call: the error says which, and what to write instead."""

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb
from torchbayes.calls import explained

NET, ROWS = nn.Linear(1, 1), (torch.zeros(3, 1), torch.zeros(3, 1))
MODEL = tb.Model(NET, tb.likelihoods.Gaussian(0.3))


def call_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return function, args, kwargs


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (call_of(tb.MAP, lr=0.1), "`MAP` has no argument `lr`. It belongs to `optimizer`: optimizer=tb.SGD(lr=0.05)."),
        (call_of(tb.HMC, lr=0.1), "`HMC` has no argument `lr`. Did you mean `step_size`?"),
        (call_of(tb.SGHMC, learning_rate=0.1), "`SGHMC` has no argument `learning_rate`. Did you mean `step_size`?"),
        (call_of(tb.MAP, num_epochs=3), "`MAP` has no argument `num_epochs`. Did you mean `epochs`?"),
        (call_of(tb.MAP, ensemble_size=3), "`MAP` has no argument `ensemble_size`. Did you mean `members`?"),
        (call_of(tb.NUTS, num_warmup=3), "`NUTS` has no argument `num_warmup`. Did you mean `burn_in`?"),
        (call_of(tb.SWAG, epoch=3), "`SWAG` has no argument `epoch`. Did you mean `epochs`?"),
        (call_of(tb.MAP, foo=3), "`MAP` has no argument `foo`. It takes members, epochs, batch_size,"),
        (call_of(tb.priors.Normal, std=1.0), "`Normal` has no argument `std`. Did you mean `scale`?"),
        (call_of(tb.likelihoods.StudentT, nu=3.0), "`StudentT` has no argument `nu`. Did you mean `df`?"),
        (call_of(tb.SGD, 0.1, 0.9, 0.0, 0, 1, 2), "`SGD` takes "),
        (call_of(tb.Model, NET), "`Model` needs network, likelihood; `likelihood` not given."),
        (
            call_of(tb.fit, MODEL, *ROWS, tb.MAP()),
            "got 4 arguments. Pass inputs and targets as one pair: fit(model, (in",
        ),
        (call_of(tb.fit, MODEL, ROWS), "`fit` needs model, data, method; `method` not given."),
        (call_of(tb.fit, MODEL, x=ROWS), "`fit` has no argument `x`. Did you mean `data`?"),
        (call_of(tb.fit, MODEL, ROWS, tb.MAP(), model=MODEL), "`fit` got `model` twice, by position and by name."),
        (call_of(tb.load, "x", "y"), "`model` must be the `Model` that it was fitted with; got 'y'."),
        (call_of(tb.load_module, "x", NET), "`model` must be the `Model` that it was fitted with; got Linear("),
        (call_of(tb.predict, MODEL), "`predict` needs posterior, inputs; `inputs` not given."),
        (call_of(tb.data.load, "digits", 5, 5, 5, 5, 5), "`load` takes name"),
    ],
    ids=lambda case: case[0].__name__ if isinstance(case, tuple) else "",
)
def test_message_says_the_remedy(call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], said: str) -> None:
    function, args, kwargs = call
    with pytest.raises(TypeError, match=re.escape(said)):
        function(*args, **kwargs)


def test_errors_within_a_call_stay_as_they_are() -> None:
    def inner(value: int) -> int:
        return value + "x"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        explained()(inner)(3)

    def nested() -> int:
        return inner()  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        explained()(nested)()


def test_signatures_copies_and_pickles_are_as_before() -> None:
    assert list(inspect.signature(tb.MAP).parameters)[:3] == ["members", "epochs", "batch_size"]
    assert list(inspect.signature(tb.fit).parameters)[:3] == ["model", "data", "method"]
    method = tb.SWAG(members=2, rank=3)
    assert replace(method, rank=4).rank == 4
    assert copy.deepcopy(method) == method == pickle.loads(pickle.dumps(method))
    assert pickle.loads(pickle.dumps(tb.fit)) is tb.fit
    assert tb.MAP.__doc__
    assert tb.fit.__doc__

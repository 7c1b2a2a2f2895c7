"""Messages for calls with wrong arguments: which one does not fit, and which one was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from torchbayes.native.process import outside_program

_P = ParamSpec("_P")
_R = TypeVar("_R")

# names in other libraries, and their names here, of which the first in a signature counts
_ALSO = {
    "lr": ("step_size", "optimizer"),
    "learning_rate": ("lr", "step_size", "optimizer"),
    "weight_decay": ("prior",),
    "momentum": ("optimizer",),
    "num_epochs": ("epochs",),
    "n_epochs": ("epochs",),
    "max_epochs": ("epochs",),
    "iterations": ("steps",),
    "num_samples": ("draws", "samples", "steps"),
    "n_samples": ("draws", "samples", "steps"),
    "samples": ("draws", "steps"),
    "num_steps": ("steps",),
    "warmup": ("burn_in",),
    "num_warmup": ("burn_in",),
    "warmup_steps": ("burn_in",),
    "burnin": ("burn_in",),
    "thinning": ("thin",),
    "num_chains": ("chains",),
    "n_chains": ("chains",),
    "num_members": ("members", "chains"),
    "n_members": ("members", "chains"),
    "n_models": ("members", "chains"),
    "ensemble_size": ("members", "chains"),
    "num_particles": ("members",),
    "batchsize": ("batch_size",),
    "bs": ("batch_size",),
    "std": ("scale",),
    "sigma": ("scale",),
    "stddev": ("scale",),
    "mean": ("loc",),
    "mu": ("loc",),
    "nu": ("df",),
    "max_rank": ("rank",),
    "hessian_structure": ("structure",),
    "prior_precision": ("prior",),
    "random_state": ("seed",),
    "path": ("directory",),
    "x": ("inputs", "data"),
    "y": ("targets", "data"),
}
_EXAMPLES = {"optimizer": "optimizer=tb.SGD(lr=0.05)"}


def explained(*, positional: str = "") -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator of functions that explains arguments which do not fit.

    `positional` says what to write instead of too many arguments by position.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if _began(error):
                    raise
                raise TypeError(_explanation(function, args, kwargs, positional=positional) or str(error)) from None

        return call

    return decorate


def explain_constructors(*namespaces: Mapping[str, Any]) -> None:
    """Let the constructors of the library's classes in these namespaces explain arguments that do not fit.

    They also run `outside_program`. Signatures stay as they are. Classes without a constructor of their own are left
    alone.
    """
    for value in {id(v): v for namespace in namespaces for v in namespace.values()}.values():
        if isinstance(value, type) and value.__module__.startswith("torchbayes.") and "__init__" in vars(value):
            value.__init__ = _explained_constructor(value)


def _explained_constructor(kind: type) -> Callable[..., None]:
    construct: Any = vars(kind)["__init__"]

    @functools.wraps(construct)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            with outside_program():  # no frame of its own, by which `_began` would be misled
                construct(self, *args, **kwargs)
        except TypeError as error:
            if _began(error) or type(self) is not kind:
                raise
            raise TypeError(_explanation(kind, args, kwargs) or str(error)) from None

    return initialise


def _began(error: TypeError) -> bool:
    """Return whether an error was raised within a call, rather than by the attempt to call with such arguments."""
    return error.__traceback__ is None or error.__traceback__.tb_next is not None


def _explanation(called: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, positional: str = "") -> str:
    """Return what is wrong with the arguments of a call and what to do; empty if nothing is."""
    name, known = called.__name__, inspect.signature(called).parameters
    places = [n for n, p in known.items() if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    unknown = [argument for argument in kwargs if argument not in known]
    if unknown:
        return f"`{name}` has no argument `{unknown[0]}`. {_meant(unknown[0], [*known])}"
    if len(args) > len(places):
        takes = f"{', '.join(places)} by position" if places else "no argument by position"
        return f"`{name}` takes {takes}; got {len(args)} arguments. {positional or 'Give the others by name.'}"
    twice = [argument for argument in places[: len(args)] if argument in kwargs]
    if twice:
        return f"`{name}` got `{twice[0]}` twice, by position and by name. Leave one of them out."
    needed = [n for n, p in known.items() if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    missing = [f"`{n}`" for n in needed if n not in {*places[: len(args)], *kwargs}]
    return f"`{name}` needs {', '.join(needed)}; {' and '.join(missing)} not given." if missing else ""


def _meant(given: str, known: list[str]) -> str:
    """Return which argument was probably meant, or all of them."""
    others = [name for name in _ALSO.get(given, ()) if name in known] or get_close_matches(given, known, n=1)
    if others and others[0] in _EXAMPLES:
        return f"It belongs to `{others[0]}`: {_EXAMPLES[others[0]]}."
    if others:
        return f"Did you mean `{others[0]}`?"
    return f"It takes {', '.join(known)}."

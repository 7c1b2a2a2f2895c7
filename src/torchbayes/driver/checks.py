"""Checks of a whole call of `fit` or `sample`, before anything is read, made or written."""

from __future__ import annotations

import inspect
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import (
    check_counts,
    check_flags,
    check_function,
    check_kind,
    check_memory,
    check_object,
    free_memory,
    given,
    seen,
    size_of,
)
from torchbayes.density.precision import check_precision
from torchbayes.density.ranks import Ranks
from torchbayes.methods.sampler import Sampler
from torchbayes.model.model import Model
from torchbayes.posteriors.posterior import Posterior


def check_method(method: Any) -> None:
    """Check that a method is an object with settings, not its class or name.

    Raises:
        TypeError: if it is none.
    """
    check_object(("members", "init", "step"), "SWAG(epochs=60)", method=method)


def check_fit(model: Any, method: Any, start: Any, **options: Any) -> None:
    """Check the arguments of `fit` that are not data.

    Args:
        model: as of `fit`, like the others.
        method: how to infer.
        start: where to begin.
        options: directory, resume, steps, callbacks and ranks.

    Raises:
        TypeError: if one is of another kind than is meant, or weights are of lower precision than float32.
        ValueError: if a number or a flag is none.
    """
    check_kind(Model, "a Model", model=model)
    check_precision(model.network.dtype)
    check_method(method)
    kinds = (nn.Module, Posterior, Tensor)
    check_kind(kinds, "a trained module, a point posterior or flat weights", **given(start=start))
    check_kind((str, PathLike), "a path", **given(directory=options["directory"]))
    check_flags(resume=options["resume"])
    check_counts(**given(steps=options["steps"]))
    callbacks = options["callbacks"]
    if callbacks is not None:
        check_kind((list, tuple), "a list or tuple of functions", callbacks=callbacks)
        for callback in callbacks:
            check_function("a list or tuple of functions", callbacks=callback)
    check_kind(Ranks, "the processes, as `Ranks.grid` gives them", **given(ranks=options["ranks"]))


def check_size(model: Model, method: Any, *, members: int, in_memory: bool) -> None:
    """Check that what a method keeps can be held.

    Args:
        model: the model.
        method: the method, as long and with as many members as was asked for.
        members: those of this process.
        in_memory: whether draws are kept there.

    Raises:
        ValueError: if it cannot.
    """
    like_D, device = model.network.weights().new_empty(model.layout.size, device="meta"), model.network.device
    name = "chains" if isinstance(method, Sampler) else "members"
    total = members * like_D.nbytes
    check_memory(2 * total, "weights and gradients of all members", device, **{name: members})
    structure, rank = getattr(method, "structure", "low_rank"), getattr(method, "rank", 0)
    if structure == "low_rank":
        check_memory(rank * total, "directions of all members", device, rank=rank)
    if structure == "dense" and (free := free_memory(device)) < total * len(like_D):
        raise ValueError(
            f"`structure='dense'` is a matrix of {len(like_D):,} by {len(like_D):,}, which would take "
            f"{size_of(total * len(like_D))}, and {size_of(free)} are free. Use structure='kronecker'."
        )
    if isinstance(method, Sampler) and in_memory:
        check_kept(method, like_D, device)


def check_kept(method: Sampler, like_D: Tensor, device: torch.device) -> None:
    """Check that the draws of a sampler can be held in memory.

    Args:
        method: the sampler.
        like_D: weights of one chain.
        device: where the draws are kept.

    Raises:
        ValueError: if they cannot.
    """
    cycles = method.cycles
    each = (method.steps - method.burn_in) // method.thin
    kept = min(each, method.steps // cycles.length * cycles.draws) if cycles else each
    check_memory(kept * method.members * like_D.nbytes, "the draws of all chains", device, steps=method.steps)


def check_sample(density: Any, method: Any) -> None:
    """Check density and method of a call of `sample`.

    Raises:
        TypeError: if one is of another kind than is meant.
    """
    if isinstance(density, type) or inspect.isroutine(density) or not callable(density):  # a function gives no gradient
        raise TypeError(
            f"`density` must be a LogDensity with data or a FunctionDensity; got {seen(density)}. Wrap a function of "
            f"the weights in FunctionDensity."
        )
    check_method(method)
    check_kind(Sampler, "a sampler, such as HMC()", method=method)

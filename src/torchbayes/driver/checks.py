"""Checks of a whole call of `fit` or `sample`, before anything is read, made or written."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from torchbayes.checks import (
    SettingError,
    check_counts,
    check_entries,
    check_flags,
    check_function,
    check_kind,
    check_memory,
    check_object,
    check_positive,
    optional,
    seen,
)
from torchbayes.density.density import check_whole
from torchbayes.density.dynamics import Density
from torchbayes.density.ranks import Ranks
from torchbayes.driver.chains import Chains
from torchbayes.driver.checkpoint import differences
from torchbayes.driver.run import describe
from torchbayes.methods.choices import Comparison
from torchbayes.methods.protocol import Method, name_of_members
from torchbayes.model.batches.batch import rows_of
from torchbayes.model.model import Model
from torchbayes.model.parameters import Parameters
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.model.probes.gradients import dependence
from torchbayes.model.probes.links import applied_twice
from torchbayes.model.sources.sources import Source
from torchbayes.model.subspace import Subspace
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import member_seeds


def check_method(method: Any) -> None:
    """Check that a method is an object with settings, not a class or a name, and has all of the protocol."""
    check_object(("members", "needs", "init", "visit", "step"), "SWAG(epochs=60)", method=method)
    missing = [name for name in ("check", "choices", "draw", "ending") if not hasattr(method, name)]
    if missing:
        raise TypeError(
            f"{type(method).__name__} has no {', '.join(f'`{name}`' for name in missing)}, which a method has. Let it "
            f"inherit `torchbayes.methods.defaults.Defaults`, and override what differs."
        )


def check_fit(model: Any, method: Any, start: Any, *, space: Any) -> None:
    """Check what `fit` infers, how, and where it begins."""
    check_kind(Model, "a Model", model=model)
    check_method(method)
    optional(check_kind, Subspace, "a Subspace of the model", space=space)
    method.check(model if space is None else space.model)
    kinds = (nn.Module, Posterior, Tensor)
    optional(check_kind, kinds, "a trained module, a point posterior or flat weights", start=start)
    if space is not None and space.whole is not model:
        raise ValueError(
            "`space` is a subspace of another model's weights. Make it of the model that is fitted, such as "
            "`Subspace.of(posterior, model=model)`."
        )


def check_run(*, directory: Any, resume: Any, steps: Any, callbacks: Any, ranks: Any) -> None:
    """Check how long a run of `fit` is, and where it writes, shows and shares it."""
    optional(check_kind, (str, PathLike), "a path", directory=directory)
    check_flags(resume=resume)
    optional(check_counts, steps=steps)
    check_callbacks(callbacks)
    optional(check_kind, Ranks, "the processes, as `Ranks.grid` gives them", ranks=ranks)


def check_validation(method: Method, validation: Any, start: Any) -> None:
    """Check the data or the share of rows by which settings are chosen, and that the method has something to choose."""
    if validation is None:
        return
    chosen = [choice for choice in method.choices if start is None or method.needs.start is None]
    if not chosen and not any(isinstance(choice, Comparison) for choice in method.choices):
        raise ValueError(
            f"{type(method).__name__} with these settings has nothing for held-out rows to choose. Leave out "
            f"`validation`, or the `step_size` of a sampler on minibatches. `tune(posterior, on=data)` chooses the "
            f"prior of a Laplace posterior."
        )
    if isinstance(validation, bool | int | float | str | type):
        if not isinstance(validation, float):
            raise TypeError(f"`validation` must be a share of the rows, such as 0.1, or data; got {seen(validation)}.")
        check_positive(validation=validation)
        if validation >= 1:
            raise ValueError(f"`validation` must be a share of the rows below 1, such as 0.1; got {validation}.")


def check_size(model: Model, method: Method, *, members: int, in_memory: bool) -> None:
    """Check that weights and gradients of this process's members fit in memory, and draws if they are kept there."""
    like_D = torch.empty(model.layout.size, dtype=model.network.dtype, device="meta")
    device = model.network.device
    total = 2 * members * like_D.nbytes
    counted = {name_of_members(method): members}
    check_entries(counted, check_memory, total, "weights and gradients of all members", device)
    if in_memory:
        check_draws(method, like_D, device)


def check_draws(method: Method, like_D: Tensor, device: torch.device) -> None:
    """Check that the draws of a run, with weights like those of one member, fit in memory."""
    draws = method.needs.draws
    if draws:
        needed = draws * method.members * like_D.nbytes
        check_memory(needed, "the draws of all chains", device, steps=method.length(1))


def check_shares(model: Model, method: Method, ranks: Ranks, *, directory: Path | None) -> None:
    """Check that processes may share the rows of a batch, and the members.

    A batch norm would see only the rows of its own process, coupled members would be separated, and processes that hold
    parts of one network would call it more or less often.
    """
    norms = (*model.network.batch_norms, *model.network.by_batch)
    if ranks.data > 1 and method.needs.network == "train" and norms:
        raise ValueError(
            f"`{norms[0]}` is a batch norm, whose statistics are those of a whole batch, so ranks "
            f"cannot split the data. Let them share the members (`Ranks.grid(data=1)`), or use group norm."
        )
    if directory is not None and model.network.sharded and ranks.size < distributed.get_world_size():
        raise ValueError(
            "the network is split over processes, and each would write to the same `directory`. Say that they share "
            "the fit: `ranks=Ranks.grid()`."
        )
    if ranks.chains > 1 and model.network.sharded:
        raise ValueError(
            f"the network is split over processes, which must call it equally often, and {ranks.chains} ranks that "
            f"share the members do not. Let them share the data (`Ranks.grid(chains=1)`)."
        )
    if ranks.chains > 1 and method.needs.coupled:
        raise ValueError(
            f"the members of {type(method).__name__} see each other, so {ranks.chains} ranks cannot split them. Let "
            f"them share the data (`Ranks.grid(chains=1)`)."
        )


def check_coupled(model: Model, source: Source, method: Method) -> None:
    """Check that a method lets coupled rows go through the network together."""
    if not model.coupled:
        return
    if method.needs.fixed_rows:
        refuse_coupled(model)
    if method.needs.batch_size is not None:
        check_whole(-(-source.num_data // source.steps_per_epoch), source.num_data)


class ChangingDataWarning(UserWarning):
    """The same rows differ from pass to pass, so their number is not that of the observations."""


def warn_if_changing(source: Source) -> None:
    """Warn if rows of the data differ between two passes, as augmentation makes them."""
    if source.changes():
        warnings.warn(
            "the inputs differ from pass to pass, as augmentation makes them. This method counts every row once, as an "
            "observation of its own, and data that are drawn anew define no posterior. Leave the augmentation out.",
            ChangingDataWarning,
            stacklevel=4,
        )


class UnusedWeightsWarning(UserWarning):
    """The outputs of the network do not depend on some of its random weights."""


class OutputsWarning(UserWarning):
    """The network applies to its outputs what the likelihood applies again."""


def check_gradients(model: Model, source: Source, *, training: bool) -> None:
    """Check on the first rows that outputs depend on all random weights, and are in the form that the likelihood takes.

    Raises a SettingError if they depend on no parameter, or as `dependence` does; otherwise problems are warnings.
    """
    inputs = (rows_of(each, slice(0, model.chunk_size)) for each in source.inputs())
    outputs, missing = dependence(model.network, inputs, training=training)
    if outputs is not None and (warning := applied_twice(model.likelihood, outputs)):
        warnings.warn(warning, OutputsWarning, stacklevel=4)
    total = len(model.network.layout.names)
    if not missing:
        return
    text = (
        f"the outputs for the first rows have no gradient in {len(missing)} of {total} random parameters, such as "
        f"`{missing[0]}`: their posterior is their prior. Perhaps the network does not use them, multiplies them by a "
        f"zero that is not random (the other factor of a fresh adapter), runs them under torch.no_grad, or recomputes "
        f"them by code of its own (not torch.utils.checkpoint). If that is meant, leave them out of `random`."
    )
    if len(missing) == total:
        raise SettingError(text)
    warnings.warn(text, UnusedWeightsWarning, stacklevel=4)


def check_callbacks(callbacks: Any) -> None:
    """Check that callbacks are a list or tuple of functions, or None."""
    optional(check_kind, (list, tuple), "a list or tuple of functions", callbacks=callbacks)
    for callback in callbacks or ():
        check_function("a list or tuple of functions", callbacks=callback)


def check_sample(density: Any, method: Any, *, parameters: Any, callbacks: Any, resume: Any) -> None:
    """Check the kinds of the arguments of `sample` that are not numbers."""
    optional(check_kind, Chains, "the chains of an earlier call", resume=resume)
    if isinstance(density, type) or not callable(density):
        raise TypeError(
            f"`density` must be a function that returns a log density, a LogDensity with data or a FunctionDensity; "
            f"got {seen(density)}."
        )
    check_method(method)
    if not method.needs.chain:
        raise TypeError(f"`method` must be a sampler, such as HMC(); got {seen(method)}.")
    optional(check_kind, Parameters, "Parameters, such as Parameters(mu=(), theta=(8,))", parameters=parameters)
    if parameters is not None and hasattr(density, "leapfrog"):
        raise TypeError(f"`parameters` are the arguments of a function, given as `density`; got {seen(density)}.")
    check_callbacks(callbacks)


def check_continues(resume: Chains, method: Method, start_MD: Any, *, names: Parameters, seed: int | None) -> None:
    """Check that chains belong to the run that is to be continued.

    Raises a ValueError for another method, other settings, parameters or seed, a start, or fewer steps than the
    chains have.
    """
    if start_MD is not None:
        raise ValueError("`start_MD` is for new chains; those of `resume` go on where they are. Leave it out.")
    pairs = (resume.method, resume.parameters), (method, names)
    of_chains, requested = ({"method": describe(sampler), "parameters": named.described()} for sampler, named in pairs)
    if method.needs.chain:  # a longer run is the same run
        of_chains["method"].pop("steps", None)
        requested["method"].pop("steps", None)
    clauses = differences(of_chains, requested)
    if seed is not None and not clauses and list(resume.state.seeds) != member_seeds(seed, method.members):
        clauses.append(f"its seed is {resume.state.seeds[0]}, now {seed}")
    if clauses:
        raise ValueError(
            f"`resume` holds chains of another run: {'; '.join(clauses[:5])}. Resume with the same settings; there may "
            f"be more `steps`."
        )
    if method.length(1) < resume.state.step:
        raise ValueError(
            f"`steps` must be at least the {resume.state.step:,} that the chains of `resume` have; got "
            f"{method.length(1):,}."
        )


def check_same_density(resume: Chains, density: Density) -> None:
    """Check that a density gives the values that the chains have, up to rounding, if they hold any."""
    before_M = getattr(resume.state, "log_density_M", None)
    if before_M is None:
        return
    now_M = density(resume.state.weights_MD).log_density
    if now_M.shape != before_M.shape or not torch.allclose(now_M, before_M, rtol=1e-3, atol=0.1):
        raise ValueError(
            f"`resume` holds chains of another density: where chain 0 is, its log was {before_M[0].item():.6g}, and is "
            f"now {now_M.flatten()[0].item():.6g}. Resume with the same function and the same data."
        )

"""Where a fit begins, and with how many members: at a given start, or at networks that a training run finds.

Some methods compare their members with the networks where they began, by rows that are held out of the whole run.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchbayes.driver.checks import check_validation
from torchbayes.driver.loop import Begin
from torchbayes.driver.progress import Callback
from torchbayes.driver.reader import ROWS, density_of
from torchbayes.driver.run import START, recorded
from torchbayes.health.chains import STUCK_SAID, named, were
from torchbayes.health.ending import History
from torchbayes.health.members import judged
from torchbayes.methods.choices import Comparison
from torchbayes.methods.optimise.learned import estimated
from torchbayes.methods.protocol import Method, name_of_members
from torchbayes.model.batches.batch import Batch
from torchbayes.model.model import Model
from torchbayes.model.probes.gradients import dependence
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.model.subspace import Subspace
from torchbayes.posteriors.locks import folder_in
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.posteriors.start import centred, number_of_starts, start_of
from torchbayes.randomness.seeds import member_seeds
from torchbayes.selection.choose import choose
from torchbayes.selection.spread import borne
from torchbayes.selection.trials import FEWEST, folds_of, having

Start = nn.Module | Posterior | Tensor | None


def begin_at(
    model: Model, method: Method, start: Start, *, seed: int, space: Subspace | None, source: Source
) -> tuple[Model, Begin]:
    """Return the model over what is inferred, weights or coordinates, and where the members begin.

    Their standard deviations are those of a Gaussian start, or else those that the likelihood allows at the start.
    """
    members = member_seeds(seed, method.members)
    seeds = [seed for seed in members for _ in range(method.needs.modes)]
    spreads = method.needs.spread and start is not None
    start, scale_MD = centred(start) if spreads and space is None else (start, None)
    begin = start_of(model, start, seeds, space=space)
    model = model if space is None else space.model
    begin = estimated(model, begin, source) if isinstance(start, nn.Module) else begin
    if spreads and scale_MD is None:
        scale_MD = borne(density_of(model, source, method), source, begin, seeds=seeds)
    return model, Begin(*begin, members, scale_MD)


def of_length(method: Method, steps: int | None) -> Method:
    """Return the method with the length that was asked for; a ValueError if its length is not free."""
    if steps is None:
        return method
    if not method.needs.chain:
        raise ValueError(
            f"`steps` is for samplers, whose chains can go on; got {steps} for {type(method).__name__}, whose schedule "
            f"belongs to its epochs. Set those, or start a new run at its weights with `start=`."
        )
    return having(method, {"steps": steps})


def with_members_of(method: Method, start: nn.Module | Posterior | Tensor) -> Method:
    """Return a method that begins at modes, with as many members as the modes of a start suffice for.

    A ValueError if some are left over.
    """
    count, modes = number_of_starts(start), method.needs.modes
    if count % modes:
        raise ValueError(
            f"{type(method).__name__} begins at {modes} networks for each member, so `start` must hold a multiple of "
            f"{modes}; got {count}. Pass a deep ensemble, or weights of one network per row."
        )
    return having(method, {name_of_members(method): count // modes})


def modes_to_seek(
    model: Model,
    data: Any,
    method: Method,
    *,
    seed: int,
    space: Subspace | None,
    validation: float | Any,
    directory: Path | None,
    callbacks: Sequence[Callback] | None,
) -> tuple[Method, Method, Point | None, dict[str, Any]]:
    """Return a method that begins at modes with the choices of held-out rows, and the training that finds the modes.

    Then where this training begins, if not afresh, and an entry `chosen` of the run or none. Arguments as of `fit`;
    the training has the folder `start` in the directory of the run.
    """
    folder = None if directory is None else folder_in(directory, START)  # a link is refused before anything is trained
    seeker: Method = method.needs.start
    source = as_source(model, data, seeker.needs.batch_size or ROWS)
    source.check(training=method.needs.network == "train")
    dependence(model.network, source.inputs(), training=True)
    seeds = member_seeds(seed, method.needs.modes * method.members)
    begin = Begin(*start_of(model, None, seeds, space=space), seeds)
    inner = model if space is None else space.model
    _, method, entry = choose(
        inner, source, method, begin=begin, validation=validation, directory=directory, callbacks=callbacks
    )
    chosen = entry.get("chosen", {})
    mode = chosen.get("mode", {})
    if folder is not None and (run := recorded(folder)) is not None:  # a repeated search may round differently
        mode = {name: run[1]["method"].get(name, value) for name, value in mode.items()}
    seeker = having(seeker, {**mode, "members": len(seeds)})
    if (learned := chosen.get("learned")) is None:
        return method, seeker, None, entry
    weights_MD = begin.with_learned(learned).weights_MD
    weights_MD = weights_MD if space is None else space.lift(weights_MD)
    return method, seeker, Point(model, weights_MD, buffers_M=begin.buffers or None, statistics_known=True), entry


class Divided(NamedTuple):
    """The rows of a run, and rows that are held out of it."""

    data: Any  # as `fit` takes them
    validation: Any  # for the start
    held_out: Sequence[Batch] | None = None  # None where there are none
    then: Method | None = None  # what goes on with all rows, if some of the data were held out


class Standard(NamedTuple):
    """What the members of a run are compared with."""

    begin: Begin  # where they began
    held_out: Sequence[Batch] | None


def compares(method: Method) -> bool:
    """Return whether a method compares its members with the networks where they began."""
    return any(isinstance(choice, Comparison) for choice in method.choices)


def divided(
    model: Model, data: Any, method: Method, *, validation: Any, start: Any, seed: int
) -> tuple[Divided, Method]:
    """Return the rows of a run and those held out of it, if a method compares its members by such, and the method.

    Without rows of their own, a share of the data is held out; none if there are few, if rows cannot be told apart,
    or if a start is given, which may have seen them. A ValueError or TypeError if `validation` is not what `fit` takes.
    """
    check_validation(method, validation, start)
    comparison = next((choice for choice in method.choices if isinstance(choice, Comparison)), None)
    if comparison is None:
        return Divided(data, validation), method
    source = as_source(model, data, method.needs.batch_size or ROWS)
    if validation is None and (start is not None or source.num_data < FEWEST):
        return Divided(data, validation), method
    folds = folds_of(model, source, validation, seed=member_seeds(seed, 1)[0])
    if not folds:
        return Divided(data, validation), method
    if validation is not None and not isinstance(validation, float):
        return Divided(data, validation, folds[0].held_out), method
    left = [(batch.inputs, batch.targets) for batch in folds[0].held_out]
    then, validation = having(method, comparison.then), left[0] if len(left) == 1 else left
    return Divided(folds[0].rows, validation, folds[0].held_out, then), having(method, comparison.first)


def worth_keeping(posterior: Any, standard: Standard, source: Source, *, history: History) -> Any:
    """Return the posterior without members that are worth less than where they began; a warning says which."""
    begin, held_out = standard
    start = Point(posterior.model, begin.weights_MD, buffers_M=begin.buffers or None, statistics_known=True)
    last = {name: column_MR[:, -(column_MR.shape[1] // 4 or 1) :] for name, column_MR in history.columns().items()}
    verdict = judged(posterior, start, source, held_out=held_out, columns=last)
    if not verdict.said:
        return posterior
    warnings.warn("; ".join(verdict.said) + ".", ProblemWarning, stacklevel=4)
    weights_MSD = posterior.weights_MSD.clone()
    replaced_M = verdict.replaced_M.to(weights_MSD.device)
    weights_MSD[replaced_M] = begin.weights_MD[replaced_M].unsqueeze(1).to(weights_MSD)
    stats = None if replaced_M.any() else posterior.sample_stats
    return _some_chains(replace(posterior, weights_MSD=weights_MSD, sample_stats=stats), ~verdict.dropped_M)


def without_dropped(posterior: Any, dropped_M: Tensor | None) -> Any:
    """Return draws without the chains that are worth nothing beside the others; a warning says which."""
    if dropped_M is None or not dropped_M.any():
        return posterior
    warnings.warn(f"{named(dropped_M)} {were(dropped_M)} {STUCK_SAID}.", ProblemWarning, stacklevel=4)
    return _some_chains(posterior, ~dropped_M)


def _some_chains(posterior: Any, kept_M: Tensor) -> Any:
    """Return draws of some chains, in memory, in the order in which samplers store them."""
    kept_M = kept_M.to(posterior.weights_MSD.device)
    buffers_M = posterior.buffers_M and {name: each[kept_M] for name, each in posterior.buffers_M.items()}
    stats = posterior.sample_stats and {name: each[kept_M.cpu()] for name, each in posterior.sample_stats.items()}
    in_order_MSD = posterior.weights_MSD[kept_M].transpose(0, 1).contiguous().transpose(0, 1)
    return replace(posterior, weights_MSD=in_order_MSD, buffers_M=buffers_M, sample_stats=stats)

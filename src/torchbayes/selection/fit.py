"""fit: open settings are chosen, the driver runs to the end, and the result is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from torchbayes.calls import explained
from torchbayes.checks import as_seed
from torchbayes.density.ranks import Ranks
from torchbayes.driver.checks import check_fit, check_run, check_shares, check_size
from torchbayes.driver.log import with_reports
from torchbayes.driver.loop import run_to_end
from torchbayes.driver.progress import Callback
from torchbayes.driver.reader import density_of, informed, rows_of
from torchbayes.driver.run import ALL_ROWS, START, Run, Shard, check_free, describe_constants, describe_run
from torchbayes.health.ending import Case
from torchbayes.methods.protocol import Method, Result_co
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import Source
from torchbayes.model.subspace import Subspace
from torchbayes.native.process import full_path, trim, undisturbed
from torchbayes.posteriors.locks import folder_in
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import checked, warn_of, warn_unchecked
from torchbayes.posteriors.subspace import InSubspace
from torchbayes.selection.choose import choose
from torchbayes.selection.start import (
    Standard,
    begin_at,
    compares,
    divided,
    modes_to_seek,
    of_length,
    with_members_of,
    without_dropped,
    worth_keeping,
)
from torchbayes.selection.trials import having


@overload
def fit(
    model: Model,
    data: Any,
    method: Method[Result_co],
    *,
    start: nn.Module | Posterior | Tensor | None = None,
    seed: int = 0,
    directory: str | PathLike[str] | None = None,
    resume: bool = False,
    steps: int | None = None,
    callbacks: Sequence[Callback] | None = None,
    ranks: Ranks | None = None,
    space: None = None,
    validation: float | Any = None,
) -> Result_co: ...


@overload
def fit(
    model: Model,
    data: Any,
    method: Method[Any],
    *,
    start: nn.Module | Posterior | Tensor | None = None,
    seed: int = 0,
    directory: str | PathLike[str] | None = None,
    resume: bool = False,
    steps: int | None = None,
    callbacks: Sequence[Callback] | None = None,
    ranks: Ranks | None = None,
    space: Subspace,
    validation: float | Any = None,
) -> InSubspace: ...


@undisturbed
@explained(positional="Pass inputs and targets as one pair: fit(model, (inputs, targets), method).")
def fit(
    model: Model,
    data: Any,
    method: Method[Any],
    *,
    start: nn.Module | Posterior | Tensor | None = None,
    seed: int = 0,
    directory: str | PathLike[str] | None = None,
    resume: bool = False,
    steps: int | None = None,
    callbacks: Sequence[Callback] | None = None,
    ranks: Ranks | None = None,
    space: Subspace | None = None,
    validation: float | Any = None,
) -> Posterior:
    """Infer the posterior over a model's weights.

    Every random number is a function of (seed, member, step). A run that was killed and resumed therefore equals
    bit for bit one that was not. Member m equals, to rounding, a run of its own with `member_seeds(seed, M)[m]`,
    unless members interact. The same call gives the same result to rounding, and bit for bit when the method's
    `plan` is set.

    Args:
        model: network, likelihood and prior.
        data: training data: a tuple (inputs, targets) of tensors, a Dataset, a DataLoader or a list of batches.
            Every row counts once (docs/decisions/0027-what-counts-as-a-row.md).
        method: how to infer, such as `MAP(members=5)` or `SWAG(epochs=60)`.
        start: where to begin: a trained module or flat weights (D,), the same for every member; (M, D) or a point
            posterior, one per member. VI, IVON and BSAM also begin at a Gaussian posterior, with its standard
            deviations. At other starts they begin with those that the gradients of about 128 rows leave, where
            these are narrower than their own, and not 0. A noise scale that a module does not hold begins at its
            most probable value given the residuals. None initialises members afresh, by the network's own
            initialisers or factory; of a trained or loaded module only the frozen weights are then used. Laplace
            and MILE have as many members as the start has modes; without a start, `MAP()` of their members finds
            them, in the folder `start` of the directory. A sampler begins one chain at each.
        seed: seed of initialisation, data order and noise.
        directory: run directory for configuration, log, checkpoint and posterior; nothing is written if None.
        resume: continue the run in `directory` from its last checkpoint; starts afresh if it has none yet.
        steps: length of the run instead of the method's, for samplers: resumed with more steps, a finished run
            continues as if it had been that long from the start.
        callbacks: called with an `Event` at the end of each epoch; a callback that returns True ends the fit there.
            None shows a progress bar on a terminal, elsewhere a line after each tenth of the run, on standard
            error, and the same for the trial runs in which held-out rows choose settings; an empty tuple shows
            nothing. A list shows the bar if it holds `tb.Progress()`.
        ranks: processes that share the fit, each of which makes this same call: `Ranks.grid()` under torchrun. The
            result is that of one process to rounding. The first of them writes, and calls the callbacks with the
            state of its own members; all of them must see the directory.
        space: a subspace of the weights to infer in; the posterior is still one over weights. Members start at its
            origin, or at its nearest point to `start`.
        validation: rows that choose how long MAP, SWA and SWAG train, and Laplace without a start: a share of the
            training rows, such as 0.1, or data of their own. A first run of one member, without the held-out rows,
            finds the epoch after which these are most likely; if they are fewer than 500 there are up to five such
            runs, each with other rows held out. The run itself then has all training rows and twice as many epochs,
            at most those that the method sets and, with ten rows or more for each weight, at least the usual
            number; a learned noise begins no lower than held-out rows ask for, and that of MAP, SWA and SWAG ends at
            the most probable value at the residuals of rows that trial runs leave out. They also choose how SWA and
            SWAG average, the prior of Laplace, length and factor of OnlineLaplace, and for IVON and samplers on
            minibatches without a step size the scale of a prior that the model leaves open. MILE compares its
            chains with the networks where they began by rows that neither has seen. None does this only if
            such a setting is left open, such as the epochs of a method: with a tenth of the rows, but at least 50
            of them or a fifth. The choice is in the `config.json` of the directory.

    Returns:
        The posterior, on every rank. Its model is the one given, with what a likelihood takes from the training
        targets (`likelihoods.Gaussian`). With batch norm it can recalibrate its draws on the training data. The
        draws of a sampler with a directory stay on disk, in `draws.bin`, and are read as they are used.

    Raises:
        ValueError: if the data, the start or the directory do not fit; nothing has been changed then.
        DivergedError: if a loss is not finite; with a directory, the last finite state is in its checkpoint, or
            where ranks share the members the last one that was written.
        LostRankError: if another rank died or stopped.
        OSError: if another process writes to the directory (it says which), or it cannot be written to.
        TypeError: if an argument is of the wrong kind, such as a class in the place of an object.
    """
    check_fit(model, method, start, space=space)
    check_run(directory=directory, resume=resume, steps=steps, callbacks=callbacks, ranks=ranks)
    seed, directory = as_seed(seed), None if directory is None else full_path(directory)
    method = of_length(method, steps)
    rows, method = divided(model, data, method, validation=validation, start=start, seed=seed)
    model, space = informed(model, rows.data, space=space, directory=directory)
    request = _Request(seed, space, validation := rows.validation, directory, resume, callbacks, ranks)
    first_start, entries = start, dict[str, Any]()
    if method.needs.start is not None:
        method, start, entries = _at_modes(model, rows.data, method, start=start, request=request)
    shard = Shard(method.members, ranks or Ranks())
    check_shares(model, method, shard.ranks, directory=directory)
    check_size(model, method, members=shard.count, in_memory=directory is None)
    problems = _problems_of(start, given=first_start is not None)
    source, faults = rows_of(model, rows.data, method)
    model, begin = begin_at(model, method, start, seed=seed, space=space, source=source)
    if method.needs.start is None and method.choices:
        model, method, entries = choose(
            model, source, method, begin=begin, validation=validation, directory=directory, callbacks=request.shown_to
        )
        begin = begin.with_learned(entries.get("chosen", {}).get("learned"))
    constants = describe_constants(model if space is None else space.whole, method, directory=directory)
    description = {**describe_run(model, source, method, seed=seed, space=space), **constants, **entries}
    density = density_of(model, source, method, ranks=shard.ranks)
    trim()  # frees copies that initialisers and a first run made
    fresh = [begin.some(shard.local, method.needs.modes).state(method, density, description["steps_per_epoch"])]
    standard = Standard(begin, rows.held_out) if compares(method) else None
    del begin
    with Run(directory, description, resume=resume, shard=shard) as run:
        state = run_to_end(density, source, method, run=run, fresh=fresh, callbacks=callbacks)
        trim()  # frees memory that only steps need
        # Problems of modes are problems of what is built on them. Other methods move away from their start.
        known = (*(problems if method.needs.start is not None and standard is None else ()), *faults)
        posterior, raised = _judged(density, source, method, state=state, run=run, known=known, standard=standard)
        posterior = _finished(posterior, model, data, then=rows.then, request=request)
        run.save(posterior)
    warn_of([problem for problem in posterior.problems if problem not in problems])
    warn_unchecked(raised)
    return posterior


@dataclass(frozen=True)
class _Request:
    """What a run of `fit` has in common with the training that finds the modes where it begins."""

    seed: int
    space: Subspace | None
    validation: float | Any
    directory: Path | None
    resume: bool
    callbacks: Sequence[Callback] | None
    ranks: Ranks | None

    @property
    def shown_to(self) -> Sequence[Callback] | None:
        """The callbacks that are shown trial runs: those of the first process."""
        return self.callbacks if (self.ranks or Ranks()).first else ()


def _problems_of(start: Any, *, given: bool) -> tuple[str, ...]:
    """Return the problems of a start; one that was sought has been warned of by its own fit."""
    problems = start.problems if isinstance(start, Posterior) else ()
    warn_of(problems if given else (), "`start`")
    return problems


def _at_modes(
    model: Model, data: Any, method: Method, *, start: Any, request: _Request
) -> tuple[Method, Any, dict[str, Any]]:
    """Return a method with one member per mode of a start, the modes, and an entry `chosen` of the run or none.

    Without a start, a training run finds one, in the folder `start` of the directory, so that a resumed run need
    not train again.
    """
    if start is not None:
        return with_members_of(method, start), start, {}
    directory = request.directory
    if directory is not None and not request.resume:
        check_free(directory)
    method, seeker, begin, entries = modes_to_seek(
        model,
        data,
        method,
        seed=request.seed,
        space=request.space,
        validation=request.validation,
        directory=directory,
        callbacks=request.shown_to,
    )
    modes = fit(
        model,
        data,
        seeker,
        start=begin,
        seed=request.seed,
        space=request.space,
        directory=None if directory is None else folder_in(directory, START),
        resume=request.resume,
        callbacks=request.callbacks,
        ranks=request.ranks,
    )
    return method, modes, entries


def _finished(posterior: Any, model: Model, data: Any, *, then: Method | None, request: _Request) -> Posterior:
    """Return a posterior over all weights; its chains go on with all rows by the method `then`, if there is one.

    Members that were replaced by a network do not move, and stay; if all were, networks are trained with all rows.
    """
    if request.space is not None:
        return InSubspace.of(posterior, request.space)
    if then is None:
        return posterior
    still_M = (posterior.weights_MSD == posterior.weights_MSD[:, :1]).flatten(1).all(1)
    networks = bool(still_M.all())
    further: Any = fit(
        model,
        data,
        having(then.needs.start, {"members": len(still_M)}) if networks else then,
        start=None if networks else posterior.weights_MSD[~still_M, -1],
        seed=request.seed,
        directory=None if request.directory is None else folder_in(request.directory, ALL_ROWS),
        resume=request.resume,
        callbacks=request.callbacks,
        ranks=request.ranks,
    )
    problems = (*posterior.problems, *further.problems)
    if networks:
        now = {"weights_MSD": further.weights_MD.unsqueeze(1), "buffers_M": further.buffers_M}
        joined = replace(posterior, **now, sample_stats=None)
        return joined.with_problems(problems)
    still_MSD = posterior.weights_MSD[still_M, :1].expand(-1, further.weights_MSD.shape[1], -1)
    in_order_SMD = torch.cat([further.weights_MSD, still_MSD]).transpose(0, 1).contiguous()
    stats = further.sample_stats if bool(~still_M.any()) else None
    return replace(further, weights_MSD=in_order_SMD.transpose(0, 1), sample_stats=stats).with_problems(problems)


def _judged(
    density: Any,
    source: Source,
    method: Method,
    *,
    state: Any,
    run: Run,
    known: Sequence[str],
    standard: Standard | None,
) -> tuple[Posterior, str]:
    """Return the posterior of a final state, with its problems, and the error that ended its check, if any.

    Members that do not meet the standard are left out, or replaced. A learned noise is that which held-out rows chose,
    if they did.
    """
    state = run.shard.whole(state)
    posterior = method.posterior(density, state, run.shelf).calibrated(source.inputs)
    posterior = with_reports(posterior, run.history, within=run.description["steps_per_epoch"])
    ending = method.ending(posterior, state)
    if (noise := run.description.get("chosen", {}).get("noise")) is not None:
        posterior, ending = posterior.with_learned(noise), ending.with_learned(noise)
    case = Case(posterior, source, run.history)
    posterior = without_dropped(posterior, ending.dropped(case))
    trim()  # frees memory that only the posterior's making needs
    problems, raised = checked(lambda: ending.problems(case._replace(posterior=posterior)))
    posterior = posterior.with_problems((*known, *problems))
    return posterior if standard is None else worth_keeping(posterior, standard, source, history=run.history), raised

"""fit: the one driver. Epochs, progress, log, checkpoints, exact resume, callbacks; the method does the rest."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

from torch import Tensor, nn

from torchbayes.checks import as_seed
from torchbayes.density.density import LogDensity
from torchbayes.density.plans import Plan
from torchbayes.density.ranks import Ranks
from torchbayes.driver.checkpoint import all_finite
from torchbayes.driver.checks import check_fit, check_size
from torchbayes.driver.means import Means
from torchbayes.driver.processes import Share
from torchbayes.driver.progress import Callback, Event, progress_bar, watched
from torchbayes.driver.run import Run, describe
from torchbayes.driver.shelf import Kept
from torchbayes.methods.laplace.mode import warn_if_changing
from torchbayes.methods.optimise.descent import DivergedError, epochs_of
from torchbayes.methods.optimise.health import problems_of
from torchbayes.methods.protocol import Method
from torchbayes.methods.sampler import Sampler
from torchbayes.model.description import describe_model
from torchbayes.model.model import Model
from torchbayes.model.rows.sources import Source, Whole, as_source
from torchbayes.native.seeds import member_seeds
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior, packed
from torchbayes.posteriors.problems import checked, warn_of, warn_unchecked
from torchbayes.posteriors.start import start_of


def fit(
    model: Model,
    data: Any,
    method: Method | Sampler,
    *,
    start: nn.Module | Posterior | Tensor | None = None,
    seed: int = 0,
    directory: str | PathLike[str] | None = None,
    resume: bool = False,
    steps: int | None = None,
    callbacks: Sequence[Callback] | None = None,
    ranks: Ranks | None = None,
) -> Posterior:
    """Infer the posterior over a model's weights.

    Every random number is a function of (seed, member, step). A run that was killed and resumed therefore equals one
    that was not bit for bit, and member m equals, to rounding, a run of its own with `member_seeds(seed, M)[m]`. The
    same call gives the same result to rounding, and bit for bit when the method's `plan` is set.

    Args:
        model: network, likelihood and prior.
        data: training data: a tuple (inputs, targets) of tensors, a Dataset, a DataLoader or a list of batches.
        method: how to infer, such as `MAP(members=5)` or `SWAG(epochs=60)`.
        start: where to begin: a trained module or flat weights (D,), for every member alike; (M, D) or a point
            posterior, one per member. None initialises members afresh, by the network's own initialisers or factory:
            of a module that was trained or loaded, only the frozen weights are then used. Laplace needs a start, and
            has as many members.
        seed: seed of initialisation, data order and noise.
        directory: run directory for configuration, log, checkpoint and posterior; nothing is written if None.
        resume: continue the run in `directory` from its last checkpoint; starts afresh if it has none yet.
        steps: length of the run in the place of the method's, for samplers: resumed with more steps, a finished run
            goes on as if it had been so long from the start.
        callbacks: called with an `Event` at the end of each epoch; a callback that returns True ends the fit there.
            None shows a progress bar on a terminal, elsewhere a line after 10 s and then after ever longer waits, on
            standard error; an empty tuple shows nothing.
        ranks: processes that share the fit, each of which makes this same call: `Ranks.grid()` under torchrun. The
            result is that of one process to rounding. The first of them writes, and calls the callbacks with the state
            of its own members; the directory must be one that all of them see.

    Returns:
        The posterior, on every rank. With batch norm it can recalibrate its draws on the training data. The draws of a
        sampler with a directory stay on disk, in `draws.bin`, and are read as they are used.

    Raises:
        ValueError: if the data, the start or the directory do not fit; nothing has been changed then.
        DivergedError: if a loss is not finite; with a directory, the last finite state is in its checkpoint, or where
            ranks share the members the last one that was written.
        LostRankError: if another rank died or stopped.
        OSError: if another process writes to the directory (it says which), or it cannot be written to.
        TypeError: if an argument is of another kind than is meant, such as a class in the place of an object.
    """
    options = {"directory": directory, "resume": resume, "steps": steps, "callbacks": callbacks, "ranks": ranks}
    check_fit(model, method, start, **options)
    method, seed = _at_modes(_of_length(method, steps), start), as_seed(seed)
    share = Share(method.members, ranks or Ranks())
    check_size(model, method, members=share.count, in_memory=directory is None)
    warn_of(known := _problems_of_start(start), "`start`")
    rows = method.rows if isinstance(method, Sampler) else method.batch_size
    source = as_source(model, data, rows or 1024)
    source.check()
    if getattr(method, "takes_curvature", False):
        warn_if_changing(source.inputs)
    source = source if rows else Whole(source)
    _refuse_split(model, method, share.ranks)
    weights_MD, buffers = start_of(model, start, member_seeds(seed, method.members))
    weights_MD, buffers = weights_MD[share.mine], {name: buffer[share.mine] for name, buffer in buffers.items()}
    about = {
        "method": describe(method),
        "seed": seed,
        "num_data": source.num_data,
        "steps_per_epoch": source.steps_per_epoch,
        "model": describe_model(model),
        "layout": {n: list(s) for n, s in model.layout.shapes.items()},
    }
    if isinstance(method, Sampler):
        about["method"].pop("steps")  # a chain is the same chain however long it gets
    with Run(directory, about, resume=resume, share=share) as run:
        density = _density(model, source, method, ranks=share.ranks)
        seeds = member_seeds(seed, method.members)[share.mine]
        fresh = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=source.steps_per_epoch)
        state, found = run.restore(fresh)
        if found.get("plan"):
            # another plan rounds differently, so a resumed run keeps the one it began with
            density.plan = Plan(found["plan"], "taken over from the checkpoint")
        if isinstance(method, Sampler):
            run.kept = Kept(model, method, state, directory=run.directory, share=share, run=run.name)
        state = _loop(density, source, method, state=state, run=run, found=found, callbacks=callbacks)
        posterior, raised = _result(density, source, method, state=state, run=run, known=known)
    warn_of([problem for problem in posterior.problems if problem not in known])
    warn_unchecked(raised)
    return posterior


def _result(
    density: LogDensity,
    source: Source,
    method: Method | Sampler,
    *,
    state: Any,
    run: Run,
    known: Sequence[str],
) -> tuple[Posterior, str]:
    """Return the posterior that a state stands for, with what is known to be wrong with it, and write it.

    Returns:
        The posterior, and what ended the check of it, if something did.
    """
    if isinstance(method, Sampler):
        assert run.kept is not None
        kept, draws = run.kept, run.kept.posterior()
        problems, raised = checked(lambda: kept.seen.problems(draws.weights_MSD))
        draws = draws.with_problems(problems)
        run.save({}, kept.header(draws))
        return draws, raised
    whole = run.share.whole(state)
    posterior = method.posterior(density, whole).calibrated(source.inputs)
    problems, raised = checked(lambda: problems_of(posterior, whole, source))
    # what is said of modes is said of what stands on them; all else goes its own way from its start
    inherited = known if getattr(method, "at_modes", False) else ()
    posterior = posterior.with_problems((*inherited, *problems))
    run.save(*packed(posterior))
    return posterior, raised


def _problems_of_start(start: nn.Module | Posterior | Tensor | None) -> tuple[str, ...]:
    return start.problems if isinstance(start, Posterior) else ()


def _of_length(method: Method | Sampler, steps: int | None) -> Method | Sampler:
    """Return the method with the length that was asked for.

    Raises:
        ValueError: if its length is not free.
    """
    if steps is None:
        return method
    if not isinstance(method, Sampler):
        raise ValueError(
            f"`steps` is for samplers, whose chains can go on; got {steps} for {type(method).__name__}, whose schedule "
            f"belongs to its epochs. Set those, or start a new run at its weights with `start=`."
        )
    return dataclasses.replace(method, steps=steps)


def _at_modes(method: Method | Sampler, start: nn.Module | Posterior | Tensor | None) -> Method | Sampler:
    """Return the method with one member for every mode it is to start at, if it is one that starts at modes.

    Raises:
        ValueError: if it is, and there is no start.
    """
    if not getattr(method, "at_modes", False):
        return method
    if start is None:
        raise ValueError(
            f"{type(method).__name__} approximates the posterior around modes and does not look for them. Pass them as "
            f"`start`: a trained module, or the posterior of a MAP fit with the same Model."
        )
    weights = start.weights_MD if isinstance(start, Point) else start
    members = len(weights) if isinstance(weights, Tensor) and weights.ndim == 2 else 1
    return dataclasses.replace(method, members=members)  # type: ignore[type-var]


def _epochs(method: Method, steps_per_epoch: int) -> int:
    """Return the length of a run: a method whose passes are not all descent counts them itself."""
    own = getattr(method, "epochs_at", None)
    return own(steps_per_epoch) if own else epochs_of(method.epochs, steps_per_epoch)


def _refuse_split(model: Model, method: Method | Sampler, ranks: Ranks) -> None:
    """Check that rows of a batch may be seen apart.

    Raises:
        ValueError: if a batch norm would see its rank's rows alone.
    """
    norms = (*model.network.batch_norms, *model.network.by_batch)
    if ranks.data > 1 and not isinstance(method, Sampler) and norms:
        raise ValueError(
            f"`{norms[0]}` is a batch norm, whose statistics are those of a whole batch, so ranks "
            f"cannot split the data. Let them share the members (`Ranks.grid(data=1)`), or use group norm."
        )


def _density(model: Model, source: Source, method: Method | Sampler, *, ranks: Ranks) -> LogDensity:
    """Return the density a method moves on: samplers see the network in evaluation mode, optimisers in training."""
    if not isinstance(method, Sampler):
        return LogDensity(model, source.num_data, plan=method.plan, training=True, ranks=ranks)  # type: ignore[arg-type]
    rows, options = None if method.rows else source.rows(), {"chunk_size": method.chunk_size, "ranks": ranks}
    return LogDensity(model, source.num_data, rows, plan=method.plan, **options)  # type: ignore[arg-type]


def _loop(
    density: LogDensity,
    source: Source,
    method: Method | Sampler,
    *,
    state: Any,
    run: Run,
    found: dict[str, Any],
    callbacks: Sequence[Callback] | None,
) -> Any:
    """Return the state after the run is over or a callback says stop.

    Raises:
        DivergedError: as the method raised it, once the last finite state is written.
        ValueError: as the source raised it for a bad batch, likewise.
        OSError: as the disk raised it when a draw could not be written, likewise.
    """
    share, per_epoch, kept = run.share, source.steps_per_epoch, run.kept
    seeds = member_seeds(run.about["seed"], method.members)[share.mine]
    steps = method.steps if isinstance(method, Sampler) else _epochs(method, per_epoch) * per_epoch
    first, skip = divmod(state.step, per_epoch)
    if skip and state.step < steps:  # what was said of an epoch when the run ended within it is said of all of it below
        run.cut_log(state.step - skip)
    means = Means(share, found.get("sums"))
    with _told(callbacks, method, (first, -(-steps // per_epoch)), ranks=share.ranks) as listeners:
        for epoch in range(first, -(-steps // per_epoch) if state.step < steps else first):
            began, info = time.monotonic(), None
            try:
                for batch in watched(source.epoch(seeds, epoch, skip), listeners):
                    if state.step >= steps:
                        break
                    state, info = method.step(density, state, batch, donate=True)
                    means.add(info)
                    if kept:
                        kept.add(state)
                    if state.step % per_epoch:  # the end of an epoch is kept below, once it is logged
                        # at once after the first step, so that no kill loses the plan
                        run.checkpoint(state, density, means, force=state.step == 1)
            except (DivergedError, ValueError, OSError) as error:  # raised before anything is updated
                run.rescue(error, state, density, means=means)
                raise
            if not all_finite(state):
                raise DivergedError(f"the weights are not finite after step {state.step}. Lower the learning rate.")
            share.check_equal(state)
            seen = {**means.values(), **(info.now() if info else {})}
            record = {"epoch": epoch + 1, "step": state.step, **seen, "seconds": round(time.monotonic() - began, 3)}
            run.log(record)
            skip, means = 0, means if state.step % per_epoch else Means(share)  # the epoch may be gone on with
            event = Event(epoch + 1, -(-steps // per_epoch), state.step, state, info, record)
            stop = any([callback(event) is True for callback in listeners])  # a list: every callback is called
            if share.ranks.agree(stop):
                break
            run.checkpoint(state, density, means, force=state.step == 1)
    run.checkpoint(state, density, means, force=True)
    return state


@contextmanager
def _told(
    callbacks: Sequence[Callback] | None, method: Method | Sampler, epochs: tuple[int, int], *, ranks: Ranks
) -> Iterator[Sequence[Callback]]:
    """Yield what is called after every epoch: on the first rank alone, and a progress bar if nothing is said."""
    if callbacks is not None or not ranks.first:
        yield (callbacks or ()) if ranks.first else ()
        return
    with progress_bar(method, *epochs) as bar:
        yield (bar,)

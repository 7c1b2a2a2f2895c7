"""fit: the one driver. Epochs, progress, log, checkpoints, exact resume, callbacks; the method does the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import as_seed
from torchbayes.density.density import LogDensity
from torchbayes.density.plans import Plan
from torchbayes.density.ranks import Ranks
from torchbayes.driver.checkpoint import released
from torchbayes.driver.checks import check_fit, check_shares, check_size, check_validation, warn_if_changing
from torchbayes.driver.loop import Epochs, iterate
from torchbayes.driver.means import Means
from torchbayes.driver.processes import Shard
from torchbayes.driver.progress import Callback, listeners, search
from torchbayes.driver.reader import Reader
from torchbayes.driver.run import Run, describe, recorded
from torchbayes.driver.shelf import DiskShelf, MemoryShelf, Shelf
from torchbayes.methods.protocol import Fold, Method
from torchbayes.model.description import describe_model
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.rows.sources import Source, as_source
from torchbayes.model.subspace import Subspace
from torchbayes.native.heap import trim
from torchbayes.native.seeds import Purpose, generator, member_seeds
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import checked, warn_of, warn_unchecked
from torchbayes.posteriors.start import number_of_starts, start_of
from torchbayes.posteriors.subspace import InSubspace

# rows that are held out where nobody says how many; rows of which none are; how many there should be in all folds
_HELD_OUT, _FEWEST, _ENOUGH, _FOLDS = 50, 20, 500, 5


def fit(
    model: Model,
    data: Any,
    method: Method,
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

    Every random number is a function of (seed, member, step). A run that was killed and resumed therefore equals one
    that was not bit for bit, and member m equals, to rounding, a run of its own with `member_seeds(seed, M)[m]`. The
    same call gives the same result to rounding, and bit for bit when the method's `plan` is set.

    Args:
        model: network, likelihood and prior.
        data: training data: a tuple (inputs, targets) of tensors, a Dataset, a DataLoader or a list of batches.
        method: how to infer, such as `MAP(members=5)` or `SWAG(epochs=60)`.
        start: where to begin: a trained module or flat weights (D,), the same for every member; (M, D) or a point
            posterior, one per member. None initialises members afresh, by the network's own initialisers or factory; of
            a trained or loaded module only the frozen weights are then used. Laplace has as many members as the
            start has modes; where there is none, `MAP()` of its members finds them.
        seed: seed of initialisation, data order and noise.
        directory: run directory for configuration, log, checkpoint and posterior; nothing is written if None.
        resume: continue the run in `directory` from its last checkpoint; starts afresh if it has none yet.
        steps: length of the run instead of the method's, for samplers: resumed with more steps, a finished run
            continues as if it had been that long from the start.
        callbacks: called with an `Event` at the end of each epoch; a callback that returns True ends the fit there.
            None shows a progress bar on a terminal, elsewhere a line after 10 s and then after ever longer waits, on
            standard error, and the like for a first run that finds the number of epochs; an empty tuple shows nothing.
        ranks: processes that share the fit, each of which makes this same call: `Ranks.grid()` under torchrun. The
            result is that of one process to rounding. The first of them writes, and calls the callbacks with the state
            of its own members; the directory must be one that all of them see.
        space: a subspace of the weights to infer in; the posterior is one over weights all the same. Members start at
            its origin, or at what is nearest in it to `start`.
        validation: rows that choose how long MAP, SWA and SWAG train, and Laplace without a start: a share of the
            training rows, such as 0.1, or data of their own. A first run of one member, without the rows that are held
            out, finds the epoch after which these are most likely; where they are fewer than 500 there are up to five
            such runs, each with other rows held out. The run itself then has all training rows and 1.5 times as many
            epochs, at most those that the method sets. They also choose how SWA and SWAG average, and the prior of
            Laplace. None does this only where the method sets no epochs: with a tenth of the rows, but at least 50
            of them or a fifth. What was chosen is in the `config.json` of the directory.

    Returns:
        The posterior, on every rank. With batch norm it can recalibrate its draws on the training data. The draws of a
        sampler with a directory stay on disk, in `draws.bin`, and are read as they are used.

    Raises:
        ValueError: if the data, the start or the directory do not fit; nothing has been changed then.
        DivergedError: if a loss is not finite; with a directory, the last finite state is in its checkpoint, or where
            ranks share the members the last one that was written.
        LostRankError: if another rank died or stopped.
        OSError: if another process writes to the directory (it says which), or it cannot be written to.
        TypeError: if an argument is of the wrong kind, such as a class in the place of an object.
    """
    options = {"directory": directory, "resume": resume, "steps": steps, "callbacks": callbacks, "ranks": ranks}
    check_fit(model, method, start, **options, space=space)
    check_validation(method, validation, start)
    seed = as_seed(seed)
    about: dict[str, Any] = {"validation": validation, "callbacks": callbacks, "ranks": ranks, "space": space}
    method = _of_length(method, steps)
    method, start, sought = _at_modes(model, data, method, start, seed=seed, directory=directory, **about)
    shard = Shard(method.members, ranks or Ranks())
    check_shares(model, method, shard.ranks)
    check_size(model, method, members=shard.count, in_memory=directory is None)
    known = start.problems if isinstance(start, Posterior) else ()
    warn_of(known, "`start`")
    source = as_source(model, data, method.needs.batch_size or 1024)
    source.check()
    if method.needs.fixed_rows:
        warn_if_changing(source.inputs)
    seeds = member_seeds(seed, method.members)
    begin = start_of(model, start, seeds, space=space)
    model = model if space is None else space.model
    of_first: dict[str, Any] = {"directory": directory, "callbacks": callbacks if shard.ranks.first else ()}
    chosen: dict[str, Any] = {}
    if method.needs.validation != "none":
        method, chosen = _chosen(model, source, method, validation=validation, begin=begin, seed=seeds[0], **of_first)
    within = {} if space is None else {"space": space.checksum}
    about = {**_about(model, source, method, seed), **sought, **chosen, **within}
    density = _density(model, source, method, ranks=shard.ranks)
    trim()  # of copies that initialisers and a first run made
    # in a list, from which the run takes it: a large network is held by nobody else while it trains
    fresh = [_fresh(density, method, begin, seeds=seeds, shard=shard, steps_per_epoch=about["steps_per_epoch"])]
    del begin
    with Run(directory, about, resume=resume, shard=shard) as run:
        state = _run_to_end(density, source, method, run=run, fresh=fresh, callbacks=callbacks)
        trim()  # of what steps took
        posterior, raised = _result(density, source, method, state=state, run=run, known=known)
        posterior = posterior if space is None else InSubspace.of(posterior, space)
        run.save(*run.shelf.packed(posterior))
    warn_of([problem for problem in posterior.problems if problem not in known])
    warn_unchecked(raised)
    return posterior


def _chosen(
    model: Model,
    source: Source,
    method: Method,
    *,
    validation: float | Any,
    begin: tuple[Tensor, Buffers],
    seed: int,
    directory: str | PathLike[str] | None,
    callbacks: Sequence[Callback] | None,
) -> tuple[Method, dict[str, Any]]:
    """Return the method with the settings that held-out rows choose, and what to record of the choice.

    Args:
        model: what is fitted.
        source: the training rows.
        method: the settings.
        validation: as of `fit`.
        begin: weights and buffers of all members.
        seed: of the first member, and of the rows that are held out.
        directory: of the run, which keeps its choice when it is resumed.
        callbacks: as of `fit`; None shows progress.

    Returns:
        The method, and entries of the run's description: what `validation` was, and what was chosen.
    """
    asked = _asked(model, validation)
    if validation is None and (method.needs.validation == "possible" or source.num_data < _FEWEST):
        return method, asked
    if directory is not None and (found := recorded(Path(directory))) is not None:
        record = found[1].get("chosen")  # else the run is another one, and says so
        return (method, asked) if record is None else (_having(method, record["settings"]), {**asked, "chosen": record})
    folds = _folds(model, source, validation, seed=seed)
    if not folds:
        return method, asked
    density = LogDensity(model, folds[0].rows.num_data, None, plan=method.plan, training=True)
    weights_MD, buffers = begin[0][:1], {name: buffer[:1] for name, buffer in begin[1].items()}
    with search(callbacks, method) as told:
        found = method.chosen(density, folds, weights_MD=weights_MD, buffers=buffers, seed=seed, told=told)  # type: ignore[attr-defined]
    held_out = [sum(batch.size for batch in fold.held_out) for fold in folds]
    record = {"settings": dict(found.settings), "held_out": held_out, **found.record}
    return _having(method, found.settings), {**asked, "chosen": record}


def _asked(model: Model, validation: float | Any) -> dict[str, Any]:
    """Return what a resumed run must be asked for as well: the same share, or as many rows of their own."""
    if validation is None or isinstance(validation, float):
        return {"validation": validation}
    return {"validation": {"rows": as_source(model, validation, _HELD_OUT).num_data}}


def _having(method: Method, settings: Mapping[str, Any]) -> Method:
    """Return the method with other settings."""
    return dataclasses.replace(method, **settings)  # type: ignore[type-var]


def _folds(model: Model, source: Source, validation: float | Any, *, seed: int) -> list[Fold]:
    """Return training rows with those that are held out; none where rows cannot be told apart.

    Raises:
        ValueError: if a share was asked for of rows that cannot be told apart, or it leaves none.
    """
    if validation is not None and not isinstance(validation, float):
        given_rows = as_source(model, validation, _HELD_OUT)
        given_rows.check()
        return [Fold(source, given_rows.some(given_rows.num_data))]
    count = source.num_data
    held = round(count * validation) if validation else min(max(count // 10, _HELD_OUT), count // 5)
    if not 0 < held < count:
        raise ValueError(f"`validation` {validation} of {count} rows holds out {held} of them. Give another share.")
    order = torch.randperm(count, generator=generator(Purpose.HELD_OUT, seed))
    folds = []
    for number in range(min(_FOLDS, count // held, -(-_ENOUGH // held))):
        out = torch.zeros(count, dtype=torch.bool)
        out[order[number * held : (number + 1) * held]] = True
        kept, held_out = (source.kept(where.nonzero()[:, 0]) for where in (~out, out))
        if kept is None or held_out is None:
            if validation is None:
                return []
            raise ValueError("a share of ready-made batches cannot be held out. Give `validation` data of its own.")
        folds.append(Fold(kept, held_out.some(held)))
    return folds


def _fresh(
    density: LogDensity,
    method: Method,
    begin: tuple[Tensor, Buffers],
    *,
    seeds: Sequence[int],
    shard: Shard,
    steps_per_epoch: int,
) -> Any:
    """Return the state before the first step of this process's members, of weights and buffers of all members."""
    weights_MD, buffers = begin[0][shard.local], {name: buffer[shard.local] for name, buffer in begin[1].items()}
    return method.init(density, weights_MD, buffers, seeds=seeds[shard.local], steps_per_epoch=steps_per_epoch)


def _run_to_end(
    density: LogDensity,
    source: Source,
    method: Method,
    *,
    run: Run,
    fresh: list[Any],
    callbacks: Sequence[Callback] | None,
) -> Any:
    """Return the last state of a run, which begins at the fresh state in a list, or is resumed."""
    shard, per_epoch = run.shard, run.about["steps_per_epoch"]
    seeds = member_seeds(run.about["seed"], method.members)[shard.local]
    state, found = run.restore(fresh.pop())
    if found.get("plan"):
        # another plan rounds differently, so a resumed run keeps the one it began with
        density.plan = Plan(found["plan"], "taken over from the checkpoint")
    # an epoch in which the run stopped is logged anew, as a whole
    within = state.step % per_epoch if method.visit(state) is not None else 0
    run.resume_log(state.step - within, epochs=found.get("epochs", 0))
    run.shelf = _shelf(density.model, method, run=run, count=found.get("draws", 0))
    total = -(-method.length(per_epoch) // per_epoch)
    callbacks = callbacks if shard.ranks.first else ()  # the first rank alone reports
    with listeners(callbacks, method, (state.step // per_epoch, total)) as heard:
        epochs = Epochs(per_epoch, total, Means(shard, found.get("sums")), heard)
        return released(iterate(method, density, state, reader=Reader(source, seeds), run=run, epochs=epochs))


def _result(
    density: LogDensity,
    source: Source,
    method: Method,
    *,
    state: Any,
    run: Run,
    known: Sequence[str],
) -> tuple[Posterior, str]:
    """Return the posterior of a final state, with its known problems.

    Returns:
        The posterior, and the error that ended its check, if there was one.
    """
    whole = run.shard.whole(state)
    posterior = method.posterior(density, whole, run.shelf).calibrated(source.inputs)
    problems, raised = checked(lambda: method.problems(posterior, whole, history=run.history, source=source))
    # problems of modes are problems of what is built on them; other methods move away from their start
    inherited = known if method.needs.start == "modes" else ()
    return posterior.with_problems((*inherited, *problems)), raised


def _about(model: Model, source: Source, method: Method, seed: int) -> dict[str, Any]:
    """Return the recorded description of a run, which must be the same when it is resumed."""
    settings = describe(method)
    if method.needs.extendable:  # such a run is the same run however long it gets
        settings.pop("steps")
    return {
        "method": settings,
        "seed": seed,
        "num_data": source.num_data,
        "steps_per_epoch": source.steps_per_epoch if method.needs.batch_size else 1,
        "model": describe_model(model),
        "layout": {n: list(s) for n, s in model.layout.shapes.items()},
    }


def _of_length(method: Method, steps: int | None) -> Method:
    """Return the method with the length that was asked for.

    Raises:
        ValueError: if its length is not free.
    """
    if steps is None:
        return method
    if not method.needs.extendable:
        raise ValueError(
            f"`steps` is for samplers, whose chains can go on; got {steps} for {type(method).__name__}, whose schedule "
            f"belongs to its epochs. Set those, or start a new run at its weights with `start=`."
        )
    return _having(method, {"steps": steps})


def _at_modes(
    model: Model,
    data: Any,
    method: Method,
    start: nn.Module | Posterior | Tensor | None,
    *,
    seed: int,
    directory: str | PathLike[str] | None,
    validation: float | Any,
    **settings: Any,
) -> tuple[Method, Any, dict[str, Any]]:
    """Return the method with one member per mode of `start`, the modes, and an entry `chosen` of the run or none.

    Where it is one that starts at modes and none is given, a training run looks for one.

    Raises:
        ValueError: if a mode is to be looked for in a subspace.
    """
    if method.needs.start != "modes":
        return method, start, {}
    if start is not None:
        return _having(method, {"members": number_of_starts(start)}), start, {}
    if settings["space"] is not None:
        raise ValueError(
            f"{type(method).__name__} approximates the posterior around modes and does not look for them in a "
            f"subspace. Pass them as `start`: the posterior of a MAP fit with the same Model and space."
        )
    seeker = method.seeker  # type: ignore[attr-defined]
    source = as_source(model, data, seeker.needs.batch_size)
    source.check()
    seeds = member_seeds(seed, method.members)
    first: dict[str, Any] = {"begin": start_of(model, None, seeds), "seed": seeds[0], "directory": directory}
    reports = settings["ranks"] is None or settings["ranks"].first
    first["callbacks"] = settings["callbacks"] if reports else ()
    method, chosen = _chosen(model, source, method, validation=validation, **first)
    sought = chosen["chosen"]["mode"] if "chosen" in chosen else {}
    start = fit(model, data, _having(seeker, {**sought, "members": method.members}), seed=seed, **settings)
    return method, start, chosen


def _density(model: Model, source: Source, method: Method, *, ranks: Ranks) -> LogDensity:
    """Return the density that a method moves on."""
    needs = method.needs
    return LogDensity(
        model,
        source.num_data,
        source.rows() if needs.all_rows else None,
        plan=method.plan,
        chunk_size=needs.chunk_size,
        training=needs.network == "train",
        ranks=ranks,
    )


def _shelf(model: Model, method: Method, *, run: Run, count: int) -> Shelf:
    """Return the shelf for the draws of a run: on disk if it has a directory."""
    if run.directory is None or not method.needs.draws:
        return MemoryShelf(run.shard)
    return DiskShelf(model, run.shard, directory=run.directory, run=run.name, count=count)

"""fit: the one driver. Epochs, progress, log, checkpoints, exact resume, callbacks; the method does the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from torchbayes.calls import explained
from torchbayes.checks import as_seed
from torchbayes.density.density import LogDensity
from torchbayes.density.plans import Plan
from torchbayes.density.ranks import Ranks
from torchbayes.driver.checkpoint import released
from torchbayes.driver.checks import (
    check_coupled,
    check_fit,
    check_gradients,
    check_shares,
    check_size,
    check_validation,
    warn_if_changing,
)
from torchbayes.driver.choice import choose, having_settings, members_from, of_length
from torchbayes.driver.loop import Epochs, iterate
from torchbayes.driver.means import Means
from torchbayes.driver.processes import Shard
from torchbayes.driver.progress import Callback, listeners
from torchbayes.driver.reader import ROWS, Reader, informed
from torchbayes.driver.run import START, Run, check_free, describe, recorded
from torchbayes.driver.shelf import DiskShelf, MemoryShelf, Shelf
from torchbayes.methods.optimise.learned import at_least, estimated
from torchbayes.methods.protocol import Method, Result_co, Spreading
from torchbayes.methods.spread import borne
from torchbayes.model.description import CONSTANTS, describe_model, fingerprint
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.probes.gradients import dependence
from torchbayes.model.rows.sources import Source, as_source
from torchbayes.model.subspace import Subspace
from torchbayes.native.heap import trim
from torchbayes.native.process import full_path
from torchbayes.native.seeds import member_seeds
from torchbayes.posteriors.locks import folder_in
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import checked, warn_of, warn_unchecked
from torchbayes.posteriors.start import centred, start_of
from torchbayes.posteriors.subspace import InSubspace


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


@torch.inference_mode(False)  # nothing that is made in inference mode can be differentiated
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

    Every random number is a function of (seed, member, step). A run that was killed and resumed therefore equals one
    that was not bit for bit, and member m equals, to rounding, a run of its own with `member_seeds(seed, M)[m]`, except
    where members see each other. The same call gives the same result to rounding, and bit for bit when the method's
    `plan` is set.

    Args:
        model: network, likelihood and prior.
        data: training data: a tuple (inputs, targets) of tensors, a Dataset, a DataLoader or a list of batches. Every
            row counts once (docs/decisions/0027-what-counts-as-a-row.md).
        method: how to infer, such as `MAP(members=5)` or `SWAG(epochs=60)`.
        start: where to begin: a trained module or flat weights (D,), the same for every member; (M, D) or a point
            posterior, one per member. VI, IVON and BSAM also begin at a Gaussian posterior. They begin with its
            standard deviations, at other starts with those that the gradients of about 128 rows leave, where these
            are narrower than their own, and not 0. A noise scale that a module does not hold begins at what is
            most probable at its residuals. None initialises members afresh, by the network's own initialisers or
            factory; of a trained or loaded module only the frozen weights are then used. Laplace has as many members
            as the start has modes; where there is none, `MAP()` of its members finds them, in the folder `start` of
            the directory.
        seed: seed of initialisation, data order and noise.
        directory: run directory for configuration, log, checkpoint and posterior; nothing is written if None.
        resume: continue the run in `directory` from its last checkpoint; starts afresh if it has none yet.
        steps: length of the run instead of the method's, for samplers: resumed with more steps, a finished run
            continues as if it had been that long from the start.
        callbacks: called with an `Event` at the end of each epoch; a callback that returns True ends the fit there.
            None shows a progress bar on a terminal, elsewhere a line after each tenth of the run, on standard error,
            and the like for the trial runs in which held-out rows choose settings; an empty tuple shows nothing.
        ranks: processes that share the fit, each of which makes this same call: `Ranks.grid()` under torchrun. The
            result is that of one process to rounding. The first of them writes, and calls the callbacks with the state
            of its own members; the directory must be one that all of them see.
        space: a subspace of the weights to infer in; the posterior is one over weights all the same. Members start at
            its origin, or at what is nearest in it to `start`.
        validation: rows that choose how long MAP, SWA and SWAG train, and Laplace without a start: a share of the
            training rows, such as 0.1, or data of their own. A first run of one member, without the rows that are held
            out, finds the epoch after which these are most likely; where they are fewer than 500 there are up to five
            such runs, each with other rows held out. The run itself then has all training rows and twice as many
            epochs, at most those that the method sets and, with ten rows or more for each weight, at least the usual
            number; a learned noise begins no lower than they ask for. They also choose how SWA and SWAG average, the
            prior of Laplace, length and factor of OnlineLaplace, and for IVON and samplers on minibatches without a
            step size the scale of a prior that the model leaves open. None does this only where such a setting is left
            open, such as the epochs of a method: with a tenth of the rows, but at least 50 of them or a fifth. What was
            chosen is in the `config.json` of the directory.

    Returns:
        The posterior, on every rank. Its model is the one given, with what a likelihood takes from the training targets
        (`likelihoods.Gaussian`). With batch norm it can recalibrate its draws on the training data. The draws of a
        sampler with a directory stay on disk, in `draws.bin`, and are read as they are used.

    Raises:
        ValueError: if the data, the start or the directory do not fit; nothing has been changed then.
        DivergedError: if a loss is not finite; with a directory, the last finite state is in its checkpoint, or where
            ranks share the members the last one that was written.
        LostRankError: if another rank died or stopped.
        OSError: if another process writes to the directory (it says which), or it cannot be written to.
        TypeError: if an argument is of the wrong kind, such as a class in the place of an object.
    """
    options: dict[str, Any] = {"directory": directory, "resume": resume, "callbacks": callbacks, "ranks": ranks}
    check_fit(model, method, start, **options, steps=steps, space=space)
    check_validation(method, validation, start)
    seed, directory = as_seed(seed), None if directory is None else full_path(directory)
    options |= {"validation": validation, "directory": directory}
    method = of_length(method, steps)
    model, space = informed(model, data, space=space, directory=directory)
    given = start
    method, start, sought = _at_modes(model, data, method, start, seed=seed, space=space, **options)
    shard = Shard(method.members, ranks or Ranks())
    check_shares(model, method, shard.ranks)
    check_size(model, method, members=shard.count, in_memory=directory is None)
    known = start.problems if isinstance(start, Posterior) else ()
    warn_of(known if start is given else (), "`start`")  # the fit of one that was sought has warned of it
    source, faults = _source(model, data, method)
    seeds = member_seeds(seed, method.members)
    each = [seed for seed in seeds for _ in range(method.needs.modes)]
    model, begin = _begin(model, method, start, seeds=each, space=space, source=source)
    chosen: dict[str, Any] = {}
    if method.needs.validation != "none":
        shown: dict[str, Any] = {"directory": directory, "callbacks": callbacks if shard.ranks.first else ()}
        model, method, chosen = choose(model, source, method, validation=validation, begin=begin, seeds=seeds, **shown)
        begin = at_least(begin[0], chosen.get("chosen", {}).get("learned")), *begin[1:]
    constants = {} if directory is None else _constants(model if space is None else space.whole, method)
    about: dict[str, Any] = {**_about(model, source, method, seed, space), **constants, **sought, **chosen}
    density = _density(model, source, method, ranks=shard.ranks)
    trim()  # of copies that initialisers and a first run made
    # in a list, from which the run takes it: a large network is held by nobody else while it trains
    fresh = [_fresh(density, method, begin, seeds=seeds, shard=shard, about=about)]
    del begin
    with Run(directory, about, resume=resume, shard=shard) as run:
        state = _run_to_end(density, source, method, run=run, fresh=fresh, callbacks=callbacks)
        trim()  # of what steps took
        posterior, raised = _result(density, source, method, state=state, run=run, known=(known, faults))
        posterior = posterior if space is None else InSubspace.of(posterior, space)
        run.save(posterior)
    warn_of([problem for problem in posterior.problems if problem not in known])
    warn_unchecked(raised)
    return posterior


def _source(model: Model, data: Any, method: Method) -> tuple[Source, tuple[str, ...]]:
    """Return the training rows, checked against the model, and what is wrong with the network on them."""
    source = as_source(model, data, method.needs.batch_size or ROWS)
    training = method.needs.network == "train"
    faults = source.check(training=training and not method.needs.fixed_rows)
    check_coupled(model, source, method)
    check_gradients(model, source, training=training)
    if method.needs.fixed_rows or method.needs.all_rows:
        warn_if_changing(source)
    return source, faults


def _begin(
    model: Model,
    method: Method,
    start: nn.Module | Posterior | Tensor | None,
    *,
    seeds: Sequence[int],
    space: Subspace | None,
    source: Source,
) -> tuple[Model, tuple[Tensor, Buffers, Tensor | None]]:
    """Return the model over what is inferred, weights or coordinates, with what to begin with.

    These are weights, buffers, and the standard deviations of a Gaussian start, or else those that a start bears; None
    of these where nothing was given, or the method has none.
    """
    spreads = method.needs.spread and start is not None
    start, scale_MD = centred(start) if spreads and space is None else (start, None)
    begin = start_of(model, start, seeds, space=space)
    model = model if space is None else space.model
    begin = estimated(model, begin, source) if isinstance(start, nn.Module) else begin
    if spreads and scale_MD is None:
        scale_MD = borne(_density(model, source, method), source, begin, seeds=seeds)
    return model, (*begin, scale_MD)


def _fresh(
    density: LogDensity,
    method: Method,
    begin: tuple[Tensor, Buffers, Tensor | None],
    *,
    seeds: Sequence[int],
    shard: Shard,
    about: Mapping[str, Any],
) -> Any:
    """Return the state before the first step of this process's members, of what all members begin with."""
    modes, local = method.needs.modes, shard.local
    own = slice(modes * local.start, modes * local.stop)
    weights_MD, buffers = begin[0][own], {name: buffer[own] for name, buffer in begin[1].items()}
    seeds, per_epoch = seeds[shard.local], about["steps_per_epoch"]
    state = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=per_epoch)
    if begin[2] is None:
        return state
    return cast(Spreading, method).spread(density, state, begin[2].expand(method.members, -1)[own])


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
    known: tuple[Sequence[str], Sequence[str]],
) -> tuple[Posterior, str]:
    """Return the posterior of a final state, with its problems, where those of its start and its network are known.

    Returns:
        The posterior, and the error that ended its check, if there was one.
    """
    whole = run.shard.whole(state)
    posterior = method.posterior(density, whole, run.shelf).calibrated(source.inputs)
    problems, raised = checked(lambda: method.problems(posterior, whole, history=run.history, source=source))
    # problems of modes are problems of what is built on them; other methods move away from their start
    inherited = known[0] if method.needs.start == "modes" else ()
    return posterior.with_problems((*inherited, *known[1], *problems)), raised


def _about(model: Model, source: Source, method: Method, seed: int, space: Subspace | None) -> dict[str, Any]:
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
        **({} if space is None else {"space": space.checksum}),
    }


def _constants(model: Model, method: Method) -> dict[str, Any]:
    """Return the fingerprint of what a run takes from the network and its checkpoints do not hold."""
    held = model.network.buffers if method.needs.network == "train" else ()
    return {CONSTANTS: fingerprint(model.network, without=held)}


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

    Where it is one that starts at modes and none is given, a training run looks for one, in the folder `start` of the
    directory, so that a resumed run need not train again.
    """
    if method.needs.start != "modes":
        return method, start, {}
    if start is not None:
        return having_settings(method, {"members": members_from(method, start)}), start, {}
    space = settings["space"]
    own = None if directory is None else folder_in(directory, START)
    if directory is not None and not settings["resume"]:
        check_free(Path(directory))
    seeker = method.seeker  # type: ignore[attr-defined]
    source = as_source(model, data, seeker.needs.batch_size)
    source.check(training=method.needs.network == "train")
    dependence(model.network, source.inputs(), training=True)
    seeds = member_seeds(seed, method.needs.modes * method.members)
    begin = (*start_of(model, None, seeds, space=space), None)
    first: dict[str, Any] = {"begin": begin, "seeds": seeds, "directory": directory}
    reports = settings["ranks"] is None or settings["ranks"].first
    first["callbacks"] = settings["callbacks"] if reports else ()
    inner = model if space is None else space.model
    _, method, chosen = choose(inner, source, method, validation=validation, **first)
    sought = chosen["chosen"]["mode"] if "chosen" in chosen else {}
    if own is not None and (found := recorded(own)) is not None:  # a search that is repeated may round differently
        sought = {name: found[1]["method"].get(name, value) for name, value in sought.items()}
    seeker = having_settings(seeker, {**sought, "members": len(seeds)})
    if (learned := chosen.get("chosen", {}).get("learned")) is not None:
        weights_MD = at_least(begin[0], learned)
        weights_MD = weights_MD if space is None else space.lift(weights_MD)
        start = Point(model, weights_MD, buffers_M=begin[1] or None, statistics_known=True)
    return method, fit(model, data, seeker, start=start, seed=seed, directory=own, **settings), chosen


def _density(model: Model, source: Source, method: Method, *, ranks: Ranks | None = None) -> LogDensity:
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

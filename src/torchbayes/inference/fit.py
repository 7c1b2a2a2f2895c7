"""fit: the one driver. Epochs, progress, log, checkpoints, exact resume, callbacks; the method does the rest."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.inference.batches import Source, as_source
from torchbayes.inference.checkpoint import all_finite
from torchbayes.inference.descent import DivergedError
from torchbayes.inference.method import Method
from torchbayes.inference.progress import Callback, Event, progress_bar
from torchbayes.inference.run import Run, describe, describe_model
from torchbayes.model.density import LogDensity, Plan
from torchbayes.model.layout import Layout
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, Network
from torchbayes.model.seeds import member_seeds
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior


def fit(
    model: Model,
    data: Any,
    method: Method,
    *,
    start: nn.Module | Posterior | Tensor | None = None,
    seed: int = 0,
    directory: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] | None = None,
) -> Posterior:
    """Infer the posterior over a model's weights.

    Every random number is a function of (seed, member, step). A run that was killed and resumed therefore equals one
    that was not bit for bit, and member m equals, to rounding, a run of its own with `member_seeds(seed, M)[m]`. The
    same call gives the same result to rounding, and bit for bit when the method's `plan` is set.

    Args:
        model: what is believed.
        data: training data: a tuple (inputs, targets) of tensors, a Dataset, a DataLoader or a list of batches.
        method: how to infer, such as `MAP(members=5)` or `SWAG(epochs=60)`.
        start: where to begin: a trained module or flat weights (D,), for every member alike; (M, D) or a point
            posterior, one per member. Fresh initialisations if None.
        seed: seed of initialisation, data order and noise.
        directory: run directory for configuration, log, checkpoint and posterior; nothing is written if None.
        resume: continue the run in `directory` from its last checkpoint; starts afresh if it has none yet.
        callbacks: called with an `Event` at the end of each epoch; a callback that returns True ends the fit there.
            None shows a progress bar on a terminal; an empty tuple shows nothing.

    Returns:
        The posterior. With batch norm it can recalibrate its draws on the training data.

    Raises:
        ValueError: if the data, the start or the directory do not fit; nothing has been changed then.
        DivergedError: if a loss is not finite; with a directory, the last finite state is in its checkpoint.
    """
    source = as_source(model, data, method.batch_size)
    source.check()
    seeds = member_seeds(seed, method.members)
    weights_MD, buffers = _start(model, start, seeds)
    about = {
        "method": describe(method),
        "seed": seed,
        "num_data": source.num_data,
        "steps_per_epoch": source.steps_per_epoch,
        "model": describe_model(model),
        "layout": {n: list(s) for n, s in model.layout.shapes.items()},
    }
    run = Run(directory, about, resume=resume)
    density = LogDensity(model, source.num_data, plan=method.plan, training=True)
    fresh = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=source.steps_per_epoch)
    state, found = run.restore(fresh)
    if found.get("plan"):
        # another plan rounds differently, so a resumed run keeps the one it began with
        density.plan = Plan(found["plan"], "taken over from the checkpoint")
    state = _loop(density, source, method, state, run, found, callbacks)
    posterior = dataclasses.replace(method.posterior(density, state), calibration=source.inputs)
    run.save(posterior.save)
    return posterior


def _loop(
    density: LogDensity,
    source: Source,
    method: Method,
    state: Any,
    run: Run,
    found: dict[str, Any],
    callbacks: Sequence[Callback] | None,
) -> Any:
    """Return the state after the epochs are over or a callback says stop.

    Raises:
        DivergedError: as the method raised it, once the last finite state is written.
        ValueError: as the source raised it for a bad batch, likewise.
    """
    seeds = member_seeds(run.about["seed"], method.members)
    first, skip = divmod(state.step, source.steps_per_epoch)
    # sums over the epoch so far of loss and negative log likelihood
    sums_2M = torch.tensor(found.get("sums", [[0.0] * method.members] * 2), dtype=torch.float64)
    with ExitStack() as stack:
        if callbacks is None:
            callbacks = (stack.enter_context(progress_bar(method, first)),)
        for epoch in range(first, method.epochs):
            began, info = time.monotonic(), None
            try:
                for batch in source.epoch(seeds, epoch, skip):
                    state, info = method.step(density, state, batch, donate=True)
                    sums_2M = sums_2M + torch.stack([info.loss_M, info.nll_M]).cpu()
                    if state.step % source.steps_per_epoch:  # the end of an epoch is kept below, once it is logged
                        # at once after the first step, so that no kill loses the plan
                        run.checkpoint(state, density, sums_2M, force=state.step == 1)
            except (DivergedError, ValueError) as error:  # raised before anything is updated
                run.checkpoint(state, density, sums_2M, force=True)
                if run.directory is not None:
                    error.add_note(f"The state after step {state.step}, the last finite one, is in {run.directory}.")
                raise
            if not all_finite(state):
                raise DivergedError(f"the weights are not finite after step {state.step}. Lower the learning rate.")
            record = {
                "epoch": epoch + 1,
                "step": state.step,
                "loss": (sums_2M[0] / source.steps_per_epoch).tolist(),
                "nll": (sums_2M[1] / source.steps_per_epoch).tolist(),
                "lr": info.lr if info else None,
                "seconds": round(time.monotonic() - began, 3),
            }
            run.log(record)
            skip, sums_2M = 0, torch.zeros_like(sums_2M)
            event = Event(epoch + 1, method.epochs, state.step, state, info, record)
            if any([callback(event) is True for callback in callbacks]):  # a list: every callback is called
                break
            run.checkpoint(state, density, sums_2M)
    run.checkpoint(state, density, sums_2M, force=True)
    return state


def _start(model: Model, start: nn.Module | Posterior | Tensor | None, seeds: Sequence[int]) -> tuple[Tensor, Buffers]:
    """Return starting weights (M, D) and buffers (M, ...) of the members.

    Raises:
        ValueError: if `start` does not fit the model or the number of members.
    """
    members = len(seeds)
    if start is None:
        return model.starting_weights(seeds)
    if isinstance(start, nn.Module):
        return _from_module(model, start, members)
    weights = start.weights_MD if isinstance(start, Point) else start
    if isinstance(weights, Posterior):
        raise ValueError(f"`start` must be a point posterior, a module or weights; got a {type(weights).__name__}.")
    if weights.shape[-1] != model.layout.size or (weights.ndim == 2 and len(weights) not in {1, members}):
        raise ValueError(
            f"`start` must hold {model.layout.size} weights for 1 or {members} members; got shape "
            f"{tuple(weights.shape)}."
        )
    weights_MD = weights.detach().to(model.network.device, model.network.dtype).expand(members, -1).clone()
    if isinstance(start, Point) and start.buffers_M:
        return weights_MD, {n: b.expand(members, *b.shape[1:]).clone() for n, b in start.buffers_M.items()}
    return weights_MD, model.network.stacked_buffers(members)


def _from_module(model: Model, module: nn.Module, members: int) -> tuple[Tensor, Buffers]:
    """Return the weights and buffers a trained module holds, once per member.

    Raises:
        ValueError: if its parameters do not match the model's network.
    """
    held = dict(module.named_parameters())
    shapes = Layout({n: tuple(held[n].shape) for n in model.network.layout.names if n in held})
    said = model.network.layout.differences(shapes)
    if said:
        raise ValueError(f"`start` does not fit the model's network: {'; '.join(said[:5])}.")
    network = Network(module, model.network.layout.names)
    weights_D = model.given_weights()
    weights_D[: network.layout.size] = network.layout.join(held).detach()
    return weights_D.expand(members, -1).clone(), network.stacked_buffers(members)

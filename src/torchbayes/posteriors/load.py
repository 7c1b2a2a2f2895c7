"""Load any saved posterior, and any saved module."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import check_kind
from torchbayes.model.description import check_layout, check_model, describe_model
from torchbayes.model.likelihoods.weighted import having_scales
from torchbayes.model.model import Model, having
from torchbayes.model.sources.informed import as_recorded
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import CHECKPOINT, CONFIG, POSTERIOR, RESTORE, read_header, read_tensors, run_of
from torchbayes.posteriors.functions import Calibration, passes
from torchbayes.posteriors.modules.module import MODULES, PredictiveModule
from torchbayes.posteriors.posterior import BUFFERS, KINDS, SAMPLE_STATS, Posterior
from torchbayes.posteriors.store import DrawFile


@explained()
def load(path: str | Path, model: Model, *, calibration: Calibration | Any = None) -> Posterior:
    """Read a posterior that `save` wrote and attach it to its model.

    Args:
        path: the file.
        model: the model it was fitted with. Layout, likelihood, prior, temperature and all parameters and buffers
            that are not inferred must equal those in the file. For a tuned Laplace posterior it may also be that
            posterior's own model. The file holds the chosen prior and noise, what a likelihood took from the
            training targets, and the scale of a prior that was left open.
        calibration: training inputs, in any form that `predict` takes, or a function that makes a pass over them in
            batches; needed by networks with batch norm.

    Returns:
        The posterior, on the model's device.

    Raises:
        ValueError: if the file is damaged, of an unknown kind, from another run than the rest of its directory, or
            differs from the model in layout, likelihood or prior; the message says in what.
    """
    check_kind(Model, "the `Model` that it was fitted with", model=model)
    path = full_path(path)
    tensors, header = read_tensors(path, model.network.device)
    if header.get("kind") not in KINDS:
        kinds = ", ".join(sorted(KINDS))
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a posterior; known are {kinds}.")
    buffers = {n.removeprefix(BUFFERS): t for n, t in tensors.items() if n.startswith(BUFFERS)}
    stats = {n.removeprefix(SAMPLE_STATS): t.cpu() for n, t in tensors.items() if n.startswith(SAMPLE_STATS)}
    try:
        check_layout(path, header["layout"], model)
        run, settings = header.get("run"), header["settings"]
        # files of other names need not belong to the run
        if run is not None and path.name == POSTERIOR and run_of(path.parent) not in {run, None}:
            raise ValueError(f"{path} belongs to another run than {path.with_name(CONFIG)}. {RESTORE}")
        if settings.get("beside"):  # a sampler's draws stay in the file to which they were streamed
            tensors["weights_MSD"] = read_draws(path.parent, model, run=run, count=settings["draws"])
        model = as_recorded(model, header.get("model") or {})
        posterior = KINDS[header["kind"]].restore(model, tensors, settings)
        check_model(path, header, posterior.model)  # a tuned posterior has replaced the given model
        saved = next(iter(posterior.tensors().values())).dtype
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: its parts do not fit ({error}). Restore it or fit again.") from error
    if saved != model.network.dtype:
        raise ValueError(f"{path} holds {saved} weights; the model's are {model.network.dtype}. Convert the network.")
    return dataclasses.replace(
        posterior,
        buffers_M=buffers or None,
        calibration=None if calibration is None else passes(model, calibration),
        statistics_known=header["statistics_known"],
        problems=tuple(header.get("problems", ())),
        sample_stats=stats or None,
    )


@explained()
def load_module(path: str | Path, model: Model) -> PredictiveModule:
    """Read a module that `save` wrote.

    Args:
        path: the file.
        model: the model of the posterior of which it was made; only its network and likelihood are used, and a
            tuned noise scale is in the file.

    Returns:
        The module, on the model's device.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, holds no module, or has another layout or likelihood than the model.
    """
    check_kind(Model, "the `Model` that it was fitted with", model=model)
    path = full_path(path)
    tensors, header = read_tensors(path, model.network.device)
    if header.get("kind") not in MODULES:
        kinds = ", ".join(sorted(MODULES))
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a module; known are {kinds}. Read it by `load`.")
    check_layout(path, header["layout"], model)
    settings = header["settings"]
    if scales := tuple(settings["scales"]):
        model = having(model, likelihood=having_scales(model.likelihood, scales))
    check_model(path, {"model": {**describe_model(model), "likelihood": header["likelihood"]}}, model)
    kind, parts = MODULES[header["kind"]], defaultdict[str, dict[str, Tensor]](dict)
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        parts[group][rest] = tensor
    return kind(model, {group: parts[group] for group in kind.parts}, settings)


def read_draws(
    folder: str | Path, model: Model, *, run: str | None = None, count: int | None = None, verify: bool = False
) -> Tensor:
    """Return the draws of a run, (M, S, D), on the model's device; on a CPU they are mapped into memory.

    They must belong to `run`, if it is given. `count` is the number of draws per chain, which must exist; all by
    default. `verify` compares all of them with their checksums, however many there are. A ValueError if they are
    damaged, or belong to another model or run.
    """
    file = DrawFile.open(folder)
    check_layout(file.path, file.description["layout"], model)
    if run is not None and file.description["run"] != run:
        raise ValueError(f"{file.path} belongs to another run than the posterior beside it. {RESTORE}")
    least = _drawn(full_path(folder) / CHECKPOINT) if count is None else count
    weights_MSD = file.read(count, verify=verify)
    if weights_MSD.shape[1] < least:
        raise ValueError(
            f"{file.path} is damaged: it holds {weights_MSD.shape[1]} draws, and held {least} when the checkpoint "
            f"beside it was written. {RESTORE}"
        )
    return weights_MSD.to(model.network.device)


def _drawn(checkpoint: Path) -> int:
    """Return the number of draws when a checkpoint was written; 0 if it cannot be read."""
    try:
        return int(read_header(checkpoint).get("about", {}).get("draws", 0))
    except (OSError, ValueError):
        return 0

"""What is settled before a run: its length and members, and what held-out rows choose, settings and an open prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import given
from torchbayes.density.density import LogDensity
from torchbayes.driver.progress import Callback, search
from torchbayes.driver.run import recorded
from torchbayes.methods.protocol import Fold, Method
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.rows.informed import as_recorded
from torchbayes.model.rows.sources import Source, as_source
from torchbayes.native.seeds import Purpose, generator
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.start import number_of_starts

# rows that are held out where nobody says how many; rows of which none are; how many there should be in all folds
_HELD_OUT, _FEWEST, _ENOUGH, _FOLDS = 50, 20, 500, 5


def choose(
    model: Model,
    source: Source,
    method: Method,
    *,
    validation: float | Any,
    begin: tuple[Tensor, Buffers, Tensor | None],
    seeds: Sequence[int],
    directory: str | PathLike[str] | None,
    callbacks: Sequence[Callback] | None,
) -> tuple[Model, Method, dict[str, Any]]:
    """Return model and method with the settings that held-out rows choose, and what to record of the choice.

    Args:
        model: what is fitted.
        source: the training rows.
        method: the settings.
        validation: as of `fit`.
        begin: weights and buffers of all members, and the standard deviations they begin with, or None.
        seeds: of all members; that of the first is also that of the rows that are held out.
        directory: of the run, which keeps its choice when it is resumed.
        callbacks: as of `fit`; None shows progress.

    Returns:
        The model, the method, and entries of the run's description: what `validation` was, and what was chosen.

    Raises:
        ValueError: if rows are to choose a prior that is given.
    """
    asked, needed = _asked(model, validation), method.needs.validation
    given_prior = needed == "prior" and model.open_scale is None
    if validation is None and (given_prior or needed == "possible" or source.num_data < _FEWEST):
        return model, method, asked
    if given_prior:
        raise ValueError(
            f"the rows of `validation` choose the scale of the prior for {type(method).__name__}, and this model was "
            f"given a prior. Leave out one of the two."
        )
    if directory is not None and (found := recorded(Path(directory))) is not None:
        record = found[1].get("chosen")  # else the run is another one, and says so
        return (model, method, asked) if record is None else _as_recorded(model, method, record, asked)
    folds = _folds(model, source, validation, seed=seeds[0])
    if not folds:
        return model, method, asked
    density = LogDensity(model, folds[0].rows.num_data, None, plan=method.plan, training=True)
    few = slice(min(method.needs.trial_members, method.members))
    several = {"weights_MD": begin[0][few], "buffers": {n: b[few] for n, b in begin[1].items()}, "seeds": seeds[few]}
    if begin[2] is not None:
        several["scale_MD"] = begin[2][few]
    with search(callbacks, method) as told:
        found = method.chosen(density, folds, **several, told=told)  # type: ignore[attr-defined]
    held_out = [sum(batch.size for batch in fold.held_out) for fold in folds]
    record = {
        "settings": dict(found.settings),
        "held_out": held_out,
        **found.record,
        **given(prior_scale=found.prior_scale, learned=found.learned),
    }
    return _as_recorded(model, method, record, asked)


def _as_recorded(
    model: Model, method: Method, record: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[Model, Method, dict[str, Any]]:
    """Return model and method with the settings of a record, and the entries of the run's description."""
    chosen = as_recorded(model, {"open_scale": record.get("prior_scale")})
    return chosen, having_settings(method, record["settings"]), {**asked, "chosen": dict(record)}


def _asked(model: Model, validation: float | Any) -> dict[str, Any]:
    """Return what a resumed run must be asked for as well: the same share, or as many rows of their own."""
    if validation is None or isinstance(validation, float):
        return {"validation": validation}
    return {"validation": {"rows": as_source(model, validation, _HELD_OUT).num_data}}


def having_settings(method: Method, settings: Mapping[str, Any]) -> Method:
    """Return the method with other settings."""
    return dataclasses.replace(method, **settings)  # type: ignore[type-var]


def _folds(model: Model, source: Source, validation: float | Any, *, seed: int) -> list[Fold]:
    """Return training rows with those that are held out; none where rows cannot be told apart.

    Raises:
        ValueError: if a share was asked for of rows that cannot be told apart, or it leaves none.
    """
    if validation is not None and not isinstance(validation, float):
        given_rows = as_source(model, validation, _HELD_OUT)
        given_rows.check(training=True)
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


def of_length(method: Method, steps: int | None) -> Method:
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
    return having_settings(method, {"steps": steps})


def members_from(method: Method, start: nn.Module | Posterior | Tensor) -> int:
    """Return the number of members that the modes of a start are enough for.

    Raises:
        ValueError: if some are left over.
    """
    found, modes = number_of_starts(start), method.needs.modes
    if found % modes:
        raise ValueError(
            f"{type(method).__name__} begins at {modes} networks for each member, so `start` must hold a multiple of "
            f"{modes}; got {found}. Pass a deep ensemble, or weights of one network per row."
        )
    return found // modes

"""What held-out rows choose of a method and a model, before the run itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from torchbayes.checks import given
from torchbayes.driver.begin import Begin
from torchbayes.driver.progress import Callback, search_bar
from torchbayes.driver.reader import density_of
from torchbayes.driver.run import recorded
from torchbayes.methods.choices import Choice, Epochs, Lowered, PriorScale
from torchbayes.methods.protocol import Method
from torchbayes.model.model import Model
from torchbayes.model.sources.informed import as_recorded
from torchbayes.model.sources.sources import Source
from torchbayes.selection.folds import FEWEST, folds_of, given_rows
from torchbayes.selection.length import choose_epochs
from torchbayes.selection.lowered import choose_scale, choose_setting
from torchbayes.selection.strength import choose_strength
from torchbayes.selection.trials import Chosen, Search


def choose(
    model: Model,
    source: Source,
    method: Method,
    *,
    begin: Begin,
    validation: float | Any,
    directory: str | PathLike[str] | None,
    callbacks: Sequence[Callback] | None,
) -> tuple[Model, Method, dict[str, Any]]:
    """Return model and method with the settings that held-out rows choose, and what to record of the choice.

    Args:
        model: what is fitted.
        source: the training rows.
        method: the settings.
        begin: where all members start; the seed of the first is also that of the rows that are held out.
        validation: as of `fit`.
        directory: of the run, which keeps its choice when it is resumed.
        callbacks: as of `fit`; None shows progress.

    Returns:
        The model, the method, and entries of the run's description: what `validation` was, and what was chosen.

    Raises:
        ValueError: if rows are to choose a prior that is given, or the method does not take this model.
    """
    asked = _asked(model, validation)
    choices = _open(model, method, validation)
    if not choices or (validation is None and source.num_data < FEWEST):
        return model, method, asked
    if directory is not None and (found := recorded(Path(directory))) is not None:
        record = found[1].get("chosen")  # a run without one is another run, which is said when it is resumed
        return (model, method, asked) if record is None else _as_recorded(model, method, record, asked)
    folds = folds_of(model, source, validation, seed=begin.seeds[0])
    if not folds:
        return model, method, asked
    first = begin.some(slice(1), method.needs.modes)  # refuses what the method does not take, before any trial
    first.state(method, density_of(model, source, method), source.steps_per_epoch)
    with search_bar(callbacks, method) as told:
        chosen = _of_all(choices, Search(model, method, folds, begin, told))
    record = {
        "settings": dict(chosen.settings),
        "held_out": [fold.size for fold in folds],
        **chosen.record,
        **({"mode": dict(chosen.mode)} if method.needs.start is not None else {}),
        **given(prior_scale=chosen.prior_scale, learned=chosen.learned),
    }
    return _as_recorded(model, method, record, asked)


def _open(model: Model, method: Method, validation: float | Any) -> list[Choice]:
    """Return the choices that are to be made: those that are open, or all where rows are given for them.

    Raises:
        ValueError: if the rows could choose the scale of the prior alone, and that is given.
    """
    choices = [c for c in method.choices if model.open_scale is not None or not isinstance(c, PriorScale)]
    if validation is None:
        return [choice for choice in choices if choice.open]
    if method.choices and not choices:
        raise ValueError(
            f"the rows of `validation` choose the scale of the prior for {type(method).__name__}, and this model was "
            f"given a prior. Leave out one of the two."
        )
    return choices


def _of_all(choices: Sequence[Choice], search: Search) -> Chosen:
    """Return what is chosen, one after the other; no more once a descent has diverged at once."""
    chosen = Chosen({}, {})
    for choice in choices:
        found = _of(choice, search, chosen.mode)
        if isinstance(choice, Epochs) and not found.record:
            return chosen
        search = search.having(found)
        chosen = Chosen(
            {**chosen.settings, **found.settings},
            {**chosen.record, **found.record},
            prior_scale=found.prior_scale if chosen.prior_scale is None else chosen.prior_scale,
            learned=found.learned if chosen.learned is None else chosen.learned,
            mode={**chosen.mode, **found.mode},
        )
    return chosen


def _of(choice: Choice, search: Search, mode: Mapping[str, Any]) -> Chosen:
    """Return what is chosen of one thing that is open."""
    if isinstance(choice, Epochs):
        return choose_epochs(choice, search)
    if isinstance(choice, Lowered):
        return choose_setting(choice, search)
    return choose_scale(choice, search) if isinstance(choice, PriorScale) else choose_strength(choice, search, mode)


def _as_recorded(
    model: Model, method: Any, record: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[Model, Method, dict[str, Any]]:
    """Return model and method with the settings of a record, and the entries of the run's description."""
    chosen = as_recorded(model, {"open_scale": record.get("prior_scale")})
    return chosen, replace(method, **record["settings"]), {**asked, "chosen": dict(record)}


def _asked(model: Model, validation: float | Any) -> dict[str, Any]:
    """Return what a resumed run must be asked for as well: the same share, or as many rows of their own."""
    if validation is None or isinstance(validation, float):
        return {"validation": validation}
    return {"validation": {"rows": given_rows(model, validation).num_data}}

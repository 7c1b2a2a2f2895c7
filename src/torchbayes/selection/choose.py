"""The settings of a method and a model that held-out rows choose, before the run itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torchbayes.checks import given
from torchbayes.driver.loop import Begin
from torchbayes.driver.progress import Callback, search_bar
from torchbayes.driver.reader import density_of
from torchbayes.driver.run import recorded
from torchbayes.methods.choices import Choice, Comparison, Epochs, Lowered, PriorScale, Strength
from torchbayes.methods.protocol import Method
from torchbayes.model.model import Model
from torchbayes.model.sources.informed import as_recorded
from torchbayes.model.sources.sources import Source
from torchbayes.selection.length import choose_epochs
from torchbayes.selection.lowered import choose_scale, choose_setting
from torchbayes.selection.strength import choose_strength
from torchbayes.selection.trials import Chosen, Search, folds_of, given_rows, having, too_few


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

    The record is entries of the run's description: what `validation` was, and what was chosen. A run in `directory`
    keeps its choice when it is resumed. The first seed of `begin` also draws the rows that are held out. A
    ValueError if rows are to choose a prior that is given, or the method does not take this model.
    """
    entries = _requested(model, validation)
    choices = _open(model, method, validation)
    if not choices or (validation is None and too_few(model, source.num_data)):
        return model, method, entries
    if directory is not None and (run := recorded(Path(directory))) is not None:
        record = run[1].get("chosen")  # a run without a record is another run, which is reported when it is resumed
        return (model, method, entries) if record is None else _as_recorded(model, method, record, entries)
    folds = folds_of(model, source, validation, seed=begin.seeds[0])
    if not folds:
        return model, method, entries
    initial = begin.some(slice(1), method.needs.modes)  # so a method refuses a model before any trial
    initial.state(method, density_of(model, source, method), source.steps_per_epoch)
    with search_bar(callbacks, method) as progress:
        chosen = _of_all(choices, Search(model, method, folds, begin, progress))
    record = {
        "settings": dict(chosen.settings),
        "held_out": [fold.size for fold in folds],
        **chosen.record,
        **({"mode": dict(chosen.mode)} if method.needs.start is not None else {}),
        **given(prior_scale=chosen.prior_scale, learned=chosen.learned, noise=chosen.noise),
    }
    return _as_recorded(model, method, record, entries)


def _open(model: Model, method: Method, validation: float | Any) -> list[Choice]:
    """Return the choices to be made: those that are open, or all where rows are given for them.

    A ValueError if the rows could choose only the scale of the prior, and that is given.
    """
    # a comparison is made when the run is over
    choices: list[Choice] = [c for c in method.choices if not isinstance(c, Comparison)]
    choices = [c for c in choices if model.open_scale is not None or not isinstance(c, PriorScale)]
    if validation is None:
        return [choice for choice in choices if choice.open]
    if method.choices and not choices:
        raise ValueError(
            f"the rows of `validation` choose the scale of the prior for {type(method).__name__}, and this model was "
            f"given a prior. Leave out one of the two."
        )
    return choices


def _of_all(choices: Sequence[Choice], search: Search) -> Chosen:
    """Return all choices, made one after the other; the rest is not made once a descent has diverged at once."""
    chosen = Chosen({}, {})
    for choice in choices:
        latest = _of(choice, search, chosen.mode)
        if isinstance(choice, Epochs) and not latest.record:
            return chosen
        search = search.having(latest)
        chosen = Chosen(
            {**chosen.settings, **latest.settings},
            {**chosen.record, **latest.record},
            prior_scale=latest.prior_scale if chosen.prior_scale is None else chosen.prior_scale,
            learned=latest.learned if chosen.learned is None else chosen.learned,
            noise=latest.noise or chosen.noise,
            mode={**chosen.mode, **latest.mode},
        )
    return chosen


def _of(choice: Choice, search: Search, mode: Mapping[str, Any]) -> Chosen:
    """Return what is chosen for one open setting."""
    if isinstance(choice, Epochs):
        return choose_epochs(choice, search)
    if isinstance(choice, Lowered):
        return choose_setting(choice, search)
    if isinstance(choice, PriorScale):
        return choose_scale(choice, search)
    assert isinstance(choice, Strength), "a comparison is made when the run is over"
    return choose_strength(choice, search, mode)


def _as_recorded(
    model: Model, method: Any, record: Mapping[str, Any], entries: Mapping[str, Any]
) -> tuple[Model, Method, dict[str, Any]]:
    """Return model and method with the settings of a record, and entries of the run's description with it."""
    chosen = as_recorded(model, {"open_scale": record.get("prior_scale")})
    return chosen, having(method, record["settings"]), {**entries, "chosen": dict(record)}


def _requested(model: Model, validation: float | Any) -> dict[str, Any]:
    """Return what a resumed run must share: the same share of rows, or as many rows of their own."""
    if validation is None or isinstance(validation, float):
        return {"validation": validation}
    return {"validation": {"rows": given_rows(model, validation).num_data}}

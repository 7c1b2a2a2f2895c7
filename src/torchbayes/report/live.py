"""What a page draws by a script: rows behind the points of a scatter, and panels of methods, as JSON has them.

A point opens its row: what it holds, how it was predicted, and what each drawn function says of it. Of many rows a
part can be opened; others only stand in the picture.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchbayes.assess.columns.table import TablePredictor, spread_rows
from torchbayes.assess.evaluation import Evaluation
from torchbayes.assess.intervals import Numbers
from torchbayes.data import Data
from torchbayes.data.base import Standardise
from torchbayes.data.user.table import missing
from torchbayes.metrics.scoring import hits
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.classes import moment, probs_of_draws
from torchbayes.predictive.predict import Source, predict
from torchbayes.report.figures.dots import Dots
from torchbayes.report.style import SHARES, looks

ROWS, CLOUD = 300, 1500  # rows that can be opened, and others that are drawn
DRAWS, CLASSES = 30, 4  # functions and classes on a card
NUMBERS = 200_000  # of drawn functions on a page
PIXELS, SIDE = 6 * 10**5, 64  # numbers of all images on a page, and the longer side of one
CELLS, LETTERS = 40, 600  # columns of a table on a card, and letters of a text

Live = dict[str, Any]
"""What a script draws, as JSON has it."""


class Judged(NamedTuple):
    """A method on test rows: classes, or numbers of one target."""

    evaluation: Evaluation
    numbers: Numbers | None = None
    functions: Functions | Source | None = None  # None: nothing is told of single functions


class Content(NamedTuple):
    """What rows hold."""

    of: Callable[[Tensor], Live]  # rows -> what a card shows of them
    most: int = ROWS  # rows that a page has room for
    row: str = "test row"


def content_of(data: Data, table: TablePredictor | None, *, first: Collection[str] = ()) -> Content:
    """Return what test rows hold: cells of a table, images, or texts; columns named `first` stand before others."""
    if table is not None:
        names = [name for name in dict.fromkeys([*first, *table.rows.names]) if name != data.target_name]
        order = "columns that matter most" if first else "first columns"
        title = f"The {CELLS} {order}" if len(names) > CELLS else "Columns"
        return Content(lambda rows: {**_cells(table, names[:CELLS], rows), "title": title})
    if data.is_image:
        shape = _reduced(data.input_shape)
        return Content(lambda rows: _sprite(data, shape, rows), max(PIXELS // math.prod(shape), 1), "test image")
    if data.words:
        return texts(
            lambda row: " ".join(filter(None, (data.words[token] for token in data.test.inputs[row].tolist())))
        )
    return Content(lambda _: {})


def texts(text_of: Callable[[int], str], row: str = "test text") -> Content:
    """Return rows that are texts, each by its number; `row` is what one is called."""
    return Content(lambda rows: {"texts": [_short(text_of(number), LETTERS) for number in rows.tolist()]}, row=row)


_OF_CLASSES = {
    "confidence": ("probability of the predicted class", True),
    "true": ("probability of the true class", True),
    "entropy": ("entropy (nats)", False),
    "noise": ("noise (nats)", False),
    "disagreement": ("disagreement of the functions (nats)", False),
}
_OF_NUMBERS = {
    "observed": "observed {}",
    "predicted": "predicted {}",
    "low": "lower end of the 95 % interval",
    "high": "upper end of the 95 % interval",
    "sd": "predicted standard deviation",
    "error": "size of the error",
}


def class_rows(
    methods: Mapping[str, Judged], names: Sequence[str], inputs: Tensor | None, *, content: Content
) -> Live | None:
    """Return a scatter of rows that are classified.

    Args:
        methods: label -> probabilities (N, K) and labels (N,) of the same rows.
        names: of the K classes.
        inputs: of the N rows, as the model takes them; None where no functions are given.
        content: what rows hold.

    Returns:
        What the script draws; None where rows of probabilities are not rows of the inputs.
    """
    columns = {label: class_columns(each.evaluation, inputs) for label, each in methods.items()}
    known = {label: each for label, each in columns.items() if each is not None}
    if len(known) < len(methods):
        return None
    split = [{"x": "noise", "y": "disagreement"}] if disagree(methods.values()) else []
    views = [*split, {"x": "confidence", "y": "true", "level": True}, {"x": "entropy", "y": "true"}]
    classes = min(CLASSES, len(names))
    rows, others = _chosen(known, "entropy", methods, most=min(content.most, _room(methods, classes)))
    truth: Any = next(iter(methods.values())).evaluation.labels
    entries = {
        label: _class_entry(each, truth[rows], rows, classes=classes, inputs=inputs) for label, each in methods.items()
    }
    live = _live(known, entries, _OF_CLASSES, rows=rows, others=others, doubt="entropy", content=content)
    return live | {"classes": list(names), "truth": truth[rows].tolist(), "views": views, "signs": ["right", "wrong"]}


def class_columns(evaluation: Evaluation, inputs: Tensor | None) -> dict[str, Tensor] | None:
    """Return what stands on the axes, (N,) each; None where rows of probabilities are not those of the inputs."""
    probs, truth, scores = evaluation.probs, evaluation.labels, evaluation.scores
    if probs is None or truth is None or scores is None or truth.is_floating_point():
        return None
    if len(probs) != len(evaluation.log_prob) or (inputs is not None and len(probs) != len(inputs)):
        return None
    return {
        "confidence": probs.amax(-1),
        "true": probs.gather(1, truth[:, None])[:, 0],
        "entropy": scores.entropy,
        "noise": (scores.entropy - scores.mutual_information).clamp_min(0),
        "disagreement": scores.mutual_information,
        "marked": 1 - (hits(probs, truth) > 0).long(),
    }


def _class_entry(judged: Judged, truth_R: Tensor, rows: Tensor, *, classes: int, inputs: Tensor | None) -> Live:
    """Return the most probable classes of rows, the true one among them, and what the functions say of these."""
    probs: Any = judged.evaluation.probs
    probs = probs[rows].double()
    kept = probs.topk(classes).indices
    missed = (kept != truth_R[:, None]).all(1)
    kept[missed, -1] = truth_R[missed]
    entry = {"kept": kept.tolist(), "guess": probs.argmax(-1).tolist(), "means": _plain(probs.gather(1, kept))}
    drawn = _drawn(judged.functions, inputs, rows, probs_of_draws)
    if drawn is None:
        return entry
    drawn = drawn.reshape(len(drawn), *probs.shape)  # those of one output have an axis for it
    of_kept = (100 * drawn.gather(2, kept.expand(len(drawn), -1, -1))).round().int()
    return entry | {"draws": of_kept.movedim(0, -1).tolist()}


def number_rows(methods: Mapping[str, Judged], data: Data, inputs: Tensor, *, content: Content) -> Live | None:
    """Return a scatter of rows of one number, in the units of the targets; None if there are several, or no means.

    Arguments are those of `class_rows`; `numbers` of each method are needed.
    """
    columns = {label: number_columns(each.numbers, data) for label, each in methods.items()}
    known = {label: each for label, each in columns.items() if each is not None and len(each["sd"]) == len(inputs)}
    if len(known) < len(methods):
        return None
    measures = {name: (words.format(data.target_label), False) for name, words in _OF_NUMBERS.items()}
    spread = [{"x": "sd", "y": "error", "level": True}, {"x": "predicted", "y": "sd"}]
    views = [
        {"x": "observed", "y": "predicted", "level": True, "span": True},
        *(spread if _have_sd(known.values()) else []),
    ]
    rows, others = _chosen(known, "sd", methods, most=min(content.most, _room(methods, 1)))
    units, entries = (data.target_standardise or Standardise.identity()).to(torch.float64), {}
    for label, judged in methods.items():
        drawn = _drawn(judged.functions, inputs, rows, lambda kind: moment(kind, "mean"))
        means = None if drawn is None else units.inverse(drawn.double()).reshape(len(drawn), len(rows))
        entries[label] = {} if means is None else {"draws": _plain(means.T)}
    live = _live(known, entries, measures, rows=rows, others=others, doubt="sd", content=content)
    return live | {"views": views, "signs": ["inside its 95 % interval", "outside"]}


def number_columns(numbers: Numbers | None, data: Data) -> dict[str, Tensor] | None:
    """Return what stands on the axes, (N,) each, in raw units; None of several targets, or without means."""
    if numbers is None or numbers.mean.shape[1] != 1 or not numbers.mean.isfinite().all():
        return None
    units = (data.target_standardise or Standardise.identity()).to(torch.float64)
    names = {"observed": numbers.targets, "predicted": numbers.mean, "low": numbers.low, "high": numbers.high}
    raw = {name: units.inverse(values.double()).flatten() for name, values in names.items()}
    inside = (raw["low"] <= raw["observed"]) & (raw["observed"] <= raw["high"])
    sd = numbers.scale.double().flatten() * float(units.scale)
    return raw | {"sd": sd, "error": (raw["observed"] - raw["predicted"]).abs(), "marked": 1 - inside.long()}


def _have_sd(columns: Iterable[Mapping[str, Tensor]]) -> bool:
    """Return whether standard deviations exist, of all methods."""
    return all(bool(each["sd"].isfinite().all()) for each in columns)


def disagree(methods: Iterable[Judged]) -> bool:
    """Return whether functions of some method disagree about some row."""
    scores = [each.evaluation.scores for each in methods]
    return any(bool((each.mutual_information > 1e-9).any()) for each in scores if each is not None)


def panels(first: Sequence[Dots], more: Sequence[Dots] = ()) -> Live:
    """Return panels of methods, each ranked by one metric; those after the `first` are shown by choice."""
    look_of = looks(name for panel in [*first, *more] for name in panel.values)
    entries = [
        {
            "title": panel.title,
            "measure": panel.measure,
            "better": panel.better,
            "share": panel.measure.lower().startswith(SHARES),
            "values": {name: _plain(torch.tensor(ends, dtype=torch.float64)) for name, ends in panel.values.items()},
            "best": list(panel.best),
            "floors": [float(value) for value in panel.floors],
            "colours": {name: look_of[name].colour for name in panel.values},
            "first": number < len(first),
        }
        for number, panel in enumerate([*first, *more])
    ]
    return {"kind": "panels", "panels": entries}


def _live(
    columns: Mapping[str, Mapping[str, Tensor]],
    entries: Mapping[str, Live],
    measures: Mapping[str, tuple[str, bool]],
    *,
    rows: Tensor,
    others: Tensor,
    doubt: str,
    content: Content,
) -> Live:
    """Return what all scatters share: columns of all methods at rows that can be opened, and at others."""
    methods = []
    for label, entry in entries.items():
        marked = columns[label]["marked"]
        at = {"measures": rows} | ({"cloud": others} if len(others) else {})
        known = columns[label]
        parts = {group: {name: _plain(known[name][where]) for name in measures} for group, where in at.items()}
        if "cloud" in parts:
            parts["cloud"]["marked"] = marked[others].tolist()
        methods.append({"name": label, "marked": marked[rows].tolist(), **parts, **entry})
    total = len(next(iter(columns.values()))["marked"])
    note = f"Large: {len(rows):,} rows, those of the most surprising targets and of the most doubt, and a sample. "
    note += f"Small: {len(others):,} more of {total:,}." if len(others) else ""
    return {
        "kind": "rows",
        "row": content.row,
        "open": int(torch.stack([each[doubt][rows].double() for each in columns.values()]).mean(0).argmax()),
        "rows": rows.tolist(),
        "measures": {name: {"label": label, "share": share} for name, (label, share) in measures.items()},
        "content": content.of(rows),
        "note": note if len(rows) < total else "",
        "methods": methods,
    }


def _room(methods: Mapping[str, Judged], classes: int) -> int:
    """Return how many rows of drawn functions a page has room for."""
    return min(ROWS, NUMBERS // (len(methods) * DRAWS * classes))


def _chosen(
    columns: Mapping[str, Mapping[str, Tensor]], doubt: str, methods: Mapping[str, Judged], *, most: int
) -> tuple[Tensor, Tensor]:
    """Return rows that can be opened, and others: of many, by surprise, by doubt and evenly spread, a third each."""
    total = len(next(iter(columns.values()))["marked"])
    if total <= most:
        return torch.arange(total), torch.arange(0)
    surprise = -torch.stack([each.evaluation.log_prob.double().clamp_min(-1e9) for each in methods.values()]).mean(0)
    doubts = torch.stack([each[doubt].double() for each in columns.values()]).mean(0)
    extreme = torch.cat([values.topk(max(most // 3, 1)).indices for values in (surprise, doubts)]).unique()[:most]
    rest = torch.arange(total)[~torch.isin(torch.arange(total), extreme)]
    sample = rest[torch.from_numpy(spread_rows(len(rest), most - len(extreme)))]
    rows = torch.cat([extreme, sample]).sort().values
    others = torch.from_numpy(spread_rows(total, CLOUD // len(methods)))
    return rows, others[~torch.isin(others, rows)]


def _drawn(
    functions: Functions | Source | None, inputs: Tensor | None, rows: Tensor, of: Callable[[Any], Tensor]
) -> Tensor | None:
    """Return what each drawn function says of rows, (S, R, ...), of at most 30; None where nothing is drawn."""
    if not isinstance(functions, Functions) or functions.draws < 2 or functions.model.coupled or inputs is None:
        return None
    some = functions.some(torch.from_numpy(spread_rows(functions.draws, DRAWS)))
    return of(predict(some, inputs[rows.to(inputs.device)]).distribution).cpu()


def _plain(values: Tensor) -> Any:
    """Return numbers as JSON has them, seven digits each; None for what is not finite."""
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() else short


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[:letters]}…"


def _cells(table: TablePredictor, names: list[str], rows: Tensor) -> Live:
    """Return the cells of rows of a table."""
    columns = [table.rows.columns[name][rows.numpy()] for name in names]
    cells = [[_cell(v, absent=a) for v, a in zip(held.tolist(), missing(held), strict=True)] for held in columns]
    return {"cells": list(map(list, zip(*cells, strict=True))), "names": names}


def _cell(value: Any, *, absent: bool) -> str:
    if absent:
        return "–"
    return f"{value:.6g}".replace("-", "−") if isinstance(value, float) else _short(str(value), 80)


def _reduced(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of an image on a page."""
    channels, height, width = shape
    factor = min(1.0, SIDE / max(height, width))
    return channels, max(round(height * factor), 1), max(round(width * factor), 1)


def _sprite(data: Data, shape: tuple[int, int, int], rows: Tensor) -> Live:
    """Return images of rows as one PNG, `columns` of them side by side."""
    from PIL import Image

    channels, height, width = shape
    images = data.standardise.inverse(data.test.inputs[rows].cpu()).float().clamp(0, 1)
    if images.shape[-2:] != (height, width):
        images = torch.nn.functional.interpolate(images, (height, width), mode="area")
    if channels != 3:
        images = 1 - images.mean(1, keepdim=True)  # dark on white, as in figures
    side = math.ceil(math.sqrt(len(rows)))
    sheet = np.zeros((images.shape[1], math.ceil(len(rows) / side) * height, side * width), dtype=np.uint8)
    for number, image in enumerate((255 * images).round().byte().numpy()):
        top, left = (number // side) * height, (number % side) * width
        sheet[:, top : top + height, left : left + width] = image
    picture = Image.fromarray(sheet[0] if len(sheet) == 1 else np.moveaxis(sheet, 0, -1))
    picture.save(file := io.BytesIO(), format="PNG", optimize=True)
    source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"sprite": {"source": source, "columns": side, "width": width, "height": height}}

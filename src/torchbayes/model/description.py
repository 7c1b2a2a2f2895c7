"""A model in words: how files and runs record likelihood and prior, so that they are not read with others."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torchbayes.display import Overview, brief, shortened, shown
from torchbayes.model.likelihoods.weighted import spread_of
from torchbayes.model.model import Model
from torchbayes.model.priors.bound import BoundPrior

# parts of a repr that differ between processes: addresses, devices, enclosing functions
_PLACE = re.compile(r" at 0x[0-9a-fA-F]+|, device='[^']*'|[\w.<>]+\.<locals>\.")
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def describe_model(model: Model) -> dict[str, Any]:
    """Return likelihood, priors and temperature in words, the same in every process, JSON-serialisable."""
    axis, low = model.network.class_axis, str(model.network.precision)
    return {
        **({"precision": low} if low else {}),
        "likelihood": _said(model.likelihood) + ("" if axis == -1 else f" with classes on axis {axis}"),
        "prior": [f"{s.where.start}:{s.where.stop} {_said(s.prior)}" for s in model.prior.segments],
        "temperature": model.temperature,
        "tempering": model.tempering,
        **({} if model.open_scale in {None, 1.0} else {"open_scale": model.open_scale}),
        **({"spread": list(spread)} if (spread := spread_of(model.likelihood)) else {}),
    }


def model_differences(found: Mapping[str, Any], model: Model) -> list[str]:
    """Return how a model differs from a description, one clause per difference.

    Numbers may differ by rounding, as sums over a joint prior do from device to device.

    Args:
        found: as `describe_model` gave it.
        model: the model.
    """
    was, now = _parts(found), _parts(describe_model(model))
    pairs = ((name, was.get(name, "nothing"), now.get(name, "nothing")) for name in {**was, **now})
    return [f"its {name} is {one}, the model's {other}" for name, one, other in pairs if not _alike(one, other)]


def _said(part: Any) -> str:
    own = type(part).__repr__ is not object.__repr__
    return _PLACE.sub("", repr(part) if own else f"{type(part).__qualname__}()")


def _parts(about: Mapping[str, Any]) -> dict[str, str]:
    priors = (text.split(" ", 1) for text in about["prior"])
    names = ("likelihood", "temperature", "tempering", "precision")
    rest = {name: str(about[name]) for name in names if name in about}
    return {**rest, **{f"prior of weights {where}": said for where, said in priors}}


def _alike(one: str, other: str) -> bool:
    if _NUMBER.split(one) != _NUMBER.split(other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-5, abs_tol=1e-9) for a, b in pairs)


def _overview(model: Model) -> Overview:
    """Return what a model says of itself: its parts, and the shape and the prior of each random parameter."""
    count = sum(p.numel() for p in model.network.module.parameters()) + model.layout.size - model.network.layout.size
    random = f"{model.layout.size:,}" + ("" if count == model.layout.size else f" of {count:,}")
    priors = {segment.where.start: shortened(repr(segment.prior)) for segment in model.prior.segments}
    rows, start, prior = [], 0, ""
    for name, shape in model.layout.shapes.items():
        prior = priors.get(start, prior)
        rows.append((name, " × ".join(map(str, shape)) or "1", prior))
        start += math.prod(shape)
    facts = {
        "network": type(model.network.module).__name__,
        "weights": random,
        "likelihood": brief(model.likelihood),
        "prior": ", ".join(dict.fromkeys(priors.values())),
        **({} if model.temperature == 1 else {"temperature": model.temperature, "tempering": model.tempering}),
    }
    return Overview("Model", facts, header=("random weights", "shape", "prior"), rows=rows)


def _prior_overview(prior: BoundPrior) -> Overview:
    priors = dict.fromkeys(shortened(repr(segment.prior)) for segment in prior.segments)
    return Overview("BoundPrior", {"priors": ", ".join(priors)})


shown(_overview)(Model)
shown(_prior_overview)(BoundPrior)

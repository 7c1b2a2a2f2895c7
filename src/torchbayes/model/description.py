"""A model in words: the likelihood, prior and constants that files and runs record, to recognise their model by.

Parameters that are not random, and buffers, are recorded as a fingerprint, because the same random weights are another
function on another frozen body.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchbayes.checksum import checksum, crc
from torchbayes.display import Overview, brief, shortened, shown
from torchbayes.model.layout import Layout
from torchbayes.model.likelihoods.weighted import spread_of
from torchbayes.model.model import Model
from torchbayes.model.network import Network
from torchbayes.model.priors.bound import BoundPrior
from torchbayes.native.sharding import whole

CONSTANTS = "constants"
"""The entry of files that holds a fingerprint."""
_KNOWN: WeakKeyDictionary[Network, dict[str, str]] = WeakKeyDictionary()
_SAMPLED, _NAMED = 8, 3  # elements of a fingerprint, and names in a message
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


def model_differences(recorded: Mapping[str, Any], model: Model) -> list[str]:
    """Return how a model differs from what `describe_model` gave before, one clause per difference.

    Numbers may differ by rounding, as sums over a joint prior do from device to device.
    """
    was, now = _parts(recorded), _parts(describe_model(model))
    pairs = ((name, was.get(name, "nothing"), now.get(name, "nothing")) for name in {**was, **now})
    return [
        f"its {name} is {before}, the model's {after}" for name, before, after in pairs if not _alike(before, after)
    ]


def checksum_of_code(function: Any) -> str:
    """Return the CRC-32 of what a function of Python does, with what it holds of the functions around it.

    Of what it holds numbers, texts, settings and functions count, which stay as they are; of other objects the class.
    It is empty of other callables.
    """
    if (code := getattr(function, "__code__", None)) is None:
        return ""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return crc(repr((*_facts(code), [*map(_lasting, [*held, *(function.__defaults__ or ())])])).encode())


def _facts(code: CodeType) -> tuple[Any, ...]:
    inner = [_facts(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return code.co_code, code.co_names, tuple(inner)


def _lasting(value: Any) -> str:
    """Return a value in words that are the same whenever it is."""
    plain = isinstance(value, int | float | complex | str | bytes | None) or is_dataclass(value)
    return _said(value) if plain else checksum_of_code(value) or type(value).__qualname__


def _said(value: Any) -> str:
    has_repr = type(value).__repr__ is not object.__repr__
    return _PLACE.sub("", repr(value) if has_repr else f"{type(value).__qualname__}()")


def _parts(description: Mapping[str, Any]) -> dict[str, str]:
    priors = (text.split(" ", 1) for text in description["prior"])
    names = ("likelihood", "temperature", "tempering", "precision")
    facts = {name: str(description[name]) for name in names if name in description}
    return {**facts, **{f"prior of weights {where}": law for where, law in priors}}


def _alike(first: str, other: str) -> bool:
    if _NUMBER.split(first) != _NUMBER.split(other):
        return False
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-5, abs_tol=1e-9) for a, b in pairs)


def _overview(model: Model) -> Overview:
    """Return the overview of a model: its parts, and the shape and the prior of each random parameter."""
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
        **({} if model.chunk_size is None else {"chunk_size": model.chunk_size}),
        **({} if model.autocast is None else {"autocast": model.autocast}),
    }
    return Overview("Model", facts, header=("random weights", "shape", "prior"), rows=rows)


def _prior_overview(prior: BoundPrior) -> Overview:
    priors = dict.fromkeys(shortened(repr(segment.prior)) for segment in prior.segments)
    return Overview("BoundPrior", {"priors": ", ".join(priors)})


shown(_overview)(Model)
shown(_prior_overview)(BoundPrior)


def fingerprint(network: Network, *, without: Container[str] = ()) -> dict[str, str]:
    """Return what identifies each tensor that is not inferred: the checksum of its bytes, its dtype, some elements.

    A body of 100 million parameters takes half a second, once for each network. Buffers named in `without` do not
    count, because others take their place. Of a network that is split over processes all must ask at once, the first
    time. SettingError is raised if a tensor has changed since the Model was made.
    """
    network.borrowed.check()
    prints = _KNOWN.setdefault(network, {})
    for name, tensor in _constants(network).items():
        if name not in prints:
            prints[name] = _printed(whole(tensor.detach()).cpu())
    return {name: text for name, text in prints.items() if text and name not in without}


def fingerprint_differences(known: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return how the constants of a network (`now`) differ from those of another one (`known`), in one clause or none.

    Tensors whose dtypes differ, as in a converted body, are compared at a few elements, to rounding. Tensors without a
    name in `known` are not compared.
    """
    others = [name for name, text in known.items() if name not in now or not _same_print(text, now[name])]
    if not others:
        return []
    named, verb = listed([f"`{name}`" for name in others], _NAMED, ", "), "are" if len(others) > 1 else "is"
    return [f"{named}, which {verb} not random, {verb} not as in the model"]


def _constants(network: Network) -> dict[str, Tensor]:
    """Return the tensors of a network that are not random, and the constant elements of partly random ones."""
    masked = {n: t.flatten().index_fill(0, network.mask.indices[n], 0.0) for n, t in network.mask.tensors.items()}
    buffers = {n: b for n, b in network.module.named_buffers() if b.layout == torch.strided}
    return {**network.constants, **masked, **buffers, **network.buffers}


def _printed(tensor: Tensor) -> str:
    """Return the checksum, dtype and some elements of a tensor; an empty string if its bytes cannot be read."""
    try:
        flat = tensor.reshape(-1)
        where = torch.linspace(0, max(len(flat) - 1, 0), min(_SAMPLED, len(flat)), dtype=torch.float64).long()
        values = " ".join(f"{value:.9g}" for value in flat[where].double().tolist()) if not flat.is_complex() else ""
        return f"{checksum(tensor)} {tensor.dtype} {values}"
    except (RuntimeError, TypeError, NotImplementedError):  # tensors of other classes, such as quantised ones
        return ""


def _same_print(first: str, other: str) -> bool:
    """Return whether two tensors are equal; if their dtypes differ, to the rounding of the coarser one."""
    (sum_, dtype, *values), (own_sum, own_dtype, *own_values) = first.split(), other.split()
    if dtype == own_dtype:
        return sum_ == own_sum
    kinds = [getattr(torch, name.removeprefix("torch.")) for name in (dtype, own_dtype)]
    if not all(kind.is_floating_point for kind in kinds) or len(values) != len(own_values):
        return False
    eps = max(torch.finfo(kind).eps for kind in kinds)
    pairs = [(float(a), float(b)) for a, b in zip(values, own_values, strict=True)]
    return all(a == b or math.isclose(a, b, rel_tol=eps, abs_tol=eps * 1e-3) for a, b in pairs)


def listed(clauses: Sequence[str], most: int = 5, between: str = "; ") -> str:
    """Return clauses joined for a message: at most so many, and how many more there are."""
    more = f" and {len(clauses) - most} more" if len(clauses) > most else ""
    return between.join(clauses[:most]) + more


def check_layout(path: Path, shapes: dict[str, list[int]], model: Model) -> None:
    """Raise ValueError if the layout of a file differs from that of the model."""
    clauses = model.layout.differences(Layout({name: tuple(shape) for name, shape in shapes.items()}))
    if clauses:
        raise ValueError(f"{path} does not fit this model: {listed(clauses)}. Build the model it was made with.")


def check_model(path: Path, header: Mapping[str, Any], model: Model) -> None:
    """Raise ValueError if the header of a file records another likelihood, prior, temperature or other constants."""
    faults = model_differences(header["model"], model) if header.get("model") else []
    if header.get(CONSTANTS):  # files of earlier versions have none
        faults += fingerprint_differences(header[CONSTANTS], fingerprint(model.network))
    if faults:
        raise ValueError(
            f"{path} was made under another model: {listed(faults)}. Build the model it was made with; to "
            f"infer under this one, fit again."
        )

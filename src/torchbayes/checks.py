"""Checks of arguments, with uniform messages: what is wrong, the value seen, what to do.

Every package may use them. A whole number is any integer but a bool; 2.0 is not one, which reveals counts computed
with `/`. A number is any real one but a bool. Numbers of numpy and tensors without axes count as numbers, and arrays
and tensors with one axis as tuples of numbers; `plain` turns those among settings into Python's own, as files hold
them.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

_LONGEST = 80  # letters of a value in a message
_SMALL = 1 << 16  # bytes that are taken to be free
_GROUP = Path("/sys/fs/cgroup")


class SettingError(ValueError):
    """A request that cannot be met, whatever the weights.

    Samplers attribute any other ValueError of a density to the weights, and reject the proposal.
    """


def plain(settings: Any) -> None:
    """Turn the fields of a frozen dataclass into Python's own numbers, in place, in its `__post_init__`."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        # lists of configurations, such as those of OmegaConf, are no `list`
        several = isinstance(value, tuple | MutableSequence)
        plain_field = tuple(plain_value(value)) if several else plain_value(value)
        if plain_field is not value:
            object.__setattr__(settings, field.name, plain_field)


def plain_value(value: Any) -> Any:
    """Return a setting in Python's own numbers, in mappings, lists and tuples too.

    A number of numpy or a tensor without axes becomes a number, an array or a tensor with one axis a tuple. Anything
    else is returned as it is.
    """
    if isinstance(value, Mapping):
        return {plain_value(name): plain_value(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [*map(plain_value, value)] if isinstance(value, list) else tuple(map(plain_value, value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor | np.ndarray) and value.ndim < 2:
        return tuple(value.tolist()) if value.ndim else value.item()
    return value


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, for optional settings."""
    return {name: value for name, value in values.items() if value is not None}


def optional(check: Callable[..., None], *how: Any, **values: Any) -> None:
    """Check the settings that are not None: `optional(check_positive, bandwidth=bandwidth)`."""
    check(*how, **given(**values))


def check_entries(entries: Mapping[str, Any], check: Callable[..., None], *how: Any) -> None:
    """Check values whose names are no arguments: `check_entries({"notes[0]": text}, check_text)`."""
    check(*how, **entries)


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number as Python's. ValueError if it is not one of at least `least` that 64 bits hold."""
    if not is_whole(value) or not least <= operator.index(value) < 2**63:
        bound = "below 2**63" if is_whole(value) and operator.index(value) > least else f"of at least {least}"
        raise ValueError(f"`{name}` must be a whole number {bound}; got {seen(value)}.")
    return operator.index(value)


def check_counts(*, least: int = 1, **counts: Any) -> None:
    """Check settings that are whole numbers of at least `least`."""
    for name, value in counts.items():
        whole(name, value, least=least)


def as_file(path: str | Path) -> Path:
    """Return the path of an existing file. Raises IsADirectoryError for a folder, FileNotFoundError for none."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"`{path}` is a folder where a file should be. Name a file in it, or move it away.")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    return path


def as_seed(seed: Any) -> int:
    """Return a seed, a whole number from 0 to 2⁶⁴ − 1, as Python's integer."""
    if not is_whole(seed) or not 0 <= operator.index(seed) < 2**64:
        raise ValueError(f"`seed` must be a whole number from 0 to 2**64 - 1; got {seen(seed)}.")
    return operator.index(seed)


def as_numbers(name: str, value: Any) -> Tensor:
    """Return a number, or a tensor, array or list of such, as a float64 tensor."""
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be numbers; got {seen(value)}.") from error


def check_numbers(**values: Any) -> None:
    """Check settings that are any finite number."""
    for name, value in values.items():
        if not _is_number(value) or not math.isfinite(value):
            raise ValueError(f"`{name}` must be a finite number; got {seen(value)}.")


def check_positive(**values: Any) -> None:
    """Check settings that are positive and finite."""
    for name, value in values.items():
        if not _is_number(value) or not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be {_finite(value)}above 0; got {seen(value)}.")


def check_scale(**values: Any) -> None:
    """Check settings whose square and its inverse must be finite too, such as scales: in [1e-150, 1e150]."""
    check_positive(**values)
    for name, value in values.items():
        if not 1e-150 <= float(value) <= 1e150:  # wider than the range of single precision
            raise ValueError(f"`{name}` must lie in [1e-150, 1e150], lest its square be 0 or infinite; got {value!r}.")


def check_not_negative(**values: Any) -> None:
    """Check settings that are finite and at least 0."""
    for name, value in values.items():
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"`{name}` must be {_finite(value)}at least 0; got {seen(value)}.")


def check_share(**shares: Any) -> None:
    """Check settings that are a share, in [0, 1)."""
    for name, value in shares.items():
        if not _is_number(value) or not 0 <= value < 1:
            raise ValueError(f"`{name}` must lie in [0, 1), as a share; got {seen(value)}.")


def check_flags(**flags: Any) -> None:
    """Check settings that are True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"`{name}` must be True or False; got {seen(value)}.")


def nearest(name: Any, names: Iterable[str], otherwise: str = "") -> str:
    """Return a sentence with the names that are close to a wrong one; if none is, `otherwise`, or all of them."""
    known = {right.lower(): right for right in names}
    close = [known[near] for near in get_close_matches(str(name).lower(), list(known), n=3, cutoff=0.5)]
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return otherwise or f"Choose from: {', '.join(known.values()) or 'none'}."


def check_name(kind: str, name: Any, known: Iterable[str]) -> None:
    """Raise ValueError for a name that is not known, with the nearest known names."""
    known = list(known)
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"There is no {kind} called {seen(name)}. {nearest(name, known)}")


def check_choice(words: Sequence[str], **values: Any) -> None:
    """Check settings that are one of a few words."""
    for name, value in values.items():
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"`{name}` must be one of {', '.join(words)}; got {seen(value)}.")


def check_text(**values: Any) -> None:
    """Check settings that are strings; TypeError if not."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise TypeError(f"`{name}` must be text; got {seen(value)}.")


def check_each(check: Callable[..., None], *, length: int | None = None, least: int = 1, **values: Any) -> None:
    """Check settings that are tuples of numbers, as `plain_value` makes them of arrays.

    `check`, such as `check_positive`, is applied to each number. `length` is that of each tuple, any if None; `least`
    is its minimum.
    """
    for name, value in values.items():
        if not isinstance(value, tuple | list) or len(value) < least or len(value) != (length or len(value)):
            many = f"{length} " if length else "one or more " if least == 1 else f"{least} or more " if least else ""
            raise ValueError(f"`{name}` must be a tuple of {many}numbers; got {seen(value)}.")
        for number in value:
            check_entries({name: number}, check)


def check_object(attributes: Sequence[str], example: str, **values: Any) -> None:
    """Check settings that are objects with certain attributes, where a class or its name is easily written instead.

    `example` is a correct one, such as "Adam()". Raises TypeError.
    """
    for name, value in values.items():
        fits = all(hasattr(value, attribute) for attribute in attributes)
        if fits and not isinstance(value, type):
            continue
        advice = f" Write {value.__name__}()." if fits else ""
        raise TypeError(f"`{name}` must be an object such as {example}; got {seen(value)}.{advice}")


def check_kind(kinds: type | tuple[type, ...], expected: str, **values: Any) -> None:
    """Check arguments that are objects of some classes; `expected` names them, with an article. Raises TypeError."""
    for name, value in values.items():
        if not isinstance(value, kinds):
            raise TypeError(f"`{name}` must be {expected}; got {seen(value)}.")


def check_function(expected: str, **values: Any) -> None:
    """Check arguments that are functions; `expected` names their kind, with an article. Raises TypeError."""
    for name, value in values.items():
        if not callable(value):
            raise TypeError(f"`{name}` must be {expected}; got {seen(value)}.")


def check_tensor(*axes: str, **values: Any) -> None:
    """Check arguments that are tensors with these axes, one letter or number each; any axes if none are given."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"`{name}` must be a tensor; got {seen(value)}. Use torch.as_tensor.")
        if axes and value.ndim != len(axes):
            wanted = ", ".join(axes) + ("," if len(axes) == 1 else "")
            raise ValueError(f"`{name}` must have shape ({wanted}); got {tuple(value.shape)}.")


def check_memory(needed: int, holding: str, device: torch.device | str = "cpu", **counts: int) -> None:
    """Raise ValueError if an allocation of `needed` bytes does not fit in memory, before making it.

    `holding` says in words what takes them; `counts` is the argument that determines its size. The message says how
    much memory is free, and how many would fit.
    """
    if needed <= _SMALL:  # what is free takes a tenth of a millisecond to read
        return
    free = free_memory(device)
    if needed <= free:
        return
    ((name, count),) = counts.items()
    raise ValueError(
        f"`{name}` must be smaller; got {count:,}: {holding} would take {size_of(needed)}, and {size_of(free)} are "
        f"free. Ask for {int(count * free / needed):,} at most."
    )


def free_memory(device: torch.device | str = "cpu") -> float:
    """Return the free bytes on a device; infinite where the system does not tell."""
    if torch.device(device).type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        free = 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        free = math.inf
    return min(free, _free_in_container())


def _free_in_container() -> float:
    """Return the free bytes within a container's control group: its limit, less what cannot be reclaimed.

    Pages of files can be reclaimed, whether used recently or not; MemAvailable of the whole machine counts them too.
    """
    try:
        limit, used = (int((_GROUP / name).read_text("utf-8")) for name in ("memory.max", "memory.current"))
        entries = dict(line.split() for line in (_GROUP / "memory.stat").read_text("utf-8").splitlines())
        cached = int(entries["active_file"]) + int(entries["inactive_file"])
    except (OSError, KeyError, ValueError):  # no such group, or no limit ("max")
        return math.inf
    return float(max(limit - used + cached, 0))


def size_of(count: float) -> str:
    """Return a number of bytes in words for a message."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:,.1f} MiB"


def seen(value: Any) -> str:
    """Return a short description of a value for a message: a class or a tensor by name."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Tensor | np.ndarray) and value.ndim:
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    try:
        text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    except Exception:
        text = ""
    if isinstance(value, str) and len(text) > _LONGEST:
        return f"{text[:_LONGEST]}…{text[0]}"
    return text if 0 < len(text) <= _LONGEST else f"an object of type {type(value).__name__}"


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, and not a bool."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0 and is_whole(value.item())
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0 and _is_number(value.item())
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and (isinstance(value, float | np.floating) or abs(value) <= sys.float_info.max)  # type: ignore[operator]


def _finite(value: Any) -> str:
    if isinstance(value, str):
        return "a number "
    return "finite and " if _is_number(value) and math.isinf(value) else ""


def holds(value: object, name: str) -> TypeGuard[Any]:
    """Return whether an object, or a class, has an optional member, and no subclass has changed what that refers to.

    A subclass of `Gaussian` with another `log_prob` inherits a curvature that belongs to the old one, and so does not
    hold it. Checks of targets and dunders change nothing.
    """
    classes = (value if isinstance(value, type) else type(value)).__mro__
    owner = next((kind for kind in classes if name in vars(kind)), None)
    if owner is None:
        return False
    changed = {
        n for kind in classes[: classes.index(owner)] for n, value in vars(kind).items() if hasattr(value, "__get__")
    }
    return not any(hasattr(owner, n) for n in changed if n != "check" and not n.startswith("__"))

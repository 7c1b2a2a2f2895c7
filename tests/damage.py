"""Damages of files, each from a seed: what bad disks, bad copies and curious hands do."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Damage = Callable[[bytes, random.Random, bytes], bytes]


def _flip(whole: bytes, chance: random.Random, _: bytes) -> bytes:
    changed = bytearray(whole)
    for _number in range(chance.choice([1, 1, 1, 3])):
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(whole: bytes, chance: random.Random, _: bytes) -> bytes:
    return whole[: chance.randrange(len(whole))]


def _append(whole: bytes, chance: random.Random, _: bytes) -> bytes:
    more = chance.choice([1, 7, 8, 64, 1000])
    return whole + (chance.randbytes(more) if chance.random() < 0.7 else whole[-more:])


def _block(whole: bytes, chance: random.Random) -> tuple[int, int]:
    size = min(len(whole), chance.choice([1, 8, 40, 200]))
    return chance.randrange(len(whole) - size + 1), size


def _zero(whole: bytes, chance: random.Random, _: bytes) -> bytes:
    at, size = _block(whole, chance)
    return whole[:at] + bytes(size) + whole[at + size :]


def _swap(whole: bytes, chance: random.Random, _: bytes) -> bytes:
    changed, (first, size) = bytearray(whole), _block(whole, chance)
    second = chance.randrange(len(whole) - size + 1)
    changed[first : first + size], changed[second : second + size] = (
        whole[second : second + size],
        whole[first : first + size],
    )
    return bytes(changed)


def _other(_: bytes, __: random.Random, other: bytes) -> bytes:
    return other


def _empty(_: bytes, __: random.Random, ___: bytes) -> bytes:
    return b""


_NESTED = "[" * 20000 + "]" * 20000
_VALUES = (None, -1, 0, 1, 3, 10**40, 1e308, float("nan"), float("inf"), "", "x", "float32", [], [-1], {}, True)


def _places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, entry in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*at, key)
        yield from _places(entry, (*at, key))


def edited(text: str, chance: random.Random) -> str:
    """Return JSON with one thing changed by hand: valid JSON, but for what is nested too deeply."""
    tree = json.loads(text)
    *path, last = chance.choice(list(_places(tree)))
    parent = tree
    for key in path:
        parent = parent[key]
    how = chance.randrange(8)
    if how == 0:
        del parent[last]
    elif how == 1 and isinstance(parent, dict):
        parent[f"{last}x"] = parent.pop(last)
    elif how == 2:
        parent[last] = "NESTED"
    elif how == 3 and isinstance(parent[last], int | float):
        parent[last] = chance.choice([parent[last] + 1, -parent[last], parent[last] * 2])
    elif how == 4 and isinstance(parent, dict):  # another order
        parent[last] = parent.pop(last)
    elif how == 5:  # two values change places
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        other = chance.choice(list(keys))
        parent[last], parent[other] = parent[other], parent[last]
    else:
        parent[last] = chance.choice(_VALUES)
    return json.dumps(tree).replace('"NESTED"', _NESTED)


def _edit(whole: bytes, chance: random.Random, _: bytes) -> bytes:
    """Edit the JSON of a file: a line of the log, a description, either header of a safetensors file."""
    if whole[:1] != b"{":
        length = struct.unpack("<Q", whole[:8])[0]
        if length > len(whole):  # no JSON in it
            return _flip(whole, chance, b"")
        outer = json.loads(whole[8 : 8 + length])
        if chance.random() < 0.5:
            outer["__metadata__"]["torchbayes"] = edited(outer["__metadata__"]["torchbayes"], chance)
            text = json.dumps(outer)
        else:
            text = edited(json.dumps(outer), chance)
        header = text.encode()
        return struct.pack("<Q", len(header)) + header + whole[8 + length :]
    lines = whole.decode().splitlines()
    if lines[0] == "{":
        return edited(whole.decode(), chance).encode()
    at = chance.randrange(len(lines))
    lines[at] = edited(lines[at], chance)
    return ("\n".join(lines) + "\n").encode()


DAMAGES: dict[str, Damage] = {
    "flip": _flip,
    "cut": _cut,
    "append": _append,
    "zero": _zero,
    "swap": _swap,
    "other": _other,
    "empty": _empty,
    "edit": _edit,
}
WEIGHTS = {"flip": 4, "cut": 4, "append": 3, "zero": 3, "swap": 3, "other": 1, "empty": 1, "edit": 8}


@contextmanager
def nobody() -> Iterator[None]:
    """Run as a user who may read nothing, if this one may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Take away the right to read a file."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with nobody():
            yield
    finally:
        path.chmod(mode)

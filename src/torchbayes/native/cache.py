"""Compiled libraries in a private folder of the user, each under a name that ends in the checksum of its content.

Loaded code runs with the user's rights, and a truncated library kills the process that loads it (SIGBUS). Therefore
the folder is private (0700), and a file is loaded only if it belongs to the user, nobody else may write to it, and
its content matches its name. Otherwise the library is compiled anew and replaced.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_STALE = 3600.0  # seconds after which a compilation counts as killed


def library(name: str, make: Callable[[Path], None]) -> Path:
    """Return the path of a compiled library, calling `make` to write it if there is no valid one.

    The name depends on what it is compiled from. Raises an OSError if there is nowhere to write, or others may write
    to the folder.
    """
    folder = _private(_home())
    for path in folder.glob(f"{name}-*.so"):
        with suppress(FileNotFoundError):
            if _is_own(path.lstat()) and path.name == _named(name, path):
                return path
    _sweep(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as build:
        made = Path(build, "library")
        make(made)
        made.chmod(0o600)
        with made.open("rb") as file:
            os.fsync(file.fileno())  # otherwise a power cut may leave the name without the bytes
        return made.replace(folder / _named(name, made))  # atomic, because another process may do the same


def _home() -> Path:
    if not hasattr(os, "geteuid"):
        raise OSError("there are no owners of files here")
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise OSError("there is no home folder; set XDG_CACHE_HOME to a folder of your own") from error


def _named(name: str, path: Path) -> str:
    return f"{name}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.so"


def _private(home: Path) -> Path:
    """Return the folder of the libraries, made if needed, to which only the user can write.

    Only the user, root, and owners of folders above the user's cache can replace it; otherwise an OSError is raised.
    """
    folder = home / "torchbayes" / "native"
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder.parent.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder_stat = folder.lstat()
    if not stat.S_ISDIR(folder_stat.st_mode):
        raise OSError(f"{folder} is a link, not a folder; remove it")
    for place, place_stat, owners in (
        (folder, folder_stat, {os.geteuid()}),
        (folder.parent, folder.parent.stat(), {os.geteuid(), 0}),
        (home, home.stat(), {os.geteuid(), 0}),
    ):
        if place_stat.st_uid not in owners:
            raise OSError(f"{place} belongs to another user; set XDG_CACHE_HOME to a folder of your own")
    for place in folder.resolve().parents:
        parent_stat = place.stat()
        if (who := _writers(parent_stat)) and not parent_stat.st_mode & stat.S_ISVTX:
            raise OSError(f"{who} can write to {place}, and so replace {folder}; set XDG_CACHE_HOME to another folder")
    if stat.S_IMODE(folder_stat.st_mode) != stat.S_IRWXU:
        folder.chmod(stat.S_IRWXU)
    return folder


def _writers(status: os.stat_result) -> str:
    """Return in words who may write to a folder besides its owner, root and their private groups; empty if nobody."""
    if status.st_mode & stat.S_IWOTH:
        return "everyone"
    return f"group {status.st_gid}" if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid) else ""


def _is_private(group: int) -> bool:
    """Return whether a group is root's, or the group with the user's own name that many systems give every user."""
    import grp  # not on Windows
    import pwd

    try:
        user, group_entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return group == 0
    is_users = (user.pw_gid, user.pw_name) == (group, group_entry.gr_name) and set(group_entry.gr_mem) <= {user.pw_name}
    return is_users or group == 0


def _is_own(status: os.stat_result) -> bool:
    """Return whether a file is a regular one of this user, to which nobody else can write."""
    shared = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & shared


def _sweep(folder: Path) -> None:
    """Remove leftovers of compilations that were killed."""
    for leftover in folder.glob("build-*"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > _STALE:
                shutil.rmtree(leftover, ignore_errors=True)

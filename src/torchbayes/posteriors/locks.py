"""Locks that end with their process: one writer per directory, and temporary files that are still being written.

The lock is the operating system's, on an open file (`flock`, which Linux turns into a lock on the server for NFS).
It ends with the process that took it, however that ends, so a leftover lock file blocks nobody. Forked children do
not hold it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import time
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from torchbayes.native.process import full_path

NAME = "run.lock"
_BYTE = 1 << 30  # the byte locked on Windows, beyond the holder's name, because a locked byte cannot be read there


class FileWarning(UserWarning):
    """A file is damaged or unprotected, but can still be used."""


def take(handle: int) -> bool:
    """Lock an open file for this process alone, without waiting; return whether that succeeded.

    If not, another process has the lock. It ends when the file is closed. An OSError if the file system has no
    locks.
    """
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True
    import msvcrt

    windows: Any = msvcrt
    os.lseek(handle, _BYTE, os.SEEK_SET)
    try:
        windows.locking(handle, windows.LK_NBLCK, 1)
    except PermissionError:
        return False
    return True


def open_own(path: str | Path, flags: int) -> int:
    """Open a file that this library writes in place, with `flags` of `os.open`; usable as the `opener` of `open`.

    A FileExistsError unless it is a regular file with exactly one name: the target of a link, or a file with other
    names, belongs to somebody else and is never written to.
    """
    apart = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if os.path.islink(path):
            raise FileExistsError(f"`{path}` is a link. {_APART}")
        handle = os.open(path, flags | apart, 0o666)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:  # a link made since the check above; a pipe that nobody reads
            raise
        raise FileExistsError(f"`{path}` is a link or a pipe. {_APART}") from error
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return handle
    os.close(handle)
    kind = "is no file" if not stat.S_ISREG(status.st_mode) else f"is one file under {status.st_nlink} names"
    raise FileExistsError(f"`{path}` {kind}. {_APART}")


_APART = "What a run writes must be a plain file of its own: remove it, or put a copy in its place."


def shorten(path: Path, size: int) -> None:
    """Cut a file of a run to `size` bytes; it is opened by `open_own`."""
    with open(path, "r+b", opener=open_own) as file:
        file.truncate(size)


def folder_in(directory: str | os.PathLike[str], *names: str) -> Path:
    """Return the path of a folder nested in a run's directory; it need not exist.

    A FileExistsError if one of the folders is a link, which could lead outside. The directory itself may be one,
    because the user named it.
    """
    inner = Path(directory)
    for name in names:
        inner /= name
        if inner.is_symlink():
            raise FileExistsError(
                f"`{inner}` is a link, and what is written for a run stays within it. Remove the link, or name another "
                f"directory."
            )
    return inner


class Locked:
    """The right to write to a directory, held by one process at a time; a context manager.

    `run.lock` in the directory names the holder. It is removed at the end; one left by a killed process is taken
    over.
    """

    def __init__(self, directory: str | Path) -> None:
        """Take the lock; the directory is made if needed.

        A BlockingIOError says which other process, or that another fit of this one, is writing there. A
        FileExistsError if the directory is a file or its `run.lock` a link.
        """
        self.directory = full_path(directory)
        if self.directory.is_file():
            raise FileExistsError(f"`{self.directory}` is a file where a folder should be. Choose another directory.")
        self.directory.mkdir(parents=True, exist_ok=True)
        # stays open so that a directory made later cannot get the same inode
        self._folder = os.open(self.directory, os.O_RDONLY) if os.name != "nt" else None
        self._handle: int | None = None
        try:
            self._handle = self._taken()
        finally:
            if self._handle is None and self._folder is not None:
                os.close(self._folder)
        _HELD.add(self)

    def __enter__(self) -> Self:
        """Return the lock."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the directory."""
        handle, self._handle = self._handle, None
        if handle is None:  # a forked child
            return
        if _is_at(handle, self.path):
            with suppress(OSError):  # Windows does not remove open files
                self.path.unlink()
        self._close(handle)

    @property
    def path(self) -> Path:
        """The lock file."""
        return self.directory / NAME

    def check(self) -> None:
        """Check, before something is written, that this process still has the directory.

        A BlockingIOError if another process has taken it over, a FileNotFoundError if it was removed, an OSError if
        this process was forked from the one that has the lock.
        """
        if self._handle is None:
            raise OSError(f"{self.directory} is written to by the process that this one was forked from, not by this.")
        if _is_at(self._handle, self.path):
            return
        if self._folder is not None and not _is_at(self._folder, self.directory):
            raise FileNotFoundError(
                f"{self.directory} was removed or replaced while it was written to. What it held is gone; start anew."
            )
        # The directory is still there, and only the lock file was removed.
        lost, self._handle = self._handle, self._taken()
        os.close(lost)

    def forget(self) -> None:
        """Close the file without releasing the lock, as a forked child must."""
        if self._handle is not None:
            self._close(self._handle)
            self._handle = None

    def _close(self, handle: int) -> None:
        os.close(handle)
        if self._folder is not None:
            os.close(self._folder)

    def _taken(self) -> int:
        while True:
            handle, writable = self._opened()
            try:
                if not self._free(handle, writable):
                    raise BlockingIOError(
                        f"{self.directory} is being written to by {_holder(self.path)}. Wait until that ends, or "
                        f"choose another directory."
                    )
                # Otherwise the holder has finished and removed the file after it was opened here.
                if _is_at(handle, self.path) and (writable or not self._removed()):
                    _sign(handle)
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)

    def _opened(self) -> tuple[int, bool]:
        """Return the handle of the lock file, and whether it is writable; another user's is not.

        A PermissionError if it can be neither made nor read.
        """
        try:
            return open_own(self.path, os.O_RDWR | os.O_CREAT), True
        except PermissionError:
            if not self.path.exists():
                raise
            return open_own(self.path, os.O_RDONLY), False

    def _removed(self) -> bool:
        """Return whether a lock file that names another holder could be removed; if not, it is locked as it is."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def _free(self, handle: int, ours: bool) -> bool:
        try:
            return take(handle)
        except OSError as error:
            if not ours:  # NFS does not lock files opened only for reading
                raise PermissionError(
                    f"{self.path} is another user's, and its file system does not tell whether that user's process "
                    f"still writes there ({error.strerror}). Remove it if none does, or choose another directory."
                ) from error
            warnings.warn(
                f"{self.directory} is on a file system without locks ({error.strerror}), so nothing keeps another "
                f"process from writing to it. See to it that none does.",
                FileWarning,
                stacklevel=5,
            )
            return True


_HELD: weakref.WeakSet[Locked] = weakref.WeakSet()


def _forget() -> None:
    for lock in list(_HELD):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _is_at(handle: int, path: Path) -> bool:
    try:
        status = path.lstat() if path.name == NAME else path.stat()
        return os.path.samestat(os.fstat(handle), status)
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    holder = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with suppress(OSError):  # on a full disk the lock holds without its holder's name
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, (json.dumps(holder) + "\n").encode())


def _holder(path: Path) -> str:
    """Return who holds a lock, in words."""
    try:
        holder = json.loads(path.read_text("utf-8"))
        return f"process {holder['process']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # the file was just created or removed
        return "another process"

"""Locks that die with their process: one writer for a directory, and temporary files that are still being written.

The lock itself is the operating system's, on an open file (`flock`, which Linux turns into a lock on the server for
NFS). It ends with the process that took it, however that process ends, so a leftover lock file blocks nobody. Forked
children do not hold it.
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
from types import TracebackType
from typing import Any, Self

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from torchbayes.native.process import full_path

NAME = "run.lock"
_BYTE = 1 << 30  # the byte locked on Windows, where a locked byte cannot be read: after the holder's name


class FileWarning(UserWarning):
    """A file is damaged or unprotected, but can still be used."""


def take(handle: int) -> bool:
    """Lock an open file for this process alone, without waiting.

    Args:
        handle: the open file; the lock ends when it is closed.

    Returns:
        Whether it is locked now; if not, another process has it.

    Raises:
        OSError: if its file system does not support locks.
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
    """Open a file that this library writes in place: a regular file, which has this one name.

    What a link points to is somebody else's, as are the other names of a file: neither is ever written to.

    Args:
        path: of the file.
        flags: of `os.open`; as an `opener`, `open` gives them.

    Returns:
        The open file.

    Raises:
        FileExistsError: if it is a link, a pipe or the like, or has another name.
        OSError: if it cannot be opened.
    """
    apart = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if os.path.islink(path):
            raise FileExistsError(f"`{path}` is a link. {_APART}")
        handle = os.open(path, flags | apart, 0o666)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:  # a link that was just made; a pipe that nobody reads
            raise
        raise FileExistsError(f"`{path}` is a link or a pipe. {_APART}") from error
    about = os.fstat(handle)
    if stat.S_ISREG(about.st_mode) and about.st_nlink <= 1:
        return handle
    os.close(handle)
    kind = "is no file" if not stat.S_ISREG(about.st_mode) else f"is one file under {about.st_nlink} names"
    raise FileExistsError(f"`{path}` {kind}. {_APART}")


_APART = "What a run writes must be a plain file of its own: remove it, or put a copy in its place."


def shorten(path: Path, size: int) -> None:
    """Cut a file of a run to a size, as `open_own` opens it."""
    with open(path, "r+b", opener=open_own) as file:
        file.truncate(size)


def folder_in(directory: str | os.PathLike[str], *names: str) -> Path:
    """Return a folder within a run's, which must not be a link to a place outside.

    Args:
        directory: of the run; itself it may be a link, which the user has named.
        names: of the folders, each in the one before.

    Returns:
        Its path; it need not be there yet.

    Raises:
        FileExistsError: if one of them is a link.
    """
    place = Path(directory)
    for name in names:
        place /= name
        if place.is_symlink():
            raise FileExistsError(
                f"`{place}` is a link, and what is written for a run stays within it. Remove the link, or name another "
                f"directory."
            )
    return place


class Locked:
    """The right to write to a directory, held by one process at a time; a context manager.

    `run.lock` in the directory names the holder. It is removed at the end; one left by a killed process is taken over.
    """

    def __init__(self, directory: str | Path) -> None:
        """Take the lock; the directory is made if needed.

        Args:
            directory: the directory to write to.

        Raises:
            BlockingIOError: if another process, or another fit of this one, is writing there; it says who.
            FileExistsError: if the directory is a file, or its `run.lock` is a link.
            OSError: if it cannot be written to.
        """
        self.directory = full_path(directory)
        if self.directory.is_file():
            raise FileExistsError(f"`{self.directory}` is a file where a folder should be. Choose another directory.")
        self.directory.mkdir(parents=True, exist_ok=True)
        # kept open, so that a directory made later cannot get the same inode
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

        Raises:
            BlockingIOError: if another process has taken it over.
            FileNotFoundError: if the directory was removed.
            OSError: if this process was forked from the one that has the lock.
        """
        if self._handle is None:
            raise OSError(f"{self.directory} is written to by the process that this one was forked from, not by this.")
        if _is_at(self._handle, self.path):
            return
        if self._folder is not None and not _is_at(self._folder, self.directory):
            raise FileNotFoundError(
                f"{self.directory} was removed or replaced while it was written to. What it held is gone; start anew."
            )
        lost, self._handle = self._handle, self._taken()  # only the lock file was removed
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
            handle, ours = self._opened()
            try:
                if not self._free(handle, ours):
                    raise BlockingIOError(
                        f"{self.directory} is being written to by {_holder(self.path)}. Wait until that ends, or "
                        f"choose another directory."
                    )
                # else its holder has finished, and removed it after it was opened here
                if _is_at(handle, self.path) and (ours or not self._removed()):
                    _sign(handle)
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)

    def _opened(self) -> tuple[int, bool]:
        """Return the lock file, open, and whether it is writable, which another user's is not.

        Raises:
            PermissionError: if it can be neither made nor read.
        """
        try:
            return open_own(self.path, os.O_RDWR | os.O_CREAT), True
        except PermissionError:
            if not self.path.exists():
                raise
            return open_own(self.path, os.O_RDONLY), False

    def _removed(self) -> bool:
        """Return whether a lock file that names another holder could be removed; else it is locked as it is."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def _free(self, handle: int, ours: bool) -> bool:
        try:
            return take(handle)
        except OSError as error:
            if not ours:  # NFS does not lock files opened for reading only
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
        about = path.lstat() if path.name == NAME else path.stat()
        return os.path.samestat(os.fstat(handle), about)
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    about = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with suppress(OSError):  # a full disk: the lock holds without its holder's name
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, (json.dumps(about) + "\n").encode())


def _holder(path: Path) -> str:
    """Return in words who holds a lock."""
    try:
        about = json.loads(path.read_text("utf-8"))
        return f"process {about['process']} on {about['host']}, since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it was just created or removed
        return "another process"

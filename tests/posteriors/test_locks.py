"""Locks: one writer at a time, in whatever process; none that outlives its process; said in words that name it."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.damage import nobody
from tests.processes import forked
from torchbayes.posteriors import files, locks
from torchbayes.posteriors.files import PART, sweep, whole_file, write_whole
from torchbayes.posteriors.locks import NAME, FileWarning, Locked

PATIENCE = 240.0  # seconds


def hold(directory: Path, pipe: Connection) -> None:
    """Hold a directory, in a process of its own, until told to end."""
    with Locked(directory):
        pipe.send("held")
        pipe.recv()


def holder(directory: Path) -> tuple[ForkServerProcess, Connection]:
    """A process that holds a directory until something is sent to it."""
    own, theirs = forked().Pipe()
    process = forked().Process(target=hold, args=(directory, theirs))
    process.start()
    assert own.poll(PATIENCE)
    assert own.recv() == "held"
    return process, own


def test_another_process_is_refused_and_told_who_holds(tmp_path: Path) -> None:
    process, pipe = holder(tmp_path / "run")
    try:
        message = (
            rf"run is being written to by process {process.pid} on {socket.gethostname()}, since 20\d\d-.*Wait until"
        )
        with pytest.raises(BlockingIOError, match=message):
            Locked(tmp_path / "run")
    finally:
        pipe.send("end")
        process.join(PATIENCE)
    assert process.exitcode == 0
    assert list((tmp_path / "run").iterdir()) == []
    with Locked(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / NAME).read_text())["process"] == os.getpid()


def test_a_killed_holder_leaves_a_file_that_blocks_nobody(tmp_path: Path) -> None:
    process, _ = holder(tmp_path)
    process.kill()
    process.join(PATIENCE)
    assert json.loads((tmp_path / NAME).read_text())["process"] == process.pid
    with Locked(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["process"] == os.getpid()
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("left", ["", "{", "[1]", "{}", "null"])
def test_a_lock_file_may_hold_anything(left: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(left)
    with Locked(tmp_path):
        (tmp_path / NAME).write_text(left)
        with pytest.raises(BlockingIOError, match="being written to by another process"):
            Locked(tmp_path)


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    said: list[str] = []

    def other() -> None:
        try:
            Locked(tmp_path)
        except BlockingIOError as error:
            said.append(str(error))

    with Locked(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(BlockingIOError):
            Locked(tmp_path)
    assert len(said) == 1
    assert f"process {os.getpid()} " in said[0]


def test_other_directories_are_free(tmp_path: Path) -> None:
    with Locked(tmp_path), Locked(tmp_path / "a"), Locked(tmp_path / "b"):
        assert len(list(tmp_path.rglob(NAME))) == 3
    assert not list(tmp_path.rglob(NAME))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_holds_nor_frees_the_directory(tmp_path: Path) -> None:
    """A worker that outlives its killed parent must not block, and one that ends must not unlock."""
    lock = Locked(tmp_path)
    ready, told = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                lock.check()
            except OSError:
                code = 0
            lock.__exit__(None, None, None)
            os.write(told[1], b"x")
            os.read(ready[0], 1)  # lives on
        finally:
            os._exit(code)
    os.read(told[0], 1)
    lock.check()
    with pytest.raises(BlockingIOError):
        Locked(tmp_path)  # held on, though the child has given it back
    lock.__exit__(None, None, None)
    with Locked(tmp_path):  # free, though the child lives
        pass
    os.write(ready[1], b"x")
    assert os.waitpid(child, 0)[1] == 0


def take_turns(home: Path) -> None:
    """Hold a directory again and again, in a process of its own, and find no other inside."""
    got = 0
    while got < 20:
        try:
            with Locked(home / "run"):
                os.close(os.open(home / "inside", os.O_CREAT | os.O_EXCL))
                time.sleep(0.0005)
                (home / "inside").unlink()
                got += 1
        except BlockingIOError:
            time.sleep(0.0002)


def test_processes_that_come_at_once_never_hold_it_together(tmp_path: Path) -> None:
    """Many take turns; each finds no other inside."""
    processes = [forked().Process(target=take_turns, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [(process.join(PATIENCE), process.exitcode)[1] for process in processes] == [0, 0, 0]
    assert list((tmp_path / "run").iterdir()) == []


def test_a_directory_that_is_removed_is_missed_and_not_made_again(tmp_path: Path) -> None:
    with Locked(tmp_path / "run") as lock:
        (tmp_path / "run" / NAME).unlink()
        (tmp_path / "run").rmdir()
        with pytest.raises(FileNotFoundError, match=r"run was removed or replaced while it was written to\. .*anew"):
            lock.check()
        assert not (tmp_path / "run").exists()
        (tmp_path / "run").mkdir()  # perhaps at the very place of the old one
        with pytest.raises(FileNotFoundError, match="was removed or replaced"):
            lock.check()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_directory_that_is_replaced_is_left_alone(tmp_path: Path) -> None:
    with Locked(tmp_path / "run") as lock:
        (tmp_path / "run").rename(tmp_path / "old")
        with Locked(tmp_path / "run"), pytest.raises(FileNotFoundError, match="was removed or replaced"):
            lock.check()
        assert (tmp_path / "old" / NAME).exists()


def test_a_lock_file_that_is_removed_is_made_again(tmp_path: Path) -> None:
    with Locked(tmp_path) as lock:
        (tmp_path / NAME).unlink()
        lock.check()
        assert (tmp_path / NAME).exists()
        with pytest.raises(BlockingIOError):
            Locked(tmp_path)
        (tmp_path / NAME).unlink()
        with Locked(tmp_path), pytest.raises(BlockingIOError, match="being written to by"):
            lock.check()  # somebody else has come
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_to_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o555)
    with nobody(), pytest.raises(PermissionError, match=str(tmp_path)):
        Locked(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="file"):
        Locked(tmp_path / "file")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_said_and_used(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    message = rf"is on a file system without locks \({os.strerror(number)}\), so nothing keeps another process from"
    with pytest.warns(FileWarning, match=message), Locked(tmp_path) as lock:
        lock.check()
    left = tmp_path / f".x.abcdefgh{PART}"
    left.write_text("of whom?")
    write_whole(tmp_path / "x", b"content")
    assert left.exists()  # where it is unknown whether it is still written to
    assert (tmp_path / "x").read_bytes() == b"content"


def test_on_windows_a_byte_behind_the_name_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for Windows' own module: the calls are those of its documentation."""
    held: list[tuple[int, int]] = []

    class Windows:
        LK_NBLCK = 2

        @staticmethod
        def locking(handle: int, mode: int, count: int) -> None:
            assert mode == Windows.LK_NBLCK
            if held:
                raise PermissionError(errno.EACCES, "Permission denied")
            held.append((os.lseek(handle, 0, os.SEEK_CUR), count))

    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", Windows)
    with Locked(tmp_path):
        about = json.loads((tmp_path / NAME).read_text())
        assert about["process"] == os.getpid()
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()} "):
            Locked(tmp_path)
    assert held == [(1 << 30, 1)]


def left_by_another(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave a lock file that this process may read and not write to."""
    path = directory / NAME
    path.write_text('{"host": "far", "process": 1, "since": "then"}')
    theirs, open_ = path.stat(), os.open

    def opened(name: str | Path, flags: int, *more: int) -> int:
        if flags & os.O_RDWR and Path(name) == path and path.exists() and os.path.samestat(path.stat(), theirs):
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
        return open_(name, flags, *more)

    monkeypatch.setattr(os, "open", opened)
    return path


def test_a_lock_file_that_another_user_left_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left_by_another(tmp_path, monkeypatch)
    with Locked(tmp_path):
        assert json.loads(path.read_text())["process"] == os.getpid()
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()} "):
            Locked(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_of_another_user_who_is_there_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left_by_another(tmp_path, monkeypatch)
    with path.open("rb") as theirs:
        assert locks.take(theirs.fileno())
        with pytest.raises(BlockingIOError, match="process 1 on far, since then"):
            Locked(tmp_path)
    assert path.exists()


def test_a_lock_file_of_another_user_that_nobody_may_remove_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_by_another(tmp_path, monkeypatch)

    def kept(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", kept)
    with Locked(tmp_path) as lock:
        lock.check()
        with pytest.raises(BlockingIOError):
            Locked(tmp_path)
    with Locked(tmp_path):
        assert path.exists()


def test_a_lock_file_of_another_user_is_not_removed_where_nobody_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_by_another(tmp_path, monkeypatch)

    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.raises(PermissionError, match=r"run\.lock is another user's, .* Remove it if none does"):
        Locked(tmp_path)
    assert path.exists()


# --- temporary files


def write_half(path: Path, told: Connection) -> None:
    """Write a file, in a process of its own, and wait with the work half done."""
    with whole_file(path) as name:
        name.write_bytes(b"half")
        told.send("written")
        told.recv()


@pytest.mark.slow
def test_what_a_killed_write_left_goes_with_the_next_and_what_is_being_written_stays(tmp_path: Path) -> None:
    path, context = tmp_path / "q.safetensors", forked()
    pipes = [context.Pipe() for _ in range(2)]
    killed, alive = (context.Process(target=write_half, args=(path, theirs)) for _, theirs in pipes)
    for process, (own, _) in zip((killed, alive), pipes, strict=True):
        process.start()
        assert own.poll(PATIENCE)
        assert own.recv() == "written"
    killed.kill()
    killed.join(PATIENCE)
    assert len(list(tmp_path.glob(f".q.safetensors.*{PART}"))) == 2
    (tmp_path / f".other.abcdefgh{PART}").write_text("another file's")
    write_whole(path, b"mine")
    assert len(list(tmp_path.glob(f".q.safetensors.*{PART}"))) == 1
    pipes[1][0].send("go on")
    alive.join(PATIENCE)
    assert alive.exitcode == 0
    assert path.read_bytes() == b"half"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f".other.abcdefgh{PART}", "q.safetensors"]


def test_a_temporary_file_that_was_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def late(handle: int) -> bool:
        calls.append(handle)
        if len(calls) == 1:  # another process sweeps between the making of the file and its lock
            next(tmp_path.glob(".x.*")).unlink()
        return True

    monkeypatch.setattr("torchbayes.posteriors.files.take", late)
    with whole_file(tmp_path / "x") as name:
        name.write_bytes(b"content")
    assert len(calls) == 2
    assert (tmp_path / "x").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_temporary_file_that_a_sweep_holds_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep has the lock and has not removed the file yet; it does while the next one is written."""
    calls, swept = [], []

    def taken(handle: int) -> bool:
        calls.append(handle)
        if len(calls) == 1:
            swept.append(next(tmp_path.glob(".x.*")))
            other = os.open(swept[0], os.O_RDWR)
            assert locks.take(other)
        return locks.take(handle)

    monkeypatch.setattr(files, "take", taken)
    with whole_file(tmp_path / "x") as name:
        assert name != swept[0]
        swept[0].unlink(missing_ok=True)
        name.write_bytes(b"content")
    assert (tmp_path / "x").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


STRANGE = [".x.iso.part", ".x.abcdefgh.part", f".x.longer_than_eight{PART}", f".x{PART}", f"x.abcdefgh{PART}"]


def test_only_temporary_files_of_this_library_are_swept(tmp_path: Path) -> None:
    own = [f".{name}.abcdefgh{PART}" for name in ("x", "xy", "x.y", "y")]
    for name in [*STRANGE, *own]:
        (tmp_path / name).write_text("whose?")
    sweep(tmp_path, "x")
    assert {path.name for path in tmp_path.iterdir()} == {*STRANGE, *own[1:]}
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(STRANGE)


def test_on_windows_nothing_is_swept_as_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_WINDOWS", True)
    with whole_file(tmp_path / "x") as first:
        first.write_bytes(b"half")
        write_whole(tmp_path / "x", b"meanwhile")
        sweep(tmp_path)
        assert first.exists()
    assert (tmp_path / "x").read_bytes() == b"half"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]

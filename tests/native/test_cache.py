"""The folder of compiled libraries: nothing damaged or foreign is loaded, but compiled anew."""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchbayes.native import build, cache
from torchbayes.native.build import UnavailableError, available

pytestmark = pytest.mark.skipif(not available(), reason="kernels cannot be built here (compiler or MKL missing)")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def copied(text: str = "content") -> tuple[Path, list[str]]:
    """Return a library that holds some bytes, and what was made for it."""
    made: list[str] = []

    def make(path: Path) -> None:
        made.append(text)
        path.write_text(text)

    return cache.library("some-1234", make), made


# how a truncated library kills its process: pages beyond the end of the file do not exist
LOAD = """
import ctypes, sys
print(ctypes.CDLL(sys.argv[1]).value())
"""


def loaded(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOAD, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.9, 0.99])
def test_a_library_that_was_cut_is_compiled_anew(share: float, home: Path, tmp_path: Path) -> None:
    source = tmp_path / "some.cpp"
    source.write_text('extern "C" int value() { return 7; }\n')
    path = build._compiled(source)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    if share == 0.3:
        assert loaded(path).returncode == -signal.SIGBUS
    again = build._compiled(source)
    assert again.read_bytes() == whole
    assert loaded(again).stdout == "7\n"
    assert list(home.rglob("*.so")) == [again]


@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_library_with_one_wrong_bit_is_made_anew(place: int, home: Path) -> None:
    path, _ = copied()
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)
    again, made = copied()
    assert made == ["content"]
    assert again == path
    assert path.read_text() == "content"
    assert copied() == (path, [])


def test_the_folder_is_the_users_alone(home: Path) -> None:
    before = os.umask(0)
    try:
        path, _ = copied()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.parent.chmod(0o777)  # as an older version left it, or a hand
    copied()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def of_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file to another user, or take its user for another."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)


@pytest.mark.parametrize("whose", ["torchbayes/native", "torchbayes", "."])
def test_a_folder_of_another_user_is_refused(whose: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied()
    of_others(home / whose, monkeypatch)
    with pytest.raises(OSError, match=r"belongs to another user; set XDG_CACHE_HOME to a folder of your own"):
        copied("evil")
    with pytest.raises(UnavailableError, match=r"kernels cannot be kept: .* belongs to another user"):
        build._compiled(build.SOURCES / "noise.cpp")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_loaded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = copied()
    of_others(path, monkeypatch)
    again, made = copied()
    assert made == ["content"]
    assert again.stat().st_uid == os.geteuid()


def test_a_file_that_others_may_write_to_is_not_loaded(home: Path) -> None:
    path, _ = copied()
    path.chmod(0o622)
    assert copied() == (path, ["content"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_links_are_not_followed(home: Path, tmp_path: Path) -> None:
    path, _ = copied()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert copied() == (path, ["content"])
    assert not path.is_symlink()
    path.parent.rename(tmp_path / "native")
    path.parent.symlink_to(tmp_path / "native")
    with pytest.raises(OSError, match=r"native is a link, not a folder; remove it"):
        copied()


def test_a_folder_that_everyone_can_replace_is_refused(home: Path) -> None:
    copied()
    home.chmod(0o777)
    with pytest.raises(OSError, match=r"everyone can write to .*cache, and so replace .*native; set XDG_CACHE_HOME"):
        copied()
    home.chmod(0o1777)  # like /tmp, where no user can replace another's files
    assert copied()[1] == []


def test_a_folder_that_a_group_can_replace_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied()
    home.chmod(0o775)
    monkeypatch.setattr(cache, "_is_private", lambda _group: False)
    with pytest.raises(OSError, match=r"group \d+ can write to .*cache, and so replace .*native; set XDG_CACHE_HOME"):
        copied()
    monkeypatch.setattr(cache, "_is_private", lambda _group: True)
    assert copied()[1] == []


@pytest.mark.parametrize(
    ("group", "name", "others", "private"),
    [(77, "me", [], True), (77, "me", ["me"], True), (0, "root", ["eve"], True), (77, "me", ["eve"], False),
     (77, "lab", [], False), (78, "me", [], False), (79, None, [], False)],
)  # fmt: skip
def test_a_group_is_private_if_it_is_the_users_alone(
    group: int, name: str | None, others: list[str], private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def actual(_: int) -> SimpleNamespace:
        if name is None:
            raise KeyError(group)
        return SimpleNamespace(gr_name=name, gr_mem=others)

    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=77, pw_name="me"))
    monkeypatch.setattr(grp, "getgrgid", actual)
    assert cache._is_private(group) is private


def test_without_a_home_or_a_place_to_write_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    source = tmp_path / "some.cpp"
    source.write_text("int value;\n")
    with monkeypatch.context() as inside:
        inside.delenv("XDG_CACHE_HOME", raising=False)
        inside.setattr(Path, "home", homeless)
        with pytest.raises(UnavailableError, match="there is no home folder; set XDG_CACHE_HOME"):
            build._compiled(source)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="kernels cannot be kept: "):
        build._compiled(source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    with pytest.raises(UnavailableError, match=r"nothing could not be started: No such file"):
        build._compiled(source)


def test_a_library_is_on_the_disk_before_it_has_its_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    fsync = os.fsync

    def recorded(handle: int) -> None:
        synced.append((os.fstat(handle).st_size, list(home.rglob("*.so"))))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    copied()
    assert synced == [(len("content"), [])]


def test_a_compilation_that_fails_leaves_nothing_and_one_that_was_killed_goes(home: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.library("some-1234", fail)
    folder = home / "torchbayes" / "native"
    assert list(folder.iterdir()) == []
    for name, age in (("build-old", 4000.0), ("build-new", 10.0)):
        (folder / name).mkdir()
        (folder / name / "library").write_text("half")
        os.utime(folder / name, (time.time() - age, time.time() - age))
    path, _ = copied()
    assert sorted(actual.name for actual in folder.iterdir()) == sorted(["build-new", path.name])


def test_many_that_compile_at_once_all_get_a_sound_library(home: Path, tmp_path: Path) -> None:
    """The compiler is a separate process, so threads compete for the folder as processes do."""
    source, actual = tmp_path / "some.cpp", []
    source.write_text('extern "C" int value() { return 7; }\n')
    start = threading.Barrier(6)

    def compile_it() -> None:
        start.wait()
        path = build._compiled(source)
        actual.append((path, ctypes.CDLL(str(path)).value()))

    threads = [threading.Thread(target=compile_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(actual) == 6
    assert {value for _, value in actual} == {7}
    assert {path for path, _ in actual} == set((home / "torchbayes" / "native").iterdir())

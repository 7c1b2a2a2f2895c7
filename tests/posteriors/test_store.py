"""Draws on disk: they are restored exactly, torn ones do not count, damage is reported, memory does not bound them."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import time
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.disks import fill_draws
from tests.oracles import normal
from tests.processes import forked
from torchbayes.posteriors.files import PART, write_described
from torchbayes.posteriors.store import DrawFile

M, D, LAYOUT = 3, 5, {"w": (2, 2), "b": (1,)}
ROW = D * 8 + 8  # bytes of one draw of one chain in float64
DTYPES = [torch.float16, torch.float32, torch.float64, torch.bfloat16]
linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


def draw(number: int, dtype: torch.dtype = torch.float64, chains: int = M, size: int = D) -> Tensor:
    return normal(chains, size, seed=number).to(dtype)


def draws(numbers: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.stack([draw(number, dtype) for number in numbers], 1) if numbers else torch.empty(M, 0, D, dtype=dtype)


def filled(folder: Path, count: int, dtype: torch.dtype = torch.float64, run: str = "a1b2") -> DrawFile:
    file = DrawFile.create(folder, draw(0, dtype), LAYOUT, run=run)
    for number in range(count):
        file.append(draw(number, dtype))
    return file


def assert_holds(file: DrawFile, numbers: Any, dtype: torch.dtype = torch.float64) -> None:
    assert len(file) == len(list(numbers))
    torch.testing.assert_close(file.read(), draws(numbers, dtype), rtol=0, atol=0)


# --- what is written comes back ---


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_come_back_by_chain_and_index(dtype: torch.dtype, tmp_path: Path) -> None:
    assert_holds(filled(tmp_path / "run", 4, dtype), range(4), dtype)
    file = DrawFile.open(tmp_path / "run")
    assert (file.members, file.size, file.dtype) == (M, D, dtype)
    for m in range(M):
        for s in range(4):
            assert torch.equal(file.read()[m, s], draw(s, dtype)[m])


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_file_has_no_draws_of_the_right_shape(dtype: torch.dtype, tmp_path: Path) -> None:
    filled(tmp_path, 0, dtype)
    actual = DrawFile.open(tmp_path).read()
    assert actual.shape == (M, 0, D)
    assert actual.dtype == dtype


def test_the_bytes_are_those_of_the_description(tmp_path: Path) -> None:
    """Draw after draw, row after row, each row with its checksum, little-endian: any program can read and check it."""
    DrawFile.create(tmp_path, draw(0), LAYOUT, run="a1b2")
    filled(tmp_path, 3)
    about = json.loads((tmp_path / "draws.json").read_text())
    layout = {name: list(shape) for name, shape in LAYOUT.items()}
    crc = about.pop("crc")
    expected = {"format": 2, "run": "a1b2", "chains": M, "weights": D, "dtype": "float64", "layout": layout}
    assert about == expected
    assert crc == f"{zlib.crc32(json.dumps(expected).encode()):08x}"
    raw = np.frombuffer((tmp_path / "draws.bin").read_bytes(), [("weights", "<f8", D), ("sum", "<u8")])
    np.testing.assert_array_equal(raw["weights"].reshape(3, M, D).swapaxes(0, 1), draws(range(3)).numpy())
    assert raw["sum"].tolist() == [r + zlib.crc32(b"a1b2" + row.tobytes()) for r, row in enumerate(raw["weights"])]


def test_any_view_of_weights_can_be_appended(tmp_path: Path) -> None:
    file = filled(tmp_path, 0)
    wide = normal(D, 2 * M)
    for weights_MD in (wide.T[::2], wide.T[::2].clone().requires_grad_(), wide.T[::2].contiguous()):
        file.append(weights_MD)
    torch.testing.assert_close(file.read(), wide.T[::2].unsqueeze(1).expand(-1, 3, -1), rtol=0, atol=0)


def test_a_file_is_taken_up_where_it_ended(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    file = filled(tmp_path, 0)
    file.append(draw(2))
    assert_holds(DrawFile.open(tmp_path), range(3))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_later_draws_can_be_forgotten(count: int, tmp_path: Path) -> None:
    file = filled(tmp_path, 4)
    file.truncate(count)
    assert_holds(file, range(count))
    file.append(draw(9))
    assert_holds(DrawFile.open(tmp_path), [*range(count), 9])


def test_a_copy_that_was_killed_is_cleared_away(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    (tmp_path / f".draws.bin.abcdefgh{PART}").write_bytes(b"half")
    filled(tmp_path, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draws.bin", "draws.json"]


def test_draws_that_are_not_there_cannot_be_kept(tmp_path: Path) -> None:
    file = filled(tmp_path, 2)
    with pytest.raises(ValueError, match=r"draws\.bin holds 2 draws, but the checkpoint is 3 draws into the run.*anew"):
        file.truncate(3)
    assert_holds(file, range(2))


# --- torn draws and full disks ---


@pytest.mark.parametrize("torn", [1, 8, ROW, 2 * ROW + 3, M * ROW - 8, M * ROW - 1])
def test_a_torn_last_draw_does_not_count_and_is_overwritten(torn: int, tmp_path: Path) -> None:
    file = filled(tmp_path, 2)
    with file.path.open("ab") as end:
        end.write(b"\xff" * torn)
    assert_holds(DrawFile.open(tmp_path), range(2))
    file.append(draw(2))
    assert_holds(file, range(3))
    assert file.path.stat().st_size == 3 * file.draw_bytes


@contextmanager
def _room_for(size: int) -> Any:
    """Let no file of this process grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 7, ROW, M * ROW - 8, M * ROW - 1])
def test_a_disk_that_fills_up_leaves_earlier_draws_whole(room: int, tmp_path: Path) -> None:
    """The kernel itself cuts the write short."""
    file = filled(tmp_path, 3)
    with _room_for(3 * file.draw_bytes + room), pytest.raises(OSError, match="draw 4 could not be written") as caught:
        file.append(draw(3))
    assert caught.value.errno == errno.EFBIG
    assert file.path.stat().st_size == 3 * file.draw_bytes
    file.append(draw(3))  # room was made
    assert_holds(DrawFile.open(tmp_path), range(4))


def test_a_full_disk_is_said_with_the_number_of_the_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = filled(tmp_path, 3)
    with monkeypatch.context() as inside:
        fill_draws(inside)
        message = (
            r"draw 4 could not be written to .*draws\.bin \(No space left on device\); "
            r"the 3 draws before it are whole\. Make room, then resume the run"
        )
        with pytest.raises(OSError, match=message) as caught:
            file.append(draw(3))
    assert caught.value.errno == errno.ENOSPC
    assert file.path.stat().st_size == 3 * file.draw_bytes
    assert_holds(file, range(3))


def test_no_room_for_the_copy_leaves_all_draws(tmp_path: Path) -> None:
    file = filled(tmp_path, 4)
    with _room_for(file.draw_bytes), pytest.raises(OSError, match="File too large"):
        file.truncate(2)
    assert_holds(file, range(4))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draws.bin", "draws.json"]


@linux
def test_draws_can_be_made_to_outlive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = filled(tmp_path, 3), []
    fsync = os.fsync

    def recorded(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink(), os.fstat(handle).st_size))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    file.sync()
    assert synced == [(file.path.resolve(), 3 * file.draw_bytes)]


# --- what is refused ---


@pytest.mark.parametrize(
    ("like", "layout", "run"),
    [
        (draw(0, chains=M + 1), LAYOUT, "a1b2"),
        (draw(0, size=D + 1), LAYOUT, "a1b2"),
        (draw(0, torch.float32), LAYOUT, "a1b2"),
        (draw(0), {"w": (4,), "b": (1,)}, "a1b2"),
        (draw(0), {"w": (2, 2), "c": (1,)}, "a1b2"),
        (draw(0), LAYOUT, "c3d4"),
    ],
)
def test_draws_of_another_kind_are_refused_and_kept(like: Tensor, layout: Any, run: str, tmp_path: Path) -> None:
    filled(tmp_path, 2)
    with pytest.raises(ValueError, match=r"holds draws of another shape, dtype, layout or run\. Choose another dir"):
        DrawFile.create(tmp_path, like, layout, run=run)
    assert_holds(DrawFile.open(tmp_path), range(2))


@pytest.mark.parametrize("missing", ["draws.json", "draws.bin"])
def test_there_are_no_draws_where_a_file_is_missing(missing: str, tmp_path: Path) -> None:
    filled(tmp_path, 2)
    (tmp_path / missing).unlink()
    with pytest.raises(FileNotFoundError, match="there are no draws in"):
        DrawFile.open(tmp_path)


def changed(**entries: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **entries})


DAMAGE: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "list": lambda text: "[1, 2]",
    "entry": lambda text: text.replace("chains", "chain"),
    "dtype": changed(dtype="float99"),
    "format": changed(format="one"),
    "null": changed(chains=None),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_description_is_said(damage: Callable[[str], str], tmp_path: Path) -> None:
    filled(tmp_path, 2)
    header = tmp_path / "draws.json"
    header.write_text(damage(header.read_text()))
    with pytest.raises(ValueError, match=r"draws\.json is damaged \(.*\)\. Restore it or sample again\."):
        DrawFile.open(tmp_path)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_description_is_said_to_who_resumes(damage: Callable[[str], str], tmp_path: Path) -> None:
    filled(tmp_path, 2)
    header = tmp_path / "draws.json"
    header.write_text(damage(header.read_text()))
    with pytest.raises(ValueError, match=r"draws\.json is damaged"):
        filled(tmp_path, 0)
    assert (tmp_path / "draws.bin").stat().st_size == 2 * M * ROW


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    header = tmp_path / "draws.json"
    header.write_text(changed(format=3)(header.read_text()))
    with pytest.raises(ValueError, match=r"draws\.json has format 3; this version reads up to 2\. Upgrade torchbayes"):
        DrawFile.open(tmp_path)


def test_draws_of_before_checksums_are_refused(tmp_path: Path) -> None:
    layout = {name: list(shape) for name, shape in LAYOUT.items()}
    about = {"format": 1, "chains": M, "weights": D, "dtype": "float64", "layout": layout}
    (tmp_path / "draws.json").write_text(json.dumps(about, indent=2))
    (tmp_path / "draws.bin").write_bytes(bytes(M * D * 8))
    message = r"draws\.json has format 1, without checksums; this version reads format 2\. Fit again, or read it with"
    with pytest.raises(ValueError, match=message):
        DrawFile.open(tmp_path)
    with pytest.raises(ValueError, match=message):
        filled(tmp_path, 0)


def test_draws_without_a_description_are_not_thrown_away(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    (tmp_path / "draws.json").unlink()
    with pytest.raises(ValueError, match=r"draws\.bin has no draws\.json beside it\. Restore that, or choose"):
        filled(tmp_path, 0)
    assert (tmp_path / "draws.bin").stat().st_size == 2 * M * ROW


def test_a_dtype_that_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="draws must be one of float64, float32, bfloat16, float16; got complex128"):
        DrawFile.create(tmp_path / "run", draw(0, torch.complex128), LAYOUT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [draw(0, torch.float32), draw(0, chains=1), draw(0, size=D + 1)])
def test_a_draw_of_another_kind_is_refused(wrong: Tensor, tmp_path: Path) -> None:
    file = filled(tmp_path, 2)
    with pytest.raises(ValueError, match=r"must have shape \(3, 5\) and torch.float64; got \("):
        file.append(wrong)
    assert file.path.stat().st_size == 2 * M * ROW


# --- readers ---


def test_who_finds_the_description_finds_the_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def write(path: Path, about: dict[str, object]) -> None:
        seen.append((tmp_path / "draws.bin").is_file())
        write_described(path, about)

    monkeypatch.setattr("torchbayes.posteriors.store.write_described", write)
    DrawFile.create(tmp_path, draw(0), LAYOUT)
    assert seen == [True]
    assert len(DrawFile.open(tmp_path)) == 0


def write_on(folder: Path) -> None:
    """Write draws, in a process of its own, with pauses, so that a reader comes to see many lengths of the file."""
    file = DrawFile.create(folder, torch.zeros(4, 3000), {"w": (3000,)})
    for number in range(200):
        file.append(torch.full((4, 3000), float(number)))
        time.sleep(0.002)


@pytest.mark.slow
def test_a_reader_sees_whole_draws_while_another_process_writes(tmp_path: Path) -> None:
    process = forked().Process(target=write_on, args=(tmp_path,))
    process.start()
    try:
        until, seen, previous = time.monotonic() + 240, 0, None
        while process.is_alive() and time.monotonic() < until:
            if not (tmp_path / "draws.json").exists():
                continue
            actual = DrawFile.open(tmp_path).read()
            assert actual.shape[1] >= (0 if previous is None else previous.shape[1])
            expected = torch.arange(actual.shape[1], dtype=torch.float32)[None, :, None].expand_as(actual)
            assert torch.equal(actual, expected)
            seen += 0 < actual.shape[1] < 200
            if previous is None and actual.shape[1]:
                previous = actual  # which later appends do not change
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
    assert seen > 3
    assert previous is not None
    assert (previous[:, -1] == previous.shape[1] - 1).all()
    assert len(DrawFile.open(tmp_path)) == 200


@pytest.mark.parametrize("kept", [0, 1, 39])
def test_a_reader_keeps_the_draws_that_are_forgotten(kept: int, tmp_path: Path) -> None:
    """Reading a mapping beyond the end of a shortened file kills the process (SIGBUS), so the file is replaced."""
    file = DrawFile.create(tmp_path, torch.zeros(2, 1000), {"w": (1000,)})
    for number in range(40):
        file.append(torch.full((2, 1000), float(number)))
    actual, place = file.read(), file.path.stat().st_ino
    file.truncate(kept)
    assert file.path.stat().st_ino != place
    for number in range(kept, 45):
        file.append(torch.full((2, 1000), -1.0 - number))
    assert torch.equal(actual, torch.arange(40.0)[None, :, None].expand(2, -1, 1000))
    expected_S = torch.tensor([float(n) if n < kept else -1.0 - n for n in range(45)])
    assert torch.equal(file.read(), expected_S[None, :, None].expand(2, -1, 1000))


def cut_while_read(folder: Path, how: str) -> None:
    """Shorten a file, in a process of its own, and read on in what was mapped before."""
    file = DrawFile.create(folder, torch.zeros(2, 1000), {"w": (1000,)})
    for number in range(40):
        file.append(torch.full((2, 1000), float(number)))
    actual = file.read()
    if how == "ours":
        file.truncate(2)
    else:
        os.truncate(file.path, 2 * file.draw_bytes)
    assert float(actual.sum()) == 2000 * 780


@linux
@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [("ours", 0), ("plain", -signal.SIGBUS)])
def test_a_plain_cut_would_kill_a_reader(how: str, status: int, tmp_path: Path) -> None:
    process = forked().Process(target=cut_while_read, args=(tmp_path, how))
    process.start()
    process.join(240)
    assert process.exitcode == status


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def sparse(folder: Path, size: int) -> DrawFile:
    """Draws of 2 chains of 4096 weights, zero but for the last, in a file of a size that takes no room on the disk."""
    file = DrawFile.create(folder, torch.zeros(2, 4096), {"w": (4096,)})
    count = size // file.draw_bytes
    try:
        os.truncate(file.path, (count - 1) * file.draw_bytes)
    except OSError as error:
        pytest.skip(f"no sparse file of {size} bytes here: {error}")
    file.append(torch.arange(8192.0).view(2, 4096))
    return file


@linux
def test_only_what_is_used_is_read(tmp_path: Path) -> None:
    file = sparse(tmp_path, 1 << 30)
    before = resident()
    weights_MSD = file.read()
    some = weights_MSD[:, [0, 17, 5000, -1]].clone()
    assert resident() - before < 16 << 20
    assert weights_MSD.nbytes > 0.99 * (1 << 30)
    assert torch.equal(some[:, -1], torch.arange(8192.0).view(2, 4096))
    assert some[:, :-1].abs().max() == 0


def test_what_is_read_is_the_readers_own(tmp_path: Path) -> None:
    file = filled(tmp_path, 2)
    file.read().zero_()
    assert_holds(file, range(2))


@linux
def test_a_file_larger_than_memory_is_read(tmp_path: Path) -> None:
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "1":
        pytest.skip("any mapping is granted here")
    sizes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    memory = sum(int(sizes[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    weights_MSD = sparse(tmp_path, 2 * memory).read()
    assert weights_MSD.nbytes > memory
    assert torch.equal(weights_MSD[:, -1], torch.arange(8192.0).view(2, 4096))

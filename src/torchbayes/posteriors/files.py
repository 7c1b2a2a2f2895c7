"""Files in safetensors and JSON, without pickle, with checksums and a format version, each written whole or not at all.

Every tensor carries the CRC-32 of its dtype, shape and bytes, every description that of its JSON (`crc`). A file
changed by a disk error, a bad copy or an edit is therefore refused and never misread.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchbayes.checks import as_file
from torchbayes.checksum import checksum, crc
from torchbayes.native.process import full_path
from torchbayes.posteriors.locks import open_own, take

FORMAT = 2
"""The format of all files with a description; format 1 had no checksums."""
CONFIG, CHECKPOINT, POSTERIOR = "config.json", "checkpoint.safetensors", "posterior.safetensors"
"""Files of a run: the first two determine which others its directory must hold."""
PART = ".torchbayes-part"
"""Ending of the names of temporary files, used by no other program."""
RESTORE = "Restore it or fit again."
_KEY = "torchbayes"
_MAPPED = 1 << 28  # bytes above which a tensor is mapped from its file instead of read into memory
_ALIGNMENT = 64  # bytes: alignment of torch's own tensors on a CPU
_CHANCE = "[a-z0-9_]{8}"  # the random part of a temporary file's name
_WINDOWS = os.name == "nt"  # Windows neither renames nor removes open files
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# --- whole files


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name in the same folder; what is written there becomes the file when the `with` ends.

    The content is flushed to disk and renamed, so a reader sees the old file or the new one. An error inside, such
    as a full disk (OSError), leaves the old file intact. The folder is made if needed. The temporary file of a
    killed process stays until the same file is written again; on Windows until it is removed by hand.
    """
    path = full_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    handle, name = _temporary(path)
    try:
        yield name
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        if handle is not None:  # safetensors replaces it by a private file
            os.chmod(name, stat.S_IMODE(os.fstat(handle).st_mode))
        os.replace(name, path)
    except (OSError, SafetensorError) as error:
        name.unlink(missing_ok=True)
        inner = re.search(r"os error (\d+)", str(error))  # how safetensors states the error number
        number = getattr(error, "errno", None) or (int(inner[1]) if inner else None)
        reason = os.strerror(number) if number else error
        text = f"{path} could not be written ({reason}); what was there before is whole.{advice(number)}"
        raise (OSError(number, text) if number else OSError(text)) from error
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    finally:
        if handle is not None:
            os.close(handle)


def _temporary(path: Path) -> tuple[int | None, Path]:
    """Return a new file beside `path`, of ordinary mode: its handle, locked while it is written, and its name."""
    while True:
        name = path.parent / f".{path.name}.{secrets.token_hex(4)}{PART}"
        try:
            handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        except FileExistsError:
            continue
        if _WINDOWS:
            os.close(handle)
            return None, name
        try:
            locked = take(handle)
        except OSError:  # the file system has no locks, so nothing is swept
            locked = True
        if locked and os.path.exists(name):
            return handle, name
        os.close(handle)  # another process took it for a leftover and removed it before it was locked
        name.unlink(missing_ok=True)


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove temporary files left by killed processes, of the file `name` or of all; those still being written stay.

    On Windows all stay, because temporary files are not kept open there and so not locked.
    """
    if _WINDOWS:
        return
    stem = ".+" if name is None else re.escape(name)
    for leftover in folder.glob(f".*{PART}"):
        if not re.fullmatch(rf"\.{stem}\.{_CHANCE}{re.escape(PART)}", leftover.name):
            continue
        with suppress(OSError), open(leftover, "r+b", opener=open_own) as file:
            if take(file.fileno()):
                leftover.unlink(missing_ok=True)


def advice(number: int | None, then: str = "go on") -> str:
    """Return the end of a message: what to do about a full disk; empty for other system errors."""
    return f" Make room, then {then}." if number in _FULL else ""


def write_whole(path: str | Path, content: bytes) -> Path:
    """Write bytes to a file, completely or not at all; return its full path."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
    return full_path(path)


# --- descriptions


def sealed(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON-serialisable entries with their checksum under `crc`."""
    plain = json.loads(json.dumps(entries))
    return {**plain, "crc": crc(json.dumps(plain).encode())}


def unsealed(text: str | bytes) -> dict[str, Any]:
    """Return the entries that were `sealed`, without the checksum; a ValueError, a clause, if they have changed."""
    try:
        entries = json.loads(text)
        if not isinstance(entries, dict):
            raise ValueError("it is no JSON object")
        expected = entries.pop("crc", None)
        if expected is None:
            raise ValueError("it has no checksum")
        if expected != crc(json.dumps(entries).encode()):
            raise ValueError("its checksum is that of other contents")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return entries


def described(text: str | bytes, path: str | Path, *, restore: str = RESTORE) -> dict[str, Any]:
    """Return the entries of a description that was `sealed`; `path` and `restore` are for messages.

    A ValueError says that it is damaged or of another format.
    """
    number = _format_of(text)
    if number > FORMAT:
        raise ValueError(
            f"{path} has format {number}; this version reads up to {FORMAT}. Upgrade torchbayes to read it."
        )
    if number < FORMAT:
        raise ValueError(
            f"{path} has format {number}, without checksums; this version reads format {FORMAT}. Fit again, or read it "
            f"with the version that wrote it."
        )
    try:
        return unsealed(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}). {restore}") from error


def _format_of(text: str | bytes) -> int:
    """Return the format of a description, or the current one if unreadable; format 1 was not always stated."""
    try:
        number = json.loads(text).get("format", 1)
    except (ValueError, RecursionError, AttributeError):
        return FORMAT
    return number if isinstance(number, int) else FORMAT


def write_described(path: str | Path, entries: Mapping[str, Any]) -> Path:
    """Write JSON entries, with `format` and `crc` added, to a file, completely or not at all; return its path."""
    return write_whole(path, (json.dumps(sealed({"format": FORMAT, **entries}), indent=2) + "\n").encode())


def read_described(path: str | Path, *, restore: str = RESTORE) -> dict[str, Any]:
    """Read what `write_described` wrote; a ValueError if it is damaged or of another format."""
    return described(as_file(path).read_bytes(), path, restore=restore)


def run_of(folder: str | Path) -> str | None:
    """Return the name of the run in a directory; None if it has none or its description is damaged."""
    try:
        return read_described(full_path(folder) / CONFIG).get("run")
    except (OSError, ValueError):
        return None


def read_json(path: str | Path) -> Any:
    """Read a JSON file of cached results; a ValueError if it is damaged."""
    try:
        return json.loads(as_file(full_path(path)).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). Remove it: what it held is computed anew.") from error


# --- tensors


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, once: bool = False
) -> Path:
    """Write tensors and a JSON header to one file, completely or not at all; return its path.

    `format` and checksums are added to the header. With `once`, a tensor of several names is written once, and is read
    as one tensor: for tensors that are never changed in place.
    """
    pairs = [
        name for name, tensor in tensors.items() if tensor.dtype == torch.complex128
    ]  # safetensors has no complex128
    same = _same(tensors) if once else {}
    real = {**tensors, **{name: torch.view_as_real(tensors[name].resolve_conj()) for name in pairs}}
    real = {name: tensor for name, tensor in real.items() if name not in same}
    separate = _apart({name: tensor.detach().cpu().contiguous() for name, tensor in real.items()})
    sums = {name: checksum(tensor) for name, tensor in separate.items()}
    text = json.dumps(sealed({"format": FORMAT, **header, "tensors": sums, "pairs": pairs, "same": same}))
    with whole_file(path) as temporary:
        save_file(separate, temporary, metadata={_KEY: text})
    return full_path(path)


def read_tensors(path: str | Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote, (tensors, header); a ValueError if it is damaged, foreign or of another format.

    Tensors up to 256 MiB are aligned like torch's own; larger ones stay mapped into memory.
    """
    with _opened(path) as file:
        header = _header(file, path)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    sums, pairs, same = header.pop("tensors", {}), header.pop("pairs", ()), header.pop("same", {})
    wrong = sorted(n for n in sums.keys() | tensors if n not in tensors or checksum(tensors[n]) != sums.get(n))
    if wrong:
        names = ", ".join(f"`{name}`" for name in wrong[:3])
        raise ValueError(f"{path} is damaged: {names} is not what was written. {RESTORE}")
    tensors |= {name: torch.view_as_complex(tensors[name].clone()) for name in pairs}
    placed = {name: tensor.to(device) for name, tensor in tensors.items()}
    read = {name: t if t.nbytes > _MAPPED else aligned(t) for name, t in placed.items()}
    return read | {name: read[first] for name, first in same.items()}, header


def aligned(tensor: Tensor) -> Tensor:
    """Return a tensor aligned like torch's own, copied if need be: the rounding of sums depends on alignment."""
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def read_header(path: str | Path) -> dict[str, Any]:
    """Read only the header of a file of tensors; a ValueError if it is damaged, foreign or of another format."""
    with _opened(path) as file:
        return _header(file, path)


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """Yield an open safetensors file; its errors become a ValueError that the file is damaged."""
    try:
        with safe_open(as_file(path), framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}). {RESTORE}") from error


def _header(file: Any, path: str | Path) -> dict[str, Any]:
    metadata = file.metadata() or {}
    if _KEY not in metadata:
        raise ValueError(f"{path} is a safetensors file without a torchbayes header; it cannot be read as one.")
    return described(metadata[_KEY], path)


def _same(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the first name of each tensor that has one already; numbers of one memory in one form are one tensor.

    A tensor without an address, as on a device that is emulated, is the same as itself alone.
    """
    first: dict[Any, str] = {}
    names = {
        name: first.setdefault((t.data_ptr() or id(t), t.shape, t.stride(), t.dtype, t.device), name)
        for name, t in tensors.items()
        if not t.is_complex()
    }
    return {name: other for name, other in names.items() if name != other}


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of which no two share memory, as safetensors requires."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return separate

"""Files: safetensors with a JSON header, a format version, and no pickle. Written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = 1
_KEY = "torchbayes"


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Write a file whole or not at all.

    What is written to the temporary name that this yields is flushed to disk and renamed when the `with` ends, so a
    reader sees the old file or the new one; an error inside leaves nothing behind.

    Args:
        path: where the file goes; its folder is made if needed.

    Yields:
        A temporary name in the same folder.

    Raises:
        OSError: if the disk is full or not to be written; what was there before is whole.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes files private; a result is an ordinary file
        os.replace(name, path)
    except (OSError, SafetensorError) as error:
        Path(name).unlink(missing_ok=True)
        number, said = getattr(error, "errno", None), getattr(error, "strerror", None) or error
        text = f"{path} could not be written ({said}); what was there before is whole. Make room, then go on"
        raise (OSError(number, text) if number else OSError(text)) from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_whole(path: str | Path, content: bytes) -> Path:
    """Write bytes to a file, whole or not at all.

    Args:
        path: where the file goes; its folder is made if needed.
        content: the bytes of the file.

    Returns:
        The path.
    """
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
    """Write tensors and a JSON header to one file, whole or not at all.

    Args:
        path: where to write; folders are made.
        tensors: name -> tensor.
        header: JSON-serialisable description; `format` is added.

    Returns:
        The path.
    """
    text = json.dumps({"format": FORMAT, **header})
    with whole_file(path) as temporary:
        save_file({n: t.detach().contiguous().cpu() for n, t in tensors.items()}, temporary, metadata={_KEY: text})
    return Path(path)


def read_tensors(path: str | Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote.

    Args:
        path: file to read.
        device: where the tensors go.

    Returns:
        (tensors, header).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, not one of torchbayes, or of a newer format.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}). Restore it or fit again.") from error
    if _KEY not in metadata:
        raise ValueError(f"{path} is a safetensors file without a torchbayes header; it cannot be read as one.")
    try:
        header = json.loads(metadata[_KEY])
        newer = header["format"] > FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: its header cannot be read ({error}). Restore it or fit again.") from error
    if newer:
        raise ValueError(
            f"{path} has format {header['format']}; this version reads up to {FORMAT}. Upgrade torchbayes to read it."
        )
    return tensors, header

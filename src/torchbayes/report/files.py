"""Files that are either whole or absent."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: str | Path, content: bytes) -> Path:
    """Write `content` to a temporary name in the same folder, then rename, so that no reader sees half a file.

    Args:
        path: where the file goes; its folder is made if needed.
        content: the bytes of the file.

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path

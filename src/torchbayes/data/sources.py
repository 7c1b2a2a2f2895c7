"""Where files come from: a local folder first, otherwise the official address, checked by its published checksum."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torchbayes.checks import check_kind
from torchbayes.native.process import full_path

ENVIRONMENT = "TORCHBAYES_DATA"


@dataclass(frozen=True)
class Remote:
    """One official file."""

    folder: str  # under the data root
    file: str
    urls: tuple[str, ...]  # tried in order
    checksum: str  # published, as `algorithm:hex`


def data_root(root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the local data folder: the argument, else the environment variable TORCHBAYES_DATA, else None.

    Raises FileNotFoundError for a folder that does not exist.
    """
    named = root if root is not None else os.environ.get(ENVIRONMENT) or None
    if named is None:
        return None
    check_kind((str, os.PathLike), "a path", root=named)
    folder = full_path(named)
    if not folder.is_dir():
        origin = "`root`" if root is not None else f"the environment variable {ENVIRONMENT}"
        raise FileNotFoundError(f"{origin} must name an existing folder; got {folder}. Correct it or leave it out.")
    return folder


def local_file(folder: str, file: str, root: Path | None) -> Path | None:
    """Return root/folder/file if it exists, else None."""
    path = None if root is None else root / folder / file
    return path if path is not None and path.is_file() else None


def require_local(name: str, folder: str, file: str, *, root: Path | None, hint: str) -> Path:
    """Return root/folder/file, which cannot be downloaded.

    `hint` is a sentence on what the file must hold, or what to use instead. Raises FileNotFoundError if it is absent.
    """
    path = local_file(folder, file, root)
    if path is None:
        raise FileNotFoundError(
            f"`{name}` was not found: {_looked_in(folder, file, root)}. It is not downloaded, because no trustworthy "
            f"checksum of it is published. {hint} Name the folder that holds {folder}/{file} with `root` or "
            f"{ENVIRONMENT}."
        )
    return path


def obtain(name: str, remote: Remote, root: Path | None) -> Path:
    """Return a file from the local folder, else from the download cache, else download it there.

    A download is written to a temporary name, checked, and only then renamed; a failed one leaves nothing behind.
    Raises FileNotFoundError if neither folder nor network has it, ValueError if the checksum differs.
    """
    path = local_file(remote.folder, remote.file, root)
    if path is not None:
        return path
    import pooch

    cache = Path(pooch.os_cache("torchbayes")) / remote.folder
    failures: list[str] = []
    mismatch = False
    for url in remote.urls:
        try:
            fetched = pooch.retrieve(url, known_hash=remote.checksum, fname=remote.file, path=cache)
            return Path(str(fetched))
        except OSError as error:  # no network, or an answer such as 404
            failures.append(f"{url}: {type(error).__name__}")
        except ValueError as error:  # pooch: the checksum differs; it has removed its temporary file
            mismatch = True
            failures.append(f"{url}: {error}")
    tried = "; ".join(failures)
    advice = f"Put the official file at {remote.folder}/{remote.file} under the folder named by `root` or {ENVIRONMENT}"
    if mismatch:
        raise ValueError(
            f"The download of `{name}` does not have the published checksum {remote.checksum} and was thrown away "
            f"({tried}). Try again later. {advice}, if you have it."
        )
    raise FileNotFoundError(
        f"`{name}` was not found: {_looked_in(remote.folder, remote.file, root)}, and the download to {cache} failed "
        f"({tried}). {advice}, or try again with a network connection."
    )


def _looked_in(folder: str, file: str, root: Path | None) -> str:
    """Return where a file was looked for, in words."""
    if root is None:
        return f"no local folder is named (`root` is None, {ENVIRONMENT} is not set)"
    return f"no file {root / folder / file}"

"""Run a function in several processes that form a process group, as torchrun would."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.processes import LOADED

PATIENCE = 240.0  # seconds; a group that hangs is a failure, not a slow machine


@dataclass(frozen=True)
class Ended:
    """How one process ended: its exit code, negative for a signal, and the error it raised."""

    code: int | None
    error: str


def launch(work: Callable[..., None], count: int, folder: Path, *arguments: Any) -> list[Ended]:
    """Call `work(*arguments)` in `count` processes and wait for them; processes that hang are killed and have no code.

    Args:
        work: a function of a module.
        count: number of processes.
        folder: for the errors.
        arguments: of the function.

    Returns:
        How each process ended.
    """
    # As with torchrun, the store belongs to none of the processes. A port that is merely free may be taken meanwhile.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    context = get_context("forkserver")  # whose server has imported what takes seconds, once for all
    context.set_forkserver_preload(LOADED)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"error_{rank}.txt" for rank in range(count)]
    workers = [
        context.Process(target=_enter, args=(work, rank, count, store.port, paths[rank], arguments))
        for rank in range(count)
    ]
    for worker in workers:
        worker.start()
    ended = []
    for worker, path in zip(workers, paths, strict=True):
        worker.join(PATIENCE)
        ended.append(Ended(worker.exitcode, path.read_text() if path.exists() else ""))
        worker.kill()
    return ended


def check(ended: list[Ended]) -> None:
    """Fail with the first error if a process did not end well."""
    errors = [one.error or f"exit code {one.code}" for one in ended if one.code != 0]
    assert not errors, errors[0]


def _enter(
    work: Callable[..., None], rank: int, count: int, port: int, error: Path, arguments: tuple[Any, ...]
) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, TORCHELASTIC_USE_AGENT_STORE="True")
    torch.set_num_threads(1)
    try:
        work(*arguments)
    except BaseException as raised:
        error.write_text(f"{type(raised).__name__}: {raised}")
        raise

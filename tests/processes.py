"""Processes that begin with torch and the library loaded, which takes seconds: a server loads them once for all."""

from __future__ import annotations

import os
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

# What takes every process seconds to import; `torch._dynamo` comes with the first gradient of a row.
LOADED = ["pytest", "torch.distributed", "torchbayes", "torchbayes.cli", "torch._dynamo"]


class _Process(ForkServerProcess):
    """Has the environment of now, not that of the time at which the server began."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _Context(ForkServerContext):
    Process = _Process  # type: ignore[assignment]


def forked() -> ForkServerContext:
    """The context whose processes a server forks; they share no memory with this one, nor what is patched in it."""
    context = _Context()
    context.set_forkserver_preload(LOADED)
    return context

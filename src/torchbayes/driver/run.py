"""The run directory of a fit: configuration, log, checkpoint, posterior, and its shelf of draws.

    config.json            the run's name, method, settings, seed, layout: written at the start
    log.jsonl              one JSON object per epoch
    checkpoint.safetensors the last complete state, replaced atomically
    posterior.safetensors  the result
    draws.bin              draws of a sampler
    run.lock               which process is writing; absent if none is
    start                  the run that found the modes, if the method starts at modes and searched for them itself

Each file holds checksums and the run's random name, so damage and files of another run are noticed.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.ranks import Ranks, check_equal
from torchbayes.driver import log
from torchbayes.driver.checkpoint import (
    about_of,
    all_finite,
    check_same_run,
    flatten,
    load_checkpoint,
    mapped,
    save_checkpoint,
)
from torchbayes.driver.log import History
from torchbayes.methods.protocol import Method
from torchbayes.model.description import CONSTANTS, describe_model, fingerprint
from torchbayes.model.model import Model
from torchbayes.model.subspace import Subspace
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import (
    CHECKPOINT,
    CONFIG,
    POSTERIOR,
    read_described,
    sweep,
    write_described,
    write_tensors,
)
from torchbayes.posteriors.load import read_draws
from torchbayes.posteriors.locks import Locked
from torchbayes.posteriors.posterior import Posterior, packed
from torchbayes.posteriors.store import DrawFile

START = "start"
ALL_ROWS = "all_rows"  # folder of the run that goes on with rows that were held out
# Seconds between checkpoints, and their least multiple of the last write's duration, so writing costs at most 2 %.
_EVERY = 5.0
_SPARE = 50.0
_DRAWS = "weights_MSD"  # a posterior's tensor that may stay in the file of draws
_NONE = "the run ended within its burn-in, before weights were kept. Resume it with more steps."

Sums = Callable[[], Mapping[str, Any]]
"""Returns the sums over an epoch so far."""


def describe(settings: Any) -> Any:
    """Return JSON-serialisable settings: dataclasses become mappings with their class under `name`."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        entries = {f.name: describe(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
        return {"name": type(settings).__name__, **entries}
    return [describe(setting) for setting in settings] if isinstance(settings, tuple) else settings


def describe_run(model: Model, source: Any, method: Method, *, seed: int, space: Subspace | None) -> dict[str, Any]:
    """Return what identifies a run: method, seed, model, layout, and `num_data` and `steps_per_epoch` of a source."""
    settings = describe(method)
    if method.needs.chain:  # a longer run is the same run
        settings.pop("steps")
    return {
        "method": settings,
        "seed": seed,
        "num_data": source.num_data,
        "steps_per_epoch": source.steps_per_epoch if method.needs.batch_size else 1,
        "model": describe_model(model),
        "autocast": model.autocast,
        "layout": {n: list(s) for n, s in model.layout.shapes.items()},
        **({} if space is None else {"space": space.checksum}),
    }


def describe_constants(model: Model, method: Method, *, directory: Path | None) -> dict[str, Any]:
    """Return the fingerprint of what a run takes from the network and its checkpoints do not hold, if it is needed."""
    needed = directory is not None or model.network.sharded  # of which one process may save the posterior
    held = model.network.buffers if method.needs.network == "train" else ()
    return {CONSTANTS: fingerprint(model.network, without=held)} if needed else {}


def recorded(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the description of the run in a directory, and where it was found; None without one.

    Raises a ValueError if it is damaged.
    """
    config, checkpoint = directory / CONFIG, directory / CHECKPOINT
    if config.exists():
        advice = "Restore it, or remove it and resume: the checkpoint holds the same."
        return directory, read_described(config, restore=advice if checkpoint.exists() else "Start the run anew.")
    return (checkpoint, about_of(checkpoint)) if checkpoint.exists() else None


def check_free(directory: Path) -> None:
    """Raise a ValueError if a directory holds a run."""
    if (directory / CONFIG).exists() or (directory / CHECKPOINT).exists():
        raise ValueError(
            f"{directory} already holds a run. Pass resume=True to continue it, or choose another directory."
        )


@dataclass(frozen=True)
class Shard:
    """A slice of the M axis of the whole fit."""

    members: int
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def local(self) -> slice:
        """Members of this process."""
        return self.ranks.members(self.members)

    @property
    def count(self) -> int:
        """Number of members of this process."""
        start, stop, step = self.local.indices(self.members)
        return max(0, -((start - stop) // step))

    def gather(self, tensor: Tensor) -> Tensor:
        """Return a tensor (M, ...) of all members from each process's rows of it."""
        return self.ranks.gather(tensor, self.members)

    def whole(self, state: Any) -> Any:
        """Return the state of all members, on every process."""
        return state if self.ranks.chains == 1 else mapped(state, self.gather)

    def agree(self, choice: bool) -> bool:
        """Return the first process's choice, if the next operation needs all processes."""
        return choice if self.ranks.chains == 1 else self.ranks.agree(choice)

    def check_equal(self, state: Any) -> None:
        """Raise a ValueError if processes that share data hold different states."""
        if self.ranks.data > 1:
            check_equal(self.ranks, [t for t in flatten(state)[0].values() if t.is_floating_point()])


class MemoryShelf:
    """Draws kept in memory. Where several processes share the members, each of them keeps the draws of all."""

    def __init__(self, shard: Shard) -> None:
        """Make an empty shelf, for the members of this process."""
        self._shard = shard
        self.draws: list[Tensor] = []  # each (M, D), in the order in which they were taken

    def add(self, weights_MD: Tensor | None) -> None:
        """Keep a copy of the weights; None is ignored."""
        if weights_MD is not None:
            self.draws.append(self._shard.gather(weights_MD.clone()))

    @property
    def count(self) -> int | None:
        """Number of draws that a checkpoint can rely on; None, because draws in memory do not outlive the process."""
        return None

    @property
    def whole(self) -> bool:
        """Whether all draws could be kept."""
        return True

    def sync(self) -> None:
        """Do nothing, because there is no disk."""

    def weights_MSD(self) -> Tensor:
        """Return the draws, (M, S, D), a view of memory in the order (S, M, D) in which they were taken."""
        if not self.draws:
            raise ValueError(_NONE)
        return torch.stack(self.draws).transpose(0, 1)

    def packed(self, posterior: Posterior) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the header of the posterior's file."""
        return packed(posterior)


class DiskShelf:
    """Draws streamed to a run directory by the first process, from which all of them are read."""

    def __init__(self, model: Model, shard: Shard, *, directory: Path, run: str, count: int = 0) -> None:
        """Continue the draws of a run from the `count` in its checkpoint, or begin.

        Later draws, of a run that was killed, are dropped.
        """
        self._model, self._shard, self._directory = model, shard, directory
        self._file: DrawFile | None = None
        self._taken = count
        self._read: Tensor | None = None
        if shard.ranks.first:
            like_MD = torch.empty((), dtype=model.network.dtype).expand(shard.members, model.layout.size)
            self._file = DrawFile.create(directory, like_MD, model.layout.shapes, run=run)
            self._file.truncate(count)

    def add(self, weights_MD: Tensor | None) -> None:
        """Write the weights to disk; None is ignored."""
        if weights_MD is None:
            return
        self._taken += 1
        whole_MD = self._shard.gather(weights_MD)
        if self._file is not None:
            self._file.append(whole_MD)

    @property
    def count(self) -> int | None:
        """Number of draws of each member on disk; None in processes that do not write."""
        return None if self._file is None else len(self._file)

    @property
    def whole(self) -> bool:
        """Whether all draws could be written."""
        return self._file is None or len(self._file) >= self._taken

    def sync(self) -> None:
        """Wait until all draws are physically on disk."""
        if self._file is not None:
            self._file.sync()

    def weights_MSD(self) -> Tensor:
        """Return the draws, (M, S, D), mapped into memory where the model is on a CPU."""
        self._shard.ranks.wait()
        if self._read is None:
            self._read = read_draws(self._directory, self._model)
        if not self._read.shape[1]:
            raise ValueError(_NONE)
        return self._read

    def packed(self, posterior: Posterior) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the header of the posterior's file, which refers to the file of draws next to it."""
        tensors, header = packed(posterior)
        if self._read is None or tensors.get(_DRAWS) is not self._read:  # the posterior holds other draws
            return tensors, header
        others = {name: tensor for name, tensor in tensors.items() if name != _DRAWS}
        settings: Mapping[str, Any] = {**header["settings"], "draws": self.count, "beside": True}
        return others, {**header, "settings": settings}


Shelf = MemoryShelf | DiskShelf


class Run:
    """Writes the files of a fit, with the directory locked; without a directory it writes nothing.

    Where several processes share a fit, the first writes and the others read; the files are those of a single
    process. As a context manager it opens the directory and releases it.
    """

    def __init__(
        self, directory: str | PathLike[str] | None, description: Mapping[str, Any], *, resume: bool, shard: Shard
    ) -> None:
        """Describe the run by JSON-serialisable entries; nothing is opened yet.

        If `resume`, a run found in the directory is continued. `shard` has the members of this process.
        """
        self.directory = None if directory is None else full_path(directory)
        self.description, self.shard, self._resume = dict(description), shard, resume
        self.name = ""  # set in the process that writes
        self.history = History()
        self.shelf: Shelf  # set once it is known where the run resumes
        self._saved, self._wrote = time.monotonic(), 0.0
        self._lock: Locked | None = None
        self._open = ExitStack()
        if resume and self.directory is None:
            raise ValueError("`resume=True` needs the `directory` of the run to continue.")

    def __enter__(self) -> Self:
        """Lock and open the directory, and return the run.

        Raises a ValueError if it holds a run that is not to be resumed, is another one, or is damaged; an OSError if
        another process writes there, or it cannot be written to.
        """
        if self.directory is None:
            return self
        with ExitStack() as stack:
            if self.shard.ranks.first:
                self._lock = stack.enter_context(Locked(self.directory))
                self._begin(self.directory)
            self.shard.ranks.wait()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _begin(self, directory: Path) -> None:
        """Name a new run, or check that the one found in the directory is this one and may be resumed."""
        if not self._resume:
            check_free(directory)
        sweep(directory)  # leftovers of writes that were killed
        description = recorded(directory)
        if description is None:
            self.name = secrets.token_hex(8)
            return
        check_same_run(*description, self.description)
        self.name = description[1]["run"]

    def restore(self, fresh: Any) -> tuple[Any, dict[str, Any]]:
        """Return the state to start from, that of the checkpoint if there is one, and the checkpoint's description.

        A new run is recorded in its directory here, because it now has a state to begin with.
        """
        if (config := self._path(CONFIG)) is not None and not config.exists():
            write_described(config, {"run": self.name, **self.description})
        path = None if self.directory is None else self.directory / CHECKPOINT
        if path is None or not path.exists():
            return fresh, {}
        description = {**self.description, "run": self.name} if self.name else self.description
        return load_checkpoint(path, fresh, description, members=self.shard.local)

    def resume_log(self, step: int, *, epochs: int = 0) -> None:
        """Drop the lines of the log after a step, so that a resumed run leaves the log of an uninterrupted one.

        The first `epochs` epochs should have a line.
        """
        path = self._path(log.NAME)
        if path is not None:
            log.cut(path, step, self.name, epochs=epochs)
        if self.directory is not None and step:
            self.history = History(record for record in log.records(self.directory) if record["step"] <= step)

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one record to the log."""
        self.history.add(record)
        path = self._path(log.NAME)
        if path is not None:
            log.append(path, record, self.name)

    def checkpoint(self, state: Any, density: LogDensity, sums: Sums, *, force: bool = False) -> bool:
        """Write a checkpoint if the last one is old enough, or if forced; return whether this process has written one.

        A state that is not finite never replaces a checkpoint. The plan of `density` is stored, because another plan
        rounds differently. `sums` returns those over the epoch so far, for its line of the log.
        """
        due = force or time.monotonic() - self._saved > max(_EVERY, _SPARE * self._wrote)
        if self.directory is None or not self.shard.agree(due):
            return False
        began = time.perf_counter()
        state, sums_so_far = self.shard.whole(state), sums()
        path = self._path(CHECKPOINT)
        write = path is not None and all_finite(state)
        if path is not None and write:
            epochs = state.step // self.description["steps_per_epoch"]  # each has a line in the log
            backend = density.plan.backend if density.plan else None
            extra = {"run": self.name, "plan": backend, "sums": sums_so_far, "epochs": epochs}
            self.shelf.sync()
            if (count := self.shelf.count) is not None:
                extra["draws"] = count
            save_checkpoint(path, state, {**self.description, **extra})
        self._saved = time.monotonic()
        self._wrote = time.perf_counter() - began
        return write

    def rescue(self, error: Exception, state: Any, density: LogDensity, *, sums: Sums) -> None:
        """Save the last state before an error and say so in its message, unless that state is incomplete.

        It is not saved if it is not finite, if the draws up to it could not be written, or if other processes hold
        members, because they do not know of an error here. The last checkpoint, if there is one, then stays. Raises
        an OSError if the directory is no longer this run's.
        """
        self.check()
        alone = self.directory is not None and self.shard.ranks.chains == 1
        if alone and self.shelf.whole and self.checkpoint(state, density, sums, force=True):
            error.add_note(f"The state after step {state.step}, the last finite one, is in {self.directory}.")

    def save(self, posterior: Posterior) -> None:
        """Write the posterior of this run."""
        if (path := self._path(POSTERIOR)) is not None:
            tensors, header = self.shelf.packed(posterior)
            write_tensors(path, tensors, {**header, "run": self.name}, once=True)

    def check(self) -> None:
        """Raise an OSError if the directory was removed or taken over by another process."""
        if self._lock is not None:
            self._lock.check()

    def _path(self, name: str) -> Path | None:
        """Return where to write, None for nowhere, after checking that the directory is still this run's."""
        self.check()
        return None if self._lock is None else self._lock.directory / name

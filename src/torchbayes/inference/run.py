"""The run directory of a fit: configuration, log, checkpoint, posterior.

config.json            method, settings, seed, layout: written at the start
log.jsonl              one JSON object per epoch
checkpoint.safetensors the last complete state, replaced atomically
posterior.safetensors  the result
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchbayes.inference.checkpoint import all_finite, check_same_run, load_checkpoint, save_checkpoint
from torchbayes.inference.kept import Kept
from torchbayes.inference.means import Means
from torchbayes.inference.share import Share
from torchbayes.model.density import LogDensity
from torchbayes.model.model import Model
from torchbayes.posteriors.files import write_whole

# Seconds between checkpoints, and how many times the last write they are at least: so writing costs at most 2 %.
_EVERY = 5.0
_SPARE = 50.0


def describe(settings: Any) -> Any:
    """Return JSON-serialisable settings: dataclasses become mappings with their class under `name`."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        entries = {f.name: describe(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
        return {"name": type(settings).__name__, **entries}
    return list(settings) if isinstance(settings, tuple) else settings


def describe_model(model: Model) -> dict[str, Any]:
    """Return likelihood, priors and temperature in words: what a resumed run must share with the one it continues."""
    own = model.likelihood
    return {
        "likelihood": repr(own) if type(own).__repr__ is not object.__repr__ else f"{type(own).__qualname__}()",
        "prior": [f"{s.where.start}:{s.where.stop} {s.prior!r}" for s in model.prior.segments],
        "temperature": model.temperature,
        "tempering": model.tempering,
    }


class Run:
    """Writes what a fit leaves on disk; without a directory it writes nothing.

    Where several processes share a fit, the first writes, the others read; files are those of a single process.
    """

    def __init__(self, directory: str | Path | None, about: Mapping[str, Any], *, resume: bool, share: Share) -> None:
        """Open the directory.

        Args:
            directory: where to write; None for nowhere.
            about: JSON-serialisable description of the run.
            resume: continue a run found there.
            share: the members of this process.

        Raises:
            ValueError: if a run is found there that is not to be resumed, or is another one; or if there is no
                directory to resume from.
        """
        self.directory = None if directory is None else Path(directory)
        self.about, self.share = dict(about), share
        self.kept: Kept | None = None  # a checkpoint must not outlive draws that it counts
        self._saved, self._wrote = time.monotonic(), 0.0
        if resume and self.directory is None:
            raise ValueError("`resume=True` needs the `directory` of the run to continue.")
        if self.directory is None:
            return
        if share.ranks.first:
            self._open(self.directory, resume)
        share.ranks.wait()

    def _open(self, directory: Path, resume: bool) -> None:
        found = (directory / "config.json").exists()
        if found and not resume:
            raise ValueError(
                f"{directory} already holds a run. Pass resume=True to continue it, or choose another directory."
            )
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(".*.safetensors.*"):  # of a write that was killed
            left.unlink(missing_ok=True)
        if found:
            check_same_run(directory, json.loads((directory / "config.json").read_text()), self.about)
        else:
            write_whole(directory / "config.json", (json.dumps(self.about, indent=2) + "\n").encode())

    def restore(self, fresh: Any) -> tuple[Any, dict[str, Any]]:
        """Return the state to start from and the checkpoint's description: the checkpoint's if there is one.

        The log is cut back to the checkpoint, so that a resumed run leaves the log of an uninterrupted one.
        """
        path = None if self.directory is None else self.directory / "checkpoint.safetensors"
        if path is None or not path.exists():
            self.cut_log(0)
            return fresh, {}
        state, about = load_checkpoint(path, fresh, self.about, members=self.share.mine)
        self.cut_log(state.step)
        return state, about

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one record to the log, and let the draws be judged by it."""
        if self.kept is not None:
            self.kept.seen.add(record)
        path = self._path("log.jsonl")
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")

    def checkpoint(self, state: Any, density: LogDensity, means: Means, *, force: bool = False) -> None:
        """Write a checkpoint if the last one is old enough, or at once; a state that is not finite never replaces one.

        Args:
            state: the method's state.
            density: its plan is kept: another plan rounds differently.
            means: sums over the epoch so far, for its line of the log.
            force: write at once.
        """
        due = force or time.monotonic() - self._saved > max(_EVERY, _SPARE * self._wrote)
        if self.directory is None or not self.share.agree(due):
            return
        began = time.perf_counter()
        state, sums = self.share.whole(state), means.sums()
        path = self._path("checkpoint.safetensors")
        if path is not None and all_finite(state):
            extra = {"plan": density.plan.way if density.plan else None, "sums": sums}
            if self.kept is not None:
                self.kept.sync()
            save_checkpoint(path, state, {**self.about, **extra})
        self._saved = time.monotonic()
        self._wrote = time.perf_counter() - began

    @property
    def stands_alone(self) -> bool:
        """Whether this process can write a checkpoint without the others, who know nothing of an error here."""
        return self.directory is not None and self.share.ranks.chains == 1

    def save(self, write: Callable[[Path], Any]) -> None:
        """Let the posterior write itself."""
        path = self._path("posterior.safetensors")
        if path is not None:
            write(path)

    def _path(self, name: str) -> Path | None:
        """Return where to write, None for nowhere."""
        return self.directory / name if self.directory is not None and self.share.ranks.first else None

    def cut_log(self, step: int) -> None:
        """Forget the records of the log that were written after step number `step`."""
        path = self._path("log.jsonl")
        if path is None or not path.exists():
            return
        kept = []
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # a line cut short by a kill
                break
            if record["step"] > step:
                break
            kept.append(line + "\n")
        write_whole(path, "".join(kept).encode())

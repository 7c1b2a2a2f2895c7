"""Collecting a posterior while another library trains: the Trainer of Hugging Face, Lightning, Accelerate, a loop.

    collecting = tb.trainers.Collecting(tb.SWAG().collector(model))
    trainer = transformers.Trainer(network, args, train_dataset=rows, callbacks=[collecting.trainer_callback()])
    trainer.train()
    posterior = collecting.collector.posterior()

Points are counted in steps of the optimiser, so that the accumulation of gradients changes nothing. With each
checkpoint of the trainer goes what has been collected by then, and a run that is resumed from one goes on from there.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import check_counts, check_flags, check_kind, optional, plain, whole
from torchbayes.methods.optimise.averaging import USUAL_SNAPSHOTS, is_even
from torchbayes.methods.optimise.collector import Collector
from torchbayes.trainers.hooks import lightning_base

_FILE = "collector.safetensors"


@dataclass(frozen=True)
class Collecting:
    """When a collector takes a point of a training run: evenly, over the part of the run behind its beginning.

    Attributes:
        collector: what takes them, as `tb.SWAG(rank=20).collector(model)` makes it.
        after: steps of the optimiser before the first point; None for the share `burn_in` of the collector's method,
            half of the run if that is None too.
        every: steps between points; None for 50 points in all, or as many as there are steps.
        member: number of this run among the members of the collector.
        snapshots: whether each point is a member of its own. With `tb.SWA(members=M).collector(model)` the posterior is
            an ensemble of the M points; further ones are not taken.
    """

    collector: Collector[Any]
    after: int | None = field(default=None, kw_only=True)
    every: int | None = field(default=None, kw_only=True)
    member: int = field(default=0, kw_only=True)
    snapshots: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        plain(self)
        check_kind(Collector, "a collector, as SWAG().collector(model)", collector=self.collector)
        optional(lambda **values: check_counts(least=0, **values), after=self.after)
        optional(check_counts, every=self.every)
        check_flags(snapshots=self.snapshots)
        if whole("member", self.member, least=0) >= len(self.collector.points):
            raise ValueError(
                f"`member` must be below the {len(self.collector.points)} members of the collector; got {self.member}."
            )

    def due(self, step: int, total: int) -> bool:
        """Return whether a point is taken after step number `step`, from 1, of a run of `total` steps.

        Args:
            step: steps of the optimiser so far.
            total: steps of the whole run.
        """
        check_counts(step=step, total=total)
        share = round(self.collector.method.before * total)
        first = min(share, total - 1) if self.after is None else self.after
        if step <= first:
            return False
        if self.every is not None:
            return (step - first) % self.every == 0
        members = len(self.collector.points)
        left = max(total, step) - first
        return is_even(step - first, min(members if self.snapshots else USUAL_SNAPSHOTS, left), left)

    def __call__(self, network: nn.Module, step: int, total: int) -> bool:
        """Take a point if one is due, in a loop of your own: call it after each step of the optimiser.

        Args:
            network: the network that is trained; wrappers around it, as those of Accelerate, do no harm.
            step: steps of the optimiser so far, from 1.
            total: steps of the whole run.

        Returns:
            Whether a point was taken.

        Raises:
            ValueError: as `Collector.collect` does.
        """
        points = self.collector.points
        member = sum(count > 0 for count in points) if self.snapshots else self.member
        if member == len(points) or not self.due(step, total):
            return False
        self.collector.collect(network, member=member)
        return True

    def trainer_callback(self) -> Any:
        """Return a callback for the Trainer of Hugging Face.

        What has been collected is in each checkpoint folder of the Trainer, as `collector.safetensors`, and is read
        where training is resumed from one. The first process alone collects. Let the learning rate be constant.

        Raises:
            ImportError: if transformers is not installed.
            ValueError: in training, if it is resumed behind the first point and the file is missing.
        """
        from transformers import TrainerCallback

        collecting = self

        class Callback(TrainerCallback):
            """Collects in the hooks of a Trainer."""

            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.is_world_process_zero and state.global_step:
                    collecting._resume(_folder(args, state) / _FILE, state.global_step, state.max_steps)

            def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                if state.is_world_process_zero:
                    collecting(model, state.global_step, state.max_steps)

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.is_world_process_zero:
                    collecting.collector.save(_folder(args, state) / _FILE)

        return Callback()

    def lightning_callback(self, network: str = "") -> Any:
        """Return a callback for the Trainer of Lightning.

        What has been collected is part of the callback's state in Lightning's checkpoints.

        Args:
            network: its name in the LightningModule, such as "model", where it holds others too.

        Raises:
            ImportError: if Lightning is not installed.
        """
        collecting = self

        class Callback(lightning_base()):
            """Collects in the hooks of a Lightning Trainer."""

            seen = 0  # steps of the optimiser at the end of the last batch

            def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
                if trainer.is_global_zero and trainer.global_step > self.seen:
                    total = int(trainer.estimated_stepping_batches)
                    collecting(module.get_submodule(network), trainer.global_step, total)
                self.seen = trainer.global_step

            def state_dict(self) -> dict[str, Any]:
                return {"seen": self.seen, "collector": _packed(collecting.collector)}

            def load_state_dict(self, state_dict: dict[str, Any]) -> None:
                self.seen = state_dict["seen"]
                _unpack(collecting.collector, state_dict["collector"])

        return Callback()

    def _resume(self, path: Path, step: int, total: int) -> None:
        """Go on from the file of a checkpoint; ValueError if points were taken by then and there is none."""
        if path.exists():
            self.collector.load(path)
        elif not any(self.collector.points) and any(self.due(number, total) for number in range(1, step + 1)):
            raise ValueError(
                f"training is resumed at step {step}, behind the first point, and there is no {path}. Resume from a "
                f"checkpoint that has one, in the `output_dir` of the Trainer, or `collector.load` another file first."
            )


def _folder(args: Any, state: Any) -> Path:
    """Return the folder of the Trainer's checkpoint at its present step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _packed(collector: Collector[Any]) -> Tensor:
    """Return the file that a collector saves as bytes, uint8 (n,)."""
    with tempfile.TemporaryDirectory() as folder:
        content = collector.save(Path(folder) / _FILE).read_bytes()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _unpack(collector: Collector[Any], content: Tensor) -> None:
    """Let a collector go on from the bytes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _FILE
        path.write_bytes(content.cpu().numpy().tobytes())
        collector.load(path)

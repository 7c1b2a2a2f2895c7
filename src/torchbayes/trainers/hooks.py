"""The optimiser of `optimizer.py` in the hooks of other libraries' trainers, and what these must not do with it."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from typing import Any

from torchbayes.checks import SettingError


def trainer_callback(optimizer: Any) -> Any:
    """Return a callback of Hugging Face that holds the network at the gradient point between two steps."""
    from transformers import TrainerCallback

    point = ExitStack()

    class Callback(TrainerCallback):
        """Holds the network where the method takes its gradient."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            given = kwargs["optimizer"]
            _check_given(optimizer, [getattr(given, "optimizer", given)], "`optimizers=(optimizer, None)`")
            _check_arguments(args)
            _check_length(optimizer, state.max_steps, state.global_step, "`max_steps` of the Trainer")

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            point.close()
            point.enter_context(optimizer.at_gradient_point())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            point.close()

    return Callback()


def lightning_callback(optimizer: Any) -> Any:
    """Return a callback of Lightning that holds the network at the gradient point in each training batch."""
    point = ExitStack()

    class Callback(lightning_base()):
        """Holds the network where the method takes its gradient."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            _check_given(optimizer, trainer.optimizers, "it in `configure_optimizers`")
            if trainer.gradient_clip_val:
                raise SettingError(_clipped(trainer.gradient_clip_val, "Leave `gradient_clip_val` out."))
            total = trainer.estimated_stepping_batches
            _check_length(optimizer, total, trainer.global_step, "`max_epochs` or `max_steps` of the Trainer")

        def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            point.close()
            point.enter_context(optimizer.at_gradient_point())

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            point.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            point.close()

    return Callback()


def lightning_base() -> Any:
    """Return the base of Lightning's callbacks, of whichever of its packages is installed."""
    try:
        return import_module("lightning.pytorch").Callback
    except ImportError:
        return import_module("pytorch_lightning").Callback


def _check_given(optimizer: Any, given: Any, how: str) -> None:
    """Raise SettingError unless the optimiser is the only one of a trainer."""
    if len(given) != 1 or given[0] is not optimizer:
        names = ", ".join(type(each).__name__ for each in given) or "none"
        raise SettingError(f"the trainer must have the optimiser of this callback alone; it has {names}. Give {how}.")


def _check_arguments(args: Any) -> None:
    """Raise SettingError if the arguments of a Trainer of Hugging Face would change the posterior."""
    if args.max_grad_norm and args.max_grad_norm > 0:
        raise SettingError(_clipped(args.max_grad_norm, "Set `max_grad_norm=0.0` in the TrainingArguments."))
    if args.lr_scheduler_type != "constant":
        raise SettingError(
            f"the Trainer changes the learning rate (`lr_scheduler_type` is {str(args.lr_scheduler_type.value)!r}), "
            f"and the method has a schedule of its own. Set `lr_scheduler_type='constant'` in the TrainingArguments."
        )
    if args.weight_decay:
        raise SettingError(
            f"`weight_decay` {args.weight_decay:g} has no effect here, as the model has a prior in its place: "
            f"priors.Normal(scale=(1 / (weight_decay * N)) ** 0.5). Set `weight_decay=0.0` in the TrainingArguments."
        )
    if args.label_smoothing_factor:
        raise SettingError(
            f"`label_smoothing_factor` {args.label_smoothing_factor:g} makes the loss another one than the negative "
            f"log likelihood. Set it to 0.0 in the TrainingArguments."
        )


def _check_length(optimizer: Any, total: float, step: int, where: str) -> None:
    """Raise SettingError if a trainer takes more or fewer steps than the method, or is resumed without its state."""
    name = type(optimizer.method).__name__
    if total != optimizer.total_steps:
        raise SettingError(
            f"the trainer would take {total:,} steps, and {name} takes {optimizer.total_steps:,}, of which its "
            f"schedule and its draws depend. Set `steps` of a sampler, or `epochs` and `steps_per_epoch`, or {where}."
        )
    if step and not optimizer.steps:
        raise SettingError(
            f"the trainer is resumed at step {step}, and its checkpoint does not hold the state of the optimiser. "
            f"Resume from one that was saved with it."
        )


def _clipped(norm: float, advice: str) -> str:
    return f"the trainer clips gradients at {norm:g}, so that the steps would not be those of the posterior. {advice}"

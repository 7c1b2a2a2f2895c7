"""Trackers of experiments: the numbers of a run to TensorBoard, MLflow, Weights & Biases or a function, as it goes.

None of them is imported here: the user's object is asked for the method by which it takes numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from torchbayes.checks import check_text, seen, whole
from torchbayes.driver.progress import Event
from torchbayes.native.process import undisturbed_methods
from torchbayes.posteriors.problems import note

Send = Callable[[dict[str, float], int], object]
"""Takes numbers by name, and the step to which they belong."""


@runtime_checkable
class Measured(Protocol):
    """A result with metrics, such as an `Evaluation`."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics by name."""
        ...


@undisturbed_methods
class Tracker:
    """A callback that sends the numbers of each event to a tracker of experiments.

        writer = torch.utils.tensorboard.SummaryWriter("runs/swag")
        tracker = tb.Tracker(writer)
        posterior = tb.fit(model, train, tb.SWAG(), callbacks=[tb.Progress(), tracker])
        tracker.log(tb.evaluate(posterior, test))

    Names are `fit/nll` for a single member, `fit/nll/0`, `fit/nll/1` … and `fit/nll/mean` for several, `fit/epoch` and
    so on. Steps of a run that follows another, such as that of Laplace after its start, count on from there. If a
    tracker raises an exception during a run, a warning says so, and the run goes on without these numbers.
    """

    def __init__(self, tracker: Any, *, name: str = "fit") -> None:
        """Send to a tracker, which has to be open.

        Args:
            tracker: a `SummaryWriter`; the module `mlflow`, or what else has `log_metrics(numbers, step=)`, such as a
                logger of Lightning; a run of Weights & Biases, or its module; or a function of numbers and step.
            name: first part of the names of all numbers.

        Raises:
            TypeError: if it is none of these.
        """
        check_text(name=name)
        self._send, self._name = _sender(tracker, name), name
        self._kind = getattr(tracker, "__name__", type(tracker).__name__)
        self._last = self._before = 0  # steps that were sent last, and those of the runs before this one

    def __call__(self, event: Event) -> None:
        """Send the numbers of an event."""
        if self._before + event.step <= self._last:
            self._before = self._last
        self._last = self._before + event.step
        numbers = {f"{self._name}/{name}": number for name, number in event.numbers().items()}
        try:
            self._send(numbers, self._last)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0].rstrip(". ")
            note(f"{self._kind} raised {type(error).__name__} ({reason}): numbers are lost to it, and the run goes on.")

    def log(self, metrics: Measured | Mapping[str, float], *, name: str = "test", step: int | None = None) -> None:
        """Send metrics of a result, named `test/accuracy` and so on.

        Args:
            metrics: an `Evaluation`, or numbers by name.
            name: first part of their names.
            step: to which they belong; that of the last event if None.

        Raises:
            TypeError: if they are no numbers by name.
            ValueError: if the step is no whole number.
        """
        check_text(name=name)
        step = self._last if step is None else whole("step", step, least=0)
        named = metrics.metrics if isinstance(metrics, Measured) else metrics
        if not isinstance(named, Mapping) or not all(isinstance(key, str) for key in named):
            raise TypeError(f"`metrics` must be an Evaluation, or numbers by name; got {seen(metrics)}.")
        try:
            numbers = {f"{name}/{key}": float(number) for key, number in named.items()}
        except (TypeError, ValueError) as error:
            raise TypeError(f"`metrics` must be numbers by name; got {seen(metrics)}.") from error
        self._send(numbers, step)


def _sender(tracker: Any, name: str) -> Send:
    """Return the function by which a tracker takes numbers."""
    if not isinstance(tracker, type):
        if callable(getattr(tracker, "add_scalar", None)):
            return lambda numbers, step: [tracker.add_scalar(key, value, step) for key, value in numbers.items()]
        if callable(getattr(tracker, "log_metrics", None)):
            return lambda numbers, step: tracker.log_metrics(numbers, step=step)
        if callable(getattr(tracker, "define_metric", None)) and callable(getattr(tracker, "log", None)):
            # Its own count of steps may not go back, and goes on with whatever else is logged.
            tracker.define_metric(f"{name}/*", step_metric=f"{name}/step")
            return lambda numbers, step: tracker.log({**numbers, f"{name}/step": step})
        if callable(tracker):
            return tracker
    raise TypeError(
        f"`tracker` must be a SummaryWriter, the module mlflow, a run of wandb.init(), or a function of numbers by "
        f"name and a step; got {seen(tracker)}."
    )

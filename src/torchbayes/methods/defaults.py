"""Defaults of methods, which a method may override: of the protocol, and of what a step reports for the log."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from torchbayes.checks import SettingError
from torchbayes.health.ending import Ended, Ending
from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.protocol import Needs, Onward, Visit
from torchbayes.methods.schedules import USUAL_STEPS, epochs_of
from torchbayes.model.model import Model
from torchbayes.model.priors.sparse import LogUniform


class Defaults:
    """Defaults of the protocol `torchbayes.methods.protocol.Method`."""

    carries = "nothing"  # to the next task of a sequence, see `Onward`
    single_gradient = False  # whether it is a `SingleGradient`

    def gradient_point(self, density: Any, state: Any) -> Tensor:
        """Return the weights at which a `SingleGradient` takes its next gradient, (M, D); by default the state's."""
        return state.weights_MD

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What held-out rows may choose of the settings; by default nothing."""
        return ()

    @property
    def onward(self) -> Onward:
        """What goes from one task of a sequence to the next; by default as `carries` says."""
        return Onward(self, self.carries)  # type: ignore[arg-type]  # one of its words

    @property
    def without_prior(self) -> Any:
        """The method that replaces a `Chain` on a density without a known prior; by default None, the same."""
        return None

    def check(self, model: Model) -> None:
        """Check that the method suits a model; by default, that the log prior is finite wherever weights may be.

        Raises:
            SettingError: if the prior has an infinite density at zero.
        """
        if any(isinstance(segment.prior, LogUniform) for segment in model.prior.segments):
            raise SettingError(
                f"under priors.LogUniform() the posterior is improper: its density goes to infinity at zero, where it "
                f"has no finite integral, so {type(self).__name__} would end there. VI takes this prior; other methods "
                f"take priors.Horseshoe(), which is proper."
            )

    def draw(self, state: Any) -> Tensor | None:
        """Return None, nothing for the shelf: the result of the run is in its state."""
        return None

    def ending(self, posterior: Any, state: Any) -> Ending:
        """Return how the run ended, by which its result is judged; by default nothing is known of it."""
        return Ended()


class OnMinibatches:
    """Defaults of a method that takes a step on each minibatch, from the first epoch to the last."""

    usual_steps = USUAL_STEPS  # least length of a run whose epochs are open, unless 50 epochs have more

    epochs: int | None
    batch_size: int

    @property
    def needs(self) -> Needs:
        """What the method needs from its driver: minibatches, and a network in training mode."""
        return Needs(batch_size=self.batch_size, network="train")

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What held-out rows may choose of the settings: the number of epochs."""
        return (Epochs(self),)

    def length(self, steps_per_epoch: int) -> int:
        """Return the number of steps of a run, for an epoch of `steps_per_epoch` minibatches."""
        return epochs_of(self.epochs, steps_per_epoch, steps=self.usual_steps) * steps_per_epoch

    def visit(self, state: Any) -> Visit | None:
        """Return the next minibatch; None when the run is over."""
        return Visit("minibatch", state.step) if state.step < state.total_steps else None


@dataclass(frozen=True)
class Report:
    """A record whose fields `name_M`, (M,), are averaged over an epoch unless None; the others hold for its last step.

    No later step needs it: it is the `torchbayes.methods.protocol.Info` of most methods.
    """

    def means(self) -> dict[str, Tensor]:
        """Return what is averaged over an epoch, by name, each (M,)."""
        return means_of(self)

    def now(self) -> dict[str, Any]:
        """Return what is true of the last step of an epoch."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.name.endswith("_M")}


def means_of(record: Any) -> dict[str, Tensor]:
    """Return the fields of a record that are averaged over an epoch, by name, each (M,)."""
    values = {f.name: getattr(record, f.name) for f in fields(record) if f.name.endswith("_M")}
    return {name.removesuffix("_M"): value_M for name, value_M in values.items() if value_M is not None}

"""Defaults of methods, which a method may override."""

from __future__ import annotations

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

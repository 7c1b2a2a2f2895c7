"""What the settings of a method say unless it says something else."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchbayes.checks import SettingError
from torchbayes.methods.choices import Choice
from torchbayes.methods.protocol import Onward
from torchbayes.model.model import Model
from torchbayes.model.priors.sparse import LogUniform


class Defaults:
    """Defaults of the protocol `torchbayes.methods.protocol.Method`, which a method may override."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What held-out rows may choose of its settings: nothing."""
        return ()

    @property
    def onward(self) -> Onward:
        """What goes from one task of a sequence to the next: nothing."""
        return Onward(self)

    def check(self, model: Model) -> None:
        """Check that the log prior is finite wherever weights may be.

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
        """Return nothing for the shelf: the result of the run is in its state."""
        del state
        return None

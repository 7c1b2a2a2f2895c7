"""What MAP, SWA and SWAG share: minibatches from the first step to the last, and what held-out rows choose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchbayes.density.density import LogDensity
from torchbayes.methods.flat.sam import AnyOptimizer
from torchbayes.methods.optimise.descent import epochs_of
from torchbayes.methods.optimise.health import problems_of
from torchbayes.methods.optimise.learned import at_least
from torchbayes.methods.optimise.length import choose_epochs
from torchbayes.methods.optimise.trials import most_likely
from torchbayes.methods.protocol import Chosen, Fold, History, Needs, Visit
from torchbayes.model.model import Model
from torchbayes.model.rows.sources import Source


class Descent(ABC):
    """What gradient descent methods share: minibatches from the first step to the last, and no draws.

    Attributes:
        by_draws: whether draws of the result are judged together: see `problems_of`.
        is_prior: whether the result can be the prior of a next task: see `Needs.carries`.
    """

    by_draws = False
    is_prior = False

    epochs: int | None
    batch_size: int
    optimizer: AnyOptimizer

    @property
    def needs(self) -> Needs:
        """Minibatches, through a network in training mode; held-out rows where it is open how long to train."""
        open_ = "needed" if self.epochs is None else "possible"
        return Needs(
            batch_size=self.batch_size, network="train", validation=open_, carries="prior" if self.is_prior else "start"
        )

    def length(self, steps_per_epoch: int) -> int:
        """Return the steps of a run, for an epoch of so many minibatches."""
        return epochs_of(self.epochs, steps_per_epoch) * steps_per_epoch

    @property
    @abstractmethod
    def candidates(self) -> Sequence[Mapping[str, Any]]:
        """Other settings, among which held-out rows choose."""

    # empty rather than abstract: most methods suit every network
    def check(self, model: Model) -> None:  # noqa: B027
        """Check that the method suits a model, before anything is trained.

        Raises:
            ValueError: if it does not.
        """

    def chosen(
        self, density: LogDensity, folds: Sequence[Fold], *, told: Callable[[int, int, float], object], **begin: Any
    ) -> Chosen:
        """Return the settings that held-out rows choose: epochs, and with these one of the candidates."""
        self.check(density.model)
        found = choose_epochs(self, density, folds, told=told, **begin)
        if not found.settings or not self.candidates:
            return found
        begin["weights_MD"] = at_least(begin["weights_MD"], found.learned)
        each = [{**found.settings, **settings} for settings in self.candidates]
        best, nlls = most_likely(self, each, density, folds=folds, **begin)
        tried = [{**settings, "nll": nll} for settings, nll in zip(self.candidates, nlls, strict=True)]
        return found._replace(settings=best, record={**found.record, "tried": tried})

    def visit(self, state: Any) -> Visit | None:
        """Return the next minibatch; None when the run is over."""
        now = state.trajectory
        return Visit("minibatch", now.step) if now.step < now.total_steps else None

    def draw(self, state: Any) -> None:
        """Return nothing: the result of the run is in its state."""
        del state

    def problems(self, posterior: Any, state: Any, *, history: History, source: Source) -> list[str]:
        """Return the problems of the result on the training rows: see `torchbayes.methods.optimise.health`."""
        del history
        found = problems_of(posterior, state, source, by_draws=self.by_draws)
        return [*self.optimizer.problems(state.trajectory.weights_MD), *found]

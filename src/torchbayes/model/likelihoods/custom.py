"""Custom: any function of the outputs that returns a torch Distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from torchbayes.checks import check_function, seen
from torchbayes.model.likelihoods.protocol import NONE, Learned, Likelihood, Parameters
from torchbayes.model.likelihoods.shapes import aligned, check_tensor, per_datum


@dataclass(frozen=True, repr=False)
class Custom:
    """Any function of the outputs that returns a torch Distribution. `Model` wraps a bare callable in it.

    Attributes:
        function: outputs (..., B, K) -> Distribution over targets: batch shape (..., B) or (..., B, more), followed by
            any event shape. With `validate_args=False` it can be vectorised over members.
    """

    function: Callable[[Tensor], Distribution]

    def __post_init__(self) -> None:
        check_function("a function from outputs to a torch Distribution", function=self.function)

    def __repr__(self) -> str:  # the same in every process, so that a run can be resumed
        return f"Custom({getattr(self.function, '__qualname__', type(self.function).__qualname__)})"

    def parameters(self) -> Mapping[str, Learned]:
        """Return no learned parameters."""
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return the distribution that the function gives."""
        del parameters
        return self.function(outputs)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return the distribution's log probability, summed over every axis after B."""
        distribution = self.distribution(outputs, parameters)
        targets = aligned(targets, distribution, outputs.ndim)
        return per_datum(distribution.log_prob(targets), targets, len(distribution.event_shape))

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Check that the distribution is over these targets, with the rows in its batch shape.

        Raises:
            ValueError: if its shape is not the targets'.
            TypeError: if the function gives something other than a Distribution.
        """
        check_tensor(targets)
        given = self.distribution(outputs)
        if not isinstance(given, Distribution):
            raise TypeError(f"a custom likelihood must return a torch Distribution; got {type(given).__name__}.")
        batch, event = given.batch_shape, given.event_shape
        if batch[:1] != outputs.shape[:1] or aligned(targets, given, outputs.ndim).shape != batch + event:
            raise ValueError(
                f"the custom likelihood must give a distribution over targets of shape {tuple(targets.shape)}, with "
                f"the {len(outputs)} rows in its batch shape; got batch shape {tuple(batch)} and event shape "
                f"{tuple(event)}. Reshape the targets or the distribution."
            )


def as_likelihood(given: Likelihood | Callable[[Tensor], Distribution]) -> Likelihood:
    """Return a likelihood: the one given, or a bare function of the outputs wrapped in `Custom`.

    Raises:
        TypeError: if it is a class where an object is needed, or neither.
    """
    if isinstance(given, type) and isinstance(given, Likelihood):
        raise TypeError(f"a `likelihood` must be an object; got the class {given.__name__}. Write {given.__name__}().")
    if isinstance(given, Likelihood):
        return given
    if not callable(given):
        raise TypeError(
            f"a `likelihood` must be one of torchbayes.likelihoods or a function of the outputs; got {seen(given)}."
        )
    return Custom(given)

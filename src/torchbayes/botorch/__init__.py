"""Posteriors as surrogates of BoTorch, which needs `pip install torchbayes[botorch]`.

    surrogate = tb.botorch.surrogate(train_X, train_Y)
    candidate, _ = optimize_acqf(qLogExpectedImprovement(surrogate, train_Y.max()), bounds, q=1, ...)

`PosteriorModel` makes a surrogate of any posterior, and `thompson` draws a function of it that is held fixed.
"""

try:
    import botorch as _botorch  # noqa: F401
except ImportError as error:
    raise ImportError("BoTorch is not installed. Run: pip install torchbayes[botorch]") from error

from torchbayes.botorch.draws import DrawnPosterior
from torchbayes.botorch.model import PosteriorModel, thompson
from torchbayes.botorch.recipe import surrogate

__all__ = ["DrawnPosterior", "PosteriorModel", "surrogate", "thompson"]

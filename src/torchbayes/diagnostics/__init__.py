"""Pure tensor functions that assess chains of draws, independent of models, posteriors and samplers.

Draws have the shape (M, S, ...): M chains of S draws, then any quantities. Draws of weights are (M, S, D). The same
functions judge chains **in function space**: draws of outputs or probabilities (M, S, B, K) give one number for
each output at each input, (B, K), draws of log-likelihoods (M, S, N) one for each datum. Networks whose weights
never mix, because hidden units can be exchanged and rescaled, may well mix as functions.

Convergence (``convergence``), importance weights of an approximation (``importance``), energies and the cost of a
draw (``sampler``), modes visited (``modes``), weights of a mixture of predictions (``stacking``) and export to arviz
(``export``). Draws may have any floating dtype, be on any device with float64, and be memory-mapped: they are read in
blocks of quantities, which bounds memory. Moments and results are in float64, on the device of the draws. Wrong inputs
raise TypeError or ValueError.
"""

from torchbayes.diagnostics.convergence import (
    Summary,
    autocorrelation,
    ess,
    ess_bulk,
    ess_tail,
    mcse_mean,
    rhat,
    summary,
)
from torchbayes.diagnostics.export import to_arviz
from torchbayes.diagnostics.importance import pareto_k, psis
from torchbayes.diagnostics.modes import Modes, modes_visited
from torchbayes.diagnostics.sampler import acceptance, divergences, ebfmi, efficiency
from torchbayes.diagnostics.stacking import Stacked, stacking_weights

__all__ = [
    "Modes",
    "Stacked",
    "Summary",
    "acceptance",
    "autocorrelation",
    "divergences",
    "ebfmi",
    "efficiency",
    "ess",
    "ess_bulk",
    "ess_tail",
    "mcse_mean",
    "modes_visited",
    "pareto_k",
    "psis",
    "rhat",
    "stacking_weights",
    "summary",
    "to_arviz",
]

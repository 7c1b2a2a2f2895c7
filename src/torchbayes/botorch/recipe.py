"""A surrogate from rows and targets, in one line: transforms, network, prior, noise and method that are usual."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from torch import Tensor, nn

from torchbayes.botorch.model import PosteriorModel, check_observations
from torchbayes.calls import explained
from torchbayes.checks import as_seed
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.model import Model, likelihoods, priors
from torchbayes.networks import mlp
from torchbayes.selection.fit import fit

HIDDEN = (30, 30)
REACH = 6.0  # typical slope of a hidden unit along the diagonal of the box
GAIN = 2.0
_WORK, _FEWEST, _MOST = 4e7, 16, 400  # rows times weights times leapfrog steps of an iteration; bounds of the latter

Network = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Recipe:
    """What `surrogate` was asked for, by which it fits further rows."""

    method: Any
    network: Network | None
    likelihood: Any
    prior: Any
    bounds: Tensor | None
    seed: int

    def fitted(self, X: Tensor, Y: Tensor, start: Any = None) -> PosteriorModel:
        """Return the surrogate of rows (n, d) and targets (n, m), fitted from `start`."""
        columns, targets = X.shape[-1], Y.shape[-1]
        scale, units = Normalize(columns, bounds=self.bounds, center=0.0), Standardize(targets)
        inputs, (standard, _) = scale(X), units(Y)
        scale.eval()
        units.eval()
        network = _network(columns, targets, X.dtype) if self.network is None else self.network
        prior = self.prior
        if prior is None and self.network is None:
            prior = _prior(columns, sampled=self.method is None)
        likelihood = _noise(targets) if self.likelihood is None else self.likelihood
        model = Model(network, likelihood, prior)
        method = _method(len(X), model.layout.size) if self.method is None else self.method
        posterior = fit(model, (inputs, standard), method, start=start, seed=self.seed, callbacks=())
        made = PosteriorModel(
            posterior,
            seed=self.seed,
            input_transform=scale,
            outcome_transform=units,
            num_inputs=columns,
        )
        made._recipe = self
        # in the shapes of BoTorch's Gaussian processes
        made.train_inputs = (X if targets == 1 else X.expand(targets, -1, -1),)
        made.train_targets = Y.squeeze(-1) if targets == 1 else Y.mT
        return made

    def refitted(self, model: PosteriorModel, X: Tensor, Y: Tensor, *, warm: bool) -> PosteriorModel:
        """Return the surrogate of the rows of a model and further ones."""
        check_observations(X, Y, targets=model.num_outputs)
        (before_X,), before_Y = model.train_inputs, model.train_targets
        before_X, before_Y = (before_X, before_Y.unsqueeze(-1)) if before_Y.ndim == 1 else (before_X[0], before_Y.mT)
        if X.ndim != 2 or Y.ndim != 2 or X.shape[-1] != before_X.shape[-1]:
            raise ValueError(
                f"`X` must be (n, {before_X.shape[-1]}) and `Y` (n, {before_Y.shape[-1]}); got {tuple(X.shape)} and "
                f"{tuple(Y.shape)}."
            )
        start = None
        if warm:
            members = model.network_posterior.members
            start = model.network_posterior.sample(members, seed=self.seed)
        return self.fitted(torch.cat([before_X, X.to(before_X)]), torch.cat([before_Y, Y.to(before_Y)]), start)


@explained()
def surrogate(
    train_X: Tensor,
    train_Y: Tensor,
    *,
    method: Any = None,
    network: Network | None = None,
    likelihood: Any = None,
    prior: Any = None,
    bounds: Tensor | Sequence[Sequence[float]] | None = None,
    seed: int = 0,
) -> PosteriorModel:
    """Return a surrogate of BoTorch from evaluations: a posterior over networks, fitted to them.

    Inputs are scaled to [−½, ½] and targets standardised, by BoTorch's transforms, and X and Y stay in their own units.
    Everything is in the dtype of `train_X`; float64 is advised by BoTorch.

    Args:
        train_X: rows (n, d), best of float64.
        train_Y: their targets (n, m), larger is better in BoTorch.
        method: how to infer the posterior; None for HMC with two chains.
        network: rows (n, d) -> outputs (n, m), or more for noise that the network gives; None for a perceptron with
            two hidden layers. Give a function that makes one for ensembles of networks with initialisers of their own.
        likelihood: of the standardised targets; None for normal noise, of a scale that is inferred for each target.
        prior: of the weights, as `Model` takes it. For the default network None is a normal prior by fan-in, with an
            inferred scale of each input under the default method; for another that of `Model`.
        bounds: (2, d), the smallest and largest value of each column; those of the rows if None.
        seed: of the fit.

    Raises:
        TypeError: if the method or the network is none.
        ValueError: if rows and targets do not fit, or are not finite.
    """
    check_observations(train_X, train_Y)
    if train_X.ndim != 2 or train_Y.ndim != 2:
        raise ValueError(
            f"`train_X` must be (n, d) and `train_Y` (n, m); got {tuple(train_X.shape)} and {tuple(train_Y.shape)}."
        )
    if not len(train_X):
        raise ValueError("`train_X` has no rows. Evaluate a few points first, such as draw_sobol_samples gives.")
    limits = None if bounds is None else torch.as_tensor(bounds).to(train_X)
    if limits is not None and (limits.shape != (2, train_X.shape[1]) or not (limits[0] < limits[1]).all()):
        raise ValueError(
            f"`bounds` must be (2, {train_X.shape[1]}), in each column a smaller number above a larger one; got "
            f"{limits.tolist()}."
        )
    recipe = Recipe(method, network, likelihood, prior, limits, as_seed(seed))
    return recipe.fitted(train_X.detach(), train_Y.detach().to(train_X))


def _network(columns: int, targets: int, dtype: torch.dtype) -> nn.Module:
    return mlp(columns, targets, hidden=HIDDEN, activation="tanh").to(dtype)


def _noise(targets: int) -> likelihoods.Gaussian:
    """Return normal noise of a scale that is inferred, worth ten residuals of a tenth of the spread.

    With less, the noise of a function that is fitted well is so small that chains take minutes.
    """
    return likelihoods.Gaussian("learned", targets, prior=priors.LogInverseChi(df=10.0, scale=0.1))


def _method(rows: int, weights: int) -> HMC:
    """Return HMC, with trajectories that are cut short where rows or weights are many."""
    most = int(_WORK / (rows * weights))
    return HMC(2, 200, 100, mass="layer", target_acceptance=0.95, max_leapfrogs=min(max(most, _FEWEST), _MOST))


def _prior(columns: int, *, sampled: bool) -> Any:
    """Return a normal prior by layers; where it is sampled, with a scale of each input that is inferred."""
    if not sampled:
        return priors.FanInNormal(3.0)
    return {
        "1.weight": priors.Hierarchical(REACH / math.sqrt(columns), df=4.0, groups="columns"),
        "[!1]*": priors.FanInNormal(GAIN),
        "1.bias": priors.Normal(1.0),
    }

"""The density around one place over which learning coefficients average, as one that samplers can use.

    p(w) ∝ exp(−nβ L_n(w) − (γ/2) |w − w*|²)

Its `log_likelihood` is −n (L_n(w) − L_n(w*)): the rise of the loss, without β, which samplers report with every
draw. On minibatches, gradients and rises are differences between w and w* on the same rows. The deviation at w* of
these rows from all rows is subtracted, to first order in w − w*. So there is little noise near w*, steps may be as
long as with all the data, and neither gradient nor rise has a bias.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import check_memory
from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import FunctionDensity, Stepwise, Value, ValueOnly
from torchbayes.geometry.networks import Place
from torchbayes.randomness.seeds import Purpose, mix

Rise = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Weights (M, D) -> n (L_n(w) − L_n(w*)), float64 (M,), and its gradient (M, D)."""


class Localised(Stepwise):
    """The density around w* (`weights_D`), with `localisation` γ and `inverse_temperature` β."""

    def __init__(self, rise: Rise, weights_D: Tensor, *, localisation: float, inverse_temperature: float) -> None:
        self._rise, self.weights_D = rise, weights_D
        self.localisation, self.inverse_temperature = localisation, inverse_temperature

    def __call__(self, weights_MD: Tensor, batch: Any = None) -> Value:
        """Return value and gradient of each row; a batch is ignored."""
        del batch
        rise_M, gradient_MD = self._rise(weights_MD)
        away_MD = weights_MD - self.weights_D
        log_density_M = -self.inverse_temperature * rise_M - self.localisation / 2 * away_MD.double().square().sum(-1)
        slope_MD = gradient_MD.mul(-self.inverse_temperature).sub_(away_MD, alpha=self.localisation)
        return Value(log_density_M, slope_MD, -rise_M)

    def value(self, weights_MD: Tensor, batch: Any = None) -> ValueOnly:
        """Return the value of each row."""
        value = self(weights_MD, batch)
        return ValueOnly(value.log_density, value.log_likelihood)

    def hotter(self, factor: float) -> Localised:
        """Return the density with β times a factor."""
        beta = factor * self.inverse_temperature
        return Localised(self._rise, self.weights_D, localisation=self.localisation, inverse_temperature=beta)


def rise_of_function(loss: Callable[[Tensor], Tensor], weights_D: Tensor, num_data: int) -> tuple[Rise, float]:
    """Return n times the rise of a function, weights (M, D) -> mean loss (M,), and its value at w*."""
    density = FunctionDensity(loss)
    at = float(density(weights_D.unsqueeze(0)).log_density[0])

    def rise(weights_MD: Tensor) -> tuple[Tensor, Tensor]:
        value = density(weights_MD)
        return num_data * (value.log_density - at), num_data * value.gradient

    return rise, at


def rise_on_all(place: Place, chunk_size: int) -> tuple[Rise, float]:
    """Return n times the rise of the mean loss of all the data, and the summed loss at w*."""
    density = _density(place, chunk_size)
    at = float(density.nll(place.weights_D.unsqueeze(0), buffers=place.stacked(1)).log_likelihood[0])

    def rise(weights_MD: Tensor) -> tuple[Tensor, Tensor]:
        value = density.nll(weights_MD, buffers=place.stacked(len(weights_MD)))
        return at - value.log_likelihood, value.gradient.mul_(place.rows.size)

    return rise, -at


def rise_on_batches(place: Place, chunk_size: int, *, chains: int, seed: int) -> tuple[Rise, float]:
    """Return an estimate of n times the rise that uses the next minibatch at every call, and the summed loss at w*.

    Each chain has its own order of the rows. Chunks of `chunk_size` rows are used for the sums over all data at w*.
    """
    density = _density(place, chunk_size)
    centre_MD = place.weights_D.expand(chains, -1)
    check_memory(4 * centre_MD[0].nbytes * chains, "the chains", centre_MD.device, chains=chains)
    at_centre = density.nll(centre_MD[:1], buffers=place.stacked(1))
    slope_D, size = at_centre.gradient[0].clone(), place.rows.size
    seeds = [mix(Purpose.COEFFICIENT_ROWS, seed, chain) for chain in range(chains)]
    batches = (batch for epoch in count() for batch in place.source.epoch(seeds, epoch))

    def rise(weights_MD: Tensor) -> tuple[Tensor, Tensor]:
        batch, members = next(batches), len(weights_MD)
        twice = batch.map(lambda t: t.repeat(2, *[1] * (t.ndim - 1)))
        value = density.nll(torch.cat([weights_MD, centre_MD]), twice, buffers=place.stacked(2 * members))
        off_MD = (value.gradient[members:] - slope_D).mul_(size)  # deviation of these rows from all rows at w*
        known_M = (off_MD * (weights_MD - place.weights_D)).sum(-1, dtype=torch.float64)
        rise_M = value.log_likelihood[members:] - value.log_likelihood[:members] - known_M
        return rise_M, value.gradient[:members].mul_(size).sub_(off_MD)

    return rise, -float(at_centre.log_likelihood[0])


def _density(place: Place, chunk_size: int) -> LogDensity:
    return LogDensity(place.model, place.rows.size, place.rows, chunk_size=chunk_size)

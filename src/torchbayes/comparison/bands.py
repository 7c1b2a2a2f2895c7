"""Six posteriors of one small network: what each predicts where there are data, and where there are none.

`python -m torchbayes.comparison.bands DIRECTORY` fits them, in about 20 s, and writes `bands.png`. Data, network,
likelihood and prior are the same for all; members and chains start at the same draws of the prior.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.model import Model
from torchbayes.model.likelihoods import Gaussian
from torchbayes.model.priors import FanInNormal
from torchbayes.networks import mlp
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.predict import predict
from torchbayes.report import figures, savefig
from torchbayes.selection.fit import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE = 0.2
NOTES = {
    "single network": "one fit, sure of itself everywhere",
    "SWAG": "one Gaussian, from the training path",
    "Laplace": "one Gaussian, from the curvature",
    "deep ensemble": "ten fits, which disagree in the gap",
    "MultiSWAG": "ten Gaussians, one around each fit",
    "HMC": "the posterior itself, sampled",
}
"""What each method is, in the order of the panels."""


@dataclass(frozen=True)
class Budget:
    """How long the methods run."""

    descent: int = 2000  # steps of training, each on all the data
    steps: int = 500  # of each chain of HMC
    members: int = 10  # of the ensemble, and of MultiSWAG
    draws: int = 200  # functions of SWAG, and of MultiSWAG


def observations() -> tuple[Tensor, Tensor]:
    """Return inputs and targets (40, 1): y = sin(2x) + 0.3x + 0.2 e, e ~ N(0, 1), x in [-2, -0.7] and [0.6, 2].

    Each interval has 20 inputs.
    """
    source = torch.Generator().manual_seed(0)
    left, right = torch.rand(2, 20, 1, generator=source)
    inputs = torch.cat([-2 + 1.3 * left, 0.6 + 1.4 * right])
    noise = NOISE * torch.randn(inputs.shape, generator=source)
    return inputs, torch.sin(2 * inputs) + 0.3 * inputs + noise


def posteriors(model: Model, data: tuple[Tensor, Tensor], budget: Budget) -> dict[str, Posterior]:
    """Return the posterior of each method, in the order of the panels."""
    starts, rows, adam = model.prior.sample(budget.members), len(data[0]), Adam(0.03)
    descent = MAP(epochs=budget.descent, optimizer=adam, batch_size=rows)
    half = budget.descent // 2  # epochs of two steps each, because SWAG measures the noise of minibatches
    swag = SWAG(epochs=half, optimizer=adam, batch_size=rows // 2, averaging_lr=0.01)
    hmc = HMC(chains=4, steps=budget.steps, burn_in=budget.steps // 3, trajectory=0.5)
    laplace = Laplace(structure="dense", prior="model")
    single = fit(model, data, descent, start=starts[:1])
    return {
        "single network": single,
        "SWAG": fit(model, data, swag, start=starts[:1]),
        "Laplace": fit(model, data, laplace, start=single),
        "deep ensemble": fit(model, data, replace(descent, members=budget.members), start=starts),
        "MultiSWAG": fit(model, data, replace(swag, members=budget.members), start=starts),
        "HMC": fit(model, data, hmc, start=starts[:4]),
    }


def picture(budget: Budget | None = None) -> Figure:
    """Fit the six methods and draw their bands: two rows of three panels."""
    budget = budget or Budget()
    inputs, targets = data = observations()
    network = mlp(1, 1, hidden=(10, 10), activation="tanh")
    model = Model(network, Gaussian(NOISE), FanInNormal(gain=3.0))
    x = torch.linspace(-3, 3, 241)
    draws = {"SWAG": budget.draws, "MultiSWAG": budget.draws}
    bands = {
        name: figures.Band.of(x, predict(posterior, x[:, None], draws=draws.get(name)))
        for name, posterior in posteriors(model, data, budget).items()
    }
    return figures.predictive_band(bands, inputs[:, 0], targets[:, 0], notes=NOTES)


def main(argv: Sequence[str]) -> None:
    """Write `bands.png` into the folder that the one argument names."""
    torch.set_num_threads(1)  # tensors this small gain nothing from threads
    print(f"Picture: {savefig(picture(), Path(*argv) / 'bands.png')}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Settings of `hmc_reference`.

All were chosen with seed 1000, which is none of the seeds that are run, on training rows left over by that seed. Step
sizes and momentum of SG-MCMC are those whose chains came closest to HMC in total variation on these rows, among step
sizes from 1e-6 to 4e-5. SGLD runs for the paper's 10,000 epochs. A first version had 4,000: its chains were further
away, on these rows (0.028 instead of 0.020) and on the test rows of seed 0, which had been looked at by then.

The prior, σ = 0.3, is the widest that is affordable: 0.5 needs twice the leapfrog steps. The result for NLL depends on
the prior. On the left-over rows HMC tied with the single network at σ = 0.3, and was worse for networks of tanh units
(σ from 0.15 to 1), for σ = 0.5, on whole MNIST images and with ten hidden units: there its average is under-confident.
All problems share one setting. Temperatures are fitted on left-over training rows too.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD, Adam
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.schedules import Cycles
from torchbayes.methods.sgmcmc.sghmc import SGHMC
from torchbayes.methods.sgmcmc.sgld import SGLD
from torchbayes_experiments.shared.image_hmc import CIFAR10, DIGITS, MNIST, NOISY_DIGITS, Problem, Problems, by_label

_EPOCH = 512  # steps of 80 rows


@dataclass(frozen=True)
class ReferenceRecipe(Problems):
    """The problems, and the methods that are compared with HMC on each.

    Attributes:
        ensemble: the deep ensemble; its members, each alone, are the single networks.
        sgld: stochastic gradient Langevin dynamics.
        sghmc: stochastic gradient Hamiltonian Monte Carlo.
        cyclical: SGHMC with a cyclical step size.
    """

    ensemble: MAP
    sgld: SGLD
    sghmc: SGHMC
    cyclical: SGHMC

    def problems(self) -> dict[str, Problem]:
        """Return the problems by their names in tables."""
        return by_label(self.digits, self.noisy, self.mnist)

    def methods(self) -> dict[str, MAP | Sampler]:
        """Return the methods that are compared with HMC, by name."""
        return {"deep ensemble": self.ensemble, "SGLD": self.sgld, "SGHMC": self.sghmc, "cSGHMC": self.cyclical}


SMALL = ReferenceRecipe(
    digits=DIGITS,
    noisy=NOISY_DIGITS,
    mnist=MNIST,
    ensemble=MAP(members=10, epochs=100, batch_size=100, optimizer=Adam(0.005)),
    sgld=SGLD(chains=2, steps=100_000, burn_in=10_000, thin=450, step_size=4e-5, batch_size=100),
    sghmc=SGHMC(chains=2, steps=20_000, burn_in=5000, thin=100, step_size=4e-6, batch_size=100, momentum=0.98),
    cyclical=SGHMC(
        chains=2,
        steps=40_000,
        burn_in=5000,
        thin=150,
        step_size=4e-6,
        batch_size=100,
        momentum=0.98,
        schedule=Cycles(5000, exploration=0.25, draws=20),
    ),
)

PAPER = ReferenceRecipe(
    digits=CIFAR10,
    noisy=None,
    mnist=None,
    ensemble=MAP(members=50, epochs=500, batch_size=80, optimizer=SGD(lr=3e-7 * 40_960, momentum=0.9)),
    sgld=SGLD(
        chains=1,
        steps=10_000 * _EPOCH,
        burn_in=1000 * _EPOCH,
        thin=10 * _EPOCH,
        step_size=1e-6,
        batch_size=80,
    ),
    sghmc=SGHMC(
        chains=1, steps=10_000 * _EPOCH, burn_in=1000 * _EPOCH, thin=10 * _EPOCH, step_size=3e-7, batch_size=80
    ),
    cyclical=SGHMC(
        chains=1,
        steps=10_000 * _EPOCH,
        burn_in=1000 * _EPOCH,
        step_size=3e-7,
        batch_size=80,
        momentum=0.95,
        schedule=Cycles(50 * _EPOCH, exploration=0.0),
        thin=1,
    ),
)

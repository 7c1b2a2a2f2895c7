"""Settings of `hmc_uci`."""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD
from torchbayes.methods.sgmcmc.sgld import SGLD

METHODS = ("SGD", "SGLD", "HMC")
METRICS = {"log_likelihood": "log likelihood", "rmse": "RMSE"}


@dataclass(frozen=True)
class UCIChainsRecipe:
    """Settings of all methods.

    Tuples have one entry for each set, chosen on a fifth of the training rows of its first splits, never on test rows.

    Attributes:
        sets: keys of `report.PUBLISHED`.
        prior_scale: standard deviation of the normal prior of all weights, the same for every method.
        lr: learning rate of SGD.
        sgld_step: step size of SGLD.
        splits: number of standard splits of each set, from the first on.
        width: number of hidden units.
        chains: number of chains of HMC and of SGLD, at most `members`; they start at networks trained by SGD, which
            shortens burn-in.
        steps: iterations of HMC, burn-in included.
        burn_in: of HMC; step sizes are adapted in it.
        trajectory: of HMC, before jitter, in units of √mass times weights; masses are adapted in burn-in.
        max_leapfrogs: maximum number of steps of a trajectory.
        target_acceptance: acceptance to which the step size is adapted.
        noise_floor: smallest noise variance, in squared units of standardised targets; without a floor, the noise of
            rows that are fitted well shrinks until only tiny steps are accepted.
        sgld_steps: steps of SGLD, burn-in included.
        sgld_draws: number of draws of each of its chains, from the second half of the steps.
        members: number of networks trained by SGD; the mean of their scores is that of a single network.
        epochs: of SGD.
        batch_size: rows per step of SGD and SGLD.
    """

    sets: tuple[str, ...] = ("yacht", "energy")
    prior_scale: tuple[float, ...] = (0.5, 0.3)
    lr: tuple[float, ...] = (0.01, 0.003)
    sgld_step: tuple[float, ...] = (1e-5, 1e-5)
    splits: int = 5
    width: int = 50
    chains: int = 2
    steps: int = 320
    burn_in: int = 120
    trajectory: float = 1.5
    max_leapfrogs: int = 1500
    target_acceptance: float = 0.75
    noise_floor: float = 1e-4
    sgld_steps: int = 40_000
    sgld_draws: int = 100
    members: int = 5
    epochs: int = 1000
    batch_size: int = 100

    def hmc(self) -> HMC:
        """Return full-batch HMC, with step size and mass of each chain adapted in burn-in."""
        return HMC(
            self.chains,
            self.steps,
            self.burn_in,
            trajectory=self.trajectory,
            jitter=0.2,
            mass="diagonal",
            max_leapfrogs=self.max_leapfrogs,
            target_acceptance=self.target_acceptance,
        )

    def sgd(self, lr: float) -> MAP:
        """Return stochastic gradient descent to the mode, of several networks at once."""
        return MAP(self.members, self.epochs, self.batch_size, SGD(lr, momentum=0.9))

    def sgld(self, step_size: float) -> SGLD:
        """Return SGLD on minibatches."""
        half = self.sgld_steps // 2
        return SGLD(
            self.chains,
            self.sgld_steps,
            half,
            half // self.sgld_draws,
            step_size=step_size,
            batch_size=self.batch_size,
        )


SMALL = UCIChainsRecipe()
PAPER = UCIChainsRecipe(splits=20, chains=4, steps=600, burn_in=200, sgld_steps=200_000)

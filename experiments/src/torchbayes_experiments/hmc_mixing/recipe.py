"""Settings of `hmc_mixing`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchbayes.methods.mcmc.hmc import HMC
from torchbayes_experiments.shared.image_hmc import CIFAR10, DIGITS, MNIST, NOISY_DIGITS, Problem, Problems, by_label


@dataclass(frozen=True)
class MixingRecipe(Problems):
    """The problems, each with its chains.

    Attributes:
        narrow: the small problem with few hidden units and a wide prior, where every unit has a distinct role that
            hardly changes along a chain; None to leave it out.
    """

    narrow: Problem | None

    def problems(self) -> dict[str, Problem]:
        """Return the problems by their names in tables."""
        return by_label(self.narrow, self.digits, self.noisy, self.mnist)


SMALL = MixingRecipe(
    digits=DIGITS,
    noisy=NOISY_DIGITS,
    mnist=MNIST,
    narrow=replace(
        DIGITS,
        label="digits, narrow network",
        hidden=(10,),
        prior_scale=1.0,
        hmc=HMC(chains=4, steps=100, burn_in=30),
    ),
)

PAPER = MixingRecipe(digits=CIFAR10, noisy=None, mnist=None, narrow=None)

"""Entries of Markov chains, on all the data and on minibatches."""

from __future__ import annotations

from torchbayes.catalogue.entries import Look, MethodEntry
from torchbayes.catalogue.usual import hmc, in_cycles, mile, sampler
from torchbayes.methods.langevin.mams import MAMS
from torchbayes.methods.langevin.mile import MILE
from torchbayes.methods.langevin.unadjusted import MCLMC, UnderdampedLangevin
from torchbayes.methods.mcmc.elliptical import EllipticalSlice
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.mcmc.metropolis import MALA, RandomWalk
from torchbayes.methods.mcmc.nuts import NUTS
from torchbayes.methods.schedules import Cycles
from torchbayes.methods.sgmcmc.sghmc import SGHMC
from torchbayes.methods.sgmcmc.sgld import SGLD
from torchbayes.methods.sgmcmc.sgnht import SGNHT
from torchbayes.methods.sgmcmc.smile import SMILE

CHAINS = (
    MethodEntry(
        "hmc",
        "Hamiltonian Monte Carlo on all the data, the reference",
        HMC,
        label="HMC",
        usual=hmc,
        alone=True,
        look=Look("#111111", "*"),
        is_reference=True,
        cost="Hundreds of gradients on all the data for each draw: for small data and networks, or for patience.",
    ),
    MethodEntry(
        "nuts",
        "Hamiltonian Monte Carlo that chooses the length of its trajectories",
        NUTS,
        label="NUTS",
        look=Look("#4a4e8c", ">"),
        cost="As HMC; up to 1,023 gradients on all the data for each draw.",
    ),
    MethodEntry(
        "mala",
        "Langevin dynamics with a Metropolis test",
        MALA,
        label="MALA",
        look=Look("#9a8c00", "8"),
        cost="One gradient on all the data for each step; many steps for a draw that is independent.",
    ),
    MethodEntry(
        "random_walk",
        "a random walk with a Metropolis test",
        RandomWalk,
        label="random walk",
        look=Look("#a3a9b3", "H"),
        cost="One pass over all the data for each step; for few weights alone.",
    ),
    MethodEntry(
        "elliptical_slice",
        "elliptical slice sampling, without gradients and settings",
        EllipticalSlice,
        label="elliptical slice",
        look=Look("#b35806", "h"),
        cost="Two to five passes over all the data for each step; for few weights, as in a subspace.",
    ),
    MethodEntry(
        "mclmc",
        "microcanonical Langevin dynamics, without rejections",
        MCLMC,
        label="MCLMC",
        look=Look("#00798c", "X"),
        also=("microcanonical",),
        cost="Two gradients on all the data for each step, however many weights there are.",
    ),
    MethodEntry(
        "mile",
        "a deep ensemble, and from each network a chain of microcanonical Langevin dynamics",
        MILE,
        label="MILE",
        look=Look("#b5179e", "D"),
        also=("ensemble_then_sample",),
        usual=mile,
        plain={"members": 5},
        start="ensemble",
        cost="The deep ensemble, and two gradients on all the data for each step of each chain.",
        length=lambda settings: f"the ensemble and {settings.sampler.steps:,} steps",
    ),
    MethodEntry(
        "mams",
        "microcanonical dynamics with a Metropolis test",
        MAMS,
        label="MAMS",
        look=Look("#8f2d56", "X"),
        cost="As HMC, with fewer gradients on all the data for a draw that is independent.",
    ),
    MethodEntry(
        "underdamped_langevin",
        "underdamped Langevin dynamics, without rejections",
        UnderdampedLangevin,
        label="underdamped Langevin",
        look=Look("#6a994e", "P"),
        cost="Two gradients on all the data for each step.",
    ),
    MethodEntry(
        "sgld",
        "stochastic gradient Langevin dynamics",
        SGLD,
        label="SGLD",
        usual=lambda usual: sampler(SGLD, usual, "sgld"),
        alone=True,
        look=Look("#56b4e9", "<"),
        cost="One gradient on a minibatch for each step: a training run for each chain.",
    ),
    MethodEntry(
        "sghmc",
        "stochastic gradient Hamiltonian Monte Carlo",
        SGHMC,
        label="SGHMC",
        usual=lambda usual: sampler(SGHMC, usual, "sghmc"),
        alone=True,
        look=Look("#cc79a7", "p"),
        cost="One gradient on a minibatch for each step: a training run for each chain.",
    ),
    MethodEntry(
        "csghmc",
        "stochastic gradient Hamiltonian Monte Carlo in cycles",
        SGHMC,
        label="cSGHMC",
        usual=in_cycles,
        plain={"burn_in": 0, "schedule": Cycles(2500, exploration=0.6, draws=25)},
        look=Look("#7a3e9d", "h"),
        cost="One gradient on a minibatch for each step: a training run for each chain.",
    ),
    MethodEntry(
        "sgnht",
        "a stochastic gradient Nosé-Hoover thermostat",
        SGNHT,
        label="SGNHT",
        look=Look("#2fa0a0", "P"),
        cost="One gradient on a minibatch for each step: a training run for each chain.",
    ),
    MethodEntry(
        "smile",
        "microcanonical Langevin dynamics on minibatches, refreshed",
        SMILE,
        label="SMILE",
        look=Look("#b08900", "*"),
        also=("psmile",),
        cost="A little more than one gradient on a minibatch for each step: a training run for each chain.",
    ),
)

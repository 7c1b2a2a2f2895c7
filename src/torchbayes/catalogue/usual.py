"""What is usual for a data set: the problem, the budget that its methods share, and settings that follow from both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torchbayes.catalogue.models import NETWORKS, OPEN, build_likelihood
from torchbayes.catalogue.problem import Problem
from torchbayes.data.base import check_name
from torchbayes.density.kernels import knows
from torchbayes.density.plans import BackendName
from torchbayes.methods.optimise.optimizers import Optimizer
from torchbayes.native.build import available


@dataclass(frozen=True)
class Budget:
    """What every method may spend on a data set, so that they are compared at equal cost.

    Attributes:
        epochs: of every optimiser.
        batch_size: rows per step.
        optimizer: update rule and learning rate of every optimiser.
        averaging_lr: learning rate while SWA and SWAG average.
        per_epoch: how often they collect weights in an epoch.
        chains: of every sampler on minibatches.
        steps: length of each of its chains.
        burn_in: steps of these before weights are kept.
        thin: steps from one weight kept to the next.
    """

    epochs: int
    batch_size: int
    optimizer: Optimizer
    averaging_lr: float
    per_epoch: int = 1
    chains: int = 4
    steps: int = 5000
    burn_in: int = 3000
    thin: int = 100


class Tuned(Protocol):
    """What has settings for a data set: an entry of a method."""

    def settings(self, usual: Usual) -> Any:
        """Return its settings there."""
        ...


@dataclass(frozen=True)
class Usual:
    """What is usual for one data set; `usual["swag"]` are the settings of an entry of the catalogue there.

    Attributes:
        family: data sets that share settings, such as "uci": what settings in a method's entry are listed by.
        problem: network, likelihood and prior.
        budget: what every method may spend; None where nothing was chosen for the data: each method then has its own
            defaults, as from Python, and held-out rows choose what these leave open.
        num_data: training rows.
        methods: names of the methods that a comparison compares by default.
        note: how the settings were chosen.
        entries: the methods that have settings here, by name.
    """

    family: str
    problem: Problem
    budget: Budget | None
    num_data: int
    methods: tuple[str, ...]
    note: str = ""
    entries: Mapping[str, Tuned] = field(default_factory=dict, repr=False)

    @property
    def plan(self) -> BackendName:
        """How a stack of members of the problem's network is run."""
        return usual_plan(self.problem)

    @property
    def method(self) -> str:
        """The class that a fit without a method has: on tables what predicts best by itself (docs/choosing.md)."""
        problem = self.problem
        evident = problem.prior == OPEN and problem.temperature == 1  # the evidence of another model is not known
        return "OnlineLaplace" if self.budget is None and problem.network == "mlp" and evident else "SWAG"

    def __getitem__(self, name: str) -> Any:
        """Return the settings of a method.

        Args:
            name: of its entry.

        Returns:
            The settings.
        """
        check_name("method", name, self.entries)
        return self.entries[name].settings(self)

    def of(self, problem: Problem) -> Usual:
        """Return what is usual for another problem on the same data."""
        return replace(self, problem=problem)


def usual_plan(problem: Problem) -> BackendName:
    """Return a plan, not measured: another plan rounds differently, and a run must give the same numbers again.

    Args:
        problem: what is run.

    Returns:
        "native" where the library has a kernel for network and likelihood; else "vmap" for fully connected networks,
        "loop" for others, and for those with dropout, whose members need random numbers of their own.
    """
    entry = NETWORKS.get(problem.network)
    if entry is None or problem.network_settings.get("dropout"):
        return "loop"
    if not entry.kernel or problem.place != "cpu" or not available():
        return entry.plan
    return "native" if knows(build_likelihood(problem.likelihood, problem.likelihood_settings)) else entry.plan

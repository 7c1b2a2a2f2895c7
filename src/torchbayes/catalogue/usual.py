"""What is usual for a data set: the problem, the budget that its methods share, and the settings that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torchbayes.catalogue.models import NETWORKS, OPEN, build_likelihood
from torchbayes.catalogue.problem import Problem
from torchbayes.checks import check_name
from torchbayes.density.kernels import knows
from torchbayes.density.plans import BackendName
from torchbayes.methods.optimise.optimizers import Optimizer
from torchbayes.native.build import available


@dataclass(frozen=True)
class Budget:
    """What every method may spend on a data set, so that they are compared at equal cost."""

    epochs: int  # of every optimiser
    batch_size: int
    optimizer: Optimizer  # of every optimiser
    averaging_lr: float  # while SWA and SWAG average
    per_epoch: int = 1  # how often they collect weights in an epoch
    chains: int = 4  # of every sampler on minibatches
    steps: int = 5000  # of each of its chains
    burn_in: int = 3000  # steps before weights are kept
    thin: int = 100  # steps from one kept weight to the next


class Tuned(Protocol):
    """What has settings for a data set: an entry of a method."""

    def settings(self, usual: Usual) -> Any:
        """Return its settings there."""
        ...


@dataclass(frozen=True)
class Usual:
    """What is usual for one data set; `usual["swag"]` are the settings of an entry of the catalogue there.

    `family` names data sets that share settings, such as "uci". Without a `budget` each method has its own defaults,
    as from Python, and held-out rows choose what these leave open.
    """

    family: str
    problem: Problem
    budget: Budget | None
    num_data: int  # training rows
    methods: tuple[str, ...]  # compared by default
    note: str = ""  # how the settings were chosen
    entries: Mapping[str, Tuned] = field(default_factory=dict, repr=False)

    @property
    def plan(self) -> BackendName:
        """How a stack of members of the problem's network is run."""
        return usual_plan(self.problem)

    @property
    def method(self) -> str:
        """Class of a fit without a method: on tables, the one that predicts best by itself (docs/choosing.md)."""
        problem = self.problem
        evident = problem.prior == OPEN and problem.temperature == 1  # the evidence of other models is not known
        return "OnlineLaplace" if self.budget is None and problem.network == "mlp" and evident else "SWAG"

    def __getitem__(self, name: str) -> Any:
        """Return the settings of a method by the name of its entry."""
        check_name("method", name, self.entries)
        return self.entries[name].settings(self)

    def of(self, problem: Problem) -> Usual:
        """Return what is usual for another problem on the same data."""
        return replace(self, problem=problem)


def usual_plan(problem: Problem) -> BackendName:
    """Return a plan by rule, not by timing, because plans round differently and a run must be reproducible.

    "native" if the library has a kernel for network and likelihood; else "vmap" for fully connected networks, "loop"
    for others, and for those with dropout, whose members need random numbers of their own.
    """
    entry = NETWORKS.get(problem.network)
    if entry is None or problem.network_settings.get("dropout"):
        return "loop"
    if not entry.kernel or problem.place != "cpu" or not available():
        return entry.plan
    return "native" if knows(build_likelihood(problem.likelihood, problem.likelihood_settings)) else entry.plan

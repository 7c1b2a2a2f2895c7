"""What is usual for a data set: the problem, the budget that its methods share, and the settings that follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from torchbayes.catalogue.models import NETWORKS, build_likelihood
from torchbayes.catalogue.problem import Problem
from torchbayes.checks import check_name
from torchbayes.density.kernels import knows
from torchbayes.density.plans import BackendName
from torchbayes.methods.langevin.mile import MILE
from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.laplace.online import OnlineLaplace
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.optimise.optimizers import Optimizer
from torchbayes.methods.protocol import Method
from torchbayes.methods.schedules import Cycles
from torchbayes.methods.sgmcmc.sghmc import SGHMC
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


class Automatic(NamedTuple):
    """A model and a method that go together."""

    problem: Problem
    method: Method[Any]


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
    automatic: Callable[[], Automatic] | None = None  # returns what a fit has where nothing else is asked for

    @property
    def plan(self) -> BackendName:
        """How a stack of members of the problem's network is run."""
        return usual_plan(self.problem)

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


# step sizes of samplers on minibatches, chosen by the NLL on a fifth of the training rows of the digits; for images
# derived from them, at the same learning rate on the mean loss, and not tested
_STEP_SIZES = {
    "sgld": {"digits": 3e-4, "two_moons": 1e-3, "toy": 1e-5, "uci": 1e-5},
    "sghmc": {"digits": 1e-4, "two_moons": 1e-4, "toy": 1e-6, "uci": 1e-6},
    "csghmc": {"digits": 1e-3, "two_moons": 1e-4, "toy": 1e-5, "uci": 1e-6},
}
_ON_THE_MEAN_LOSS = {"sgld": 0.14, "sghmc": 0.04, "csghmc": 0.14}
# factors on the prior's precision: the smallest of 1 to 3,000 whose NLL on a fifth of the training images is within
# 0.005 nats of the best: 0.093 there
_PRECISIONS: dict[str, float] = {"digits": 300.0}
_HMC: dict[str, dict[str, Any]] = {
    # step size chosen by acceptance, length by R-hat of predictions at test inputs
    "digits": {
        "steps": 250, "burn_in": 50, "step_size": 0.01, "trajectory": 0.8, "jitter": 0.2, "accept_in_burn_in": True
    },
    "two_moons": {"steps": 200, "burn_in": 100, "jitter": 0.2, "max_leapfrogs": 300},
    "toy": {
        "steps": 300, "burn_in": 60, "step_size": 0.001, "trajectory": 1.0, "jitter": 0.2, "accept_in_burn_in": True
    },
    "uci": {"steps": 400, "burn_in": 200, "jitter": 0.2, "max_leapfrogs": 300},
}  # fmt: skip


def _budget(usual: Usual) -> Budget:
    assert usual.budget is not None, "without a budget a method has its own defaults"
    return usual.budget


def budgeted(kind: type, *, times: int = 1, **settings: Any) -> Callable[[Usual], Any]:
    """Return what gives the settings of a trained method for a data set, by the budget there.

    What the method has of the budget (epochs, `times` as many; batch size, optimiser, plan, and how it averages) is
    that of the budget, except for `settings`.
    """

    def chosen(usual: Usual) -> Any:
        b = _budget(usual)
        shared = {"epochs": times * b.epochs, "batch_size": b.batch_size, "optimizer": b.optimizer, "plan": usual.plan}
        shared |= {"averaging_lr": b.averaging_lr, "per_epoch": b.per_epoch}
        return _with_known(kind, shared, settings)

    return chosen


def _with_known(kind: type, shared: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Return a method with those of the shared settings that it has, and with settings of its own."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{**{name: value for name, value in shared.items() if name in names}, **settings})


def sampler(kind: type, usual: Usual, name: str, **settings: Any) -> Any:
    """Return a sampler on minibatches with the budget of a data set."""
    b = _budget(usual)
    step_size = _STEP_SIZES[name].get(usual.family) or _ON_THE_MEAN_LOSS[name] / usual.num_data
    length = {"chains": b.chains, "steps": b.steps, "burn_in": b.burn_in, "thin": b.thin}
    rows = {"batch_size": b.batch_size, "plan": usual.plan}
    return kind(**{**length, "step_size": step_size, **rows, **settings})


def in_cycles(usual: Usual) -> SGHMC:
    """Return SGHMC in four cycles, together with as many draws as one chain gives after burn-in."""
    b = _budget(usual)
    cycles = Cycles(b.steps // 4, exploration=b.burn_in / b.steps, draws=(b.steps - b.burn_in) // b.thin // 4)
    return sampler(SGHMC, usual, "csghmc", burn_in=0, schedule=cycles)


def plain_settings(kind: type, usual: Usual, settings: Mapping[str, Any] | None = None) -> Any:
    """Return a method's own defaults on usual rows, with `settings` instead of some, for data it was not tuned for."""
    shared = {"plan": usual.plan} | ({} if usual.budget is None else {"batch_size": usual.budget.batch_size})
    return _with_known(kind, shared, settings or {})


def laplace(usual: Usual) -> Laplace:
    """Return Laplace around trained networks, with the prior precision that held-out rows chose, if any."""
    return Laplace(prior=_PRECISIONS.get(usual.family, "scalar"))


def mile(usual: Usual) -> MILE:
    """Return five networks and chains, run as others are on the data set."""
    default = MILE(members=5)
    sampler, ensemble = (dataclasses.replace(method, plan=usual.plan) for method in (default.sampler, default.ensemble))
    return dataclasses.replace(default, sampler=sampler, ensemble=ensemble)


def online_laplace(usual: Usual) -> OnlineLaplace:
    """Return online Laplace with the budget of a data set."""
    b = _budget(usual)
    return OnlineLaplace(optimizer=b.optimizer, epochs_of_descent=b.epochs, batch_size=b.batch_size, plan=usual.plan)


def hmc(usual: Usual) -> HMC:
    """Return HMC with the settings that were chosen for a data set, if any."""
    return HMC(**_HMC.get(usual.family, {}), plan=usual.plan)

"""Settings of methods in a comparison, from the usual settings of a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torchbayes.catalogue.usual import Budget, Usual
from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.laplace.online import OnlineLaplace
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.schedules import Cycles
from torchbayes.methods.sgmcmc.sghmc import SGHMC
from torchbayes.methods.variational.bsam import BSAM
from torchbayes.methods.variational.concrete import ConcreteDropout
from torchbayes.methods.variational.dropout import MCDropout
from torchbayes.methods.variational.ivon import IVON
from torchbayes.methods.variational.vbll import VBLL
from torchbayes.methods.variational.vi import VI

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
HMC_SETTINGS: dict[str, dict[str, Any]] = {
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


def ensemble(usual: Usual, members: int = 5, kind: type = MAP, *, plan: str | None = None) -> Any:
    """Return a method with trained members, with the budget of a data set."""
    budget = _budget(usual)
    return kind(members, budget.epochs, budget.batch_size, budget.optimizer, plan=plan or usual.plan)


def averaging(usual: Usual, members: int = 1) -> dict[str, Any]:
    """Return the settings that SWA and SWAG share."""
    b = _budget(usual)
    average = {"averaging_lr": b.averaging_lr, "per_epoch": b.per_epoch, "plan": usual.plan}
    return {"members": members, "epochs": b.epochs, "batch_size": b.batch_size, "optimizer": b.optimizer, **average}


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
    names = {field.name for field in dataclasses.fields(kind)}
    usual_values = {"plan": usual.plan} | ({} if usual.budget is None else {"batch_size": usual.budget.batch_size})
    return kind(**{**{name: value for name, value in usual_values.items() if name in names}, **(settings or {})})


def laplace(usual: Usual) -> Laplace:
    """Return Laplace around trained networks, with the prior precision that held-out rows chose, if any."""
    return Laplace(prior=_PRECISIONS.get(usual.family, "scalar"))


def online_laplace(usual: Usual) -> OnlineLaplace:
    """Return online Laplace with the budget of a data set."""
    b = _budget(usual)
    return OnlineLaplace(optimizer=b.optimizer, epochs_of_descent=b.epochs, batch_size=b.batch_size, plan=usual.plan)


def ivon(usual: Usual, members: int = 1) -> IVON:
    """Return IVON with five times the epochs of a data set's budget, because its scales take long."""
    b = _budget(usual)
    return IVON(members, 5 * b.epochs, b.batch_size, plan=usual.plan)


def bsam(usual: Usual, members: int = 1) -> BSAM:
    """Return bSAM with the budget of a data set."""
    b = _budget(usual)
    return BSAM(members, b.epochs, b.batch_size, plan=usual.plan)


def mean_field(usual: Usual, members: int = 1) -> VI:
    """Return variational inference with independent weights and a KL weight of 1, for as long as an ensemble takes."""
    b = _budget(usual)
    return VI(members=members, epochs=5 * b.epochs, batch_size=b.batch_size, kl_weight=1.0, plan=usual.plan)


def bounded(usual: Usual, kind: type) -> Any:
    """Return a method that fits a distribution by its bound on the evidence, with the budget of a data set."""
    b = _budget(usual)
    settings = {"epochs": b.epochs, "batch_size": b.batch_size, "optimizer": b.optimizer, "plan": usual.plan}
    return kind(kl_weight=1.0, **settings)


def mc_dropout(usual: Usual) -> MCDropout:
    """Return MC dropout with the budget of a data set."""
    b = _budget(usual)
    return MCDropout(epochs=b.epochs, batch_size=b.batch_size, optimizer=b.optimizer, plan="loop")


def concrete_dropout(usual: Usual) -> ConcreteDropout:
    """Return concrete dropout with the budget of a data set."""
    b = _budget(usual)
    return ConcreteDropout(epochs=b.epochs, batch_size=b.batch_size, optimizer=b.optimizer)


def vbll(usual: Usual) -> VBLL:
    """Return a variational last layer with a KL weight of 1, with the budget of a data set."""
    b = _budget(usual)
    return VBLL(epochs=b.epochs, batch_size=b.batch_size, optimizer=b.optimizer, kl_weight=1.0)

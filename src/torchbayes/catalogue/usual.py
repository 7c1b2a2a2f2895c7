"""Settings that are usual for a data set: one table of network, prior, and what every method takes there.

The samplers are among the `methods` of a comparison on the digits, on two moons and on `toy_sine`, where HMC takes
minutes at most. On other images gradients of all the data take too long; on the UCI sets, some of which have hardly any
noise, steps are so short that chains converge slowly. The samplers have settings there too, and run when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torchbayes.catalogue.config import Problem
from torchbayes.density.plans import Way
from torchbayes.methods import HMC, MAP, SGD, SGHMC, SGLD, SWAG, Adam, Laplace
from torchbayes.methods.schedules import Cycles
from torchbayes.native.build import available

OPTIMISED = ("single", "laplace", "ensemble", "swag", "multiswag")
SAMPLED = ("sgld", "sghmc", "csghmc", "hmc")


@dataclass(frozen=True)
class Defaults:
    """Settings of one data set: the same network and prior for every method, the same epochs for every optimiser.

    Attributes:
        problem: network, likelihood and prior.
        ensemble: MAP, several members.
        multiswag: SWAG, several members.
        laplace: Laplace at the single network.
        hmc: the reference.
        sgld: Langevin dynamics on minibatches.
        sghmc: Hamiltonian dynamics on minibatches.
        csghmc: the same in cycles.
        methods: what a comparison compares by default.
        note: how they were chosen.
    """

    problem: Problem
    ensemble: MAP
    multiswag: SWAG
    laplace: Laplace = Laplace()  # noqa: RUF009  (frozen and stateless, like those below)
    hmc: HMC = HMC()  # noqa: RUF009
    sgld: SGLD = SGLD()  # noqa: RUF009
    sghmc: SGHMC = SGHMC()  # noqa: RUF009
    csghmc: SGHMC = field(default_factory=lambda: SGHMC(schedule=Cycles()))
    methods: tuple[str, ...] = OPTIMISED
    note: str = ""

    def of(self, problem: Problem) -> Defaults:
        """Return these settings for another problem on the data, with the plan that its network has."""
        plan = usual_plan(problem)
        fits = {name: replace(getattr(self, name), plan=plan) for name in ("ensemble", "multiswag", *SAMPLED)}
        return replace(self, problem=problem, **fits)


def usual_plan(problem: Problem) -> Way:
    """Return a plan, not measured: another plan rounds differently, and a run must give the same numbers again.

    Args:
        problem: what is run.

    Returns:
        "native" where the library has a kernel; else "vmap" for fully connected networks, "loop" for others.
    """
    if problem.network in {"mlp", "small_cnn", "lenet"} and problem.place == "cpu" and available():
        return "native"
    return "vmap" if problem.network == "mlp" else "loop"


def defaults(data: str) -> Defaults:
    """Return the settings of a data set.

    Args:
        data: its name.

    Returns:
        The settings.

    Raises:
        ValueError: if there is no such data set, or no network here can take it.
    """
    from torchbayes.data import names
    from torchbayes.data.base import check_name

    check_name("data set", data, names())
    if data == "imdb":
        raise ValueError(
            "`imdb` holds texts, and no network here takes them. Fit a module of your own from Python, or evaluate "
            "published predictions: torchbayes evaluate --predictions FILE."
        )
    if data == "digits":
        # about the widest prior that HMC samples in minutes: at 1 logits are so large that steps must be far smaller
        problem = Problem(data, prior_scale=0.3, threads=1)
        found = _settings(problem, 60, 64, optimizer=SGD(0.15), averaging_lr=0.1, per_epoch=2)
        hmc = HMC(4, 46, 6, step_size=0.0036, trajectory=0.3, accept_in_burn_in=True, plan=found.hmc.plan)
        found = _sampled(found, hmc, (4, 1600, 960, 80), sgld=1e-4, sghmc=3e-5, csghmc=1e-4)
        return replace(found, note=_DIGITS)
    if data == "cifar10":  # 1/(N s²) is a weight decay of 3e-4, as in Maddox et al. (2019)
        problem = Problem(data, "preresnet20", prior_scale=0.25)
        return _carried_over(_settings(problem, 100, 128, optimizer=SGD(0.1), averaging_lr=0.02), 50_000, epochs=100)
    if data in {"mnist", "fashion_mnist", "kmnist"}:
        problem = Problem(data, "lenet", prior_scale=0.2)
        found = _settings(problem, 10, 128, optimizer=SGD(0.05), averaging_lr=0.02, per_epoch=4)
        return _carried_over(found, 60_000, epochs=10)
    if data == "two_moons":
        found = _settings(Problem(data, "mlp", threads=1), 300, 200, optimizer=Adam(0.01), averaging_lr=0.01)
        hmc = HMC(4, 200, 100, jitter=0.2, max_leapfrogs=300, plan=found.hmc.plan)
        return _sampled(found, hmc, (4, 5000, 3000, 100), sgld=1e-3, sghmc=1e-4, csghmc=1e-4)
    if data.startswith("toy_"):
        problem = Problem(data, "mlp", {"activation": "tanh"}, "gaussian", prior_scale=3.0, threads=1)
        found = _settings(problem, 600, 400, optimizer=Adam(0.01), averaging_lr=0.01)
        hmc = HMC(4, 300, 60, step_size=0.001, trajectory=1.0, jitter=0.2, accept_in_burn_in=True, plan=found.hmc.plan)
        found = _sampled(found, hmc, (4, 20000, 12000, 200), sgld=1e-5, sghmc=1e-6, csghmc=1e-5)
        return found if data == "toy_sine" else replace(found, methods=OPTIMISED)
    problem = Problem(data, "mlp", {"hidden": [50]}, "gaussian", prior_scale=0.4, threads=1)
    found = _settings(problem, 100, 100, optimizer=Adam(0.01), averaging_lr=0.003)
    hmc = HMC(4, 400, 200, jitter=0.2, max_leapfrogs=300, plan=found.hmc.plan)
    found = _sampled(found, hmc, (4, 5000, 3000, 100), sgld=1e-5, sghmc=1e-6, csghmc=1e-6)
    return replace(found, methods=OPTIMISED)


_DIGITS = (
    "Network, epochs and learning rates are shared by the optimisers. They were chosen by the NLL of the deep "
    "ensemble and of MultiSWAG in cross-validation on the training images, under a prior of scale 1; the prior here "
    "is narrower, because HMC cannot sample under that one in minutes. Step sizes of the samplers on minibatches "
    "were chosen by the NLL on a fifth of the training images; step size, trajectory and length of HMC by its "
    "acceptance and by R-hat of its predictions at test images. The labels of those had no part in it."
)


def _settings(
    problem: Problem, epochs: int, batch_size: int, *, optimizer: SGD | Adam, averaging_lr: float, per_epoch: int = 1
) -> Defaults:
    plan = usual_plan(problem)
    return Defaults(
        problem,
        MAP(5, epochs, batch_size, optimizer, plan=plan),
        SWAG(5, epochs, batch_size, optimizer, averaging_lr, per_epoch=per_epoch, plan=plan),
        Laplace(),
        HMC(plan=plan),
        SGLD(batch_size=batch_size, plan=plan),
        SGHMC(batch_size=batch_size, plan=plan),
        SGHMC(batch_size=batch_size, schedule=Cycles(), plan=plan),
    )


def _carried_over(usual: Defaults, num_data: int, *, epochs: int) -> Defaults:
    """Return settings with samplers as on the digits, at the same learning rates on the mean loss; not tried."""
    steps = epochs * num_data // usual.ensemble.batch_size // 100 * 100
    length = (4, steps, steps * 3 // 5, steps // 20)
    rates = {"sgld": 0.14 / num_data, "sghmc": 0.04 / num_data, "csghmc": 0.14 / num_data}
    return replace(_sampled(usual, usual.hmc, length, **rates), methods=OPTIMISED)


def _sampled(
    usual: Defaults, hmc: HMC, length: tuple[int, int, int, int], *, sgld: float, sghmc: float, csghmc: float
) -> Defaults:
    """Return settings with samplers: `length` is chains, steps, burn-in and thinning on minibatches."""
    chains, steps, burn_in, thin = length
    rest: dict[str, Any] = {"batch_size": usual.ensemble.batch_size, "plan": usual.ensemble.plan}
    # four cycles, together as many draws as one chain gives after burn-in
    cycles = Cycles(steps // 4, exploration=burn_in / steps, draws=(steps - burn_in) // thin // 4)
    return replace(
        usual,
        hmc=hmc,
        sgld=SGLD(chains, steps, burn_in, thin, step_size=sgld, **rest),
        sghmc=SGHMC(chains, steps, burn_in, thin, step_size=sghmc, **rest),
        csghmc=SGHMC(chains, steps, 0, thin, step_size=csghmc, schedule=cycles, **rest),
        methods=OPTIMISED + SAMPLED,
    )

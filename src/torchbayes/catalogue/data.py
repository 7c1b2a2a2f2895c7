"""Data sets by name, one entry each, with their usual settings, and those for data that users bring along.

The samplers are among the `methods` of a comparison on the digits, on two moons and on `toy_sine`, where HMC takes
minutes at most. On other images gradients of all the data take too long. On the UCI sets, some of which have hardly
any noise, steps are so short that chains converge slowly. The samplers have settings there too, and run when they are
named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torchbayes import data as room
from torchbayes.catalogue import tables
from torchbayes.catalogue.entries import DataEntry
from torchbayes.catalogue.imports import path_of
from torchbayes.catalogue.loading import GROUP, data_names, is_file
from torchbayes.catalogue.methods import METHODS, OPTIMISED, SAMPLED, VARIATIONAL_USUAL
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import Automatic, Budget, Usual
from torchbayes.checks import check_name
from torchbayes.data.vectors import UCI_SETS
from torchbayes.methods.optimise.optimizers import SGD, Adam

_DIGITS = (
    "The network is one that HMC converges on in less than a minute, in function space, so that the others are "
    "compared with the posterior. Epochs and learning rates are shared by the optimisers. Learning rates, the prior "
    "precision of Laplace and step sizes of the samplers on minibatches were chosen by the NLL on a fifth of the "
    "training images; step size and length of HMC by its acceptance and by R-hat of its predictions at test images, "
    "whose labels had no part in it. Mean field and IVON have five times the epochs, as many passes over the data as "
    "an ensemble of five, as their scales take long."
)


_usual = partial(Usual, entries=METHODS)


def _digits(name: str) -> Usual:
    # with a prior of scale 1 HMC needs three times as many gradients
    problem = Problem(name, "mlp", {"hidden": [50]}, prior_scale=0.5, threads=1)
    budget = Budget(60, 64, SGD(0.3), 0.1, per_epoch=2, steps=1600, burn_in=960, thin=80)
    return _usual("digits", problem, budget, 1437, OPTIMISED + VARIATIONAL_USUAL + SAMPLED, _DIGITS)


def _cifar10(name: str) -> Usual:  # 1/(N s²) is a weight decay of 3e-4, as in Maddox et al. (2019)
    problem = Problem(name, "preresnet20", prior_scale=0.25)
    return _usual("images", problem, _as_long(100, 128, 50_000, SGD(0.1), 0.02), 50_000, OPTIMISED)


def _mnist(name: str) -> Usual:
    problem = Problem(name, "lenet", prior_scale=0.2)
    return _usual("images", problem, _as_long(10, 128, 60_000, SGD(0.05), 0.02, per_epoch=4), 60_000, OPTIMISED)


def _as_long(
    epochs: int, batch_size: int, num_data: int, optimizer: SGD | Adam, averaging_lr: float, per_epoch: int = 1
) -> Budget:
    """Return an untested budget in which chains take as many steps as the optimisers."""
    steps = max(epochs * num_data // batch_size // 100, 1) * 100
    return Budget(
        epochs, batch_size, optimizer, averaging_lr, per_epoch, steps=steps, burn_in=steps * 3 // 5, thin=steps // 20
    )


def _two_moons(name: str) -> Usual:
    budget = Budget(300, 200, Adam(0.01), 0.01, steps=5000, burn_in=3000, thin=100)
    return _usual("two_moons", Problem(name, "mlp", threads=1), budget, 200, OPTIMISED + SAMPLED)


def _toy(name: str) -> Usual:
    problem = Problem(name, "mlp", {"activation": "tanh"}, "gaussian", prior_scale=3.0, threads=1)
    budget = Budget(600, 400, Adam(0.01), 0.01, steps=20000, burn_in=12000, thin=200)
    return _usual("toy", problem, budget, 80, OPTIMISED + SAMPLED if name == "toy_sine" else OPTIMISED)


def _uci(name: str) -> Usual:
    problem = Problem(name, "mlp", {"hidden": [50]}, "gaussian", prior_scale=0.4, threads=1)
    budget = Budget(100, 100, Adam(0.01), 0.003, steps=5000, burn_in=3000, thin=100)
    return _usual("uci", problem, budget, 506, OPTIMISED)


def untuned(name: str, settings: Mapping[str, Any] | None = None, target: str | None = None) -> Usual:
    """Return usual settings for data for which nothing was chosen, such as the user's.

    Methods have their own defaults, and held-out rows choose what these leave open, as from Python. Network and
    likelihood depend on the data: images or not, classes or a regression.
    """
    problem = Problem(name, "small_cnn", prior_scale=None, data_settings=dict(settings or {}), target=target)
    data = problem.load()
    if not data.is_image:
        problem = replace(problem, network="mlp", threads=1)
    if data.task == "regression":
        problem = replace(problem, likelihood="gaussian")
    usual = _usual("own", problem, None, len(data.train.inputs), OPTIMISED)
    return usual if data.is_image else replace(usual, automatic=partial(_of_table, problem, data))


def _of_table(problem: Problem, data: room.Data) -> Automatic:
    """Return what predicts a table best; its model is for a method that is chosen with it."""
    prior, method = tables.recommended(len(data.train.inputs), data.task)
    together = replace(
        problem,
        network=tables.NETWORK,
        network_settings={"hidden": [*tables.HIDDEN]},
        likelihood="heteroscedastic" if data.task == "regression" else problem.likelihood,
        prior=prior.name,
        prior_scale=prior.scale,
        prior_settings=prior.settings,
    )
    return Automatic(together, method)


_USUAL: dict[str, Callable[[str], Usual] | None] = {
    "digits": _digits,
    "cifar10": _cifar10,
    **dict.fromkeys(("mnist", "fashion_mnist", "kmnist"), _mnist),
    "two_moons": _two_moons,
    **dict.fromkeys(("toy_sine", "toy_izmailov", "toy_drbayes"), _toy),
    **dict.fromkeys(UCI_SETS, _uci),
    "imdb": None,
}
DATA: dict[str, DataEntry] = {
    name: DataEntry(name, line, room.load, _USUAL.get(name, untuned)) for name, line in room.names().items()
}


def defaults(name: str, settings: Mapping[str, Any] | None = None, target: str | None = None) -> Usual:
    """Return problem, budget and methods that are usual for a data set.

    `settings` and the `target` column are those of a user's data. Raises ValueError if there is no such data set, or
    no network here can take it.
    """
    if name not in DATA:
        if path_of(name, GROUP) is not None or is_file(name):
            return untuned(name, settings, target)
        check_name("data set", name, data_names())
    usual = DATA[name].usual
    if usual is None:
        raise ValueError(
            f"`{name}` holds texts, and no network here takes them. Fit a module of your own from Python, or evaluate "
            "published predictions: torchbayes evaluate --predictions FILE."
        )
    return usual(name)

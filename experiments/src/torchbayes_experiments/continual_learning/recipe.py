"""Settings of `continual_learning`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.variational.vi import VI
from torchbayes.sequences.coresets import KCentre, Random

VCL, RANDOM, CENTRES = "VCL", "VCL, random coreset", "VCL, k-centre coreset"
DIAGONAL, KRONECKER, TUNED = "diagonal Laplace (EWC)", "Kronecker Laplace", "fine-tuning"
KINDS = (VCL, RANDOM, CENTRES, DIAGONAL, KRONECKER, TUNED)
PERMUTED, SPLIT = "permuted", "split"


@dataclass(frozen=True)
class Scenario:
    """One sequence of tasks.

    Attributes:
        tasks: number of tasks.
        hidden: widths of the network.
        coreset: rows of each task that are set aside.
        epochs: of every fit of VCL.
        map_epochs: of every fit of the others, and of the network that VCL begins at.
        batch_size: rows per step.
        lr: learning rate of VCL's Adam, which falls to 0 in every fit.
        map_lr: that of the others.
        train_size: training rows of each task, at most; None for all.
        test_size: test rows of each task, at most; None for all.
        plan: how the runs are computed.
    """

    tasks: int = 5
    hidden: tuple[int, ...] = (100, 100)
    coreset: int = 200
    epochs: int = 15
    map_epochs: int = 10
    batch_size: int = 256
    lr: float = 3e-3
    map_lr: float = 1e-3
    train_size: int | None = 20_000
    test_size: int | None = 2_000
    plan: str = "native"


@dataclass(frozen=True)
class ContinualRecipe:
    """Settings of both scenarios.

    Attributes:
        permuted: the same ten classes in every task, pixels in another order.
        split: two classes in every task, each with its own head.
        data: an image data set by name, of ten classes.
        prior_scale: of every weight before the first task.
        initial_scale: standard deviation of every weight where VCL begins, and the widest one where it goes on.
    """

    permuted: Scenario = Scenario()
    split: Scenario = Scenario(hidden=(256, 256), coreset=40, epochs=20, map_epochs=30, train_size=4_000, plan="loop")
    data: str = "mnist"
    prior_scale: float = 1.0
    initial_scale: float = 0.02

    def sequence(self, kind: str, scenario: Scenario) -> tuple[Any, dict[str, Any]]:
        """Return the method of a kind, and what else `sequence` is given."""
        rule: dict[str, Any] = {"batch_size": scenario.batch_size, "plan": scenario.plan}
        found = MAP(epochs=scenario.map_epochs, optimizer=Adam(scenario.map_lr), **rule)
        if kind == TUNED:
            return found, {}
        if kind in {DIAGONAL, KRONECKER}:
            structure = "diagonal" if kind == DIAGONAL else "kronecker"
            return Laplace(structure, prior="model", check_mode=False), {"seeker": found}
        begin: dict[str, Any] = {"initial_scale": self.initial_scale, "kl_weight": 1.0}
        method = VI(epochs=scenario.epochs, optimizer=Adam(scenario.lr), **begin, **rule)
        coresets = {RANDOM: Random(scenario.coreset), CENTRES: KCentre(scenario.coreset)}
        return method, {"seeker": found, "coreset": coresets.get(kind)}


SMALL = ContinualRecipe()
PAPER = ContinualRecipe(
    permuted=Scenario(tasks=10, epochs=100, map_epochs=100, train_size=None, test_size=None, plan="auto"),
    split=Scenario(
        hidden=(256, 256),
        coreset=40,
        epochs=120,
        map_epochs=120,
        batch_size=20_000,
        train_size=None,
        test_size=None,
        plan="auto",
    ),
)

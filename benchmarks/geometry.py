"""What subspaces, curves and loss surfaces cost over the plain evaluations that they are made of.

    python -m benchmarks.geometry [CASE ...]

| case      | work                                                      | over                                 | aim  |
|-----------|-----------------------------------------------------------|--------------------------------------|------|
| slice     | a step of `EllipticalSlice` in a subspace, an evaluation  | the log density of all weights       | 1.1  |
| gradients | a step of `HMC` and of `NUTS` in a subspace, a gradient   | its gradient in all weights          | 1.1  |
| curve     | a training step of `Curve`, batch 128                     | one of `MAP` with the same optimiser | 1.15 |
| surface   | `geometry.surface`, a point of the grid                   | the loss of one network              | 1.05 |

Subspaces have rank 5, and their networks are a perceptron 784-400-400-10 (ReLU, 2,000 rows), one of the size of UCI
tables, 13-50-1 (ReLU, 455 rows), and 1-50-50-1 (tanh, 100 rows). A plain evaluation is a call of `LogDensity` on the
whole network, which goes through the library's kernel; beside it stand the same by plain PyTorch, and a call of
`LogDensity` in the subspace, which tells the cost of the space from that of the sampler. A plain loss of a surface is
that of `nn.functional.cross_entropy` or of `LogDensity.value`, whichever is given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import Work, race, report
from torchbayes.geometry import Plane, surface
from torchbayes.networks import build

RANK, BATCH, NUM_DATA, POINTS = 5, 128, 60_000, 51


@dataclass(frozen=True)
class Problem:
    """A network and its made-up rows.

    Attributes:
        name: in titles.
        shape: of the inputs of a row.
        outputs: classes, or 1 for a regression.
        rows: number of rows.
        network: makes a fresh one.
    """

    name: str
    shape: tuple[int, ...]
    outputs: int
    rows: int
    network: Callable[[], nn.Module]

    @property
    def classes(self) -> bool:
        """Whether it is a classification."""
        return self.outputs > 1

    def data(self) -> tb.Batch:
        """Return its rows."""
        source = torch.Generator().manual_seed(0)
        inputs = torch.randn(self.rows, *self.shape, generator=source)
        if self.classes:
            return tb.Batch(inputs, torch.randint(self.outputs, (self.rows,), generator=source))
        return tb.Batch(inputs, torch.randn(self.rows, self.outputs, generator=source))

    def model(self, *, module: bool = True) -> tb.Model:
        """Return the model, of a network with weights or of a function that makes one."""
        torch.manual_seed(0)
        likelihood = tb.likelihoods.Categorical() if self.classes else tb.likelihoods.Gaussian(0.3)
        return tb.Model(self.network() if module else self.network, likelihood, tb.priors.Normal(0.3))


def perceptron(*sizes: int, activation: str = "relu") -> Callable[[], nn.Module]:
    """Return a function that makes a perceptron of these widths."""
    return lambda: build("mlp", sizes[:1], sizes[-1], hidden=sizes[1:-1], activation=activation)


def lenet() -> nn.Module:
    """Return a LeNet 20-50-500."""
    return build("lenet", (1, 28, 28), 10)


LARGE = Problem("MLP 784-400-400-10", (784,), 10, 2000, perceptron(784, 400, 400, 10))
SPACES = (
    LARGE,
    Problem("MLP 13-50-1", (13,), 1, 455, perceptron(13, 50, 1)),
    Problem("MLP 1-50-50-1 (tanh)", (1,), 1, 100, perceptron(1, 50, 50, 1, activation="tanh")),
)
CURVES = (LARGE, Problem("LeNet 20-50-500", (1, 28, 28), 10, BATCH, lenet))
SURFACES = (
    Problem("MLP 64-50-10", (64,), 10, 1000, perceptron(64, 50, 10)),
    Problem("MLP 784-100-10", (784,), 10, 1000, perceptron(784, 100, 10)),
    Problem("LeNet 20-50-500", (1, 28, 28), 10, 1000, lenet),
)
GRIDS = {"LeNet 20-50-500": 5}  # one of 51 x 51 takes minutes, and its plain evaluations as well


def clock() -> Callable[[], float]:
    """Return the clock: the time of the process on one thread, which is less noisy beside other work."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def by_hand(problem: Problem, rows: tb.Batch, *, gradient: bool) -> Work:
    """Return the log density as one would write it, on a network that holds its weights, with or without gradient."""
    net = problem.network()
    parameters = list(net.parameters())

    def log_density() -> Tensor:
        outputs = net(rows.inputs)
        if problem.classes:
            likelihood = -F.cross_entropy(outputs, rows.targets, reduction="sum")
        else:
            likelihood = -0.5 * ((outputs - rows.targets) / 0.3).square().sum()
        return likelihood - 0.5 * sum((p / 0.3).square().sum() for p in parameters)

    def value() -> int:
        with torch.no_grad():
            float(log_density())
        return 1

    def both() -> int:
        float((density := log_density()).detach())
        torch.autograd.grad(density, parameters)
        return 1

    return both if gradient else value


def evaluation(model: tb.Model, rows: tb.Batch, weights_D: Tensor, *, gradient: bool) -> Work:
    """Return one evaluation of the log density of all rows at one point, as the samplers call it."""
    density = tb.LogDensity(model, rows.size, rows)
    weights_MD = weights_D.unsqueeze(0).clone()
    call = density if gradient else density.value

    def work() -> int:
        float(call(weights_MD).log_density)
        return 1

    return work


def sampler(method: Any, model: tb.Model, rows: tb.Batch, weights_D: Tensor) -> Work:
    """Return one step of a sampler of one chain, which tells its evaluations."""
    density = tb.LogDensity(model, rows.size, rows)
    seeds = tb.member_seeds(0, 1)
    state = method.init(density, weights_D.unsqueeze(0), seeds=seeds)

    def work() -> int:
        nonlocal state
        state, info = method.step(density, state)
        return int(info.means()["gradients"])

    return work


def in_subspace(problem: Problem, *, gradient: bool, rounds: int) -> dict[str, float]:
    """Time samplers in a subspace over the plain evaluations that they need."""
    model, rows = problem.model(), problem.data()
    whole_D = model.network.weights()
    space = tb.Subspace.random(model, whole_D, RANK)
    inner, start_R = space.model, space.coordinates(whole_D)
    length: dict[str, Any] = {"chains": 1, "steps": 10**9, "burn_in": 0}
    if gradient:
        samplers = {
            "HMC in the subspace": tb.HMC(**length, step_size=0.005, trajectory=16 * 0.005),
            "NUTS in the subspace": tb.NUTS(**length, step_size=0.005, mass="unit", max_doublings=4),
        }
    else:
        samplers = {"EllipticalSlice in the subspace": tb.EllipticalSlice(**length)}
    ways = {
        "all weights": evaluation(model, rows, whole_D, gradient=gradient),
        "all weights, plain PyTorch": by_hand(problem, rows, gradient=gradient),
        "in the subspace": evaluation(inner, rows, start_R, gradient=gradient),
        **{name: sampler(method, inner, rows, start_R) for name, method in samplers.items()},
    }
    title = f"{'Gradient' if gradient else 'Log density'}, {problem.name}, {rows.size:,} rows"
    return report(title, race(ways, rounds=rounds, warmup=1, counted=True, clock=clock()), "all weights")


def training(method: Any, problem: Problem, *, ends: int) -> Work:
    """Return one step of a method on one minibatch, from so many networks."""
    model, rows = problem.model(module=False), problem.data()
    batch = rows.map(lambda t: t[:BATCH].unsqueeze(0))
    seeds = tb.member_seeds(0, ends)
    density = tb.LogDensity(model, NUM_DATA, training=True)
    begin = model.starting_weights(seeds)
    state = method.init(density, *begin, seeds=seeds[:1], steps_per_epoch=-(-NUM_DATA // BATCH))

    def work() -> None:
        nonlocal state
        state, _ = method.step(density, state, batch, donate=True)

    return work


def on_curves(problem: Problem, *, rounds: int) -> None:
    """Time steps of `Curve` over those of `MAP`.

    The learning rate is so small that the networks never fit their one batch by heart: once they do, gradients become
    denormal numbers, on which every way is slow.
    """
    for optimizer in (tb.SGD(1e-6), tb.Adam(1e-6)):
        long: dict[str, Any] = {"epochs": 10_000, "optimizer": optimizer}
        ways = {
            "MAP": training(tb.MAP(**long), problem, ends=1),
            "Curve, one bend": training(tb.Curve(**long), problem, ends=2),
            "Curve, three bends": training(tb.Curve(bends=3, **long), problem, ends=2),
        }
        title = f"Training step, {problem.name}, {type(optimizer).__name__}"
        report(title, race(ways, rounds=rounds, clock=clock()), "MAP")


def on_a_surface(problem: Problem, *, rounds: int) -> None:
    """Time a loss surface over evaluations of its loss, a point of the grid."""
    model, rows = problem.model(), problem.data()
    net, plane = problem.network(), Plane.random(model, model.network.weights())
    points = GRIDS.get(problem.name, POINTS)
    density = tb.LogDensity(model, rows.size, rows)
    weights_MD = model.network.weights().unsqueeze(0)

    def grid() -> int:
        surface(model, rows, plane, points=points)
        return points**2

    def by_hand() -> int:
        for _ in range(points**2):
            with torch.no_grad():
                outputs = net(rows.inputs)
                float(F.cross_entropy(outputs, rows.targets))
                float((outputs.argmax(-1) != rows.targets).double().mean())
        return points**2

    def plain() -> int:
        for _ in range(points**2):
            float(density.value(weights_MD).log_density)
        return points**2

    ways: dict[str, Work] = {"the kernel's loss": plain, "plain PyTorch, loss and error": by_hand, "surface": grid}
    timings = race(ways, rounds=rounds, warmup=0, block=0.0, counted=True, clock=clock())
    report(f"Surface of {points} x {points}, {problem.name}, a point", timings, "plain PyTorch, loss and error")


def main(arguments: list[str] | None = None) -> None:
    """Print the tables.

    Args:
        arguments: those of the command line if None.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases: dict[str, Callable[[int], object]] = {
        "slice": lambda rounds: [in_subspace(each, gradient=False, rounds=rounds) for each in SPACES],
        "gradients": lambda rounds: [in_subspace(each, gradient=True, rounds=rounds) for each in SPACES],
        "curve": lambda rounds: [on_curves(each, rounds=rounds) for each in CURVES],
        "surface": lambda rounds: [on_a_surface(each, rounds=max(1, rounds // 3)) for each in SURFACES],
    }
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(cases)}; all if none is given")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    if unknown := set(options.cases) - cases.keys():
        parser.error(f"there is no case {', '.join(sorted(unknown))}; cases are {', '.join(cases)}.")
    for name in options.cases or cases:
        cases[name](options.rounds)


if __name__ == "__main__":
    main([])

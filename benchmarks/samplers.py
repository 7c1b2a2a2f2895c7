"""Samplers against blackjax, numpyro and posteriors: one leapfrog step of HMC, one step of SGHMC and SGLD.

    python -m benchmarks.samplers [CASE ...]        after benchmarks/peers/setup.sh

| case                 | work                                                                                    |
|----------------------|-----------------------------------------------------------------------------------------|
| digits-1, digits-8   | HMC of MLP 64-50-50-10 (tanh), 1,437 digits, 1 and 8 chains, 100 leapfrog steps         |
| sine-1, sine-8       | HMC of MLP 1-50-50-1 (tanh), 100 points, 1 and 8 chains, 100 leapfrog steps             |
| conv-1, conv-4       | HMC of conv16-conv32-linear (ReLU), 1,437 digits, 1 and 4 chains, 4 leapfrog steps      |
| sghmc, sgld          | 20 steps of MLP 784-400-400-10 (ReLU), batch 128 in memory, with the noise they need    |

Data and starting weights are the same in every library (benchmarks/peers/work.py), and a case is only timed when all of
them find the same log density there. Below each table stands the floor: what the products of one forward and backward
pass take at the rate of a large matrix product, measured in the same run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import Timing, Work, report
from benchmarks.peers.client import ROOT, Clock, Peer, alternate, clock
from benchmarks.peers.work import CASES, NOISE_SCALE, PRIOR_SCALE, Case, problem

Ours = Callable[[Case], dict[str, Work]]


def network(case: Case) -> nn.Module:
    """Return the network of a case."""
    if case.network == "conv":
        features, outputs = case.widths
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * features, outputs),
        )  # fmt: skip
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(case.widths):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh() if case.activation == "tanh" else nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def start(case: Case) -> tuple[tb.LogDensity, Tensor, tb.Batch | None]:
    """Return what our side of a case works on.

    Args:
        case: the case.

    Returns:
        The density, the starting weights (M, D), and the minibatch (M, B, ...), None for full-batch samplers.
    """
    numbers = problem(case)
    shape = (-1, 1, 8, 8) if case.network == "conv" else (-1, case.widths[0])
    rows = tb.Batch(torch.from_numpy(numbers.inputs).reshape(shape), torch.from_numpy(numbers.targets))
    likelihood = tb.likelihoods.Gaussian(NOISE_SCALE) if case.data == "sine" else tb.likelihoods.Categorical()
    model = tb.Model(network(case), likelihood, tb.priors.Normal(PRIOR_SCALE))
    weights_MD = torch.cat([torch.from_numpy(weight).flatten(1) for weight in numbers.weights], dim=1)
    if case.method == "hmc":
        return tb.LogDensity(model, numbers.num_data, rows), weights_MD, None
    return tb.LogDensity(model, numbers.num_data), weights_MD, rows.map(lambda t: t.expand(case.chains, *t.shape))


def torchbayes(case: Case) -> dict[str, Work]:
    """Return one unit of a case's work by this library's samplers, accept step and fresh momenta included."""
    density, weights_MD, batch = start(case)
    length: dict[str, Any] = {"chains": case.chains, "steps": 10**9, "burn_in": 0}
    if case.method == "hmc":
        trajectory = case.steps * case.step_size
        method: tb.HMC | tb.SGHMC | tb.SGLD = tb.HMC(**length, step_size=case.step_size, trajectory=trajectory)
    else:
        kind = tb.SGHMC if case.method == "sghmc" else tb.SGLD
        method = kind(**length, step_size=case.step_size, batch_size=128)
    state = method.init(density, weights_MD, seeds=tb.member_seeds(0, case.chains))

    def run() -> None:
        nonlocal state
        for _ in range(1 if case.method == "hmc" else case.steps):
            state, _ = method.step(density, state, batch, donate=True)  # type: ignore[arg-type]

    return {"torchbayes": run}


def products(case: Case) -> int:
    """Return the floating-point operations of the products of one gradient of all chains.

    Two for each weight, row and place where it is used; forward, for the weights and for the inputs of each layer, of
    which the first needs no gradient.
    """
    rows = len(problem(case).targets)
    if case.network == "conv":
        features, outputs = case.widths
        layers = [features * 9 * 16, features * 9 * 16 * 32, 32 * features * outputs]
    else:
        layers = [fan_in * fan_out for fan_in, fan_out in pairwise(case.widths)]
    return 2 * rows * case.chains * (3 * sum(layers) - layers[0])


def matrix_rate(size: int = 1024, rounds: int = 20) -> float:
    """Return operations per second of a product of large float32 matrices, the best of some rounds."""
    left, right = torch.randn(2, size, size)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def compare(
    case: Case,
    ours: Mapping[str, Work],
    *,
    ways: tuple[str, ...],
    where: Path,
    rounds: int = 7,
    block: float = 0.3,
    patience: float = 60.0,
) -> dict[str, float]:
    """Time our ways and the peers' in turn, and print the table: time per step of all chains together.

    Args:
        case: the case.
        ours: name -> function that does one unit of the work: `case.steps` steps of every chain from where it stands.
        ways: the peers, as in `Peer`.
        where: the environments of the peers.
        rounds: number of rounds.
        block: seconds that a timed block lasts at least.
        patience: seconds to spend on waiting for a quiet machine.

    Returns:
        name -> how many times faster than the first peer.
    """
    density, weights_MD, batch = start(case)
    expected_M = density(weights_MD, batch).log_density
    clocks: dict[str, Clock] = {}
    for name, work in ours.items():
        for _ in range(2):
            work()
        clocks[name] = clock(work)
    pids = []
    with ExitStack() as stack:
        for way in ways:
            peer = stack.enter_context(Peer(way, case.name, where=where))
            pids.append(peer.pid)
            found_M = torch.tensor(peer.values, dtype=torch.float64)
            torch.testing.assert_close(found_M, expected_M, rtol=1e-5, atol=1e-2, msg=lambda m, w=way: f"{w}: {m}")
            clocks[way] = peer.time
        race = alternate(clocks, ours=pids, rounds=rounds, block=block, patience=patience)
    steps = [Timing(each.name, [seconds / case.steps for seconds in each.seconds]) for each in race.timings]
    floor = products(case) / matrix_rate()
    shares = ", ".join(f"{each.name} {floor / each.median:.0%}" for each in steps if each.name in ours)
    note = (
        f"Products alone at the rate of a large matrix: {floor * 1e3:.3f} ms; share of that rate: {shares}. "
        f"Other processes used up to {race.others:.1f} of {os.cpu_count()} cores meanwhile."
    )
    return report(f"{case.name}: one step of {case.chains} chains", steps, ways[0], note)


def main(ours: Ours = torchbayes, arguments: list[str] | None = None) -> None:
    """Print the tables.

    Args:
        ours: case -> our ways of doing its work.
        arguments: those of the command line if None.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=[], help=f"of {', '.join(CASES)}; all unless given")
    parser.add_argument("--where", type=Path, default=ROOT / ".peers", help="where setup.sh made the environments")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=float, default=0.3, help="seconds that a timed block lasts at least")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait in all for a quiet machine")
    parser.add_argument("--slow", action="store_true", help="with the peers that take seconds for a step")
    options = parser.parse_args(arguments)
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}.")
    for name in options.cases or CASES:
        case = CASES[name]
        compare(
            case,
            ours(case),
            ways=case.peers + (case.slow if options.slow else ()),
            where=options.where,
            rounds=options.rounds,
            block=options.block,
            patience=options.patience,
        )


if __name__ == "__main__":
    main()

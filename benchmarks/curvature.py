"""Laplace approximations against laplace-torch with each of its backends: time and peak memory.

    python -m benchmarks.curvature [TASK ...]        after benchmarks/peers/setup.sh; tasks by name, or by part of it
    python -m benchmarks.curvature --peers           without our side

A task is CASE/WORK/STRUCTURE, such as mlp/fit/kron.

| case         | network, data                                                                                  |
|--------------|------------------------------------------------------------------------------------------------|
| mlp          | 784-400-400-10 (ReLU), 10,000 rows of noise                                                    |
| lenet        | LeNet 20-50-500, 10,000 images of MNIST                                                        |
| resnet20_frn | ResNet-20, 2,000 images of CIFAR-10; weights of its filter response normalisation are constants |

| work     | a unit of it                                                                                       |
|----------|----------------------------------------------------------------------------------------------------|
| fit      | one pass over the rows, exact GGN; Kronecker factors are decomposed                                |
| predict  | GLM predictive and probit link of 2,000 rows                                                       |
| evidence | one step of ascent on the log evidence by one prior precision: theirs of Adam, ours of Newton      |

Structures: diag and kron of all random weights, last: dense for the last layer. The networks have their starting
weights, in float32. Where a peer would take minutes it does a share of the rows, and its time is multiplied
(peers/laplace_peer.py says where). Before a task is timed all sides give the log evidence of a posterior of 100 rows,
and for a prediction the largest probability of each of ten rows. A peer whose numbers differ is marked with *.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Work, peak_memory, report
from benchmarks.peers.client import ROOT, Clock, Peer, alternate, clock
from benchmarks.peers.laplace_work import (
    BACKENDS,
    CASES,
    FITTED,
    PREDICTED,
    PRIOR_PRECISION,
    TASKS,
    VALUED,
    Case,
    Numbers,
    Task,
    file,
    load,
    save,
)
from torchbayes import Laplace, LaplacePosterior, Linearised, fit, predict
from torchbayes.data import load as load_data
from torchbayes.methods.laplace import tuning
from torchbayes.model import Model, likelihoods, priors
from torchbayes.networks import build


class Ours(NamedTuple):
    """Our side of a task.

    Attributes:
        work: does one unit of it.
        values: the log evidence of the posterior of `FITTED` rows at `PRIOR_PRECISION`; for a prediction also the
            largest probability of each of the first `VALUED` test rows.
    """

    work: Work
    values: list[float]


def model_and_method(case: Case, structure: str, numbers: Numbers) -> tuple[Model, Laplace]:
    """Return our model of a case, and the method of a structure.

    Args:
        case: network and data.
        structure: "diag", "kron" or "last".
        numbers: data and weights.
    """
    net = network(case, numbers)
    layers = [name for name, part in net.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    chosen: list[str] | str = "*"
    if structure == "last":
        chosen = f"{layers[-1]}.*"
    elif case.kinds == "linear":
        chosen = [f"{name}.*" for name in layers]
    model = Model(net, likelihoods.Categorical(), priors.Normal(PRIOR_PRECISION**-0.5), random=chosen)
    names = {"diag": "diagonal", "kron": "kronecker", "last": "dense"}
    # the weights are not a mode, which a peer does not check; it keeps weights and biases apart
    return model, Laplace(names[structure], check_mode=False, joint_bias=False, prior="model")  # type: ignore[arg-type]


def fitted(case: Case, structure: str, numbers: Numbers, *, rows: int) -> LaplacePosterior:
    """Return the posterior of the first rows."""
    model, method = model_and_method(case, structure, numbers)
    data = (torch.from_numpy(numbers.inputs[:rows]), torch.from_numpy(numbers.targets[:rows]))
    return fit(model, data, method, start=model.given_weights(), callbacks=())  # type: ignore[return-value]


def fit_ours(case: Case, structure: str, numbers: Numbers) -> Ours:
    """Return a fit of all rows of a case: one pass over them, and the decomposition of what it adds up."""
    values = fitted(case, structure, numbers, rows=FITTED).log_evidence().tolist()
    return Ours(lambda: fitted(case, structure, numbers, rows=case.rows), values)


def predict_ours(case: Case, structure: str, numbers: Numbers) -> Ours:
    """Return the GLM predictive with probit link of all test inputs, of a posterior of the first `FITTED` rows."""
    posterior = fitted(case, structure, numbers, rows=FITTED)
    linear, inputs = Linearised(posterior, "probit"), torch.from_numpy(numbers.test_inputs)
    probs = predict(linear, inputs[:VALUED]).probs.amax(dim=1)
    return Ours(lambda: predict(linear, inputs).probs, [*posterior.log_evidence().tolist(), *probs.tolist()])


def evidence_step_ours(case: Case, structure: str, numbers: Numbers) -> Ours:
    """Return one step of Newton's method on the evidence of a posterior of the first `FITTED` rows.

    Theirs is a gradient step; both take what does not depend on the prior, here the eigenvalues, from before.
    """
    posterior = fitted(case, structure, numbers, rows=FITTED)
    problem, start = tuning.evidence_problem(posterior, "scalar", noise=False), torch.zeros(1, dtype=torch.float64)
    spectra = problem.spectra()
    assert spectra is not None
    return Ours(lambda: tuning.newton(spectra, problem, start, steps=1), posterior.log_evidence().tolist())


OURS = {"fit": fit_ours, "predict": predict_ours, "evidence": evidence_step_ours}


def network(case: Case, numbers: Numbers | None = None) -> nn.Module:
    """Return the network of a case, with the weights that both sides use if `numbers` are given."""
    settings = {"hidden": (400, 400), "activation": "relu"} if case.name == "mlp" else {}
    net = build(case.name, case.shape, 10, **settings)
    if numbers is not None:
        nn.utils.vector_to_parameters(torch.from_numpy(numbers.weights), net.parameters())
    return net.eval()


def prepare(case: Case, path: Path) -> None:
    """Write the numbers of a case, if they are not there."""
    if path.exists():
        return
    source = np.random.default_rng(0)
    if case.data == "noise":
        inputs = source.standard_normal((case.rows + PREDICTED, *case.shape)).astype(np.float32)
        train, test = inputs[: case.rows], inputs[case.rows :]
        targets = source.integers(10, size=case.rows)
    else:
        data = load_data(case.data, train_size=case.rows)
        train, targets = data.train.inputs.numpy(), data.train.targets.numpy()
        test = data.test.inputs[:PREDICTED].numpy()
    torch.manual_seed(0)
    weights = nn.utils.parameters_to_vector(network(case).parameters()).detach().numpy()
    save(Numbers(train, targets, test, weights), path)


def agree(actual: list[float], expected: list[float]) -> bool:
    """Return whether two sides have the same numbers, to float32."""
    return len(actual) == len(expected) and all(
        math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-4) for a, b in zip(actual, expected, strict=True)
    )


def started(stack: ExitStack, task: Task, where: Path) -> dict[str, Peer]:
    """Return the peers that can do a task, started."""
    peers: dict[str, Peer] = {}
    for backend in BACKENDS:
        try:
            peers[backend] = stack.enter_context(Peer(f"laplace/{backend}", task.name, where=where))
        except RuntimeError as error:
            print(f"{backend} cannot do {task.name}: {str(error).splitlines()[-1]}", file=sys.stderr)
    return peers


def our_memory(task: Task, where: Path) -> float:
    """Return the peak memory of a process of its own that does our side of a task once, in MiB."""
    command = [sys.executable, "-m", "benchmarks.curvature", task.name, "--memory", "--where", str(where)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)


def compare(
    task: Task, where: Path, *, peers_only: bool, rounds: int, block: float, patience: float
) -> dict[str, float]:
    """Time our side and the peers' in turn, and print the table: seconds of a unit, peak memory below.

    Args:
        task: what is done.
        where: the environments of the peers.
        peers_only: leave our side out.
        rounds: number of rounds.
        block: seconds that a timed block lasts at least.
        patience: seconds to spend on waiting for a quiet machine.

    Returns:
        name -> how many times faster than the fastest peer.
    """
    path = file(task.case, where / "laplace")
    prepare(task.case, path)
    clocks: dict[str, Clock] = {}
    memory: dict[str, float] = {}
    with ExitStack() as stack:
        peers = started(stack, task, where)
        expected = next(iter(peers.values())).values if peers else []
        if not peers_only:
            ours = OURS[task.work](task.case, task.structure, load(path))
            ours.work()
            clocks["torchbayes"], expected = clock(ours.work), ours.values
            memory["torchbayes"] = our_memory(task, where)
        names = {name: name if agree(peer.values, expected) else f"{name}*" for name, peer in peers.items()}
        clocks |= {names[name]: peer.time for name, peer in peers.items()}
        pids = [peer.pid for peer in peers.values()]
        race = alternate(clocks, ours=pids, rounds=rounds, block=block, patience=patience)
        memory |= {names[name]: peer.memory() for name, peer in peers.items()}
    fastest = min((each for each in race.timings if each.name != "torchbayes"), key=lambda each: each.median)
    note = (
        f"Peak memory, MiB: {', '.join(f'{name} {value:.0f}' for name, value in memory.items())}. "
        f"Other processes used up to {race.others:.1f} of {os.cpu_count()} cores meanwhile."
    )
    return report(task.name, race.timings, fastest.name, note)


def main(arguments: list[str] | None = None) -> None:
    """Print the tables.

    Args:
        arguments: those of the command line if None.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}, or the beginning of some")
    parser.add_argument("--where", type=Path, default=ROOT / ".peers", help="where setup.sh made the environments")
    parser.add_argument("--peers", action="store_true", help="without our side")
    parser.add_argument("--memory", action="store_true", help="do our side of a task once; print its peak memory, MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block", type=float, default=0.3, help="seconds that a timed block lasts at least")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait in all for a quiet machine")
    options = parser.parse_args(arguments)
    wanted = [task for name, task in TASKS.items() if not options.tasks or name.startswith(tuple(options.tasks))]
    if not wanted:
        parser.error(f"no task begins with {', '.join(options.tasks)}; cases are {', '.join(CASES)}.")
    for task in wanted:
        if options.memory:
            OURS[task.work](task.case, task.structure, load(file(task.case, options.where / "laplace"))).work()
            print(peak_memory())
        else:
            compare(
                task, options.where, peers_only=options.peers, rounds=options.rounds, block=options.block,
                patience=options.patience,
            )  # fmt: skip


if __name__ == "__main__":
    main()

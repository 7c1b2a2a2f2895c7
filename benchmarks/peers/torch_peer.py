"""posteriors: `python -m benchmarks.peers.torch_peer posteriors CASE` in the environment `torch` of setup.sh."""
# posteriors is not in the environment that the project is checked in
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
import warnings
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # of tensordict, at import
    import posteriors

from benchmarks.peers.server import serve
from benchmarks.peers.work import CASES, FRICTION, PRIOR_SCALE, Case, problem

Weights = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]


def network(case: Case) -> nn.Sequential:
    """Return the perceptron."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(case.widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def main(way: str, name: str) -> None:
    """Serve the work of one case."""
    if way != "posteriors":
        raise SystemExit(f"the way must be posteriors; got {way!r}.")
    case = CASES[name]
    numbers, net = problem(case), network(case)
    batch = (torch.from_numpy(numbers.inputs), torch.from_numpy(numbers.targets))
    names = [each for each, _ in net.named_parameters()]
    weights = {each: torch.from_numpy(weight[0]) for each, weight in zip(names, numbers.weights, strict=True)}

    def log_density(weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = functional_call(net, weights, (batch[0],))
        squares = sum((weight / PRIOR_SCALE).square().sum() for weight in weights.values())
        log_likelihood = -numbers.scale * F.cross_entropy(outputs, batch[1], reduction="sum")
        return log_likelihood - 0.5 * squares + numbers.constant, outputs

    if case.method == "sghmc":
        method = posteriors.sgmcmc.sghmc.build(log_density, lr=case.step_size, alpha=FRICTION)
    else:
        method = posteriors.sgmcmc.sgld.build(log_density, lr=case.step_size)
    value = log_density(weights, batch)[0].item()
    state = method.init(weights)

    def run(units: int) -> None:
        nonlocal state
        for _ in range(units * case.steps):
            state, _ = method.update(state, batch, inplace=True)

    serve([value], run)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The bias of SMILE on minibatches of a table, beside chains on all rows, against the exact posterior.

    TORCHBAYES_DATA=... python -m benchmarks.smile

The model is linear in 21 weights: airfoil by the protocol of `benchmarks.mile`, its five columns in twenty fixed
features with tanh, which are made orthogonal, so that chains mix in a few steps and what is left is bias. The noise is
that of the least squares, the prior N(0, 1). `variance` is the mean over weights of that of the draws, in coordinates
in which the posterior is N(0, I), with its standard error over chains, and then the smallest and the largest; `rows`
are those read on a path of L, in passes over the data.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.mile import protocol

_CHAINS, _FEATURES = 24, 20


def problem() -> tuple[tb.Model, tuple[Tensor, Tensor], Tensor, Tensor]:
    """Return a model, its data, and the exact mean and precision of its posterior."""
    (inputs, targets), _ = protocol("airfoil")
    inputs, targets = inputs.double(), targets.double()
    generator = torch.Generator().manual_seed(0)
    weights, biases = (torch.randn(n, _FEATURES, generator=generator).double() for n in (inputs.shape[1], 1))
    features = torch.tanh(inputs @ weights + biases)
    features = torch.linalg.qr(features - features.mean(0)).Q * len(inputs) ** 0.5
    design = torch.cat([features, torch.ones_like(targets)], 1)
    noise = float((targets - design @ torch.linalg.lstsq(design, targets).solution).std())
    precision = design.T @ design / noise**2 + torch.eye(_FEATURES + 1).double()
    mean = torch.linalg.solve(precision, design.T @ targets[:, 0] / noise**2)
    network = nn.Linear(_FEATURES, 1).double()
    model = tb.Model(network, tb.likelihoods.Gaussian(noise), tb.priors.Normal(1.0))
    return model, (features, targets), mean, precision


def row_of(method: Any) -> str:
    """Return the variances of the draws of a method, and of SMILE its share of noise and the rows it reads."""
    model, data, mean, precision = problem()
    states: list[Any] = []

    def keep(event: tb.Event) -> None:
        states[:] = [event.state]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tb.ProblemWarning)
        posterior = tb.fit(model, data, method, callbacks=[keep], seed=3)
    squares = ((posterior.weights_MSD - mean) @ torch.linalg.cholesky(precision)).square()
    each, chains = squares.mean((0, 1)), squares.mean((1, 2))
    error = float(chains.std()) / len(chains) ** 0.5
    said = f"{float(each.mean()):.3f} ± {error:.3f} | {float(each.min()):.2f} to {float(each.max()):.2f}"
    if not isinstance(method, tb.SMILE):
        return f"{said} | | |"
    state = states[0]
    share = float(state.shares_M.mean()) / (method.steps - method.burn_in)
    steps = float((state.length_M / state.step_size_M).mean())
    rows = 1.0 if method.batch_size is None else method.batch_size / len(data[0])
    return f"{said} | {share:.2f} | {steps * rows:.1f} |"


def main() -> None:
    """Print the table."""
    whole: dict[str, Any] = {"chains": _CHAINS, "steps": 2000, "burn_in": 1000, "thin": 2}
    parts: dict[str, Any] = {"chains": _CHAINS, "steps": 4000, "burn_in": 2000, "thin": 4}
    methods: dict[str, Any] = {"MCLMC(integrator='leapfrog')": tb.MCLMC(**whole, integrator="leapfrog")}
    methods["SMILE(batch_size=None)"] = tb.SMILE(**whole, batch_size=None)
    methods |= {f"SMILE(noise_share={share})": tb.SMILE(**parts, noise_share=share) for share in (0.03, 0.1, 0.3)}
    methods["SMILE(preconditioned=True)"] = tb.SMILE(**parts, preconditioned=True)
    methods |= {"SGHMC()": tb.SGHMC(**parts), "SGNHT()": tb.SGNHT(**parts)}
    print("| | variance | of each weight | share of noise | rows |")
    for name, method in methods.items():
        print(f"| `{name}` | {row_of(method)}", flush=True)


if __name__ == "__main__":
    main()

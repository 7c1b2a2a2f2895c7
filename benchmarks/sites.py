"""A sweep of `EP` over 10^5 rows of a last-layer model: against the one product that a dense precision takes."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import Work, race, report

ROWS, INPUTS = 100_000, 20


def fit(model: tb.Model, data: tuple[Tensor, Tensor], method: tb.EP) -> Work:
    """Return a fit, whose problems are no concern here: a single sweep in parallel has not converged."""

    def run() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tb.ProblemWarning)
            return tb.fit(model, data, method, callbacks=())

    return run


def case(likelihood: tb.likelihoods.Likelihood, *, features: int, outputs: int = 1, rows: int = ROWS) -> None:
    """Race sweeps over rows that a network with random features made."""
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, INPUTS, generator=source)
    network = nn.Sequential(nn.Linear(INPUTS, features), nn.Tanh(), nn.Linear(features, outputs))
    with torch.no_grad():
        noisy = 3 * network(inputs) + torch.randn(rows, outputs, generator=source)
        design = torch.cat([network[:2](inputs), torch.ones(rows, 1)], 1).double()
    classes = {tb.likelihoods.Categorical: noisy.argmax(1), tb.likelihoods.Gaussian: noisy}
    targets = classes.get(type(likelihood), (noisy > 0).float())
    model = tb.Model(network, likelihood, tb.priors.Normal(1.0), random="2.*")
    ways: dict[str, Work] = {"one product": lambda: design.T @ design}
    ways["one sweep"] = fit(model, (inputs, targets), tb.EP(sweeps=1))
    ways["to convergence"] = fit(model, (inputs, targets), tb.EP())
    if rows < ROWS:
        ways["one sweep in turn"] = fit(model, (inputs, targets), tb.EP(sweeps=1, order="sequential"))
    weights = model.layout.size
    title = f"{type(likelihood).__name__}, {weights} weights, {rows:,} rows"
    report(title, race(ways, rounds=3, warmup=0), "one sweep")


def main() -> None:
    """Print the tables."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for features in (50, 200):
            case(tb.likelihoods.Probit(), features=features)
        case(tb.likelihoods.Bernoulli(), features=50)
        case(tb.likelihoods.Gaussian(1.0), features=50)
        case(tb.likelihoods.Probit(), features=50, rows=2_000)
        case(tb.likelihoods.Categorical(), features=50, outputs=3, rows=2_000)


if __name__ == "__main__":
    main()

"""The spectrum of the Hessian and of the Gauss-Newton matrix: against curvlinops and a plain loop, in one thread.

    TORCHBAYES_DATA=... PYTHONPATH=.:WHERE python -m benchmarks.spectrum [CASE ...]
    with WHERE from: pip install --target WHERE --no-deps curvlinops-for-pytorch==3.0.1 backpack-for-pytorch==1.7.1 \
        einconv==0.1.0 linear_operator==0.6.1 unfoldNd==0.2.3 einops==0.8.2 jaxtyping==0.2.19 typeguard==2.13.3

| case  | network, 2,000 images of MNIST in chunks of 1,000    | steps of Lanczos, probes |
|-------|------------------------------------------------------|--------------------------|
| mlp   | 784-400-400-10 (ReLU)                                | 40, 2                    |
| lenet | LeNet 20-50-500                                      | 5, 2                     |
| small | 784-16-10 (tanh), the first 200 images               | 40, 8                    |

All sides make the same number of products of the matrix with a vector, in float32. Ours makes every Lanczos vector
orthogonal to all earlier ones, twice; curvlinops (its `fast_lanczos`) does not at all. The loop is how PyHessian works:
a gradient with its graph for every product and chunk, one Gram-Schmidt pass over lists of tensors. Before timing, our
trace is compared with the exact quadratic forms of the same vectors by the loop's product.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.harness import Work, race, report
from torchbayes.data import load
from torchbayes.geometry import spectrum
from torchbayes.geometry.networks import place_of
from torchbayes.geometry.operators import Products
from torchbayes.model import Model, likelihoods
from torchbayes.networks import build

CHUNK = 1000


class Case(NamedTuple):
    """A network, its settings, and how much is done.

    Attributes:
        name: of the network.
        settings: of `networks.build`.
        rows: of MNIST.
        steps: of Lanczos.
        probes: random vectors.
    """

    name: str
    settings: dict[str, Any]
    rows: int
    steps: int
    probes: int


CASES = {
    "mlp": Case("mlp", {"hidden": (400, 400), "activation": "relu"}, 2000, 40, 2),
    "lenet": Case("lenet", {}, 2000, 5, 2),
    "small": Case("mlp", {"hidden": (16,), "activation": "tanh"}, 200, 40, 8),
}


def loop_product(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Return the product of the Hessian of the summed loss with a vector, as PyHessian computes it."""
    parameters = list(net.parameters())

    def product(vector: list[Tensor]) -> list[Tensor]:
        total = [torch.zeros_like(p) for p in parameters]
        for inputs, targets in batches:
            loss = nn.functional.cross_entropy(net(inputs), targets, reduction="sum")
            first = torch.autograd.grad(loss, parameters, create_graph=True)
            for sum_, slope in zip(total, torch.autograd.grad(first, parameters, vector), strict=True):
                sum_.add_(slope)
        return total

    return product


def loop_spectrum(product: Callable[[list[Tensor]], list[Tensor]], net: nn.Module, steps: int, probes: int) -> Work:
    """Return a plain Lanczos iteration on lists of tensors, each vector made orthogonal once."""

    def dot(a: list[Tensor], b: list[Tensor]) -> Tensor:
        return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()

    def run() -> object:
        decompositions = []
        for _ in range(probes):
            vector = [torch.randint_like(p, 2) * 2 - 1 for p in net.parameters()]
            vector = [v / dot(vector, vector).sqrt() for v in vector]
            basis, alphas, betas = [], [], []
            for _ in range(steps):
                basis.append(vector)
                new = product(vector)
                alphas.append(dot(new, vector))
                for old in basis:
                    share = dot(new, old)
                    new = [n - share * o for n, o in zip(new, old, strict=True)]
                betas.append(dot(new, new).sqrt())
                vector = [n / betas[-1] for n in new]
            beside = torch.stack(betas[:-1])
            tridiagonal = torch.diag(torch.stack(alphas)) + torch.diag(beside, 1) + torch.diag(beside, -1)
            decompositions.append(torch.linalg.eigh(tridiagonal.double()))
        return decompositions

    return run


def curvlinops_spectrum(
    kind: str, net: nn.Module, batches: list[tuple[Tensor, Tensor]], *, steps: int, probes: int
) -> Work | None:
    """Return the iteration of curvlinops on its own operator; None where it is not installed."""
    try:
        import curvlinops  # type: ignore[import-not-found]
        from curvlinops.papyan2020traces.spectrum import fast_lanczos  # type: ignore[import-not-found]
    except ImportError:
        return None
    of = {"hessian": curvlinops.HessianLinearOperator, "ggn": curvlinops.GGNLinearOperator}[kind]
    loss = nn.CrossEntropyLoss(reduction="sum")
    operator = of(net, loss, list(net.parameters()), batches, check_deterministic=False)
    return lambda: [fast_lanczos(operator, steps) for _ in range(probes)]


def compare(name: str, kind: str, rounds: int) -> dict[str, float]:
    """Time all sides in turn, and print the table.

    Args:
        name: of the case.
        kind: "hessian" or "ggn".
        rounds: number of rounds.

    Returns:
        name -> how many times faster than the baseline.
    """
    case = CASES[name]
    torch.manual_seed(0)
    shape = (1, 28, 28) if case.name == "lenet" else (784,)
    net = build(case.name, shape, 10, **case.settings).eval()
    data = load("mnist", train_size=case.rows)
    inputs, targets = data.train.inputs[: case.rows].reshape(-1, *shape), data.train.targets[: case.rows]
    batches = list(zip(inputs.split(CHUNK), targets.split(CHUNK), strict=True))
    model = Model(net, likelihoods.Categorical())
    settings = {"steps": case.steps, "probes": case.probes}
    ways: dict[str, Work] = {
        "torchbayes": lambda: spectrum(model, (inputs, targets), net, matrix=kind, chunk_size=CHUNK, **settings)  # type: ignore[arg-type]
    }
    product = loop_product(net, batches)
    if kind == "hessian":
        check(Products(place_of(model, (inputs, targets), net), "hessian", CHUNK), product, net)
        ways["loop"] = loop_spectrum(product, net, **settings)
    peer = curvlinops_spectrum(kind, net, batches, **settings)
    if peer is not None:
        ways["curvlinops"] = peer
    size = sum(p.numel() for p in net.parameters())
    title = f"{name}, {kind}: D = {size:,}, {case.rows:,} rows, {case.steps} x {case.probes} products"
    return report(title, race(ways, rounds=rounds, warmup=0, block=0.0), "torchbayes")


def check(ours: Products, product: Callable[[list[Tensor]], list[Tensor]], net: nn.Module) -> None:
    """Compare our product with the loop's."""
    vector = [torch.randn_like(p) for p in net.parameters()]
    actual = ours(nn.utils.parameters_to_vector(vector).unsqueeze(0))[0]
    expected = nn.utils.parameters_to_vector(product(vector))
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def main(arguments: list[str] | None = None) -> None:
    """Print the tables.

    Args:
        arguments: those of the command line if None.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all if none is given")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    if unknown := set(options.cases) - CASES.keys():
        parser.error(f"there is no case {', '.join(sorted(unknown))}; cases are {', '.join(CASES)}.")
    torch.set_num_threads(1)
    for name in options.cases or CASES:
        for kind in ("hessian", "ggn"):
            compare(name, kind, options.rounds)


if __name__ == "__main__":
    main()

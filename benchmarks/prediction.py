"""Predictions averaged over 30 draws: against a plain loop over 30 networks that hold the drawn weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import torchbayes as tb
from benchmarks.harness import Work, race, report
from torchbayes.linalg import Diagonal
from torchbayes.networks import build

DRAWS = 30


def ours(functions: tb.Functions, inputs: Tensor) -> Work:
    """Return the library's prediction."""
    return lambda: functions(inputs, chunk_size=len(inputs))


def plain(functions: tb.Functions, module: nn.Module, inputs: Tensor) -> Work:
    """Return a loop over copies of the network, one per draw."""
    networks = []
    for weights in functions.weights_SD:
        net = copy.deepcopy(module).eval()
        net.load_state_dict({**net.state_dict(), **functions.model.layout.split(weights)})
        networks.append(net)

    @torch.no_grad()
    def run() -> Tensor:
        return torch.stack([net(inputs) for net in networks])

    return run


def stacked(functions: tb.Functions, module: nn.Module, inputs: Tensor) -> Work:
    """Return vmap over the stacked weights."""
    net = copy.deepcopy(module).eval()
    views = functions.model.layout.split(functions.weights_SD)

    @torch.no_grad()
    def run() -> Tensor:
        return vmap(lambda own: functional_call(net, own, (inputs,)))(views)

    return run


def case(title: str, module: nn.Module, inputs: Tensor, *, rounds: int) -> None:
    """Race the three ways and check that they agree."""
    model = tb.Model(module, tb.likelihoods.Categorical())
    weights, _ = model.starting_weights(tb.member_seeds(0, DRAWS))
    functions = tb.Point(model, weights, statistics_known=True).functions()
    ways = {
        "plain loop": plain(functions, module, inputs),
        "torchbayes": ours(functions, inputs),
        "vmap": stacked(functions, module, inputs),
    }
    results = [torch.as_tensor(way()) for way in ways.values()]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-3, atol=1e-4)
    report(title, race(ways, rounds=rounds, warmup=1), "plain loop")


def drawn_case(title: str, module: nn.Module, inputs: Tensor, *, rounds: int) -> None:
    """Race mean field, weights drawn anew each time, with a loop over networks whose weights are there."""
    model = tb.Model(module, tb.likelihoods.Categorical())
    mean_MD = model.given_weights().unsqueeze(0)
    posterior = tb.Gaussian(model, mean_MD, Diagonal(torch.full_like(mean_MD, 1e-4)))
    ways = {
        "plain loop": plain(posterior.functions(DRAWS, seed=0), module, inputs),
        "torchbayes": lambda: posterior.functions(DRAWS, seed=0)(inputs, chunk_size=len(inputs)),
    }
    report(title, race(ways, rounds=rounds, warmup=1), "plain loop")


def dropout_case(title: str, module: nn.Module, inputs: Tensor, *, rounds: int) -> None:
    """Race MC dropout, masks drawn anew each time, with passes of the network in training mode."""
    model = tb.Model(module, tb.likelihoods.Categorical())
    posterior, net = tb.DropoutPosterior.of(model, module), copy.deepcopy(module).train()

    @torch.no_grad()
    def passes() -> Tensor:
        return torch.stack([net(inputs) for _ in range(DRAWS)])

    def masked() -> object:
        return posterior.functions(DRAWS, seed=0)(inputs, chunk_size=len(inputs))

    report(title, race({"plain loop": passes, "torchbayes": masked}, rounds=rounds, warmup=1), "plain loop")


def main() -> None:
    """Print the tables."""
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(1000, 784, generator=source)
    images = torch.randn(50, 3, 32, 32, generator=source)
    case("30 draws, MLP 784-400-400-10, 1,000 rows", build("mlp", (784,), 10, hidden=(400, 400)), rows, rounds=9)
    mlp, lenet = build("mlp", (784,), 10, hidden=(400, 400)), build("lenet", (1, 28, 28), 10)
    digits = rows.view(-1, 1, 28, 28)
    drawn_case("mean field drawn anew, MLP 784-400-400-10, 1,000 rows", mlp, rows, rounds=9)
    drawn_case("mean field drawn anew, LeNet, 1,000 images", lenet, digits, rounds=5)
    dropped = build("mlp", (784,), 10, hidden=(400, 400), dropout=0.1)
    dropout_case("MC dropout, MLP 784-400-400-10, 1,000 rows", dropped, rows, rounds=9)
    small = build("small_cnn", (1, 28, 28), 10, dropout=0.1)
    dropout_case("MC dropout, small_cnn, 1,000 images", small, digits, rounds=5)
    case("30 draws, resnet20_frn, 50 images of 32 x 32", build("resnet20_frn", (3, 32, 32), 10), images, rounds=5)


if __name__ == "__main__":
    main()

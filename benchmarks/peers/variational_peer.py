"""One training step of variational methods of others: `python -m benchmarks.peers.variational_peer WAY CASE`.

In the environment `variational` of setup.sh. WAY is PACKAGE-FORM, CASE a network of `variational_work`. All take the
cross entropy of one minibatch under one draw, the divergence over N, and a fused step of Adam; IVON its own.
"""
# the packages are not in the environment that the project is checked in
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.server import serve
from benchmarks.peers.variational_work import NUM_DATA, PRIOR_SCALE, RATE, SCALE, problem

LOG_SCALE = torch.tensor(SCALE).expm1().log().item()  # whose softplus is the scale
Loss = Callable[[], tuple[Tensor, Tensor]]  # -> cross entropy, divergence


def layers(case: str, *, linear: Callable[..., nn.Module], conv: Callable[..., nn.Module]) -> list[nn.Module]:
    """Return the layers of a network, of any make."""
    if case == "mlp":
        return [linear(784, 400), nn.ReLU(), linear(400, 400), nn.ReLU(), linear(400, 10)]
    first = [conv(1, 20, 5), nn.MaxPool2d(2), nn.ReLU(), conv(20, 50, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    return [*first, linear(800, 500), nn.ReLU(), linear(500, 10)]


def bayesian_torch(form: str, case: str, inputs: Tensor, targets: Tensor) -> tuple[Iterator[nn.Parameter], Loss]:
    """Return parameters and loss of Bayesian-Torch: layers that return outputs and their part of the divergence."""
    import bayesian_torch.layers as made

    kind = {"weights": "Reparameterization", "flipout": "Flipout"}[form]
    about = {"prior_variance": PRIOR_SCALE, "posterior_rho_init": LOG_SCALE}  # the first is a standard deviation there
    linear, conv = (partial(getattr(made, name + kind), **about) for name in ("Linear", "Conv2d"))
    net = nn.ModuleList(layers(case, linear=linear, conv=conv))

    def loss() -> tuple[Tensor, Tensor]:
        hidden, divergence = inputs, torch.zeros(())
        for layer in net:
            if hasattr(layer, "kl_loss"):
                hidden, own = layer(hidden)
                divergence = divergence + own
            else:
                hidden = layer(hidden)
        return F.cross_entropy(hidden, targets), divergence

    return net.parameters(), loss


def torch_uncertainty(form: str, case: str, inputs: Tensor, targets: Tensor) -> tuple[Iterator[nn.Parameter], Loss]:
    """Return parameters and loss of Torch-Uncertainty: the divergence at the draw, as its `KLDiv` takes it."""
    assert form == "weights"
    spec = importlib.util.find_spec("torch_uncertainty")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for name in ("", ".layers"):  # packages whose own code, which imports torchvision, is not run
        package = types.ModuleType(f"torch_uncertainty{name}")
        package.__path__ = [spec.submodule_search_locations[0] + name.replace(".", "/")]
        sys.modules[package.__name__] = package
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear

    about = {"prior_sigma_1": PRIOR_SCALE, "prior_sigma_2": PRIOR_SCALE, "sigma_init": LOG_SCALE}
    net = nn.Sequential(*layers(case, linear=partial(BayesLinear, **about), conv=partial(BayesConv2d, **about)))
    random: list[Any] = [layer for layer in net if isinstance(layer, BayesLinear | BayesConv2d)]

    def loss() -> tuple[Tensor, Tensor]:
        nll = F.cross_entropy(net(inputs), targets)
        return nll, torch.stack([layer.log_variational_posterior - layer.log_prior for layer in random]).sum()

    return net.parameters(), loss


def tyxe(form: str, case: str, inputs: Tensor, targets: Tensor) -> tuple[Iterator[nn.Parameter], Loss]:
    """Return parameters and loss of TyXe, on Pyro: the divergence in closed form."""
    import pyro
    import pyro.distributions as dist
    import tyxe as library

    if not hasattr(pyro.util, "deep_getattr"):  # which its guides take from earlier releases of Pyro
        pyro.util.deep_getattr = lambda module, name: attrgetter(name)(module)
    net = nn.Sequential(*layers(case, linear=nn.Linear, conv=nn.Conv2d))
    prior = library.priors.IIDPrior(dist.Normal(0.0, PRIOR_SCALE))
    bnn = library.PytorchBNN(net, prior, partial(library.guides.AutoNormal, init_scale=SCALE))
    ways = {"local": library.poutine.local_reparameterization, "flipout": library.poutine.flipout}
    context: Callable[[], AbstractContextManager[Any]] = ways.get(form, nullcontext)

    def loss() -> tuple[Tensor, Tensor]:
        with context():
            return F.cross_entropy(bnn(inputs), targets), bnn.cached_kl_loss

    return bnn.pytorch_parameters(inputs), loss


def descent(parameters: Iterator[nn.Parameter], loss: Loss) -> tuple[float, Callable[[], None]]:
    """Return the first cross entropy, and a step of Adam."""
    optimizer = torch.optim.Adam(parameters, lr=RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        nll, divergence = loss()
        (nll + divergence / NUM_DATA).backward()
        optimizer.step()

    return loss()[0].item(), step


def ivon(case: str, inputs: Tensor, targets: Tensor) -> tuple[float, Callable[[], None]]:
    """Return the first cross entropy, and a step of IVON by its authors' package."""
    from ivon import IVON

    net = nn.Sequential(*layers(case, linear=nn.Linear, conv=nn.Conv2d))
    delta = 1 / (NUM_DATA * PRIOR_SCALE**2)
    optimizer = IVON(net.parameters(), lr=RATE, ess=NUM_DATA, weight_decay=delta, hess_init=3.0)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()

    return F.cross_entropy(net(inputs), targets).item(), step


def vbll(form: str, case: str, inputs: Tensor, targets: Tensor) -> tuple[Iterator[nn.Parameter], Loss]:
    """Return parameters and loss of the authors' variational last layer, of dense covariances by Jensen's bound."""
    assert form == "last_layer"
    from vbll.layers.classification import DiscClassification

    *features, last = layers(case, linear=nn.Linear, conv=nn.Conv2d)
    assert isinstance(last, nn.Linear)
    head = DiscClassification(last.in_features, last.out_features, 1 / NUM_DATA, "dense", softmax_bound="jensen")
    net = nn.Sequential(*features, head)

    def loss() -> tuple[Tensor, Tensor]:
        return net(inputs).train_loss_fn(targets), torch.zeros(())  # the divergence over N is in it

    return net.parameters(), loss


def main(way: str, case: str) -> None:
    """Serve the steps of one package."""
    torch.manual_seed(0)
    inputs, targets = (torch.from_numpy(part) for part in problem(case))
    package, _, form = way.partition("-")
    if package == "ivon":
        nll, step = ivon(case, inputs, targets)
    else:
        packages = {
            "bayesian_torch": bayesian_torch,
            "torch_uncertainty": torch_uncertainty,
            "tyxe": tyxe,
            "vbll": vbll,
        }
        nll, step = descent(*packages[package](form, case, inputs, targets))

    def run(units: int) -> None:
        for _ in range(units):
            step()

    serve([nll], run)


if __name__ == "__main__":
    main(*sys.argv[1:])

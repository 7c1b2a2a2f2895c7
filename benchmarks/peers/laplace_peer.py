"""laplace-torch: `python -m benchmarks.peers.laplace_peer BACKEND TASK` in the environment `laplace` of setup.sh."""
# laplace-torch is not in the environment that the project is checked in
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of linear_operator, at import
    from laplace import Laplace, curvature

from benchmarks.peers.laplace_work import FITTED, PRIOR_PRECISION, TASKS, VALUED, Case, Numbers, Task, file, load
from benchmarks.peers.server import serve

NAMES = {"curvlinops": "CurvlinopsGGN", "asdl": "AsdlGGN", "backpack": "BackPackGGN"}
# Rows that are worked on where all of them take minutes. The time, which is linear in them, is multiplied accordingly.
SHARE = {
    ("mlp", "fit", "diag", "curvlinops"): 50,
    ("mlp", "fit", "last", "*"): 1000,
    ("mlp", "predict", "diag", "*"): 100,
    ("mlp", "predict", "kron", "*"): 50,
    ("lenet", "fit", "diag", "curvlinops"): 20,
    ("lenet", "fit", "diag", "asdl"): 500,
    ("lenet", "fit", "diag", "backpack"): 500,
    ("lenet", "fit", "kron", "*"): 2000,
    ("lenet", "fit", "last", "*"): 1000,
    ("lenet", "predict", "diag", "*"): 20,
    ("lenet", "predict", "kron", "*"): 20,
    ("resnet20_frn", "fit", "diag", "curvlinops"): 5,
    ("resnet20_frn", "fit", "diag", "asdl"): 100,
    ("resnet20_frn", "fit", "kron", "*"): 500,
    ("resnet20_frn", "predict", "diag", "*"): 5,
    ("resnet20_frn", "predict", "kron", "*"): 5,
}


class FilterResponseNorm(nn.Module):
    """y = γ x / √(ν² + ε) + β, ν² the mean of x² over height and width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise each channel of each image."""
        scale = torch.rsqrt(inputs.square().mean(dim=(-2, -1), keepdim=True) + 1e-6)
        return self.bias[:, None, None] + self.weight[:, None, None] * scale * inputs


class Block(nn.Module):
    """φ(shortcut(x) + FRN(conv(φ(FRN(conv(x))))))."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False)
        self.norm1 = FilterResponseNorm(fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.norm2 = FilterResponseNorm(fan_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != fan_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(fan_in, fan_out, 1, stride, bias=False), FilterResponseNorm(fan_out)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the activations of the block."""
        hidden = F.silu(self.norm1(self.conv1(inputs)))
        return F.silu(self.shortcut(inputs) + self.norm2(self.conv2(hidden)))


def network(case: Case, weights: Tensor, *, linear: bool = False) -> nn.Module:
    """Return the network of a case: the layers of torchbayes.networks, and parameters in the same order.

    Args:
        case: the case.
        weights: (D,).
        linear: freeze what is neither a linear layer nor a convolution.
    """
    if case.name == "mlp":
        layers: list[nn.Module] = [
            nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10),
        ]  # fmt: skip
    elif case.name == "lenet":
        layers = [
            nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
        ]  # fmt: skip
    else:
        widths = [16, *(width for width in (16, 32, 64) for _ in range(3))]
        blocks = [Block(before, after, 1 + (before != after)) for before, after in pairwise(widths)]
        stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), FilterResponseNorm(16), nn.SiLU()]
        layers = [*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    net = nn.Sequential(*layers).eval()
    nn.utils.vector_to_parameters(weights, net.parameters())
    if linear:
        for layer in net.modules():
            if isinstance(layer, FilterResponseNorm):
                layer.requires_grad_(False)
    return net


def rows_of(task: Task, backend: str) -> int:
    """Return how many rows a backend works on."""
    key = (task.case.name, task.work, task.structure)
    return SHARE.get((*key, backend), SHARE.get((*key, "*"), task.rows))


class Peer:
    """A task done by laplace-torch with one backend."""

    def __init__(self, task: Task, backend: str, numbers: Numbers) -> None:
        self.task, self.backend, self.rows = task, backend, rows_of(task, backend)
        linear = task.case.kinds == "linear" and task.structure != "last"
        self.net = network(task.case, torch.from_numpy(numbers.weights), linear=linear)
        self.inputs, self.targets = torch.from_numpy(numbers.inputs), torch.from_numpy(numbers.targets)
        self.test_inputs = torch.from_numpy(numbers.test_inputs)
        self.laplace = self.fit(FITTED)

    def fit(self, rows: int) -> Any:
        """Return the posterior of the first rows."""
        last = self.task.structure == "last"
        fitted = Laplace(
            self.net,
            "classification",
            subset_of_weights="last_layer" if last else "all",
            hessian_structure="full" if last else self.task.structure,
            prior_precision=PRIOR_PRECISION,
            backend=getattr(curvature, NAMES[self.backend]),
        )
        # a default backend cannot do more rows of its Jacobians at a time than this, whatever they are for
        jacobians = (self.task.structure, self.backend) == ("diag", "curvlinops")
        batch = self.task.case.chunk if jacobians else self.task.case.batch
        fitted.fit(DataLoader(TensorDataset(self.inputs[:rows], self.targets[:rows]), batch_size=min(batch, rows)))
        return fitted

    def predict(self, rows: int) -> Tensor:
        """Return the probabilities of the first rows of the test inputs."""
        # a dense covariance is made anew at each call, and its Jacobians are small: long chunks are much the faster
        chunk = 500 if self.task.structure == "last" else self.task.case.chunk
        parts = self.test_inputs[:rows].split(chunk)
        return torch.cat([self.laplace(part, pred_type="glm", link_approx="probit").detach() for part in parts])

    def values(self) -> list[float]:
        """Return the log evidence of the posterior, and for a prediction the largest probability of some rows."""
        evidence = float(self.laplace.log_marginal_likelihood())
        return [evidence, *(self.predict(VALUED).amax(dim=1).tolist() if self.task.work == "predict" else ())]

    def run(self, units: int) -> None:
        """Do so many units of the work, of `rows` rows each."""
        if self.task.work == "evidence":
            self.laplace.optimize_prior_precision(
                pred_type="glm", method="marglik", n_steps=units, prior_structure="scalar"
            )
            return
        for _ in range(units):
            self.fit(self.rows) if self.task.work == "fit" else self.predict(self.rows)


def main(backend: str, name: str) -> None:
    """Serve one task."""
    if backend not in NAMES:
        raise SystemExit(f"the backend must be one of {', '.join(NAMES)}; got {backend!r}.")
    warnings.simplefilter("ignore")  # of the prior precision being tuned after the fit, and of hooks
    task = TASKS[name]
    peer = Peer(task, backend, load(file(task.case, Path(sys.prefix))))
    serve(peer.values(), peer.run, warmup=1, factor=task.rows / peer.rows)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The work that is timed, as numbers: data, starting weights and constants, the same for every library.

This module needs numpy and scikit-learn alone, so that it runs in the environments of the peers as well as in ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

PRIOR_SCALE, NOISE_SCALE = 1.0, 0.1


@dataclass(frozen=True)
class Case:
    """One piece of work. A unit of it is `steps` steps of every chain: a trajectory of HMC, or so many SG-MCMC steps.

    Attributes:
        name: name.
        method: "hmc", "sghmc" or "sgld".
        network: "mlp", or "conv" (two 3x3 convolutions of 16 and 32 channels with padding, ReLU, a linear head).
        data: "digits", "sine" or "noise".
        widths: units per layer of the perceptron; input features and outputs of the other.
        activation: "tanh" or "relu".
        chains: M.
        steps: leapfrog steps in a trajectory, or steps in a unit.
        step_size: ε of the leapfrog, or the learning rate of SG-MCMC on the scale of the full data.
        peers: FAMILY/WAY of each peer; the first is the one that others are compared with.
        slow: peers of the same form that need minutes.
    """

    name: str
    method: str
    network: str
    data: str
    widths: tuple[int, ...]
    activation: str
    chains: int
    steps: int
    step_size: float
    peers: tuple[str, ...]
    slow: tuple[str, ...] = ()


def _perceptron(data: str, widths: tuple[int, ...], chains: int) -> Case:
    peers = ("jax/blackjax", "jax/numpyro")
    return Case(f"{data}-{chains}", "hmc", "mlp", data, widths, "tanh", chains, 100, 1e-4, peers)


def _convolution(chains: int) -> Case:
    # lax.map runs chains one after the other: nothing to gain with one, and faster than vmap with several
    ways = ("jax/blackjax_im2col",) if chains == 1 else ("jax/blackjax_im2col_map", "jax/blackjax_im2col")
    slow = ("jax/blackjax",) if chains == 1 else ("jax/blackjax_map",)
    return Case(f"conv-{chains}", "hmc", "conv", "digits", (64, 10), "relu", chains, 4, 1e-5, ways, slow)


def _stochastic(method: str) -> Case:
    widths, peers = (784, 400, 400, 10), ("jax/blackjax", "torch/posteriors")
    return Case(method, method, "mlp", "noise", widths, "relu", 1, 20, 1e-7, peers)


FRICTION = 10.0  # of SGHMC
CASES = {
    case.name: case
    for case in (
        *(_perceptron("digits", (64, 50, 50, 10), chains) for chains in (1, 8)),
        *(_perceptron("sine", (1, 50, 50, 1), chains) for chains in (1, 8)),
        *(_convolution(chains) for chains in (1, 4)),
        *(_stochastic(method) for method in ("sghmc", "sgld")),
    )
}


@dataclass(frozen=True)
class Problem:
    """Data and starting weights. Weights have the shapes and the order of PyTorch's parameters.

    log p(w, D) = (N/B) Σ_b log p(y_b|f_w(x_b)) − ‖w‖²/(2 s_p²) + constant, with normalising constants.

    Attributes:
        inputs: (B, F), float32; images row by row.
        targets: classes (B,), int64, or numbers (B,), float32.
        weights: (M, *shape) for each parameter, float32.
        num_data: N.
        constant: what the normal densities add that does not depend on w, in nats.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: Sequence[np.ndarray]
    num_data: int
    constant: float

    @property
    def scale(self) -> float:
        """N/B."""
        return self.num_data / len(self.inputs)


def shapes(case: Case) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters, in PyTorch's order."""
    if case.network == "conv":
        features, outputs = case.widths
        return [(16, 1, 3, 3), (16,), (32, 16, 3, 3), (32,), (outputs, 32 * features), (outputs,)]
    return [shape for fan_in, fan_out in pairwise(case.widths) for shape in ((fan_out, fan_in), (fan_out,))]


def _rows(name: str, source: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Return inputs, targets and N."""
    if name == "digits":
        from sklearn.datasets import load_digits

        images, labels = (np.asarray(part) for part in load_digits(return_X_y=True))
        order = source.permutation(len(labels))[:1437]
        return images[order] / 16.0, labels[order].astype(np.int64), len(order)
    if name == "sine":
        inputs = source.uniform(-2, 2, (100, 1))
        return inputs, np.sin(3 * inputs[:, 0]) + NOISE_SCALE * source.standard_normal(100), 100
    return source.standard_normal((128, 784)), source.integers(10, size=128), 10_000


def problem(case: Case) -> Problem:
    """Return the numbers of a case: the same in every process."""
    source = np.random.default_rng(0)
    inputs, targets, num_data = _rows(case.data, source)
    weights = [0.1 * source.standard_normal((case.chains, *shape)) for shape in shapes(case)]
    count = sum(weight[0].size for weight in weights)
    constant = -count * math.log(PRIOR_SCALE * math.sqrt(2 * math.pi))
    if targets.dtype != np.int64:
        constant -= num_data * math.log(NOISE_SCALE * math.sqrt(2 * math.pi))
        targets = targets.astype(np.float32)
    return Problem(
        inputs.astype(np.float32), targets, [weight.astype(np.float32) for weight in weights], num_data, constant
    )

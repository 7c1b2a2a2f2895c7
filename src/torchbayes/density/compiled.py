"""All members together under `vmap`, compiled; and leapfrog steps compiled together.

It is meant for small networks, whose steps cost mostly Python calls and kernel launches. Several steps of all chains,
gradients included, become one compiled function. Chains that take fewer steps than others, or no multiple of its
length, take steps of size zero at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from torchbayes.density.backend import Backend, Evaluation, Mixing, Trajectory
from torchbayes.density.dynamics import Phase, Value, step_sizes
from torchbayes.density.precision import full_precision
from torchbayes.density.vmap import Stack, evaluate_stack, refuses_stacked, stack
from torchbayes.model.model import Batch, Model, Scales
from torchbayes.native.process import encoders_by_parts, quiet_vmap

LENGTH = 4  # a longer function takes longer to compile, and no gain was measured


class Compiled(Backend):
    """All members together, compiled."""

    name, words, automatic = "compiled", "compiled members", "never"

    def __init__(self, model: Model, *, training: bool = False, chunk_size: int = 1024, graphs: bool = False) -> None:
        """Bind a model; nothing is compiled before it is needed.

        With `graphs`, a CUDA device replays an evaluation, or leapfrog steps, as a CUDA graph. No plan sets it,
        because it has not run on hardware yet; `make gpu` checks and times it there.
        """
        super().__init__(model, training=training, chunk_size=chunk_size)
        self._graphs = graphs
        self._stacks: dict[tuple[bool, Mixing | None], Stack] = {}
        self._unrolled: Unrolled | None = None

    def refuses(self, evaluation: Evaluation) -> str | None:
        return refuses_stacked(self, evaluation)

    def evaluate(self, evaluation: Evaluation) -> tuple[Tensor, None]:
        key = (evaluation.shared, evaluation.mixing)
        if key not in self._stacks:
            # Once per density is enough, because the shapes of a method's batches, and so the guards, rarely change.
            self._stacks[key] = torch.compile(stack(self.model, *key), mode=_mode(self._graphs))
        evaluation = evaluation._replace(below=None)  # what is compiled would hold the outputs of one chunk
        total_M = evaluate_stack(self, evaluation, self._stacks[key], under=_by_parts)
        return total_M.clone() if self._graphs else total_M, None  # the next replay writes to the same memory

    def leapfrog(self, trajectory: Trajectory) -> Phase | None:
        """Return the end of leapfrog steps; None if there are too many data to go through the network at once."""
        if trajectory.data.size > self.chunk_size:
            return None
        target = (self.model, trajectory.data, trajectory.scales)
        self._unrolled = self._unrolled or Unrolled(*target, graphs=self._graphs)
        return self._unrolled(trajectory)


def _mode(graphs: bool) -> str | None:
    """Return the mode of `torch.compile` that records CUDA graphs, or its usual one."""
    return "reduce-overhead" if graphs else None


@contextmanager
def _by_parts() -> Iterator[None]:
    """Let transforms see inside encoders of transformers, without torch's warnings about their speed."""
    with encoders_by_parts(), quiet_vmap():
        yield


class Unrolled:
    """Leapfrog on the log joint density of a model and all its data, which go through the network at once."""

    def __init__(self, model: Model, data: Batch, scales: Scales, *, graphs: bool = False) -> None:
        """Bind a model to all its rows and to factors on log likelihood and log prior; `graphs` as for `Compiled`."""
        self._model, self._data, self._scales, self._graphs = model, data, scales, graphs
        self._functions: dict[tuple[int, int], Callable[..., tuple[Tensor, ...]]] = {}  # of steps and members

    def __call__(self, trajectory: Trajectory) -> Phase:
        """Return the end of leapfrog steps."""
        weights_MD, momentum_MD, gradient_MD, step_size_M, steps_M, inverse_mass_MD, *_ = trajectory
        most = int(steps_M.max())
        length = LENGTH if most >= LENGTH else 1
        sizes_LM = step_sizes(step_size_M, steps_M, -(-most // length) * length).to(weights_MD)
        mass_MD = torch.ones_like(weights_MD) if inverse_mass_MD is None else inverse_mass_MD
        phase, shape = (weights_MD, momentum_MD, gradient_MD), (length, len(weights_MD))
        likelihood_M = prior_M = step_size_M  # set by the first call: at least one step is taken
        with full_precision(weights_MD.device), torch.no_grad():
            for sizes_UM in sizes_LM.split(length):
                step = (*phase, mass_MD, sizes_UM.unsqueeze(-1))
                if shape not in self._functions:
                    # A trace at the given data has none of the network's Python left, which the compiler may not take.
                    # The `partial` hides `self`, which would count as an argument.
                    with _by_parts():
                        flat = make_fx(partial(self._steps))(*step)
                    self._functions[shape] = torch.compile(flat, dynamic=False, mode=_mode(self._graphs))
                results = self._functions[shape](*step)
                # the next replay writes to the same memory
                *phase, likelihood_M, prior_M = [t.clone() for t in results] if self._graphs else results
        value_M = self._scales.likelihood * likelihood_M + self._scales.prior * prior_M
        return Phase(phase[0], phase[1], Value(value_M, phase[2], likelihood_M))

    def _steps(
        self, weights: Tensor, momentum: Tensor, gradient: Tensor, mass: Tensor, sizes_UM1: Tensor
    ) -> tuple[Tensor, ...]:
        """Return weights, momenta, gradients (M, D), log likelihoods and log priors (M,) after U steps."""

        def joint(weights_D: Tensor) -> tuple[Tensor, Any]:
            likelihood = self._model.log_likelihood(weights_D, self._data).sum(dtype=torch.float64)
            prior = self._model.log_prior(weights_D)
            return self._scales.likelihood * likelihood + self._scales.prior * prior, (likelihood, prior)

        gradients, values = vmap(grad(joint, has_aux=True)), ()
        for size_M1 in sizes_UM1:
            momentum = momentum + size_M1 / 2 * gradient
            weights = weights + size_M1 * mass * momentum
            gradient, values = gradients(weights)
            momentum = momentum + size_M1 / 2 * gradient
        return weights, momentum, gradient, *values

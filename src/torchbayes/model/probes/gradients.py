"""The random weights on which the outputs of a network depend.

A gradient may be exactly zero at the start of a fit, as of a factor whose other factor starts at zero. A network may
also skip layers at random, or depending on its inputs. So other weights and rows are tried before a parameter is
reported.
"""

from __future__ import annotations

import traceback
from collections.abc import Container, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import checkpoint

from torchbayes.checks import SettingError
from torchbayes.model.batches.batch import rows_of
from torchbayes.model.network import Network, outputs_in
from torchbayes.native.process import differentiable
from torchbayes.native.recomputation import activations_kept
from torchbayes.native.sharding import is_sharded
from torchbayes.randomness.seeds import Purpose, generator, seeded

_ATTEMPTS = 3  # passes in search of gradients
_FEW = 2  # rows, the fewest that a batch norm takes, by which recomputed activations are compared
_LEAST = 0.1  # least standard deviation of a change of weights
_RECOMPUTED = (
    "the network recomputes activations in the backward pass (torch.utils.checkpoint), and they are others than those "
    "of the first pass. Perhaps a function that is checkpointed depends on what changes meanwhile, such as random "
    "numbers of numpy or Python, or counts its calls. Mend that, or turn checkpoints off, in Hugging Face models by "
    "`model.gradient_checkpointing_disable()`."
)


def dependence(network: Network, batches: Iterator[Any], *, training: bool) -> tuple[Tensor | None, list[str]]:
    """Return the outputs for the first rows, with their graph, and the parameters on which no outputs depend.

    `batches` yields inputs; mostly one batch is read. If nothing can be differentiated, no parameter is reported: a
    method that needs a gradient says why it fails. SettingError is raised if the network recomputes other activations
    in the backward pass than those of the first pass.
    """
    initial, inputs = network.initial, next(batches)
    views, run = initial, _Asked(network, inputs, 0, training)
    first, gradients = _differentiated(run, views)
    if network.held.recomputes(training=training):
        few = run._replace(inputs=rows_of(inputs, slice(0, _FEW)))  # there may be no room for activations of all rows
        recomputed = _differentiated(few, views)[1]
        with activations_kept():
            _check_same(recomputed, _differentiated(few, views)[1])
    missing = _without(gradients)
    for attempt in range(1, _ATTEMPTS):
        if not missing:
            return first, []
        views, run = changed(initial, attempt), _Asked(network, next(batches, inputs), attempt, training)
        gradients = _differentiated(run, views)[1]
        missing &= _without(gradients)
    absent = {name for name in missing if gradients[name] is None}
    unused = absent | _silenced(run, views, missing - absent)
    return first, [name for name in initial if name in unused]


class _Asked(NamedTuple):
    """A pass through a network on some rows, with the random numbers of an attempt, in one mode."""

    network: Network
    inputs: Any
    attempt: int
    training: bool

    def __call__(self, views: Mapping[str, Tensor], constants: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the outputs at these weights, with these constants in the place of the network's own."""
        state = {name: buffer.clone() for name, buffer in self.network.buffers.items()}
        mode = self.network.training() if self.training else nullcontext()
        with mode, seeded(Purpose.GRADIENT_TRIAL, self.attempt, device=self.network.device):
            if constants is None:
                return self.network(views, self.inputs, state)
            module_state = {**self.network.ask(views, self.inputs, state), **constants}
            return outputs_in(self.network, module_state, self.inputs)


def _differentiated(asked: _Asked, views: Mapping[str, Tensor]) -> tuple[Tensor | None, dict[str, Tensor | None]]:
    """Return the outputs, and the gradient of a random combination of them by name; no gradients where this fails."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in views.items()}
    outputs = None
    try:
        with differentiable():
            outputs = asked(leaves)
            if not outputs.requires_grad:
                return outputs, dict.fromkeys(leaves)
            # the gradient of a plain sum would vanish behind a softmax or a normalisation
            columns, rows = (noise(outputs.shape[axis], outputs, asked.attempt, axis) for axis in (-1, 0))
            total = ((outputs @ columns).flatten(1).sum(1) if outputs.ndim > 2 else outputs @ columns) @ rows
            gradients = torch.autograd.grad(total, [*leaves.values()], allow_unused=True)
    except RuntimeError as error:
        if not _recomputes(error):
            return outputs, {}
        raise SettingError(_RECOMPUTED) from error
    return outputs, dict(zip(leaves, gradients, strict=True))


def _check_same(recomputed: Mapping[str, Tensor | None], kept: Mapping[str, Tensor | None]) -> None:
    """Raise SettingError if gradients are not those that come of activations that are kept."""
    for name, gradient in kept.items():
        if gradient is None:
            continue
        other, rounding = recomputed.get(name), torch.finfo(gradient.dtype).eps ** 0.5
        if other is None or not (other - gradient).norm() <= rounding * gradient.norm():
            raise SettingError(_RECOMPUTED)


def _without(gradients: Mapping[str, Tensor | None]) -> set[str]:
    """Return the names of gradients that do not exist or are zero everywhere."""
    existing = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    moving = torch.stack([gradient.any() for gradient in existing.values()]).tolist() if existing else []
    return {*gradients} - {name for name, moves in zip(existing, moving, strict=True) if moves}


def noise(size: int, like: Tensor, *integers: int) -> Tensor:
    """Return standard normals (size,), of the dtype and on the device of a tensor."""
    return torch.randn(size, generator=generator(Purpose.GRADIENT_NOISE, *integers)).to(like)


def changed(views: Mapping[str, Tensor], attempt: int, only: Container[str] | None = None) -> dict[str, Tensor]:
    """Return weights with normal noise in proportion to each parameter's root mean square, added to some or all."""
    moved = {}
    for number, (name, tensor) in enumerate(views.items()):
        scale = (tensor.norm() / tensor.numel() ** 0.5).clamp_min(_LEAST)
        direction = noise(tensor.numel(), tensor, attempt, number).view(tensor.shape)
        moved[name] = tensor + scale * direction if only is None or name in only else tensor
    return moved


def _silenced(asked: _Asked, views: Mapping[str, Tensor], names: set[str]) -> set[str]:
    """Return the parameters on which outputs do not depend, but would under other constants of the network.

    Parameters of step functions have no gradient, but an effect. Parameters that these rows do not use, such as heads
    of other tasks, have no effect under any constants.
    """
    floats = {name: tensor for name, tensor in asked.network.constants.items() if tensor.is_floating_point()}
    constants = {name: tensor for name, tensor in floats.items() if not is_sharded(tensor)}
    if not names or not constants:
        return set()
    changed_constants = changed(constants, _ATTEMPTS)

    def same(those: set[str], constants: Mapping[str, Tensor] | None = None) -> bool:
        moved = asked(changed(views, _ATTEMPTS, those), constants)
        return torch.equal(moved, asked(views, constants))

    with torch.no_grad():
        return {name for name in names if same({name}) and not same({name}, changed_constants)}


def _recomputes(error: BaseException) -> bool:
    """Return whether an error comes from activations that are computed again in a backward pass.

    The traceback tells, because the text may be of any kind: the module of a factory holds no values by then.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename == checkpoint.__file__ for frame, _ in frames) or "checkpoint" in str(error)

"""Which random weights the outputs of a network depend on.

A gradient may be exactly zero where a fit begins, as that of a factor whose other factor starts at zero, and a network
may skip layers at random, or by what its inputs are: it is asked again, at other weights and rows, before anything is
said of a parameter.
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
from torchbayes.model.network import Network, outputs_of
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, generator, seeded

_ATTEMPTS = 3  # passes by which gradients are looked for
_LEAST = 0.1  # of the standard deviation by which weights are changed


def dependence(network: Network, batches: Iterator[Any], *, training: bool) -> tuple[Tensor | None, list[str]]:
    """Return the outputs for the first rows, with their graph, and the parameters on which no outputs depend.

    Where nothing can be differentiated there is nothing to say; a method that needs a gradient says why it fails.

    Args:
        network: the network.
        batches: inputs, batch by batch; only the first are read, mostly one.
        training: whether it runs in training mode.

    Raises:
        SettingError: if it recomputes activations in the backward pass, when its weights are others.
    """
    initial, inputs = network.initial, next(batches)
    views, asked = initial, _Asked(network, inputs, 0, training)
    first, gradients = _differentiated(asked, views)
    missing = _without(gradients)
    for attempt in range(1, _ATTEMPTS):
        if not missing:
            return first, []
        views, asked = _changed(initial, attempt), _Asked(network, next(batches, inputs), attempt, training)
        gradients = _differentiated(asked, views)[1]
        missing &= _without(gradients)
    absent = {name for name in missing if gradients[name] is None}
    unused = absent | _silenced(asked, views, missing - absent)
    return first, [name for name in initial if name in unused]


class _Asked(NamedTuple):
    """A pass through a network: on which rows, with which random numbers, in which mode."""

    network: Network
    inputs: Any
    attempt: int
    training: bool

    def __call__(self, views: Mapping[str, Tensor], constants: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the outputs at weights, and at other constants than the network's own."""
        state = {name: buffer.clone() for name, buffer in self.network.buffers.items()}
        mode = self.network.training() if self.training else nullcontext()
        with mode, seeded(Purpose.GRADIENT_TRIAL, self.attempt, device=self.network.device):
            if constants is None:
                return self.network(views, self.inputs, state)
            held = {**self.network.ask(views, self.inputs, state), **constants}
            return outputs_of(self.network.held.run(held, self.inputs), self.network.class_axis)


def _differentiated(asked: _Asked, views: Mapping[str, Tensor]) -> tuple[Tensor | None, dict[str, Tensor | None]]:
    """Return the outputs, and the gradient of a random combination of them by name; nothing where it fails.

    Raises:
        SettingError: as of `dependence`.
    """
    held = {name: tensor.detach().requires_grad_() for name, tensor in views.items()}
    outputs = None
    try:
        with differentiable():
            outputs = asked(held)
            if not outputs.requires_grad:
                return outputs, dict.fromkeys(held)
            # not their sum, whose gradient vanishes behind a softmax or a normalisation
            columns, rows = (_noise(outputs.shape[axis], outputs, asked.attempt, axis) for axis in (-1, 0))
            total = ((outputs @ columns).flatten(1).sum(1) if outputs.ndim > 2 else outputs @ columns) @ rows
            found = torch.autograd.grad(total, [*held.values()], allow_unused=True)
    except RuntimeError as error:
        if not _recomputes(error):
            return outputs, {}
        raise SettingError(
            "the network recomputes activations in the backward pass (torch.utils.checkpoint), where it no longer "
            "holds the weights that are asked about. Turn that off, in Hugging Face models by "
            "`model.gradient_checkpointing_disable()`."
        ) from error
    return outputs, dict(zip(held, found, strict=True))


def _without(gradients: Mapping[str, Tensor | None]) -> set[str]:
    """Return the names of gradients that do not exist or are zero everywhere."""
    there = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    moving = torch.stack([gradient.any() for gradient in there.values()]).tolist() if there else []
    return {*gradients} - {name for name, moves in zip(there, moving, strict=True) if moves}


def _noise(size: int, like: Tensor, *integers: int) -> Tensor:
    """Return standard normals (size,), of the dtype and on the device of a tensor."""
    return torch.randn(size, generator=generator(Purpose.GRADIENT_NOISE, *integers)).to(like)


def _changed(views: Mapping[str, Tensor], attempt: int, only: Container[str] | None = None) -> dict[str, Tensor]:
    """Return other weights, some of them or all: each parameter with normal noise of its own size."""
    changed = {}
    for number, (name, tensor) in enumerate(views.items()):
        scale = (tensor.norm() / tensor.numel() ** 0.5).clamp_min(_LEAST)
        noise = _noise(tensor.numel(), tensor, attempt, number).view(tensor.shape)
        changed[name] = tensor + scale * noise if only is None or name in only else tensor
    return changed


def _silenced(asked: _Asked, views: Mapping[str, Tensor], names: set[str]) -> set[str]:
    """Return the parameters on which outputs do not depend, and would if the network's constants were others.

    Those of step functions have no gradient, and an effect. Those that these rows do not ask for, such as heads of
    other tasks, have none under any constants.
    """
    constants = {name: tensor for name, tensor in asked.network.constants.items() if tensor.is_floating_point()}
    if not names or not constants:
        return set()
    others = _changed(constants, _ATTEMPTS)

    def same(those: set[str], constants: Mapping[str, Tensor] | None = None) -> bool:
        moved = asked(_changed(views, _ATTEMPTS, those), constants)
        return torch.equal(moved, asked(views, constants))

    with torch.no_grad():
        return {name for name in names if same({name}) and not same({name}, others)}


def _recomputes(error: BaseException) -> bool:
    """Return whether an error comes from activations that are computed again in a backward pass.

    Its text may be of any kind: a network that a factory made holds no values by then.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename == checkpoint.__file__ for frame, _ in frames) or "checkpoint" in str(error)

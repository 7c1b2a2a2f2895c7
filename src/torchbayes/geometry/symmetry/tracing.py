"""Watching a network run, operator by operator, for which axes of its weights hold the same units.

The network runs unchanged on a few rows or on chunks of data, with any functions, layers and control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.weak import WeakIdKeyDictionary

from torchbayes.geometry.symmetry.rules import rule_of
from torchbayes.geometry.symmetry.units import Axes, Axis, Call, Ties, moving, shaped
from torchbayes.model.batches.batch import arguments, copied, tensors_of
from torchbayes.native.process import encoders_by_parts
from torchbayes.randomness.generators import DispatchMode

_READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "_unique2", "masked_select"}


class Watch(DispatchMode):
    """Follows axes of units through every operator that runs inside the `with`.

    `ties` are the groups of units found; `where` the names of the running modules, outermost first.
    """

    def __init__(self, ties: Ties, used: Callable[[Tensor, Axes, int], None] | None = None) -> None:
        """Start without tensors; `used` is called with (activations, axes, axis) where units are summed over."""
        super().__init__()
        self.ties, self._used = ties, used
        self.where: list[str] = []
        self._axes, self._inputs, self._read = WeakIdKeyDictionary(), WeakIdKeyDictionary(), WeakIdKeyDictionary()

    def name(self, tensor: Tensor, axes: Axes, *, active: bool = False) -> None:
        """Set the axes of a tensor, and whether it depends on the inputs."""
        self._axes[tensor] = axes
        if active:
            self._inputs[tensor] = True

    def name_all(self, held: Mapping[str, Tensor], axes: Mapping[str, Sequence[Axis]], inputs: Any) -> None:
        """Set the axes of what a network holds, and of its inputs, which are in fixed order."""
        for name, tensor in held.items():
            self.name(tensor, list(axes[name]))
        for tensor in tensors_of(inputs):
            self.name(tensor, shaped(tensor.shape), active=True)

    def was_read(self, tensor: Tensor) -> bool:
        """Return whether an operator took a tensor."""
        return tensor in self._read

    def axes_of(self, tensor: Tensor) -> Axes:
        """Return the axes of a tensor, in fixed order if it is unknown."""
        axes = self._axes.get(tensor)
        return shaped(tensor.shape) if axes is None else [self.ties.resolved(axis) for axis in axes]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run an operator, record the axes of its results, and return these."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        schema = func._schema.arguments
        values = {known.name: value for known, value in zip(schema, args, strict=False)} | kwargs
        packet = func.overloadpacket.__name__
        used = self._use if self._used else lambda tensor, axis: None
        call = Call(packet, values, out, self.ties, self.axes_of, used, torch.Tag.pointwise in func.tags)
        active = any(tensor in self._inputs for tensor in call.tensors)
        self._read.update((tensor, True) for tensor in call.tensors)
        for tensor, axes in zip(call.results, self._made(call), strict=False):
            self.name(tensor, axes, active=active)
        return out

    def _use(self, tensor: Tensor, axis: int) -> None:
        if self._used and tensor in self._inputs:
            self._used(tensor, self.axes_of(tensor), axis)

    def _made(self, call: Call) -> list[Axes]:
        """Return the axes of the results of an operator."""
        rule = None if call.name in _READS else rule_of(call)
        if rule is not None:
            try:
                made = rule(call)
            except (LookupError, AttributeError, TypeError, StopIteration):  # arguments that the rule does not cover
                made = []
            if len(made) >= len(call.results) and all(map(_fits, call.results, made)):
                return made
        if next(moving(call), None) is None:
            return [shaped(tensor.shape) for tensor in call.results]
        layer = next((name for name in reversed(self.where) if name), "the network itself")
        raise ValueError(
            f"the units of `{layer}` cannot be followed through the operator `{call.name}`, of which it is not known "
            f"what it does to their order. Keep their order by `keep=`, write the layer with other functions, or align "
            f"the networks by hand."
        )


def _fits(tensor: Tensor, axes: Axes) -> bool:
    """Return whether axes are as long as those of a tensor."""
    return [sum(segment.size for segment in axis) for axis in axes] == list(tensor.shape)


def run(module: nn.Module, state: Mapping[str, Tensor], inputs: Any) -> Any:
    """Return the outputs of a module that holds the tensors of `state`; neither they nor the inputs are changed."""
    args, kwargs = arguments(copied(inputs))
    with torch.no_grad(), encoders_by_parts():
        return functional_call(module, dict(state), args, kwargs)


@contextmanager
def located(module: nn.Module, watch: Watch) -> Iterator[None]:
    """Tell a watch which modules are running inside the `with`."""

    def leave(*_: Any) -> None:
        watch.where.pop()

    handles = []
    for name, submodule in module.named_modules():
        handles += [
            submodule.register_forward_pre_hook(lambda *_, name=name: watch.where.append(name)),
            submodule.register_forward_hook(leave, always_call=True),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
